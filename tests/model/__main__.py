"""Explore the models. With --without RULE, print the shortest path to what goes wrong without that rule."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from tests.model.cleaning_up import CleaningUp
from tests.model.cluster_identities import ClusterIdentities
from tests.model.explorer import Model, Rule, explore
from tests.model.fanning import Fanning
from tests.model.progressing import Progressing
from tests.model.reindexing import Reindexing
from tests.model.relaying import Relaying
from tests.model.routing import Routing
from tests.model.suspending import Suspending
from tests.model.writing import Writing

MODELS: tuple[type[Model[Any]], ...] = (
    Writing,
    Routing,
    Relaying,
    CleaningUp,
    Fanning,
    Reindexing,
    Suspending,
    ClusterIdentities,
    Progressing,
)
RULES = {rule.name: (model, rule) for model in MODELS for rule in model.rules}


def main() -> int:
    """Explore all models, or print one path; return 0 if the result is as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--without", metavar="RULE", choices=RULES, help="print the shortest path to a violation")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/protocol.md")
    chosen = parser.parse_args()
    if chosen.without:
        model, rule = RULES[chosen.without]
        path = explore(model(without=rule.name)).path
        _print(f"Without: {rule.says} ({rule.kept_by or 'an assumption'}).", f"{model.bounds}.")
        _print(*(f"{number:>3}. {step}" for number, step in enumerate(path[:-1], 1)), *path[-1:])
        return 0 if path else 1
    if chosen.markdown:
        _print(*markdown())
        return 0
    return max([_explore(model) for model in MODELS])


def _explore(model: type[Model[Any]]) -> int:
    found = explore(model())
    _print(f"{model.name}: {model.about}", f"  {model.bounds}")
    _print(f"  {found.states:,} states, {found.steps:,} steps: {'a VIOLATION' if found.path else 'no violation'}")
    _print(*(f"    {step}" for step in found.path))
    is_well = not found.path
    for rule in model.rules:
        number = _steps_without(model, rule)
        is_well = is_well and number > 0
        _print(f"  without {rule.name:<40} {f'violation after {number} steps' if number else 'NO VIOLATION'}")
    return 0 if is_well else 1


def _steps_without(model: type[Model[Any]], rule: Rule) -> int:
    """Return the number of steps to a violation without a rule; 0 if there is none."""
    return max(0, len(explore(model(without=rule.name)).path) - 1)


def markdown() -> Iterator[str]:
    """Yield the tables of docs/protocol.md, line by line."""
    yield from ("| model | what it shows | bounds | states | steps |", "|---|---|---|---:|---:|")
    for model in MODELS:
        found = explore(model())
        yield f"| {model.name} | {model.about} | {model.bounds} | {found.states:,} | {found.steps:,} |"
    for model in MODELS:
        yield from ("", f"### {model.name}: {model.about}", "")
        yield from ("| rule | kept by | without it | shortest path |", "|---|---|---|---:|")
        for rule in model.rules:
            yield f"{row(rule)} {_steps_without(model, rule)} steps |"


def row(rule: Rule) -> str:
    """Return the beginning of a rule's row in docs/protocol.md."""
    kept_by = f"`{rule.kept_by}`" if rule.kept_by else "*assumed*"
    return f"| **{rule.says}** (`{rule.name}`) | {kept_by} | {rule.otherwise} |"


def _print(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
