"""Pace: how many documents may be on their way to Elasticsearch at once.

Each lane has a window, as TCP has one for a network that it knows nothing of (RFC 5681): it begins small and doubles
with each answer until something is in its way; then it halves, stays so for a while, and tries a little more from
time to time. What is in its way: Elasticsearch refuses for want of room in its queue (429); and, for a lane that writes
jobs, live changes take longer than they should. So jobs make way for what people have just changed, and take what is
left.

Once there is live traffic, a lane that writes jobs has one small request on its way at a time, and then tries more:
that two are too many would be known only by those who have waited for them.
"""

from __future__ import annotations

import math
import time
from collections import deque

FIRST_DOCUMENTS = 500
LEAST_DOCUMENTS = 100
HOLD_SECONDS = 10.0
"""How long a window that has shrunk stays as it is; then it tries more."""
_STEP_SECONDS = 2.0
"""How long it waits then before it tries more still."""
_FORGOTTEN_SECONDS = 5.0
_FLOWING_BATCHES = 10
_FLOWING_SECONDS = 2.0


class Window:
    """How many documents one lane may have on their way. Not for sharing between threads.

    Args:
        request: As many as one request has at most.
        most: However well it goes.
    """

    def __init__(self, *, request: int, most: int) -> None:
        self._request = request
        self._most = most
        self._least = min(LEAST_DOCUMENTS, most)
        self._size = self._bound = 0.0
        self._held_until = self._shrunk_at = 0.0
        self._begin()
        self._moved_at = -math.inf

    @property
    def documents(self) -> int:
        """How many may be on their way now; at least one."""
        return int(self._size)

    def grow(self, documents: int) -> None:
        """So many were written, and nothing was in their way."""
        self._moved_at = time.monotonic()
        if self._moved_at > self._held_until and self._bound < self._most:
            self._bound = min(self._most, 2 * self._bound, self._bound + self._request)
            self._held_until = self._moved_at + _STEP_SECONDS
        self._size = min(self._bound, self._size + documents)

    def shrink(self, *, begun_at: float) -> bool:
        """Something was in the way of what had begun then; whether that is news.

        It counts once, however many it was in the way of: not what had begun before the window shrank last.
        """
        if begun_at <= self._shrunk_at:
            return False
        self._shrunk_at = self._moved_at = time.monotonic()
        self._size = self._bound = max(self._least, self._size / 2)
        self._held_until = self._shrunk_at + HOLD_SECONDS
        return True

    def resume(self) -> bool:
        """Something is to be sent: after a while without, nobody knows any more how much there is room for.

        Returns:
            Whether it begins anew.
        """
        is_forgotten = time.monotonic() - self._moved_at > _FORGOTTEN_SECONDS
        if is_forgotten:
            self._begin()
        return is_forgotten

    def limit(self, documents: int) -> None:
        """Let no more be on their way for a while, since somebody else now is, too."""
        self._bound = min(self._bound, max(self._least, documents))
        self._size = min(self._size, self._bound)
        self._held_until = time.monotonic() + HOLD_SECONDS

    def _begin(self) -> None:
        self._bound = self._most
        self._size = min(FIRST_DOCUMENTS, self._bound)
        self._shrunk_at = self._moved_at = time.monotonic()
        self._held_until = self._shrunk_at + HOLD_SECONDS


class LiveTraffic:
    """Whether live changes are written in time, as this process sees it. Safe to share between threads.

    Args:
        late_seconds: How long a batch of them may take, from its receipt until it is written.
    """

    def __init__(self, *, late_seconds: float) -> None:
        self._late_seconds = late_seconds
        self._late_begun_at = 0.0
        self._seen_at = deque([-math.inf] * _FLOWING_BATCHES, maxlen=_FLOWING_BATCHES)

    def note(self, *, begun_at: float) -> None:
        """A batch that was received then, by the monotonic clock, is written."""
        now = time.monotonic()
        self._seen_at.append(now)
        if now - begun_at > self._late_seconds:
            self._late_begun_at = max(self._late_begun_at, begun_at)

    @property
    def is_flowing(self) -> bool:
        """Whether there were many just now: more than the change, or the few, that a job is made for."""
        return time.monotonic() - self._seen_at[0] < _FLOWING_SECONDS

    @property
    def late_begun_at(self) -> float:
        """When the last batch was received that took too long; 0 if none did."""
        return self._late_begun_at
