"""Trying: what is to be written again that could not be; and whether it could be now, found out without writing it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import elasticsearch

from syncer import compose, dead_letters, fault, halting, store
from syncer.dead_letters import DeadLetter, Selection
from syncer.errors import DocumentError
from syncer.fault import Fault
from syncer.index import Index
from syncer.model import Role
from syncer.policy import is_of_data
from syncer.postgres import Connection
from syncer.store import Document


def lacking(connection: Connection, selection: Selection) -> list[tuple[Document, int]]:
    """What is to be written to each index again, and how many documents; not to one on standby.

    What that refuses is what the one that serves was made for.

    Raises:
        DocumentError: A document is halted: none is to be tried.
    """
    rows = {one.index_name: one for one in store.documents(connection)}
    found = [(rows[name], letters) for name, letters in dead_letters.indices(connection, selection).items()]
    found = [(document, letters) for document, letters in found if document.role is not Role.STANDBY]
    for document, _ in found:
        halting.require_going(document)
    return found


class Now(StrEnum):
    """What a new attempt would meet."""

    SELECT_FAILS = "select_fails"
    """The SELECT still raises."""
    REFUSED = "refused"
    """Elasticsearch still refuses it."""
    WRITABLE = "writable"
    """Neither does: it would be written."""
    GONE = "gone"
    """The SELECT returns no such id: it would be deleted."""
    UNKNOWN = "unknown"
    """That cannot be found out without trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a new attempt would meet, as far as that is known beforehand.

    Args:
        now: What.
        fault: What is at fault, if anything is; or why that is not known.
    """

    now: Now
    fault: Fault | None = None


def attempt(connection: Connection, index: Index, document: Document, letter: DeadLetter) -> Trial:
    """What an attempt to write the document of a dead letter would meet now.

    Raises:
        DocumentError: The document cannot be read at all.
    """
    if letter.is_id_cut:
        return Trial(now=Now.UNKNOWN, fault=Fault(kind="invalid_id", error="its id is too long to be looked for"))
    try:
        row = compose.current(connection, document, [letter.id]).get(letter.id)
    except DocumentError as error:
        if not is_of_data(error.__cause__):
            raise
        return Trial(now=Now.SELECT_FAILS, fault=fault.of_select(error.__cause__))
    if row is None:
        return Trial(now=Now.GONE)
    try:
        objection = index.holdings.objection(document.target, letter.id, row.source)
    except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
        return Trial(now=Now.UNKNOWN, fault=Fault(kind=type(error).__name__, error=error.message))
    if objection is None:
        return Trial(now=Now.WRITABLE)
    return Trial(now=Now.REFUSED, fault=fault.of_index(*objection, row.source))
