"""Health: whether this process is alive, and whether it is ready.

*Alive* is about this process alone: each of its components makes progress, even if it only retries. A component makes
progress if its thread has called its `Stop` recently (its heartbeat), or waits for a query that may take any time. So a
server that is down makes no process dead, and a restart fixes a process that is not alive.

*Ready* includes what the process needs. Its components have started, none of them is retrying, and the servers answer,
Postgres with a schema of this program. A process that is not ready recovers by itself; do not kill it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from syncer.base.formatting import elapsed
from syncer.base.lifecycle import Stop
from syncer.base.retry import CurrentTrouble
from syncer.monitoring.daemons import HANG_SECONDS, silence
from syncer.monitoring.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """The result of one check of a component or server."""

    name: str
    is_well: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The results of all checks."""

    checks: tuple[HealthCheck, ...]

    @property
    def is_well(self) -> bool:
        """Whether all checks passed."""
        return all(check.is_well for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The health as plain data."""
        return {"is_well": self.is_well, "checks": [asdict(check) for check in self.checks]}


def alive(stop: Stop, components: Collection[str]) -> Health:
    """Check that each of these components of this process makes progress."""
    silent = {name: silence(stop, name) for name in components}
    return Health(
        checks=tuple(
            HealthCheck(name=name, is_well=True, reason="works")
            if seconds <= HANG_SECONDS
            else HealthCheck(name=name, is_well=False, reason=f"has shown no heartbeat for {elapsed(seconds)}")
            for name, seconds in silent.items()
        )
    )


def ready(stop: Stop, components: Collection[str], troubles: Collection[CurrentTrouble], status: Status) -> Health:
    """Check that this process can do its work: its components, what they are retrying, and the servers."""
    waiting = [name for name in components if stop.beat_at(name) is None]
    reason = "all have started" if components and not waiting else f"not started: {', '.join(waiting) or 'any'}"
    checks = [HealthCheck(name="components", is_well=bool(components) and not waiting, reason=reason)]
    if stop.has_been_requested:
        checks.append(HealthCheck(name="daemon", is_well=False, reason="it is stopping"))
    checks += [HealthCheck(name=trouble.component, is_well=False, reason=trouble.error) for trouble in troubles]
    checks += [
        HealthCheck(name=server.server, is_well=server.error is None, reason=server.error or "answers")
        for server in status.servers
    ]
    return Health(checks=tuple(checks))
