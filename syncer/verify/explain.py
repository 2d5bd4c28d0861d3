"""Explain one document: how it differs from its SELECT, its version, its dead letter, and the jobs that may write it.

Guarantee: a document is called different only if no job will write it, and it keeps its version until earlier changes
are handled: all those committed before the difference was seen. See `syncer.verify.watermark`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from syncer.apply import reindex
from syncer.base.error_policy import at_work_for, is_of_data
from syncer.base.errors import DefinitionError, DocumentError, SyncerError
from syncer.base.model import ID_BYTES_MAX, Place, levels
from syncer.base.postgres import Connection
from syncer.documents import queries
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Copy
from syncer.indexing import dead_letters, version
from syncer.indexing.dead_letters import DeadLetter
from syncer.jobs.model import Job
from syncer.verify.diff import Drift, DriftKind, compare
from syncer.verify.pending_jobs import pending
from syncer.verify.watermark import Watermark

_POLL_SECONDS = 0.05
_IDLE_SECONDS = 1.0
"""If nothing moves for that long, no worker is running: waiting longer would not help."""
_LEVELS_MAX = 300
"""JSON that is nested deeper is shown as text."""
_AS_ID = "SELECT $1::text::{id_type}::text"


class State(StrEnum):
    """The state of a document in one index."""

    EQUAL = "equal"
    """It equals its SELECT."""
    ABSENT = "absent"
    """Neither side has it."""
    COMING = "coming"
    """It differs, and a job, or changes that are not handled yet, may write it."""
    DEAD_LETTERED = "dead_lettered"
    """It differs, and is a dead letter, or its SELECT fails on it."""
    SUSPENDED = "suspended"
    """Its definition is suspended, or one side cannot be read."""
    DIFFERENT = "different"
    """It differs, and nothing will write it."""


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
        row: The SELECT's row; None if it returns no such id, or cannot be run.
        copies: The copies in Elasticsearch, on any shard.
        error: Why one side could not be read.
        drift: How the sides differ.
        jobs: The jobs that may yet write it.
        in_flight: What is not handled yet, in words; empty if there is nothing.
        is_ahead: Whether its version is greater than any that syncer assigns, so that no write replaces it.
        is_moving: Whether it was written while it was looked at.
    """

    document: Document
    row: Row | None
    copies: tuple[Copy, ...]
    error: SyncerError | None
    drift: Drift | None
    dead_letter: DeadLetter | None
    jobs: tuple[Job, ...]
    is_ahead: bool
    in_flight: str = ""
    is_moving: bool = False

    @property
    def held(self) -> set[tuple[Place, int]]:
        """Where Elasticsearch has it, and with which versions."""
        return {(copy.place, copy.version) for copy in self.copies}

    @property
    def state(self) -> State:
        """What is the case."""
        return self._told[0]

    @property
    def says(self) -> str:
        """The same, in a sentence."""
        return self._told[1]

    @property
    def hint(self) -> str:
        """What to do, if anything."""
        return self._told[2]

    @property
    def _told(self) -> tuple[State, str, str]:
        document, name = self.document, self.document.name
        if document.suspended is not None:
            reason, _, hint = document.suspended.partition("\n")
            return State.SUSPENDED, f"{name} is suspended: {reason}.", hint
        if self.error is not None and not is_of_data(self.error.__cause__):
            return State.SUSPENDED, f"{self.error.message}.", self.error.hint
        if self.error is not None or (self.dead_letter is not None and self.drift is not None):
            failed = f"Its SELECT fails: {str(self.error and self.error.__cause__).partition(chr(10))[0]}."
            says = failed if self.dead_letter is None else f"Dead-lettered: {self.dead_letter.error}."
            hint = "Fix the row, and it is written. Or fix select.sql or index.json, and run: syncer apply"
            return State.DEAD_LETTERED, says, hint
        if self.drift is not None:
            return self._different(_HOW[self.drift.kind])
        if self.row is not None:
            return State.EQUAL, "Equal to its SELECT.", ""
        return State.ABSENT, "No such document: neither Postgres nor Elasticsearch has it.", ""

    def _different(self, how: str) -> tuple[State, str, str]:
        name = self.document.name
        if self.is_ahead:
            says = f"{how}: another client wrote it, with a version greater than any that syncer assigns."
            hint = f"Stop that client. No write replaces this version: syncer index rebuild {name}"
            return State.DIFFERENT, says, hint
        if self.jobs:
            job = self.jobs[0]
            paused = ", but is paused" if job.is_paused else ""
            says = f"{how}; job {job.id} ({job.reason}) may write it{paused}."
            return State.COMING, says, f"To follow it: syncer jobs show {job.id}"
        if not self.document.is_loaded:
            return State.COMING, f"{how}: its index is not loaded.", reindex.way_on(self.document)
        if self.in_flight:
            says = f"{how}; changes in flight may explain that: {self.in_flight}."
            return State.COMING, says, "Run it again. If they stay in flight, see: syncer status"
        if self.is_moving:
            return State.COMING, "It is being written right now.", "Run it again."
        hint = f"Run: syncer verify {name} --repair"
        if self.copies:
            hint += f"\nIf it happens again, find out whether another client writes to {self.document.index}."
        return State.DIFFERENT, f"{how}, and no change is in flight.", hint

    def as_json(self, *, values: bool) -> dict[str, Any]:
        """The explanation as plain data, with or without the values of fields."""
        letter = self.dead_letter
        postgres: dict[str, Any] = {
            "exists": None if self.error else self.row is not None,
            "bytes": len(self.row.source) if self.row else None,
            "routing": self.row.routing or None if self.row else None,
        }
        if values:
            postgres["source"] = contents(self.row.source) if self.row else None
        return {
            "index": self.document.index_name,
            "role": self.document.role,
            "revision": self.document.revision,
            "is_loaded": self.document.is_loaded,
            "state": self.state,
            "says": self.says,
            "hint": self.hint,
            "jobs": [job.id for job in self.jobs],
            "postgres": postgres,
            "elasticsearch": [_copy_json(copy) for copy in self.copies],
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
        "in_flight": explanations[0].in_flight or None,
        "indices": [seen.as_json(values=values) for seen in explanations],
    }


