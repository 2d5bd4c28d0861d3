"""Listing: determines which documents a job writes, and stores their ids as chunks in Postgres.

Guarantees: a job's chunks exist all or none. One lister and one cleanup at a time work on a job. The ids come from a
statement that began after the job's state said ``listing``. Meanwhile the document's relations are locked against ALTER
TABLE, captured, and of the shape that the definition was applied to.

A fan-out lists every id that its cause touches, even if another job has yet to write it. Writing it twice is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from syncer.base.error_policy import Action, decide, is_of_data
from syncer.base.errors import DocumentError, JobError
from syncer.base.postgres import AdvisoryLock, Connection, value
from syncer.documents import affected, predicate
from syncer.documents.registry import Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS, noting
from syncer.jobs import queue
from syncer.jobs.model import Job, JobKind, find

_TRY_LOCK = "SELECT pg_try_advisory_lock($1::bigint | ($2::bigint & 4294967295))"
_UNLOCK = "SELECT pg_advisory_unlock($1::bigint | ($2::bigint & 4294967295))"

# Committed before the listing's snapshot, so that a process that finds the job still new knows that the snapshot is
# later.
# Rule: begin-before-listing.
_BEGIN = """
UPDATE syncer.job SET state = 'listing', started_at = coalesce(started_at, clock_timestamp())
WHERE id = $1 AND state IN ('new', 'listing')
"""
# A writer that read before this and writes after it finds that out and reads again. Otherwise its document might not be
# taken for an orphan: see `syncer.indexing.writer`. A job without a cleanup does not disturb the writers. A load takes
# up what was committed before its revision, which its creator may not have seen.
_BEGIN_WHOLE = """
WITH document AS (
    UPDATE syncer.document SET listings = listings + 1
    WHERE index_name = (SELECT index_name FROM syncer.job WHERE id = $1 AND state IN ('new', 'listing'))
    RETURNING index_name
)
UPDATE syncer.job AS j
SET state = 'listing', started_at = coalesce(j.started_at, clock_timestamp()),
    caused_before = CASE
        WHEN j.kind = 'initial_load' THEN pg_snapshot_xmax(pg_current_snapshot()) ELSE j.caused_before END
FROM document WHERE j.id = $1 AND j.state IN ('new', 'listing') AND j.index_name = document.index_name
"""
_LIST = """
WITH chunk AS (
    INSERT INTO syncer.job_chunk (job, number, ids)
    SELECT $1, number, array_agg(id)
    FROM (SELECT d._id::text AS id, (row_number() OVER () - 1) / $2::integer AS number
          FROM ({ids}) AS d WHERE d._id IS NOT NULL) AS listed
    GROUP BY number
    RETURNING cardinality(ids) AS documents
)
SELECT count(*), coalesce(sum(documents), 0)::bigint FROM chunk
"""
_PUT_CHUNK = "INSERT INTO syncer.job_chunk (job, number, ids, everywhere) VALUES ($1, $2, $3, $4)"
_LISTED = """
UPDATE syncer.job
SET state = 'listed', chunks_left = $2, chunks_end = $2, documents_total = $3, sequence_numbers = $4
WHERE id = $1 AND state = 'listing'
"""
_GIVEN = """
UPDATE syncer.job SET state = 'listed', chunks_left = $2, chunks_end = $2, documents_total = $3, revision = $4
WHERE id = $1
"""
# A job worker's connection is set to index scans and generic plans for its chunks; a user's SELECT is planned normally.
_PLAN_FREELY = "SET LOCAL enable_seqscan TO DEFAULT; SET LOCAL plan_cache_mode TO DEFAULT"
# However long the search for orphans finds none: the transaction locks only what belongs to this job.
_TAKES_LONG = "SET LOCAL idle_in_transaction_session_timeout = 0"
_WRITTEN = "SELECT chunks_end FROM syncer.job WHERE id = $1 AND state = 'written'"
_CLEANED_UP = """
UPDATE syncer.job
SET state = 'cleaned_up', chunks_left = $2, chunks_end = chunks_end + $2, documents_total = documents_total + $3,
    measured_at = clock_timestamp(), measured_done = documents_done, measured_rate = NULL
