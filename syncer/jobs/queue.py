"""The job queue: creates, joins, changes and ends jobs, in Postgres. All job workers of all daemons share it.

Guarantees: a job continues where it was, whichever process dies. A job does not outlive its revision or its index.
Locks are taken in one order: the document's row, then jobs, then chunks. To change a job that is finished, or that does
not exist, raises JobError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.types.json import Jsonb

from syncer.base.errors import JobError
from syncer.base.model import dump_images
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.jobs.model import UNFINISHED, Job, JobKind, JobState, find, unfinished

FINISHED_KEPT_MAX = 100
"""How many finished jobs of each kind are remembered."""
CAUSE_IMAGES_MAX = 1000
"""A fan-out with this many changed rows as its cause takes up no more."""
WAITING_FAN_OUTS_MAX = 10
"""A suspended document with so many fan-outs that have not begun is refreshed instead."""

# Lock order: a document before its jobs.
_LOCK_DOCUMENT = "SELECT revision FROM syncer.document WHERE index_name = $1 FOR NO KEY UPDATE"
_STALE = """
SELECT d.is_stale, d.suspended IS NOT NULL, ARRAY(
    SELECT j.id FROM syncer.job AS j WHERE j.index_name = d.index_name AND j.kind = 'fan_out' AND j.state = 'new')
FROM syncer.document AS d WHERE d.index_name = $1
"""
_LOCK_DOCUMENT_OF = """
SELECT FROM syncer.document WHERE index_name = (SELECT index_name FROM syncer.job WHERE id = $1) FOR NO KEY UPDATE
"""
_INSERT = """
INSERT INTO syncer.job (kind, document, index_name, revision, completes_load, cause, occasion, changed_at, mark)
VALUES ($1, $2, $3, $4, $5, $6, $7, least(clock_timestamp(), to_timestamp($8::float8)), $9)
RETURNING id
"""
# Listing cannot begin until the caller's transaction ends.
# Rule: join-only-a-new-fan-out.
_JOIN = """
UPDATE syncer.job SET cause = (
    SELECT jsonb_object_agg(relation, images) FROM (
        SELECT relation, jsonb_agg(DISTINCT image) AS images
        FROM (SELECT * FROM jsonb_each(cause) UNION ALL SELECT * FROM jsonb_each($3)) AS part (relation, images)
             CROSS JOIN jsonb_array_elements(part.images) AS image
        GROUP BY relation
    ) AS merged
), caused_before = pg_snapshot_xmax(pg_current_snapshot()), changed_at = least(changed_at, to_timestamp($5::float8))
WHERE id = (
    SELECT n.id FROM (
        SELECT j.id, j.cause FROM syncer.job AS j
        WHERE j.state = 'new' AND j.kind = 'fan_out' AND j.index_name = $1 AND j.revision = $2 AND NOT j.is_paused
        ORDER BY j.id DESC LIMIT 1 FOR NO KEY UPDATE
    ) AS n
    WHERE (SELECT sum(jsonb_array_length(c.value)) FROM jsonb_each(n.cause) AS c) < $4
)
RETURNING id
"""
# The cause was committed before this statement's snapshot.
_JOIN_WHOLE = """
UPDATE syncer.job
SET caused_before = pg_snapshot_xmax(pg_current_snapshot()), changed_at = least(changed_at, to_timestamp($3::float8)),
    occasion = CASE WHEN kind <> 'refresh' OR strpos(occasion, $2) > 0 OR length(occasion) > 500 THEN occasion
                    ELSE concat_ws('; ', occasion, $2) END
WHERE id = $1
"""
_IS_THROUGH = """
SELECT j.state IN ('writing', 'cleaning_up') AND j.is_listed AND j.chunks_left = 0
FROM syncer.job AS j WHERE j.id = $1 FOR NO KEY UPDATE
"""
_WRITTEN = "UPDATE syncer.job SET state = 'cleaning_up', is_listed = false WHERE id = $1"
_END = f"""
UPDATE syncer.job AS j SET state = $2, error = $3, is_paused = false, finished_at = clock_timestamp()
WHERE j.id = $1 AND {UNFINISHED}
"""
_DROP_CHUNKS = "DELETE FROM syncer.job_chunk WHERE job = $1"
_PRUNE = f"""
DELETE FROM syncer.job WHERE id IN (
    SELECT o.id FROM syncer.job AS o
    WHERE o.id IN (SELECT finished.id FROM (
        SELECT j.id, row_number() OVER (PARTITION BY j.kind ORDER BY j.finished_at DESC, j.id DESC) AS place
        FROM syncer.job AS j WHERE NOT ({UNFINISHED})) AS finished WHERE finished.place > $1)
    FOR UPDATE SKIP LOCKED)
