"""The kinds of metrics. Each metric is registered in `CATALOGUE` when it is created.

The metrics themselves are in `syncer.base.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

REGISTRY: Final = CollectorRegistry()
"""Syncer's own registry; it contains no other metrics of the process."""

_WORK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_NOT_YET = "a"  # the registry needs a name that no metric has

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series


class Question(StrEnum):
    """The operator's question that a metric answers."""

    KEEPING_UP = "Is it keeping up?"
    STUCK = "Is anything stuck?"
    WRONG = "Is anything wrong?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, as it is scraped; ``meaning`` is its help text, ``kind`` is counter, gauge or histogram.

    If ``is_polled``, its value is polled from the servers, and so is the same in every daemon.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    question: Question
    meaning: str
    is_polled: bool = False

    @property
    def series(self) -> tuple[str, ...]:
        """The series names that a query may use."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


CATALOGUE: Final[dict[str, Metric]] = {}
"""Every metric, by its name."""


def _noted(
    name: str, kind: str, question: Question, meaning: str, labels: Sequence[str] = (), *, is_polled: bool = False
) -> Metric:
    made = Metric(name=name, kind=kind, labels=tuple(labels), question=question, meaning=meaning, is_polled=is_polled)
    CATALOGUE[name] = made
    return made


def counter(name: str, question: Question, meaning: str, *labels: str) -> Counter:
    """Create a counter."""
    _noted(name, "counter", question, meaning, labels)
    return Counter(name.removesuffix("_total"), meaning, labels, registry=REGISTRY)


def gauge(name: str, question: Question, meaning: str, *labels: str) -> Gauge:
    """Create a gauge."""
    _noted(name, "gauge", question, meaning, labels)
    return Gauge(name, meaning, labels, registry=REGISTRY)


def histogram(name: str, meaning: str, *, buckets: Sequence[float] = _WORK) -> Histogram:
    """Create a histogram of how long something takes."""
    _noted(name, "histogram", Question.KEEPING_UP, meaning)
    return Histogram(name, meaning, buckets=buckets, registry=REGISTRY)


Values = Mapping[Metric, Mapping[tuple[str, ...], float]]
"""The value of each metric, by the values of its labels."""


class PollCollector(Collector):
    """Shows the results of the last poll. Safe to share between threads."""

    def __init__(self) -> None:
        self._metrics: list[Metric] = []
        self._values: Values = {}
        REGISTRY.register(self)

    def metric(self, name: str, question: Question, meaning: str, *labels: str) -> Metric:
        """Add a metric."""
        made = _noted(name, "gauge", question, meaning, labels, is_polled=True)
        self._metrics.append(made)
        return made

    def show(self, values: Values) -> None:
        """Replace all values that were shown before."""
        self._values = values

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return a placeholder for the registry: `CATALOGUE` already guarantees that names are unique."""
        yield GaugeMetricFamily(_NOT_YET, "")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the current values."""
        values = self._values
        for one in self._metrics:
            family = GaugeMetricFamily(one.name, one.meaning, labels=one.labels)
            for labels, value in values.get(one, {}).items():
                family.add_metric(labels, value)
            yield family
