"""What a component logs of trouble, when it stops, and how large a request may be."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from structlog.testing import capture_logs

from syncer.base import lifecycle, retry as base_retry
from syncer.base.errors import UnavailableError
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.log import Repeated
from syncer.base.retry import answered, failed, give_up, recovered, retry, troubles


class Clock:
    """A clock that goes when the test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of `retry`, and no trouble that another test has left."""
    clock = Clock()
    monkeypatch.setattr(base_retry, "monotonic", clock)
    for name in ("_failing", "_outages", "_logged_at", "_answered_at", "_silences"):
        monkeypatch.setattr(base_retry, name, {})
    return clock


FULL = UnavailableError("full", hint="make room", kind="429")
AWAY = psycopg.OperationalError("connection refused")
RETRIED, RECOVERED = "component.retried", "component.recovered"


@pytest.mark.parametrize(
    ("steps", "lines"),
    [
        ([("429", 1)] * 130 + [(None, 0)] * 2, [RETRIED, RETRIED, RETRIED, RECOVERED]),  # two minutes
        ([("429", 1), ("503", 0)] * 50, [RETRIED, RETRIED]),  # two nodes with two errors
        ([("429", 0.03), (None, 0.03)] * 1000, [RETRIED, RECOVERED]),  # a thousand short outages in a minute
        ([("429", 6), (None, 0)] * 2, [RETRIED, RECOVERED, RETRIED, RECOVERED]),  # it lasts, and comes back
    ],
)
def test_trouble_is_logged_rarely(clock: Clock, steps: list[tuple[str | None, float]], lines: list[str]) -> None:
    """Each kind of error once, whatever its text, then each minute, and when it is over."""
    with capture_logs() as logs:
        for number, (kind, seconds) in enumerate(steps):
            if kind is None:
                recovered("worker")
            else:
                failed("worker", UnavailableError(f"would be [{number}]", kind=kind))
            clock.now += seconds
    assert [line["event"] for line in logs] == lines


@pytest.mark.parametrize("is_given_up", [False, True])
def test_what_is_retried_now_is_known_and_nothing_else(clock: Clock, *, is_given_up: bool) -> None:
    """By component, server and error, and since when; not once it succeeds or is given up."""
    outcomes = [FULL, None]

    def action() -> None:
        if error := outcomes.pop(0):
            raise error

    def pause(_: float) -> None:
        clock.now += 3
        (trouble,) = troubles()
        assert (trouble.component, trouble.server, trouble.error) == ("action", "elasticsearch", "full")
        assert (trouble.hint, trouble.seconds) == ("make room", 3)
        if is_given_up:
            raise Stopping

    with pytest.raises(Stopping) if is_given_up else nullcontext():
        retry(action, pause=pause, component="action")
    assert troubles() == []


def noted(logs: list[Any]) -> list[str]:
    """What the timeline gets."""
    return [line["timeline"] for line in logs if line.get("timeline")]


def test_an_outage_lasts_from_the_first_failure_to_the_first_success(clock: Clock) -> None:
    """Of any component: the others log nothing, unless they fail again. One that fails on is still in trouble."""
    with capture_logs() as logs:
        failed("relay", FULL)
        clock.now += 50
        failed("worker-1", FULL)
        clock.now += 10
        recovered("worker-1")
        clock.now += 5
        assert [(trouble.component, trouble.seconds) for trouble in troubles()] == [("relay", 65)]
        recovered("relay")
    assert noted(logs) == ["worker-1 was held up for 1 min 0 s: full"]
    assert troubles() == []


def test_only_an_answer_of_a_server_ends_its_outage(clock: Clock) -> None:
    """One outage is one event, from the start of the first failed attempt on, whichever components it held up."""
    with capture_logs() as logs:
        failed("worker-1", AWAY, seconds=20)
        failed("relay", AWAY, seconds=5)
        recovered("relay")
        assert noted(logs) == []
        answered("postgres")
        assert noted(logs) == ["Postgres did not answer for 20 s: Postgres cannot be reached: connection refused"]
        assert troubles() == []  # the worker will reach it, too
        clock.now += 5
        recovered("worker-1")
        failed("worker-1", AWAY, seconds=60)
        assert [trouble.seconds for trouble in troubles()] == [5]  # it has answered since
        give_up("worker-1")
        answered("postgres")
        answered("kafka", seconds=11)
        answered("kafka", seconds=12)  # others were answered meanwhile
        answered("elasticsearch")  # a request that began later is answered first
        answered("elasticsearch", seconds=12)
    assert noted(logs)[1:] == ["Kafka did not answer for 11 s", "Elasticsearch did not answer for 12 s"]


def test_a_process_that_was_stopped_has_no_outage(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waited for while it did not run says nothing of the server."""
    clock.now = time.monotonic()
    monkeypatch.setattr(lifecycle._Pulse, "at", clock.now - 30)
    with capture_logs() as logs:
        failed("relay", pg.IdleSessionTimeout("terminating"), seconds=30)
        answered("postgres", seconds=30)
        recovered("relay")
    assert noted(logs) == []


def test_a_stop_is_overdue_only_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was not requested never is."""
    stop = Stop()
    assert not stop.is_overdue
    stop.request()
    assert not stop.is_overdue
    monkeypatch.setattr(lifecycle, "GRACE_SECONDS", -1.0)
    assert stop.is_overdue


def test_what_recurs_is_logged_at_once_and_then_as_a_count() -> None:
    """Each kind by itself; once it is time, with all that were only counted."""
    rarely, always = Repeated(seconds=3600), Repeated(seconds=0)
    assert [rarely.count("a", 10), rarely.count("a"), rarely.count("b"), rarely.count("a")] == [10, 0, 1, 0]
    assert [always.count("a"), always.count("a", 2)] == [1, 2]
