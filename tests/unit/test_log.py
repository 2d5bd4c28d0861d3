"""Which lines are logged, and what the batches are summed up to."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from syncer.base.log import Choice, Summary
from syncer.base.settings import LogSettings

LEVELS = {
    "document.written": "debug",
    "relay.outbox_trimmed": "debug",
    "relay.led": "info",
    "worker.batch_indexed": "info",
    "component.gave_up": "warning",
}


def taken(settings: LogSettings, lines: list[dict[str, Any]], *, is_command: bool = False) -> list[dict[str, Any]]:
    """Those of the lines that are logged."""
    choice = Choice(settings, is_command=is_command)
    found = []
    for line in lines:
        try:
            found.append(dict(choice(None, LEVELS[line["event"]], dict(line))))
        except structlog.DropEvent:
            continue
    return found


@pytest.mark.parametrize(
    ("settings", "logged"),
    [
        (LogSettings(), ["relay.led", "component.gave_up"]),
        (LogSettings(level="debug"), ["document.written", "relay.led", "relay.outbox_trimmed", "component.gave_up"]),
        (LogSettings(levels={"document.written": "debug"}), ["document.written", "relay.led", "component.gave_up"]),
        (LogSettings(levels={"relay": "warning"}), ["component.gave_up"]),
        (
            LogSettings(levels={"relay": "error", "relay.outbox_trimmed": "debug"}),
            ["relay.outbox_trimmed", "component.gave_up"],
        ),
    ],
)
def test_the_level_of_an_event_is_its_own_or_its_components_or_that_of_all(
    settings: LogSettings, logged: list[str]
) -> None:
    """In that order."""
    names = ["document.written", "relay.led", "relay.outbox_trimmed", "component.gave_up"]
    assert [one["event"] for one in taken(settings, [{"event": name} for name in names])] == logged


def test_a_command_leaves_information_to_what_it_prints() -> None:
    """Unless somebody asks for more."""
    assert taken(LogSettings(), [{"event": "relay.led"}], is_command=True) == []
    assert taken(LogSettings(level="debug"), [{"event": "relay.led"}], is_command=True)


QUICK = {"event": "worker.batch_indexed", "changes": 2, "indexed": 3, "seconds": 0.1, "lag_seconds": 0.2}


def test_a_slow_batch_is_logged_and_each_if_its_level_says_so() -> None:
    """One that is only late is not: while a daemon catches up, all of them are. Other events are logged."""
    slow, late = QUICK | {"seconds": 3.0}, QUICK | {"lag_seconds": 30.0}
    assert taken(LogSettings(), [QUICK, slow, late, QUICK | {"lag_seconds": None}]) == [slow]
    assert taken(LogSettings(levels={"worker.batch_indexed": "debug"}), [QUICK, slow]) == [QUICK, slow]
    assert taken(LogSettings(levels={"worker": "warning"}), [QUICK, slow]) == []
    assert len(taken(LogSettings(), [{"event": "relay.led"}] * 5)) == 5


def test_batches_are_summed_up() -> None:
    """Every batch is counted once, logged or not; nothing is said of none."""
    summary = Summary()
    assert summary.take(at_once=True) is None
    published = {"event": "relay.batch_published", "changes": 5, "seconds": 0.5}
    for line in (published, QUICK, QUICK | {"seconds": 3.0, "lag_seconds": None}):
        summary.count(line)
    assert summary.take() is None  # it is too early
    told = summary.take(at_once=True)
    assert told == {
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
    assert summary.take(at_once=True) is None
