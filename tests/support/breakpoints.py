"""A process of ``syncer`` ends, or stands still, at a named point of its own code, or has other limits.

Syncer itself knows nothing of that: a function is wrapped before the command begins. See `tests.support.preloaded`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

REACHED = "reached"
"""What the process says, with the point's name, when it comes there."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point in the code.

    Args:
        at: The function, which is public, as ``syncer.capture.reader:OutboxReader.save``.
        when: Before it begins, or after it has returned; returning an empty list does not count.
        send: The signal that the process sends to itself.
        seconds: How long it stays there before; its other threads go on meanwhile.
    """

    at: str
    when: Literal["before", "after"] = "before"
    send: Literal["SIGKILL", "SIGSTOP", "SIGTERM"] = "SIGKILL"
    seconds: float = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is different in this process.

    Args:
        points: Where it ends or stands still.
        constants: Constants of modules, such as leases: ``syncer.jobs.chunks:SILENT_SECONDS`` and its value.
        clock_hours: By how much its wall clock is off.
    """

    points: tuple[Point, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    clock_hours: float = 0

    def carry_out(self) -> None:
        """Make this process so. A constant counts where its own module reads it."""
        for target, value in self.constants.items():
            owner, name = _owner(target)
            assert hasattr(owner, name), target
            setattr(owner, name, value)
        for point in self.points:
            _wrap(point)
        if self.clock_hours:
            clock = time.time
            time.time = lambda: clock() + self.clock_hours * 3600


AS_IT_IS = Plan()
HASTY = Plan(
    constants={"syncer.recovery.schema_watch:REST_SECONDS": 0.5, "syncer.worker.job_loop:ATTEMPT_SECONDS": 0.5}
)
"""What is done every few seconds is done sooner. So no test waits for the next time, of which it claims nothing."""


def _wrap(point: Point) -> None:
    owner, name = _owner(point.at)
    wrapped: Callable[..., Any] = getattr(owner, name)
    turns = itertools.count()

    def come() -> None:
        if next(turns) == 0:
            print(f"{REACHED} {point.at}", file=sys.stderr, flush=True)  # noqa: T201 - a test waits for it
            time.sleep(point.seconds)
            os.kill(os.getpid(), signal.Signals[point.send])

    @functools.wraps(wrapped)
    def stopping(*arguments: Any, **named: Any) -> Any:
        if point.when == "before":
            come()
        result = wrapped(*arguments, **named)
        if point.when == "after" and result != []:
            come()
        return result

    setattr(owner, name, stopping)


def _owner(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    assert "._" not in f".{path}", f"{target} is private"
    *outer, name = path.split(".")
    return functools.reduce(getattr, outer, importlib.import_module(module)), name
