"""Metrics, grouped by the operator's question. `CATALOGUE` has the name and meaning of each, for docs/metrics.md.

A component of this process counts its work. What the servers say is the same in every daemon; `render` is given it.
What a server did not answer is left out, so that stale figures never look current; only the lag goes on growing.

Guarantees: no label contains a value of a row. The number of series depends only on the documents, daemons, components
and unfinished jobs. A batch of changes costs some tens of microseconds here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Final

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

from syncer.base.write_report import WriteReport

CONTENT_TYPE: Final = exposition.CONTENT_TYPE_LATEST
_REGISTRY: Final = CollectorRegistry()
_STEPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DELAYS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series
ProcessCollector(registry=_REGISTRY)


class Question(StrEnum):
    """The operator's question that a metric answers."""

    KEEPING_UP = "Is it keeping up?"
    STUCK = "Is anything stuck?"
    WRONG = "Is anything wrong?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, as it is scraped; ``meaning`` is its help text, ``kind`` is counter, gauge or histogram.

    If ``is_polled``, its value comes from the servers, and so is the same in every daemon.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    question: Question
    meaning: str
    is_polled: bool

    @property
    def series(self) -> tuple[str, ...]:
        """The series names that a query may use."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


CATALOGUE: Final[dict[str, Metric]] = {}
"""Every metric, by its name."""
Values = Mapping[Metric, Mapping[tuple[str, ...], float]]
"""The value of each metric that is polled, by the values of its labels."""


def _known(
    name: str, question: Question, meaning: str, *labels: str, kind: str = "gauge", is_polled: bool = True
) -> Metric:
    CATALOGUE[name] = Metric(
        name=name, kind=kind, labels=labels, question=question, meaning=meaning, is_polled=is_polled
    )
    return CATALOGUE[name]


def _counter(name: str, question: Question, meaning: str, *labels: str) -> Counter:
    _known(name, question, meaning, *labels, kind="counter", is_polled=False)
    return Counter(name.removesuffix("_total"), meaning, labels, registry=_REGISTRY)


def _histogram(name: str, meaning: str, *labels: str, buckets: Sequence[float]) -> Histogram:
    _known(name, Question.KEEPING_UP, meaning, *labels, kind="histogram", is_polled=False)
    return Histogram(name, meaning, labels, buckets=buckets, registry=_REGISTRY)


# Is it keeping up?

LAG: Final = _known(
    "syncer_lag_seconds",
    Question.KEEPING_UP,
    "Age of the oldest committed change that the document's index does not show yet; 0 if there is none. It waits in "
    "the outbox, in the topic, or in a fan-out, refresh or initial load; or the document is suspended. While a server "
    "is silent, what it last reported to wait is taken to wait still.",
    "document",
)
WAITING: Final = _known(
    "syncer_waiting_changes",
    Question.KEEPING_UP,
    "Committed changes that wait: in the outbox, unread; or published, which workers have not handled.",
    "place",
)
_DELAY = _histogram(
    "syncer_commit_to_indexed_seconds",
    "From a change until every affected document is written or left to a job; its count is the number of changes that "
    "were handled. Begins when the statement ran, so it "
    "includes the rest of the transaction: Postgres does not report when a transaction was committed.",
    buckets=_DELAYS,
)
_BATCH = _histogram(
    "syncer_batch_seconds",
    "Duration of each step of a batch: publish (query to saved cursor, with Kafka), handle (receipt until all is "
    "written), and within it build (in Postgres) and index (in Elasticsearch), summed over concurrent requests.",
    "step",
    buckets=_STEPS,
)
_WRITTEN = _counter(
    "syncer_written_documents_total",
    Question.KEEPING_UP,
    "Documents of live changes and of jobs, by outcome: indexed, deleted, skipped (a version at least as new is "
    "there), dead_lettered.",
    *("source", "outcome"),
)
_JOB = ("job_id", "kind", "document")  # not "job": Prometheus has a label of that name, which hides ours
JOB_TOTAL: Final = _known(
    "syncer_job_documents", Question.KEEPING_UP, "Documents of an unfinished job; an estimate at first.", *_JOB
)
JOB_DONE: Final = _known(
    "syncer_job_done_documents", Question.KEEPING_UP, "Documents of an unfinished job that are done.", *_JOB
)

# Is anything stuck?

SERVER: Final = _known(
    "syncer_server_is_answering",
    Question.STUCK,
    "1 if a server answers: postgres, elasticsearch, and kafka if it is used. If 0, what it would say is left out.",
    "server",
)
COMPONENTS: Final = _known(
    "syncer_components",
    Question.STUCK,
    "Components of all daemons that report: leader (one at most), worker, job_worker.",
    "kind",
)
TROUBLE: Final = _known(
    "syncer_trouble_seconds",
    Question.STUCK,
    "For how long a component of a daemon has been retrying, or has shown no heartbeat; 0 if it works. The component "
    "daemon stands for the process: it has not reported for so long.",
    *("host", "component"),
)
STATE: Final = _known(
    "syncer_document_state",
    Question.STUCK,
    "1 if a document is suspended, incomplete (not every document was written once), or alias_wrong (searches find "
    "other documents than those of its current index).",
    *("document", "state"),
)
JOB_PAUSED: Final = _known(
    "syncer_job_is_paused", Question.STUCK, "1 if an unfinished job is paused, or its document is suspended.", *_JOB
)
TRANSACTION: Final = _known(
    "syncer_oldest_transaction_seconds",
    Question.STUCK,
    "Age of the oldest transaction in the database: kind open, or prepared. Until it commits, no document shows its "
    "changes, its outbox segment is not emptied, and dead rows are not vacuumed. Transactions of other roles are "
    "visible only with pg_read_all_stats.",
    "kind",
)
OUTBOX_BYTES: Final = _known(
    "syncer_outbox_bytes", Question.STUCK, "Size of the outbox on disk, including rows that cannot be removed yet."
)
OUTBOX_SEGMENTS: Final = _known(
    "syncer_outbox_used_segments",
    Question.STUCK,
    "How many of the outbox's 8 segments have rows. More than 2: an old transaction holds them.",
)

# Is anything wrong?

PROBLEMS: Final = _known(
    "syncer_problems", Question.WRONG, "Problems that `syncer status` names and that do not pass by themselves."
)
DEAD_LETTERS: Final = _known("syncer_dead_letters", Question.WRONG, "Documents that could not be written.", "document")
DRIFTED: Final = _known(
    "syncer_drifted_documents",
    Question.WRONG,
    "Documents that still differed from their SELECT after the last `syncer verify`.",
    "document",
)
VERIFIED_AT: Final = _known(
    "syncer_verified_timestamp_seconds", Question.WRONG, "When `syncer verify` last ran; in Unix time.", "document"
)
EPOCH: Final = _known("syncer_epoch", Question.WRONG, "The epoch of versions; it grows with each failover and restore.")
_INCIDENTS = _counter(
    "syncer_incidents_total",
    Question.WRONG,
    "records_lost: Kafka has lost records, or some are unreadable. job_failed: a job failed with an unexpected error. "
    "affects_failed: an affects query failed on a batch, so that all documents are written again.",
    "kind",
)
_BUILD = _known(
    "syncer_build_info",
    Question.WRONG,
    "1; its label is the version that this daemon runs.",
    "version",
    is_polled=False,
)
Gauge(_BUILD.name, _BUILD.meaning, _BUILD.labels, registry=_REGISTRY).labels(version("syncer-cdc")).set(1)

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
    return sum(
        sample.value
        for family in _WRITTEN.collect()
        for sample in family.samples
        if sample.labels["outcome"] in ("indexed", "deleted")
    )


class _Polled:
    """What the servers say, as prometheus_client's writer takes it."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for metric, by_labels in self._values.items():
            family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in by_labels.items():
                family.add_metric(labels, value)
            yield family


def render(polled: Values) -> bytes:
    """Return all metrics in Prometheus' text format, with these values of what is polled."""
    servers = exposition.generate_latest(_Polled(polled))  # it only calls `collect`
    return exposition.generate_latest(_REGISTRY) + servers
