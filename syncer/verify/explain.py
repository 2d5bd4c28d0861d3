"""Explain: what is known of one document: how it differs, its versions, its dead letter, and the jobs that hold it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import psycopg

from syncer.base.error_policy import at_work_for
from syncer.base.errors import DefinitionError, DocumentError
from syncer.base.model import ID_BYTES_MAX
from syncer.base.postgres import Connection
from syncer.documents import queries
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Copy
from syncer.indexing import dead_letters, version
from syncer.indexing.dead_letters import DeadLetter
from syncer.verify.diff import Drift, DriftKind, advice, compare
from syncer.verify.settle import Settled, Settler


class State(StrEnum):
    """The state of a document in one index."""

    EQUAL = "equal"
    """It equals its SELECT."""
    ABSENT = "absent"
    """Neither side has it."""
    BUSY = "busy"
    """It differs, and may be about to be written."""
    DIFFERENT = "different"
    """It differs, and nothing is in flight to it."""
    UNKNOWN = "unknown"
    """Its definition is suspended, or one side cannot be read; how the sides differ is shown if both can be."""


_HOW = {
    DriftKind.DIFFERENT: "Different",
    DriftKind.MISSING: "Missing from Elasticsearch",
    DriftKind.EXTRA: "Elasticsearch has it and Postgres does not",
    DriftKind.MISPLACED: "In the wrong place",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A document in one index.

    Args:
        state: Its state.
        says: The same, in a sentence.
        hint: What to do, if anything.
        row: The SELECT's row; None if it returns no such id, or cannot be run: then ``is_row_known`` is false.
        copies: The copies in Elasticsearch, on any shard; None if they cannot be read.
        drift: How the sides differ.
        dead_letter: Its dead letter.
        jobs: The open jobs that may write it.
    """

    document: Document
    state: State
    says: str
    hint: str = ""
    row: Row | None = None
    is_row_known: bool = True
    copies: tuple[Copy, ...] | None = ()
    drift: Drift | None = None
    dead_letter: DeadLetter | None = None
    jobs: tuple[int, ...] = ()

    def as_json(self, *, values: bool) -> dict[str, Any]:
        """The explanation as plain data, with or without the values of fields."""
        letter, row = self.dead_letter, self.row
        postgres: dict[str, Any] = {
            "exists": row is not None if self.is_row_known else None,
            "bytes": len(row.source) if row else None,
            "routing": row.routing or None if row else None,
        }
        if values:
            postgres["source"] = contents(row.source) if row else None
        return {
            "index": self.document.index_name,
            "role": self.document.role,
            "revision": self.document.revision,
            "is_loaded": self.document.is_loaded,
            "state": self.state,
            "says": self.says,
            "hint": self.hint,
            "jobs": list(self.jobs),
            "postgres": postgres,
            "elasticsearch": None if self.copies is None else [_copy_json(copy) for copy in self.copies],
            "differences": [
                {"path": part.path, "how": part.how}
                | ({"postgres": part.expected, "elasticsearch": part.held} if values else {})
                for part in (self.drift.differences if self.drift else ())
            ],
            "dead_letter": letter
            and {"error": letter.error, "version": letter.version, "failed_at": letter.failed_at.isoformat()},
        }


def _copy_json(copy: Copy) -> dict[str, Any]:
    epoch, number = version.split(copy.version)
    routing = copy.place.routing if copy.place.routing != copy.place.id else None
    return {"version": copy.version, "epoch": epoch, "number": number, "routing": routing}


def is_equal(explanations: Iterable[Explanation]) -> bool:
    """Whether the document equals its SELECT in each index that must, according to `Document.is_kept`."""
    kept = [seen for seen in explanations if seen.document.is_kept]
    return bool(kept) and all(seen.state is State.EQUAL for seen in kept)


def as_json(explanations: Sequence[Explanation], id_: str, *, values: bool) -> dict[str, Any]:
    """Return the explanation of a document in all its indices as plain data."""
    return {
        "document": explanations[0].document.name,
        "id": id_,
        "is_equal": is_equal(explanations),
        "indices": [seen.as_json(values=values) for seen in explanations],
    }


