"""Pending jobs: which jobs may yet write which documents. A document that differs until then has not drifted.

Ask this *before* the last read of the documents. A job that is done with a document when asked has written it, which
the read shows. In the other order the job could finish in between, and nothing would explain the difference seen
before. A job created in between comes from a change that was still in flight when it was asked; re-checks wait for such
changes.

The jobs are read before their chunks, so that none is missed. A job without chunks by then is judged by its state
before. At worst it has finished meanwhile, which the read shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from syncer.base.postgres import Connection, bounded
from syncer.documents import affected
from syncer.documents.queries import is_text
from syncer.documents.registry import Document
from syncer.jobs.model import Job, JobKind, JobState, unfinished

_HELD = """
SELECT DISTINCT p.job, i.id FROM syncer.job_chunk AS p CROSS JOIN unnest(p.ids) AS i (id)
WHERE p.job = ANY ($1) AND i.id = ANY ($2)
"""
_TOUCHED = "SELECT touched.id FROM ({touched}) AS touched (id) WHERE touched.id = ANY ($2)"
_JOBS_SECONDS = 60.0
"""How long finding the jobs of some suspects may take; after that, every job may write every suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A job that may yet write a document.

    Args:
        is_certain: Whether it will: one of its chunks has the document, or it is an unlisted fan-out that touches it.
        is_cleanup: Whether it writes only documents that Postgres lacks or has in another place.
    """

    job: Job
    is_certain: bool = False
    is_cleanup: bool = False


def pending(
    connection: Connection, document: Document, ids: Sequence[str], *, seconds: float
) -> dict[str, tuple[Pending, ...]]:
    """Return the jobs that may yet write each of these documents, certain ones first. Ask before the last read.

    A query takes at most ``seconds``; a job that is unknown by then counts as possible. The connection is used for
    nothing else meanwhile.
    """
    ids = [one for one in ids if is_text(one)]  # no job can write the others
    jobs = unfinished(connection, document.index_name) if ids else []
    if not jobs:
        return {}
    try:
        with bounded(connection, seconds=seconds):
            held = set(connection.execute(_HELD, ([job.id for job in jobs], list(ids))))
    except psycopg.errors.QueryCanceled:
        return dict.fromkeys(ids, tuple(Pending(job=job) for job in jobs))
    found: dict[str, list[Pending]] = {id_: [] for id_ in ids}
    for job in jobs:
        for id_ in (one for one in found if (job.id, one) in held):
            found[id_].append(Pending(job=job, is_certain=True))
        others = [id_ for id_ in found if (job.id, id_) not in held]
        for id_, one in _unlisted(connection, document, others, job=job, seconds=seconds).items():
            found[id_].append(one)
    return {id_: tuple(sorted(some, key=lambda one: not one.is_certain)) for id_, some in found.items() if some}


def _unlisted(
    connection: Connection, document: Document, ids: Sequence[str], *, job: Job, seconds: float
) -> dict[str, Pending]:
    """Return the documents that a job may write although none of its chunks has them."""
    is_listed = job.state not in (JobState.NEW, JobState.LISTING)
    if job.kind is JobKind.FAN_OUT and not is_listed:
        touched = _touched(connection, document, ids, job=job, seconds=seconds)
        if touched is not None:
            return dict.fromkeys(touched, Pending(job=job, is_certain=True))
    if not is_listed:
        return dict.fromkeys(ids, Pending(job=job))
    if job.kind.is_whole and job.state is not JobState.CLEANED_UP:
        return dict.fromkeys(ids, Pending(job=job, is_cleanup=True))
    return {}


def _touched(
    connection: Connection, document: Document, ids: Sequence[str], *, job: Job, seconds: float
) -> list[str] | None:
    """Return the documents that the cause of a fan-out touches; None if that cannot be found out in time."""
    if job.revision != document.revision:
        return None
    query = sql.SQL(_TOUCHED).format(touched=affected.touched_by(document, job.cause or ()))
    try:
        with bounded(connection, seconds=seconds):
            return [row[0] for row in connection.execute(query, (job.id, list(ids)))]
    except psycopg.Error:
        if connection.closed:
            raise
        return None


@dataclass(slots=True, kw_only=True)
class PendingDocuments:
    """Counts documents that differ because a job has yet to write them.

    Args:
        connection: To Postgres; used for nothing else during a query.
    """

    document: Document
    connection: Connection
    documents: int = 0
    jobs: set[int] = field(default_factory=set)

    def forget(self) -> None:
        """Reset the counts."""
        self.documents, self.jobs = 0, set()

    def coming(self, ids: Sequence[str]) -> dict[str, tuple[Pending, ...]]:
        """Return the jobs that may yet write these documents. Ask before the last read."""
        return pending(self.connection, self.document, ids, seconds=_JOBS_SECONDS)

    def note(self, coming: Iterable[Pending], *, is_orphan: bool) -> bool:
        """Count a differing document if one of these jobs has yet to write it; return whether it was."""
        jobs = {one.job.id for one in coming if one.job.kind.is_pending and (is_orphan or not one.is_cleanup)}
        self.documents += bool(jobs)
        self.jobs |= jobs
        return bool(jobs)

    def among(self, ids: Iterable[str], *, are_orphans: bool = False) -> set[str]:
        """Return, and count, those that a job has yet to write; earlier reads of them no longer matter."""
        return {id_ for id_, some in self.coming(list(ids)).items() if self.note(some, is_orphan=are_orphans)}
