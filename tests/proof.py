"""What a test proves: which fault, which promises, and the rule of syncer's that it would miss.

A test that injects a fault says so with `faces`. From these marks comes the fault matrix, ``docs/faults.md``
(``python -m tests.proof`` writes it). ``pytest --without-rules`` runs each such test once for each of its rules, with
that rule taken out of syncer, and demands that it fails: see `tests.without`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

import tests

_Test = TypeVar("_Test", bound=Callable[..., Any])

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "faults.md"

PROMISED = {
    1: "Every committed change reaches every document that shows it; nothing is lost by a crash of any part.",
    2: "A document never goes back to an older state, whatever is delayed, repeated, reordered or run twice.",
    3: "When writes stop, every document equals its SELECT, deletes included, and `syncer verify` proves it.",
    4: "Backfills run beside live traffic without weakening 1 to 3.",
    5: "Applications change nothing: plain SQL from any language.",
}
"""As `syncer` numbers them."""
SECTIONS = {
    "The version rule": ("version", "routing", "documents_with_routing"),
    "Processes": ("process", "worker", "random_writers", "every_shape", "pipeline", "soak"),
    "All servers": ("servers",),
    "Elasticsearch": ("elasticsearch", "search"),
    "Kafka": ("kafka", "scale_out"),
    "Postgres": ("postgres", "relay", "doorbell", "replica"),
    "Documents at fault": ("poison", "dead_letters"),
    "Jobs, rebuilds and their lanes": (
        *("backfill", "fan_outs", "jobs", "lanes", "write_lane", "rebuild", "indices_of_a_rebuild", "owed"),
    ),
    "Capture and schema": ("capture", "every_way", "partitions", "schema"),
    "Verify": ("verify",),
    "Locks, for those who have no other database": ("locks",),
}
"""What is faulted, and with what the names of its modules begin; the rest comes last."""
_OTHERS = "And besides"

_INTRODUCTION = """\
# The fault matrix

What is done to syncer, its servers and its data, which promise that threatens, the test that does it on the real
servers, and the rule that protects the promise.

Each rule can be taken out. `pytest --without-rules tests/faults` runs every test that names one in a process of its own
in which syncer lacks it, the daemons that the test starts included, and demands that the test fails. Where none is
named, what protects is somebody else's: a server's, or a library's.

Random writers print their seed when a test fails; `SYNCER_TEST_SEED` sets it, and `SYNCER_TEST_SECONDS` how long they
write. In the end every document is compared with its SELECT, by code that shares nothing with syncer.

This page is written by `python -m tests.proof`, from the tests.
"""
_RULES = """
## The rules

Each with the module that keeps it, and how many of the tests above fail without it.

| Rule | Kept by | Tests |
|---|---|---|"""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that protects a promise, and the mutation that takes it out.

    Args:
        name: The rule, as a sentence without its full stop.
        module: Where it is kept.
        text: Stands there exactly once.
        instead: What stands there when the rule is taken out.
    """

    name: str
    _: KW_ONLY
    module: str
    text: str
    instead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a test shows.

    Args:
        fault: What is done, in words.
        promises: Which of them that threatens.
        rules: What protects them; without any one of these the test fails.
    """

    fault: str
    promises: tuple[int, ...]
    rules: tuple[Rule, ...]


def faces(fault: str, *, promises: tuple[int, ...], without: Rule | tuple[Rule, ...] = ()) -> Callable[[_Test], _Test]:
    """Say what a test proves.

    Args:
        fault: What is done, in words.
        promises: Which of them that threatens, by their numbers.
        without: The rules that the test would miss; none, if what protects is not syncer's.
    """
    rules = (without,) if isinstance(without, Rule) else without
    assert list(promises) == [one for one in PROMISED if one in promises], promises
    assert "|" not in fault, fault
    return pytest.mark.faces(Proof(fault=fault, promises=promises, rules=rules))


def proof(test: object) -> Proof | None:
    """What a test says that it proves."""
    found = [mark.args[0] for mark in getattr(test, "pytestmark", ()) if mark.name == "faces"]
    return found[0] if found else None


def tests_of_all() -> Iterator[tuple[ModuleType, str, object]]:
    """Every test that there is: the module, the test's name, the test."""
    for found in sorted(pkgutil.walk_packages(tests.__path__, "tests."), key=lambda one: one.name):
        if found.name.rpartition(".")[2].startswith("test_"):
            module = importlib.import_module(found.name)
            for name, test in vars(module).items():
                if name.startswith("test_") and callable(test):
                    yield module, name, test


def proofs() -> Iterator[tuple[ModuleType, str, Proof]]:
    """Every proof that there is: the module, the test and what it shows."""
    for module, name, test in tests_of_all():
        shown = proof(test)
        if shown is not None:
            yield module, name, shown


def page() -> str:
    """The fault matrix."""
    found = list(proofs())
    sections: dict[str, list[tuple[ModuleType, str, Proof]]] = {}
    for title in [*SECTIONS, _OTHERS]:
        if some := [one for one in found if _section(one[0]) == title]:
            sections[title] = some
    parts = [_INTRODUCTION, *_promises([shown for _, _, shown in found]), "", "What is faulted:"]
    parts.append(" ·\n".join(f"[{title}](#{_anchor(title)}) ({len(some)})" for title, some in sections.items()))
    for title, some in sections.items():
        parts.append(f"\n## {title}")
        last: ModuleType | None = None
        for module, name, shown in some:
            if module is not last:
                parts += _heading(module)
                last = module
            rules = "; ".join(rule.name for rule in shown.rules)
            parts.append(f"| {shown.fault} | {_numbers(shown)} | `{name}` | {rules} |")
    parts += [_RULES, *_rules([shown for _, _, shown in found])]
    return "\n".join(parts) + "\n"


def _promises(shown: Sequence[Proof]) -> Iterator[str]:
    """A table of the promises: how many tests threaten each of them, and how many rules protect it."""
    yield "| | Promise | Tests | Rules |\n|---|---|---|---|"
    for number, said in PROMISED.items():
        some = [one for one in shown if number in one.promises]
        rules = {rule.name for one in some for rule in one.rules}
        yield f"| {number} | {said} | {len(some)} | {len(rules)} |"
    yield f"| | In all | {len(shown)} | {len({rule.name for one in shown for rule in one.rules})} |"


def _rules(shown: Sequence[Proof]) -> Iterator[str]:
    """The rows of a table of all rules."""
    tests_of = Counter((rule.module, rule.name) for one in shown for rule in one.rules)
    for (module, name), number in sorted(tests_of.items()):
        file = f"{module.replace('.', '/')}.py"
        yield f"| {name} | [{module}](../{file}) | {number} |"


def _heading(module: ModuleType) -> list[str]:
    """What stands above the tests of a module."""
    file = Path(str(module.__file__)).relative_to(REPOSITORY)
    table = "| Fault | Promises | Test | Rule |\n|---|---|---|---|"
    return [f"\n### {str(module.__doc__).splitlines()[0]}\n", f"[{file}](../{file})\n", table]


def _numbers(shown: Proof) -> str:
    return ", ".join(map(str, shown.promises)) or "none"


def _section(module: ModuleType) -> str:
    name = module.__name__.rpartition(".test_")[2]
    titles = (title for title, beginnings in SECTIONS.items() if name.startswith(beginnings))
    return next(titles, _OTHERS)


def _anchor(title: str) -> str:
    """As GitHub names a heading."""
    return "".join(one for one in title.lower().replace(" ", "-") if one.isalnum() or one == "-")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
