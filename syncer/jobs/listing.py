"""Listing: determines which documents a job writes, and stores their ids as chunks in Postgres.

A job is listed range by range, each in a short transaction, while its chunks are written. It stays some chunks ahead.
One statement lists all ids of a fan-out, and of a document without an index on its ids.

Guarantees: the chunks of a range exist all or none. One lister at a time works on a job; if it dies, the next one goes
on with the range that it had in hand. Every range is read after the job's state said ``writing``. A row that is created
after its range was read is written because of its change. While a range is read, the document's relations are locked
against ALTER TABLE, captured, and of the shape that the definition was applied to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from syncer.base.error_policy import at_work_for, is_of_some_rows
from syncer.base.errors import DocumentError
from syncer.base.postgres import AdvisoryLock, Connection, value
from syncer.documents import affected, queries
from syncer.documents.queries import IdRange, is_text
from syncer.documents.registry import Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS, reading
from syncer.jobs import queue
from syncer.jobs.model import CHUNKS_AHEAD, Job, JobKind, JobState, find

_RANGE_CHUNKS = 20
"""How many chunks a range fills."""
LIST_SECONDS_MAX = 600.0
"""How long a query may list ids; it may never end. Then a fan-out becomes a refresh, and a range lists all its rows."""

_TRY_LOCK = "SELECT pg_try_advisory_lock($1::bigint | ($2::bigint & 4294967295))"
_UNLOCK = "SELECT pg_advisory_unlock($1::bigint | ($2::bigint & 4294967295))"

# Committed before the first range is read: a process that finds the job still new knows that all are read later.
# Rule: begin-before-listing.
_BEGIN = "UPDATE syncer.job SET state = 'writing', started_at = clock_timestamp() WHERE id = $1 AND state = 'new'"
# A writer that read before this and writes after it finds that out and reads again. Otherwise its document might not be
# taken for an orphan. A load takes up what was committed before its revision, which its creator may not have seen.
# Rule: tell-before-counting.
_BEGIN_WHOLE = """
WITH document AS (
    UPDATE syncer.document SET listings = listings + 1
    WHERE index_name = (SELECT index_name FROM syncer.job WHERE id = $1 AND state = 'new')
    RETURNING index_name
)
UPDATE syncer.job AS j
SET state = 'writing', started_at = clock_timestamp(),
    documents_expected = (SELECT nullif(greatest(c.reltuples, 0), 0) FROM pg_class AS c WHERE c.oid = to_regclass($2)),
    caused_before = CASE
        WHEN j.kind = 'initial_load' THEN pg_snapshot_xmax(pg_current_snapshot()) ELSE j.caused_before END
FROM document WHERE j.id = $1 AND j.state = 'new' AND j.index_name = document.index_name
"""
_NUMBERS = "UPDATE syncer.job SET sequence_numbers = $2 WHERE id = $1"
_LISTED_TO = "SELECT listed_to FROM syncer.job WHERE id = $1"
# Rule: a-range-is-saved-with-its-chunks.
_LIST = """
WITH chunk AS (
    INSERT INTO syncer.job_chunk (job, number, ids)
    SELECT j.id, j.chunks_end + listed.number, array_agg(listed.id)
    FROM (SELECT d._id::text AS id, (row_number() OVER () - 1) / $2::integer AS number
          FROM ({ids}) AS d WHERE {in_range}) AS listed, syncer.job AS j
    WHERE j.id = $1
    GROUP BY j.id, listed.number
    RETURNING cardinality(ids) AS documents
), stored AS (
    SELECT count(*) AS chunks, coalesce(sum(documents), 0)::bigint AS documents FROM chunk
)
UPDATE syncer.job AS j
SET chunks_end = j.chunks_end + s.chunks, chunks_left = j.chunks_left + s.chunks,
    documents_listed = j.documents_listed + s.documents, listed_to = $3, is_listed = $4
