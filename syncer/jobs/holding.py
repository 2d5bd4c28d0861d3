"""Holding: which open jobs may yet write which documents. A document that differs until then has not drifted.

A job holds the ids in its chunks, and those that it has not come to. While it walks ranges of ids, that is what is
beyond the last range that was listed; before its listing begins, and while one statement lists all, that is any id. A
job that cleans up in the end holds what only Elasticsearch has until then.

Ask this *before* the documents are read for the last time. A job that is through with a document when asked has
written it, which that read shows. In the other order the job could finish in between, and nothing would explain the
difference seen before.
"""

from __future__ import annotations

from collections.abc import Collection

from syncer.base.postgres import Connection
from syncer.documents import ranges
from syncer.documents.queries import castable, is_text, query_of
from syncer.documents.ranges import IdRange
from syncer.documents.registry import Document
from syncer.documents.snapshot import reading
from syncer.jobs.model import Job, JobState

_LISTED_TO = "SELECT listed_to FROM syncer.job WHERE id = $1"
_UP_TO = "SELECT d._id::text FROM ({select}) AS d WHERE d._id = ANY ($1::text[]::{id_type}[]) AND {in_range}"
_IN_CHUNKS = """
SELECT DISTINCT i.id FROM syncer.job_chunk AS c CROSS JOIN unnest(c.ids) AS i (id) WHERE c.job = $1 AND i.id = ANY ($2)
"""


def held(
    connection: Connection, document: Document, jobs: Collection[Job], ids: Collection[str], orphans: Collection[str]
) -> dict[str, list[int]]:
    """Return for each of these documents the jobs that may yet write it.

    Args:
        connection: To Postgres.
        document: The definition.
        jobs: Unfinished jobs of the document's index, as they were read before this call.
        ids: Documents that differ.
        orphans: Those of them that only Elasticsearch has, or has a copy too many of.
    """
    found: dict[str, list[int]] = {}
    writable = [id_ for id_ in ids if is_text(id_)]  # no job can write the others
    for job in jobs:
        is_listing = not job.is_listed and job.state is not JobState.CLEANING_UP
        # Read before the chunks: what is listed meanwhile counts as beyond.
        holds = set(writable) - _listed(connection, document, job, writable) if is_listing else set()
        holds.update(id_ for (id_,) in connection.execute(_IN_CHUNKS, (job.id, writable)))
        if job.kind.is_whole and not (job.is_listed and job.state is JobState.CLEANING_UP):
            holds.update(orphans)
        for id_ in holds:
            found.setdefault(id_, []).append(job.id)
    return found


def _listed(connection: Connection, document: Document, job: Job, ids: list[str]) -> set[str]:
    """Return those of these ids that the SELECT returns, and that a job's listing has passed."""
    (listed_to,) = connection.execute(_LISTED_TO, (job.id,)).fetchone() or (None,)
    if listed_to is None:
        return set()
    query = query_of(_UP_TO, document, in_range=ranges.condition(document, IdRange(through=listed_to)))
    with reading(connection, document):
        return {id_ for (id_,) in connection.execute(query, (castable(connection, document, ids),))}
