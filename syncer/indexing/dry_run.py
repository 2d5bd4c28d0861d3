"""Dry run: checks, without writing, whether a dead letter could be written now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import elasticsearch

from syncer.base.error_policy import is_of_data
from syncer.base.errors import DocumentError
from syncer.base.postgres import Connection
from syncer.documents import queries
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index
from syncer.indexing import fault
from syncer.indexing.dead_letters import DeadLetter
from syncer.indexing.fault import Fault


class Now(StrEnum):
    """The expected result of a retry."""

    SELECT_FAILS = "select_fails"
    """The SELECT still raises an error."""
    REFUSED = "refused"
    """Elasticsearch still refuses it."""
    WRITABLE = "writable"
    """Neither fails: it would be written."""
    GONE = "gone"
    """The SELECT returns no such id: it would be deleted."""
    UNKNOWN = "unknown"
    """The result cannot be known without a retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The expected result of a retry, as far as it can be known.

    Args:
        now: The result.
        fault: The fault, if there is one; or why the result is unknown.
    """

    now: Now
    fault: Fault | None = None


def attempt(connection: Connection, index: Index, document: Document, letter: DeadLetter) -> DryRun:
    """Return what a retry of a dead letter would result in now.

    Raises:
        DocumentError: The document cannot be read at all.
    """
    if letter.is_id_cut:
        return DryRun(now=Now.UNKNOWN, fault=Fault(kind="invalid_id", error="its id is too long to be looked for"))
    try:
        row = queries.current(connection, document, [letter.id]).get(letter.id)
    except DocumentError as error:
        if not is_of_data(error.__cause__):
            raise
        return DryRun(now=Now.SELECT_FAILS, fault=fault.of_select(error.__cause__))
    if row is None:
        return DryRun(now=Now.GONE)
    try:
        objection = index.holdings.objection(document.target, letter.id, row.source)
    except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
        return DryRun(now=Now.UNKNOWN, fault=Fault(kind=type(error).__name__, error=error.message))
    if objection is None:
        return DryRun(now=Now.WRITABLE)
    return DryRun(now=Now.REFUSED, fault=fault.of_index(*objection, row.source))
