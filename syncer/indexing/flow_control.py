"""Flow control: how many documents a slice has, and how many submissions are open, for the writers of one component.

A slice of an index is halved after a refusal for lack of room, a timeout, a slow build or documents too large to be
built together, and doubled again after a while without any of these.

Elasticsearch handles the requests of a shard one after the other, so a single edit waits behind those that are already
there. While live changes flow, jobs have two submissions open, in small slices.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque

from syncer.base.settings import WorkerSettings
from syncer.elasticsearch.bulk import BULK_BYTES_MAX

BESIDE_TRAFFIC_SLICES = 2
BESIDE_TRAFFIC_DOCUMENTS = 200
"""So many documents of an ordinary size take Elasticsearch some 25 ms."""
BUILD_SECONDS_MAX = 2.0
"""A slice that takes longer to build is halved."""
HALVED_SECONDS = 5.0
"""How long after it was halved a slice is doubled again."""
_FLOWING_BATCHES, _FLOWING_SECONDS = 10, 2.0


class LiveTraffic:
    """Whether live changes flow, as seen by this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._written_at = deque([-math.inf] * _FLOWING_BATCHES, maxlen=_FLOWING_BATCHES)

    def note(self) -> None:
        """Record that a batch of live changes was written."""
        self._written_at.append(time.monotonic())

    @property
    def is_flowing(self) -> bool:
        """Whether there were many batches just now: more than the few changes that may have created a job."""
        return time.monotonic() - self._written_at[0] < _FLOWING_SECONDS


class FlowControl:
    """Limits for all writers of one component. Safe to share between threads.

    ``traffic`` is what to make way for: None for the component that writes it.
    """

    def __init__(self, settings: WorkerSettings, *, traffic: LiveTraffic | None = None) -> None:
        self.bytes_max = BULK_BYTES_MAX
        self.slices_max = settings.in_flight_max
        self._documents_max = settings.batch_documents_max
        self._traffic = traffic
        self._sizes: dict[str, tuple[int, float]] = {}
        """The size of slices that were halved, by index, and when that was."""
        self._turn = threading.Lock()

    def documents(self, index_name: str) -> int:
        """Return how many documents of an index a slice has now; at least one."""
        size = self._sizes.get(index_name, (self._documents_max, 0.0))[0]
        return min(size, BESIDE_TRAFFIC_DOCUMENTS) if self._is_beside_traffic else size

    @property
    def open_max(self) -> int:
        """How many submissions may be open now: beside traffic two, else one more than there are threads."""
        return BESIDE_TRAFFIC_SLICES if self._is_beside_traffic else self.slices_max + 1

    @property
    def _is_beside_traffic(self) -> bool:
        return self._traffic is not None and self._traffic.is_flowing

    def halve(self, index_name: str, documents: int) -> None:
        """Make the slices of an index half as large as one that was too large or too slow, or was refused."""
        with self._turn:
            size, _ = self._sizes.get(index_name, (self._documents_max, 0.0))
            self._sizes[index_name] = max(1, min(size, documents // 2)), time.monotonic()

    def restore(self, index_name: str) -> None:
        """Double the slices of an index if they were halved a while ago. Call it after each that went well."""
        if index_name not in self._sizes:
            return
        with self._turn:
            size, halved_at = self._sizes.get(index_name, (self._documents_max, time.monotonic()))
            if time.monotonic() - halved_at < HALVED_SECONDS:
                return
            if 2 * size >= self._documents_max:
                self._sizes.pop(index_name, None)
            else:
                self._sizes[index_name] = 2 * size, time.monotonic()
