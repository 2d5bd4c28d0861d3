"""Job: a row of ``syncer.job``, bulk work on the documents of one index. `syncer.jobs.queue` creates and changes jobs.

A job goes through these states:

    new ──▶ listing ──▶ listed ──▶ written ──▶ cleaned up ──▶ done
                           └── partial job ────────────────▲         and, from any: failed, cancelled

    new         listing has not begun; a new fan-out still takes up further causes. A job of given ids starts as listed
    listing     its ids are being listed; if the lister dies, the next one starts over
    listed      its chunks exist and are being written
    written     all chunks are written; the cleanup looks for documents that only Elasticsearch has
    cleaned up  the chunks of those orphans exist and are being written
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from syncer.base.errors import JobError
from syncer.base.formatting import amount
from syncer.base.postgres import Connection

MEASURED_SECONDS = 5
"""The window over which a job's rate is measured."""
_ENOUGH_DONE = 0.05
"""The share of its documents from which on a job's rate tells how long the rest will take."""

UNFINISHED = sql.SQL("j.state NOT IN ('done', 'failed', 'cancelled')")
"""A condition on ``syncer.job AS j``."""
_JOBS = """
SELECT j.id, j.kind, j.document, j.index_name, j.revision, j.state, j.is_paused, d.suspended IS NOT NULL,
       j.condition, (SELECT jsonb_object_agg(c.key, jsonb_array_length(c.value)) FROM jsonb_each(j.cause) AS c),
       j.rate, j.completes_load, j.sequence_numbers, j.documents_total, j.documents_done,
       j.indexed, j.deleted, j.skipped, j.dead_lettered, j.compose_seconds, j.index_seconds,
       CASE WHEN j.state NOT IN ('listed', 'cleaned_up') OR j.is_paused OR d.suspended IS NOT NULL THEN NULL
            WHEN j.measured_rate IS NULL OR clock_timestamp() - j.measured_at > {measured}
            THEN (j.documents_done - j.measured_done)
                 / nullif(extract(epoch FROM clock_timestamp() - j.measured_at)::float8, 0)
            ELSE j.measured_rate END,
       j.documents_done / nullif(extract(epoch FROM clock_timestamp() - j.started_at)::float8, 0),
       j.created_at, j.started_at, j.finished_at, j.error
FROM syncer.job AS j JOIN syncer.document AS d USING (index_name)
WHERE {which}
"""
_ONE = sql.SQL("j.id = $1")
_OF_INDEX = UNFINISHED + sql.SQL(" AND (j.index_name = $1 OR $1 IS NULL) ORDER BY j.id")
_FIRST_UNFINISHED = UNFINISHED + sql.SQL(" ORDER BY j.id LIMIT $1")
_LOCKED_OF_INDEX = UNFINISHED + sql.SQL(" AND j.index_name = $1 ORDER BY j.id FOR NO KEY UPDATE OF j")
_OF_IDS = sql.SQL("j.id = ANY ($1) ORDER BY j.id")
# A load may have taken up any change until it is listed. A load of an index that is not searched delays no wait.
_CAUSED_BY = UNFINISHED + sql.SQL("""
 AND j.kind = ANY ($1) AND d.name = ANY ($2) AND d.suspended IS NULL
 AND (j.caused_before > $3::xid8 OR j.kind = 'initial_load' AND j.state = 'new')
 AND (j.kind <> 'initial_load' OR d.role = 'current')
ORDER BY j.id""")
_INCOMPLETE = sql.SQL("""
SELECT d.index_name FROM syncer.document AS d
WHERE d.loaded_at IS NULL AND NOT EXISTS (
    SELECT FROM syncer.job AS j WHERE j.index_name = d.index_name AND j.completes_load AND {unfinished})
""").format(unfinished=UNFINISHED)
_FINISHED = sql.SQL("NOT (") + UNFINISHED + sql.SQL(") ORDER BY j.finished_at DESC, j.id DESC LIMIT $1")
# A job waits while an older one does the same: a refresh for a refresh, a fan-out for one with a cause in common. Later
# causes of the same rows join it meanwhile. So however often a table is truncated or an author renamed, two such jobs
# exist at a time.
_SHARES = """
EXISTS (SELECT c.key, i.value FROM jsonb_each({one}) AS c, jsonb_array_elements(c.value) AS i
        INTERSECT
        SELECT c.key, i.value FROM jsonb_each({other}) AS c, jsonb_array_elements(c.value) AS i)
"""
_WAITS = """
(j.kind IN ('refresh', 'fan_out') AND EXISTS (
    SELECT FROM syncer.job AS o
    WHERE o.index_name = j.index_name AND o.kind = j.kind AND o.id < j.id AND NOT o.is_paused AND o.rate IS NULL
      AND o.state NOT IN ('done', 'failed', 'cancelled') AND (j.kind = 'refresh' OR {shares})))
"""


