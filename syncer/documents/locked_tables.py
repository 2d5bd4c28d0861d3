"""Locked tables: a document whose table stays locked is suspended, so that the others do not wait for it.

The lock is one of an ALTER TABLE, or of one that waits for a long transaction. A lock of a few seconds is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from syncer.base.errors import DocumentError, Fault
from syncer.base.postgres import Connection, locking
from syncer.base.retry import Outages
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.lineage import fingerprint

LOCKED_SECONDS_MAX = 10.0
"""How long to wait for a locked table before its documents are suspended."""

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

    @contextmanager
    def watched(self, connection: Connection, index_name: str) -> Iterator[None]:
        """Enclose what locks the tables of a document.

        Raises:
            DocumentError: One of them has been locked for too long.
            psycopg.errors.LockNotAvailable: One of them is locked; it is worth retrying.
        """
        try:
            yield
        except psycopg.errors.LockNotAvailable:
            self.met(connection, index_name)
            raise
        self._outages.over(index_name)

    def met(self, connection: Connection, index_name: str) -> None:
        """Record that a lock was not available for a document; return if it is worth retrying.

        Raises:
            DocumentError: One of its tables has been locked for too long.
        """
        seconds = self._outages.failed(index_name)
        if seconds <= LOCKED_SECONDS_MAX:
            return
        document = next((one for one in registry.documents(connection) if one.index_name == index_name), None)
        if document is not None and (table := locked_table(connection, document)) is not None:
            row = connection.execute(_BLOCKER, (table,)).fetchone()
            raise DocumentError(
                f"its table {table} has been locked for {seconds:.0f} s",
                hint=f"By {'another session' if row is None else row[0]}, or one that it waits for: see\n"
                "pg_stat_activity and pg_blocking_pids(). It resumes by itself once the lock is released.",
                document=document.name,
                revision=document.revision,
                fault=Fault.UNAVAILABLE,
            )


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
