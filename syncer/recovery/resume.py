"""Resuming: a suspended document that can be written again goes on by itself. See `syncer.documents.suspend`."""

from __future__ import annotations

import structlog

from syncer.base.formatting import elapsed
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.jobs import queue
from syncer.jobs.model import JobKind
from syncer.recovery import schema_watch


def resume(connection: Connection, index_name: str) -> bool:
    """Resume a document that could be written just now, with a refresh if it is stale.

    False if it is not suspended, or if its tables are not as they were applied and captured.
    """
    # Rule: refresh-with-the-resumption.
    with connection.transaction():
        document = next((each for each in registry.documents(connection) if each.index_name == index_name), None)
        if document is None or schema_watch.fault(connection, document) is not None:
            return False
        resumed = registry.resume(connection, document)
        if resumed is None:
            return False
        is_stale, seconds = resumed
        if is_stale:
            queue.mark_incomplete(connection, [index_name])
            occasion = "it was suspended, and changes may have been missed meanwhile"
            queue.create(connection, document, JobKind.REFRESH, occasion=occasion)
    structlog.get_logger().info(
        "document.resumed",
        index=index_name,
        outage_seconds=round(seconds, 3),
        is_stale=is_stale,
        timeline=f"{index_name} is resumed, after {elapsed(seconds)}.",
    )
    return True
