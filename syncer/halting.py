"""Halting: a document that cannot go on stops, says what to do, and loses nothing; the others go on.

A halted document is skipped: `syncer.affected` looks for none of its ids, `syncer.compose` composes none of it, and the
offsets of its changes are committed as usual. Why nothing is lost all the same:

Take a change T that was skipped. Whoever skipped it had received T, so T was visible, and then took a snapshot in
which the document was halted under a generation g, or failed in one in which g was in force and halted it
itself. `syncer apply` ends the halt in one commit, which puts generation g + 1 in force, and only after that commit
writes every document once. That commit is not in the snapshot of whoever skipped T; so T was visible before it, and
what is written after it shows T. A document that changed while no trigger was there to tell is covered likewise,
since triggers are installed before that commit.

Whoever is late with a halt names the generation that it failed under: once g + 1 is in force, nothing happens.

Why a document is halted is read by more people than its rows are, in the log and on the status page: it quotes none.
"""

from __future__ import annotations

import structlog

from syncer import events, store
from syncer.errors import DocumentError
from syncer.model import Role
from syncer.policy import is_of_data, kind
from syncer.postgres import Connection
from syncer.store import Document


def require_going(document: Document) -> None:
    """Refuse to work on a document that is halted.

    Raises:
        DocumentError: With what happened, and what to do.
    """
    if document.halted is not None:
        what, _, hint = document.halted.partition("\n")
        if document.role is Role.BUILDING:
            hint = f"{hint}\nTo begin anew: syncer backfill {document.name} --rebuild. To give it up: --abandon"
        elif document.role is Role.STANDBY:
            hint = no_way_back(document.name)
        raise DocumentError(
            f"{document.index_name} is halted: {what}",
            hint=hint,
            document=document.name,
            generation=document.generation,
        )


def no_way_back(name: str) -> str:
    """What helps if an index on standby is halted, or not filled: nothing that is applied, since nobody fills it."""
    return f"There is no way back to it any more. To drop it: syncer backfill {name} --drop-old"


def halt(connection: Connection, error: DocumentError) -> bool:
    """Halt a document, unless it is halted already or another generation is in force; whether it was this call."""
    what, hint = _said(error)
    is_first = store.halt(connection, error.document, error.generation, f"{what}\n{hint}" if hint else what)
    if is_first:
        structlog.get_logger().error(events.DOCUMENT_HALTED, document=error.document, reason=what, hint=hint)
    return is_first


def _said(error: DocumentError) -> tuple[str, str]:
    """What happened, and what to do; Postgres's own sentence only if no row has a part in it."""
    if not is_of_data(error.__cause__):
        return error.message, error.hint
    return (
        f"The SELECT of {error.document} fails on the data: {kind(error.__cause__)}",
        "`syncer plan` says on which value. Mend the rows, or select.sql. Then run: syncer apply",
    )
