"""Owing: which jobs may yet come to which documents. What differs until then is on its way, and has not drifted.

To be asked *before* the last look at the documents. A job that is through with a document when it is asked about has
written it, which the look shows; asked the other way round, it could be through in between, and what was seen before
be blamed on nobody. A job that is made in between is of a change that was on its way to the workers when it was asked,
as any change may be: that is what patience is for.

The jobs are read before their pages, so that none is overlooked. One that has no pages then is judged by how it was,
and at worst is through meanwhile: the look shows that. What a fan-out leaves out is in a page of a job that was
there before it was listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from syncer import affected
from syncer.job import Job, JobKind, JobState, unfinished
from syncer.postgres import Connection, bounded
from syncer.store import Document

_HELD = """
SELECT p.job, i.id, bool_or(p.taken_by IS NOT NULL) FROM syncer.job_page AS p CROSS JOIN unnest(p.ids) AS i (id)
WHERE p.job = ANY ($1) AND i.id = ANY ($2) GROUP BY p.job, i.id
"""
_TOUCHED = "SELECT touched.id FROM ({touched}) AS touched (id) WHERE touched.id = ANY ($2)"
_JOBS_SECONDS = 60.0
"""How long it may take to find out which jobs come to some suspects; if it takes longer, they may come to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A job that may yet come to a document.

    Args:
        job: Which.
        is_certain: Whether it will: a page of it has the document, or a fan-out whose ids are not listed leads to it.
        is_in_hand: Whether a lane has that page.
        is_sweep: Whether it comes only to what Postgres lacks, or has in another place.
    """

    job: Job
    is_certain: bool = False
    is_in_hand: bool = False
    is_sweep: bool = False


def pending(
    connection: Connection, document: Document, ids: Sequence[str], *, seconds: float
) -> dict[str, tuple[Pending, ...]]:
    """The jobs that may yet come to each of these documents, those that will at first; to be asked before a last look.

    Args:
        connection: Nothing else is done on it meanwhile.
        document: Their definition, and so the index.
        ids: Which.
        seconds: How long each question may take; what is not known then may be.
    """
    jobs = unfinished(connection, document.index_name) if ids else []
    if not jobs:
        return {}
    try:
        with bounded(connection, seconds=seconds):
            rows = connection.execute(_HELD, ([job.id for job in jobs], list(ids))).fetchall()
    except psycopg.errors.QueryCanceled:
        return dict.fromkeys(ids, tuple(Pending(job=job) for job in jobs))
    held: dict[tuple[int, str], bool] = {(job_id, id_): is_in_hand for job_id, id_, is_in_hand in rows}
    found: dict[str, list[Pending]] = {id_: [] for id_ in ids}
    for job in jobs:
        for id_ in (one for one in found if (job.id, one) in held):
            found[id_].append(Pending(job=job, is_certain=True, is_in_hand=held[job.id, id_]))
        others = [id_ for id_ in found if (job.id, id_) not in held]
        for id_, one in _unlisted(connection, document, others, job=job, seconds=seconds).items():
            found[id_].append(one)
    return {id_: tuple(sorted(some, key=lambda one: not one.is_certain)) for id_, some in found.items() if some}


def _unlisted(
    connection: Connection, document: Document, ids: Sequence[str], *, job: Job, seconds: float
) -> dict[str, Pending]:
    """Those of the documents that a job may come to though none of its pages has them."""
    is_listed = job.state not in (JobState.NEW, JobState.LISTING)
    if job.kind is JobKind.FAN_OUT and not is_listed:
        touched = _touched(connection, document, ids, job=job, seconds=seconds)
        if touched is not None:
            return dict.fromkeys(touched, Pending(job=job, is_certain=True))
    if not is_listed:
        return dict.fromkeys(ids, Pending(job=job))
    if job.kind.is_whole and job.state is not JobState.SWEPT:
        return dict.fromkeys(ids, Pending(job=job, is_sweep=True))
    return {}


def _touched(
    connection: Connection, document: Document, ids: Sequence[str], *, job: Job, seconds: float
) -> list[str] | None:
    """Those of the documents that the cause of a fan-out leads to; None if that is not known in time."""
    if job.generation != document.generation:
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
class Owed:
    """What differs since a job has yet to write it.

    Args:
        document: Which definition, and so which index.
        asking: Nothing else is done on it while a question is asked.
        documents: How many documents are.
        jobs: The ids of those jobs.
    """

    document: Document
    asking: Connection
    documents: int = 0
    jobs: set[int] = field(default_factory=set)

    def forget(self) -> None:
        """Begin to count anew."""
        self.documents, self.jobs = 0, set()

    def coming(self, ids: Sequence[str]) -> dict[str, tuple[Pending, ...]]:
        """Which may yet come to these documents; to be asked before they are looked at."""
        return pending(self.asking, self.document, ids, seconds=_JOBS_SECONDS)

    def owe(self, coming: Iterable[Pending], *, is_stray: bool) -> bool:
        """Whether one of these jobs has yet to write a document that differs; then it is counted."""
        jobs = {one.job.id for one in coming if one.job.kind.is_owed and (is_stray or not one.is_sweep)}
        self.documents += bool(jobs)
        self.jobs |= jobs
        return bool(jobs)

    def among(self, ids: Iterable[str], *, are_strays: bool = False) -> set[str]:
        """Those that a job has yet to write, which are counted: what they were like when they were seen is over."""
        return {id_ for id_, some in self.coming(list(ids)).items() if self.owe(some, is_stray=are_strays)}
