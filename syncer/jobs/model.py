"""Job: a row of ``syncer.job``, bulk work on the documents of one index. `syncer.jobs.queue` creates and changes jobs.

A job goes through these states:

    new ──▶ writing ──▶ cleaning_up ──▶ done
               └── some documents ───────▲         and, from any: failed, cancelled

    new          listing has not begun; a new fan-out still takes up further causes
    writing      its ids are listed range by range, and the chunks that exist are written
    cleaning_up  the documents that only Elasticsearch has are looked for, and written, which deletes them

A job of given ids has all its chunks from the beginning, and starts as ``writing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from syncer.base.errors import JobError
from syncer.base.formatting import amount
from syncer.base.postgres import Connection

FAN_OUTS_MAX = 8
"""How many fan-outs of an index are written at a time. Causes that come meanwhile join the next one."""
CHUNKS_AHEAD = 500
"""A job is listed further while it has fewer chunks left than this."""

UNFINISHED = "j.finished_at IS NULL"
"""A condition on ``syncer.job AS j``."""
_JOBS = """
SELECT j.id, j.kind, j.document, j.index_name, j.revision, j.state, j.is_listed, j.is_paused, d.suspended IS NOT NULL,
       (SELECT jsonb_object_agg(c.key, jsonb_array_length(c.value)) FROM jsonb_each(j.cause) AS c), j.occasion,
       j.completes_load, j.sequence_numbers, j.mark,
       CASE WHEN j.is_listed OR j.state = 'cleaning_up' THEN j.documents_listed
            WHEN j.documents_expected IS NOT NULL THEN greatest(j.documents_expected, j.documents_listed) END,
       j.documents_done, j.indexed, j.deleted, j.skipped, j.dead_lettered,
       CASE WHEN j.state IN ('writing', 'cleaning_up') AND NOT j.is_paused AND d.suspended IS NULL
            THEN j.documents_done / nullif(extract(epoch FROM clock_timestamp() - j.started_at)::float8, 0) END,
       j.created_at, j.started_at, j.finished_at, j.error
FROM syncer.job AS j JOIN syncer.document AS d USING (index_name)
WHERE """
# A load may have taken up any change until its listing begins. A load of an index that is not searched delays no wait.
_CAUSED_BY = f"""
{UNFINISHED} AND j.kind = ANY ($1) AND d.name = ANY ($2) AND d.suspended IS NULL
 AND (j.caused_before > $3::xid8 OR j.kind = 'initial_load' AND j.state = 'new')
 AND (j.kind <> 'initial_load' OR d.role = 'current')
ORDER BY j.id
"""
_INCOMPLETE = f"""
SELECT d.index_name FROM syncer.document AS d
WHERE d.loaded_at IS NULL AND NOT EXISTS (
    SELECT FROM syncer.job AS j WHERE j.index_name = d.index_name AND j.completes_load AND {UNFINISHED})
"""
# However often a table is truncated, two refreshes exist at a time. Fan-outs come first: they are listed at once.
_DUE = f"""
{UNFINISHED} AND NOT j.is_paused AND d.suspended IS NULL AND d.revision = j.revision
 AND CASE WHEN j.state = 'new' THEN (
              SELECT count(*) FROM (
                  SELECT FROM syncer.job AS o
                  WHERE o.index_name = j.index_name AND o.kind = j.kind AND o.id < j.id AND NOT o.is_paused
                    AND o.finished_at IS NULL
                  LIMIT {FAN_OUTS_MAX}
              ) AS earlier
          ) < CASE j.kind WHEN 'refresh' THEN 1 WHEN 'fan_out' THEN {FAN_OUTS_MAX} ELSE 2147483647 END
          WHEN j.state = 'writing' AND NOT j.is_listed THEN j.chunks_left < {CHUNKS_AHEAD}
          ELSE j.chunks_left = 0 END
