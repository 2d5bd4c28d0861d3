"""Jobs: work on many documents, kept in Postgres, done by all lanes of all daemons together.

What a job is: `syncer.job`. What it has yet to write are its pages of ids: `syncer.listing` makes them, and by
`syncer.job_pages` they are taken and finished.

Guarantees: a job goes on from where it was, whoever dies; a job does not outlive the generation that it is for, nor its
index; whoever locks several rows locks the document's first, then jobs, then pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from syncer import condition, store
from syncer.errors import JobError
from syncer.job import UNFINISHED, Job, JobKind, JobState, find, locked_new, locked_unfinished
from syncer.model import dump_images
from syncer.postgres import Connection
from syncer.store import Document

FINISHED_KEPT_MAX = 100
"""How many finished jobs of each kind are remembered."""
FINISHED_KEPT_DAYS = 30
CAUSE_IMAGES_MAX = 1000
"""A fan-out that is caused by so many changed rows takes up no more."""

# Whoever locks a document and jobs of it does so in this order.
_LOCK_DOCUMENT = """
SELECT generation FROM syncer.document WHERE index_name = $1 FOR NO KEY UPDATE
"""
_LOCK_DOCUMENT_OF = """
SELECT FROM syncer.document WHERE index_name = (SELECT index_name FROM syncer.job WHERE id = $1) FOR NO KEY UPDATE
"""
_CREATE = """
INSERT INTO syncer.job (kind, document, index_name, generation, condition, rate, fills, cause)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id
"""
_JOIN = """
UPDATE syncer.job SET cause = (
    SELECT jsonb_object_agg(relation, images) FROM (
        SELECT relation, jsonb_agg(DISTINCT image) AS images
        FROM (SELECT * FROM jsonb_each(cause) UNION ALL SELECT * FROM jsonb_each($2)) AS part (relation, images)
             CROSS JOIN jsonb_array_elements(part.images) AS image
        GROUP BY relation
    ) AS merged
), caused_before = pg_snapshot_xmax(pg_current_snapshot()) WHERE id = $1
"""
# Whatever made it necessary was committed before this statement's snapshot.
_JOIN_WHOLE = "UPDATE syncer.job SET caused_before = pg_snapshot_xmax(pg_current_snapshot()) WHERE id = $1"
_IS_THROUGH = """
SELECT j.state IN ('listed', 'swept') AND j.pages_left = 0
FROM syncer.job AS j WHERE j.id = $1 FOR NO KEY UPDATE
"""
_WRITTEN = "UPDATE syncer.job SET state = 'written' WHERE id = $1"
_END = """
UPDATE syncer.job AS j SET state = $2, error = $3, is_paused = false, finished_at = clock_timestamp()
WHERE j.id = $1 AND {unfinished}
"""
_POSTPONE = """
INSERT INTO syncer.postponed (job, id) SELECT $1, new.id FROM unnest($2::text[]) AS new (id)
WHERE NOT EXISTS (SELECT FROM syncer.postponed AS p WHERE p.job = $1 AND p.id = new.id)
"""
_DROP_PAGES = "DELETE FROM syncer.job_page WHERE job = $1"
_DROP_POSTPONED = "DELETE FROM syncer.postponed WHERE job = $1"
_PRUNE = """
DELETE FROM syncer.job WHERE id IN (
    SELECT j.id FROM syncer.job AS j
    WHERE NOT ({unfinished})
      AND (j.finished_at < clock_timestamp() - make_interval(days => $2)
           OR j.id NOT IN (SELECT o.id FROM (
                  SELECT j.id, row_number() OVER (PARTITION BY j.kind ORDER BY j.finished_at DESC, j.id DESC) AS place
                  FROM syncer.job AS j WHERE NOT ({unfinished})) AS o
                  WHERE o.place <= $1))
    FOR UPDATE SKIP LOCKED)
