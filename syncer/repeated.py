"""Repeated: what may happen a thousand times a second is said once, and then how often it has happened since.

All that the log says of what goes on and on is said so: documents that are parked, trouble of a stage, what librdkafka
says of its connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

QUIET_SECONDS = 10.0
"""How long after something was said it is only counted."""
_KNOWN_MAX = 1000

_Key = TypeVar("_Key", bound=Hashable)
_Sample = TypeVar("_Sample")


@dataclass(slots=True)
class _Count(Generic[_Sample]):
    """What is known of one thing.

    Args:
        said_at: When it was last said.
        noted_at: When it last happened.
        seconds: How long it is only counted after that.
        sample: What happened last.
        number: How often since it was said.
    """

    said_at: float
    noted_at: float
    seconds: float
    sample: _Sample
    number: int = 0


class Repeated(Generic[_Key, _Sample]):
    """Says the first time of anything at once, and the number of further ones no oftener than now and then.

    Nothing is left out of the numbers: `flush` says what is counted and not yet said. Not for sharing between threads.

    Args:
        say: Told what happened, how often since it was last told, and one example: the last.
        seconds: How long it is only counted after that.
        seconds_max: If it goes on, twice as long each time, up to this; if None, it stays the same.
        clock: In seconds.
    """

    def __init__(
        self,
        say: Callable[[_Key, int, _Sample], object],
        *,
        seconds: float = QUIET_SECONDS,
        seconds_max: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._seconds = seconds
        self._seconds_max = seconds_max
        self._clock = clock
        self._counts: dict[_Key, _Count[_Sample]] = {}

    def note(self, key: _Key, sample: _Sample, number: int = 1, *, is_urgent: bool = False) -> None:
        """It has happened so many times; if that is urgent, it is said at once."""
        now = self._clock()
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= _KNOWN_MAX:
                self.flush()
            self._counts[key] = _Count(said_at=now, noted_at=now, seconds=self._seconds, sample=sample)
            self._say(key, number, sample)
            return
        if now - count.noted_at > self._seconds:
            count.seconds = self._seconds  # it had stopped
        count.number += number
        count.sample, count.noted_at = sample, now
        self._tell(key, count, is_due=is_urgent or now - count.said_at >= count.seconds)

    def tell(self) -> None:
        """Say what has been counted for long enough; what has not happened since is forgotten."""
        now = self._clock()
        for key, count in list(self._counts.items()):
            if now - count.said_at < count.seconds:
                continue
            if not count.number:
                del self._counts[key]
            self._tell(key, count, is_due=True)

    def flush(self) -> None:
        """Say all that is counted, and begin anew."""
        for key, count in list(self._counts.items()):
            self._tell(key, count, is_due=True)
        self._counts.clear()

    def _tell(self, key: _Key, count: _Count[_Sample], *, is_due: bool) -> None:
        if not is_due or not count.number:
            return
        number, count.number, count.said_at = count.number, 0, self._clock()
        if self._seconds_max is not None:
            count.seconds = min(2 * count.seconds, self._seconds_max)
        self._say(key, number, count.sample)
