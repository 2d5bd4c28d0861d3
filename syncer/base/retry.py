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

from syncer.base.error_policy import Action, decide, explain, is_away, kind
from syncer.base.errors import IndexingError, SourceError, TopicError
from syncer.base.formatting import elapsed
from syncer.base.lifecycle import beaten_at, resumed_at

REPEAT_SECONDS = 60.0
"""How often to log trouble that persists."""
_BRIEF_SECONDS = 5.0
_OUTAGE_SECONDS = 1.0
"""What is over sooner is no outage in the timeline."""
_SLOW_SECONDS = 10.0
"""A server that answers a request only after so long, and no other meanwhile, was away, though the request succeeds."""
_AWAY = "away"
"""The kind of each error of a server that does not answer: see `answered`."""

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


_current: dict[tuple[int, int], tuple[float, float, CurrentTrouble]] = {}
"""By thread and `Trouble`: when the first failed attempt began and the last one ended, and its error."""
_recovered_at: dict[tuple[str, str], float] = {}
"""When an outage of this server and kind was last over, and noted."""
_outages: dict[str, tuple[float, str]] = {}
"""By server that is away: when its outage began, by the monotonic clock, and the first error."""
_answered_at: dict[str, float] = {}
"""When a server last answered."""
_silences: dict[str, tuple[float, float]] = {}
"""By server, the last two answers that were far apart: in between it was away, if a request waited."""
_turn = threading.Lock()


def troubles() -> list[CurrentTrouble]:
    """Return what the components of this process are retrying now, the longest first."""
    now = time.monotonic()
    with _turn:
        # If one component reaches Postgres, others will. Elasticsearch may answer one request and not another.
        back_at = _answered_at.get("postgres", -math.inf)
        found = [
            replace(trouble, seconds=now - began)
            for began, failed_at, trouble in _current.values()
            if failed_at > back_at or (trouble.server, trouble.kind) != ("postgres", _AWAY)
        ]
    return sorted(found, key=lambda trouble: -trouble.seconds)


def answered(server: str, *, seconds: float = 0) -> None:
    """Record that a server has answered a request, after so many seconds: its outage is over.

    Only this ends an outage: an action that succeeds may not have needed the server. After an outage, a later request
    may be answered before the one that has waited: that one then tells of the outage.
    """
    now = time.monotonic()
    with _turn:
        before = _answered_at.get(server, -math.inf)
        if now - before >= _SLOW_SECONDS:
            _silences[server] = before, now
        _answered_at[server] = now
        silent_from, ended = _silences.get(server, (now, now))
        asked_at = max(now - seconds, silent_from, resumed_at())
        began, error = _outages.pop(server, (math.inf, ""))
        if asked_at < began and ended - asked_at >= _SLOW_SECONDS:
            began, error = asked_at, ""
        else:
            ended = now
        lasted = ended - began
        if lasted >= _OUTAGE_SECONDS:
            _recovered_at[server, _AWAY] = now
            _silences.pop(server, None)
    if lasted >= _OUTAGE_SECONDS:
        away = f"{server.title()} did not answer for {elapsed(lasted)}{error and ': '}{error}"
        structlog.get_logger().info("server.recovered", server=server, outage_seconds=round(lasted, 3), timeline=away)


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
        server = next((name for name, kinds in _OF_SERVER.items() if isinstance(error, kinds)), "")
        seconds = min(seconds, time.monotonic() - resumed_at())
        trouble = CurrentTrouble(
            component=self._component,
            server=server,
            kind=_AWAY if is_away(error) else kind(error),
            seconds=0,
            error=(explained.message if explained else repr(error)).rstrip("; ."),
            hint=explained.hint if explained else "",
        )
        failed_at = time.monotonic()
        with _turn:
            began, *_ = _current.get(self._key, (failed_at - seconds,))
            _current[self._key] = began, failed_at, trouble
            if trouble.kind == _AWAY:
                since = max(failed_at - seconds, _answered_at.get(server, -math.inf))
                # What a server says when it goes on after a while is not why it was away.
                _outages.setdefault(server, (since, "" if seconds >= _SLOW_SECONDS else trouble.error))
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
            # Without a request to a server, its return is not noticed.
            for server in _outages.keys() - {trouble.server for *_, trouble in _current.values()}:
                del _outages[server]

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
            began, _, trouble = _current.pop(self._key)
            what = trouble.server, trouble.kind
            alike = [other for other, _, each in _current.values() if (each.server, each.kind) == what]
            if trouble.kind == _AWAY and trouble.server in _outages:
                return 0.0  # this action did not need it
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
