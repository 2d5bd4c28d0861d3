"""A process is alive while its components go on, and ready once it can do its work."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from syncer.base.lifecycle import Stop
from syncer.base.retry import CurrentTrouble
from syncer.monitoring import health
from syncer.monitoring.status import Server, Status

COMPONENT = "worker-1"
TROUBLE = CurrentTrouble(component=COMPONENT, server="kafka", kind="_TRANSPORT", seconds=9, error="it is away", hint="")


def in_component(work: Callable[[], object]) -> None:
    """Do something in a thread of that name, and wait for it."""
    thread = threading.Thread(target=work, name=COMPONENT)
    thread.start()
    thread.join()


def answers(error: str | None = None) -> Status:
    """A status in which Postgres answers, or does not."""
    servers = (Server(server="postgres", error=error, age_seconds=0),)
    return Status(at=0, servers=servers, stored=None, documents=())


def test_a_component_that_hangs_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that checks its stop, waits by it, or waits for a query that may take any time, is."""
    stop = Stop()
    assert health.alive(stop, [COMPONENT]).is_well
    monkeypatch.setattr(health, "HANG_SECONDS", -1)
    hung = health.alive(stop, [COMPONENT])
    assert not hung.is_well
    assert "no heartbeat" in hung.checks[0].reason
    monkeypatch.setattr(health, "HANG_SECONDS", 0)

    def is_patient() -> None:
        with stop.patient("a listing"):
            assert health.alive(stop, [COMPONENT]).is_well

    in_component(is_patient)
    assert not health.alive(stop, [COMPONENT]).is_well


def test_ready_needs_components_and_servers() -> None:
    """Each check that fails is named, with why; a process that is stopping, or retries, is not ready."""
    stop = Stop()

    def missing(*troubles: CurrentTrouble, status: Status, components: tuple[str, ...] = (COMPONENT,)) -> set[str]:
        return {check.name for check in health.ready(stop, components, troubles, status).checks if not check.is_well}

    assert missing(status=answers(), components=()) == {"components"}
    assert missing(status=answers()) == {"components"}
    in_component(stop.beat)
    assert missing(status=answers()) == set()
    assert missing(status=answers("it is down")) == {"postgres"}
    assert missing(TROUBLE, status=answers()) == {COMPONENT}
    stop.request()
    assert missing(status=answers()) == {"daemon"}
