"""Standing: one document in one index: what its SELECT says, what Elasticsearch holds, and how the two differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from syncer import compose, dead_letters, version
from syncer.compose import Row
from syncer.dead_letters import DeadLetter
from syncer.drift import TOO_DEEP, Drift, compare
from syncer.errors import DocumentError, SyncerError
from syncer.holdings import Copy as Stored
from syncer.index import Index
from syncer.model import Place, levels
from syncer.owing import Pending
from syncer.policy import at_work_for, is_of_data
from syncer.postgres import Connection
from syncer.store import Document
from syncer.version import Origin

_LEVELS_MAX = 300
"""How deep JSON may be nested that is shown."""
_AS_ID = "SELECT $1::text::{id_type}::text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Both sides, as they were at one moment each, Elasticsearch first.

    Args:
        row: What the SELECT returns; None if it returns no such id, or cannot be asked.
        failure: Why the SELECT cannot be asked, or fails on this very document.
        is_at_fault: Whether it fails on this document, while others may go on.
        copies: What Elasticsearch holds, on whatever shard.
        unreadable: Why Elasticsearch cannot be asked.
        drift: How the two differ, if they do.
    """

    row: Row | None = None
    failure: SyncerError | None = None
    is_at_fault: bool = False
    copies: tuple[Stored, ...] = ()
    unreadable: SyncerError | None = None
    drift: Drift | None = None

    @property
    def is_sound(self) -> bool:
        """Whether both sides could be asked."""
        return self.failure is None and self.unreadable is None

    def is_like(self, other: Look) -> bool:
        """Whether nothing has moved between the two."""
        return self.row == other.row and _versions(self) == _versions(other)


def _versions(look: Look) -> set[tuple[Place, int]]:
    return {(one.place, one.version) for one in look.copies}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What Elasticsearch holds, with its version taken apart.

    Args:
        place: Where it lies.
        version: Its version.
        origin: Who made that version.
        drawn_after: When it was drawn, at the earliest; None if unknown.
        drawn_before: The same, at the latest.
        is_final: Whether no writer draws a greater version, so that no write replaces it.
    """

    place: Place
    version: int
    origin: Origin
    drawn_after: datetime | None
    drawn_before: datetime | None
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The document in one index.

    Args:
        document: The definition that is written to the index.
        look: Both sides.
        copies: What Elasticsearch holds.
        dead_letter: If it is parked: why.
        jobs: The jobs that may yet come to the document, those that will at first.
    """

    document: Document
    look: Look
    copies: tuple[Copy, ...]
    dead_letter: DeadLetter | None
    jobs: tuple[Pending, ...]

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """The fields that differ: as the SELECT says them, and as Elasticsearch holds them."""
        drift, row = self.look.drift, self.look.row
        if drift is None or row is None or not self.look.copies:
            return {}
        expected, held = contents(row.source), contents(self.look.copies[0].source)
        if not (isinstance(expected, dict) and isinstance(held, dict)):
            return dict.fromkeys(drift.fields or (TOO_DEEP,), (TOO_DEEP, TOO_DEEP))
        return {one: (expected.get(one), held.get(one)) for one in drift.fields}


def contents(source: bytes) -> Any:
    """A document from its JSON; its text, if it is nested too deep to be shown otherwise."""
    try:
        document = json.loads(source)
    except RecursionError:
        return source.decode(errors="replace")
    is_deep = any(islice(levels(document), _LEVELS_MAX, None))
    return source.decode(errors="replace") if is_deep else document


def as_id(connection: Connection, document: Document, id_: str) -> str | None:
    """How Postgres writes an id of this document that is given so; None if it can be none."""
    query = sql.SQL(_AS_ID).format(id_type=sql.SQL(document.dependencies.id_type))  # named by Postgres
    try:
        row = connection.execute(query, (id_,)).fetchone()
    except psycopg.DataError:
        return None
    return None if row is None else row[0]


def look(connection: Connection, index: Index, document: Document, id_: str) -> Look:
    """Ask both sides."""
    copies: Sequence[Stored] = ()
    unreadable: SyncerError | None = None
    try:
        with at_work_for(document.name, document.generation):
            copies = index.holdings.read(document.target, [id_])
    except DocumentError as error:
        unreadable = error
    row, failure, is_at_fault = _row(connection, document, id_)
    drift = None
    if failure is None and unreadable is None:
        drift = next(compare(document.name, document.index_name, {id_: row} if row else {}, copies), None)
    return Look(
        row=row, failure=failure, is_at_fault=is_at_fault, copies=tuple(copies), unreadable=unreadable, drift=drift
    )


def _row(connection: Connection, document: Document, id_: str) -> tuple[Row | None, SyncerError | None, bool]:
    if as_id(connection, document, id_) != id_:
        return None, None, False
    try:
        return compose.current(connection, document, [id_]).get(id_), None, False
    except DocumentError as error:
        return None, error, is_of_data(error.__cause__)


def standing(
    connection: Connection, index: Index, document: Document, id_: str, *, seen: Look, jobs: tuple[Pending, ...]
) -> Standing:
    """What was seen, with its versions taken apart, and what Postgres remembers of it."""
    return Standing(
        document=document,
        look=seen,
        copies=tuple(_copy(connection, index, one) for one in seen.copies),
        dead_letter=dead_letters.find(connection, document.index_name, id_),
        jobs=jobs,
    )


def _copy(connection: Connection, index: Index, stored: Stored) -> Copy:
    origin = version.origin(connection, index, stored.version)
    is_known = origin in (Origin.DRAWN, Origin.EARLIER)
    after, before = version.drawn_between(connection, stored.version) if is_known else (None, None)
    return Copy(
        place=stored.place,
        version=stored.version,
        origin=origin,
        drawn_after=after,
        drawn_before=before,
        is_final=origin is Origin.FOREIGN and not version.is_surpassed(connection, stored.version),
    )
