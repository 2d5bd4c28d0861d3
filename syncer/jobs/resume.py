"""Resuming: a document that is suspended for a fault goes on by itself once the fault is over.

The faults are those of `syncer.base.errors.Fault`; `syncer.recovery.schema_watch` and `look` find out that one is over.
For any other reason a document stays suspended until `syncer apply`. While it is suspended, its changes are skipped, no
job of its index is listed, and no chunk of one is taken.

Why nothing is lost: one commit ends the suspension and creates a refresh, and no older job counts as the document's
load any more. A worker that skipped a change had received it, and then found the document suspended, or suspended it.
If it did so before that commit, the change is older than the refresh, whose listing begins after it. If it did so
later, the document is suspended again, and is resumed with another refresh. A change that was never captured, because
triggers were disabled or a table was another one, is older too: enabling a trigger, or altering a table, waits for
transactions that write to it.
"""

from __future__ import annotations

from contextlib import suppress

import elasticsearch
import structlog

from syncer.base.errors import Fault
from syncer.base.formatting import elapsed
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.documents.locked_tables import locked_table
from syncer.documents.registry import Document
from syncer.elasticsearch.reader import Holdings
from syncer.jobs import queue
from syncer.jobs.model import JobKind

_SETTLE_SECONDS = 2.0
"""How long a document stays suspended at least: an index that is being closed looks open for a moment yet."""
_SETTLED = f"""
SELECT index_name FROM syncer.document
WHERE suspended_by = '{Fault.UNAVAILABLE}' AND stale_since < clock_timestamp() - make_interval(secs => $1)
"""  # noqa: S608 - a constant of ours


def resume(connection: Connection, document: Document, fault: Fault) -> bool:
    """Resume a document whose fault is over, with a refresh; False if it is not suspended for that any more."""
    # Rule: refresh-with-the-resumption.
    with connection.transaction():
        seconds = registry.resume(connection, document, fault)
        if seconds is None:
            return False
        queue.mark_incomplete(connection, [document.index_name])
        queue.create(connection, document, JobKind.REFRESH)
    log = structlog.get_logger()
    log.info(
        "document.resumed",
        index=document.index_name,
        outage_seconds=round(seconds, 3),
        timeline=f"{document.index_name} is resumed, after {elapsed(seconds)}.",
    )
    return True


def look(connection: Connection, holdings: Holdings) -> None:
    """Resume the documents whose index takes documents again, and of which no table is locked."""
    settled = {name for (name,) in connection.execute(_SETTLED, (_SETTLE_SECONDS,)).fetchall()}
    for one in registry.documents(connection):
        if one.index_name in settled and locked_table(connection, one) is None:
            with suppress(elasticsearch.ApiError, elasticsearch.TransportError):  # it is gone, or Elasticsearch is down
                if holdings.takes_documents(one.index_name):
                    resume(connection, one, Fault.UNAVAILABLE)
