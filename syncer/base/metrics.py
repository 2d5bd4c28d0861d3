"""Metrics of this process, by the operator's question.

`syncer.monitoring.gauges` has the others: what the servers say, which is the same in every daemon.

Guarantees: no label contains a value of a row. A batch of changes costs some tens of microseconds here.
"""

from __future__ import annotations

from collections.abc import Mapping
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


DELAY: Final = _measured(
    Histogram,
    Question.KEEPING_UP,
    "syncer_commit_to_indexed_seconds",
    "From a change until every affected document is written or left to a job; its count is the number of changes that "
    "were handled. Begins when the statement ran, so it "
    "includes the rest of the transaction: Postgres does not report when a transaction was committed.",
    buckets=_DELAYS,
)
BATCH: Final = _measured(
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
    "there or, for a refresh, the same content), dead_lettered.",
    *("source", "outcome"),
)
INCIDENTS: Final = _measured(
    Counter,
    Question.WRONG,
    "syncer_incidents_total",
    "records_lost: Kafka has lost records, or some are unreadable. job_failed: a job failed with an unexpected error. "
    "affects_failed: an affects query failed on a batch, so that all documents are refreshed. "
    "backlog_given_up: the outbox exceeded relay.outbox_bytes_max, so that all documents are refreshed.",
    "kind",
)
for _kind in ("records_lost", "job_failed", "affects_failed", "backlog_given_up"):
    INCIDENTS.labels(_kind)  # so that each is 0 from the start
_measured(
    Gauge, Question.WRONG, "syncer_build_info", "1; its label is the version that this daemon runs.", "version"
).labels(version("syncer-cdc")).set(1)


def count(source: str, report: WriteReport) -> None:
    """Count documents that were written for ``live`` changes, or for a ``job``."""
    for outcome, number in report.outcomes.items():
        if number:
            _WRITTEN.labels(source, outcome).inc(number)


def documents_written() -> float:
    """Return how many documents this process has written or deleted."""
    samples = (sample for family in _WRITTEN.collect() for sample in family.samples)
    return sum(sample.value for sample in samples if sample.labels["outcome"] in ("indexed", "deleted"))


def render(gauges: Values) -> bytes:
    """Return all metrics in Prometheus' text format, with these gauges."""
    registry = CollectorRegistry()
    for metric, by_labels in gauges.items():
        gauge = Gauge(metric.name, metric.meaning, metric.labels, registry=registry)
        for labels, value in by_labels.items():
            (gauge.labels(*labels) if labels else gauge).set(value)
    return exposition.generate_latest(_REGISTRY) + exposition.generate_latest(registry)
