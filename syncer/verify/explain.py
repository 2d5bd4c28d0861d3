"""Explain: what is known of one document: how it differs, its versions, its dead letter, and the jobs that hold it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg

from syncer.base.error_policy import at_work_for
from syncer.base.errors import DefinitionError, DocumentError
from syncer.base.model import ID_BYTES_MAX, Role, is_id
from syncer.base.postgres import Connection
from syncer.documents import queries, registry, suspend
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Copy
from syncer.indexing import compose, dead_letters
from syncer.indexing.dead_letters import DeadLetter
from syncer.verify.compare import Settled, Settler
from syncer.verify.diff import Cause, Difference, Drift, DriftKind, advice, compare


class State(StrEnum):
    """The state of a document in one index."""

    EQUAL = "equal"  # it equals its SELECT
    ABSENT = "absent"  # neither side has it
    BUSY = "busy"  # it differs, and may be about to be written
    DIFFERENT = "different"  # it differs, and nothing is in flight to it
    UNKNOWN = "unknown"
    """Its definition is suspended, or one side cannot be read; how the sides differ is shown if both can be."""


_HOW = {
    DriftKind.DIFFERENT: "Different",
    DriftKind.MISSING: "Missing from the index",
    DriftKind.EXTRA: "The index has it and Postgres does not",
    DriftKind.MISPLACED: "In the wrong place",
    DriftKind.FAILING: "It cannot be read",
    DriftKind.UNREADABLE: "It cannot be read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InPostgres:
    """The SELECT's row; ``exists`` is None if it cannot be read. The source is None if values were not asked for."""

    exists: bool | None
    bytes: int | None = None
    routing: str | None = None
    source: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InElasticsearch:
    """A copy in Elasticsearch, on any shard; its routing is None if it is the id."""

    version: int
    routing: str | None
    source: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InIndex:
    """A document in one index.

    Args:
        is_kept: Whether it must equal its SELECT: see `Document.is_kept`.
        reads: The tables that its SELECT reads.
        jobs: The open jobs that may write it, if it is busy.
        elasticsearch: Its copies; None if they cannot be read.
    """

    index: str
    role: Role
    revision: int
    is_loaded: bool
    is_kept: bool
    reads: tuple[str, ...]
    state: State
    says: str
    hint: str
    jobs: tuple[int, ...]
    postgres: InPostgres
    elasticsearch: tuple[InElasticsearch, ...] | None
    differences: tuple[Difference, ...]
    dead_letter: DeadLetter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A document in all its indices."""

    document: str
    id: str
    indices: tuple[InIndex, ...]

    @property
    def is_equal(self) -> bool:
        """Whether it equals its SELECT in each index that must."""
        kept_indices = [index for index in self.indices if index.is_kept]
        return bool(kept_indices) and all(index.state is State.EQUAL for index in kept_indices)


def explain(
    connection: Connection, index: Index, name: str, id_: str, *, seconds: float, values: bool = False
) -> Explanation:
    """Explain a document in each of its indices; with ``values`` of fields, which may be secrets.

    Waits so many ``seconds`` for changes in flight, and for jobs, that make no progress.

    Raises:
        DefinitionError: There is no such definition, or no document can have such an id.
        psycopg.Error, elasticsearch.ApiError, elasticsearch.TransportError: A server does not answer.
    """
    documents = registry.named(connection, name)
    letters = [dead_letters.find(connection, document.index_name, [id_]).get(id_) for document in documents]
    if not any(letters) and not is_id(id_):
        raise DefinitionError(f"An id has 1 to {ID_BYTES_MAX} bytes of UTF-8")
    settlers = [
        Settler(document=document, index=index, connection=connection, settle_seconds=seconds, values=values)
        for document in documents
    ]
    explained = tuple(_in_index(settler, id_, letter) for settler, letter in zip(settlers, letters, strict=True))
    return Explanation(document=name, id=id_, indices=explained)


def _in_index(settler: Settler, id_: str, letter: DeadLetter | None) -> InIndex:
    document, values, settled, says, hint = settler.document, settler.values, None, "", ""
    try:
        suspend.require_active(document)
        with at_work_for(document.name, document.revision):
            settled = settler.settle([id_])
    except DocumentError as error:
        says, hint = f"{error.message}.", error.hint
        if letter is not None and document.suspended is None:
            says = f"Dead-lettered: {letter.error}."
    drift = next(iter((*settled.drifts, *settled.busy)), None) if settled else None
    # If it is suspended, one side may be unreadable: a table is locked, or the index is gone.
    rows: dict[str, Row] | None = None
    copies: list[Copy] | None = None
    if drift is None or drift.failure is None:
        seconds, lock_seconds = compose.STATEMENT_SECONDS_MAX, COMPONENT_LOCK_SECONDS
        with suppress(DocumentError, psycopg.errors.LockNotAvailable):
            rows = queries.current(settler.connection, document, [id_], seconds=seconds, lock_seconds=lock_seconds)
    with suppress(DocumentError), at_work_for(document.name, document.revision):
        copies = settler.index.holdings.read(document.target, [id_])
    row = rows.get(id_) if rows else None
    if settled is not None:
        state, says, hint = _verdict(document, settled, drift, exists=row is not None or bool(copies))
    else:
        are_read = rows is not None and copies is not None
        drifts = compare({} if row is None else {id_: row}, copies or (), values=values) if are_read else ()
        state, drift = State.UNKNOWN, next(iter(drifts), None)
    shown_copies = [
        InElasticsearch(
            version=copy.version,
            routing=None if copy.place.routing == id_ else copy.place.routing,
            source=_contents(copy.source) if values else None,
        )
        for copy in copies or ()
    ]
    return InIndex(
        index=document.index_name,
        role=document.role,
        revision=document.revision,
        is_loaded=document.is_loaded,
        is_kept=document.is_kept,
        reads=tuple(sorted(document.dependencies.tables)),
        state=state,
        says=says,
        hint=hint,
        jobs=tuple(settled.jobs) if settled else (),
        postgres=InPostgres(
            exists=None if rows is None else row is not None,
            bytes=len(row.source) if row else None,
            routing=row.routing or None if row else None,
            source=_contents(row.source) if row and values else None,
        ),
        elasticsearch=None if copies is None else tuple(shown_copies),
        differences=drift.differences if drift else (),
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
        jobs = ", ".join(map(str, settled.jobs))
        return State.BUSY, f"{how}; an open job may write it: {jobs}.", "To follow it: syncer jobs list"
    if settled.busy:
        waits = "it is being written" if settled.are_changes_handled else "earlier changes are not handled"
        return State.BUSY, f"{how}; {waits}.", "Run it again. If it stays so, see: syncer status"
    if drift.failure is not None:
        return State.UNKNOWN, f"{how}: {drift.failure}.", advice(Cause.DEAD_LETTERED, document)
    says = f"{how}, and no change is in flight." if drift.error is None else f"Dead-lettered: {drift.error}."
    state = State.UNKNOWN if drift.kind is DriftKind.FAILING else State.DIFFERENT
    return state, says, advice(drift.cause, document)


def _contents(source: bytes) -> Any:
    """Parse a document's JSON; its text if it is nested too deep, or has a number too long for Python."""
    try:
        return json.loads(source)
    except (RecursionError, ValueError):
        return source.decode(errors="replace")
