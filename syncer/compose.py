"""Compose: ids → whole documents, as one snapshot shows them, with a version drawn in turn with that snapshot.

This module keeps the reading half of the version rule: a version is drawn and one snapshot taken while nobody else
does either, and the document's rows and the generation in force for its index are all read in that snapshot.

Why that is right: take a change and any reader whose snapshot missed it. His turn was over before the change was
visible; the change's own event is handled after, so its turn is later and its version greater, and its document wins.
And of any two readers the one with the greater version has seen all that the other has: so no document ever shows a
state and then an earlier one.

Of a replica less is said, see `syncer.replica`: there the draw comes first, and the snapshot later.

Before the snapshot the document's relations are locked against ALTER TABLE, which would make a table look empty to it,
and in the snapshot the catalogue is compared with what the definition was applied to. So a document is composed from
the columns that it was made for, or not at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import psycopg
from psycopg import sql

from syncer import fault, store, version
from syncer.errors import ComposeError, DocumentError
from syncer.fault import Fault
from syncer.model import Composition, Place
from syncer.policy import Action, decide
from syncer.postgres import Connection, copied, value
from syncer.reading import STAGE_LOCK_SECONDS, locked, reading, require_capture, require_shape
from syncer.replica import Replica
from syncer.store import Catalogue, Document, DocumentState

_Read = TypeVar("_Read")

_DOCUMENTS = """
SELECT d._id::text, (SELECT row_to_json(fields) FROM (SELECT {fields}) AS fields), {routing}
FROM ({select}) AS d
"""
_COMPOSE = _DOCUMENTS + "WHERE d._id = ANY ($1::text[]::{id_type}[])"
_EXISTING = "SELECT d._id::text, {routing} FROM ({select}) AS d WHERE d._id = ANY ($1::text[]::{id_type}[])"
_COUNT = "SELECT count(*) FROM ({select}) AS d WHERE d._id IS NOT NULL"
_DUPLICATE = """
SELECT d._id::text FROM ({select}) AS d WHERE d._id IS NOT NULL GROUP BY d._id HAVING count(*) > 1 LIMIT 1
"""
_ROUTING = sql.SQL("coalesce(d._routing::text, '')")
_NO_ROUTING = sql.SQL("NULL::text")
_FAULTS = "SELECT id, state, message, column_name, constraint_name, type_name FROM syncer.faults($1, $2::text[], $3)"
_EVERYTHING = _DOCUMENTS + "WHERE d._id IS NOT NULL"

_SOME_IDS = """
SELECT d._id::text FROM ({select}) AS d WHERE d._id IS NOT NULL ORDER BY hashtext(d._id::text), 1 LIMIT $1
"""
_RANDOM_IDS = "SELECT d._id::text FROM ({select}) AS d WHERE d._id IS NOT NULL ORDER BY random() LIMIT $1"
_FIRST_IDS = "SELECT d._id::text FROM ({select}) AS d WHERE d._id IS NOT NULL LIMIT $1"
# Below a LIMIT, even none, a column is computed once, however many conditions are on it.
_EXAMPLES = "SELECT {examples} FROM (SELECT * FROM ({select}) AS s WHERE s._id IS NOT NULL LIMIT $1) AS d"
_EXAMPLE = "min(d._id::text) FILTER (WHERE {condition})"

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def _is_integer(bits: int) -> Callable[[str], bool]:
    limit = 1 << (bits - 1)
    return lambda text: _INTEGER.fullmatch(text) is not None and -limit <= int(text) < limit


def _is_text(text: str) -> bool:
    return "\0" not in text  # which Postgres has in no text


_IS_ID: dict[str, Callable[[str], bool]] = {
    "smallint": _is_integer(16),
    "integer": _is_integer(32),
    "bigint": _is_integer(64),
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Documents that were composed together.

    Args:
        compositions: One for each id that was asked for.
        version: The version of all of them; what is written with a greater one is at least as new.
        drawn_at: Just before it was drawn, by `clock`.
        document: The definition that the snapshot has in force; None if it has none, or a halted one.
        has_dead_letters: Whether the snapshot knows of parked documents.
        listings: How often it knows that somebody has begun to list all documents.
        read_at: When it was taken, or before, by the clock of the primary.
    """

    compositions: tuple[Composition, ...]
    drawn_at: float
    version: int = 0
    document: Document | None = None
    has_dead_letters: bool = False
    listings: int = 0
    read_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Which of some documents the SELECT raises for.

    Args:
        version: As `Batch` has it.
        document: As `Batch` has it.
        faults: By id, what is at fault.
        untried: Those that there was no time for.
    """

    version: int = 0
    document: Document | None = None
    faults: Mapping[str, Fault] = field(default_factory=dict)
    untried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the SELECT says of a document.

    Args:
        source: Its fields as JSON on one line.
        routing: As `Composition` has it.
    """

    source: bytes
    routing: str | None


