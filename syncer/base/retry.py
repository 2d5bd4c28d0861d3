"""Retry: repeats an action with backoff until it succeeds, fails for good, or is told to stop. Logs what lasts.

What each thread of a component fails at now is one entry, from which `troubles`, the log and the timeline follow. An
outage is what errors of one server and kind have in common, whichever components meet them: it lasts from the first
failure to the first success, and is logged once. If a server is away, only its answer is a success.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeVar

import elasticsearch
import psycopg
import structlog
from confluent_kafka import KafkaException

from syncer.base.error_policy import Action, decide, explain, is_away, kind
from syncer.base.errors import IndexingError, SourceError, TopicError
from syncer.base.formatting import elapsed
from syncer.base.lifecycle import Stop, Stopping, resumed_at

REPEAT_SECONDS = 60.0
"""How often to log trouble that persists."""
_BRIEF_SECONDS = 5.0
_OUTAGE_SECONDS = 1.0
"""What is over sooner is no outage in the timeline."""
_SLOW_SECONDS = 10.0
"""A server that answers a request only after so long, and no other meanwhile, was away, though the request succeeds."""
_AWAY = "away"
"""The kind of each error of a server that does not answer."""

_Result = TypeVar("_Result")
_OF_SERVER: dict[str, tuple[type[Exception], ...]] = {
    "postgres": (psycopg.Error, SourceError),
    "kafka": (KafkaException, TopicError),
    "elasticsearch": (elasticsearch.ApiError, elasticsearch.TransportError, IndexingError),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTrouble:
    """What a component is retrying: the last error, and the server that it came from, if any."""

    component: str
    server: str
    kind: str
    seconds: float
    error: str
    hint: str


_Kind = tuple[str, str]
"""A server, and the kind of its errors."""
_failing: dict[tuple[str, int], tuple[CurrentTrouble, float]] = {}
"""By component and thread: what it fails at, and since when."""
_outages: dict[_Kind, tuple[float, str]] = {}
"""When each outage began, and an error of it; those whose end is not logged yet."""
_logged_at: dict[_Kind, float] = {}
_answered_at: dict[str, float] = {}
"""When each server last answered."""
_silences: dict[str, tuple[float, float]] = {}
"""By server, the last two answers that were far apart: in between it was away, if a request waited."""
_turn = threading.RLock()


def retry(
    action: Callable[[], _Result],
    *,
    pause: Callable[[float], None],
    component: str,
    reset: Callable[[], object] = lambda: None,
    but: tuple[type[Exception], ...] = (),
) -> _Result:
    """Repeat an action until it succeeds, or fails with a non-retryable error or one that the caller handles (``but``).

    The action must be safe to repeat. ``reset`` is called after each error, so that the next attempt starts anew.
    ``pause`` may raise `Stopping`. The log and the status name the ``component``.
    """
    backoff = Backoff()
    try:
        while True:
            began = monotonic()
            try:
                result = action()
            except Stopping:
                raise
            except Exception as error:
                reset()
                if decide(error) is not Action.RETRY or isinstance(error, but):
                    raise
                failed(component, error, seconds=monotonic() - began)
                pause(backoff.next_seconds())
            else:
                recovered(component)
                return result
    finally:
        give_up(component)


def repeat(turn: Callable[[], float], *, reset: Callable[[], object], stop: Stop, component: str) -> None:
    """Take turns as `retry` does until told to stop; each returns how many seconds to rest before the next one."""
    with suppress(Stopping):
        while not stop.is_requested:
            stop.wait(retry(turn, pause=stop.pause, component=component, reset=reset))


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


def failed(component: str, error: Exception, *, seconds: float = 0) -> None:
    """Record that an attempt of this thread failed after so many seconds, and log each kind of error once a minute."""
    explained, thread = explain(error), (component, threading.get_ident())
    trouble = CurrentTrouble(
        component=component,
        server=next((name for name, kinds in _OF_SERVER.items() if isinstance(error, kinds)), ""),
        kind=_AWAY if is_away(error) else kind(error),
        seconds=0,
        error=(explained.message if explained else repr(error)).rstrip("; ."),
        hint=explained.hint if explained else "",
    )
    of_kind, now = (trouble.server, trouble.kind), monotonic()
    with _turn:
        since = now
        if trouble.kind == _AWAY:
            since = max(now - seconds, _answered_at.get(trouble.server, -math.inf), resumed_at())
        _outages[of_kind] = min(_outages.get(of_kind, (math.inf, "")), (since, trouble.error))
        _, began = _failing.get(thread, (trouble, since))
        _failing[thread] = trouble, began
        if now - _logged_at.get(of_kind, -math.inf) < REPEAT_SECONDS:
            return
        _logged_at[of_kind] = now
    structlog.get_logger().warning(
        "component.retried",
        component=component,
        error=trouble.error,
        outage_seconds=round(now - began, 3),
        **({"hint": trouble.hint} if trouble.hint else {}),
    )


def recovered(component: str) -> None:
    """Record that this thread has made progress: what it failed at is over, and so is the outage, for all."""
    with _turn:
        trouble, _ = _failing.get((component, threading.get_ident()), (None, 0))
        # An action that succeeds may not have needed a server that is away.
        if trouble is not None and trouble.kind != _AWAY:
            _end_outage(trouble.server, trouble.kind, component=component)
    give_up(component)


def give_up(component: str) -> None:
    """Record that this thread no longer tries what it failed at."""
    with _turn:
        _failing.pop((component, threading.get_ident()), None)
        still_failing = {(trouble.server, trouble.kind) for trouble, _ in _failing.values()}
        for of_kind in _outages.keys() - still_failing:  # no thread is left that would note its end
            del _outages[of_kind]


def answered(server: str, *, seconds: float = 0) -> None:
    """Record that a server has answered a request, after so many seconds: its outage is over.

    A later request may be answered before the one that has waited: that one then tells of the outage.
    """
    now = monotonic()
    with _turn:
        answered_before = _answered_at.get(server, -math.inf)
        if now - answered_before >= _SLOW_SECONDS:
            _silences[server] = answered_before, now
        _answered_at[server] = now
        silent_from, silent_until = _silences.get(server, (now, now))
        waited = silent_until - max(silent_from, now - seconds, resumed_at())
        if _end_outage(server, _AWAY, waited=waited if waited >= _SLOW_SECONDS else 0):
            _silences.pop(server, None)


def _end_outage(server: str, kind: str, *, component: str = "", waited: float = 0) -> bool:
    """Log the end of an outage, if it was one; return whether it was."""
    began, error = _outages.pop((server, kind), (math.inf, ""))
    lasted = max(monotonic() - began, waited)
    is_outage, is_logged = lasted >= _OUTAGE_SECONDS, _logged_at.get((server, kind), -math.inf) >= began
    if lasted >= _BRIEF_SECONDS:
        _logged_at.pop((server, kind), None)  # the next one is logged at once; what comes and goes, once a minute
    if is_outage or is_logged:
        outage = f"{component} was held up" if component else f"{server.title()} did not answer"
        structlog.get_logger().info(
            "component.recovered" if component else "server.recovered",
            **({"component": component} if component else {"server": server}),
            outage_seconds=round(lasted, 3),
            timeline=f"{outage} for {elapsed(lasted)}{error and ': '}{error}" if is_outage else None,
        )
    return is_outage


def troubles() -> list[CurrentTrouble]:
    """Return what the components of this process are retrying now, the longest first."""
    now = monotonic()
    with _turn:
        current = [
            replace(trouble, seconds=now - began)
            for trouble, began in _failing.values()
            # If one component reaches Postgres, others will. Elasticsearch may answer one request and not another.
            if (trouble.server, trouble.kind) in _outages or (trouble.server, trouble.kind) != ("postgres", _AWAY)
        ]
    return sorted(current, key=lambda trouble: -trouble.seconds)
