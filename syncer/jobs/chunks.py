"""Chunks of jobs: taken by job workers, and deleted once they are written.

A chunk in hand is an advisory lock of the job worker's session. It ends with the session, so a chunk of a job worker
that dies is free at once. Postgres also ends a session that is silent for `SILENT_SECONDS`: that of a stopped process.

Guarantees: one job worker at a time holds a chunk, and only the one that deletes it counts it. Taking and
counting lock the job's row, so that its counters match its chunks. Job workers wait for one another only on that row.

Commits here do not wait for the disk, and a crash of Postgres may lose them. A finished chunk is then there again,
uncounted; writing it twice is harmless.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from syncer.base.model import WriteReport
from syncer.base.postgres import AdvisoryLock, Connection, value
from syncer.jobs.model import UNFINISHED

SILENT_SECONDS = 120.0
"""Longer than a request to Elasticsearch takes, during which a job worker may be silent."""
_LOOK_SECONDS = 1.0
"""How often to look for chunks that dead job workers have left."""

# One plan for good, by index scan, whether it is made while there are few chunks or many.
_ENTER = """
SELECT pg_advisory_lock_shared($1), set_config('idle_session_timeout', $2, false),
       set_config('enable_seqscan', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false)
"""
_ALIVE = """
SELECT count(*) FROM pg_locks AS l
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.mode = 'ShareLock'
  AND l.classid::bigint << 32 | l.objid::bigint = $1::bigint
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_IS_ANY = f"""
SELECT EXISTS (SELECT FROM syncer.job AS j WHERE {UNFINISHED})
    OR EXISTS (SELECT FROM syncer.document WHERE suspended IS NOT NULL)
"""
_OPEN = "j.state IN ('writing', 'cleaning_up') AND NOT j.is_paused AND d.suspended IS NULL"
_KEY = f"{int(AdvisoryLock.CHUNKS)}::bigint | (p.id & 4294967295)"

# Each of the following statements locks the job before its chunks. A statement that has waited for the lock sees the
# job as it is now, but the chunks as in its snapshot. So the job's own columns say what to take. A chunk that is
# missing from the snapshot has a greater number than all chunks in it.
# Rules: a-chunk-in-hand-is-a-lock, only-a-refresh-compares.
_TAKE = f"""
WITH job AS (
    SELECT j.id, j.index_name, j.chunks_next, j.kind = 'refresh' AND j.state = 'writing' AS compares,
           set_config('synchronous_commit', 'off', true)
    FROM syncer.job AS j JOIN syncer.document AS d USING (index_name, revision)
    WHERE {_OPEN} AND j.chunks_next < j.chunks_end
    ORDER BY j.served_at, j.id
    LIMIT 1
    FOR NO KEY UPDATE OF j
), taken AS MATERIALIZED (
    SELECT p.id, p.job, p.number, job.index_name, p.ids, p.everywhere, job.compares, pg_try_advisory_lock({_KEY})
    FROM job JOIN syncer.job_chunk AS p ON p.job = job.id AND p.number = job.chunks_next
), served AS (
    UPDATE syncer.job AS j
    SET served_at = clock_timestamp(), chunks_next = t.number + 1
    FROM taken AS t WHERE j.id = t.job
)
SELECT id, job, number, index_name, ids, everywhere, compares FROM taken
"""
# The requests of a dead job worker may still be in flight. Rule: what-is-done-again-is-not-compared.
# The lock is tried for one chunk after the other, until one is free. A session could lock its own ones once more.
_LOCK_LEFT = f"""
SELECT p.id, p.job, p.number FROM (
    SELECT p.id, p.job, p.number FROM syncer.job AS j JOIN syncer.document AS d USING (index_name, revision)
    JOIN syncer.job_chunk AS p ON p.job = j.id AND p.number < j.chunks_next
    WHERE {_OPEN} AND p.id <> ALL ($1) OFFSET 0
) AS p WHERE pg_try_advisory_lock({_KEY}) LIMIT 1
"""
_READ = """
SELECT p.id, p.job, p.number, j.index_name, p.ids, p.everywhere, false
FROM syncer.job AS j JOIN syncer.job_chunk AS p ON p.job = j.id WHERE p.job = $1 AND p.number = $2
"""
_UNLOCK = f"SELECT pg_advisory_unlock({_KEY}) FROM unnest($1::bigint[]) AS p (id)"
# Rule: count-what-you-delete.
_FINISH = """
WITH job AS (
    SELECT j.id, set_config('synchronous_commit', 'off', true) FROM syncer.job AS j WHERE j.id = $1 FOR NO KEY UPDATE
), gone AS (
    DELETE FROM syncer.job_chunk AS p USING job WHERE p.job = job.id AND p.number = ANY ($2)
    RETURNING p.job, p.number, cardinality(p.ids) AS documents
), counted AS (
    SELECT job, count(*) AS chunks, sum(documents) AS documents,
           sum(indexed) AS indexed, sum(deleted) AS deleted, sum(skipped) AS skipped,
           sum(dead_lettered) AS dead_lettered
    FROM gone JOIN unnest($2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
                   AS done (number, indexed, deleted, skipped, dead_lettered) USING (number)
    GROUP BY job
)
UPDATE syncer.job AS j
SET chunks_left = j.chunks_left - c.chunks,
    documents_done = j.documents_done + c.documents,
    indexed = j.indexed + c.indexed,
    deleted = j.deleted + c.deleted,
    skipped = j.skipped + c.skipped,
    dead_lettered = j.dead_lettered + c.dead_lettered
FROM counted AS c WHERE j.id = c.job
RETURNING c.chunks
"""


