"""Metrics of this process, by the operator's question. Components call the functions at the end to count their work.

`syncer.monitoring.gauges` has the others: what the servers say, which is the same in every daemon.

Guarantees: no label contains a value of a row. A batch of changes costs some tens of microseconds here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    exposition,
)
from prometheus_client.core import GaugeMetricFamily

from syncer.base.model import WriteReport

CONTENT_TYPE: Final = exposition.CONTENT_TYPE_LATEST
_REGISTRY: Final = CollectorRegistry()
_STEPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DELAYS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_Kind = TypeVar("_Kind", Counter, Gauge, Histogram)

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series
ProcessCollector(registry=_REGISTRY)


class Question(StrEnum):
    """The operator's question that a metric answers."""

    KEEPING_UP = "Is it keeping up?"
    STUCK = "Is anything stuck?"
    WRONG = "Is anything wrong?"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, as it is scraped; ``meaning`` is its help text, ``kind`` is counter, gauge or histogram."""

    name: str
    question: Question
    meaning: str
    labels: tuple[str, ...] = ()
    kind: str = "gauge"


MEASURED: Final[list[Metric]] = []
"""Every metric of this process."""
Values = Mapping[Metric, Mapping[tuple[str, ...], float]]
"""The value of each metric that the servers' answers make, by the values of its labels."""


def _measured(kind: type[_Kind], question: Question, name: str, meaning: str, *labels: str, **options: Any) -> _Kind:
    MEASURED.append(Metric(name, question, meaning, labels, kind.__name__.lower()))
    return kind(name.removesuffix("_total"), meaning, labels, registry=_REGISTRY, **options)


_DELAY = _measured(
    Histogram,
    Question.KEEPING_UP,
    "syncer_commit_to_indexed_seconds",
    "From a change until every affected document is written or left to a job; its count is the number of changes that "
    "were handled. Begins when the statement ran, so it "
    "includes the rest of the transaction: Postgres does not report when a transaction was committed.",
    buckets=_DELAYS,
)
_BATCH = _measured(
    Histogram,
    Question.KEEPING_UP,
    "syncer_batch_seconds",
    "Duration of each step of a batch: publish (query to saved cursor, with Kafka), handle (receipt until all is "
    "written), and within it build (in Postgres) and index (in Elasticsearch), summed over concurrent requests.",
    "step",
    buckets=_STEPS,
)
_WRITTEN = _measured(
    Counter,
    Question.KEEPING_UP,
    "syncer_written_documents_total",
    "Documents of live changes and of jobs, by outcome: indexed, deleted, skipped (a version at least as new is "
    "there), dead_lettered.",
    *("source", "outcome"),
)
_INCIDENTS = _measured(
    Counter,
    Question.WRONG,
    "syncer_incidents_total",
    "records_lost: Kafka has lost records, or some are unreadable. job_failed: a job failed with an unexpected error. "
    "affects_failed: an affects query failed on a batch, so that all documents are written again.",
    "kind",
)
_BUILD = _measured(
    Gauge, Question.WRONG, "syncer_build_info", "1; its label is the version that this daemon runs.", "version"
)
_BUILD.labels(version("syncer-cdc")).set(1)

LOSSES: Final = _INCIDENTS.labels("records_lost")
JOB_FAILURES: Final = _INCIDENTS.labels("job_failed")
UNRESOLVED: Final = _INCIDENTS.labels("affects_failed")


# Called by components


def published(changes: int, *, seconds: float) -> None:
    """Record a batch that the relay published."""
    if changes:
        _BATCH.labels("publish").observe(seconds)


def handled(changed_at: Sequence[float], written: WriteReport, *, seconds: float) -> None:
    """Record a finished batch of a worker: when its changes were made (Unix time), and what became of its documents."""
    now = time.time()
    for made_at in changed_at:
        _DELAY.observe(max(0.0, now - made_at))  # the clocks of two machines may differ
    _BATCH.labels("handle").observe(seconds)
    _BATCH.labels("build").observe(written.compose_seconds)
    _BATCH.labels("index").observe(written.index_seconds)
    _count("live", written)


def chunks_written(written: WriteReport) -> None:
    """Record chunks that a job worker wrote."""
    _count("job", written)


def _count(source: str, written: WriteReport) -> None:
    for outcome, number in written.outcomes.items():
        if number:
            _WRITTEN.labels(source, outcome).inc(number)


def documents_written() -> float:
    """Return how many documents this process has written or deleted."""
    samples = (sample for family in _WRITTEN.collect() for sample in family.samples)
    return sum(sample.value for sample in samples if sample.labels["outcome"] in ("indexed", "deleted"))


class _Gauges:
    """Values of gauges, as prometheus_client's writer takes them."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for metric, by_labels in self._values.items():
            family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in by_labels.items():
                family.add_metric(labels, value)
            yield family


def render(gauges: Values) -> bytes:
    """Return all metrics in Prometheus' text format, with these gauges."""
    servers = exposition.generate_latest(_Gauges(gauges))  # it only calls `collect`
    return exposition.generate_latest(_REGISTRY) + servers
