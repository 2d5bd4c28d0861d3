"""Suspending: a document that cannot continue is skipped, with a reason and a hint. Nothing is lost.

`syncer.documents.affected` finds no ids for a suspended document, and `syncer.indexing.compose` builds none. The
offsets of its changes are committed as usual. Other documents continue.

Why nothing is lost: take a skipped change T. The worker that skipped it had received T, so T was visible. Then the
worker took a snapshot. Either the document was suspended in it under revision g; or g was active in it, and the worker
failed and suspended the document itself. `syncer apply` ends the suspension in one commit, which activates revision
g + 1, and writes every document once after it. That commit is not in the worker's snapshot, so T was visible before it,
and everything written after it shows T. Changes made while triggers were missing are covered likewise, since triggers
are installed before that commit. `syncer.jobs.resume` does the same under revision g once the fault is over.

A late suspend names the revision that it failed under. If g + 1 is already active, it has no effect. If g was resumed,
it suspends g again, until the fault is found to be over once more.

The reason appears in the log and on the status page, where more people see it than may see the rows. So it never quotes
a row.
"""

from __future__ import annotations

import structlog

from syncer.base.error_policy import is_of_data, kind
from syncer.base.errors import DocumentError
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.documents.registry import Document


def require_going(document: Document) -> None:
    """Refuse to work on a suspended document.

    Raises:
        DocumentError: The document is suspended; with the reason and a hint.
    """
    if document.suspended is not None:
        what, _, hint = document.suspended.partition("\n")
        if document.role is Role.BUILDING:
            begin, give_up = f"syncer index rebuild {document.name}", f"syncer index abort {document.name}"
            hint = f"{hint}\nTo begin anew: {begin}; to give it up: {give_up}"
        raise DocumentError(
            f"{document.index_name} is suspended: {what}",
            hint=hint,
            document=document.name,
            revision=document.revision,
        )


def suspend(connection: Connection, error: DocumentError) -> bool:
    """Suspend a document, unless it is suspended or another revision is active; return whether this call did it."""
    what, hint = _said(error)
    reason = f"{what}\n{hint}" if hint else what
    is_first = registry.suspend(connection, error.document, error.revision, reason, error.fault)
    if is_first:
        structlog.get_logger().error(
            "document.suspended",
            document=error.document,
            reason=what,
            hint=hint,
            timeline=f"{error.document} was suspended: {what}",
        )
    return is_first


def _said(error: DocumentError) -> tuple[str, str]:
    """Return reason and hint. Postgres' message is left out if it may quote a row."""
    if not is_of_data(error.__cause__):
        return error.message, error.hint
    return (
        f"The SELECT of {error.document} fails on the data: {kind(error.__cause__)}",
        "`syncer plan` says on which value. Fix the rows, or select.sql. Then run: syncer apply",
    )
