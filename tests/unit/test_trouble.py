"""What a component logs of trouble, when it stops, and how large a request may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from structlog.testing import capture_logs

from syncer.base import lifecycle, retry as base_retry
from syncer.base.errors import UnavailableError
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.log import Repeated
from syncer.base.retry import REPEAT_SECONDS, CurrentTrouble, Trouble, answered, retry, troubles


class Clock:
    """A clock that goes when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def stays(trouble: Trouble, clock: Clock) -> None:
    """An error whose text changes, for two minutes."""
    for number in range(130):
        trouble.met(UnavailableError(f"would be [{number}]", kind="429"))
        clock.now += 1
    trouble.over()
    trouble.over()


def alternates(trouble: Trouble, _clock: Clock) -> None:
    """Two nodes with two errors."""
    for _ in range(50):
        trouble.met(UnavailableError("x", kind="429"))
        trouble.met(UnavailableError("y", kind="503"))


def comes_and_goes(trouble: Trouble, clock: Clock) -> None:
    """A thousand short outages in a minute."""
    for _ in range(1000):
        trouble.met(UnavailableError("full", kind="429"))
        clock.now += 0.03
        trouble.over()
        clock.now += 0.03


def comes_back_to_stay(trouble: Trouble, clock: Clock) -> None:
    """An error that is logged, over, and back."""
    trouble.met(UnavailableError("full", kind="429"))
    trouble.over()
    for _ in range(10):
        clock.now += 1
        trouble.met(UnavailableError("full", kind="429"))


RETRIED, RECOVERED = "component.retried", "component.recovered"


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        (stays, [(RETRIED, 1), (RETRIED, REPEAT_SECONDS + 1), (RETRIED, 2 * REPEAT_SECONDS + 1), (RECOVERED, 130)]),
        (alternates, [(RETRIED, 1), (RETRIED, 2)]),
        (comes_and_goes, [(RETRIED, 1), (RECOVERED, 1)]),
        (comes_back_to_stay, [(RETRIED, 1), (RECOVERED, 1), (RETRIED, 6)]),
    ],
)
def test_trouble_is_logged_rarely(what: Callable[[Trouble, Clock], None], lines: list[tuple[str, int]]) -> None:
    """Each kind of error once, then each minute, with the number of attempts, and when it is over."""
    clock = Clock()
    with capture_logs() as logs:
        what(Trouble("worker", clock=clock), clock)
    assert [(line["event"], line["attempts"]) for line in logs] == lines


def current(component: str) -> list[CurrentTrouble]:
    """What a component of this process is retrying."""
    return [trouble for trouble in troubles() if trouble.component == component]


def test_what_is_retried_now_is_known_and_nothing_else() -> None:
    """By component, server and error, from the start of the first attempt; not once it succeeds or is given up."""
    failing = True

    def action() -> None:
        if failing:
            time.sleep(0.02)
            raise UnavailableError("full", hint="make room")

    def pause(_: float) -> None:
        nonlocal failing
        (trouble,) = current("action")
        assert (trouble.server, trouble.error, trouble.hint) == ("elasticsearch", "full", "make room")
        assert trouble.seconds >= 0.02
        failing = False

    def stop(_: float) -> None:
        raise Stopping

    retry(action, pause=pause, component="action")
    assert current("action") == []
    failing = True
    with pytest.raises(Stopping):
        retry(action, pause=stop, component="action")
    assert current("action") == []


def test_an_outage_lasts_from_the_first_failure_to_the_first_success() -> None:
    """Of any component: one that began later logs how long it was, and the others nothing."""
    clock = Clock()
    first_failed, recovered = threading.Event(), threading.Event()
    long, brief = Trouble("relay", clock=clock), Trouble("worker-1", clock=clock)

    def long_trouble() -> None:
        long.met(UnavailableError("full", kind="outage"), seconds=60)
        first_failed.set()
        recovered.wait(10)
        long.over()

    with capture_logs() as logs:
        thread = threading.Thread(target=long_trouble)
        thread.start()
        assert first_failed.wait(10)
        brief.met(UnavailableError("full", kind="outage"))
        brief.over()
        recovered.set()
        thread.join()
    assert noted(logs) == ["worker-1 was held up for 1 min 0 s: full"]
    assert current("relay") == current("worker-1") == []


def noted(logs: list[Any]) -> list[str]:
    """What the timeline gets."""
    return [line["timeline"] for line in logs if line.get("timeline")]


def test_only_an_answer_of_a_server_ends_its_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that succeeds may not have needed it: one outage is one event, from the first failed attempt on."""
    monkeypatch.setattr(base_retry, "_outages", {})
    monkeypatch.setattr(base_retry, "_answered_at", {})
    monkeypatch.setattr(base_retry, "_silences", {})
    trouble = Trouble("worker-1")
    with capture_logs() as logs:
        for seconds in (20, 5):
            trouble.met(psycopg.OperationalError("connection refused"), seconds=seconds)
            trouble.over()
        assert noted(logs) == []
        answered("postgres")
        assert noted(logs) == ["Postgres did not answer for 20 s"]
        trouble.met(pg.AdminShutdown("terminating"), seconds=0)
        answered("postgres")
        assert current("worker-1") == []
        trouble.over()
        answered("kafka", seconds=11)
        answered("kafka", seconds=12)  # others were answered meanwhile
        answered("elasticsearch")  # a request that began later is answered first
        answered("elasticsearch", seconds=12)
    assert noted(logs)[1:] == ["Kafka did not answer for 11 s", "Elasticsearch did not answer for 12 s"]


def test_a_process_that_was_stopped_has_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waited for while it did not run says nothing of the server."""
    monkeypatch.setattr(lifecycle._Pulse, "at", time.monotonic() - 30)
    trouble = Trouble("relay")
    with capture_logs() as logs:
        trouble.met(pg.IdleSessionTimeout("terminating"), seconds=30)
        answered("postgres", seconds=30)
        trouble.over()
    assert noted(logs) == []


def test_a_stop_is_overdue_only_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was not requested never is."""
    stop = Stop()
    assert not stop.is_overdue
    stop.request()
    assert not stop.is_overdue
    monkeypatch.setattr(lifecycle, "GRACE_SECONDS", -1.0)
    assert stop.is_overdue


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
