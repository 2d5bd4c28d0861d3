"""Listing: which documents a job writes, as pages of ids in Postgres.

Guarantees: the pages of a job are there all or none; one lister at a time, and one sweeper; the ids are those of a
statement that began after the job's state said ``listing``, with the document's relations locked against ALTER
TABLE, captured, and of the shape that the definition was applied to.

A fan-out leaves out what waits in another job, so that five renames in a row cost hardly more than one. Take a change
T that caused it, the snapshot S of its listing, and an id that T leads to. T was visible before its cause was put into
the job; that was committed while the job was new, so before its state said ``listing``; S was taken after. So S shows
T. The id is left out if S has it in a page, which nobody has taken, of a job of the same index and generation that is
owed and not paused. Whoever takes that page commits this after S was taken, or S would show it taken; only then he
draws, and composes in a snapshot that is later still: it shows T. That he dies, or gives the page back, changes
nothing: it is taken again, later. Nor does a lane that had it before and was held up: what it writes has a lesser
version. That other job counts as caused by T from then on, for who waits for T: see `syncer.passage`.

The page may go away unwritten only if its job is cancelled or fails, which S does not show, so that it comes later:
then the document counts as not filled, as loudly as if this job were cancelled; or a fill takes its place, which is
listed later. If that job is paused later, what was left to it waits until it goes on. Nobody waits for long: what is
left out is left to jobs without a rate that have at most `_LEFT_TIMES_MAX` times as much to write as this one would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from syncer import affected, condition, jobs
from syncer.errors import DocumentError, JobError
from syncer.job import OWED, Job, JobKind, find
from syncer.policy import Action, decide, is_of_data
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.reading import STAGE_LOCK_SECONDS, noting
from syncer.store import Document

_TRY_LOCK = "SELECT pg_try_advisory_lock($1::bigint | ($2::bigint & 4294967295))"
_UNLOCK = "SELECT pg_advisory_unlock($1::bigint | ($2::bigint & 4294967295))"
_LEFT_TIMES_MAX = 2

# Committed before the listing's snapshot, so that who finds the job still new knows that the snapshot comes after.
_BEGIN = """
UPDATE syncer.job SET state = 'listing', started_at = coalesce(started_at, clock_timestamp())
WHERE id = $1 AND state IN ('new', 'listing')
"""
# Whoever has read before this and writes after it finds that out, and reads again, since what he writes might else be
# taken for no stray: see `syncer.writer`. A job that looks for no strays leaves the writers alone.
# A fill takes up what was committed before its generation was, which whoever made it may not have seen.
_BEGIN_WHOLE = """
WITH document AS (
    UPDATE syncer.document SET listings = listings + 1
    WHERE index_name = (SELECT index_name FROM syncer.job WHERE id = $1 AND state IN ('new', 'listing'))
    RETURNING index_name
)
UPDATE syncer.job AS j
SET state = 'listing', started_at = coalesce(j.started_at, clock_timestamp()),
    caused_before = CASE WHEN j.kind = 'fill' THEN pg_snapshot_xmax(pg_current_snapshot()) ELSE j.caused_before END