"""
_PAUSE = f"UPDATE syncer.job AS j SET is_paused = $2 WHERE j.id = $1 AND {UNFINISHED}"
_COMPLETE_NO_LOAD = f"UPDATE syncer.job AS j SET completes_load = false WHERE j.index_name = ANY ($1) AND {UNFINISHED}"


def create(
    connection: Connection,
    document: Document,
    kind: JobKind,
    *,
    resumes: bool = False,
    occasion: str | None = None,
    changed_at: float | None = None,
) -> Job | None:
    """Create a job that writes the whole document, in the caller's transaction if there is one.

    If a new job that is not paused does all that this one would, it is returned instead: two TRUNCATEs cost one
    refresh. If this one ``resumes``, so is an unfinished job of the same kind, which goes on. A load replaces all
    unfinished whole jobs of its index. Jobs of an older revision are cancelled.

    The occasion is what made a refresh necessary; it never quotes a row. A refresh that is joined gets it, too. The
    oldest change that the job makes good was made at ``changed_at``, in Unix time. None is returned if the document's
    index is no longer active.
    """
    assert kind.is_whole  # ids that are at hand are for `listing.create_listed`
    with connection.transaction():
        revision = lock_document(connection, document.index_name)
        if revision is None:
            return None
        open_jobs = unfinished(connection, document.index_name)
        current = [job for job in open_jobs if job.revision == revision]
        same = [job for job in current if job.kind is kind and job.completes_load]
        if resumes and same:
            return resume(connection, same[0].id)
        for job in current:
            # It does all that a new one would, and sees the changes that led to it.
            # Rule: join-only-a-new-refresh.
            if job.state is JobState.NEW and job.kind.covers(kind) and job.completes_load and not job.is_paused:
                connection.execute(_JOIN_WHOLE, (job.id, occasion, changed_at))
                return job
        if kind is JobKind.INITIAL_LOAD:
            mark_incomplete(connection, [document.index_name])
        job_id = insert(connection, document, kind, revision, occasion=occasion, changed_at=changed_at)
        for replaced in open_jobs:
            if replaced.revision != revision or (kind is JobKind.INITIAL_LOAD and replaced.kind.is_whole):
                end(connection, replaced.id, JobState.CANCELLED, f"Job {job_id} takes its place")
        return find(connection, job_id)


def refresh_all(connection: Connection, occasion: str, *, changed_at: float | None = None) -> list[Job]:
    """Create a refresh of every active document, or join one that has not begun, as `create` does."""
    jobs = [
        create(connection, document, JobKind.REFRESH, occasion=occasion, changed_at=changed_at)
        for document in registry.documents(connection)
    ]
    return [job for job in jobs if job is not None]


def create_recovery(
    connection: Connection, document: Document, mark: Mapping[str, Any] | None, occasion: str
) -> Job | None:
    """Create a job for what was written to an index since a mark, in the caller's transaction.

    One that has not begun does it, too: its mark is at least as old. None is returned if the index is not active.
    """
    revision = lock_document(connection, document.index_name)
    if revision is None:
        return None
    for job in unfinished(connection, document.index_name):
        if job.kind is JobKind.RECOVERY and job.state is JobState.NEW and job.revision == revision:
            return job
    return find(connection, insert(connection, document, JobKind.RECOVERY, revision, occasion=occasion, mark=mark))


def create_fan_out(
    connection: Connection, document: Document, cause: Mapping[str, Sequence[Any]], *, changed_at: float | None = None
) -> Job | None:
    """Create a job for the documents that changed rows touch, in a time that does not depend on how many they are.

    The cause joins the newest fan-out of the document whose listing has not begun, if there is one: it is listed later,
    so it finds the documents. ``cause`` has the images of the changed rows by table, each once.

    Read ``document`` after the changes were received. None is returned if its revision is no longer active: the load of
    the active one sees the changes. So it is if the document is suspended and stale: the refresh with which it is
    resumed sees them.
    """
    # Rules: a-change-that-cannot-be-written-joins-a-fan-out, a-full-fan-out-becomes-a-refresh.
    with connection.transaction():
        is_active = lock_document(connection, document.index_name) == document.revision
        if not is_active or _is_stale(connection, document):
            if changed_at is not None:
                registry.date_stale(connection, document.index_name, changed_at)
            return None
        newest = (document.index_name, document.revision, _stored(cause), CAUSE_IMAGES_MAX, changed_at)
        joined = connection.execute(_JOIN, newest).fetchone()
        if joined is not None:
            return find(connection, joined[0])
        job_id = insert(connection, document, JobKind.FAN_OUT, document.revision, cause=cause, changed_at=changed_at)
        return find(connection, job_id)


def _is_stale(connection: Connection, document: Document) -> bool:
    """Whether a locked document is suspended and stale; it becomes so if too many of its fan-outs wait."""
    [(is_stale, is_suspended, waiting)] = connection.execute(_STALE, (document.index_name,))  # the document is locked
    if is_suspended and not is_stale and len(waiting) >= WAITING_FAN_OUTS_MAX:
        registry.mark_stale(connection, document.name, document.revision)
        for job_id in waiting:
            end(connection, job_id, JobState.CANCELLED, "The document is refreshed when it is resumed")
        return True
    return bool(is_stale)


def lock_document(connection: Connection, index_name: str) -> int | None:
    """Until the transaction ends, let no job of an index be created or cancelled, and no whole one begin.

    The active revision is returned, if there is any.
    """
    row = connection.execute(_LOCK_DOCUMENT, (index_name,)).fetchone()
    return None if row is None else int(row[0])


def insert(
    connection: Connection,
    document: Document,
    kind: JobKind,
    revision: int,
    *,
    cause: Mapping[str, Sequence[Any]] | None = None,
    occasion: str | None = None,
    changed_at: float | None = None,
    mark: Mapping[str, Any] | None = None,
) -> int:
    """Insert the row of a job in the caller's transaction, for `create` and `syncer.jobs.listing`; return its id."""
    reasons = (kind.is_whole, None if cause is None else _stored(cause), occasion)
    stored_mark = None if mark is None else Jsonb(dict(mark))
    values = (kind, document.name, document.index_name, revision, *reasons, changed_at, stored_mark)
    [(job_id,)] = connection.execute(_INSERT, values)
    return int(job_id)


