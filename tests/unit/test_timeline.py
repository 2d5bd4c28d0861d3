"""Nothing that the timeline notes makes the caller fail or wait."""

from __future__ import annotations

import psycopg
from structlog.testing import capture_logs

from syncer.base.timeline import Timeline


class Broken:
    """A connection that is lost as soon as it is used."""

    def transaction(self) -> None:
        """Fail as psycopg does."""
        raise psycopg.OperationalError("the connection is lost")


def messages(timeline: Timeline) -> list[str]:
    """What it has noted and not written."""
    return [note["message"] for _, note in timeline._notes]


def test_what_no_text_of_postgres_can_hold_is_replaced_and_what_is_long_is_cut() -> None:
    """An error may quote anything."""
    timeline = Timeline()
    timeline.note("component.failed", "error", "a\0b\ud800\n\tc" + "x" * 100_000)
    (message,) = messages(timeline)
    assert "a\N{REPLACEMENT CHARACTER}b? cx" in message
    assert len(message) < 3000


def test_what_cannot_be_written_waits_within_bounds_and_is_logged_once() -> None:
    """The newest stay; the caller sees no error."""
    timeline = Timeline()
    with capture_logs() as logs:
        for number in range(3000):
            timeline.note("topic.records_lost", "warning", str(number))
            if number % 500 == 0:
                timeline.write(Broken())  # type: ignore[arg-type]
    assert [line["event"] for line in logs] == ["timeline.write_failed"]
    assert len(messages(timeline)) == 1000
    assert messages(timeline)[-1] == "2999"