FROM document WHERE j.id = $1 AND j.state IN ('new', 'listing') AND j.index_name = document.index_name
"""
_LIST = """
WITH {before} page AS (
    INSERT INTO syncer.job_page (job, number, ids)
    SELECT $1, number, array_agg(id)
    FROM (SELECT d._id::text AS id, (row_number() OVER () - 1) / $2::integer AS number
          FROM ({ids}) AS d WHERE d._id IS NOT NULL) AS listed
    GROUP BY number
    RETURNING cardinality(ids) AS documents
)
SELECT count(*), coalesce(sum(documents), 0)::bigint, {left_out} FROM page
"""
# The full join, behind a fence, is one by hash or merge, however few ids Postgres expects on either side.
_NOT_WAITING = """
touched (id) AS MATERIALIZED ({touched}),
waiting AS MATERIALIZED (
    SELECT w.id
    FROM syncer.job AS own
         JOIN syncer.job AS j USING (index_name, generation)
         JOIN syncer.job_page AS p ON p.job = j.id
         CROSS JOIN unnest(p.ids) AS w (id)
    WHERE own.id = $1 AND j.id <> own.id AND p.taken_by IS NULL
      AND j.kind = ANY ({owed}) AND NOT j.is_paused AND j.rate IS NULL AND j.state IN ('listed', 'swept')
      AND j.documents_total - j.documents_done <= {times} * (SELECT count(*) FROM touched)
), left_over AS MATERIALIZED (
    SELECT touched.id AS _id FROM touched FULL JOIN waiting USING (id) WHERE waiting.id IS NULL
),
"""
# Nobody adds to them any more: the job has been begun.
_POSTPONED = "postponed AS (DELETE FROM syncer.postponed WHERE job = $1 RETURNING id AS _id),"
_LEFT_OUT = "(SELECT count(*) FROM touched) - (SELECT count(*) FROM left_over)"
# Whoever waits for what has caused this job waits for those it has left documents to. In the order of ids, as by all
# who lock several.
_LEAVE_TO = """
WITH locked AS MATERIALIZED (
    SELECT j.id FROM syncer.job AS own JOIN syncer.job AS j USING (index_name, generation)
    WHERE own.id = $1 AND (j.id = own.id OR j.kind = ANY ($2) AND j.state IN ('listed', 'swept'))
    ORDER BY j.id FOR NO KEY UPDATE OF j
)
UPDATE syncer.job AS j SET caused_before = pg_snapshot_xmax(pg_current_snapshot())
FROM locked WHERE j.id = locked.id AND j.id <> $1
"""
_PUT_SELECTED = """
WITH page AS (
    INSERT INTO syncer.job_page (job, number, ids)
    SELECT {job}, number, array_agg(id)
    FROM (SELECT d._id AS id, (row_number() OVER () - 1) / {size}::integer AS number FROM ({ids}) AS d) AS listed
    GROUP BY number
    RETURNING cardinality(ids) AS documents
)
SELECT count(*), coalesce(sum(documents), 0)::bigint FROM page
"""
_PUT_PAGE = "INSERT INTO syncer.job_page (job, number, ids, everywhere) VALUES ($1, $2, $3, $4)"
_LISTED = """
UPDATE syncer.job
SET state = 'listed', pages_left = $2, pages_end = $2, documents_total = $3, left_out = $4,
    sequence_numbers = $5
WHERE id = $1 AND state = 'listing'
"""
_GIVEN = """
UPDATE syncer.job SET state = 'listed', pages_left = $2, pages_end = $2, documents_total = $3, generation = $4
WHERE id = $1
"""
# However long nothing is found to be put: what is locked meanwhile is this job's alone.
_TAKES_LONG = "SET LOCAL idle_in_transaction_session_timeout = 0"
_WRITTEN = "SELECT pages_end FROM syncer.job WHERE id = $1 AND state = 'written'"
_SWEPT = """
UPDATE syncer.job
SET state = 'swept', pages_left = $2, pages_end = pages_end + $2, documents_total = documents_total + $3,
    measured_at = clock_timestamp(), measured_done = documents_done, measured_rate = NULL
