"""Pages of jobs: taken by lanes, finished, given back.

A lane is whoever writes pages, with a number of its own and a connection for them; it is alive as long as that session
is. Guarantees: a page is in the hands of one lane at a time, and is counted once, however many have written it; pages
of a lane that is dead or stalled are given to others; all lanes together write no more than a job's rate. Pages are
taken in the order of their numbers. Who takes or counts holds the job's row, so that what it says of its pages is
true; that row is all that lanes wait for one another for.

Commits of this module are not waited for to be on disk, and may be lost in a crash of Postgres: then a page that was
finished is there again, uncounted, and writing it twice is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from syncer.job import MEASURED_SECONDS
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.writer import WriteReport

STALLED_SECONDS = 20.0
"""How long a page may be in hand before another lane may have it, unless the lane says `keep`."""
BURST_SECONDS = 1.0
"""How much of its rate a job that was slower may make up for at once."""

# One plan for good: by index, whether it is made while there are few pages or many.
_ENTER = """
SELECT number, pg_advisory_lock($1::bigint | number),
       set_config('enable_seqscan', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false)
FROM (SELECT nextval('syncer.lane') AS number) AS drawn
"""
_ALIVE = sql.SQL("""
SELECT l.objid::bigint FROM pg_locks AS l
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid::bigint = $1::bigint >> 32
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
""")
_COUNT_ALIVE = sql.SQL("SELECT count(*) FROM ({alive}) AS alive").format(alive=_ALIVE)

# In all of these the job is locked before its pages. Who has waited for it finds it as it is then, and not as it was in
# the statement's snapshot: so what is taken depends on the job's own columns. A page that the snapshot does not
# have yet has a greater number than all that it has.
_TAKE = sql.SQL("""
WITH job AS (
    SELECT j.id, j.document, j.index_name, j.pages_next,
           least(j.pages_end, j.pages_next + CASE WHEN j.rate IS NULL THEN $2::integer ELSE 1 END) AS pages_end,
           set_config('synchronous_commit', 'off', true)
    FROM syncer.job AS j JOIN syncer.document AS d USING (index_name, generation)
    WHERE j.state IN ('listed', 'swept') AND NOT j.is_paused AND d.halted IS NULL AND d.unwell IS NULL
      AND j.pages_next < j.pages_end AND j.next_at <= clock_timestamp()
    ORDER BY j.served_at, j.id
    LIMIT 1
    FOR NO KEY UPDATE OF j
), taken AS (
    UPDATE syncer.job_page AS p SET taken_by = $1, taken_at = clock_timestamp()
    FROM job
    WHERE p.job = job.id AND p.number >= job.pages_next AND p.number < job.pages_end
    RETURNING p.job, p.number, job.document, job.index_name, p.ids, p.everywhere
), served AS (
    UPDATE syncer.job AS j
    SET served_at = clock_timestamp(),
        started_at = coalesce(j.started_at, clock_timestamp()),
        measured_at = coalesce(j.measured_at, clock_timestamp()),
        pages_next = t.last + 1,
        next_at = CASE WHEN j.rate IS NULL THEN j.next_at
                       ELSE greatest(j.next_at, clock_timestamp() - {burst}::interval)
                            + t.documents / j.rate * interval '1 s' END
    FROM (SELECT job, max(number) AS last, sum(cardinality(ids)) AS documents FROM taken GROUP BY job) AS t
    WHERE j.id = t.job
)
TABLE taken ORDER BY number
""").format(burst=sql.Literal(f"{BURST_SECONDS} s"))
_FINISH = sql.SQL("""
WITH job AS (
    SELECT j.id, set_config('synchronous_commit', 'off', true) FROM syncer.job AS j WHERE j.id = $1 FOR NO KEY UPDATE
), gone AS (
    DELETE FROM syncer.job_page AS p USING job WHERE p.job = job.id AND p.number = ANY ($2)
    RETURNING p.job, p.number, cardinality(p.ids) AS documents
), counted AS (
    SELECT job, count(*) AS pages, sum(documents) AS documents,
           sum(indexed) AS indexed, sum(deleted) AS deleted, sum(superseded) AS superseded, sum(parked) AS parked,
           sum(compose_seconds) AS compose_seconds, sum(index_seconds) AS index_seconds
    FROM gone JOIN unnest($2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                          $7::float8[], $8::float8[])
                   AS done (number, indexed, deleted, superseded, parked, compose_seconds, index_seconds)
              USING (number)
    GROUP BY job
)
UPDATE syncer.job AS j
SET pages_left = j.pages_left - c.pages,
    documents_done = j.documents_done + c.documents,
    indexed = j.indexed + c.indexed,
    deleted = j.deleted + c.deleted,
    superseded = j.superseded + c.superseded,
    parked = j.parked + c.parked,
    compose_seconds = j.compose_seconds + c.compose_seconds,
    index_seconds = j.index_seconds + c.index_seconds,
    measured_rate = CASE WHEN clock_timestamp() - j.measured_at < {measured}::interval THEN j.measured_rate
                         ELSE (j.documents_done + c.documents - j.measured_done)
                              / extract(epoch FROM clock_timestamp() - j.measured_at) END,
    measured_done = CASE WHEN clock_timestamp() - j.measured_at < {measured}::interval THEN j.measured_done
                         ELSE j.documents_done + c.documents END,
    measured_at = CASE WHEN clock_timestamp() - j.measured_at < {measured}::interval THEN j.measured_at
                       ELSE clock_timestamp() END
