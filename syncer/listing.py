"""Listing: which documents a job writes, as pages of ids in Postgres.

Guarantees: the pages of a job are there all or none; one lister at a time, and one sweeper; the ids are those of a
statement that began after the job's state said ``listing``, with the document's relations locked against ALTER
TABLE, captured, and of the shape that the definition was applied to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from syncer import condition, jobs
from syncer.errors import JobError
from syncer.job import Job, JobKind, find
from syncer.policy import Action, decide
from syncer.postgres import AdvisoryLock, Connection, value
from syncer.reading import STAGE_LOCK_SECONDS, noting
from syncer.store import Document

_TRY_LOCK = "SELECT pg_try_advisory_lock($1::bigint | ($2::bigint & 4294967295))"
_UNLOCK = "SELECT pg_advisory_unlock($1::bigint | ($2::bigint & 4294967295))"
# Committed before the listing's snapshot, so that who finds the job still new knows that the snapshot comes after.
# Whoever has read before this and writes after it finds that out, and reads again: see `syncer.writer`.
_BEGIN = """
WITH document AS (
    UPDATE syncer.document SET listings = listings + 1
    WHERE index_name = (SELECT index_name FROM syncer.job WHERE id = $1 AND state IN ('new', 'listing'))
    RETURNING index_name
)
UPDATE syncer.job AS j SET state = 'listing', started_at = coalesce(j.started_at, clock_timestamp())
FROM document WHERE j.id = $1 AND j.state IN ('new', 'listing') AND j.index_name = document.index_name
"""
_LIST = """
WITH page AS (
    INSERT INTO syncer.job_page (job, number, ids)
    SELECT $1, number, array_agg(id)
    FROM (SELECT d._id::text AS id, (row_number() OVER () - 1) / $2::integer AS number
          FROM ({ids}) AS d WHERE d._id IS NOT NULL) AS listed
    GROUP BY number
    RETURNING cardinality(ids) AS documents
)
SELECT count(*), coalesce(sum(documents), 0)::bigint FROM page
"""
_PUT_PAGE = "INSERT INTO syncer.job_page (job, number, ids, everywhere) VALUES ($1, $2, $3, $4)"
_LISTED = """
UPDATE syncer.job SET state = 'listed', pages_left = $2, pages_end = $2, documents_total = $3, sequence_numbers = $4
WHERE id = $1 AND state = 'listing'
"""
_GIVEN = """
UPDATE syncer.job SET state = 'listed', pages_left = $2, pages_end = $2, documents_total = $3, generation = $4
WHERE id = $1
"""
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
        failed on the data, which is now the job's error.

    Raises:
        DocumentError: The document is to halt.
        psycopg.Error: To be tried again.
    """
    with _alone(connection, job) as is_alone:
        if not is_alone or document.generation != job.generation:
            return False
        if connection.execute(_BEGIN, (job.id,)).rowcount == 0:
            return False
        try:
            # After it is known that we list, and before the first page: see `sweep`.
            numbers = None if sequence_numbers is None else sequence_numbers()
            return _list(connection, job, document, _size(page, job.rate), numbers)
        except JobError as error:
            jobs.fail(connection, job.id, f"{error.message}\n{error.hint}")
            return False


def _list(
    connection: Connection, job: Job, document: Document, size: int, sequence_numbers: Mapping[int, int] | None
) -> bool:
    numbers = None if sequence_numbers is None else Jsonb({str(shard): one for shard, one in sequence_numbers.items()})
    is_listed = False
    with noting(connection, document, lock_seconds=STAGE_LOCK_SECONDS):
        row = _put_all(connection, job, document, size)
        is_listed = connection.execute(_LISTED, (job.id, *row, numbers)).rowcount == 1
        if not is_listed:  # cancelled meanwhile
            raise psycopg.Rollback
    return is_listed


def _put_all(connection: Connection, job: Job, document: Document, size: int) -> tuple[int, int]:
    """Put the pages of all ids of a job; how many pages, and how many ids."""
    ids: sql.Composable = (
        sql.SQL(document.dependencies.canonical_select)  # deparsed by Postgres
        if job.where is None
        else condition.matching(document, job.where)
    )
    query = sql.SQL(_LIST).format(ids=ids)
    try:
        row = connection.execute(query, (job.id, size)).fetchone()
    except psycopg.Error as error:
        if job.where is None or decide(error) is Action.RETRY:
            raise
        raise condition.refused(document, condition.words(error)) from error
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return row[0], row[1]


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
