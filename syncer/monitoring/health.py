"""Health: whether this process is alive, and whether it is ready.

*Alive* is about this process alone: each of its components makes progress, even if it only retries. A component makes
progress if its thread has called its `Stop` recently (its heartbeat), or waits for a query that may take any time. So a
server that is down makes no process dead, and a restart fixes a process that is not alive.

*Ready* includes what the process needs. Its components have started, none of them is retrying, and the servers answer,
Postgres with a schema of this program. A process that is not ready recovers by itself; do not kill it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from syncer.base.formatting import elapsed
from syncer.base.lifecycle import Stop
from syncer.base.retry import CurrentTrouble
from syncer.monitoring.daemons import HANG_SECONDS
from syncer.monitoring.status import Status


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The result of one check of a component or server."""

    name: str
    is_well: bool
    reason: str


def alive(stop: Stop, components: Collection[str]) -> list[HealthCheck]:
    """Check that each of these components of this process makes progress."""
    checks = []
    for name in components:
        seconds = stop.silence(name)
        is_well = seconds <= HANG_SECONDS
        reason = "works" if is_well else f"has shown no heartbeat for {elapsed(seconds)}"
        checks.append(HealthCheck(name, is_well, reason))
    return checks


def ready(
    stop: Stop, components: Collection[str], troubles: Collection[CurrentTrouble], status: Status
) -> list[HealthCheck]:
    """Check that this process can do its work: its components, what they are retrying, and the servers."""
    waiting = [name for name in components if not stop.has_started(name)]
    has_started = bool(components) and not waiting
    reason = "all have started" if has_started else f"not started: {', '.join(waiting) or 'any'}"
    checks = [HealthCheck("components", has_started, reason)]
    if stop.is_requested:
        checks.append(HealthCheck("daemon", is_well=False, reason="it is stopping"))
    checks += [HealthCheck(trouble.component, is_well=False, reason=trouble.error) for trouble in troubles]
    checks += [HealthCheck(server.server, server.error is None, server.error or "answers") for server in status.servers]
    return checks
