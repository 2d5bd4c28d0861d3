"""How components stop and wait.

A component has a ``run(stop)`` that loops until a stop is requested, and a ``run_once()`` that does the work. It waits
only through its `Stop`, so that a signal ends every wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

GRACE_SECONDS = 10.0
"""How long work in hand may take after a stop is requested; a hung server is not waited for any longer."""
PULSE_SECONDS = 0.5
"""How often a daemon notes that it runs."""
STOPPED_SECONDS = 5.0
"""A daemon that has not noted that for so long was stopped, or its machine."""


class _Pulse:
    at = math.inf
    resumed_at = -math.inf


def pulse() -> None:
    """Note that this process runs; the daemon calls it all the time."""
    _Pulse.resumed_at, _Pulse.at = resumed_at(), time.monotonic()


def resumed_at() -> float:
    """When this process last went on after it had been stopped, by the monotonic clock; else minus infinity.

    What it then finds broken or late broke because it did not run.
    """
    now = time.monotonic()
    return now if now - _Pulse.at > STOPPED_SECONDS else _Pulse.resumed_at


def clock() -> float:
    """Return the time in seconds on a clock that includes system sleep and is never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def join(threads: Sequence[threading.Thread], *, seconds: float | None) -> bool:
    """Wait up to ``seconds`` for all threads to end; return whether they have."""
    deadline = None if seconds is None else time.monotonic() + seconds
    for thread in threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


class Stopping(Exception):  # noqa: N818 - not an error: the way out of a wait
    """The component must end now. Unacknowledged work will be done again by its successor."""


class Stop:
    """A stop request, shared by all components and their threads. A signal handler must request it in another thread.

    A thread that checks it or waits on it proves that it is alive: its *heartbeat*, see `syncer.monitoring.daemons`.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._requested_at = math.inf
        self._made_at = time.monotonic()
        self._beats: dict[str, float] = {}
        self._patient: Counter[str] = Counter()

    def request(self) -> None:
        """Ask every component to finish its work in hand and end."""
        self._requested_at = min(self._requested_at, time.monotonic())
        self._event.set()

    @property
    def is_requested(self) -> bool:
        """Whether to end."""
        self.beat()
        return self._event.is_set()

    @property
    def is_overdue(self) -> bool:
        """Whether the grace period is over and unfinished work must be abandoned. It will be done again."""
        return self.seconds_left == 0

    @property
    def seconds_left(self) -> float | None:
        """How long work in hand may still take; None for no limit."""
        if not self.is_requested:
            return None
        return max(0.0, self._requested_at + GRACE_SECONDS - time.monotonic())

    def wait(self, seconds: float) -> bool:
        """Wait; return whether to end."""
        self.beat()
        return self._event.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait; raise `Stopping` if the component is to end."""
        if self.wait(seconds):
            raise Stopping

    def beat(self) -> None:
        """Record a heartbeat of this thread."""
        self._beats[threading.current_thread().name] = time.monotonic()

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Expect no heartbeat from this thread during the block: one server call that may take as long as it needs."""
        name = threading.current_thread().name
        self._patient[name] += 1
        try:
            yield
        finally:
            self._patient[name] -= 1
            self.beat()

    def has_started(self, name: str) -> bool:
        """Whether a thread of this name has ever had a heartbeat."""
        return name in self._beats

    def silence(self, name: str) -> float:
        """Return for how many seconds a thread has shown no heartbeat; 0 while it is `patient`."""
        return 0.0 if self._patient[name] else time.monotonic() - self._beats.get(name, self._made_at)


class Component(Protocol):
    """A part of the daemon with a thread of its own."""

    def run(self, stop: Stop) -> None:
        """Loop until ``stop`` is requested. An error that leaves this method ends the daemon."""
