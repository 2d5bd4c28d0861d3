"""Repeated: what may happen a thousand times a second is said once, and then how often it has happened since."""

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
    said_at: float
    sample: _Sample
    number: int = 0


class Repeated(Generic[_Key, _Sample]):
    """Says the first time of anything at once, and the number of further ones no oftener than now and then.

    Nothing is left out of the numbers: `flush` says what is counted and not yet said. Not for sharing between threads.

    Args:
        say: Told what happened, how often since it was last told, and one example: the last.
        seconds: How long it is only counted after that.
    """

    def __init__(self, say: Callable[[_Key, int, _Sample], object], *, seconds: float = QUIET_SECONDS) -> None:
        self._say = say
        self._seconds = seconds
        self._counts: dict[_Key, _Count[_Sample]] = {}

    def note(self, key: _Key, sample: _Sample, number: int = 1) -> None:
        """It has happened so many times."""
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= _KNOWN_MAX:
                self.flush()
            self._counts[key] = _Count(said_at=time.monotonic(), sample=sample)
            self._say(key, number, sample)
            return
        count.number += number
        count.sample = sample
        self.tell()

    def tell(self) -> None:
        """Say what has been counted for long enough; what has not happened since is forgotten."""
        self._tell(before=time.monotonic() - self._seconds)

    def flush(self) -> None:
        """Say all that is counted, and begin anew."""
        self._tell(before=float("inf"))
        self._counts.clear()

    def _tell(self, *, before: float) -> None:
        for key, count in list(self._counts.items()):
            if count.said_at > before:
                continue
            if count.number:
                self._say(key, count.number, count.sample)
                count.number, count.said_at = 0, time.monotonic()
            else:
                del self._counts[key]