class Chunk(NamedTuple):
    """Ids to write.

    Args:
        ids: As many as suited the lister: a job worker with less memory writes them in slices.
        everywhere: Whether copies may lie on any shard.
        compares: Whether documents that the index has as they are need not be written. Those that are looked for in
            the end are: what is wrong may be a second copy.
    """

    id: int
    job: int
    number: int
    index_name: str
    ids: list[str]
    everywhere: bool
    compares: bool


def job_workers_alive(connection: Connection) -> int:
    """Return how many job workers there are, in all daemons and commands."""
    return int(str(value(connection, _ALIVE, (int(AdvisoryLock.JOB_WORKERS),))))


def is_any_to_write(connection: Connection) -> bool:
    """Whether an idle job worker has anything to do: an unfinished job, or a suspended document to try."""
    return bool(value(connection, _IS_ANY))


class Chunks:
    """The chunks of all jobs, as one job worker takes them.

    Args:
        connection: Counts as a job worker from now on. What it has in hand is free once it is closed.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._in_hand: set[int] = set()
        self._looked_at = -math.inf
        connection.execute(_ENTER, (int(AdvisoryLock.JOB_WORKERS), f"{SILENT_SECONDS:.0f}s"))

    def take(self) -> Chunk | None:
        """Take a chunk that a dead job worker has left, or the next one of the least recently served job.

        Not of jobs that are paused or suspended.
        """
        chunk = self._take_left() if time.monotonic() - self._looked_at >= _LOOK_SECONDS else None
        chunk = chunk or self._fetch(_TAKE)
        if chunk is not None:
            self._in_hand.add(chunk.id)
        return chunk

    def _take_left(self) -> Chunk | None:
        while free := self._connection.execute(_LOCK_LEFT, (list(self._in_hand),), prepare=True).fetchone():
            # Its holder may have deleted it before it gave up the lock.
            if (chunk := self._fetch(_READ, *free[1:])) is not None:
                return chunk
            self._connection.execute(_UNLOCK, ([free[0]],))
        self._looked_at = time.monotonic()
        return None

    def _fetch(self, query: str, *parameters: object) -> Chunk | None:
        row = self._connection.execute(query, parameters, prepare=True).fetchone()
        return None if row is None else Chunk(*row)

    def finish(self, ended: Sequence[tuple[Chunk, WriteReport | None]]) -> int:
        """Delete and count chunks that are written; return how many of them were there. Give up all locks.

        The others were dropped with their job, or another job worker has finished them. A chunk without a report is not
        written, and can be taken again.
        """
        by_job: dict[int, list[tuple[int, ...]]] = {}
        for chunk, report in ended:
            self._in_hand.discard(chunk.id)
            if report is not None:
                row = (chunk.number, report.indexed, report.deleted, report.skipped, report.dead_lettered)
                by_job.setdefault(chunk.job, []).append(row)
        counted = 0
        for job_id, rows in by_job.items():
            columns = [list(column) for column in zip(*rows, strict=True)]
            counted += sum(self._connection.execute(_FINISH, (job_id, *columns), prepare=True).fetchone() or ())
        self._connection.execute(_UNLOCK, ([chunk.id for chunk, _ in ended],), prepare=True)
        return counted