FROM stored AS s WHERE j.id = $1 AND j.state = 'writing'
"""
_IN_CHUNKS = """
SELECT DISTINCT i.id FROM syncer.job_chunk AS c CROSS JOIN unnest(c.ids) AS i (id) WHERE c.job = $1 AND i.id = ANY ($2)
"""
_PUT_CHUNK = """
WITH job AS (
    UPDATE syncer.job SET chunks_end = chunks_end + 1, chunks_left = chunks_left + 1,
                          documents_listed = documents_listed + cardinality($2::text[])
    WHERE id = $1 AND state = $4 AND NOT is_listed
    RETURNING id, chunks_end - 1 AS number, chunks_left
), chunk AS (
    INSERT INTO syncer.job_chunk (job, number, ids, everywhere) SELECT id, number, $2, $3 FROM job
)
SELECT chunks_left FROM job
"""
_GIVEN = "UPDATE syncer.job SET revision = $2, is_listed = true WHERE id = $1"
_LISTED = "UPDATE syncer.job SET is_listed = true WHERE id = $1 AND state = $2 AND NOT is_listed"
# A job worker's connection is set to index scans and generic plans for its chunks; a user's SELECT is planned normally.
_PLAN_FREELY = "SET LOCAL enable_seqscan TO DEFAULT; SET LOCAL plan_cache_mode TO DEFAULT"


def create_listed(
    connection: Connection, document: Document, ids: Iterable[str], *, chunk: int, everywhere: bool = False
) -> Job | None:
    """Create a PARTIAL job of these ids, in one transaction or in the caller's; None if the index is no longer active.

    The ids are read as they come, never whole in memory, and may come from the same connection. With ``everywhere``,
    copies on other shards are deleted, too.
    """
    with connection.transaction():
        job_id = queue.insert(connection, document, JobKind.PARTIAL, document.revision)
        connection.execute(_BEGIN, (job_id,))
        for chunk_ids in _in_chunks(ids, chunk):
            _put_chunk(connection, job_id, chunk_ids, JobState.WRITING, everywhere=everywhere)
        # Locked only now, so that nothing waits while the ids come. The job is given the revision active by now: one
        # that came meanwhile could not see the job to cancel it.
        revision = queue.lock_document(connection, document.index_name)
        if revision is None:
            raise psycopg.Rollback
        connection.execute(_GIVEN, (job_id, revision))
        return find(connection, job_id)
    return None


def step(
    connection: Connection,
    job: Job,
    document: Document,
    *,
    chunk: int,
    sequence_numbers: Callable[[], Mapping[str, int]] = dict,
    orphans: Callable[[Mapping[str, int]], Iterable[str]] = lambda _: (),
    in_doubt: Callable[[Mapping[str, Any] | None], Iterable[str] | None] = lambda _: None,
) -> Job | None:
    """Begin a job, list more of its ids, clean up, or move it to its next state.

    ``document`` is the definition active for its index. ``sequence_numbers`` asks for the greatest ``_seq_no`` of each
    shard. ``orphans`` reads the ids that only Elasticsearch has, among documents unchanged since it had these numbers.
    ``in_doubt`` reads the ids that were written since a mark; None if that cannot be told.

    Returns:
        The job afterwards; None if another process is at it, or it is not to be moved on.

    Raises:
        DocumentError: The document has to be suspended.
        JobError: The job no longer exists.
        psycopg.Error: Try again.
    """
    if job.is_listed:
        advanced = queue.advance(connection, job.id)
        return None if advanced.state is job.state else advanced
    lock = (int(AdvisoryLock.JOBS), job.id)
    if document.revision != job.revision or not value(connection, _TRY_LOCK, lock):
        return None
    try:
        if job.state is JobState.CLEANING_UP:
            _clean_up(connection, job, orphans(job.sequence_numbers or {}), chunk)
        elif job.kind is JobKind.RECOVERY:
            _list_in_doubt(connection, job, document, in_doubt(job.mark), chunk)
        else:
            _list_ids(connection, job, document, chunk, sequence_numbers)
    finally:
        connection.execute(_UNLOCK, lock)
    return find(connection, job.id)


def _list_ids(
    connection: Connection, job: Job, document: Document, chunk: int, sequence_numbers: Callable[[], Mapping[str, int]]
) -> None:
    """Begin a NEW job; list ids of a WRITING one. If the affects query of a fan-out fails on the data, refresh."""
    if job.kind.is_whole:
        connection.execute(_BEGIN_WHOLE, (job.id, document.dependencies.root))
    else:
        connection.execute(_BEGIN, (job.id,))
    job = find(connection, job.id)  # until now, its cause may have grown
    if job.kind.is_whole and job.sequence_numbers is None:
        with at_work_for(document.name, document.revision):
            connection.execute(_NUMBERS, (job.id, Jsonb(dict(sequence_numbers()))))
    try:
        _list_range(connection, job, document, chunk)
    except (DocumentError, psycopg.Error) as error:
        if job.kind is not JobKind.FAN_OUT or not is_of_some_rows(error):
            raise
        # The refresh is listed later, so it sees what caused the fan-out.
        occasion = affected.unresolved(" or ".join(sorted(job.cause or ())), error.__cause__ or error)
        with connection.transaction():
            refresh = queue.create(connection, document, JobKind.REFRESH, occasion=occasion)
            if refresh is not None:
                why = f"Job {refresh.id} takes its place: {occasion}"
                queue.end(connection, job.id, JobState.CANCELLED, why)


def _list_range(connection: Connection, job: Job, document: Document, size: int) -> None:
    """List the next range: of a fan-out, all that it touches."""
    if job.is_listed or job.state is not JobState.WRITING:
        return

    def store(ids: sql.Composable, *, seconds: float = 0) -> None:
        limits: dict[str, Any] = {"lock_seconds": COMPONENT_LOCK_SECONDS, "statement_seconds": seconds}
        with reading(connection, document, in_time=seconds > 0, captured=True, stores=True, **limits):
            connection.execute(_PLAN_FREELY, prepare=False)
            span = IdRange()
            if job.kind is not JobKind.FAN_OUT:
                [listed_to] = connection.execute(_LISTED_TO, (job.id,)).fetchone() or [None]
                span = queries.next_range(connection, document, listed_to, rows=_RANGE_CHUNKS * size)
            query = sql.SQL(_LIST).format(ids=ids, in_range=queries.condition(document, span))
            if not connection.execute(query, (job.id, size, span.through, span.is_last)).rowcount:
                raise psycopg.Rollback  # cancelled meanwhile

    if job.kind is JobKind.FAN_OUT:
        store(affected.touched_by(document, job.cause or ()), seconds=LIST_SECONDS_MAX)
        return
    root = document.dependencies.root
    try:  # deparsed by Postgres
        store(sql.SQL(document.dependencies.canonical_select), seconds=LIST_SECONDS_MAX if root else 0)
    except DocumentError as error:
        # On a row the SELECT fails. All rows of the root table are listed, so that its document alone is at fault.
        if root is None or not is_of_some_rows(error):
            raise
        store(queries.root_keys(document))


def _list_in_doubt(connection: Connection, job: Job, document: Document, ids: Iterable[str] | None, chunk: int) -> None:
    """Make chunks of what was written since the mark of a job; refresh the document if that cannot be told.

    If it is interrupted, the next process lists all of them again: to write some of them twice is harmless.
    """
    if ids is None:
        with connection.transaction():
            refresh = queue.create(connection, document, JobKind.REFRESH, occasion=job.occasion)
            if refresh is not None:
                why = f"Job {refresh.id} takes its place: no mark tells what was written since"
                queue.end(connection, job.id, JobState.CANCELLED, why)
        return
    connection.execute(_BEGIN, (job.id,))
    for chunk_ids in _in_chunks(ids, chunk):
        if _put_chunk(connection, job.id, chunk_ids, JobState.WRITING, everywhere=True) is None:
            return  # cancelled meanwhile
    connection.execute(_LISTED, (job.id, JobState.WRITING))


def _clean_up(connection: Connection, job: Job, orphans: Iterable[str], chunk: int) -> None:
    """Make chunks of ids that only Elasticsearch has, in documents unchanged since the sequence numbers were read."""
    # A copy with a greater number was written after the job was known to be listing. Either its writer also read after
    # that, so that a later removal has a change that names it. Or it finds out once it has written, and reads again.
    for chunk_ids in _in_chunks(orphans, chunk):
        chunks_left = _put_chunk(connection, job.id, chunk_ids, JobState.CLEANING_UP, everywhere=True)
        if chunks_left is None or chunks_left >= 2 * CHUNKS_AHEAD:
            return  # the others are read once these are written, and so are no orphans any more
    connection.execute(_LISTED, (job.id, JobState.CLEANING_UP))


def held(
    connection: Connection, jobs: Collection[Job], ids: Collection[str], orphans: Collection[str]
) -> dict[str, list[int]]:
    """Return for each of these documents the open jobs that may yet write it: until then, it has not drifted.

    A job holds the ids in its chunks, and any id until it is listed. A job that cleans up in the end holds what only
    Elasticsearch has until then.

    Ask this *before* the documents are read for the last time. A job that is through with a document when asked has
    written it, which that read shows.

    The jobs are those of the index that are unfinished, as they were read before this call. The orphans are those of
    the ids that only Elasticsearch has, or has a copy too many of.
    """
    holders: dict[str, list[int]] = {}
    writable = [id_ for id_ in ids if is_text(id_)]  # no job can write the others
    for job in jobs:
        if job.is_listed or job.state is JobState.CLEANING_UP:
            holds = {id_ for (id_,) in connection.execute(_IN_CHUNKS, (job.id, writable))}
        else:
            holds = set(writable)
        is_through = job.is_listed and (job.state is JobState.CLEANING_UP or not job.kind.is_whole)
        if (job.kind.is_whole or job.kind is JobKind.RECOVERY) and not is_through:
            holds.update(orphans)
        for id_ in holds:
            holders.setdefault(id_, []).append(job.id)
    return holders


def _put_chunk(
    connection: Connection, job_id: int, ids: list[str], state: JobState, *, everywhere: bool = False
) -> int | None:
    """Store a chunk; return how many the job has left, None if it is no longer in this state."""
    row = connection.execute(_PUT_CHUNK, (job_id, ids, everywhere, state), prepare=True).fetchone()
    return None if row is None else int(row[0])


def _in_chunks(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(ids)
    while chunk := list(islice(remaining, size)):
        yield list(dict.fromkeys(chunk))
