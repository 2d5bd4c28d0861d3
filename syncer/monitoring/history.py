"""History: what the charts of the status page show of the past hour, in memory: a sample of each reading of the status.

Each daemon with a page keeps its own, and reads every few seconds, so the page shows what was before it was opened.
"""

from __future__ import annotations

import threading
from collections import deque

from syncer.base.lifecycle import Stop
from syncer.monitoring.status import POSTGRES, Reader, Status, Stored

KEPT_SECONDS = 3600.0
_READ_SECONDS = 5.0

Sample = dict[str, float | None]
"""The lag and the rates at one time; None while Postgres is silent, since changes may have been committed."""


class History:
    """Reads the status, and keeps a sample of each reading for an hour. Safe to share between threads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, Sample]] = deque()
        self._stored: Stored | None = None

    def run(self, stop: Stop) -> None:
        """Read every few seconds until a stop is requested."""
        while not stop.wait(_READ_SECONDS):
            self.read(asks_elasticsearch=False)
        self._reader.close()

    def read(self, *, asks_elasticsearch: bool = True) -> Status:
        """Read the status, as `Reader.read` does."""
        status = self._reader.read(asks_elasticsearch=asks_elasticsearch)
        with self._lock:
            # At most one a second, as the reader asks no more often. They stay sorted when a clock is set back.
            if not self._samples or status.at > self._samples[-1][0]:
                self._samples.append((status.at, self._sample(status)))
            while self._samples[0][0] < self._samples[-1][0] - KEPT_SECONDS:
                self._samples.popleft()
        return status

    def since(self, at: float) -> list[Sample]:
        """The samples after this time, oldest first."""
        with self._lock:
            return [sample for sampled_at, sample in self._samples if sampled_at > at]

    def _sample(self, status: Status) -> Sample:
        previous, stored = self._stored, status.stored
        self._stored, lag, captured_rate, written_rate = stored, None, None, None
        if stored is not None and POSTGRES not in status.silent:
            lag, written_rate = status.lag_seconds, stored.written_per_second
            if previous is not None and stored.at > previous.at:
                changes = stored.totals["captured"] - previous.totals["captured"]
                captured_rate = max(0.0, changes / (stored.at - previous.at))
        rates = {"captured_per_second": captured_rate, "written_per_second": written_rate}
        return {"at": status.at, "lag_seconds": lag, **rates}
