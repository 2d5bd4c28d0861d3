"""Gathering: how long the relay lets changes come together before it publishes them.

What is done for a batch costs the same however few its changes are: a query, an acknowledgement by Kafka, a draw, a
bulk request, a commit. So what comes one by one, and often, costs a multiple of what comes in numbers.
A change that comes alone is published at once. The more come, the longer the next ones are waited for, until enough
are together:

    changes/s    waits up to    together
           50         nothing          1
          300           30 ms         10
        1,000          100 ms        100
       10,000           10 ms        100

It is what drivers of network cards do, and call interrupt moderation. Those behind the relay need not do the
same: what is published together comes to them together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_ENOUGH_CHANGES = 100
"""Of so many together each costs hardly more than it would of a thousand."""
_SECONDS_PER_RATE = 1e-4
_REMEMBERED_SECONDS = 0.25


class Gathering:
    """How fast changes come, and how long to wait for more of them. Not for sharing between threads.

    Args:
        least_seconds: To wait when some have just come together, however rarely that is.
        most_seconds: To wait, however fast they come.
        clock: In seconds.
    """

    def __init__(
        self, *, least_seconds: float, most_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least_seconds = least_seconds
        self._most_seconds = most_seconds
        self._clock = clock
        self._per_second = 0.0
        self._noted_at = clock()

    def note(self, changes: int) -> float:
        """So many have just been published; for how many seconds to wait before looking for the next."""
        now = self._clock()
        faded = math.exp((self._noted_at - now) / _REMEMBERED_SECONDS)
        self._per_second = self._per_second * faded + changes / _REMEMBERED_SECONDS
        self._noted_at = now
        seconds = min(self._most_seconds, self._per_second * _SECONDS_PER_RATE, _ENOUGH_CHANGES / self._per_second)
        if seconds > self._least_seconds:
            return seconds
        return self._least_seconds if changes > 1 else 0.0
