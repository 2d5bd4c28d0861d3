"""Metrics, grouped by the operator's question.

    keeping up   how long a change takes, what waits, how fast it goes
    stuck        the leader, each component's last progress, what is held back
    wrong        failed writes and reads, retries, drift found by verify

Owns the name and meaning of every metric: `CATALOGUE`, from which docs/metrics.md is generated. A component of this
process counts its work as it logs it. `POLLED` shows the last poll of the servers, always as a whole; values that a
server did not report are left out, so that stale figures never look current; only the lag goes on growing.

Guarantees: no label contains a value of a row. The number of series depends only on the documents, partitions,
components and unfinished jobs. A batch of changes costs some tens of microseconds here.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import Counter, ProcessCollector, exposition

from syncer.base import collectors
from syncer.base.collectors import REGISTRY, PollCollector, Question, counter, gauge, histogram
from syncer.base.write_report import WriteReport

CONTENT_TYPE: Final = exposition.CONTENT_TYPE_LATEST
CATALOGUE: Final = collectors.CATALOGUE
"""Every metric, by its name."""

ProcessCollector(registry=REGISTRY)
POLLED: Final = PollCollector()

# Is it keeping up?

_COMMIT_TO_INDEXED = histogram(
    "syncer_worker_commit_to_indexed_seconds",
    "From a change until every affected document is written or left to a job. Begins when the statement ran, so it "
    "includes the rest of the transaction: Postgres does not report when a transaction was committed.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
_PUBLISHED = counter("syncer_relay_published_changes_total", Question.KEEPING_UP, "Changes acknowledged by Kafka.")
_RELAY_BATCH = histogram("syncer_relay_batch_seconds", "From the query of a batch until its cursor is saved.")
_HANDLED = counter("syncer_worker_handled_changes_total", Question.KEEPING_UP, "Changes handled.")
_WORKER_BATCH = histogram("syncer_worker_batch_seconds", "From the receipt of a batch until all of it is written.")
_WORKER_COMPOSE = histogram("syncer_worker_compose_seconds", "Time per batch that Postgres took to read documents.")
_WORKER_INDEX = histogram(
    "syncer_worker_index_seconds",
    "Time per batch that Elasticsearch took, summed over concurrent requests: may exceed the duration of the batch.",
)
_WORKER_DOCUMENTS = counter(
    "syncer_worker_written_documents_total",
    Question.KEEPING_UP,
    "Documents affected by live changes, by outcome: indexed, deleted, skipped (a version at least as new is there), "
    "dead_lettered.",
    "outcome",
)
_JOB_WORKER_DOCUMENTS = counter(
    "syncer_job_worker_written_documents_total", Question.KEEPING_UP, "Documents of jobs, by outcome.", "outcome"
)
OUTBOX_WAITING: Final = POLLED.metric(
    "syncer_outbox_waiting_changes", Question.KEEPING_UP, "Committed changes that are not published yet."
)
OUTBOX_LAG: Final = POLLED.metric(
    "syncer_outbox_lag_seconds", Question.KEEPING_UP, "Age of the oldest unpublished change; 0 if there is none."
)
TOPIC_WAITING: Final = POLLED.metric(
    "syncer_topic_waiting_changes",
    Question.KEEPING_UP,
    "Changes that the leader has read and no worker has handled yet.",
)
TOPIC_LAG: Final = POLLED.metric(
    "syncer_topic_lag_seconds",
    Question.KEEPING_UP,
    "Age of the oldest of them; 0 if there is none.",
)
LAG: Final = POLLED.metric(
    "syncer_lag_seconds",
    Question.KEEPING_UP,
    "Age of the oldest committed change that the document's index does not show yet; 0 if there is none. It waits in "
    "the outbox, in the topic, or in a fan-out, refresh or initial load; or the document is suspended. While a server "
    "is silent, what it last said to wait is taken to wait still.",
    "document",
)
WORKERS: Final = POLLED.metric("syncer_worker_members", Question.KEEPING_UP, "Connected workers, of all daemons.")
INDEX_DOCUMENTS: Final = POLLED.metric(
    "syncer_index_documents",
    Question.KEEPING_UP,
    "Documents that a search of an index finds.",
    *("document", "index", "role"),
)
_JOB = ("job_id", "kind", "document")  # not "job": Prometheus has a label of that name, which hides ours
JOB_TOTAL: Final = POLLED.metric(
    "syncer_job_documents", Question.KEEPING_UP, "Documents of an unfinished job that are listed so far.", *_JOB
)
JOB_DONE: Final = POLLED.metric(
    "syncer_job_done_documents", Question.KEEPING_UP, "Documents of an unfinished job that are done.", *_JOB
)
JOB_RATE: Final = POLLED.metric(
    "syncer_job_documents_per_second",
    Question.KEEPING_UP,
    "Speed of an unfinished job; left out if nothing is written.",
    *_JOB,
)
JOB_ETA: Final = POLLED.metric(
    "syncer_job_eta_seconds",
    Question.KEEPING_UP,
    "Time left for the listed documents of an unfinished job.",
    *_JOB,
)

# Is anything stuck?

LEADS: Final = gauge("syncer_relay_leads", Question.STUCK, "1 if the relay of this daemon leads, 0 if it stands by.")
LEADERS: Final = POLLED.metric(
    "syncer_relay_leaders", Question.STUCK, "1 if the relay of some daemon leads; 0 if none does."
)
_PROGRESS = gauge(
    "syncer_component_progress_timestamp_seconds",
    Question.STUCK,
    "When a component last made progress: published, wrote, finished a chunk; in Unix time.",
    "component",
)
BEAT: Final = POLLED.metric(
    "syncer_component_beat_timestamp_seconds",
    Question.STUCK,
    "Last heartbeat of a component, even if it only waits or retries; in Unix time.",
    "component",
)
_TROUBLED = gauge("syncer_component_is_troubled", Question.STUCK, "1 while a component keeps retrying.", "component")
ANSWERED: Final = POLLED.metric(
    "syncer_poll_is_answered",
    Question.STUCK,
    "1 if a server answered the poll: postgres, kafka, elasticsearch. If 0, the values of that server are left out.",
    "server",
)
ANSWER_SECONDS: Final = POLLED.metric(
    "syncer_poll_answer_seconds", Question.STUCK, "How long a server took to answer the poll.", "server"
)
POLLED_AT: Final = POLLED.metric(
    "syncer_poll_timestamp_seconds", Question.STUCK, "When the servers were last polled; in Unix time."
)
TRANSACTION: Final = POLLED.metric(
    "syncer_postgres_oldest_transaction_seconds",
    Question.STUCK,
    "Age of the oldest transaction in the database: kind open, or prepared. Until it commits, no document shows its "
    "changes, its outbox segment is not emptied, and dead rows are not vacuumed. Transactions of other roles are "
    "visible only with pg_read_all_stats.",
    "kind",
)
OUTBOX_BYTES: Final = POLLED.metric(
    "syncer_outbox_bytes",
    Question.STUCK,
    "Size of the outbox on disk, including published rows that cannot be removed yet.",
)
OUTBOX_SEGMENTS: Final = POLLED.metric(
    "syncer_outbox_used_segments",
    Question.STUCK,
    "How many of the outbox's 8 segments have rows. More than 2: an old transaction holds them.",
)
SUSPENDED: Final = POLLED.metric(
    "syncer_document_is_suspended", Question.STUCK, "1 if a document is suspended in an index.", *("document", "index")
)
INCOMPLETE: Final = POLLED.metric(
    "syncer_document_is_incomplete", Question.STUCK, "1 until every document has been written once.", "document"
)
SEARCHED_ALONE: Final = POLLED.metric(
    "syncer_document_alias_is_right",
    Question.STUCK,
    "1 if the alias of a document leads to its current index alone; 0 if searches find other documents, or none.",
    "document",
)
PROBLEMS: Final = POLLED.metric(
    "syncer_status_problems", Question.STUCK, "Problems that `syncer status` names and that do not pass by themselves."
)
JOB_PAUSED: Final = POLLED.metric(
    "syncer_job_is_paused",
    Question.STUCK,
    "1 if an unfinished job is paused, or its document is suspended.",
    *_JOB,
)

# Is anything wrong?

_BUILD = gauge(
    "syncer_build_info",
    Question.WRONG,
    "1; its labels are the versions of syncer and of Python that this daemon runs.",
    *("version", "python"),
)
_RETRIES = counter("syncer_component_retries_total", Question.WRONG, "Failed attempts that were retried.", "component")
DEAD_LETTERED: Final = counter(
    "syncer_writer_dead_lettered_documents_total",
    Question.WRONG,
    "Documents that could not be written and became dead letters.",
    "document",
)
DEAD_LETTERS: Final = POLLED.metric(
    "syncer_document_dead_letters", Question.WRONG, "Documents that are dead letters now.", "document"
)
UNRESOLVED: Final = counter(
    "syncer_worker_unresolved_batches_total",
    Question.WRONG,
    "Batches on which an affects query failed, so that every document of the definition is written again.",
    "document",
)
LOSSES: Final = counter(
    "syncer_topic_losses_total", Question.WRONG, "How often records were gone before they were handled, or unreadable."
)
EPOCH: Final = POLLED.metric(
    "syncer_cluster_identity_epoch", Question.WRONG, "The epoch of versions; it grows with each failover and restore."
)
JOB_FAILURES: Final = counter("syncer_job_failures_total", Question.WRONG, "Jobs that failed with an unexpected error.")
DRIFTED: Final = POLLED.metric(
    "syncer_verify_drifted_documents",
    Question.WRONG,
    "Documents that still differed from their SELECT after the last `syncer verify`.",
    "document",
)
VERIFIED_AT: Final = POLLED.metric(
    "syncer_verify_timestamp_seconds", Question.WRONG, "When `syncer verify` last ran; in Unix time.", "document"
)


# Called by components


def started() -> None:
    """Record which versions this process runs."""
    _BUILD.labels(version("syncer-cdc"), platform.python_version()).set(1)


def published(changes: int, *, seconds: float) -> None:
    """Record a batch that the relay published."""
    _PUBLISHED.inc(changes)
    _RELAY_BATCH.observe(seconds)
    progressed("relay")


def handled(component: str, changed_at: Sequence[float], written: WriteReport, *, seconds: float) -> None:
    """Record a finished batch of a worker: when its changes were made (Unix time), and what became of its documents."""
    now = time.time()
    _HANDLED.inc(len(changed_at))
    for one in changed_at:
        _COMMIT_TO_INDEXED.observe(max(0.0, now - one))  # the clocks of two machines may differ
    _count(_WORKER_DOCUMENTS, written)
    _WORKER_BATCH.observe(seconds)
    _WORKER_COMPOSE.observe(written.compose_seconds)
    _WORKER_INDEX.observe(written.index_seconds)
    progressed(component)


def chunks_written(component: str, written: WriteReport) -> None:
    """Record chunks that a job worker wrote."""
    _count(_JOB_WORKER_DOCUMENTS, written)
    progressed(component)


def _count(by_outcome: Counter, written: WriteReport) -> None:
    for outcome, number in written.outcomes.items():
        if number:
            by_outcome.labels(outcome).inc(number)


def progressed(component: str) -> None:
    """Record progress of a component."""
    _PROGRESS.labels(component).set(time.time())


def retried(component: str) -> None:
    """Record a failed attempt that will be retried."""
    _RETRIES.labels(component).inc()
    _TROUBLED.labels(component).set(1)


def recovered(component: str) -> None:
    """Record an attempt that succeeded."""
    _TROUBLED.labels(component).set(0)


def know(document: str) -> None:
    """Create a document's counters at 0, so that the first count shows as an increase."""
    for by_document in (DEAD_LETTERED, UNRESOLVED):
        by_document.labels(document)


def render() -> bytes:
    """Return all metrics in Prometheus' text format."""
    return exposition.generate_latest(REGISTRY)