"""
_PAUSE = "is_paused = true"
# The time that it was paused for does not count as slow, nor does it earn anything.
_RESUME = "is_paused = false, measured_at = clock_timestamp(), measured_done = documents_done, measured_rate = NULL"
_SET_RATE = "rate = $2, next_at = '-infinity'"
_CHANGE = "UPDATE syncer.job AS j SET {change} WHERE j.id = $1 AND {unfinished} RETURNING j.id"
_FILLS_NO_MORE = "UPDATE syncer.job AS j SET fills = false WHERE j.index_name = ANY ($1) AND {unfinished}"


def create(
    connection: Connection,
    document: Document,
    kind: JobKind,
    *,
    where: str | None = None,
    rate: float | None = None,
    resumes: bool = False,
) -> Job | None:
    """Make a job whose ids are yet to be listed, in the caller's transaction if there is one.

    One that is still new does what this one would, if it is of at least the same standing, not paused and not slower:
    then that is the job (two TRUNCATEs cost one refresh). A fill takes the place of all unfinished whole jobs of
    its index; jobs of an older generation are cancelled.

    Args:
        connection: Postgres.
        document: Which, as it was last read; the job is for the generation that is in force now.
        kind: Any whole one, or PART.
        where: For PART: a condition on the columns of the document's root.
        rate: Documents per second at most.
        resumes: Whether an unfinished job of the same kind and condition is taken up again instead: no longer
            paused, and with this rate, if one is given.

    Returns:
        The job; None if the document's index is no longer in force.

    Raises:
        JobError: The condition is refused, by us or by Postgres.
    """
    assert kind.is_whole == (where is None)  # noqa: S101 - ids that are at hand are for `listing.create_listed`
    if where is not None:
        condition.require_valid(connection, document, where)
    with connection.transaction():
        generation = lock_document(connection, document.index_name)
        if generation is None:
            return None
        others = locked_unfinished(connection, document.index_name)
        standing = [one for one in others if one.generation == generation]
        if resumes and (same := _same(standing, kind, where)):
            resumed = resume(connection, same.id)
            return resumed if rate is None else set_rate(connection, same.id, rate)
        if kind.is_whole and (new := _still_new(standing, kind, rate)):
            connection.execute(_JOIN_WHOLE, (new.id,))
            return new
        made = insert(connection, document, kind, generation, where=where, rate=rate)
        _take_place(connection, find(connection, made), others)
        return find(connection, made)


def _take_place(connection: Connection, made: Job, others: Sequence[Job]) -> None:
    """End the jobs that a new one leaves nothing to do; with a fill the document is filled once that is done."""
    is_fill = made.kind is JobKind.FILL
    if is_fill:
        store.mark_unfilled(connection, [made.index_name])
    for one in others:
        if one.generation != made.generation or (is_fill and one.kind.is_whole):
            _end(connection, one.id, JobState.CANCELLED, f"Job {made.id} takes its place")


def create_fan_out(connection: Connection, document: Document, cause: Mapping[str, Sequence[Any]]) -> Job | None:
    """Make a job of the documents that changed rows lead to, which takes no longer the more documents that are.

    One that nobody has begun to list takes the cause up, or does all of it anyhow (a fill, a refresh): whoever lists it
    does so later, hence sees the changes, and so does whoever writes what he has listed. While the index is unwell
    nobody lists, and what is more than a fan-out takes up becomes a refresh, which takes up all that follows.

    Args:
        connection: Postgres.
        document: Which, as it was read after the changes were received.
        cause: By table, the images of the changed rows, each once.

    Returns:
        The job, once it is there for good; None if that generation is no longer in force: then the changes, being older
        than the generation that is, are seen by whoever fills that.
    """
    with connection.transaction():
        if lock_document(connection, document.index_name) != document.generation:
            return None
        standing = [one for one in locked_new(connection, document.index_name) if one.generation == document.generation]
        new = _still_new(standing, JobKind.FAN_OUT, None)
        if new is None and document.unwell is not None and any(one.kind is JobKind.FAN_OUT for one in standing):
            return create(connection, document, JobKind.REFRESH)
        if new is None:
            return find(connection, insert(connection, document, JobKind.FAN_OUT, document.generation, cause=cause))
        if new.kind is JobKind.FAN_OUT:
            connection.execute(_JOIN, (new.id, _stored(cause)))
        else:
            connection.execute(_JOIN_WHOLE, (new.id,))
        return find(connection, new.id)


def create_catch_up(connection: Connection, document: Document, ids: Sequence[str]) -> tuple[Job | None, bool]:
    """Make a job of documents that changed while their index took none.

    One that nobody has begun to list takes the ids up, each once, or does all of it anyhow, as with a fan-out.

    Args:
        connection: Postgres.
        document: Which, as it was last read; the job is for the generation that is in force now.
        ids: Which of its documents, each once.

    Returns:
        The job, once it is there for good, and whether it was made just now; None if the index is no longer in force.
    """
    with connection.transaction():
        generation = lock_document(connection, document.index_name)
        if generation is None:
            return None, False
        standing = [one for one in locked_new(connection, document.index_name) if one.generation == generation]
        new = _still_new(standing, JobKind.CATCH_UP, None)
        if new is None:
            job_id = insert(connection, document, JobKind.CATCH_UP, generation)
        else:
            job_id = new.id
            connection.execute(_JOIN_WHOLE, (job_id,))
        if new is None or new.kind is JobKind.CATCH_UP:
            # Nobody else adds to it before this transaction ends: the document is locked.
            connection.execute(_POSTPONE, (job_id, list(ids)))
        return find(connection, job_id), new is None


def widen(connection: Connection, document: Document, job_id: int, error: str) -> Job | None:
    """Put a refresh of the whole document in the place of a fan-out: nobody can say which documents it leads to.

    Returns:
        The refresh, which is listed after this, hence sees what caused the fan-out; None if the index is no longer in
        force.
    """
    with connection.transaction():
        made = create(connection, document, JobKind.REFRESH)
        if made is not None:
            _end(connection, job_id, JobState.CANCELLED, f"Job {made.id} takes its place: {error}")
        return made


def _same(jobs: Sequence[Job], kind: JobKind, where: str | None) -> Job | None:
    """One that is asked for again."""
    return next((one for one in jobs if (one.kind, one.where, one.fills) == (kind, where, kind.is_whole)), None)


def _still_new(jobs: Sequence[Job], kind: JobKind, rate: float | None) -> Job | None:
    """One whose ids nobody has begun to list: whatever made this one necessary will be seen by the lister."""
    return next(
        (
            one
            for one in jobs
            if one.state is JobState.NEW
            and one.kind.covers(kind)
            and one.fills is one.kind.is_whole
            and not one.is_paused
            and sum((one.cause or {}).values()) < CAUSE_IMAGES_MAX
            and one.rate in (None, rate)
        ),
        None,
    )


def lock_document(connection: Connection, index_name: str) -> int | None:
    """Keep other jobs of an index from being made until the transaction ends; the generation in force, if any."""
    row = connection.execute(_LOCK_DOCUMENT, (index_name,)).fetchone()
    return None if row is None else int(row[0])


def insert(
    connection: Connection,
    document: Document,
    kind: JobKind,
    generation: int,
    *,
    where: str | None = None,
    rate: float | None = None,
    cause: Mapping[str, Sequence[Any]] | None = None,
) -> int:
    """A job as such: for `create` and for who lists its ids at once. Its id."""
    reasons = (where, rate, kind.is_whole, None if cause is None else _stored(cause))
    values = (kind, document.name, document.index_name, generation, *reasons)
    row = connection.execute(_CREATE, values).fetchone()
    assert row is not None  # noqa: S101 - an INSERT returns a row
    return int(row[0])


def _stored(cause: Mapping[str, Sequence[Any]]) -> Jsonb:
    """A cause as it is kept."""
    return Jsonb(cause, dumps=dump_images)


def advance(connection: Connection, job_id: int) -> Job:
    """Let a job whose pages are all done go on to its next state; if it is not as far as that, nothing happens.

    At the end of a whole job the document is filled, in the same transaction, if the job's generation is still in force
    and not halted, and if no change may have been missed since the job was made.

    Raises:
        JobError: There is no such job, or no longer.
    """
    with connection.transaction():
        connection.execute(_LOCK_DOCUMENT_OF, (job_id,))
        is_through = connection.execute(_IS_THROUGH, (job_id,)).fetchone() == (True,)
        job = find(connection, job_id)
        if is_through and job.kind.is_whole and job.state is JobState.LISTED:
            connection.execute(_WRITTEN, (job_id,))
        elif is_through:
            _end(connection, job_id, JobState.DONE, None)
            if job.fills:
                store.mark_filled(connection, job.document, job.generation)
    return find(connection, job_id)


def fail(connection: Connection, job_id: int, error: str) -> None:
    """End a job that cannot be done, with what `cancel` says of that; nothing happens if it is finished, or gone."""
    with suppress(JobError), connection.transaction():
        connection.execute(_LOCK_DOCUMENT_OF, (job_id,))
        _give_up(connection, find(connection, job_id), JobState.FAILED, error)


def pause(connection: Connection, job_id: int) -> Job:
    """Take no more pages of a job from now on; what is in hand is finished.

    Raises:
        JobError: There is no such job, or it is finished.
    """
    return _change(connection, _PAUSE, job_id)


def resume(connection: Connection, job_id: int) -> Job:
    """Go on with a job that is paused.

    Raises:
        JobError: There is no such job, or it is finished.
    """
    return _change(connection, _RESUME, job_id)


def set_rate(connection: Connection, job_id: int, rate: float | None) -> Job:
    """Let a job write so many documents per second at most, from now on.

    Raises:
        JobError: There is no such job, or it is finished.
    """
    return _change(connection, _SET_RATE, job_id, rate)


def _change(connection: Connection, change: str, job_id: int, *values: object) -> Job:
    query = sql.SQL(_CHANGE).format(change=sql.SQL(change), unfinished=UNFINISHED)
    is_changed = connection.execute(query, (job_id, *values)).fetchone() is not None
    job = find(connection, job_id)
    if not is_changed:
        raise _finished(job)
    return job


def cancel(connection: Connection, job_id: int, reason: str = "by hand") -> Job:
    """End a job: pages that are not yet written are dropped, what is written stays.

    If documents may be stale without it (it is owed), the document counts as not filled from then on, until
    `syncer apply` or `syncer backfill` has written all of it. That holds for what other fan-outs have left to it, too.

    Raises:
        JobError: There is no such job, or it is finished.
    """
    with connection.transaction():
        connection.execute(_LOCK_DOCUMENT_OF, (job_id,))
        job = find(connection, job_id)
        if not _give_up(connection, job, JobState.CANCELLED, reason):
            raise _finished(job)
    return find(connection, job_id)


def _give_up(connection: Connection, job: Job, state: JobState, reason: str) -> bool:
    """Whether it was not finished already."""
    is_ended = _end(connection, job.id, state, reason)
    if is_ended and job.kind.is_owed:
        mark_unfilled(connection, [job.index_name])
    return is_ended


def _end(connection: Connection, job_id: int, state: JobState, error: str | None) -> bool:
    """Whether it was not finished already."""
    query = sql.SQL(_END).format(unfinished=UNFINISHED)
    is_ended = connection.execute(query, (job_id, state, error)).rowcount == 1
    if is_ended:
        connection.execute(_DROP_PAGES, (job_id,))
        connection.execute(_DROP_POSTPONED, (job_id,))
        connection.execute(sql.SQL(_PRUNE).format(unfinished=UNFINISHED), (FINISHED_KEPT_MAX, FINISHED_KEPT_DAYS))
    return is_ended


def _finished(job: Job) -> JobError:
    return JobError(f"Job {job.id} is {job.state} already", hint="To see all jobs: syncer jobs list")


def mark_unfilled(connection: Connection, index_names: Sequence[str]) -> None:
    """Remember that changes of these documents may have been missed: no job that is there now makes up for it."""
    with connection.transaction():
        store.mark_unfilled(connection, index_names)
        connection.execute(sql.SQL(_FILLS_NO_MORE).format(unfinished=UNFINISHED), (list(index_names),))