def clock() -> float:
    """Seconds on a clock that goes on while the machine sleeps and is never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Composer:
    """Reads documents, on connections that nobody else uses.

    Args:
        connection: To the primary.
        replica: Where to read instead, if not there.
    """

    def __init__(self, connection: Connection, *, replica: Replica | None = None) -> None:
        self._primary = connection
        self._replica = replica
        self._connection = connection if replica is None else replica.connection
        self._catalogue = Catalogue()

    def compose(self, index_name: str, ids: Sequence[str], *, everywhere: bool = False) -> Batch:
        """Draw a version with a snapshot, and read these documents and their definition in it.

        Args:
            index_name: The index that they are for, which tells their definition.
            ids: Which.
            everywhere: Whether any shard may hold a copy, though the SELECT has no ``_routing``.

        Returns:
            A composition for each distinct id; nothing if the document is not in force, or halted.

        Raises:
            DocumentError: The document is to halt: its SELECT no longer fits, or returns an id more than once.
            psycopg.Error: The SELECT failed on some row, or the connection did.
            ReplicaError: The replica is behind for too long, or no replica.
        """
        drawn_at = clock()  # the draw comes after: it is no older than this says

        def read(drawn: int, document: Document, state: DocumentState) -> Batch:
            absent = "" if everywhere or document.dependencies.has_routing else None
            return Batch(
                compositions=self._compositions(document, ids, drawn, absent),
                version=drawn,
                drawn_at=drawn_at,
                document=document,
                has_dead_letters=state.has_dead_letters,
                listings=state.listings,
                read_at=state.server_seconds,
            )

        return self._read(index_name, read) or Batch(compositions=(), drawn_at=drawn_at)

    def faults(self, index_name: str, ids: Sequence[str], *, seconds: float) -> Findings:
        """Draw a version with a snapshot, and find out in it for which of these documents the SELECT raises.

        They are tried in groups, and those of a group that fails one by one, all on the server: at worst that asks for
        each of them a little more than once.

        Args:
            index_name: The index that they are for.
            ids: Which.
            seconds: After how long to try no more; one at least is tried.

        Raises:
            DocumentError: The document is to halt.
            psycopg.Error: What no row is to blame for.
            ReplicaError: As `compose`.
        """

        def read(drawn: int, document: Document, _: DocumentState) -> Findings:
            require_shape(self._connection, document)
            query = statement(document).as_string(self._connection)
            rows = self._connection.execute(_FAULTS, (query, castable(document, ids), seconds)).fetchall()
            return Findings(
                version=drawn,
                document=document,
                faults={row[0]: _fault(*row[1:]) for row in rows if row[1] is not None},
                untried=tuple(row[0] for row in rows if row[1] is None),
            )

        return self._read(index_name, read) or Findings()

    def _read(self, index_name: str, read: Callable[[int, Document, DocumentState], _Read]) -> _Read | None:
        """Read in one snapshot in which a definition is in force, and known; None if none is, or it is halted."""
        # Of the primary it is asked which there are: a replica may not know as yet of one that was put in force.
        while (document := self._catalogue.last(self._primary, index_name)) is not None:
            try:
                with self._drawn(document) as (drawn, drawn_at):
                    state = store.state(self._connection, index_name)
                    if state is None or state.is_halted:
                        break  # what skips it here is made good by the fill of the next generation: `syncer.halting`
                    if drawn_at is not None:
                        state = replace(state, server_seconds=drawn_at)
                    if (state.generation, state.role) == (document.generation, document.role):
                        return read(drawn, document, state)
            except DocumentError:
                # What failed may have been a definition that is no longer in force.
                if self._is_in_force(document):
                    raise
            self._catalogue.forget()
        return None

    @contextmanager
    def _drawn(self, document: Document) -> Iterator[tuple[int, float | None]]:
        """A version, with the snapshot that may be written with it; and when it was drawn, if that cannot say."""
        drawn, drawn_at = (None, None) if self._replica is None else self._replica.draw(self._primary)
        with locked(self._connection, document, parks=True, lock_seconds=STAGE_LOCK_SECONDS):
            if drawn is None:
                drawn = version.draw(self._connection)  # the version rule: with the snapshot, and in turn
            elif self._replica is not None:
                self._replica.require_draw(drawn)
            yield drawn, drawn_at

    def _compositions(
        self, document: Document, ids: Sequence[str], drawn: int, absent: str | None
    ) -> tuple[Composition, ...]:
        require_shape(self._connection, document)
        require_capture(self._connection, document)
        rows = _fetched(self._connection, document, ids)
        found = {
            id_: Composition(
                id=id_, version=drawn, source=one_line(source), routing=absent if routing is None else routing
            )
            for id_, source, routing in rows
        }
        if len(found) != len(rows):
            # Why a document is halted is shown to who may see no id: see `syncer.halting`.
            raise _twice(document, "an _id", hint="`syncer plan` says which. ")
        return tuple(
            found.get(one) or Composition(id=one, version=drawn, source=None, routing=absent)
            for one in dict.fromkeys(ids)
        )

    def _is_in_force(self, document: Document) -> bool:
        state = store.state(self._connection, document.index_name)
        return state is not None and state.generation == document.generation


def _fault(state: str, message: str, column: str, constraint: str, type_name: str) -> Fault:
    """What Postgres has against a row.

    Raises:
        psycopg.Error: It is no fault of the row.
    """
    kind = _error_class(state)
    if decide(kind(message)) is not Action.PARK:
        raise kind(message)
    return fault.of_row(kind.__name__, message, column=column, constraint=constraint, type_name=type_name)


def _error_class(state: str) -> type[psycopg.Error]:
    try:
        return psycopg.errors.lookup(state)
    except KeyError:  # a state that somebody's function has made up
        return _OF_CLASS.get(state[:2], psycopg.DatabaseError)


_OF_CLASS: dict[str, type[psycopg.Error]] = {"22": psycopg.DataError, "23": psycopg.IntegrityError}


def count(connection: Connection, document: Document) -> int:
    """How many documents the SELECT returns."""
    with reading(connection, document):
        return int(str(value(connection, _statement(_COUNT, document))))


def require_unique(connection: Connection, document: Document) -> None:
    """Refuse a SELECT that returns an id more than once on the data as it is.

    Raises:
        ComposeError: With one such id.
    """
    row = connection.execute(_statement(_DUPLICATE, document)).fetchone()
    if row is not None:
        raise _twice(document, f"_id {row[0]}")


def _twice(document: Document, which: str, *, hint: str = "") -> ComposeError:
    return ComposeError(
        f"The SELECT of {document.name} returns {which} more than once",
        hint=f"{hint}Does a join multiply its rows? Then aggregate the joined table in a subquery. Or is _id not\n"
        "unique by itself? Then choose another one. Then run: syncer apply",
    )


def existing(connection: Connection, document: Document, ids: Sequence[str]) -> set[Place]:
    """Where those of the ids belong that the SELECT returns."""
    with reading(connection, document):
        return existing_here(connection, document, ids)


def existing_here(connection: Connection, document: Document, ids: Sequence[str]) -> set[Place]:
    """The same, in the caller's snapshot."""
    rows = connection.execute(_statement(_EXISTING, document), (castable(document, ids),), prepare=True)
    return {Place.of(id_, routing) for id_, routing in rows}


