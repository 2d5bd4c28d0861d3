"""Unwell: an index that takes no documents for now keeps those of no other index waiting, and loses nothing.

Whoever has waited for an index for long enough, and is told by Elasticsearch itself that it is unwell (a shard has no
primary, or a disk is full), marks it: see `syncer.refusal`. From then on a worker leaves what changes touch of it to a
job, a catch-up; no page of it is taken, and none of its jobs is listed. Lanes ask from time to time whether it is well.
Then the mark goes, its jobs go on, and workers write it again.

Why nothing is lost: the ids are in Postgres, in one commit with the job, before the offsets of the changes that touch
them are committed; who dies in between leaves the changes to whoever has the partition next. Whoever lists the job, or
composes its documents, begins after that commit, hence sees the changes. A mark that is late, or goes too early, costs
time only: a catch-up is done whether its index is marked or not.

Why it does not grow without bound: while an index is marked one catch-up takes up all ids, each once; so it has no
more of them than there are documents. A fan-out that takes up no more is followed by one refresh, which takes up all
that follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import elasticsearch
import structlog

from syncer import events, jobs, store
from syncer.errors import UnwellError
from syncer.holdings import Holdings
from syncer.policy import Action, decide
from syncer.postgres import Connection
from syncer.store import Document


def mark(connection: Connection, error: UnwellError) -> None:
    """Let nobody wait for an index any more, until Elasticsearch says that it is well."""
    said = "\n".join(part for part in (error.message, error.hint) if part)
    if store.mark_unwell(connection, error.index_name, said):
        log = structlog.get_logger()
        log.error(events.DOCUMENT_POSTPONED, index=error.index_name, reason=error.message, hint=error.hint)


def leave(connection: Connection, document: Document, ids: Sequence[str]) -> None:
    """Leave documents to a job; once this returns they are in good hands, and the offsets of changes may be committed.

    Args:
        connection: Postgres.
        document: Which, as it was read after the changes were received.
        ids: Which of its documents, each once.
    """
    job, is_new = jobs.create_catch_up(connection, document, ids)
    if job is not None and is_new:
        log = structlog.get_logger()
        log.info(events.JOB_CREATED, job=job.id, kind=job.kind, document=job.document, cause=job.cause)


def look(connection: Connection, holdings: Holdings) -> None:
    """Let what waits for an index go on once Elasticsearch says that it is well.

    One that is gone is written again too: whoever does so meets what it is, and says it.
    """
    for index_name in store.unwell(connection):
        try:
            is_over = holdings.takes_documents(index_name)
        except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
            is_over = decide(error) is not Action.RETRY
        if is_over and (seconds := store.mark_well(connection, index_name)) is not None:
            log = structlog.get_logger()
            log.info(events.DOCUMENT_RESUMED, index=index_name, outage_seconds=round(seconds, 3))