def explain(
    connection: Connection,
    index: Index,
    documents: Sequence[Document],
    id_: str,
    *,
    seconds: float,
) -> list[Explanation]:
    """Explain one document in each of its indices.

    If it differs, this waits up to ``seconds`` for changes in flight. The connection is used for nothing else
    meanwhile. ``documents`` are its active definitions, one for each index.

    Raises:
        DefinitionError: The id is impossible for this definition, and Elasticsearch has no such document.
        psycopg.Error, elasticsearch.ApiError, elasticsearch.TransportError: A server does not answer. If it is Kafka,
            the explanation says so instead.
    """
    if not 1 <= len(id_.encode()) <= ID_BYTES_MAX:
        raise DefinitionError(f"An id has 1 to {ID_BYTES_MAX} bytes, not {len(id_.encode()):,}")
    before = [_look(connection, index, document, id_, seconds=seconds) for document in documents]
    if not any(seen.copies for seen in before):
        _require_id(connection, documents[0], id_)
    if all(seen.drift is None for seen in before):
        return before
    # Changes become jobs, and jobs become documents: in this order, none is missed.
    in_flight = _in_flight(connection, documents, seconds)
    after = [_look(connection, index, document, id_, seconds=seconds) for document in documents]
    return [
        replace(now, in_flight=in_flight, is_moving=(now.row, now.held) != (then.row, then.held))
        for now, then in zip(after, before, strict=True)
    ]


def _look(connection: Connection, index: Index, document: Document, id_: str, *, seconds: float) -> Explanation:
    """Read the jobs first, then both sides: what a job has written by then is seen."""
    jobs = tuple(coming.job for coming in pending(connection, document, [id_], seconds=seconds).get(id_, ()))
    copies: Sequence[Copy] = ()
    row, drift, error = None, None, None
    try:
        with at_work_for(document.name, document.revision):
            copies = index.holdings.read(document.target, [id_])
        if _as_id(connection, document, id_) == id_:
            row = queries.current(connection, document, [id_]).get(id_)
        expected = {} if row is None else {id_: row}
        drift = next(compare(document.name, document.index_name, expected, copies, values=True), None)
    except DocumentError as raised:
        error = raised
    return Explanation(
        document=document,
        row=row,
        copies=tuple(copies),
        error=error,
        drift=drift,
        dead_letter=dead_letters.find(connection, document.index_name, id_),
        jobs=jobs,
        is_ahead=not all(version.is_surpassed(connection, copy.version) for copy in copies),
    )


def _in_flight(connection: Connection, documents: Sequence[Document], seconds: float) -> str:
    """Wait until all changes committed before now are handled; return what is left, in words, if nothing moves."""
    relations = sorted({relation for document in documents for relation in document.dependencies.tables})
    watermark = Watermark(connection, relations)
    deadline = time.monotonic() + seconds
    while not watermark.is_through() and time.monotonic() < deadline and watermark.still_seconds < _IDLE_SECONDS:
        time.sleep(_POLL_SECONDS)
    return watermark.says


def _require_id(connection: Connection, document: Document, id_: str) -> None:
    known, type_ = _as_id(connection, document, id_), document.dependencies.id_type
    if known is None:
        raise DefinitionError(f"{id_!r} cannot be an id of {document.name}: its _id is of type {type_}")
    if known != id_:
        raise DefinitionError(
            f"No document of {document.name} has the id {id_!r}: as {type_} that is written {known}",
            hint=f"Run: syncer explain {document.name} {known}",
        )


def _as_id(connection: Connection, document: Document, id_: str) -> str | None:
    """Return an id as Postgres writes it, in the type of this document's ids; None if it cannot be one."""
    query = sql.SQL(_AS_ID).format(id_type=sql.SQL(document.dependencies.id_type))  # named by Postgres
    try:
        row = connection.execute(query, (id_,)).fetchone()
    except psycopg.DataError:
        return None
    return None if row is None else row[0]


def contents(source: bytes) -> Any:
    """Parse a document's JSON; its text if it is nested too deep."""
    try:
        document = json.loads(source)
    except RecursionError:
        return source.decode(errors="replace")
    is_deep = any(islice(levels(document), _LEVELS_MAX, None))
    return source.decode(errors="replace") if is_deep else document