def explain(connection: Connection, index: Index, document: Document, id_: str, *, seconds: float) -> Explanation:
    """Explain a document in one of its indices.

    Args:
        connection: To Postgres; used for nothing else meanwhile.
        index: Elasticsearch.
        document: The definition that is active for the index.
        id_: The document's id.
        seconds: How long to wait for changes in flight, and for jobs, that make no progress.

    Raises:
        DefinitionError: No document can have such an id.
        psycopg.Error, elasticsearch.ApiError, elasticsearch.TransportError: A server does not answer.
    """
    letter = dead_letters.find(connection, document.index_name, id_)
    if letter is None and not 1 <= len(id_.encode()) <= ID_BYTES_MAX:
        raise DefinitionError(f"An id has 1 to {ID_BYTES_MAX} bytes, not {len(id_.encode()):,}")
    unknown = partial(_unsettled, connection, index, document, id_, letter=letter)
    if document.suspended is not None:
        reason, _, hint = document.suspended.partition("\n")
        return unknown(says=f"{document.name} is suspended: {reason}.", hint=hint)
    settler = Settler(document=document, index=index, connection=connection, settle_seconds=seconds, values=True)
    try:
        with at_work_for(document.name, document.revision):
            settled = settler.settle([id_])
            copies = index.holdings.read(document.target, [id_])
        rows = queries.current(connection, document, [id_])
    except DocumentError as error:
        return unknown(says=f"Dead-lettered: {letter.error}." if letter else f"{error.message}.", hint=error.hint)
    drift = next(iter((*settled.drifts, *settled.busy)), None)
    state, says, hint = _verdict(document, settled, drift, exists=id_ in rows)
    return Explanation(
        document=document,
        state=state,
        says=says,
        hint=hint,
        row=rows.get(id_),
        copies=tuple(copies),
        drift=drift,
        dead_letter=letter,
        jobs=tuple(sorted(settled.jobs)),
    )


def _unsettled(
    connection: Connection,
    index: Index,
    document: Document,
    id_: str,
    *,
    letter: DeadLetter | None,
    says: str,
    hint: str,
) -> Explanation:
    """Return what can be read of a document that is not being written, or of which one side cannot be read."""
    rows: dict[str, Row] | None = None
    copies: list[Copy] | None = None
    with suppress(DocumentError, psycopg.errors.LockNotAvailable):
        rows = queries.current(connection, document, [id_], lock_seconds=COMPONENT_LOCK_SECONDS)
    with suppress(DocumentError), at_work_for(document.name, document.revision):
        copies = index.holdings.read(document.target, [id_])
    are_read = rows is not None and copies is not None
    row = (rows or {}).get(id_)
    drifts = compare({} if row is None else {id_: row}, copies or (), values=True) if are_read else iter(())
    return Explanation(
        document=document,
        state=State.UNKNOWN,
        says=says,
        hint=hint,
        row=row,
        is_row_known=rows is not None,
        copies=None if copies is None else tuple(copies),
        drift=next(drifts, None),
        dead_letter=letter,
    )


def _verdict(document: Document, settled: Settled, drift: Drift | None, *, exists: bool) -> tuple[State, str, str]:
    """Return the state, in a sentence, and what to do."""
    if drift is None and exists:
        return State.EQUAL, "Equal to its SELECT.", ""
    if drift is None:
        type_ = document.dependencies.id_type
        return State.ABSENT, f"No such document: neither side has it. Its _id is of type {type_}.", ""
    how = _HOW[drift.kind]
    if settled.busy and settled.jobs:
        jobs = ", ".join(map(str, sorted(settled.jobs)))
        return State.BUSY, f"{how}; an open job may write it: {jobs}.", "To follow it: syncer jobs list"
    if settled.busy:
        waits = "it is being written" if settled.are_changes_handled else "earlier changes are not handled"
        return State.BUSY, f"{how}; {waits}.", "Run it again. If it stays so, see: syncer status"
    if drift.error is not None:
        return State.DIFFERENT, f"Dead-lettered: {drift.error}.", advice(drift.cause, document)
    return State.DIFFERENT, f"{how}, and no change is in flight.", advice(drift.cause, document)


def contents(source: bytes) -> Any:
    """Parse a document's JSON; its text if it is nested too deep, or has a number too long for Python."""
    try:
        return json.loads(source)
    except (RecursionError, ValueError):
        return source.decode(errors="replace")
