"""Listing: which documents a job writes, as pages of ids in Postgres.

Guarantees: the pages of a job are there all or none; one lister at a time, and one sweeper; the ids are those of a
statement that began after the job's state said ``listing``, with the document's relations locked against ALTER
TABLE and of the shape that the definition was applied to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from syncer.jobs import Job, JobKind
from syncer.postgres import Connection
from syncer.store import Document


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
        page: How many ids a page has at most.
        rate: Documents per second at most.

    Returns:
        The job; None if the document's index is no longer in force.
    """


def list_pages(
    connection: Connection,
    job: Job,
    document: Document,
    *,
    page: int,
    sequence_numbers: Mapping[int, int] | None = None,
) -> bool:
    """List the ids of a job that is NEW or LISTING, on the server, in one statement.

    Args:
        connection: Postgres; in no transaction.
        job: Which.
        document: The definition in force for its index.
        page: How many ids a page has at most; one of a job with a rate has no more than a second's.
        sequence_numbers: The greatest ``_seq_no`` of each shard of the index, read before this; remembered for the
            sweep.

    Returns:
        Whether that is done. If not: somebody else is at it, or the job is no longer to be listed, or its condition failed
        on the data, which is now the job's error.

    Raises:
        DocumentError: The document is to halt.
        psycopg.Error: To be tried again.
    """


def sweep(connection: Connection, job: Job, strays: Iterable[Sequence[str]]) -> bool:
    """Make pages of ids that only Elasticsearch has, for a job that is WRITTEN: it is SWEPT then, with all of them.

    Args:
        connection: Postgres; in no transaction. It is taken while the strays are asked for.
        job: Which.
        strays: Pages of ids, read as they come, and only if this is the only sweeper.

    Returns:
        Whether that is done. If not: somebody else is at it, or the job is no longer to be swept.
    """
