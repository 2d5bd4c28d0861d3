"""When an index was last written, seen from outside: Elasticsearch's own count of writes, sampled often.

A look costs Elasticsearch half a millisecond. The last write is known to some 20 ms.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit

_LOOK_SECONDS, _THINK_SECONDS = 0.02, 0.1
_QUIET_SECONDS, _WINDOW_SECONDS = 0.5, 0.1
_DEADLINE_SECONDS = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When the first and the last write were seen, by the clock of `time.monotonic`, and how many there were."""

    first_at: float
    last_at: float
    writes: int


@dataclass(slots=True)
class Writes:
    """Samples of an index's count of writes, and when each was taken."""

    samples: list[tuple[float, int]]

    def wait(self, documents: int, *, settled: Callable[[], bool], noise: int = 0) -> Span:
        """Return once so many documents are written and nothing follows.

        Args:
            documents: The least number of writes.
            settled: Whether nothing is on its way; asked only when writes have ceased.
            noise: How many writes in a tenth of a second do not count, because something else writes as well.
        """
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            span = self._span(noise)
            if span.writes >= documents and time.monotonic() - span.last_at >= _QUIET_SECONDS and settled():
                return self._span(noise)
            time.sleep(_THINK_SECONDS)
        raise TimeoutError(f"{self._span(noise).writes:,} documents written, not {documents:,}")

    def _span(self, noise: int) -> Span:
        samples = list(self.samples)
        began, before = samples[0]
        first_at, last_at = began, began
        for number, (at, total) in enumerate(samples[1:], 1):
            earlier = bisect_left(samples, (at - _WINDOW_SECONDS, 0)) if noise else number - 1
            if total - samples[min(earlier, number - 1)][1] > noise:
                first_at = at if first_at == began else first_at
                last_at = at
        return Span(first_at=first_at, last_at=last_at, writes=samples[-1][1] - before)


@contextmanager
def sampled(url: str, index: str) -> Iterator[Writes]:
    """Sample an index's writes until the block ends; the first sample is taken before it begins."""
    connection = HTTPConnection(urlsplit(url).netloc)
    samples: list[tuple[float, int]] = []
    is_over = threading.Event()

    def sample() -> None:
        connection.request("GET", f"/{index}/_stats/indexing?filter_path=_all.primaries.indexing.index_total")
        answer = json.loads(connection.getresponse().read())
        samples.append((time.monotonic(), answer["_all"]["primaries"]["indexing"]["index_total"]))

    def go_on() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            sample()

    sample()
    thread = threading.Thread(target=go_on, name="writes")
    thread.start()
    try:
        yield Writes(samples)
    finally:
        is_over.set()
        thread.join()
        connection.close()
