"""Who goes on is alive, whatever his servers do; who neither goes on nor is patient is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from syncer.base.lifecycle import Stop
from syncer.monitoring import health, status
from syncer.monitoring.poll import Polled
from syncer.monitoring.status import Server, ServerAnswer

COMPONENT = "worker-1"


def in_component(work: Callable[[], object]) -> None:
    """Do something in a thread of that name, and wait for it."""
    thread = threading.Thread(target=work, name=COMPONENT)
    thread.start()
    thread.join()


def polled(*, age: float = 0, errors: dict[Server, str] | None = None) -> Polled:
    """A reading, so long ago, in which these servers have not answered."""
    servers = [ServerAnswer(server=one, error=(errors or {}).get(one), seconds=0.1, age_seconds=0) for one in Server]
    overview = status.put_together(servers, None, None, at=time.time() - age)
    return Polled(monotonic_at=time.monotonic() - age, overview=overview, rates=None)


def test_a_component_that_asks_whether_to_end_is_alive_and_one_that_hangs_is_not() -> None:
    """So is one that waits or tries again, since it does so by its stop; who has yet to begin has his time."""
    stop = Stop()
    assert health.alive(stop, [COMPONENT]).checks[0].reason == "begins"
    for work in (lambda: stop.is_requested, lambda: stop.is_overdue, lambda: stop.wait(0), lambda: stop.pause(0)):
        in_component(work)
        assert health.alive(stop, [COMPONENT]).is_well
    hung = health.alive(stop, [COMPONENT, "relay"], hang_seconds=-1)
    assert [one.is_well for one in hung.checks] == [False, False]
    assert "has not gone on" in hung.checks[0].reason
    assert hung.as_json()["is_well"] is False


def test_patience_within_patience() -> None:
    """The outer question is the one that is waited for again once the inner one is answered."""
    stop = Stop()
    name = threading.current_thread().name
    with stop.patient("a step"):
        with stop.patient("a page of it"):
            assert stop.waits_for(name) == "a page of it"
        assert stop.waits_for(name) == "a step"
    assert stop.waits_for(name) is None


def test_a_component_may_be_patient_with_one_question() -> None:
    """As long as it lasts, and it says which."""
    stop = Stop()
    asked, answered = threading.Event(), threading.Event()

    def ask() -> None:
        with stop.patient("a listing"):
            asked.set()
            answered.wait(60)

    thread = threading.Thread(target=ask, name=COMPONENT)
    thread.start()
    assert asked.wait(60)
    (check,) = health.alive(stop, [COMPONENT], hang_seconds=-1).checks
    assert (check.is_well, check.reason) == (True, "waits for a listing")
    answered.set()
    thread.join()
    assert not health.alive(stop, [COMPONENT], hang_seconds=-1).is_well
    assert list(stop.patiently(iter([1, 2]), "a page")) == [1, 2]


def test_who_is_ready_has_begun_and_has_all_servers_that_he_needs() -> None:
    """Each that is not well is named, with why; an old answer is none; who is told to stop is not ready."""
    stop = Stop()

    def unavailable(reading: Polled | None, *needs: Server) -> dict[str, str]:
        found = health.ready(stop, [COMPONENT], reading, needs=needs or tuple(Server))
        return {one.name: one.reason for one in found.checks if not one.is_well}

    assert unavailable(None).keys() == {"components", *Server}
    in_component(stop.beat)
    assert unavailable(polled()) == {}
    assert unavailable(polled(errors={Server.KAFKA: "it is away"})) == {"kafka": "it is away"}
    assert unavailable(polled(errors={Server.KAFKA: "it is away"}), Server.POSTGRES) == {}
    assert unavailable(polled(age=3600)).keys() == set(Server)
    stop.request()
    assert unavailable(polled()).keys() == {"daemon"}
