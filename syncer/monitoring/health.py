"""Health: whether this process is alive, and whether it is ready.

*Alive* is about this process alone: each of its components makes progress, even if it only retries. A component makes
progress if its thread has called its `Stop` recently (its heartbeat). It also does if it is waiting for a query that
may take any time, such as the listing of all documents. So a server that is down makes no process dead, and a restart
fixes a process that is not alive.

*Ready* includes what the process needs. Its components have started, and each server that they use has answered
recently, Postgres with a schema of this program. A process that is not ready recovers by itself; do not kill it.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from syncer.base.formatting import duration
from syncer.base.lifecycle import Stop
from syncer.monitoring.poll import Polled
from syncer.monitoring.status import Server, ServerAnswer

HANG_SECONDS = 180.0
"""How long a component may show no heartbeat: longer than any wait in it, except for queries that may take any time."""
ANSWER_SECONDS = 120.0
"""The maximum age of a server's answer: the poll may have waited for another server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """The result of one check.

    Args:
        name: The component or server.
        is_well: Whether it passed.
        reason: What was found.
    """

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
        return all(one.is_well for one in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The health as plain data."""
        return {"is_well": self.is_well, "checks": [asdict(one) for one in self.checks]}


def alive(stop: Stop, components: Collection[str], *, hang_seconds: float = HANG_SECONDS) -> Health:
    """Check that each component of this process makes progress.

    Args:
        stop: The `Stop` that all of them call.
        components: Their names.
        hang_seconds: How long a component may show no heartbeat.
    """
    return Health(checks=tuple(_beating(stop, one, hang_seconds) for one in components))


def ready(
    stop: Stop, components: Collection[str], polled: Polled | None, *, needs: Collection[Server] = tuple(Server)
) -> Health:
    """Check that this process can do its work.

    Args:
        stop: As for `alive`.
        components: As for `alive`.
        polled: The servers' last answers.
        needs: The servers that its components use.
    """
    begun = [one for one in components if stop.beat_at(one) is None]
    checks = [
        HealthCheck(
            name="components", is_well=not begun, reason=f"not begun: {', '.join(begun)}" if begun else "all have begun"
        )
    ]
    if stop.has_been_requested:
        checks.append(HealthCheck(name="daemon", is_well=False, reason="it has been told to stop"))
    answers = {one.server: one for one in polled.overview.servers} if polled is not None else {}
    age = 0.0 if polled is None else time.monotonic() - polled.monotonic_at
    checks += [_answered(one, answers.get(one), age) for one in Server if one in needs]
    return Health(checks=tuple(checks))


def _beating(stop: Stop, component: str, hang_seconds: float) -> HealthCheck:
    at, what = stop.beat_at(component), stop.waits_for(component)
    age = time.monotonic() - (stop.made_at if at is None else at)
    if what is not None:
        return HealthCheck(name=component, is_well=True, reason=f"waits for {what}")
    if age <= hang_seconds:
        return HealthCheck(name=component, is_well=True, reason="begins" if at is None else "goes on")
    return HealthCheck(name=component, is_well=False, reason=f"has not gone on for {duration(age)}")


def _answered(server: Server, answer: ServerAnswer | None, age: float) -> HealthCheck:
    if answer is None:
        return HealthCheck(name=server, is_well=False, reason="was not asked yet")
    if answer.error is not None:
        return HealthCheck(name=server, is_well=False, reason=answer.error)
    if age > ANSWER_SECONDS:
        return HealthCheck(name=server, is_well=False, reason=f"has last answered {duration(age)} ago")
    return HealthCheck(name=server, is_well=True, reason="answers")
