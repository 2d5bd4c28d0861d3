"""Which lines are logged, what the batches are summed up to, and how what repeats itself is counted."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from syncer.base.log import Choice
from syncer.base.log_limit import Repeated

QUICK = {"event": "worker.batch_indexed", "changes": 2, "indexed": 3, "seconds": 0.1, "lag_seconds": 0.2}
SLOW = QUICK | {"seconds": 3.0, "lag_seconds": None}
LED = {"event": "relay.led"}


def logged(choice: Choice, *lines: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the lines, of level info, that are logged."""
    found = []
    for line in lines:
        try:
            found.append(dict(choice(None, "info", dict(line))))
        except structlog.DropEvent:
            continue
    return found


@pytest.mark.parametrize(("level", "expected"), [("debug", [QUICK, SLOW, LED]), ("info", [SLOW, LED]), ("warning", [])])
def test_a_batch_has_a_line_if_it_is_slow(level: Any, expected: list[dict[str, Any]]) -> None:
    """At level debug, each has one."""
    assert logged(Choice(level), QUICK, SLOW, LED) == expected


def test_batches_are_summed_up() -> None:
    """Every batch is counted once, logged or not; without one there is no summary."""
    choice = Choice("error")
    assert choice.take_summary(at_once=True) is None
    logged(choice, {"event": "relay.batch_published", "changes": 5, "seconds": 0.5}, QUICK, SLOW)
    assert choice.take_summary() is None  # it is too early
    assert choice.take_summary(at_once=True) == {
        "published": 5,
        "relay_batches": 1,
        "handled": 4,
        "worker_batches": 2,
        "documents": 0,
        "indexed": 6,
        "deleted": 0,
        "skipped": 0,
        "dead_lettered": 0,
        "seconds_max": 3.0,
        "lag_seconds_max": 0.2,
    }
    assert choice.take_summary(at_once=True) is None


Reports = list[tuple[str, int, str]]


def counting(*, seconds: float) -> tuple[Repeated[str, str], Reports]:
    """A counter, and what it reports."""
    reports: Reports = []
    return Repeated(lambda *report: reports.append(report), seconds=seconds), reports


def test_the_first_is_reported_at_once_and_the_others_as_a_count() -> None:
    """Each kind by itself, with the last as an example; what has not recurred for long enough begins anew."""
    repeated, reports = counting(seconds=3600)
    for number in range(5):
        repeated.note("a", f"example {number}", 10)
    repeated.note("b", "other")
    assert reports == [("a", 10, "example 0"), ("b", 1, "other")]
    repeated.report()
    assert len(reports) == 2
    repeated.flush()
    assert reports[2:] == [("a", 40, "example 4")]
    repeated, reports = counting(seconds=0)
    repeated.note("a", "first")
    repeated.note("a", "second", 2)
    repeated.report()
    repeated.note("a", "third")
    assert reports == [("a", 1, "first"), ("a", 2, "second"), ("a", 1, "third")]


def test_memory_is_bounded_however_many_kinds_there_are() -> None:
    """And no number is lost."""
    repeated, reports = counting(seconds=3600)
    for number in range(2500):
        repeated.note(str(number), "example", 2)
        repeated.note(str(number), "example")
    assert len(repeated._counts) <= 1000
    repeated.flush()
    assert sum(number for _, number, _ in reports) == 7500
