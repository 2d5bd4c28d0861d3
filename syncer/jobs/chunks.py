"""Chunks of jobs: taken by job workers, finished, given back.

A job worker has a number and a connection of its own; it is alive as long as that session is.

Guarantees: one job worker at a time holds a chunk, and a chunk is counted once, however many have written it. Chunks of
dead or stalled job workers are given to others. All job workers together respect a job's rate. Chunks are taken in the
order of their numbers. Taking and counting lock the job's row, so that its counters match its chunks. Job workers wait
for one another only on that row.

Commits here do not wait for the disk, and a crash of Postgres may lose them. A finished chunk is then there again,
uncounted; writing it twice is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from syncer.base.postgres import AdvisoryLock, Connection, value
from syncer.base.write_report import WriteReport
from syncer.jobs.model import MEASURED_SECONDS, UNFINISHED

STALLED_SECONDS = 20.0
"""How long a chunk may be in hand before it is given to another job worker, unless its holder calls `keep`."""
BURST_SECONDS = 1.0
"""How many seconds' worth of its rate a job that fell behind may catch up at once."""

# One plan for good, by index scan, whether it is made while there are few chunks or many.
_ENTER = """
SELECT number, pg_advisory_lock($1::bigint | number),
       set_config('enable_seqscan', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false)
FROM (SELECT nextval('syncer.job_worker') AS number) AS assigned
"""
_ALIVE = """
SELECT l.objid::bigint FROM pg_locks AS l
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid::bigint = $1::bigint >> 32
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_COUNT_ALIVE = f"SELECT count(*) FROM ({_ALIVE}) AS alive"  # noqa: S608 - a constant of ours

_IS_ANY = sql.SQL("""
SELECT EXISTS (SELECT FROM syncer.job AS j WHERE {unfinished})
    OR EXISTS (SELECT FROM syncer.document WHERE suspended IS NOT NULL)
""").format(unfinished=UNFINISHED)

# Each of the following statements locks the job before its chunks. A statement that has waited for the lock sees the
# job as it is now, but the chunks as in its snapshot. So the job's own columns say what to take. A chunk that is
# missing from the snapshot has a greater number than all chunks in it.
_TAKE = """
WITH job AS (
    SELECT j.id, j.document, j.index_name, j.chunks_next, set_config('synchronous_commit', 'off', true)
    FROM syncer.job AS j JOIN syncer.document AS d USING (index_name, revision)
    WHERE j.state IN ('listed', 'cleaned_up') AND NOT j.is_paused AND d.suspended IS NULL
      AND j.chunks_next < j.chunks_end AND j.next_at <= clock_timestamp()
    ORDER BY j.served_at, j.id
    LIMIT 1
    FOR NO KEY UPDATE OF j
), taken AS (
    UPDATE syncer.job_chunk AS p SET taken_by = $1, taken_at = clock_timestamp()
    FROM job
    WHERE p.job = job.id AND p.number = job.chunks_next
    RETURNING p.job, p.number, job.document, job.index_name, p.ids, p.everywhere
), served AS (
    UPDATE syncer.job AS j
    SET served_at = clock_timestamp(),
        started_at = coalesce(j.started_at, clock_timestamp()),
        measured_at = coalesce(j.measured_at, clock_timestamp()),
        chunks_next = t.number + 1,
        next_at = CASE WHEN j.rate IS NULL THEN j.next_at
                       ELSE greatest(j.next_at, clock_timestamp() - $2::interval)
                            + cardinality(t.ids) / j.rate * interval '1 s' END
    FROM taken AS t WHERE j.id = t.job
)
TABLE taken
"""
_FINISH = """
WITH job AS (
    SELECT j.id, set_config('synchronous_commit', 'off', true) FROM syncer.job AS j WHERE j.id = $1 FOR NO KEY UPDATE
), gone AS (
    DELETE FROM syncer.job_chunk AS p USING job WHERE p.job = job.id AND p.number = ANY ($2)
    RETURNING p.job, p.number, cardinality(p.ids) AS documents
), counted AS (
    SELECT job, count(*) AS chunks, sum(documents) AS documents,
           sum(indexed) AS indexed, sum(deleted) AS deleted, sum(skipped) AS skipped,
           sum(dead_lettered) AS dead_lettered,
           sum(compose_seconds) AS compose_seconds, sum(index_seconds) AS index_seconds
    FROM gone JOIN unnest($2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                          $7::float8[], $8::float8[])
                   AS done (number, indexed, deleted, skipped, dead_lettered, compose_seconds, index_seconds)
              USING (number)
    GROUP BY job
)
UPDATE syncer.job AS j
SET chunks_left = j.chunks_left - c.chunks,
    documents_done = j.documents_done + c.documents,
    indexed = j.indexed + c.indexed,
    deleted = j.deleted + c.deleted,
    skipped = j.skipped + c.skipped,
    dead_lettered = j.dead_lettered + c.dead_lettered,
    compose_seconds = j.compose_seconds + c.compose_seconds,
    index_seconds = j.index_seconds + c.index_seconds,
    measured_rate = CASE WHEN clock_timestamp() - j.measured_at < $9::interval THEN j.measured_rate
                         ELSE (j.documents_done + c.documents - j.measured_done)
                              / extract(epoch FROM clock_timestamp() - j.measured_at) END,
    measured_done = CASE WHEN clock_timestamp() - j.measured_at < $9::interval THEN j.measured_done
                         ELSE j.documents_done + c.documents END,
    measured_at = CASE WHEN clock_timestamp() - j.measured_at < $9::interval THEN j.measured_at
                       ELSE clock_timestamp() END
