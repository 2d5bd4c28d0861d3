"""Suspending: a document that cannot be written waits, with a reason and a hint. Nothing is lost; others continue.

It is suspended for a locked or altered table, a missing trigger, a SELECT that fails, or an index that takes no writes.
Every few seconds it is tried: see `syncer.worker.job_loop`. Meanwhile its changes become causes of a fan-out, which
waits with its other jobs: see `syncer.worker.resolve`. If that would have too many causes, or if changes may not have
been captured, the document is *stale*, and is resumed with a refresh. `syncer apply` resumes it too, with a load.

Why nothing is lost: a worker that has received a change finds the document suspended, or suspends it, and adds the
change to the fan-out before it saves the change as handled. The fan-out is listed after the resumption, so it sees the
change. If the document is stale when the fan-out is to be joined, the refresh is created later, and sees the change
too. The document's row is locked meanwhile, so that the resumption comes before or after, and not in between.

A suspension names the revision that failed, and the first reason is kept. The reason appears in the log and on the
status page, where more people see it than may see the rows. So it never quotes a row.
"""

from __future__ import annotations

import structlog

from syncer.base.error_policy import is_of_data, kind
from syncer.base.errors import DocumentError, SuspendedError
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.documents.registry import Document


def require_active(document: Document) -> None:
    """Refuse to work on a suspended document.

    Raises:
        SuspendedError: With the reason and a hint.
    """
    if document.suspended is not None:
        what, _, hint = document.suspended.partition("\n")
        if document.role is Role.BUILDING:
            begin, give_up = f"syncer index rebuild {document.name}", f"syncer index abort {document.name}"
            hint = f"{hint}\nTo begin anew: {begin}; to give it up: {give_up}"
        raise SuspendedError(
            f"{document.index_name} is suspended: {what}",
            hint=hint,
            document=document.name,
            revision=document.revision,
        )


def suspend(connection: Connection, error: DocumentError) -> bool:
    """Suspend a document, unless it is suspended or another revision is active; return whether this call did it."""
    if isinstance(error, SuspendedError):
        if error.is_stale:
            registry.mark_stale(connection, error.document, error.revision)
        return False
    what, hint = error.message, error.hint
    if is_of_data(error.__cause__):  # Postgres' message may quote a row
        what = f"The SELECT of {error.document} fails on the data: {kind(error.__cause__)}"
        hint = "`syncer plan` says on which value. Fix the rows, or select.sql and run: syncer apply"
    is_first = registry.suspend(
        connection,
        error.document,
        error.revision,
        reason=f"{what}\n{hint}" if hint else what,
        ids=error.ids,
        is_stale=error.is_stale,
    )
    if is_first:
        structlog.get_logger().error(
            "document.suspended",
            document=error.document,
            reason=what,
            hint=hint,
            timeline=f"{error.document} was suspended: {what}",
        )
    return is_first