def _waits(*causes: str) -> sql.Composed:
    """Return the condition that a new job waits for an older one if it has these causes."""
    shares = [sql.SQL(_SHARES).format(one=sql.SQL("o.cause"), other=sql.SQL(one)) for one in causes]
    return sql.SQL(_WAITS).format(shares=sql.SQL(" OR ").join(shares))


# A fan-out joins no job that then waits for rows other than its own.
_JOINABLE = sql.SQL("""
j.state = 'new' AND j.index_name = $1 AND (NOT {would_wait} OR {waits} AND {shares})
ORDER BY j.id FOR NO KEY UPDATE OF j
""").format(
    would_wait=_waits("j.cause", "$2::jsonb"),
    waits=_waits("j.cause"),
    shares=sql.SQL(_SHARES).format(one=sql.SQL("j.cause"), other=sql.SQL("$2::jsonb")),
)
# Fan-outs are quickest to list and come first.
_DUE = UNFINISHED + sql.SQL("""
 AND NOT (j.state = 'new' AND {waits})
 AND NOT j.is_paused AND d.suspended IS NULL AND d.revision = j.revision
 AND (j.state IN ('new', 'listing', 'written') OR j.chunks_left = 0)
ORDER BY j.kind <> 'fan_out', j.id
""").format(waits=_waits("j.cause"))


class JobKind(StrEnum):
    """Why a job exists."""

    BACKFILL = "backfill"
    """The whole document, on request."""
    INITIAL_LOAD = "initial_load"
    """The whole document, because it was activated."""
    REFRESH = "refresh"
    """The whole document, because something changed that names no documents: a table was truncated, changes may be lost
    (`syncer.recovery.lost_records`), or the document was suspended for a while (`syncer.recovery.resume`)."""
    FAN_OUT = "fan_out"
    """The documents that a change touches, when they are many."""
    PARTIAL = "partial"
    """Some documents, by a condition or by their ids, on request."""

    @property
    def is_whole(self) -> bool:
        """Whether it writes every document, and deletes those that only Elasticsearch has."""
        return self in _WHOLE

    @property
    def is_pending(self) -> bool:
        """Whether documents may be stale until it is done."""
        return self in PENDING

    def covers(self, other: JobKind) -> bool:
        """Whether a new job of this kind does all that the other would, and is pending if the other is."""
        if other is JobKind.FAN_OUT:
            return self is other or (self.is_whole and self.is_pending)
        return self.is_whole and other.is_whole and _WHOLE.index(self) >= _WHOLE.index(other)


_WHOLE = (JobKind.BACKFILL, JobKind.REFRESH, JobKind.INITIAL_LOAD)
"""In order: each does all that the ones before it do."""
PENDING = (JobKind.INITIAL_LOAD, JobKind.REFRESH, JobKind.FAN_OUT)
"""Until such a job is done, documents may be stale."""


