"""Unavailable indices: an index that cannot be written for now delays no other index, and no change is lost.

After a component has waited long enough for an index, it marks the index as unavailable. There are two reasons:

- Elasticsearch accepts no documents, and says so itself: a shard has no primary, or a disk is full. See
  `syncer.indexing.bulk_errors`.
- A table that the document reads is locked, as by an ALTER TABLE, or by one that waits for a long transaction. A lock
  of a few seconds is waited for.

While the mark is there, workers leave all changes of the index to a refresh, which writes every document: see
`syncer.worker.resolve`. No job of the index is listed, and no chunk of one is taken. Job workers check from time to
time whether the index is available again. Then the mark is removed, its jobs continue, and workers write to it again.

Why nothing is lost: a change creates the refresh, or joins one whose listing has not begun, and that is committed
before the offset of the change is. If the worker dies in between, the next owner of the partition handles the change.
The refresh is listed and written after that commit, so it sees the change. A mark that comes late or goes early costs
only time: the refresh is done whether its index is marked or not.

Why it does not grow without bound: while an index is marked, nothing is listed, so one new refresh takes up all
changes. A refresh that was being written when the index became unavailable may be beside it.
"""

from __future__ import annotations

import elasticsearch
import psycopg
import structlog
from psycopg import sql

from syncer.base import events
from syncer.base.error_policy import Action, decide
from syncer.base.errors import IndexUnavailableError
from syncer.base.postgres import Connection, locking
from syncer.base.retry import Outages
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.elasticsearch.reader import Holdings
from syncer.lineage import fingerprint

LOCKED_SECONDS_MAX = 10.0
"""How long to wait for a locked table before the others continue without the documents that read it."""

# Postgres shows the process and the role of any session, also to a role without privileges.
_BLOCKER = """
SELECT format('process %s of role %I', a.pid, a.usename)
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.relation = to_regclass($1) AND l.mode = 'AccessExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY l.granted DESC LIMIT 1
"""


class LockedTables:
    """For how long tables of documents have been locked. Safe to share between the threads of a component."""

    def __init__(self) -> None:
        self._outages = Outages()

    def met(self, connection: Connection, index_name: str) -> None:
        """Record that a lock was not available for a document; return if it is worth retrying.

        Raises:
            IndexUnavailableError: One of its tables has been locked for too long.
        """
        seconds = self._outages.failed(index_name)
        if seconds <= LOCKED_SECONDS_MAX:
            return
        document = next((one for one in registry.documents(connection) if one.index_name == index_name), None)
        if document is not None and (table := locked_table(connection, document)) is not None:
            row = connection.execute(_BLOCKER, (table,)).fetchone()
            raise IndexUnavailableError(
                f"{index_name} is not written, since its table {table} has been locked for {seconds:.0f} s",
                hint=f"By {'another session' if row is None else row[0]}, or one that it waits for: see\n"
                "pg_stat_activity and pg_blocking_pids(). It goes on by itself once the lock is released.",
                index_name=index_name,
            )

    def over(self, index_name: str) -> None:
        """Record that its tables could be locked."""
        self._outages.over(index_name)


def locked_table(connection: Connection, document: Document) -> str | None:
    """Return a table of a document that is locked, or that a session waits to lock; None if there is none."""
    for relation in fingerprint.lockable(document.dependencies.shapes):
        try:
            with connection.transaction():
                connection.execute(locking([relation]) + sql.SQL(" NOWAIT"))
        except psycopg.errors.LockNotAvailable:
            return relation
        except psycopg.ProgrammingError:  # it is gone, say: the next write finds out and reports it
            continue
    return None


def mark(connection: Connection, error: IndexUnavailableError) -> None:
    """Mark an index as unavailable, so that nothing waits for it until it is available again."""
    reason = "\n".join(part for part in (error.message, error.hint) if part)
    if registry.mark_unavailable(connection, error.index_name, reason):
        log = structlog.get_logger()
        log.error(events.DOCUMENT_DEFERRED, index=error.index_name, reason=error.message, hint=error.hint)


def look(connection: Connection, holdings: Holdings) -> None:
    """Remove the marks of indices that Elasticsearch calls available, and of which no table is locked.

    An index that is gone is released too: the next write finds out and reports it.
    """
    if not registry.is_any_unavailable(connection):
        return
    for document in registry.documents(connection):
        if document.unavailable is None or not _is_over(connection, holdings, document):
            continue
        seconds = registry.mark_available(connection, document.index_name)
        if seconds is not None:
            log = structlog.get_logger()
            log.info(events.DOCUMENT_RESUMED, index=document.index_name, outage_seconds=round(seconds, 3))


def _is_over(connection: Connection, holdings: Holdings, document: Document) -> bool:
    """Whether an index can be written again, as far as can be told."""
    if locked_table(connection, document) is not None:
        return False
    try:
        return holdings.takes_documents(document.index_name)
    except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
        return decide(error) is not Action.RETRY