def _stored(cause: Mapping[str, Sequence[Any]]) -> Jsonb:
    return Jsonb(cause, dumps=dump_images)


def advance(connection: Connection, job_id: int) -> Job:
    """Move a job whose chunks are all done to its next state; do nothing if it has chunks left.

    When a whole job ends, the same transaction marks the document as loaded. That requires that the job's revision is
    still active and not suspended, and that no change may have been missed since the job was created.

    Raises:
        JobError: There is no such job, or it was pruned.
    """
    with connection.transaction():
        connection.execute(_LOCK_DOCUMENT_OF, (job_id,))
        is_through = connection.execute(_IS_THROUGH, (job_id,)).fetchone() == (True,)
        job = find(connection, job_id)
        # Rule: cleanup-at-the-end.
        if is_through and job.kind.is_whole and job.state is JobState.WRITING:
            connection.execute(_WRITTEN, (job_id,))
        elif is_through:
            end(connection, job_id, JobState.DONE, None)
            if job.completes_load:
                registry.mark_loaded(connection, job.document, job.revision)
    return find(connection, job_id)


def pause(connection: Connection, job_id: int, *, is_paused: bool = True) -> Job:
    """Stop taking chunks of a job; chunks in hand are finished. Or take them again."""
    is_open = connection.execute(_PAUSE, (job_id, is_paused)).rowcount == 1
    job = find(connection, job_id)
    if not is_open:
        raise _finished(job)
    return job


def resume(connection: Connection, job_id: int) -> Job:
    """Resume a paused job."""
    return pause(connection, job_id, is_paused=False)


def cancel(
    connection: Connection, job_id: int, reason: str = "by hand", *, state: JobState = JobState.CANCELLED
) -> Job:
    """Cancel a job, or fail it: unwritten chunks are dropped, written documents stay.

    If the job is pending, documents may be stale without it. The document then counts as not loaded until `syncer
    apply` or `syncer backfill` has written all of it.
    """
    with connection.transaction():
        connection.execute(_LOCK_DOCUMENT_OF, (job_id,))
        job = find(connection, job_id)
        if not end(connection, job_id, state, reason):
            raise _finished(job)
        if job.kind.is_pending:
            mark_incomplete(connection, [job.index_name])
    return find(connection, job_id)


def end(connection: Connection, job_id: int, state: JobState, error: str | None) -> bool:
    """End a job of a locked document, in the caller's transaction; return False if it was finished already."""
    is_ended = connection.execute(_END, (job_id, state, error)).rowcount == 1
    if is_ended:
        connection.execute(_DROP_CHUNKS, (job_id,))
        connection.execute(_PRUNE, (FINISHED_KEPT_MAX,))
    return is_ended


def _finished(job: Job) -> JobError:
    return JobError(f"Job {job.id} is {job.state} already", hint="To see all jobs: syncer jobs list")


def mark_incomplete(connection: Connection, index_names: Sequence[str]) -> None:
    """Record that documents in these indices may be stale, and that no job created so far makes up for it."""
    with connection.transaction():
        registry.mark_incomplete(connection, index_names)
        connection.execute(_COMPLETE_NO_LOAD, (list(index_names),))
