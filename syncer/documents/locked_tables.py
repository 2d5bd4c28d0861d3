"""Locked tables: a document whose table stays locked is suspended, so that the others do not wait for it.

The lock is one of an ALTER TABLE, or of one that waits for a long transaction. A lock of a few seconds is waited for.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from syncer.base.errors import DocumentError
from syncer.base.postgres import Connection, locking
from syncer.documents.registry import Document
from syncer.lineage import fingerprint

ATTEMPTS_MAX = 6
"""How many attempts in a row meet a locked table, half a second each, before its document is suspended."""

# Postgres shows the process and the role of any session, also to a role without privileges.
_BLOCKER = """
SELECT format('process %s of role %I', a.pid, a.usename)
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.relation = to_regclass($1) AND l.mode = 'AccessExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY l.granted DESC LIMIT 1
"""


def require_unlocked(connection: Connection, document: Document) -> None:
    """Check that no table of a document is locked, and that no session waits to lock it.

    Raises:
        DocumentError: One is; the error names it, and the session that holds the lock.
    """
    for relation in fingerprint.lockable(document.dependencies.shapes):
        try:
            with connection.transaction():
                connection.execute(locking([relation]) + sql.SQL(" NOWAIT"))
        except psycopg.errors.LockNotAvailable:
            row = connection.execute(_BLOCKER, (relation,)).fetchone()
            raise DocumentError(
                f"The table {relation}, which {document.name} reads, is locked",
                hint=f"By {'another session' if row is None else row[0]}, or by one that it waits for: see\n"
                "pg_stat_activity and pg_blocking_pids(). The document resumes by itself once the lock is released.",
                document=document.name,
                revision=document.revision,
            ) from None
        except psycopg.ProgrammingError:  # it is gone, say: the next write finds out and reports it
            continue