FROM counted AS c WHERE j.id = c.job
RETURNING c.pages
""").format(measured=sql.Literal(f"{MEASURED_SECONDS} s"))
# It gets another number, so that under one number a page is only ever in one lane's hands: whoever had it can no longer
# finish it, nor give it back once more. A page that was kept since it was looked at stays.
_GIVE_BACK = """
WITH job AS (
    SELECT j.id, j.pages_end FROM syncer.job AS j WHERE j.id = $1 FOR NO KEY UPDATE
), lost AS (
    UPDATE syncer.job_page AS p SET number = job.pages_end, taken_by = NULL, taken_at = NULL
    FROM job
    WHERE p.job = job.id AND p.number = $2 AND p.taken_at <= $3
    RETURNING p.job
)
UPDATE syncer.job AS j SET pages_end = j.pages_end + 1 FROM lost WHERE j.id = lost.job
"""
_KEEP = "UPDATE syncer.job_page SET taken_at = clock_timestamp() WHERE job = $1 AND number = $2"
# The pages are read in a snapshot, the locks after it: a lane that has a page in the snapshot had its lock before.
_LOST = sql.SQL("""
SELECT p.job, p.number, p.taken_at
FROM syncer.job AS j JOIN syncer.job_page AS p ON p.job = j.id AND p.number < j.pages_next
WHERE p.taken_at < clock_timestamp() - make_interval(secs => $2) OR p.taken_by NOT IN ({alive})
""").format(alive=_ALIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Some ids to write.

    Args:
        job: The job's id.
        number: Which of its pages.
        document: The document's name.
        index_name: Where to write them.
        ids: Which. As many as whoever listed them thought right: a lane with less memory writes them in slices.
        everywhere: Whether copies may lie on any shard.
    """

    job: int
    number: int
    document: str
    index_name: str
    ids: list[str]
    everywhere: bool


def enter(connection: Connection) -> int:
    """Become a lane, for as long as the session lasts; its number."""
    return int(str(value(connection, _ENTER, (int(AdvisoryLock.LANES),))))


def lanes_alive(connection: Connection) -> int:
    """How many lanes there are, in all daemons and commands."""
    return int(str(value(connection, _COUNT_ALIVE, (int(AdvisoryLock.LANES),))))


def take(connection: Connection, lane: int, *, pages_max: int = 1) -> list[JobPage]:
    """The next pages of the job that was served least recently, now in the hands of the lane; empty if there are none.

    Of no job that is paused, whose document is halted, whose index is unwell, or that has used up its rate; of one with
    a rate, one page.
    """
    rows = connection.execute(_TAKE, (lane, pages_max), prepare=True).fetchall()
    return [
        JobPage(job=job, number=number, document=document, index_name=index_name, ids=ids, everywhere=everywhere)
        for job, number, document, index_name, ids, everywhere in rows
    ]


def finish(connection: Connection, done: Sequence[tuple[JobPage, WriteReport]]) -> int:
    """Count pages that are written; how many were still to be counted.

    The others were finished meanwhile by another lane, or their job was cancelled.
    """
    by_job: dict[int, list[tuple[Any, ...]]] = {}
    for page, report in done:
        counts = (report.indexed, report.deleted, report.superseded, report.parked)
        row = (page.number, *counts, report.compose_seconds, report.index_seconds)
        by_job.setdefault(page.job, []).append(row)
    return sum(_finish(connection, job_id, rows) for job_id, rows in by_job.items())


def _finish(connection: Connection, job_id: int, rows: Sequence[tuple[Any, ...]]) -> int:
    columns = [list(one) for one in zip(*rows, strict=True)]
    counted = connection.execute(_FINISH, (job_id, *columns), prepare=True).fetchone()
    return counted[0] if counted else 0


def release(connection: Connection, pages: Iterable[JobPage]) -> None:
    """Give pages back that are not written."""
    for page in pages:
        connection.execute(_GIVE_BACK, (page.job, page.number, "infinity"))


def keep(connection: Connection, pages: Iterable[JobPage]) -> list[JobPage]:
    """Say that pages are still in hand: to be called while servers are away, more often than `STALLED_SECONDS`.

    Returns:
        Those that are not: their job was cancelled, or another lane was given them.
    """
    return [page for page in pages if not connection.execute(_KEEP, (page.job, page.number)).rowcount]


def reclaim(connection: Connection, *, stalled_seconds: float = STALLED_SECONDS) -> int:
    """Give back the pages of lanes that are dead, or have had them for too long; how many."""
    lost = connection.execute(_LOST, (int(AdvisoryLock.LANES), stalled_seconds)).fetchall()
    return sum(connection.execute(_GIVE_BACK, one).rowcount for one in lost)