ORDER BY j.kind <> 'fan_out', j.id
"""


class JobKind(StrEnum):
    """Why a job exists."""

    BACKFILL = "backfill"  # the whole document, on request
    INITIAL_LOAD = "initial_load"  # the whole document, because it was activated
    REFRESH = "refresh"  # the whole document, because something changed that names no documents, such as a TRUNCATE
    FAN_OUT = "fan_out"  # the documents that a change touches, when they are many
    RECOVERY = "recovery"  # the documents that were written since the last mark, after a failover
    PARTIAL = "partial"  # documents with given ids, on request

    @property
    def is_whole(self) -> bool:
        """Whether it writes every document, and deletes those that only Elasticsearch has."""
        return self in _WHOLE

    @property
    def is_pending(self) -> bool:
        """Whether documents may be stale until it is done."""
        return self in PENDING

    def covers(self, kind: JobKind) -> bool:
        """Whether a new job of this whole kind does all that one of the other would, and is pending if that is."""
        return self.is_whole and _WHOLE.index(self) >= _WHOLE.index(kind)


_WHOLE = (JobKind.BACKFILL, JobKind.REFRESH, JobKind.INITIAL_LOAD)
"""In order: each does all that the ones before it do."""
PENDING = (JobKind.INITIAL_LOAD, JobKind.REFRESH, JobKind.RECOVERY, JobKind.FAN_OUT)
"""Until such a job is done, documents may be stale."""


class JobState(StrEnum):
    """A job's progress: see the module."""

    NEW = "new"
    WRITING = "writing"
    CLEANING_UP = "cleaning_up"
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
        is_listed: Whether all chunks of its state exist.
        cause: For a fan-out: how many changed rows caused it, by table.
        occasion: For a refresh or a recovery: what made it necessary.
        completes_load: Whether the document counts as loaded once the job is done.
        sequence_numbers: The greatest ``_seq_no`` of each shard before the first document was written.
        mark: For a recovery: the position of the index at the last mark; None if there is none.
        documents_total: Until they are listed, an estimate, or None. The cleanup adds to it.
        deleted: Documents deleted, or known to be absent.
        documents_per_second: On average since its listing began; None if nothing is being written.
        error: Why it failed or was cancelled; further lines say what to do.
    """

    id: int
    kind: JobKind
    document: str
    index_name: str
    revision: int
    state: JobState
    is_listed: bool
    is_paused: bool
    is_suspended: bool
    cause: dict[str, int] | None
    occasion: str | None
    completes_load: bool
    sequence_numbers: dict[str, int] | None
    mark: dict[str, Any] | None
    documents_total: int | None
    documents_done: int
    indexed: int
    deleted: int
    skipped: int
    dead_lettered: int
    documents_per_second: float | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None

    @property
    def reason(self) -> str:
        """Its kind and what caused it: tables and numbers of changed rows, never their contents."""
        caused = [f"{relation}, {amount(rows, 'row')}" for relation, rows in sorted((self.cause or {}).items())]
        because = self.occasion or ", ".join(caused)
        return f"{self.kind}: {because}" if because else self.kind

    @property
    def documents_left(self) -> int | None:
        """How many documents are not done; None if that is unknown."""
        return None if self.documents_total is None else max(0, self.documents_total - self.documents_done)

    @property
    def eta_seconds(self) -> float | None:
        """How long the rest will take at this rate; None if that is unknown."""
        if not self.documents_per_second or self.documents_left is None:
            return None
        return self.documents_left / self.documents_per_second


def find(connection: Connection, job_id: int) -> Job:
    """Return one job.

    Raises:
        JobError: There is no such job, or it was pruned.
    """
    jobs = some(connection, [job_id])
    if not jobs:
        raise JobError(
            f"There is no job {job_id}",
            hint="Finished jobs are deleted after a while, or with their index. To see all: syncer jobs list",
        )
    return jobs[0]


def some(connection: Connection, ids: Sequence[int]) -> list[Job]:
    """Return those of these jobs that still exist."""
    return _select(connection, "j.id = ANY ($1) ORDER BY j.id", list(ids))


def unfinished(connection: Connection, index_name: str | None = None, *, limit: int | None = None) -> list[Job]:
    """Return the unfinished jobs of one index, or of all, oldest first."""
    which = f"{UNFINISHED} AND (j.index_name = $1 OR $1 IS NULL) ORDER BY j.id LIMIT $2"
    return _select(connection, which, index_name, limit)


def finished(connection: Connection, *, limit: int | None = None) -> list[Job]:
    """Return the finished jobs that are kept, latest first."""
    return _select(connection, f"NOT {UNFINISHED} ORDER BY j.finished_at DESC, j.id DESC LIMIT $1", limit)


def due(connection: Connection) -> list[Job]:
    """Return the jobs that need a step other than writing a chunk: fan-outs first, then the oldest.

    A step lists ids or orphans, or moves the job to its next state: see `syncer.worker.job_loop`.
    """
    return _select(connection, _DUE)


def caused_by(connection: Connection, xid: int, documents: Sequence[str]) -> list[Job]:
    """Return the unfinished jobs of these documents that a transaction may have caused. Ask once it was handled.

    A job that was created before the transaction had its id is not included, unless a later cause has joined it.
    """
    return _select(connection, _CAUSED_BY, list(PENDING), list(documents), str(xid))


def incomplete(connection: Connection) -> set[str]:
    """Return the indices whose documents may be stale without an unfinished job that makes up for it."""
    return {row[0] for row in connection.execute(_INCOMPLETE)}


def _select(connection: Connection, which: str, *parameters: object) -> list[Job]:
    names = [field.name for field in fields(Job)]
    rows = connection.execute(_JOBS + which, parameters).fetchall()
    columns: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
    return [Job(**{**job, "kind": JobKind(job["kind"]), "state": JobState(job["state"])}) for job in columns]
