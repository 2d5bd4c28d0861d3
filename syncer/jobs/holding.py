"""Holding: which open jobs may yet write which documents. A document that differs until then has not drifted.

Ask this *before* the documents are read for the last time. A job that is through with a document when asked has
written it, which that read shows. In the other order the job could finish in between, and nothing would explain the
difference seen before.
"""

from __future__ import annotations

from collections.abc import Collection

from syncer.base.postgres import Connection
from syncer.documents.queries import is_text
from syncer.jobs.model import Job, JobState

_IN_CHUNKS = """
SELECT DISTINCT c.job, i.id FROM syncer.job_chunk AS c CROSS JOIN unnest(c.ids) AS i (id)
WHERE c.job = ANY ($1) AND i.id = ANY ($2)
"""


def held(
    connection: Connection, jobs: Collection[Job], ids: Collection[str], orphans: Collection[str]
) -> dict[str, list[int]]:
    """Return for each of these documents the jobs that may yet write it.

    Args:
        connection: To Postgres.
        jobs: Unfinished jobs of the document's index, as they were read before this call.
        ids: Documents that differ.
        orphans: Those of them that only Elasticsearch has, or has a copy too many of.
    """
    found: dict[str, list[int]] = {}
    if not jobs:
        return found
    writable = [id_ for id_ in ids if is_text(id_)]  # no job can write the others
    rows = connection.execute(_IN_CHUNKS, ([job.id for job in jobs], writable)).fetchall()
    for job in jobs:
        if not job.is_listed and job.state is not JobState.CLEANING_UP:  # not all of its ids are known yet
            holds = set(writable)
        else:
            holds = {id_ for number, id_ in rows if number == job.id}
            if job.kind.is_whole and not (job.is_listed and job.state is JobState.CLEANING_UP):
                holds |= set(orphans)
        for id_ in holds:
            found.setdefault(id_, []).append(job.id)
    return found
