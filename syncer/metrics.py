"""Metrics: what is counted and measured, grouped by the question that an operator asks.

    keeping up   how long a change takes, what waits, how fast it goes
    stuck        who leads, who has last done something, what is held back
    wrong        what could not be written or read, what was tried again, what was found to differ

Owns every name, and what it means: `CATALOGUE`, from which docs/metrics.md is written. What a stage of this process
does is counted as it logs it. What is asked of the servers is shown by `SURVEYED` as the survey last found it, all of
it at once; what a server does not say is left out, so that no old number looks like a new one.

Guarantees: no label has a value of a row; how many series there are depends on the documents, the partitions, the
stages and the unfinished jobs, and on nothing else. A batch of changes costs some tens of microseconds here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter, ProcessCollector, exposition

from syncer import collectors
from syncer.collectors import REGISTRY, Delays, Question, Survey, counter, gauge, histogram

CONTENT_TYPE: Final = exposition.CONTENT_TYPE_LATEST
CATALOGUE: Final = collectors.CATALOGUE
"""Every metric, by its name."""

ProcessCollector(registry=REGISTRY)
SURVEYED: Final = Survey()

# Is it keeping up?

COMMIT_TO_INDEXED: Final = Delays(
    "syncer_worker_commit_to_indexed_seconds",
    "From a change until every document that it touches is written, or left to a job. Begins when the statement ran: "
    "what its transaction took after it counts too, since Postgres does not say when that was committed.",
)
COMMIT_TO_SEARCHABLE: Final = Delays(
    "syncer_worker_commit_to_searchable_seconds",
    "The same, until a search finds the document: of one document now and then, of the oldest change of its batch.",
)
INDEXED_TO_SEARCHABLE: Final = Delays(
    "syncer_worker_indexed_to_searchable_seconds",
    "From the answer of Elasticsearch until a search finds the document: its refresh_interval, mostly.",
)
_PUBLISHED = counter(
    "syncer_relay_published_changes_total", Question.KEEPING_UP, "Changes that Kafka has acknowledged."
)
_RELAY_BATCH = histogram(
    "syncer_relay_batch_seconds", Question.KEEPING_UP, "From the query of a batch until its cursor is saved."
)
_HANDLED = counter("syncer_worker_handled_changes_total", Question.KEEPING_UP, "Changes that are done.")
_WORKER_BATCH = histogram(
    "syncer_worker_batch_seconds", Question.KEEPING_UP, "From the receipt of a batch until all of it is written."
)
_WORKER_COMPOSE = histogram(
    "syncer_worker_compose_seconds", Question.KEEPING_UP, "How much of that Postgres took to read documents."
)
_WORKER_INDEX = histogram(
    "syncer_worker_index_seconds",
    Question.KEEPING_UP,
    "What Elasticsearch took for a batch: its requests are sent side by side, so that this may be more than all of it.",
)
_WORKER_DOCUMENTS = counter(
    "syncer_worker_written_documents_total",
    Question.KEEPING_UP,
    "Documents that live changes touched, by what became of them: indexed, deleted, superseded (something at least as "
    "new was there), parked.",
    "outcome",
)
_REFRESHER_DOCUMENTS = counter(
    "syncer_refresher_written_documents_total", Question.KEEPING_UP, "The same of documents of jobs.", "outcome"
)
OUTBOX_WAITING: Final = SURVEYED.metric(
    "syncer_outbox_waiting_changes", Question.KEEPING_UP, "Committed changes that are not published."
)
OUTBOX_LAG: Final = SURVEYED.metric(
    "syncer_outbox_lag_seconds", Question.KEEPING_UP, "The age of the oldest of them; 0 if there is none."
)
TOPIC_WAITING: Final = SURVEYED.metric(
    "syncer_topic_waiting_records", Question.KEEPING_UP, "Published changes that no worker has done.", "partition"
)
TOPIC_LAG: Final = SURVEYED.metric(
    "syncer_topic_lag_seconds",
    Question.KEEPING_UP,
    "For how long the oldest of them has waited, as far back as this daemon has looked; 0 if there is none.",
)
LAG: Final = SURVEYED.metric(
    "syncer_lag_seconds", Question.KEEPING_UP, "The greater of both: how far documents may be behind."
)
WORKERS: Final = SURVEYED.metric(
    "syncer_worker_members", Question.KEEPING_UP, "Workers in the consumer group, of all daemons."
)
INDEX_DOCUMENTS: Final = SURVEYED.metric(
    "syncer_index_documents",
    Question.KEEPING_UP,
    "Documents that a search of an index finds.",
    *("document", "index", "role"),
)
_JOB = ("job_id", "kind", "document")  # Prometheus has a "job" of its own, which hides ours
JOB_TOTAL: Final = SURVEYED.metric(
    "syncer_job_documents", Question.KEEPING_UP, "Documents of an unfinished job, once they are listed.", *_JOB
)
JOB_DONE: Final = SURVEYED.metric("syncer_job_done_documents", Question.KEEPING_UP, "How many of them are done.", *_JOB)
JOB_RATE: Final = SURVEYED.metric(
    "syncer_job_documents_per_second", Question.KEEPING_UP, "How fast that goes; left out if nothing is written.", *_JOB
)
JOB_ETA: Final = SURVEYED.metric(
    "syncer_job_eta_seconds",
    Question.KEEPING_UP,
    "How long the rest of it takes, as far as it is listed.",
    *_JOB,
)

# Is anything stuck?

_LEADS = gauge("syncer_relay_leads", Question.STUCK, "1 if the relay of this daemon leads, 0 if it stands by.")
LEADERS: Final = SURVEYED.metric(
    "syncer_relay_leaders", Question.STUCK, "1 if a relay leads, of whatever daemon; 0 if none does."
)
_PROGRESS = gauge(
    "syncer_stage_progress_timestamp_seconds",
    Question.STUCK,
    "When a stage has last done something: published, written, finished a page; in Unix time.",
    "stage",
)
BEAT: Final = SURVEYED.metric(
    "syncer_stage_beat_timestamp_seconds",
    Question.STUCK,
    "When a stage was last seen to go on, be it only to wait or to try again; in Unix time.",
    "stage",
)
_TROUBLED = gauge(
    "syncer_stage_is_troubled", Question.STUCK, "1 while a stage tries the same again and again.", "stage"
)
ANSWERED: Final = SURVEYED.metric(
    "syncer_survey_is_answered",
    Question.STUCK,
    "1 if a server has answered the survey: postgres, kafka, elasticsearch. If it is 0, what that server says is left "
    "out.",
    "server",
)
ANSWER_SECONDS: Final = SURVEYED.metric(
    "syncer_survey_answer_seconds", Question.STUCK, "How long it took to answer.", "server"
)
SURVEYED_AT: Final = SURVEYED.metric(
    "syncer_survey_timestamp_seconds", Question.STUCK, "When the servers were last asked; in Unix time."
)
TRANSACTION: Final = SURVEYED.metric(
    "syncer_postgres_oldest_transaction_seconds",
    Question.STUCK,
    "The age of the oldest transaction in the database: kind open, or prepared. What it has changed is in no document "
    "until it commits, its segment of the outbox is not emptied, and no dead row is given back. Of other roles only "
    "if syncer's may see them: pg_read_all_stats.",
    "kind",
)
OUTBOX_BYTES: Final = SURVEYED.metric(
    "syncer_outbox_bytes", Question.STUCK, "What the outbox takes on disk, published rows that are kept back included."
)
OUTBOX_SEGMENTS: Final = SURVEYED.metric(
    "syncer_outbox_used_segments",
    Question.STUCK,
    "How many of the outbox's 8 segments have rows; more than 2: they are held.",
)
HALTED: Final = SURVEYED.metric(
    "syncer_document_is_halted", Question.STUCK, "1 if a document cannot go on in an index.", *("document", "index")
)
UNWELL: Final = SURVEYED.metric(
    "syncer_document_is_unwell",
    Question.STUCK,
    "1 if an index takes no documents for now, so that its changes wait in a job, and the others go on.",
    *("document", "index"),
)
UNFILLED: Final = SURVEYED.metric(
    "syncer_document_is_unfilled", Question.STUCK, "1 until every document has been written once.", "document"
)
JOB_PAUSED: Final = SURVEYED.metric(
    "syncer_job_is_paused",
    Question.STUCK,
    "1 if an unfinished job is paused, or its document halted, or its index takes no documents for now.",
    *_JOB,
)

# Is anything wrong?

_RETRIES = counter("syncer_stage_retries_total", Question.WRONG, "Attempts that failed and were made again.", "stage")
_PARKED = counter(
    "syncer_writer_parked_documents_total",
    Question.WRONG,
    "Documents that could not be written and became dead letters.",
    "document",
)
DEAD_LETTERS: Final = SURVEYED.metric(
    "syncer_document_dead_letters", Question.WRONG, "Documents that are parked now.", "document"
)
_UNREADABLE = counter(
    "syncer_worker_unreadable_records_total", Question.WRONG, "Records of the topic that were no changes."
)
UNREADABLE: Final = SURVEYED.metric(
    "syncer_topic_unreadable_records", Question.WRONG, "Such records that nobody has decided on."
)
_UNPLACED = counter(
    "syncer_worker_unplaced_batches_total",
    Question.WRONG,
    "Batches on which an affects query failed, so that all of the document was refreshed.",
    "document",
)
_LOSSES = counter("syncer_topic_losses_total", Question.WRONG, "How often records were gone before they were handled.")
EPOCH: Final = SURVEYED.metric(
    "syncer_incarnation_epoch", Question.WRONG, "The epoch of versions; it grows with each failover and restore."
)
_JOB_FAILURES = counter(
    "syncer_job_failures_total", Question.WRONG, "Jobs that failed for a reason that nobody foresaw."
)
DRIFTED: Final = SURVEYED.metric(
    "syncer_verify_drifted_documents",
    Question.WRONG,
    "How many documents the last `syncer verify` left different from their SELECT.",
    "document",
)
VERIFIED_AT: Final = SURVEYED.metric(
    "syncer_verify_timestamp_seconds", Question.WRONG, "When that was; in Unix time.", "document"
)


# What stages tell


def published(changes: int, *, seconds: float) -> None:
    """The relay has published a batch."""
    _PUBLISHED.inc(changes)
    _RELAY_BATCH.observe(seconds)
    progressed("relay")


def leads(*, is_leader: bool) -> None:
    """Whether the relay of this process leads."""
    _LEADS.set(is_leader)


def handled(stage: str, changed_at: Sequence[float], outcomes: Mapping[str, int], timings: Timings) -> None:
    """A worker has done a batch of changes.

    Args:
        stage: The worker's name.
        changed_at: When each change was made, in Unix time.
        outcomes: How many documents came to which end.
        timings: How long it took.
    """
    now = time.time()
    _HANDLED.inc(len(changed_at))
    COMMIT_TO_INDEXED.note([now - one for one in changed_at])
    _count(_WORKER_DOCUMENTS, outcomes)
    _WORKER_BATCH.observe(timings.seconds)
    _WORKER_COMPOSE.observe(timings.compose_seconds)
    _WORKER_INDEX.observe(timings.index_seconds)
    progressed(stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long a batch took.

    Args:
        seconds: From its receipt until it was done.
        compose_seconds: Spent in Postgres.
        index_seconds: Spent in Elasticsearch, by all requests together.
    """

    seconds: float
    compose_seconds: float
    index_seconds: float


