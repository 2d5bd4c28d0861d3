"""Rules of jobs, taken out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from syncer.base.errors import Fault
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.jobs import model as jobs_of, queue
from syncer.jobs.model import Job, JobKind, JobState
from syncer.verify.pending_jobs import Pending, PendingDocuments
from syncer.worker.foreground import JobFollower
from tests.mutations import Instead


def is_never_left_alone(original: Instead, self: JobFollower, connection: Connection, job: Job) -> bool:
    """That a job does not move does not count as long as a job worker lives."""
    self._moved_at = time.monotonic()
    is_left: bool = original(self, connection, job)
    return is_left


def resumes_without_a_refresh(_: Instead, connection: Connection, document: Document, fault: Fault) -> bool:
    """The suspension ends, and nothing else is done."""
    return registry.resume(connection, document, fault) is not None


def joins_whatever_its_state(original: Instead, jobs: Sequence[Job], kind: JobKind, rate: float | None) -> Job | None:
    """A job that is being listed, or was, takes up others."""
    joined: Job | None = original([dataclasses.replace(one, state=JobState.NEW) for one in jobs], kind, rate)
    return joined


def takes_all_for_new(original: Instead, connection: Connection, index_name: str, cause: Jsonb) -> list[Job]:
    """A fan-out that is being listed, or was, takes up another cause."""
    found = jobs_of.locked_unfinished(connection, index_name)
    return [dataclasses.replace(one, state=JobState.NEW) for one in found]


def whatever_it_waits_for(original: Instead, connection: Connection, index_name: str, cause: Jsonb) -> list[Job]:
    """A fan-out joins any job that is new."""
    return [one for one in jobs_of.locked_unfinished(connection, index_name) if one.state is JobState.NEW]


def for_the_revision_of_now(
    original: Instead, connection: Connection, document: Document, cause: Mapping[str, Sequence[Any]]
) -> Job | None:
    """A change that was received under an older revision makes a job of this one."""
    with connection.transaction():
        now = queue.lock_document(connection, document.index_name)
        late = document if now is None else dataclasses.replace(document, revision=now)
        made: Job | None = original(connection, late, cause)
        return made


def gives_up_silently(original: Instead, connection: Connection, job: Job, state: JobState, reason: str) -> bool:
    """A document counts as loaded though a job that is pending was given up."""
    return queue._end(connection, job.id, state, reason)


def not_of_new_initial_loads(original: sql.Composed) -> sql.Composed:
    """A load that nobody has begun to list counts as one that has taken up nothing."""
    whole = original.as_string(None)
    part = "OR j.kind = 'initial_load' AND j.state = 'new'"
    if whole.count(part) != 1:
        raise ValueError(f"{part!r} does not occur exactly once in {whole!r}")
    return sql.Composed([sql.SQL(whole.replace(part, ""))])


def counts_before_it_begins(
    original: Instead,
    connection: Connection,
    job: Job,
    document: Document,
    *,
    chunk: int,
    sequence_numbers: Callable[[], Mapping[int, int]] | None = None,
) -> bool:
    """Sequence numbers are asked for before anybody can know that the job lists."""
    asked = None if sequence_numbers is None else sequence_numbers()
    numbers = None if asked is None else lambda: asked
    is_done: bool = original(connection, job, document, chunk=chunk, sequence_numbers=numbers)
    return is_done


def as_it_was(original: Instead, connection: Connection, job: Job) -> Job:
    """The cause of a job is what it was before its listing began."""
    return job


def nowhere_else(
    original: Instead,
    connection: Connection,
    job_id: int,
    ids: Iterable[str],
    *,
    everywhere: bool = False,
    **how: Any,
) -> tuple[int, int]:
    """What should not be there is deleted from one shard only."""
    put: tuple[int, int] = original(connection, job_id, ids, **how)
    return put


def without_cleans_up(original: Instead, *args: Any, **kwargs: Any) -> dict[str, Pending]:
    """What a job has yet to cleanup is not asked about."""
    return {id_: one for id_, one in original(*args, **kwargs).items() if not one.is_cleanup}


def owes_to_any_job(original: Instead, self: PendingDocuments, coming: Iterable[Pending], *, is_orphan: bool) -> bool:
    """What is left to a job that may be cancelled without harm is no drift."""
    found = {one.job.id for one in coming if is_orphan or not one.is_cleanup}
    self.documents += bool(found)
    self.jobs |= found
    return bool(found)
