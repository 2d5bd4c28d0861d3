"""What an index is given, seen from outside: Elasticsearch's own count of writes, sampled often.

A look costs Elasticsearch half a millisecond, and tells to some 20 ms when the last document was written.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_LOOK_SECONDS = 0.02
_THINK_SECONDS = 0.1
_QUIET_SECONDS = 0.5
_WINDOW_SECONDS = 0.1
_DEADLINE_SECONDS = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When an index was written.

    Args:
        first_at: When the first write was seen.
        last_at: When the last one was, by the same clock as `time.monotonic`.
        writes: How many there were.
    """

    first_at: float
    last_at: float
    writes: int


class Writes:
    """Looks at an index for as long as it is entered."""

    def __init__(self, url: str, index: str) -> None:
        self._address = urlsplit(url).netloc
        self._path = f"/{index}/_stats/indexing?filter_path=_all.primaries.indexing.index_total"
        self._samples: list[tuple[float, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="writes")

    def __enter__(self) -> Self:
        """Begin to look; the first look is done before this returns."""
        connection = HTTPConnection(self._address)
        self._sample(connection)
        connection.close()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def wait(self, documents: int, *, settled: Callable[[], bool], noise: int = 0) -> Span:
        """Return once so many documents have been written and nothing follows.

        Args:
            documents: At least so many writes there must be.
            settled: Whether nothing is on its way; it is asked when it looks so, seldom.
            noise: How many writes in a tenth of a second are somebody else's and do not count.

        Raises:
            TimeoutError: It does not come to an end.
        """
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            span = self._span(noise)
            if span.writes >= documents and time.monotonic() - span.last_at >= _QUIET_SECONDS and settled():
                return self._span(noise)
            self._over.wait(_THINK_SECONDS)
        raise TimeoutError(f"{self._span(noise).writes:,} documents written, not {documents:,}")

    def _look(self) -> None:
        connection = HTTPConnection(self._address)
        while not self._over.wait(_LOOK_SECONDS):
            self._sample(connection)
        connection.close()

    def _sample(self, connection: HTTPConnection) -> None:
        connection.request("GET", self._path)
        answer = json.loads(connection.getresponse().read())
        self._samples.append((time.monotonic(), answer["_all"]["primaries"]["indexing"]["index_total"]))

    def _span(self, noise: int) -> Span:
        samples = list(self._samples)
        began, before = samples[0]
        first_at, last_at = began, began
        for number, (at, total) in enumerate(samples[1:], 1):
            earlier = bisect_left(samples, (at - _WINDOW_SECONDS, 0)) if noise else number - 1
            if total - samples[min(earlier, number - 1)][1] > noise:
                first_at = at if first_at == began else first_at
                last_at = at
        return Span(first_at=first_at, last_at=last_at, writes=samples[-1][1] - before)
