"""Schema watch: checks every few seconds that what the documents rely on is still there, also while nothing is written.

Guarantees, within one turn, and even if no change ever comes of it:

- Documents are suspended that read a table that is replaced, renamed or without its triggers, one that is made unlogged
  or gets a partition that is unlogged or foreign, or a column or a view that changes.
- A daemon ends whose schema syncer was altered, since its triggers may have lost changes, or upgraded beyond it.
- A table that was written anew, and partitions that come or go with their rows, become a change.

Every daemon watches: suspending twice is suspending once, and a table is noted by one. However many tables a document
reads, a turn sends the same few statements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from syncer.base import migrations
from syncer.base.error_policy import at_work_for
from syncer.base.errors import DocumentError
from syncer.base.formatting import elapsed
from syncer.base.lifecycle import Stop
from syncer.base.postgres import Connection, Link
from syncer.base.retry import repeat
from syncer.capture import install
from syncer.documents import registry, suspend
from syncer.documents.registry import Definitions, Document
from syncer.documents.snapshot import require_shape, uncaptured
from syncer.jobs import queue
from syncer.jobs.model import JobKind

REST_SECONDS = 5.0
"""How long to rest between two turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport:
    """What one turn found: the number of documents, those it suspended, and the tables it noted as written anew."""

    documents: int
    suspended: tuple[str, ...]
    noted: tuple[str, ...]


class Watch:
    """Watches what the active documents rely on."""

    def __init__(self, *, connect: Callable[[], Connection]) -> None:
        self._link = Link(self._connected)
        self._connect = connect
        self._definitions = Definitions()
        self._failures: dict[str, str] = {}
        """Why triggers could not be enabled, as logged last, by table."""

    def run(self, stop: Stop) -> None:
        """Watch until told to stop."""
        try:
            repeat(self._turn, reset=self.close, stop=stop, component="watch")
        finally:
            self.close()

    def _turn(self) -> float:
        self.run_once()
        return REST_SECONDS

    def run_once(self) -> WatchReport:
        """Note tables that were written anew, and suspend each document whose tables have changed."""
        with self._link.used() as connection:
            migrations.require_current(connection)
            noted = install.note(connection)
            if noted:
                structlog.get_logger().info("watch.files_noted", relations=noted)
            documents = self._definitions.refresh(connection)
            tables = sorted({table for document in documents for table in document.dependencies.tables})
            failures = install.arm(connection) if (lost := install.lost(connection, tables)) else {}
            if failures != self._failures:
                self._failures = failures
                for relation, reason in failures.items():
                    structlog.get_logger().warning("watch.trigger_not_enabled", relation=relation, error=reason)
            suspended = []
            for document in documents:
                error = fault(connection, document, lost)
                if error is not None and suspend.suspend(connection, error):
                    suspended.append(document.name)
        return WatchReport(documents=len(documents), suspended=tuple(suspended), noted=tuple(noted))

    def close(self) -> None:
        """Close the connection; the next turn opens another one."""
        self._link.close()

    def _connected(self) -> Connection:
        self._definitions.forget()  # what answers now may be another state of the database
        return self._connect()


def fault(connection: Connection, document: Document, lost: Collection[str] | None = None) -> DocumentError | None:
    """Return the error for which a document has to be suspended; None if all is as it was applied.

    ``lost`` are tables whose changes are not captured; None to look for them among those of the document.
    """
    tables = sorted(document.dependencies.tables)
    try:
        with at_work_for(document.name, document.revision):
            require_shape(connection, document)
            lost = install.lost(connection, tables) if lost is None else lost
            if uncaptured_tables := [table for table in tables if table in lost]:
                raise uncaptured(connection, document, uncaptured_tables)
    except DocumentError as error:
        return error
    return None


def resume(connection: Connection, index_name: str) -> bool:
    """Resume a document that could be written just now, with a refresh if it is stale.

    False if it is not suspended, or if its tables are not as they were applied and captured.
    """
    # Rule: refresh-with-the-resumption.
    with connection.transaction():
        active = {document.index_name: document for document in registry.documents(connection)}
        document = active.get(index_name)
        if document is None or fault(connection, document) is not None:
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
        document=document.name,
        index=index_name,
        outage_seconds=round(seconds, 3),
        is_stale=is_stale,
        timeline=f"{document.name} is resumed, after {elapsed(seconds)}.",
    )
    return True
