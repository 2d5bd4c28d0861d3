"""History: what the charts of the status page show of the past hour, in memory.

Each daemon that serves the page keeps its own, from its start on: one sample for each reading of the status. It reads
every few seconds, so that the page shows what happened before it was opened.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from syncer.base.lifecycle import Stop
from syncer.monitoring.status import POSTGRES, Reader, Status, Stored

KEPT_SECONDS = 3600.0
_READ_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The lag and the rates at one time. They are None while Postgres is silent: changes may have been committed."""

    at: float
    lag_seconds: float | None = None
    captured_per_second: float | None = None
    written_per_second: float | None = None


class History:
    """Reads the status, and keeps a sample of each reading for an hour. Safe to share between threads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque()
        self._stored: Stored | None = None

    def run(self, stop: Stop) -> None:
        """Read every few seconds until a stop is requested."""
        while not stop.wait(_READ_SECONDS):
            self.read(asks_elasticsearch=False)

    def read(self, *, asks_elasticsearch: bool = True) -> Status:
        """Read the status, as `Reader.read` does."""
        status = self._reader.read(asks_elasticsearch=asks_elasticsearch)
        with self._lock:
            # At most one a second, as the reader asks no more often. They stay sorted when a clock is set back.
            if not self._samples or status.at > self._samples[-1].at:
                self._samples.append(self._sample(status))
            while self._samples[0].at < self._samples[-1].at - KEPT_SECONDS:
                self._samples.popleft()
        return status

    def since(self, at: float) -> list[Sample]:
        """The samples after this time, oldest first."""
        with self._lock:
            return [sample for sample in self._samples if sample.at > at]

    def _sample(self, status: Status) -> Sample:
        before, self._stored = self._stored, status.stored
        if self._stored is None or POSTGRES in status.silent:
            return Sample(at=status.at)
        captured = None
        if before is not None and self._stored.at > before.at:
            changes = self._stored.totals["captured"] - before.totals["captured"]
            captured = max(0.0, changes / (self._stored.at - before.at))
        return Sample(
            at=status.at,
            lag_seconds=status.lag_seconds,
            captured_per_second=captured,
            written_per_second=self._stored.written_per_second,
        )