def pages_written(stage: str, outcomes: Mapping[str, int]) -> None:
    """A refresher has written pages of jobs."""
    _count(_REFRESHER_DOCUMENTS, outcomes)
    progressed(stage)


def _count(by_outcome: Counter, outcomes: Mapping[str, int]) -> None:
    for outcome, number in outcomes.items():
        if number:
            by_outcome.labels(outcome).inc(number)


def progressed(stage: str) -> None:
    """A stage has done something."""
    _PROGRESS.labels(stage).set(time.time())


def retried(stage: str) -> None:
    """An attempt of a stage has failed, and is made again."""
    _RETRIES.labels(stage).inc()
    _TROUBLED.labels(stage).set(1)


def recovered(stage: str) -> None:
    """An attempt of a stage has succeeded."""
    _TROUBLED.labels(stage).set(0)


def parked(document: str, documents: int) -> None:
    """Documents have become dead letters."""
    _PARKED.labels(document).inc(documents)


def unreadable(records: int) -> None:
    """Records of the topic are no changes."""
    _UNREADABLE.inc(records)


def unplaced(document: str, batches: int) -> None:
    """An affects query has failed on the data of changes."""
    _UNPLACED.labels(document).inc(batches)


def lost() -> None:
    """Records are gone from the topic, or it is another one."""
    _LOSSES.inc()


def job_failed() -> None:
    """A job has failed."""
    _JOB_FAILURES.inc()


def know(document: str) -> None:
    """There is such a document: what was not counted of it is 0, so that the first one that is counts as growth."""
    for by_document in (_PARKED, _UNPLACED):
        by_document.labels(document)


def render() -> bytes:
    """All of them, as Prometheus reads it."""
    return exposition.generate_latest(REGISTRY)
