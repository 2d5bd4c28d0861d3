"""What a component logs of trouble, when it stops, and how large a request may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import elasticsearch
import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from structlog.testing import capture_logs

from syncer.base import lifecycle
from syncer.base.errors import UnavailableError
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.retry import REPEAT_SECONDS, CurrentTrouble, Trouble, retry, troubles
from syncer.elasticsearch.bulk import _never_fits


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
    noted = [line["timeline"] for line in logs if line.get("timeline")]
    assert noted == ["worker-1 was held up for 1 min 0 s: full"]
    assert current("relay") == current("worker-1") == []


def test_a_stop_is_overdue_only_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was not requested never is."""
    stop = Stop()
    assert not stop.is_overdue
    stop.request()
    assert not stop.is_overdue
    monkeypatch.setattr(lifecycle, "GRACE_SECONDS", -1.0)
    assert stop.is_overdue


def answered(status: int, *, by_elasticsearch: bool = True, reason: str = "because", **more: object) -> Any:
    """An answer as the client raises it."""
    node = NodeConfig("http", "127.0.0.1", 9200)
    meta = ApiResponseMeta(status=status, http_version="1.1", headers=HttpHeaders({}), duration=0.1, node=node)
    error = {"type": "some_exception", "reason": reason, **more}
    body = {"error": error, "status": status} if by_elasticsearch else "<html>"
    return elasticsearch.ApiError(message="some_exception", meta=meta, body=body)


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
def test_what_is_too_large_is_distinguished_from_what_has_no_room_now(error: Any, *, never: bool) -> None:
    """Elasticsearch answers both with the same status; the rest of its answer differs."""
    assert _never_fits(error) is never