class JobState(StrEnum):
    """A job's progress: see the module."""

    NEW = "new"
    LISTING = "listing"
    LISTED = "listed"
    WRITTEN = "written"
    CLEANED_UP = "cleaned_up"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it was when it was read.

    Args:
        revision: The revision that it writes; activating another revision cancels it.
        is_paused: If set, its chunks are not taken.
        is_suspended: Whether it waits because its document is suspended.
        where: For a partial backfill by condition: the condition on the root's columns.
        cause: For a fan-out: how many changed rows caused it, by table.
        rate: The limit in documents per second, over all job workers; None for no limit.
        completes_load: Whether the document counts as loaded once the job is done.
        sequence_numbers: The greatest ``_seq_no`` of each shard before the first document was written.
        documents_total: How many documents it has to write; None until they are listed. The cleanup adds to it.
        deleted: Documents deleted, or known to be absent.
        skipped: Documents not written because the index has the same or a newer version.
        compose_seconds: Time spent in Postgres, summed over all job workers.
        index_seconds: Time spent in Elasticsearch, likewise.
        documents_per_second: Over the last few seconds; None if unknown, or if nothing is being written.
        average_per_second: Since its first chunk was taken; None before.
        started_at: When its first chunk was taken.
        finished_at: When it was done, failed or cancelled.
        error: Why it failed or was cancelled; further lines say what to do.
    """

    id: int
    kind: JobKind
    document: str
    index_name: str
    revision: int
    state: JobState
    is_paused: bool
    is_suspended: bool
    where: str | None
    cause: dict[str, int] | None
    rate: float | None
    completes_load: bool
    sequence_numbers: dict[int, int] | None
    documents_total: int | None
    documents_done: int
    indexed: int
    deleted: int
    skipped: int
    dead_lettered: int
    compose_seconds: float
    index_seconds: float
    documents_per_second: float | None
    average_per_second: float | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None

    @property
    def reason(self) -> str:
        """Its kind and what caused it: tables and numbers of changed rows, never their contents."""
        caused = [f"{relation}, {amount(rows, 'row')}" for relation, rows in sorted((self.cause or {}).items())]
        return f"{self.kind}: {', '.join(caused)}" if caused else self.kind

    @property
    def documents_left(self) -> int | None:
        """How many listed documents are not done; None until they are listed."""
        return None if self.documents_total is None else max(0, self.documents_total - self.documents_done)

    @property
    def eta_seconds(self) -> float | None:
        """How long the listed rest will take; None if unknown.

        A pause of Elasticsearch must not make hours of seconds: the average counts if it is the higher rate, and
        nothing is said before some documents are done.
        """
        if self.documents_per_second is None or not self.documents_total:
            return None
        if self.documents_done < _ENOUGH_DONE * self.documents_total:
            return None
        rate = max(self.documents_per_second, self.average_per_second or 0)
        return (self.documents_left or 0) / rate if rate else None

    def as_json(self) -> dict[str, Any]:
        """The job as plain data."""
        plain = {name: one.isoformat() if isinstance(one, datetime) else one for name, one in asdict(self).items()}
        return {**plain, "documents_left": self.documents_left, "eta_seconds": self.eta_seconds}


def find(connection: Connection, job_id: int) -> Job:
    """Return one job.

    Raises:
        JobError: There is no such job, or it was pruned.
    """
    found = _read(connection, _ONE, job_id)
    if not found:
        raise JobError(
            f"There is no job {job_id}",
            hint="Finished jobs are deleted after a while, or with their index. To see all: syncer jobs list",
        )
    return found[0]


def unfinished(connection: Connection, index_name: str | None = None) -> list[Job]:
    """Return the unfinished jobs of one index, or of all, oldest first."""
    return _read(connection, _OF_INDEX, index_name)


def some(connection: Connection, ids: Sequence[int]) -> list[Job]:
    """Return those of these jobs that still exist."""
    return _read(connection, _OF_IDS, list(ids))


def caused_by(connection: Connection, xid: int, documents: Sequence[str]) -> list[Job]:
    """Return the unfinished jobs of these documents that a transaction may have caused. Ask once it was handled.

    A job that was created before the transaction had its id is not included, unless a later cause has joined it.
    """
    return _read(connection, _CAUSED_BY, list(PENDING), list(documents), str(xid))


def incomplete(connection: Connection) -> set[str]:
    """Return the indices whose documents may be stale without an unfinished job that makes up for it."""
    return {row[0] for row in connection.execute(_INCOMPLETE)}


def recent(connection: Connection, *, unfinished_max: int | None = None, finished_max: int | None = None) -> list[Job]:
    """Return the unfinished jobs, oldest first, then the finished ones, latest first; a limit holds for either kind."""
    return _read(connection, _FIRST_UNFINISHED, unfinished_max) + _read(connection, _FINISHED, finished_max)


def locked_unfinished(connection: Connection, index_name: str) -> list[Job]:
    """Return the unfinished jobs of one index, locked until the caller's transaction ends."""
    return _read(connection, _LOCKED_OF_INDEX, index_name)


def locked_joinable(connection: Connection, index_name: str, cause: Jsonb) -> list[Job]:
    """Return the new jobs of one index that a fan-out of this cause may join, oldest first.

    Listing cannot begin until the caller's transaction ends. A job that waits for an older one is joined only if it has
    a cause in common, and none begins to wait because it is joined. So a cause waits for no other rows than its own.
    """
    return _read(connection, _JOINABLE, index_name, cause)


def due(connection: Connection) -> list[Job]:
    """Return the jobs that need a step other than writing a chunk: fan-outs first, then the oldest.

    `listing.list_chunks` takes NEW and LISTING, `listing.cleanup` takes WRITTEN, `queue.advance` LISTED and CLEANED_UP.
    Jobs that are paused or suspended are not included, nor those that wait for an older one like them.
    """
    return _read(connection, _DUE)


def _read(connection: Connection, which: sql.Composable, *parameters: object) -> list[Job]:
    query = sql.SQL(_JOBS).format(which=which, measured=sql.Literal(f"{MEASURED_SECONDS} s"))
    return [_job(row) for row in connection.execute(query, parameters)]


def _job(row: Sequence[Any]) -> Job:
    values: dict[str, Any] = dict(zip(_NAMES, row, strict=True))
    numbers: dict[str, int] | None = values["sequence_numbers"]
    return Job(
        **values
        | {
            "kind": JobKind(values["kind"]),
            "state": JobState(values["state"]),
            "sequence_numbers": None if numbers is None else {int(shard): one for shard, one in numbers.items()},
        }
    )


_NAMES = [one.name for one in fields(Job)]
