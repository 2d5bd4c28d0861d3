"""Retry: repeats an action with backoff until it succeeds, fails for good, or is told to stop. Logs what lasts.

`troubles` returns what this process is retrying now: the daemon reports it, see `syncer.monitoring.daemons`.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import elasticsearch
import psycopg
import structlog
from confluent_kafka import KafkaException

from syncer.base.error_policy import Action, decide, explain, kind
from syncer.base.errors import IndexingError, SourceError, TopicError
from syncer.base.formatting import elapsed
from syncer.base.lifecycle import beaten_at

REPEAT_SECONDS = 60.0
"""How often to log trouble that persists."""
_BRIEF_SECONDS = 5.0
_OUTAGE_SECONDS = 1.0
"""What is over sooner is no outage in the timeline."""

_Result = TypeVar("_Result")
_OF_SERVER: dict[str, tuple[type[Exception], ...]] = {
    "postgres": (psycopg.Error, SourceError),
    "kafka": (KafkaException, TopicError),
    "elasticsearch": (elasticsearch.ApiError, elasticsearch.TransportError, IndexingError),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTrouble:
    """What a component is retrying: the last error, and the server that it came from, if any.

    The first failed attempt began so many seconds ago.
    """

    component: str
    server: str
    kind: str
    seconds: float
    error: str
    hint: str


_current: dict[tuple[int, int], tuple[float, CurrentTrouble]] = {}
"""By thread and `Trouble`: when the first failed attempt began, by the monotonic clock, and the last error."""
_recovered_at: dict[tuple[str, str], float] = {}
"""When an outage of this server and kind was last over."""
_turn = threading.Lock()


def troubles() -> list[CurrentTrouble]:
    """Return what the components of this process are retrying now, the longest first."""
    now = time.monotonic()
    with _turn:
        found = [replace(trouble, seconds=now - began) for began, trouble in _current.values()]
    return sorted(found, key=lambda trouble: -trouble.seconds)


def retry(
    action: Callable[[], _Result], *, pause: Callable[[float], None], component: str, trouble: Trouble | None = None
) -> _Result:
    """Repeat an action until it succeeds or fails with a non-retryable error.

    Args:
        action: Must be safe to repeat.
        pause: How to wait; may raise `Stopping`.
        component: The component to log retries for.
        trouble: Shared by the actions of a component that retries often, so that their retries are logged as one.

    Raises:
        Exception: What ``action`` raised, if the policy is not RETRY.
    """
    trouble = trouble or Trouble(component)
    backoff = Backoff()
    try:
        while True:
            began = time.monotonic()
            try:
                result = action()
            except Exception as error:
                if decide(error) is not Action.RETRY:
                    raise
                # An action may work for hours before it fails; since its last heartbeat it has waited for a server.
                trouble.met(error, seconds=time.monotonic() - max(began, beaten_at()))
                pause(backoff.next_seconds())
            else:
                trouble.over()
                return result
    finally:
        trouble.leave()


@dataclass(slots=True)
class Backoff:
    """Growing pauses with jitter; ``first_seconds`` and ``longest_seconds`` are upper bounds."""

    first_seconds: float = 0.1
    longest_seconds: float = 5
    _attempts: int = 0

    def next_seconds(self) -> float:
        """Return the next pause: at least half of a limit that doubles each time."""
        limit: float = min(self.longest_seconds, self.first_seconds * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return limit * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret


class Trouble:
    """Logs a component's retries: an error at once, then every minute how long it has lasted, then the recovery.

    Errors of the same `syncer.base.error_policy.kind` count as one, even if their details differ. An error that was
    logged in the last minute and comes back is logged again only if it lasts. Safe to share between threads: one
    thread's success counts as recovery.

    Args:
        component: Its name.
        clock: Returns the time in seconds.
    """

    def __init__(self, component: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._component = component
        self._clock = clock
        self._began: float | None = None
        self._attempts = 0
        self._logged_at: dict[str, float] = {}
        """By kind, when it was last logged."""
        self._error = ""
        """The error that was logged last since the trouble began."""
        self._turn = threading.Lock()

    def met(self, error: Exception, *, seconds: float = 0) -> None:
        """Record an attempt that failed after so many seconds, and will be retried."""
        explained = explain(error)
        trouble = CurrentTrouble(
            component=self._component,
            server=next((name for name, kinds in _OF_SERVER.items() if isinstance(error, kinds)), ""),
            kind=kind(error),
            seconds=0,
            error=(explained.message if explained else repr(error)).rstrip("; ."),
            hint=explained.hint if explained else "",
        )
        with _turn:
            began, _ = _current.get(self._key, (time.monotonic() - seconds, None))
            _current[self._key] = began, trouble
        with self._turn:
            now = self._clock()
            if self._began is None:
                self._began = now - seconds
            self._attempts += 1
            logged_at = self._logged_at.get(trouble.kind, -math.inf)
            has_come_back_to_stay = logged_at < self._began <= now - _BRIEF_SECONDS
            if now - logged_at >= REPEAT_SECONDS or has_come_back_to_stay:
                self._logged_at[trouble.kind] = now
                self._error = trouble.error
                self._log(logging.WARNING, "component.retried", **({"hint": trouble.hint} if trouble.hint else {}))

    def over(self) -> None:
        """Record an attempt that succeeded."""
        lasted = self._recover()
        with self._turn:
            if self._error:
                held_up = f"{self._component} was held up for {elapsed(lasted)}: {self._error}"
                self._log(logging.INFO, "component.recovered", timeline=held_up if lasted >= _OUTAGE_SECONDS else None)
            self._began, self._attempts, self._error = None, 0, ""

    def leave(self) -> None:
        """Record that this thread no longer retries, whether it has succeeded or not."""
        with _turn:
            _current.pop(self._key, None)

    @property
    def _key(self) -> tuple[int, int]:
        return threading.get_ident(), id(self)

    def _recover(self) -> float:
        """Return for how many seconds anything of this process has failed as this thread has; 0 if that was noted.

        An outage lasts from the first failed attempt to the first success, whichever components these are of.
        """
        now = time.monotonic()
        with _turn:
            if self._key not in _current:
                return 0.0
            began, trouble = _current.pop(self._key)
            what = trouble.server, trouble.kind
            alike = [other for other, each in _current.values() if (each.server, each.kind) == what]
            is_noted = began < _recovered_at.get(what, -math.inf)
            _recovered_at[what] = now
            return 0.0 if is_noted else now - min([began, *alike])

    def _log(self, level: int, event: str, **more: str | None) -> None:
        assert self._began is not None  # only called for trouble that has begun
        structlog.get_logger().log(
            level,
            event,
            component=self._component,
            error=self._error,
            attempts=self._attempts,
            outage_seconds=round(self._clock() - self._began, 3),
            **more,
        )
