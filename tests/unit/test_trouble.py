"""What a component logs of trouble, when it stops, and how large a request may be."""

from __future__ import annotations

import threading
import time
from typing import Any

import elasticsearch
import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from structlog.testing import capture_logs

from syncer.base import lifecycle
from syncer.base.errors import UnavailableError
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.retry import TELL_SECONDS, CurrentTrouble, Trouble, retry, troubles
from syncer.elasticsearch.bulk import _never_fits


def answered(
    status: int, *, by_elasticsearch: bool = True, reason: str = "because", **more: object
) -> elasticsearch.ApiError:
    """Return an answer as the client raises it."""
    node = NodeConfig("http", "127.0.0.1", 9200)
    meta = ApiResponseMeta(status=status, http_version="1.1", headers=HttpHeaders({}), duration=0.1, node=node)
    error = {"type": "some_exception", "reason": reason, **more}
    body = {"error": error, "status": status} if by_elasticsearch else "<html>"
    return elasticsearch.ApiError(message="some_exception", meta=meta, body=body)


class Clock:
    """A clock that goes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def told(logs: list[Any]) -> list[tuple[str, int]]:
    """Each line's event and attempts."""
    return [(one["event"], one["attempts"]) for one in logs]


def test_trouble_that_stays_is_told_once_and_then_each_minute() -> None:
    """However often its words change; and once more when it is over, with how often and how long."""
    clock = Clock()
    trouble = Trouble("worker", clock=clock)
    with capture_logs() as logs:
        for number in range(130):
            trouble.met(UnavailableError(f"would be [{number}]", hint="wait", kind="429 full"))
            clock.now += 1
        trouble.over()
        trouble.over()
    assert told(logs) == [
        ("component.retried", 1),
        ("component.retried", TELL_SECONDS + 1),
        ("component.retried", 2 * TELL_SECONDS + 1),
        ("component.recovered", 130),
    ]
    assert [one["outage_seconds"] for one in logs] == [0, 60, 120, 130]
    assert logs[0]["hint"] == "wait"


def test_kinds_that_alternate_are_told_once_each() -> None:
    """Two nodes with two troubles are two lines, not one for each attempt."""
    trouble = Trouble("worker", clock=Clock())
    with capture_logs() as logs:
        for _ in range(50):
            trouble.met(UnavailableError("x", kind="429"))
            trouble.met(UnavailableError("y", kind="503"))
    assert told(logs) == [("component.retried", 1), ("component.retried", 2)]


def test_trouble_that_comes_and_goes_is_told_as_rarely() -> None:
    """A thousand short outages in a minute are one line and its end."""
    clock = Clock()
    trouble = Trouble("worker", clock=clock)
    with capture_logs() as logs:
        for _ in range(1000):
            trouble.met(UnavailableError("full", kind="429"))
            clock.now += 0.03
            trouble.over()
            clock.now += 0.03
    assert told(logs) == [("component.retried", 1), ("component.recovered", 1)]


def test_trouble_that_comes_back_to_stay_is_told_soon() -> None:
    """It was told of just now and is told again, as soon as it is no moment's."""
    clock = Clock()
    trouble = Trouble("worker", clock=clock)
    with capture_logs() as logs:
        trouble.met(UnavailableError("full", kind="429"))
        trouble.over()
        for _ in range(10):
            clock.now += 1
            trouble.met(UnavailableError("full", kind="429"))
    assert told(logs) == [("component.retried", 1), ("component.recovered", 1), ("component.retried", 6)]


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
        assert trouble.server == "elasticsearch"
        assert (trouble.error, trouble.hint) == ("full", "make room")
        assert trouble.seconds >= 0.02
        failing = False

    retry(action, pause=pause, component="action")
    assert current("action") == []

    def stop(_: float) -> None:
        raise Stopping

    failing = True
    with pytest.raises(Stopping):
        retry(action, pause=stop, component="action")
    assert current("action") == []


def test_an_outage_lasts_from_the_first_failure_to_the_first_success() -> None:
    """Whichever components they are of: one that began later tells how long it was, and the others tell nothing."""
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
    noted = [line["timeline"] for line in logs if line.get("timeline")]
    assert noted == ["worker-1 was held up for 1 min 0 s: full"]
    assert current("relay") == current("worker-1") == []


def test_what_is_in_hand_has_its_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that nobody asked for is never overdue; one that was asked for twice counts from the first time."""
    stop = Stop()
    assert not stop.is_overdue
    stop.request()
    assert not stop.is_overdue
    monkeypatch.setattr(lifecycle, "GRACE_SECONDS", -1.0)
    assert stop.is_overdue


# How large a request may be


PRESSURE = "rejected [all_bytes={}, coordinating_operation_bytes={}, max_coordinating_bytes={}]"


@pytest.mark.parametrize(
    ("error", "never"),
    [
        (answered(413), True),
        (answered(413, by_elasticsearch=False), True),
        (answered(503), False),
        (answered(429), False),
        (answered(429, by_elasticsearch=False), False),
        (answered(429, reason=PRESSURE.format(0, 500, 400)), True),
        (answered(429, reason=PRESSURE.format(390, 50, 400)), False),
        (answered(429, bytes_limit=999), False),
    ],
)
def test_what_is_too_large_is_told_from_what_has_no_room_now(error: Any, *, never: bool) -> None:
    """Elasticsearch says the same status of both; what it says besides tells them apart."""
    assert _never_fits(error) is never
