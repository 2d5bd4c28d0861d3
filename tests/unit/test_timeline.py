"""The timeline notes what the catalogue says, and nothing that it is told makes the caller fail or wait."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import structlog
from structlog.testing import capture_logs

from syncer.base import events, log
from syncer.base.settings import LogSettings
from syncer.base.timeline import Timeline
from syncer.jobs.model import JobKind

LINES: dict[str, dict[str, Any]] = {
    events.COMPONENT_RECOVERED: {"component": "relay", "attempts": 3, "outage_seconds": 75.2, "error": "Kafka is away"},
    events.COMPONENT_FAILED: {"component": "relay", "error": "no"},
    events.RELAY_LED: {"cursor": "1:1:"},
    events.RELAY_ADOPTED: {"changes": 7},
    events.DOCUMENT_SUSPENDED: {"document": "blogpost", "reason": "its table is gone", "hint": ""},
    events.DOCUMENT_RESUMED: {"index": "blogpost-000001", "outage_seconds": 3.0},
    events.JOB_FINISHED: {
        **dict.fromkeys(("indexed", "deleted", "skipped", "dead_lettered"), 0),
        "job_worker": "job_worker",
        "job": 3,
        "kind": "refresh",
        "document": "blogpost",
        "cause": None,
        "documents": 1000,
        "seconds": 3700.0,
    },
    events.FAILOVER_DETECTED: {"epoch": 2, "jobs": [1]},
    events.TOPIC_LOST: {"cause": "the topic was replaced", "jobs": [1], "documents": ["blogpost"]},
    events.TOPIC_MADE: {"topic": "changes"},
    events.APPLY_FINISHED: {"documents": {"blogpost": "changed"}, "resumed": ["blogpost"], "removed": ["user"]},
    events.VERIFY_FINISHED: {"index": "blogpost-000001", "documents": 1000, "drifted": 1, "repaired": 0},
}
"""A line of each event of the timeline, with the fields that it always has."""


class Broken:
    """A connection that is lost as soon as it is used."""

    def transaction(self) -> None:
        """Fail as psycopg does."""
        raise psycopg.OperationalError("the connection is lost")


def messages(timeline: Timeline) -> list[str]:
    """What it has noted and not written."""
    return [note["message"] for _, note in timeline._notes]


def test_each_event_of_the_timeline_makes_a_sentence_of_the_fields_that_it_always_has() -> None:
    """None of them needs an optional field; an event that is only logged leaves nothing."""
    assert {name for name, one in events.CATALOGUE.items() if one.timeline is not None} == LINES.keys()
    timeline = Timeline()
    for name, line in LINES.items():
        event = events.CATALOGUE[name]
        assert line.keys() == event.fields.keys() - event.optional
        timeline.note(name, line)
    timeline.note(events.RELAY_STOOD_BY, {})
    noted = messages(timeline)
    assert len(noted) == len(LINES)
    assert noted[0] == "relay was held up for 1 min 15 s: Kafka is away"
    assert "Job 3 (refresh) wrote every document of blogpost: 1,000 documents in 1 h 1 min." in noted
    assert "Applied blogpost (changed). Resumed blogpost. Removed user." in noted


def test_only_jobs_that_write_every_document_are_noted() -> None:
    """A fan-out is everyday work."""
    assert {one for one in JobKind if one.is_whole} == events.WRITE_EVERYTHING
    timeline = Timeline()
    for kind in JobKind:
        timeline.note(events.JOB_FINISHED, LINES[events.JOB_FINISHED] | {"kind": str(kind)})
    assert len(messages(timeline)) == len(events.WRITE_EVERYTHING)


def test_an_outage_is_noted_once_though_each_component_meets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that end at about the same time are one; what is over in less than a second is none."""
    timeline, line = Timeline(), LINES[events.COMPONENT_RECOVERED]
    now = 1000.0
    monkeypatch.setattr("syncer.base.timeline.time.monotonic", lambda: now)
    timeline.note(events.COMPONENT_RECOVERED, line | {"outage_seconds": 0.4})
    for component in ("relay", "worker-1", "job_worker"):
        timeline.note(events.COMPONENT_RECOVERED, line | {"component": component})
    assert [one.partition(" ")[0] for one in messages(timeline)] == ["relay"]
    now += 60
    timeline.note(events.COMPONENT_RECOVERED, line)
    assert len(messages(timeline)) == 2


@pytest.mark.parametrize("line", [{}, {"outage_seconds": None}, {"outage_seconds": "long", "component": 1, "error": 2}])
def test_a_line_unlike_the_catalogue_fails_nothing(line: dict[str, Any]) -> None:
    """It is left out."""
    timeline = Timeline()
    timeline.note(events.COMPONENT_RECOVERED, line)
    timeline.note("no.event", line)
    assert messages(timeline) == []


def test_what_no_text_of_postgres_can_hold_is_replaced_and_what_is_long_is_cut() -> None:
    """An error may quote anything."""
    timeline = Timeline()
    timeline.note(events.COMPONENT_FAILED, {"component": "relay", "error": "a\0b\ud800\n\tc" + "x" * 100_000})
    (message,) = messages(timeline)
    assert "a\N{REPLACEMENT CHARACTER}b? cx" in message
    assert len(message) < 3000


def test_what_cannot_be_written_waits_within_bounds_and_is_said_once() -> None:
    """The newest stay; the caller sees no error."""
    timeline = Timeline()
    with capture_logs() as logs:
        for number in range(3000):
            timeline.note(events.TOPIC_MADE, {"topic": str(number)})
            if number % 500 == 0:
                timeline.write(Broken())  # type: ignore[arg-type]
    assert [one["event"] for one in logs] == [events.TIMELINE_FAILED]
    assert len(messages(timeline)) == 1000
    assert messages(timeline)[-1] == "The topic 2999 was missing and was created again."


def test_the_timeline_does_not_depend_on_what_is_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An event below the log's level is noted all the same, also by a command."""
    timeline = Timeline()
    monkeypatch.setattr(log, "TIMELINE", timeline)
    before = structlog.get_config()
    try:
        log.configure(LogSettings(level="error"), is_command=True)
        structlog.get_logger().info(events.RELAY_LED, cursor="1:1:", previous=None, ended="")
    finally:
        structlog.configure(**before)
    assert messages(timeline) == ["This daemon's relay became the leader."]
    assert capsys.readouterr().err == ""
