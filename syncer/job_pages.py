"""Pages of jobs: taken by lanes, finished, given back.

A lane is whoever writes pages, with a number of its own and a connection for them; it is alive as long as that session
is. Guarantees: a page is in the hands of one lane at a time, unless that one is dead or stalled; it is counted once,
however many have written it; all lanes together write no more than a job's rate. Who takes or counts holds the job's
row, so that what it says is true of its pages; that row is all that lanes wait for one another for.

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

STALLED_SECONDS = 60.0
"""How long a page may be in hand before another lane may have it, unless the lane says `keep`."""
BURST_SECONDS = 1.0
"""How much of its rate a job that was slower may make up for at once."""

_ENTER = "SELECT number, pg_advisory_lock($1::bigint | number) FROM (SELECT nextval('syncer.lane') AS number) AS drawn"
_ALIVE = sql.SQL("""
SELECT l.objid::bigint FROM pg_locks AS l
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid::bigint = $1::bigint >> 32
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
""")
_COUNT_ALIVE = sql.SQL("SELECT count(*) FROM ({alive}) AS alive").format(alive=_ALIVE)

# In all of these the job is locked before its pages. Who waited for it finds it as it is then, not as it was in the
# snapshot, since its conditions are on its own columns; so the pages are chosen by the numbers that it holds.
_TAKE = sql.SQL("""
WITH job AS (
    SELECT j.id, j.pages_next, j.pages_returned, CASE WHEN j.rate IS NULL THEN $2::integer ELSE 1 END AS pages,
           j.pages_total, set_config('synchronous_commit', 'off', true)
    FROM syncer.job AS j JOIN syncer.document AS d USING (index_name, generation)
    WHERE j.state IN ('listed', 'swept') AND NOT j.is_paused AND d.halted IS NULL
      AND (j.pages_next < j.pages_total OR j.pages_returned > 0) AND j.next_at <= clock_timestamp()
    ORDER BY j.served_at, j.id
    LIMIT 1
    FOR NO KEY UPDATE OF j
), returned AS (
    SELECT p.job, p.number FROM job JOIN syncer.job_page AS p ON p.job = job.id
    WHERE job.pages_returned > 0 AND p.is_returned
    ORDER BY p.number
    LIMIT (SELECT pages FROM job)
    FOR UPDATE OF p
), fresh AS (
    SELECT job.id AS job, number
    FROM job, generate_series(job.pages_next, least(job.pages_next + job.pages, job.pages_total) - 1) AS number
    WHERE job.pages_returned = 0
), taken AS (
    UPDATE syncer.job_page AS p SET taken_by = $1, taken_at = clock_timestamp(), is_returned = false
    FROM (TABLE returned UNION ALL TABLE fresh) AS chosen
    WHERE p.job = chosen.job AND p.number = chosen.number
    RETURNING p.job, p.number, p.ids, p.everywhere
), served AS (
    UPDATE syncer.job AS j
    SET served_at = clock_timestamp(),
        started_at = coalesce(j.started_at, clock_timestamp()),
        measured_at = coalesce(j.measured_at, clock_timestamp()),
        next_at = CASE WHEN j.rate IS NULL THEN j.next_at
                       ELSE greatest(j.next_at, clock_timestamp() - {burst}::interval)
                            + t.documents / j.rate * interval '1 s' END,
        pages_next = CASE WHEN j.pages_returned = 0 THEN t.last + 1 ELSE j.pages_next END,
        pages_returned = CASE WHEN j.pages_returned = 0 THEN 0 ELSE j.pages_returned - t.pages END
    FROM (SELECT job, count(*) AS pages, max(number) AS last, sum(cardinality(ids)) AS documents
          FROM taken GROUP BY job) AS t
    WHERE j.id = t.job
    RETURNING j.id, j.document, j.index_name
)
SELECT taken.job, taken.number, served.document, served.index_name, taken.ids, taken.everywhere
FROM served JOIN taken ON taken.job = served.id
ORDER BY taken.number
""").format(burst=sql.Literal(f"{BURST_SECONDS} s"))
_FINISH = sql.SQL("""
WITH job AS (
    SELECT j.id, set_config('synchronous_commit', 'off', true) FROM syncer.job AS j
    WHERE j.id = ANY ($1) ORDER BY j.id FOR NO KEY UPDATE
), gone AS (
    DELETE FROM syncer.job_page AS p
    USING job, unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                      $7::float8[], $8::float8[])
               AS done (job, number, indexed, deleted, superseded, parked, compose_seconds, index_seconds)
    WHERE p.job = job.id AND p.job = done.job AND p.number = done.number
    RETURNING p.job, cardinality(p.ids) AS documents, p.is_returned,
              done.indexed, done.deleted, done.superseded, done.parked, done.compose_seconds, done.index_seconds
), counted AS (
    SELECT job, count(*) AS pages, count(*) FILTER (WHERE is_returned) AS returned, sum(documents) AS documents,
           sum(indexed) AS indexed, sum(deleted) AS deleted, sum(superseded) AS superseded, sum(parked) AS parked,
           sum(compose_seconds) AS compose_seconds, sum(index_seconds) AS index_seconds
    FROM gone GROUP BY job
)
UPDATE syncer.job AS j
SET pages_done = j.pages_done + c.pages,
    pages_returned = j.pages_returned - c.returned,
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
_GIVE_BACK = """
WITH job AS (
    SELECT j.id FROM syncer.job AS j WHERE j.id = ANY ($1) ORDER BY j.id FOR NO KEY UPDATE
), lost AS (
    UPDATE syncer.job_page AS p SET taken_by = NULL, taken_at = NULL, is_returned = true
    FROM job, unnest($1::bigint[], $2::integer[], $3::integer[], $4::timestamptz[]) AS held (job, number, lane, until)
    WHERE p.job = job.id AND p.job = held.job AND p.number = held.number
      AND p.taken_by = held.lane AND p.taken_at <= held.until
    RETURNING p.job
)
UPDATE syncer.job AS j SET pages_returned = j.pages_returned + l.pages
FROM (SELECT job, count(*) AS pages FROM lost GROUP BY job) AS l WHERE j.id = l.job
RETURNING l.pages
"""
_KEEP = """
UPDATE syncer.job_page AS p SET taken_at = clock_timestamp()
FROM unnest($2::bigint[], $3::integer[]) AS held (job, number)
WHERE p.job = held.job AND p.number = held.number AND p.taken_by = $1
"""
# The pages are read in a snapshot, the locks after it: a lane that has a page in the snapshot had its lock before.
_LOST = sql.SQL("""
SELECT p.job, p.number, p.taken_by, p.taken_at FROM syncer.job_page AS p
WHERE p.taken_by IS NOT NULL
  AND (p.taken_at < clock_timestamp() - make_interval(secs => $2) OR p.taken_by NOT IN ({alive}))
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

    Of no job that is paused, whose document is halted, or that has used up its rate; of one with a rate, one page.
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
    columns: list[list[Any]] = [
        [
            page.job,
            page.number,
            report.indexed,
            report.deleted,
            report.superseded,
            report.parked,
            report.compose_seconds,
            report.index_seconds,
        ]
        for page, report in done
    ]
    rows = connection.execute(_FINISH, [list(one) for one in zip(*columns, strict=True)], prepare=True)
    return sum(row[0] for row in rows)


def release(connection: Connection, lane: int, pages: Iterable[JobPage]) -> None:
    """Give pages back that are not written; they are taken next."""
    _give_back(connection, [(page.job, page.number, lane, "infinity") for page in pages])


def keep(connection: Connection, lane: int, pages: Iterable[JobPage]) -> None:
    """Say that pages are still in hand: to be called while servers are away, more often than `STALLED_SECONDS`."""
    held = list(pages)
    connection.execute(_KEEP, (lane, [page.job for page in held], [page.number for page in held]))


def reclaim(connection: Connection, *, stalled_seconds: float = STALLED_SECONDS) -> int:
    """Give back the pages of lanes that are dead, or have had them for too long; how many."""
    lost = connection.execute(_LOST, (int(AdvisoryLock.LANES), stalled_seconds)).fetchall()
    return _give_back(connection, lost)


def _give_back(connection: Connection, held: Sequence[Sequence[Any]]) -> int:
    """Give back those of the pages that are still in the same hands, and were not kept since."""
    if not held:
        return 0
    rows = connection.execute(_GIVE_BACK, [list(one) for one in zip(*held, strict=True)])
    return sum(row[0] for row in rows)
