"""What a component logs of trouble, when it stops, and how large a request may be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
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
    made = Clock()
    monkeypatch.setattr(base_retry, "monotonic", made)
    for name in ("_failing", "_outages", "_logged_at", "_answered_at", "_silences"):
        monkeypatch.setattr(base_retry, name, {})
    return made


FULL = UnavailableError("full", hint="make room", kind="429")
AWAY = psycopg.OperationalError("connection refused")


def stays(clock: Clock) -> None:
    """An error whose text changes, for two minutes."""
    for number in range(130):
        failed("worker", UnavailableError(f"would be [{number}]", kind="429"))
        clock.now += 1
    recovered("worker")
    recovered("worker")


def alternates(clock: Clock) -> None:
    """Two nodes with two errors."""
    for clock.now in range(50):
        failed("worker", FULL)
        failed("worker", UnavailableError("y", kind="503"))


def comes_and_goes(clock: Clock) -> None:
    """A thousand short outages in a minute."""
    for _ in range(1000):
        failed("worker", FULL)
        clock.now += 0.03
        recovered("worker")
        clock.now += 0.03


def comes_back_to_stay(clock: Clock) -> None:
    """An error that lasts, is over, and comes back."""
    for _ in range(2):
        failed("worker", FULL)
        clock.now += 6
        recovered("worker")


RETRIED, RECOVERED = "component.retried", "component.recovered"


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        (stays, [RETRIED, RETRIED, RETRIED, RECOVERED]),
        (alternates, [RETRIED, RETRIED]),
        (comes_and_goes, [RETRIED, RECOVERED]),
        (comes_back_to_stay, [RETRIED, RECOVERED, RETRIED, RECOVERED]),
    ],
)
def test_trouble_is_logged_rarely(clock: Clock, what: Callable[[Clock], None], lines: list[str]) -> None:
    """Each kind of error once, then each minute, and when it is over."""
    with capture_logs() as logs:
        what(clock)
    assert [line["event"] for line in logs] == lines


def test_what_is_retried_now_is_known_and_nothing_else(clock: Clock) -> None:
    """By component, server and error, and since when; not once it succeeds or is given up."""
    failing = True

    def action() -> None:
        if failing:
            raise FULL

    def pause(_: float) -> None:
        nonlocal failing
        clock.now += 3
        expected = {
            "component": "action",
            "server": "elasticsearch",
            "error": "full",
            "hint": "make room",
            "seconds": 3,
        }
        (trouble,) = troubles()
        assert asdict(trouble).items() >= expected.items()
        failing = False

    def stop(_: float) -> None:
        raise Stopping

    retry(action, pause=pause, component="action")
    assert troubles() == []
    failing = True
    with pytest.raises(Stopping):
        retry(action, pause=stop, component="action")
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
        assert [(each.component, each.seconds) for each in troubles()] == [("relay", 65)]
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
        assert [each.seconds for each in troubles()] == [5]  # it has answered since
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
