"""How every stage stops, waits and tries again.

A stage is an object with ``run(stop)``, which loops until it is told to stop, and does its work in
``run_once()``. It waits only through its `Stop`, so that a signal ends every wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, cast

import structlog

from syncer import events, metrics
from syncer.policy import Action, Backoff, decide, explain, kind
from syncer.repeated import Repeated

GRACE_SECONDS = 10.0
"""How long what is in hand may take once a stage is told to stop: a server that hangs is not waited for."""
TELL_SECONDS = 60.0
"""How often to tell of trouble that stays."""
_BRIEF_SECONDS = 5.0
"""Trouble of a kind that was told of just now is told of again if it lasts longer than that."""

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
_NO_MORE = object()


class Stopping(Exception):  # noqa: N818 - not an error: the way out of a wait
    """The stage is to end now; what is not acknowledged will be done again by the next one."""


class Abandoned(Exception):  # noqa: N818 - likewise
    """Nobody needs any more what is being tried again and again."""


class Stop:
    """Tells stages to end. Safe to share between threads; what handles a signal is to request it in another thread.

    A thread that asks it, or waits by it, shows that it goes on: its *beat*, see `syncer.health`.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._calls: list[Callable[[], None]] = []
        self._requested_at = math.inf
        self.made_at = time.monotonic()
        self._beats: dict[str, float] = {}
        self._patient: dict[str, str] = {}

    def call(self, wake: Callable[[], None]) -> None:
        """Call this when the stage is to end: for who waits for something else too."""
        self._calls.append(wake)
        if self.is_requested:
            wake()

    def request(self) -> None:
        """Ask every stage to finish what it has in hand and end."""
        self._requested_at = min(self._requested_at, time.monotonic())
        self._event.set()
        for wake in self._calls:
            wake()

    @property
    def is_requested(self) -> bool:
        """Whether to end."""
        self.beat()
        return self._event.is_set()

    @property
    def has_been_requested(self) -> bool:
        """The same, for who is none of the stages."""
        return self._event.is_set()

    @property
    def is_overdue(self) -> bool:
        """Whether what was in hand has had the time to be finished, and is to be given up: it will be done again."""
        self.beat()
        return time.monotonic() - self._requested_at > GRACE_SECONDS

    @property
    def seconds_left(self) -> float | None:
        """How long what is in hand may take yet; None for as long as it takes."""
        if not self.is_requested:
            return None
        return max(0.0, self._requested_at + GRACE_SECONDS - time.monotonic())

    def wait(self, seconds: float) -> bool:
        """Wait; True if the stage is to end."""
        self.beat()
        return self._event.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            Stopping: The stage is to end.
        """
        if self.wait(seconds):
            raise Stopping

    def beat(self) -> None:
        """Say that this thread goes on."""
        self._beats[threading.current_thread().name] = time.monotonic()

    @contextmanager
    def patient(self, what: str) -> Iterator[None]:
        """Around what one question to a server may take as long as it likes: meanwhile this thread has no beat."""
        name = threading.current_thread().name
        self._patient[name] = what
        try:
            yield
        finally:
            del self._patient[name]
            self.beat()

    def patiently(self, items: Iterator[_Item], what: str) -> Iterator[_Item]:
        """The same items, each of which may take as long as it likes."""
        while True:
            with self.patient(what):
                item = next(items, _NO_MORE)
            if item is _NO_MORE:
                return
            yield cast("_Item", item)

    def beat_at(self, name: str) -> float | None:
        """When the thread of that name last went on, by the monotonic clock; None if it never has."""
        return self._beats.get(name)

    def waits_for(self, name: str) -> str | None:
        """What the thread of that name is `patient` with, if with anything."""
        return self._patient.get(name)


class Stage(Protocol):
    """A part of the daemon that has a thread of its own."""

    def run(self, stop: Stop) -> None:
        """Loop until ``stop`` is requested. An error that comes out of here ends the daemon."""


class Trouble:
    """A stage's trouble as its log tells it: once, then now and then how long it has lasted, then that it is over.

    What differs from one attempt to the next is told once too: it is the same as long as `syncer.policy.kind` is.
    Trouble that comes and goes is told as rarely as trouble that stays. Not for sharing between threads that are
    in trouble at once.

    Args:
        stage: Whose it is.
        clock: In seconds.
    """

    def __init__(self, stage: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stage = stage
        self._clock = clock
        self._began: float | None = None
        self._attempts = 0
        self._told: set[str] = set()
        self._kinds: Repeated[str, Exception] = Repeated(self._tell, seconds=TELL_SECONDS, clock=clock)

    def met(self, error: Exception) -> None:
        """An attempt has failed, and is made again."""
        metrics.retried(self._stage)
        if self._began is None:
            self._began = self._clock()
        self._attempts += 1
        what = kind(error)
        lasts = self._clock() - self._began >= _BRIEF_SECONDS
        self._kinds.note(what, error, is_urgent=lasts and what not in self._told)

    def over(self) -> None:
        """An attempt has succeeded."""
        if self._began is None:
            return
        metrics.recovered(self._stage)
        if self._told:
            outage = round(self._clock() - self._began, 3)
            log = structlog.get_logger()
            log.info(events.STAGE_RECOVERED, stage=self._stage, attempts=self._attempts, outage_seconds=outage)
        self._began, self._attempts = None, 0
        self._told.clear()

    def _tell(self, what: str, _: int, error: Exception) -> None:
        assert self._began is not None  # noqa: S101 - it is told of what has just been met
        self._told.add(what)
        said = explain(error)
        log = structlog.get_logger().bind(**{"hint": said.hint} if said and said.hint else {})
        log.warning(
            events.STAGE_RETRIED,
            stage=self._stage,
            error=said.message if said else repr(error),
            attempts=self._attempts,
            outage_seconds=round(self._clock() - self._began, 3),
        )


def persist(
    action: Callable[[], _Result], *, pause: Callable[[float], None], stage: str, trouble: Trouble | None = None
) -> _Result:
    """Do something until it succeeds or its error is not one to retry.

    Args:
        action: What to do; it must be harmless to do it again.
        pause: How to wait; may raise `Stopping`.
        stage: Whose trouble it is, for the log.
        trouble: Of who does such things again and again: so that it is told of as one.

    Raises:
        Exception: What ``action`` raised, if the policy says PARK or HALT.
    """
    trouble = trouble or Trouble(stage)
    backoff = Backoff()
    while True:
        try:
            result = action()
        except Exception as error:
            if decide(error) is not Action.RETRY:
                raise
            trouble.met(error)
            pause(backoff.next_seconds())
        else:
            trouble.over()
            return result
