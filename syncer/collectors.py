"""Collectors: the kinds of metrics that there are, each noted in `CATALOGUE` as it is made.

Which there are, and what stages tell: `syncer.metrics`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

REGISTRY: Final = CollectorRegistry()
"""Syncer's own: nothing else of the process is in it."""

_DELAYS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_WORK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_NOT_YET = "a"  # a metric's name is its key in the registry; this is no name of one

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series of each, which nobody asks for


class Question(StrEnum):
    """What an operator asks."""

    KEEPING_UP = "Is it keeping up?"
    STUCK = "Is anything stuck?"
    WRONG = "Is anything wrong?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, as it is scraped.

    Args:
        name: Its name; that of a counter ends in ``_total``.
        kind: ``counter``, ``gauge`` or ``histogram``.
        labels: The names of its labels.
        question: Which question it answers.
        meaning: What it says.
        is_surveyed: Whether it is asked of the servers, and so the same in every daemon.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    question: Question
    meaning: str
    is_surveyed: bool = False

    @property
    def series(self) -> tuple[str, ...]:
        """The names that a query may use."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


CATALOGUE: Final[dict[str, Metric]] = {}
"""Every metric, by its name."""


def _noted(
    name: str, kind: str, question: Question, meaning: str, labels: Sequence[str] = (), *, is_surveyed: bool = False
) -> Metric:
    made = Metric(
        name=name, kind=kind, labels=tuple(labels), question=question, meaning=meaning, is_surveyed=is_surveyed
    )
    CATALOGUE[name] = made
    return made


def counter(name: str, question: Question, meaning: str, *labels: str) -> Counter:
    """One that only grows."""
    _noted(name, "counter", question, meaning, labels)
    return Counter(name.removesuffix("_total"), meaning, labels, registry=REGISTRY)


def gauge(name: str, question: Question, meaning: str, *labels: str) -> Gauge:
    """One that is set."""
    _noted(name, "gauge", question, meaning, labels)
    return Gauge(name, meaning, labels, registry=REGISTRY)


def histogram(name: str, question: Question, meaning: str) -> Histogram:
    """One that counts how long work took."""
    _noted(name, "histogram", question, meaning)
    return Histogram(name, meaning, buckets=_WORK, registry=REGISTRY)


class Delays(Collector):
    """A histogram that takes the delays of a whole batch at once. Safe to share between threads.

    Args:
        name: The metric's.
        meaning: What it says.
    """

    def __init__(self, name: str, meaning: str) -> None:
        self._metric = _noted(name, "histogram", Question.KEEPING_UP, meaning)
        self._within = [0] * len(_DELAYS)
        self._count = 0
        self._sum = 0.0
        self._lock = threading.Lock()
        REGISTRY.register(self)

    def note(self, seconds: Iterable[float]) -> None:
        """Count these; that a clock is behind another makes nothing less."""
        ordered = sorted(seconds)
        within = [bisect_right(ordered, bound) for bound in _DELAYS]
        with self._lock:
            self._within = [before + more for before, more in zip(self._within, within, strict=True)]
            self._count += len(ordered)
            self._sum += max(0.0, sum(ordered))

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Its name, for the registry."""
        yield HistogramMetricFamily(self._metric.name, self._metric.meaning)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What was counted so far."""
        with self._lock:
            within, count, total = self._within, self._count, self._sum
        buckets = [(str(bound), number) for bound, number in zip(_DELAYS, within, strict=True)]
        yield HistogramMetricFamily(
            self._metric.name, self._metric.meaning, buckets=[*buckets, ("+Inf", count)], sum_value=total
        )


Values = Mapping[Metric, Mapping[tuple[str, ...], float]]
"""Of each metric, its value by those of its labels."""


class Survey(Collector):
    """What the survey found last, shown until it finds something else. Safe to share between threads."""

    def __init__(self) -> None:
        self._metrics: list[Metric] = []
        self._values: Values = {}
        REGISTRY.register(self)

    def metric(self, name: str, question: Question, meaning: str, *labels: str) -> Metric:
        """One more that it shows."""
        made = _noted(name, "gauge", question, meaning, labels, is_surveyed=True)
        self._metrics.append(made)
        return made

    def show(self, values: Values) -> None:
        """Show these, and nothing that was shown before."""
        self._values = values

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """No name as yet, for the registry: each is unlike all others, since `CATALOGUE` has it once."""
        yield GaugeMetricFamily(_NOT_YET, "")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What is shown."""
        values = self._values
        for one in self._metrics:
            family = GaugeMetricFamily(one.name, one.meaning, labels=one.labels)
            for labels, value in values.get(one, {}).items():
                family.add_metric(labels, value)
            yield family