WHERE id = $1 AND state = 'written'
"""


def create_listed(
    connection: Connection,
    document: Document,
    kind: JobKind,
    ids: Iterable[str],
    *,
    page: int,
    rate: float | None = None,
) -> Job | None:
    """Make a job (PART or REPAIR) of these ids, in one transaction, or in the caller's: it is there with all of them.

    Args:
        connection: Postgres.
        document: Which, as it was last read.
        kind: PART or REPAIR.
        ids: Read as they come, never whole in memory. They may come from the same connection.
        page: How many ids a page has at most; one of a job with a rate has no more than a second's.
        rate: Documents per second at most.

    Returns:
        The job; None if the document's index is no longer in force.
    """
    assert not kind.is_whole  # noqa: S101 - what a whole job writes is listed by `list_pages`
    with connection.transaction():
        job_id = jobs.insert(connection, document, kind, document.generation, rate=rate)
        pages, documents = _put_pages(connection, job_id, ids, size=_size(page, rate))
        # Only now, so that nobody waits for the ids to come. A generation that came meanwhile has not cancelled it.
        generation = jobs.lock_document(connection, document.index_name)
        if generation is None:
            raise psycopg.Rollback
        connection.execute(_GIVEN, (job_id, pages, documents, generation))
        return find(connection, job_id)
    return None


def create_selected(
    connection: Connection,
    document: Document,
    kind: JobKind,
    ids: sql.Composable,
    parameters: Sequence[object],
    *,
    page: int,
) -> Job | None:
    """Make a job (PART) of the ids that a query on syncer's own tables finds: they never leave the server.

    Args:
        connection: Postgres.
        document: Which, as it was last read.
        kind: PART.
        ids: A query for the ids, as ``_id``.
        parameters: Those of the query, from ``$1`` on.
        page: How many ids a page has at most.

    Returns:
        The job; None if the document's index is no longer in force, or there are no such ids.
    """
    number = len(parameters)
    put = sql.SQL(_PUT_SELECTED).format(ids=ids, job=sql.SQL(f"${number + 1}"), size=sql.SQL(f"${number + 2}"))
    with connection.transaction():
        generation = jobs.lock_document(connection, document.index_name)
        if generation is None:
            return None
        job_id = jobs.insert(connection, document, kind, generation)
        row = connection.execute(put, (*parameters, job_id, page)).fetchone()
        assert row is not None  # noqa: S101 - an aggregate returns a row
        if not row[1]:
            raise psycopg.Rollback
        connection.execute(_GIVEN, (job_id, *row, generation))
        return find(connection, job_id)
    return None


def list_pages(
    connection: Connection,
    job: Job,
    document: Document,
    *,
    page: int,
    sequence_numbers: Callable[[], Mapping[int, int]] | None = None,
) -> bool:
    """List the ids of a job that is NEW or LISTING, on the server, in one statement.

    Whoever is killed in the middle leaves it to the next one, once Postgres has noticed.

    Args:
        connection: Postgres; in no transaction.
        job: Which.
        document: The definition in force for its index.
        page: How many ids a page has at most; one of a job with a rate has no more than a second's.
        sequence_numbers: Asks for the greatest ``_seq_no`` of each shard of the index; remembered for the sweep.

    Returns:
        Whether that is done. If not: somebody else is at it, or the job is no longer to be listed, or its condition
        failed on the data, which is now the job's error; or an affects query of a fan-out did, and a refresh of the
        whole document has taken its place.

    Raises:
        DocumentError: The document is to halt.
        psycopg.Error: To be tried again.
    """
    with _alone(connection, job) as is_alone:
        if not is_alone or document.generation != job.generation:
            return False
        if connection.execute(_BEGIN_WHOLE if job.kind.is_whole else _BEGIN, (job.id,)).rowcount == 0:
            return False
        job = find(connection, job.id)  # its cause may have grown until now
        try:
            # After it is known that we list, and before the first page: see `sweep`.
            numbers = None if sequence_numbers is None else sequence_numbers()
            return _list(connection, job, document, _size(page, job.rate), numbers)
        except JobError as error:
            jobs.fail(connection, job.id, f"{error.message}\n{error.hint}")
            return False
        except DocumentError as error:
            if job.kind is not JobKind.FAN_OUT or not is_of_data(error.__cause__):
                raise
            jobs.widen(connection, document, job.id, error.message)
            return False


def _list(
    connection: Connection, job: Job, document: Document, size: int, sequence_numbers: Mapping[int, int] | None
) -> bool:
    numbers = None if sequence_numbers is None else Jsonb({str(shard): one for shard, one in sequence_numbers.items()})
    is_listed = False
    with noting(connection, document, lock_seconds=STAGE_LOCK_SECONDS):
        row = _put_all(connection, job, document, size)
        if row[2]:
            connection.execute(_LEAVE_TO, (job.id, list(OWED)))
        is_listed = connection.execute(_LISTED, (job.id, *row, numbers)).rowcount == 1
        if not is_listed:  # cancelled meanwhile
            raise psycopg.Rollback
    return is_listed


def _put_all(connection: Connection, job: Job, document: Document, size: int) -> tuple[int, int, int]:
    """Put the pages of all ids of a job; how many pages, how many ids, and how many ids are left out."""
    try:
        row = connection.execute(_listing(job, document), (job.id, size)).fetchone()
    except psycopg.Error as error:
        if job.where is None or decide(error) is Action.RETRY:
            raise
        raise condition.refused(document, condition.words(error)) from error
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return row[0], row[1], row[2]


def _listing(job: Job, document: Document) -> sql.Composed:
    ids: sql.Composable
    before, left_out = sql.Composed([]), sql.SQL("0")
    if job.kind is JobKind.FAN_OUT:
        touched = affected.touched_by(document, job.cause or ())
        before = sql.SQL(_NOT_WAITING).format(touched=touched, owed=list(OWED), times=_LEFT_TIMES_MAX)
        ids, left_out = sql.SQL("TABLE left_over"), sql.SQL(_LEFT_OUT)
    elif job.kind is JobKind.CATCH_UP:
        before, ids = sql.Composed([sql.SQL(_POSTPONED)]), sql.SQL("TABLE postponed")
    elif job.where is not None:
        ids = condition.matching(document, job.where)
    else:
        ids = sql.SQL(document.dependencies.canonical_select)  # deparsed by Postgres
    return sql.SQL(_LIST).format(before=before, ids=ids, left_out=left_out)


def sweep(connection: Connection, job: Job, strays: Iterable[str], *, page: int) -> bool:
    """Make pages of ids that only Elasticsearch has, for a job that is WRITTEN: it is SWEPT then, with all of them.

    Why only what nobody has touched since the sequence numbers were read can be a stray: they were read after it was
    known that this job is being listed. A copy with a greater number was written after that, by somebody who either
    read after that too, so that what has removed the document since has a change that names it; or finds out once he
    has written, and reads again: see `syncer.writer`.

    Args:
        connection: Postgres; in no transaction. It is in one while the strays come.
        job: Which.
        strays: Ids, read as they come, and only if this is the only sweeper.
        page: How many ids a page has at most.

    Returns:
        Whether that is done. If not: somebody else is at it, or the job is no longer to be swept.
    """
    is_swept = False
    with _alone(connection, job) as is_alone, connection.transaction():
        connection.execute(_TAKES_LONG)
        written = connection.execute(_WRITTEN, (job.id,)).fetchone() if is_alone else None
        if written is None:
            return False
        size = _size(page, job.rate)
        put = _put_pages(connection, job.id, strays, size=size, first=written[0], everywhere=True)
        is_swept = connection.execute(_SWEPT, (job.id, *put)).rowcount == 1
        if not is_swept:  # cancelled meanwhile
            raise psycopg.Rollback
    return is_swept


@contextmanager
def _alone(connection: Connection, job: Job) -> Iterator[bool]:
    """Whether nobody else lists or sweeps this job, nor will until the end."""
    which = (int(AdvisoryLock.JOBS), job.id)
    if not value(connection, _TRY_LOCK, which):
        yield False
        return
    try:
        yield True
    finally:
        connection.execute(_UNLOCK, which)


def _put_pages(
    connection: Connection, job_id: int, ids: Iterable[str], *, size: int, first: int = 0, everywhere: bool = False
) -> tuple[int, int]:
    """How many pages, and how many ids."""
    remaining = iter(ids)
    pages = documents = 0
    while page := list(dict.fromkeys(islice(remaining, size))):
        connection.execute(_PUT_PAGE, (job_id, first + pages, page, everywhere), prepare=True)
        pages += 1
        documents += len(page)
    return pages, documents


def _size(page: int, rate: float | None) -> int:
    """A slow job is written evenly, not a thousand documents at once and then none for minutes."""
    return page if rate is None else max(1, int(min(page, rate)))
