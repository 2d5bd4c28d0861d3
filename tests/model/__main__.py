"""Explore the models. With --without RULE, print the shortest path to what goes wrong without that rule."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from tests.model import catalogue
from tests.model.explorer import Explored, Model, explore


def main() -> int:
    """Explore all models, or print one path; return 0 if the result is as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--without", metavar="RULE", choices=_names(), help="print the shortest path to a violation")
    parser.add_argument(
        "--beyond",
        metavar="EVENT",
        choices=[name for _, name in catalogue.BEYOND],
        help="likewise, with an event that the protocol is known not to survive",
    )
    parser.add_argument("--large", action="store_true", help="use larger bounds: takes minutes and gigabytes of memory")
    parser.add_argument("--page", action="store_true", help="print the tables of docs/protocol.md")
    chosen = parser.parse_args()
    if chosen.page:
        _print(catalogue.page())
        return 0
    if chosen.without:
        model, rule = next((model, rule) for model, rule in catalogue.RULES if rule.name == chosen.without)
        _print([f"Without: {rule.says} ({rule.kept_by}).", f"{model().bounds}."])
        return _tell(catalogue.broken(model, rule))
    if chosen.beyond:
        model = next(model for model, name in catalogue.BEYOND if name == chosen.beyond)
        _print([f"If {model.beyond[chosen.beyond]}:"])
        return _tell(catalogue.surpassed(model, chosen.beyond))
    return max(_explore(model, is_large=chosen.large) for model in catalogue.MODELS)


def _names() -> list[str]:
    return [rule.name for _, rule in catalogue.RULES]


def _explore(model: type[Model[Any]], *, is_large: bool) -> int:
    _print([f"{model.name}: {model.about}", f"  {model(is_large=is_large).bounds}"])
    found = explore(model(is_large=is_large))
    size = f"{found.states:,} states, {found.transitions:,} steps, {found.depth} deep, {found.ends:,} ends"
    _print([f"  {size}, {found.seconds:.1f} s: {'a VIOLATION' if found.trace else 'no violation'}"])
    if found.trace:
        _print(found.trace.lines())
    is_well = found.trace is None
    for rule in model.rules:
        trace = catalogue.broken(model, rule).trace
        is_well = is_well and trace is not None
        outcome = f"violation after {len(trace.steps)} steps" if trace else "NO VIOLATION"
        _print([f"  without {rule.name:<40} {outcome}"])
    return 0 if is_well else 1


def _tell(found: Explored) -> int:
    if found.trace is None:
        _print([f"No violation in {found.states:,} states."])
        return 1
    _print(found.trace.lines())
    return 0


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
