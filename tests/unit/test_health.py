"""A process is alive while its components go on, and ready once it can do its work."""

from __future__ import annotations

import threading

import pytest

from syncer.base.lifecycle import Stop
from syncer.base.retry import CurrentTrouble
from syncer.monitoring import health
from syncer.monitoring.status import Server, Status

COMPONENT = "worker-1"
TROUBLE = CurrentTrouble(component=COMPONENT, server="kafka", kind="_TRANSPORT", seconds=9, error="it is away", hint="")


def postgres(error: str | None = None) -> Status:
    """A status in which Postgres answers, or does not."""
    return Status(at=0, servers=(Server(server="postgres", error=error, age_seconds=0),), stored=None, documents=())


def test_a_component_that_hangs_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for a query that may take any time is."""
    stop = Stop()
    assert health.alive(stop, [COMPONENT])[0].is_well
    monkeypatch.setattr(health, "HANG_SECONDS", -1)
    assert "no heartbeat" in health.alive(stop, [COMPONENT])[0].reason
    monkeypatch.setattr(health, "HANG_SECONDS", 0)
    alive = []

    def is_patient() -> None:
        with stop.patient():
            alive.append(health.alive(stop, [COMPONENT])[0].is_well)

    thread = threading.Thread(target=is_patient, name=COMPONENT)
    thread.start()
    thread.join()
    assert alive == [True]
    assert not health.alive(stop, [COMPONENT])[0].is_well


def test_ready_needs_components_and_servers() -> None:
    """Each check that fails is named; a process that is stopping, or retries, is not ready."""
    stop = Stop()

    def missing(*troubles: CurrentTrouble, status: Status, components: tuple[str, ...] = (COMPONENT,)) -> set[str]:
        return {check.name for check in health.ready(stop, components, troubles, status) if not check.is_well}

    assert missing(status=postgres(), components=()) == {"components"}
    assert missing(status=postgres()) == {"components"}
    thread = threading.Thread(target=stop.beat, name=COMPONENT)
    thread.start()
    thread.join()
    assert missing(status=postgres()) == set()
    assert missing(status=postgres("it is down")) == {"postgres"}
    assert missing(TROUBLE, status=postgres()) == {COMPONENT}
    stop.request()
    assert missing(status=postgres()) == {"daemon"}
