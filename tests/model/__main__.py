"""Explore the models. With --without RULE, print the shortest path to what goes wrong without that rule."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from tests.model.cleaning_up import CleaningUp
from tests.model.comparing import Comparing
from tests.model.explorer import Model, explore
from tests.model.fanning import Fanning
from tests.model.fencing import Fencing
from tests.model.marks import Marks
from tests.model.moving import Moving
from tests.model.overtaking import Overtaking
from tests.model.progressing import Progressing
from tests.model.reindexing import Reindexing
from tests.model.relaying import Relaying
from tests.model.routing import Routing
from tests.model.sessions import Sessions
from tests.model.sharing import Sharing
from tests.model.suspending import Suspending
from tests.model.writing import Writing

MODELS: tuple[type[Model[Any]], ...] = (
    *(Writing, Moving, Routing, Relaying, CleaningUp, Comparing, Fanning, Reindexing, Suspending, Progressing),
    *(Sessions, Marks, Fencing, Overtaking, Sharing),
)
RULES = {rule.replace("_", "-"): (model, rule) for model in MODELS for rule in model.rules}
PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
"""Says what each rule requires, which module keeps it, and what happens without it."""


def main() -> int:
    """Explore all models, or print one path; return 0 if the result is as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--without", metavar="RULE", choices=RULES, help="print the shortest path to a violation")
    chosen = parser.parse_args()
    if chosen.without:
        model, rule = RULES[chosen.without]
        path = explore(model(without=rule)).path
        _print(*re.findall(rf"^\| (.*?\(`{chosen.without}`\).*) \|.*$", PAGE.read_text("utf-8"), re.MULTILINE))
        _print(f"{model.bounds}.", *(f"{number:>3}. {step}" for number, step in enumerate(path[:-1], 1)), *path[-1:])
        return 0 if path else 1
    return max([_explore(model) for model in MODELS])


def _explore(model: type[Model[Any]]) -> int:
    result = explore(model())
    _print(f"{model.name}: {model.about}", f"  {model.bounds}")
    _print(f"  {result.states:,} states, {result.steps:,} steps: {'a VIOLATION' if result.path else 'no violation'}")
    _print(*(f"    {step}" for step in result.path))
    without = {rule: max(0, len(explore(model(without=rule)).path) - 1) for rule in model.rules}
    for rule, number in without.items():
        _print(f"  without {rule:<40} {f'violation after {number} steps' if number else 'NO VIOLATION'}")
    return 1 if result.path or not all(without.values()) else 0


def _print(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
