"""Standing: one document in one index: what its SELECT returns, what Elasticsearch has, and how the two differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from syncer.base.error_policy import at_work_for, is_of_data
from syncer.base.errors import DocumentError, SyncerError
from syncer.base.model import Place, levels
from syncer.base.postgres import Connection
from syncer.documents import queries
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Copy
from syncer.indexing import dead_letters, failover, version
from syncer.indexing.dead_letters import DeadLetter
from syncer.indexing.failover import Origin
from syncer.verify.diff import TOO_DEEP, Drift, compare
from syncer.verify.pending_jobs import Pending, pending

_LEVELS_MAX = 300
"""JSON that is nested deeper is shown as text."""
_AS_ID = "SELECT $1::text::{id_type}::text"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """A copy in Elasticsearch, with its version decoded.

    Args:
        origin: What made that version.
        is_final: Whether no writer assigns a greater version, so that no write replaces it.
    """

    place: Place
    version: int
    source: bytes
    origin: Origin
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentInIndex:
    """The document in one index: both sides, each at one moment, Elasticsearch first.

    Args:
        row: The SELECT's row; None if it returns no such id, or cannot be run.
        failure: Why the SELECT cannot be run, or fails on this document.
        is_at_fault: Whether the SELECT fails on this document only.
        copies: The copies in Elasticsearch, on any shard.
        unreadable: Why Elasticsearch cannot be read.
        jobs: The jobs that may yet write the document, certain ones first.
    """

    document: Document
    row: Row | None
    failure: SyncerError | None
    is_at_fault: bool
    copies: tuple[CopyState, ...]
    unreadable: SyncerError | None
    drift: Drift | None
    dead_letter: DeadLetter | None
    jobs: tuple[Pending, ...]

    @property
    def is_sound(self) -> bool:
        """Whether both sides could be read."""
        return self.failure is None and self.unreadable is None

    def is_like(self, other: DocumentInIndex) -> bool:
        """Whether nothing has changed between the two."""
        return self.row == other.row and set(self.copies) == set(other.copies)

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """The fields that differ, each with its value in the SELECT and in Elasticsearch."""
        if self.drift is None or self.row is None or not self.copies:
            return {}
        expected, held = contents(self.row.source), contents(self.copies[0].source)
        if not (isinstance(expected, dict) and isinstance(held, dict)):
            return dict.fromkeys(self.drift.fields or (TOO_DEEP,), (TOO_DEEP, TOO_DEEP))
        return {one: (expected.get(one), held.get(one)) for one in self.drift.fields}


def contents(source: bytes) -> Any:
    """Parse a document's JSON; its text if it is nested too deep."""
    try:
        document = json.loads(source)
    except RecursionError:
        return source.decode(errors="replace")
    is_deep = any(islice(levels(document), _LEVELS_MAX, None))
    return source.decode(errors="replace") if is_deep else document


def as_id(connection: Connection, document: Document, id_: str) -> str | None:
    """Return an id as Postgres writes it, in the type of this document's ids; None if it cannot be one."""
    query = sql.SQL(_AS_ID).format(id_type=sql.SQL(document.dependencies.id_type))  # named by Postgres
    try:
        row = connection.execute(query, (id_,)).fetchone()
    except psycopg.DataError:
        return None
    return None if row is None else row[0]


def look(connection: Connection, index: Index, document: Document, id_: str, *, seconds: float) -> DocumentInIndex:
    """Read the jobs first, then both sides: what a job has written by then is seen."""
    jobs = pending(connection, document, [id_], seconds=seconds).get(id_, ())
    copies: Sequence[Copy] = ()
    unreadable: SyncerError | None = None
    try:
        with at_work_for(document.name, document.revision):
            copies = index.holdings.read(document.target, [id_])
    except DocumentError as error:
        unreadable = error
    row, failure, is_at_fault = _row(connection, document, id_)
    drift = None
    if failure is None and unreadable is None:
        drift = next(compare(document.name, document.index_name, {id_: row} if row else {}, copies), None)
    return DocumentInIndex(
        document=document,
        row=row,
        failure=failure,
        is_at_fault=is_at_fault,
        copies=tuple(_copy(connection, index, one) for one in copies),
        unreadable=unreadable,
        drift=drift,
        dead_letter=dead_letters.find(connection, document.index_name, id_),
        jobs=jobs,
    )


def _row(connection: Connection, document: Document, id_: str) -> tuple[Row | None, SyncerError | None, bool]:
    if as_id(connection, document, id_) != id_:
        return None, None, False
    try:
        return queries.current(connection, document, [id_]).get(id_), None, False
    except DocumentError as error:
        return None, error, is_of_data(error.__cause__)


def _copy(connection: Connection, index: Index, stored: Copy) -> CopyState:
    origin = failover.origin(connection, index, stored.version)
    return CopyState(
        place=stored.place,
        version=stored.version,
        source=stored.source,
        origin=origin,
        is_final=origin is Origin.FOREIGN and not version.is_surpassed(connection, stored.version),
    )
