"""How every stage stops, waits and tries again.

A stage is an object with ``run(stop)``, which loops until it is told to stop, and does its work in
``run_once()``. It waits only through its `Stop`, so that a signal ends every wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import structlog

from syncer import telemetry
from syncer.policy import Action, Backoff, decide, explain

_Result = TypeVar("_Result")


class Stopping(Exception):  # noqa: N818 - not an error: the way out of a wait
    """The stage is to end now; what is not acknowledged will be done again by the next one."""


class Stop:
    """Tells stages to end. Safe to share between threads and to call from a signal handler."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def request(self) -> None:
        """Ask every stage to finish what it has in hand and end."""
        self._event.set()

    @property
    def is_requested(self) -> bool:
        """Whether to end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait; True if the stage is to end."""
        return self._event.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            Stopping: The stage is to end.
        """
        if self._event.wait(seconds):
            raise Stopping


class Stage(Protocol):
    """A part of the daemon that has a thread of its own."""

    def run(self, stop: Stop) -> None:
        """Loop until ``stop`` is requested. An error that comes out of here ends the daemon."""


def persist(action: Callable[[], _Result], *, pause: Callable[[float], None], stage: str) -> _Result:
    """Do something until it succeeds or its error is not one to retry.

    The same trouble is logged once, and once more when it is over.

    Args:
        action: What to do; it must be harmless to do it again.
        pause: How to wait; may raise `Stopping`.
        stage: Whose trouble it is, for the log.

    Raises:
        Exception: What ``action`` raised, if the policy says PARK or HALT.
    """
    log = structlog.get_logger()
    backoff = Backoff()
    began = time.monotonic()
    last, attempts = "", 0
    while True:
        try:
            result = action()
        except Exception as error:
            if decide(error) is not Action.RETRY:
                raise
            attempts += 1
            said = explain(error)
            message = said.message if said else repr(error)
            if message != last:
                log.warning(telemetry.STAGE_RETRIED, stage=stage, error=message, attempts=attempts)
                last = message
            pause(backoff.next_seconds())
        else:
            if attempts:
                outage = round(time.monotonic() - began, 3)
                log.info(telemetry.STAGE_RECOVERED, stage=stage, attempts=attempts, outage_seconds=outage)
            return result
