"""Health: whether this process is alive, and whether it is ready.

*Alive* is about this process alone: each of its stages goes on, be it only to try again what a server does not do. A
stage goes on if its thread has asked its `Stop` for anything lately (its beat), or is patient with a question that a
server may answer as late as it likes, such as the listing of a whole document. So a server that is away makes no
process dead, and what is not alive is mended by a restart.

*Ready* is about what it needs as well: its stages have begun, and each server that they work with has answered lately,
Postgres with a schema of this program. Whoever is not ready need not be ended: it goes on by itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from syncer.lifecycle import Stop
from syncer.survey import Answer, Server, Surveyed
from syncer.wording import duration

HANG_SECONDS = 180.0
"""How long a stage may show no beat: longer than any wait in it that is not for a patient question."""
ANSWER_SECONDS = 120.0
"""How old the answer of a server may be: the survey may have waited for another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Args:
        name: What.
        is_well: Whether it is as it should be.
        reason: What was found.
    """

    name: str
    is_well: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What was looked at.

    Args:
        checks: Each of it.
    """

    checks: tuple[Check, ...]

    @property
    def is_well(self) -> bool:
        """Whether all of it is."""
        return all(one.is_well for one in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"is_well": self.is_well, "checks": [asdict(one) for one in self.checks]}


def alive(stop: Stop, stages: Collection[str], *, hang_seconds: float = HANG_SECONDS) -> Health:
    """Whether each stage of this process goes on.

    Args:
        stop: Which all of them ask.
        stages: Their names.
        hang_seconds: How long one may show no beat.
    """
    return Health(checks=tuple(_beating(stop, one, hang_seconds) for one in stages))


def ready(
    stop: Stop, stages: Collection[str], surveyed: Surveyed | None, *, needs: Collection[Server] = tuple(Server)
) -> Health:
    """Whether this process can do its work.

    Args:
        stop: As for `alive`.
        stages: Likewise.
        surveyed: What the servers have said last.
        needs: Which of them its stages work with.
    """
    begun = [one for one in stages if stop.beat_at(one) is None]
    checks = [
        Check(name="stages", is_well=not begun, reason=f"not begun: {', '.join(begun)}" if begun else "all have begun")
    ]
    if stop.has_been_requested:
        checks.append(Check(name="daemon", is_well=False, reason="it has been told to stop"))
    answers = {one.server: one for one in surveyed.answers} if surveyed is not None else {}
    age = 0.0 if surveyed is None else time.monotonic() - surveyed.monotonic_at
    checks += [_answered(one, answers.get(one), age) for one in Server if one in needs]
    return Health(checks=tuple(checks))


def _beating(stop: Stop, stage: str, hang_seconds: float) -> Check:
    at, what = stop.beat_at(stage), stop.waits_for(stage)
    age = time.monotonic() - (stop.made_at if at is None else at)
    if what is not None:
        return Check(name=stage, is_well=True, reason=f"waits for {what}")
    if age <= hang_seconds:
        return Check(name=stage, is_well=True, reason="begins" if at is None else "goes on")
    return Check(name=stage, is_well=False, reason=f"has not gone on for {duration(age)}")


def _answered(server: Server, answer: Answer | None, age: float) -> Check:
    if answer is None:
        return Check(name=server, is_well=False, reason="was not asked yet")
    if answer.error is not None:
        return Check(name=server, is_well=False, reason=answer.error)
    if age > ANSWER_SECONDS:
        return Check(name=server, is_well=False, reason=f"has last answered {duration(age)} ago")
    return Check(name=server, is_well=True, reason="answers")
