"""Flow control: how many documents go into one request, and how many requests are in flight to Elasticsearch.

A slice has as many documents as fit into a request, by the sizes so far, and as Postgres can build within
`BUILD_SECONDS`. A refusal for lack of room (429, 503) halves what is in flight. After a while without one it doubles.

Jobs make way for live changes. Elasticsearch handles the requests of a shard one after the other, so a single edit
waits behind those that are already there. While live changes flow, jobs have two requests in flight, each answered in
some 50 ms, which is 25 ms of Elasticsearch's time. Otherwise jobs use the full limit. (Elasticsearch's own ``took``
comes from a clock that it reads every 200 ms.)
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

BESIDE_TRAFFIC_REQUESTS = 2
BESIDE_TRAFFIC_SECONDS = 0.05
"""How long a job's request may take while live changes flow, with another one in flight beside it."""
BESIDE_TRAFFIC_DOCUMENTS = 250
"""The number of documents assumed to take that long, until it is measured."""
BUILD_SECONDS = 2.0
"""How long one slice may take to build in Postgres, as far as can be estimated."""
HOLD_SECONDS = 5.0
"""How long after a refusal the limit is raised again."""
_STEP_SECONDS = 1.0
"""How long after that it is raised once more."""
_LEAST_DOCUMENTS = 50
_LEAST_SHARE = 0.1
"""As a share of one request."""
_MEAN_OVER = 8
_FLOWING_BATCHES = 10
_FLOWING_SECONDS = 2.0


class _Rate:
    """The cost of one document, weighted towards the latest."""

    def __init__(self) -> None:
        self._documents = self._cost = 0.0

    def note(self, documents: int, cost: float) -> None:
        """Record the cost of some documents."""
        self._documents += documents - self._documents / _MEAN_OVER
        self._cost += cost - self._cost / _MEAN_OVER

    def affordable(self, cost: float, *, unknown: float) -> float:
        """Return the number of documents that the cost allows; `unknown` if nothing was recorded yet."""
        if not self._documents:
            return unknown
        return cost * self._documents / self._cost if self._cost else math.inf


@dataclass(frozen=True, slots=True)
class _Costs:
    """The costs of one index's documents: bytes, seconds in Postgres, seconds in Elasticsearch."""

    bytes: _Rate = field(default_factory=_Rate)
    build: _Rate = field(default_factory=_Rate)
    index: _Rate = field(default_factory=_Rate)


class LiveTraffic:
    """Whether live changes flow, as seen by this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._seen_at = deque([-math.inf] * _FLOWING_BATCHES, maxlen=_FLOWING_BATCHES)

    def note(self) -> None:
        """Record that a batch of live changes was written."""
        self._seen_at.append(time.monotonic())

    @property
    def is_flowing(self) -> bool:
        """Whether there were many batches just now: more than the few changes that may have created a job."""
        return time.monotonic() - self._seen_at[0] < _FLOWING_SECONDS


class FlowControl:
    """Limits for all writers of one component. Safe to share between threads.

    Args:
        requests_max: How many requests are in flight at once.
        documents_max: How many documents are written together.
        bytes_max: How large they may be together, as far as can be estimated.
        traffic: Live changes to make way for; None for the component that writes them.
    """

    def __init__(
        self,
        *,
        requests_max: int = 1,
        documents_max: int = 1000,
        bytes_max: int = 8 * 1024 * 1024,
        traffic: LiveTraffic | None = None,
    ) -> None:
        self.bytes_max = bytes_max
        self._requests_max = requests_max
        self._documents_max = documents_max
        self._traffic = traffic
        self._costs: defaultdict[str, _Costs] = defaultdict(_Costs)
        self._share = 1.0
        self._held_until = self._halved_at = 0.0
        self._in_hand: list[None] = []
        self._in_flight: list[None] = []
        self._changed = threading.Condition()

    # Limits

    @property
    def requests(self) -> int:
        """The number of requests that may be in flight now."""
        most = max(1, int(self._requests_max * self._share))
        return min(most, BESIDE_TRAFFIC_REQUESTS) if self._is_beside_traffic else most

    def documents(self, index_name: str) -> int:
        """Return how many documents of an index to write together now; at least one."""
        with self._changed:
            costs = self._costs[index_name]
            most = min(
                self._documents_max * min(1.0, self._share * self._requests_max),
                costs.bytes.affordable(self.bytes_max, unknown=math.inf),
                costs.build.affordable(BUILD_SECONDS, unknown=math.inf),
            )
            if self._is_beside_traffic:
                small = costs.index.affordable(BESIDE_TRAFFIC_SECONDS, unknown=BESIDE_TRAFFIC_DOCUMENTS)
                most = min(most, max(_LEAST_DOCUMENTS, small))
            return max(1, int(most))

    @property
    def _is_beside_traffic(self) -> bool:
        return self._traffic is not None and self._traffic.is_flowing

    # In flight

    @contextmanager
    def in_hand(self) -> Iterator[None]:
        """Enclose a slice, from before it is built: limits how long built documents wait for their request."""
        with self._within(self._in_hand, spare=1):
            yield

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Enclose a request: waits until one more may be in flight."""
        with self._within(self._in_flight, spare=0):
            yield

    @contextmanager
    def _within(self, counted: list[None], *, spare: int) -> Iterator[None]:
        with self._changed:
            while len(counted) >= self.requests + spare:
                self._changed.wait(_FLOWING_SECONDS)  # traffic may end meanwhile
            counted.append(None)
        try:
            yield
        finally:
            with self._changed:
                counted.pop()
                self._changed.notify_all()

    # Measurements

    def built(self, index_name: str, *, documents: int, size: int, seconds: float) -> None:
        """Record how long Postgres took to build some documents, and their total size in bytes."""
        with self._changed:
            self._costs[index_name].bytes.note(documents, size)
            self._costs[index_name].build.note(documents, seconds)

    def answered(self, index_name: str, *, documents: int, seconds: float) -> None:
        """Record how long Elasticsearch took for some documents, without refusing any."""
        with self._changed:
            if documents >= _LEAST_DOCUMENTS:  # for fewer, the fixed cost of a request dominates
                self._costs[index_name].index.note(documents, seconds)
            if self._share < 1 and time.monotonic() > self._held_until:
                self._share = min(1.0, 2 * self._share)
                self._held_until = time.monotonic() + _STEP_SECONDS
                self._changed.notify_all()

    def refused(self, *, begun_at: float) -> None:
        """Record a refusal for lack of room, of a request sent at that time by the monotonic clock.

        It counts once for all requests in flight: those sent before the last halving are ignored.
        """
        with self._changed:
            if begun_at > self._halved_at:
                self._halve()

    def _halve(self) -> None:
        self._share = max(_LEAST_SHARE / self._requests_max, self._share / 2)
        self._halved_at = time.monotonic()
        self._held_until = self._halved_at + HOLD_SECONDS
