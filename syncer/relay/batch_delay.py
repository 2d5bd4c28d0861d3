"""Batch delay: how long the relay collects changes before it publishes them.

A batch costs the same however few its changes are: a query, an acknowledgement by Kafka, a version, a bulk request, a
commit. So frequent single changes cost a multiple of what they cost in batches.

A single change is published at once. The faster changes arrive, the longer the relay waits for more of them, until a
batch is large enough:

    changes/s    waits up to    together
           50         nothing          1
          300           30 ms         10
        1,000          100 ms        100
       10,000           10 ms        100

Network drivers do the same and call it interrupt moderation. The components behind the relay need not: changes that are
published together reach them together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_ENOUGH_CHANGES = 100
"""From this batch size on, each change costs hardly more than in a batch of a thousand."""
_SECONDS_PER_RATE = 1e-4
_REMEMBERED_SECONDS = 0.25
_LEAST_SECONDS = 0.01
"""How long to wait if several have just arrived together, however rarely that happens."""


class Gathering:
    """Measures how fast changes arrive, and how long to wait for more of them. Not safe to share between threads.

    Args:
        most_seconds: The maximum wait, however fast they arrive.
        clock: Returns the time in seconds.
    """

    def __init__(self, *, most_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_seconds = most_seconds
        self._clock = clock
        self._per_second = 0.0
        self._noted_at = clock()

    def note(self, changes: int) -> float:
        """Record how many changes have just been published; return how many seconds to wait before the next query."""
        now = self._clock()
        faded = math.exp((self._noted_at - now) / _REMEMBERED_SECONDS)
        self._per_second = self._per_second * faded + changes / _REMEMBERED_SECONDS
        self._noted_at = now
        seconds = min(self._most_seconds, self._per_second * _SECONDS_PER_RATE, _ENOUGH_CHANGES / self._per_second)
        if seconds > _LEAST_SECONDS:
            return seconds
        return _LEAST_SECONDS if changes > 1 else 0.0
