"""Retry: repeats an action with backoff until it succeeds, fails for good, or is told to stop. Logs what lasts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from syncer.base import metrics
from syncer.base.error_policy import Action, decide, explain, kind
from syncer.base.formatting import elapsed
from syncer.base.log_limit import Repeated

TELL_SECONDS = 60.0
"""How often to log trouble that persists."""
_BRIEF_SECONDS = 5.0
_OUTAGE_SECONDS = 1.0  # what is over sooner is no outage in the timeline
"""Trouble of a kind that was logged recently is logged again only if it lasts longer than this."""
FORGOTTEN_SECONDS = 120.0
"""How long after the last failure an outage counts as over.

It is longer than a failure takes, also one of a proxy that gives up after a minute.
"""

_Result = TypeVar("_Result")


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


class Outages:
    """For how long things have failed, by key. Safe to share between threads.

    An outage begins with the first failure and ends with `over`, or once nothing was tried for a while.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[Hashable, tuple[float, float]] = {}
        """When each has failed first and last."""

    def failed(self, key: Hashable) -> float:
        """Record a failure; return for how many seconds it has failed."""
        now = self._clock()
        first, last = self._failed.get(key, (now, now))
        if now - last > FORGOTTEN_SECONDS:  # what was tried was given up meanwhile
            first = now
        self._failed[key] = first, now
        return now - first

    def over(self, key: Hashable) -> None:
        """Record a success; the next outage starts counting anew."""
        if self._failed:
            self._failed.pop(key, None)


class Trouble:
    """Logs a component's retries: the first one, then now and then how long they have lasted, then the recovery.

    Errors of the same `syncer.base.error_policy.kind` count as one, even if their details differ. Intermittent errors
    are logged as rarely as persistent ones. Safe to share between threads: one thread's success counts as recovery.

    Args:
        component: Its name.
        brief_seconds: Trouble of a kind that was logged recently is logged again only if it lasts longer than this.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, component: str, *, brief_seconds: float = _BRIEF_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._component = component
        self._brief_seconds = brief_seconds
        self._clock = clock
        self._began: float | None = None
        self._attempts = 0
        self._told: set[str] = set()
        self._error = ""
        self._turn = threading.RLock()
        self._kinds: Repeated[str, Exception] = Repeated(self._tell, seconds=TELL_SECONDS, clock=clock)

    @property
    def lasts(self) -> bool:
        """Whether the last attempt failed."""
        return self._began is not None

    def met(self, error: Exception) -> None:
        """Record an attempt that failed and will be retried."""
        metrics.retried(self._component)
        with self._turn:
            if self._began is None:
                self._began = self._clock()
            self._attempts += 1
            what = kind(error)
            self._kinds.note(what, error, is_urgent=self._is_news(what, since=self._began))

    def over(self) -> None:
        """Record an attempt that succeeded."""
        if self._began is None:
            return
        with self._turn:
            if self._began is None:
                return
            metrics.recovered(self._component)
            if self._told:
                outage = round(self._clock() - self._began, 3)
                log = structlog.get_logger()
                log.info(
                    "component.recovered",
                    component=self._component,
                    attempts=self._attempts,
                    outage_seconds=outage,
                    error=self._error,
                    timeline=f"{self._component} was held up for {elapsed(outage)}: {self._error}"
                    if outage >= _OUTAGE_SECONDS
                    else None,
                )
            self._began, self._attempts = None, 0
            self._told.clear()

    def _is_news(self, what: str, *, since: float) -> bool:
        """Whether to log at once: it has lasted, and nothing of its kind was logged since it began."""
        return self._clock() - since >= self._brief_seconds and what not in self._told

    def _tell(self, what: str, _: int, error: Exception) -> None:
        assert self._began is not None  # noqa: S101 - only called for trouble that has begun
        self._told.add(what)
        said = explain(error)
        self._error = said.message if said else repr(error)
        log = structlog.get_logger().bind(**{"hint": said.hint} if said and said.hint else {})
        log.warning(
            "component.retried",
            component=self._component,
            error=self._error,
            attempts=self._attempts,
            outage_seconds=round(self._clock() - self._began, 3),
        )