def castable(document: Document, ids: Sequence[str]) -> list[str]:
    """Those of the ids that can be ids of this document at all: somebody else may have written others."""
    is_valid = _IS_ID.get(document.dependencies.id_type, _is_text)
    return [one for one in ids if is_valid(one)]


def everything(connection: Connection, document: Document, *, page: int, bytes_max: int) -> Generator[dict[str, Row]]:
    """Every document that the SELECT returns in the caller's snapshot, by id, in no order, never whole in memory.

    Args:
        connection: Taken until the iterator is exhausted or closed.
        document: Which definition.
        page: How many documents at once.
        bytes_max: After how many bytes a page ends, if not before.

    Raises:
        ComposeError: The SELECT returns an id more than once. Nothing has been yielded then.
    """
    require_unique(connection, document)
    rows: dict[str, Row] = {}
    size = 0
    for id_, source, routing in copied(connection, _statement(_EVERYTHING, document)):
        assert id_ is not None  # noqa: S101 - the query says so
        assert source is not None  # noqa: S101 - and row_to_json makes one of any row
        rows[id_.decode()] = Row(source=one_line(source), routing=None if routing is None else routing.decode())
        size += len(source)
        if len(rows) >= page or size >= bytes_max:
            yield rows
            rows, size = {}, 0
    if rows:
        yield rows


