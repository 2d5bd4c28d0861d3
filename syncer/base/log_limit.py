"""Rate limiting of log events that may recur indefinitely, such as dead-lettered documents."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

QUIET_SECONDS = 10.0
"""How long occurrences are only counted after a report."""
_KNOWN_MAX = 1000

_Key = TypeVar("_Key", bound=Hashable)
_Sample = TypeVar("_Sample")


@dataclass(slots=True)
class _Count(Generic[_Sample]):
    """The count of one key: when it was last reported, the last occurrence, and how many there were since."""

    reported_at: float
    sample: _Sample
    number: int = 0


class Repeated(Generic[_Key, _Sample]):
    """Reports the first occurrence of each key at once, and later ones as a count now and then.

    No occurrence is lost from the counts: `flush` reports what is counted and not yet reported. Safe to share between
    threads.

    Args:
        log: Called with the key, the number of occurrences since its last report, and the last one as a sample.
        seconds: The pause between reports of a key.
    """

    def __init__(self, log: Callable[[_Key, int, _Sample], object], *, seconds: float = QUIET_SECONDS) -> None:
        self._log = log
        self._seconds = seconds
        self._counts: dict[_Key, _Count[_Sample]] = {}
        self._turn = threading.RLock()

    def note(self, key: _Key, sample: _Sample, number: int = 1) -> None:
        """Count occurrences; report them if none were reported for a while."""
        with self._turn:
            if key not in self._counts and len(self._counts) >= _KNOWN_MAX:
                self.flush()
            count = self._counts.setdefault(key, _Count(reported_at=-math.inf, sample=sample))
            count.number, count.sample = count.number + number, sample
            if self._is_due(count):
                self._report(key, count)

    def report(self) -> None:
        """Report the counts that are due; forget keys that have not recurred since their last report."""
        with self._turn:
            for key, count in list(self._counts.items()):
                if self._is_due(count):
                    if not count.number:
                        del self._counts[key]
                    self._report(key, count)

    def flush(self) -> None:
        """Report all counts and start over."""
        with self._turn:
            for key, count in self._counts.items():
                self._report(key, count)
            self._counts.clear()

    def _is_due(self, count: _Count[_Sample]) -> bool:
        return time.monotonic() - count.reported_at >= self._seconds

    def _report(self, key: _Key, count: _Count[_Sample]) -> None:
        if count.number:
            number, count.number, count.reported_at = count.number, 0, time.monotonic()
            self._log(key, number, count.sample)