WHERE id = $1 AND state = 'written'
"""


def create_listed(
    connection: Connection,
    document: Document,
    ids: Iterable[str],
    *,
    chunk: int,
    rate: float | None = None,
    everywhere: bool = False,
) -> Job | None:
    """Create a PARTIAL job of these ids, in one transaction or in the caller's; it has all of them at once.

    Args:
        connection: To Postgres.
        document: The document as last read.
        ids: Read as they come, never whole in memory. They may come from the same connection.
        chunk: How many ids a chunk has at most; with a rate, no more than are written in a second.
        rate: The limit in documents per second.
        everywhere: Whether copies on other shards are deleted, too.

    Returns:
        The job; None if the document's index is no longer active.
    """
    with connection.transaction():
        job_id = queue.insert(connection, document, JobKind.PARTIAL, document.revision, rate=rate)
        chunks, documents = _put_chunks(connection, job_id, ids, size=_size(chunk, rate), everywhere=everywhere)
        # Locked only now, so that nothing waits while the ids come. The job is given the revision active by now: one
        # that came meanwhile could not see the job to cancel it.
        revision = queue.lock_document(connection, document.index_name)
        if revision is None:
            raise psycopg.Rollback
        connection.execute(_GIVEN, (job_id, chunks, documents, revision))
        return find(connection, job_id)
    return None


def list_chunks(
    connection: Connection,
    job: Job,
    document: Document,
    *,
    chunk: int,
    sequence_numbers: Callable[[], Mapping[int, int]] | None = None,
) -> bool:
    """List the ids of a NEW or LISTING job, on the server, in one statement.

    If the lister is killed, another one starts over as soon as Postgres has noticed.

    Args:
        connection: To Postgres, in no transaction.
        job: The job to list.
        document: The definition active for its index.
        chunk: How many ids a chunk has at most; with a rate, no more than are written in a second.
        sequence_numbers: Asks for the greatest ``_seq_no`` of each shard of the index; stored for the cleanup.

    Returns:
        Whether the job is listed. False if another process is listing it, or it is no longer to be listed. False also
        after a failure on the data. If its condition failed, the job has failed. If an affects query of a fan-out
        failed, a refresh of the whole document has replaced it.

    Raises:
        DocumentError: The document has to be suspended.
        psycopg.Error: Try again.
    """
    with _alone(connection, job) as is_alone:
        if not is_alone or document.revision != job.revision:
            return False
        if connection.execute(_BEGIN_WHOLE if job.kind.is_whole else _BEGIN, (job.id,)).rowcount == 0:
            return False
        job = _with_its_whole_cause(connection, job)
        try:
            # After the job is known to be listing, and before the first chunk: see `cleanup`.
            # Rule: tell-before-counting.
            numbers = None if sequence_numbers is None else sequence_numbers()
            return _list(connection, job, document, _size(chunk, job.rate), numbers)
        except JobError as error:
            queue.fail(connection, job.id, f"{error.message}\n{error.hint}")
            return False
        except DocumentError as error:
            if not _can_be_widened(job, error):
                raise
            queue.widen(connection, document, job.id, error.message)
            return False


def _with_its_whole_cause(connection: Connection, job: Job) -> Job:
    """Read a job again that is now being listed: until then its cause may have grown."""
    return find(connection, job.id)


def _can_be_widened(job: Job, error: DocumentError) -> bool:
    """Whether a refresh of the whole document can replace a job that cannot be listed."""
    return job.kind is JobKind.FAN_OUT and is_of_data(error.__cause__)


def _list(
    connection: Connection, job: Job, document: Document, size: int, sequence_numbers: Mapping[int, int] | None
) -> bool:
    numbers = None if sequence_numbers is None else Jsonb({str(shard): one for shard, one in sequence_numbers.items()})
    is_listed = False
    with noting(connection, document, lock_seconds=COMPONENT_LOCK_SECONDS):
        connection.execute(_PLAN_FREELY, prepare=False)
        row = _put_all(connection, job, document, size)
        is_listed = connection.execute(_LISTED, (job.id, *row, numbers)).rowcount == 1
        if not is_listed:  # cancelled meanwhile
            raise psycopg.Rollback
    return is_listed


def _put_all(connection: Connection, job: Job, document: Document, size: int) -> tuple[int, int]:
    """Store the chunks of all ids of a job; return the numbers of chunks and of ids."""
    try:
        row = connection.execute(_listing(job, document), (job.id, size)).fetchone()
    except psycopg.Error as error:
        if job.where is None or decide(error) is Action.RETRY:
            raise
        raise predicate.refused(document, predicate.words(error)) from error
    assert row is not None  # noqa: S101 - an aggregate returns a row
    return row[0], row[1]


def _listing(job: Job, document: Document) -> sql.Composed:
    ids: sql.Composable
    if job.kind is JobKind.FAN_OUT:
        ids = affected.touched_by(document, job.cause or ())
    elif job.where is not None:
        ids = predicate.matching(document, job.where)
    else:
        ids = sql.SQL(document.dependencies.canonical_select)  # deparsed by Postgres
    return sql.SQL(_LIST).format(ids=ids)


def cleanup(connection: Connection, job: Job, orphans: Iterable[str], *, chunk: int) -> bool:
    """Make chunks of ids that only Elasticsearch has, for a WRITTEN job, which is then CLEANED_UP.

    Why only documents unchanged since the sequence numbers were read can be orphans: the numbers were read after the
    job was known to be listing. A copy with a greater number was written after that. Either its writer also read after
    that, so that any later removal of the document has a change that names it. Or the writer finds out once it has
    written, and reads again: see `syncer.indexing.writer`.

    Args:
        connection: To Postgres, in no transaction. It is in one while the orphans come.
        job: The job to clean up.
        orphans: Ids, read as they come, and only if no other process cleans up this job.
        chunk: How many ids a chunk has at most.

    Returns:
        Whether the job is cleaned up. False if another process is at it, or if it is not to be cleaned up any more.
    """
    is_cleaned_up = False
    with _alone(connection, job) as is_alone, connection.transaction():
        connection.execute(_TAKES_LONG)
        written = connection.execute(_WRITTEN, (job.id,)).fetchone() if is_alone else None
        if written is None:
            return False
        size = _size(chunk, job.rate)
        put = _put_chunks(connection, job.id, orphans, size=size, first=written[0], everywhere=True)
        is_cleaned_up = connection.execute(_CLEANED_UP, (job.id, *put)).rowcount == 1
        if not is_cleaned_up:  # cancelled meanwhile
            raise psycopg.Rollback
    return is_cleaned_up


@contextmanager
def _alone(connection: Connection, job: Job) -> Iterator[bool]:
    """Lock a job's listing and cleanup; yield False if another process holds the lock."""
    which = (int(AdvisoryLock.JOBS), job.id)
    if not value(connection, _TRY_LOCK, which):
        yield False
        return
    try:
        yield True
    finally:
        connection.execute(_UNLOCK, which)


def _put_chunks(
    connection: Connection, job_id: int, ids: Iterable[str], *, size: int, first: int = 0, everywhere: bool = False
) -> tuple[int, int]:
    """Store chunks; return how many, and how many ids they have."""
    remaining = iter(ids)
    chunks = documents = 0
    while chunk := list(dict.fromkeys(islice(remaining, size))):
        connection.execute(_PUT_CHUNK, (job_id, first + chunks, chunk, everywhere), prepare=True)
        chunks += 1
        documents += len(chunk)
    return chunks, documents


def _size(chunk: int, rate: float | None) -> int:
    """Limit the chunks of a job with a rate to a second's work, so that it writes evenly instead of in bursts."""
    return chunk if rate is None else max(1, int(min(chunk, rate)))