def random_ids(connection: Connection, document: Document, number: int) -> list[str]:
    """Ids from all over the SELECT, others each time; it is read whole."""
    with reading(connection, document):
        return [row[0] for row in connection.execute(_statement(_RANDOM_IDS, document), (number,))]


def some_ids(connection: Connection, document: Document, limit: int) -> list[str]:
    """Ids from all over the SELECT, the same ones each time; it is read whole."""
    return [row[0] for row in connection.execute(_statement(_SOME_IDS, document), (limit,))]


def first_ids(connection: Connection, document: Document, limit: int) -> list[str]:
    """The ids that come first, with as little reading as possible."""
    return [row[0] for row in connection.execute(_statement(_FIRST_IDS, document), (limit,))]


def examples(
    connection: Connection, document: Document, conditions: Sequence[str], *, limit: int | None
) -> list[str | None]:
    """For each condition on the SELECT as ``d``, the id of a document that meets it, among so many or all."""
    wanted = [sql.SQL(_EXAMPLE).format(condition=sql.SQL(one)) for one in conditions]
    query = sql.SQL(_EXAMPLES).format(
        examples=sql.SQL(", ").join(wanted), select=sql.SQL(document.dependencies.canonical_select)
    )
    row = connection.execute(query, (limit,)).fetchone()
    return list(row or ())


def statement(document: Document) -> sql.Composed:
    """The query that composes documents, their ids being ``$1``."""
    return _statement(_COMPOSE, document)


def current(connection: Connection, document: Document, ids: Sequence[str]) -> dict[str, Row]:
    """These documents as the SELECT returns them now, without a version: to compare, never to write."""
    with reading(connection, document):
        rows = _fetched(connection, document, ids)
    return {id_: Row(source=one_line(source), routing=routing) for id_, source, routing in rows}


def _fetched(connection: Connection, document: Document, ids: Sequence[str]) -> list[tuple[str, bytes, str | None]]:
    """What the SELECT returns of these ids: each id, its fields, its routing."""
    return connection.execute(_statement(_COMPOSE, document), (castable(document, ids),), prepare=True).fetchall()


def one_line(source: bytes) -> bytes:
    """JSON on one line, as a bulk request needs it: a raw line break in JSON is never inside a string."""
    return source.replace(b"\n", b" ").replace(b"\r", b" ")


def _statement(template: str, document: Document) -> sql.Composed:
    found = document.dependencies
    columns = sql.SQL(", ").join(sql.Identifier("d", one.name) for one in found.fields)
    return sql.SQL(template).format(  # a constant of ours
        fields=columns,
        routing=_ROUTING if found.has_routing else _NO_ROUTING,
        select=sql.SQL(found.canonical_select),  # deparsed by Postgres
        id_type=sql.SQL(found.id_type),  # named by Postgres
    )
