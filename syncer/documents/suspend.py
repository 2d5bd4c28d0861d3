"""Suspending: a document that cannot be written waits, with a reason and a hint. Nothing is lost; others continue.

It is suspended for a locked or altered table, a missing trigger, a SELECT that fails, or an index that takes no writes.
Every few seconds it is tried: see `syncer.worker.job_loop`. Meanwhile its changes become causes of a fan-out, which
waits with its other jobs: see `syncer.worker.resolve`. If that would have too many causes, or if changes may not have
been captured, the document is *stale*, and is resumed with a refresh. `syncer apply` resumes it too, with a load.

Nothing is lost: a worker adds a change to the fan-out before it saves the change as handled. The fan-out is listed, or
a refresh is created, after the resumption, and sees it. The document's row is locked until the fan-out is joined, so
that the resumption comes before or after.

What differs in the catalogue suspends a document only if it matters: see `syncer.documents.reconsider`. If values may
differ and the document can go on, it is suspended as stale until it is tried, and so resumed with a refresh.

A suspension names the revision that failed, with the reason of the last attempt. The reason never quotes a row: more
people see the log and the status page than may see the rows.
"""

from __future__ import annotations

import psycopg
import structlog
from psycopg import sql

from syncer.base.errors import AlteredError, DocumentError, SuspendedError
from syncer.base.model import Role
from syncer.base.postgres import Connection, locking
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.lineage import fingerprint

LOCKED_ATTEMPTS_MAX = 6
"""How many attempts in a row meet a locked table, half a second each, before its document is suspended."""

# Postgres shows the process and the role of any session, also to a role without privileges.
_BLOCKER = """
SELECT format('process %s of role %I', a.pid, a.usename)
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.relation = to_regclass($1) AND l.mode = 'AccessExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY l.granted DESC LIMIT 1
"""


def require_active(document: Document) -> None:
    """Refuse to work on a suspended document."""
    if document.suspended is not None:
        why, _, hint = document.suspended.partition("\n")
        hint = f"{hint}\nA running daemon tries it every few seconds.".strip()
        if document.role is Role.BUILDING:
            begin, give_up = f"syncer index rebuild {document.name}", f"syncer index abort {document.name}"
            hint = f"{hint}\nTo begin anew: {begin}; to give it up: {give_up}"
        raise SuspendedError(
            f"{document.index_name} is suspended: {why}", hint=hint, document=document.name, revision=document.revision
        )


def suspend(connection: Connection, error: DocumentError) -> bool:
    """Suspend a document, unless it is suspended or another revision is active; return whether this call did it."""
    if isinstance(error, SuspendedError):
        if error.is_stale:
            registry.mark_stale(connection, error.document, error.revision)
        return False
    with connection.transaction():
        if isinstance(error, AlteredError) and _accept(connection, error):
            return False
        reason = f"{error.message}\n{error.hint}".rstrip()
        is_first = registry.suspend(
            connection, error.document, error.revision, reason=reason, ids=error.ids, is_stale=error.is_stale
        )
    if is_first:
        structlog.get_logger().error(
            "document.suspended",
            document=error.document,
            reason=error.message,
            hint=error.hint,
            timeline=f"{error.document} was suspended: {error.message}",
        )
    return is_first


def _accept(connection: Connection, error: AlteredError) -> bool:
    """Record that a document goes on with what it reads now; return whether all that it shows is the same."""
    from syncer.documents import reconsider  # noqa: PLC0415 - it imports sqlglot: slow to load, and seldom needed

    active = {(document.name, document.revision): document for document in registry.documents(connection)}
    document = active.get((error.document, error.revision))
    accepted = None if document is None else reconsider.reconsider(connection, document)
    if document is None or accepted is None:
        return False
    # Rule: stale-with-the-acceptance. The caller's transaction marks the document as stale.
    analysis, shown = accepted
    registry.accept(connection, document, analysis.shapes)
    if not shown:
        structlog.get_logger().info("document.unaffected", document=document.name, index=document.index_name)
        return True
    error.message = f"Values that {document.name} shows may have changed: {'; '.join(shown)}"
    error.hint = "It resumes by itself in a few seconds, and refreshes all documents."
    return False


def require_unlocked(connection: Connection, document: Document) -> None:
    """Check that no table of a document is locked, and that no session waits to lock it, as an ALTER TABLE does.

    A lock of a few seconds is waited for. One that stays suspends the document, so that the others do not wait.
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