FROM counted AS c WHERE j.id = c.job
RETURNING c.chunks
"""
# Chunks are taken in the order of their numbers, so the chunk gets a new number at the end. Under the old one its
# former holder can neither finish it nor give it back again. A chunk that was kept since it was looked at is not given
# back.
_GIVE_BACK = """
WITH job AS (
    SELECT j.id, j.chunks_end FROM syncer.job AS j WHERE j.id = $1 FOR NO KEY UPDATE
), lost AS (
    UPDATE syncer.job_chunk AS p SET number = job.chunks_end, taken_by = NULL, taken_at = NULL
    FROM job
    WHERE p.job = job.id AND p.number = $2 AND p.taken_at <= $3
    RETURNING p.job
)
UPDATE syncer.job AS j SET chunks_end = j.chunks_end + 1 FROM lost WHERE j.id = lost.job
"""
_KEEP = "UPDATE syncer.job_chunk SET taken_at = clock_timestamp() WHERE job = $1 AND number = $2"
# The chunks are read in a snapshot, the locks after it: a holder in the snapshot took its lock earlier.
_LOST = """
SELECT p.job, p.number, p.taken_at
FROM syncer.job AS j JOIN syncer.job_chunk AS p ON p.job = j.id AND p.number < j.chunks_next
WHERE p.taken_at < clock_timestamp() - make_interval(secs => $2) OR p.taken_by NOT IN ({alive})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Ids to write.

    Args:
        ids: As many as suited the lister: a job worker with less memory writes them in slices.
        everywhere: Whether copies may lie on any shard.
    """

    job: int
    number: int
    document: str
    index_name: str
    ids: list[str]
    everywhere: bool


def enter(connection: Connection) -> int:
    """Register the session as a job worker for as long as it lasts; return the worker's number."""
    return int(str(value(connection, _ENTER, (int(AdvisoryLock.JOB_WORKERS),))))


def job_workers_alive(connection: Connection) -> int:
    """Return how many job workers there are, in all daemons and commands."""
    return int(str(value(connection, _COUNT_ALIVE, (int(AdvisoryLock.JOB_WORKERS),))))


def is_any_to_write(connection: Connection) -> bool:
    """Whether an idle job worker has anything to do: an unfinished job, or a suspended document to try."""
    return bool(value(connection, _IS_ANY))


def take(connection: Connection, job_worker: int) -> Chunk | None:
    """Take the next chunk of the least recently served job for this job worker; None if there is none.

    Not of jobs that are paused, suspended, or have used up their rate.
    """
    row = connection.execute(_TAKE, (job_worker, f"{BURST_SECONDS} s"), prepare=True).fetchone()
    if row is None:
        return None
    job, number, document, index_name, ids, everywhere = row
    return Chunk(job=job, number=number, document=document, index_name=index_name, ids=ids, everywhere=everywhere)


def finish(connection: Connection, done: Sequence[tuple[Chunk, WriteReport]]) -> int:
    """Count chunks that are written; return how many of them were still to be counted.

    The others were finished meanwhile by another job worker, or their job was cancelled.
    """
    by_job: dict[int, list[tuple[Any, ...]]] = {}
    for chunk, report in done:
        counts = (report.indexed, report.deleted, report.skipped, report.dead_lettered)
        row = (chunk.number, *counts, report.compose_seconds, report.index_seconds)
        by_job.setdefault(chunk.job, []).append(row)
    return sum(_finish(connection, job_id, rows) for job_id, rows in by_job.items())


def _finish(connection: Connection, job_id: int, rows: Sequence[tuple[Any, ...]]) -> int:
    columns = [list(one) for one in zip(*rows, strict=True)]
    counted = connection.execute(_FINISH, (job_id, *columns, f"{MEASURED_SECONDS} s"), prepare=True).fetchone()
    return counted[0] if counted else 0


def release(connection: Connection, chunks: Iterable[Chunk]) -> None:
    """Give back chunks that are not written."""
    for chunk in chunks:
        connection.execute(_GIVE_BACK, (chunk.job, chunk.number, "infinity"))


def keep(connection: Connection, chunks: Iterable[Chunk]) -> list[Chunk]:
    """Renew the hold on chunks. While servers are down, call it more often than every `STALLED_SECONDS`.

    Returns:
        The chunks that are no longer held: their job was cancelled, or another job worker has them.
    """
    return [chunk for chunk in chunks if not connection.execute(_KEEP, (chunk.job, chunk.number)).rowcount]


def reclaim(connection: Connection, *, stalled_seconds: float = STALLED_SECONDS) -> int:
    """Give back the chunks of job workers that are dead or stalled; return how many."""
    lost = _lost(connection, stalled_seconds)
    return sum(connection.execute(_GIVE_BACK, one).rowcount for one in lost)


def _lost(connection: Connection, stalled_seconds: float) -> list[tuple[Any, ...]]:
    """Return the chunks of job workers that are dead or stalled: job, number, time of taking."""
    query = sql.SQL(_LOST).format(alive=sql.SQL(_ALIVE))
    return connection.execute(query, (int(AdvisoryLock.JOB_WORKERS), stalled_seconds)).fetchall()
