"""What syncer remembers of its documents, in Postgres: definitions, generations, targets.

A definition is stored with what was found out about it when it was applied, so that no daemon needs a config
folder and all daemons agree. Reading it and a document's rows in one snapshot is what makes a change of
definition safe: see `syncer.compose`.

A row of ``syncer.document`` is a definition in force and the index that it is written to. While an index is built anew
a document has two rows, and as long as the index before it is kept for a rollback. Each is followed on its own, as
if it were a document of its own, so that one whose index is broken halts alone; they share the name and the alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Jsonb

from syncer.model import Role, Target
from syncer.postgres import Connection, value
from syncer.shape import Shape
from syncer.uses import Dependencies, Field, Lookup, TableUse

_GENERATIONS = "SELECT index_name, generation, role, halted IS NOT NULL, unwell IS NOT NULL FROM syncer.document"
_DOCUMENTS = """
SELECT name, generation, definition, index_name, write_alias, role, filled_at IS NOT NULL, halted, unwell
FROM syncer.document ORDER BY name, role <> 'serving', index_name
"""
_STATE = """
SELECT d.generation, d.role, d.halted IS NOT NULL, d.listings, extract(epoch FROM clock_timestamp())::float8,
       EXISTS (SELECT FROM syncer.dead_letter AS l WHERE l.index_name = d.index_name)
FROM syncer.document AS d
WHERE d.index_name = $1
"""
_GENERATIONS_USED = "SELECT document, last FROM syncer.generation"
_PUT_GENERATION = """
INSERT INTO syncer.generation AS g (document, last) VALUES ($1, $2)
ON CONFLICT (document) DO UPDATE SET last = greatest(g.last, excluded.last)
"""
_PUT_DOCUMENT = """
INSERT INTO syncer.document (name, generation, definition, index_name, write_alias, role)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (index_name) DO UPDATE
SET generation = excluded.generation, definition = excluded.definition, role = excluded.role,
    applied_at = now(), filled_at = NULL, halted = NULL, halted_at = NULL
"""
_DROP_DOCUMENT = "DELETE FROM syncer.document WHERE index_name = $1"
_ASSIGN = "UPDATE syncer.document SET role = $2 WHERE index_name = $1"
_MARK_FILLED = """
UPDATE syncer.document SET filled_at = now() WHERE name = $1 AND generation = $2 AND halted IS NULL
"""
_MARK_UNFILLED = "UPDATE syncer.document SET filled_at = NULL WHERE index_name = ANY ($1)"
# The first reason stays. Changes are skipped from here on: whatever was filled no longer is.
_HALT = """
UPDATE syncer.document SET halted = $3, halted_at = now(), filled_at = NULL
WHERE name = $1 AND generation = $2 AND halted IS NULL
"""
_MARK_UNWELL = """
UPDATE syncer.document SET unwell = $2, unwell_at = now() WHERE index_name = $1 AND unwell IS NULL
"""
_MARK_WELL = """
UPDATE syncer.document AS d SET unwell = NULL, unwell_at = NULL
FROM syncer.document AS before
WHERE d.index_name = $1 AND d.unwell IS NOT NULL AND before.index_name = d.index_name
RETURNING extract(epoch FROM clock_timestamp() - before.unwell_at)::float8
"""
_UNWELL = "SELECT index_name FROM syncer.document WHERE unwell IS NOT NULL ORDER BY 1"
_INSTALLATION = "SELECT installation::text FROM syncer.incarnation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A definition in force, and where it is written.

    Args:
        name: The document's name.
        generation: Grows with every apply that changed the definition.
        index: The alias that searches use.
        select: The SELECT as it was written, to compare with.
        affects: The affects queries as they were written, to compare with.
        index_body: Settings and mappings.
        dependencies: What the SELECT reads and returns.
        target: The index that it is written to; no other row has the same.
        role: What that index is for.
        is_filled: Whether every document has been written once under this generation.
        halted: If it is halted: what happened, and what to do.
        unwell: If its index takes no documents for now: why, and what to do. See `syncer.unwell`.
    """

    name: str
    generation: int
    index: str
    select: str
    affects: dict[str, str]
    index_body: dict[str, Any]
    dependencies: Dependencies
    target: Target
    role: Role = Role.SERVING
    is_filled: bool = False
    halted: str | None = None
    unwell: str | None = None

    @property
    def index_name(self) -> str:
        """The physical index, which is what tells two rows of one document apart."""
        return self.target.index_name

    @property
    def is_kept(self) -> bool:
        """Whether the index is to equal its SELECT: one that is built is not to yet, one that halted is given up."""
        return self.role is Role.SERVING or (self.is_filled and self.halted is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """What a snapshot says about a document besides its rows.

    Args:
        generation: The generation in force.
        role: What its index is for.
        is_halted: Whether it is to be skipped until the next generation: see `syncer.halting`.
        listings: How often somebody has begun to list its ids for a job.
        server_seconds: When that was, by the clock of the server.
        has_dead_letters: Whether any of its documents is parked.
    """

    generation: int
    role: Role
    is_halted: bool
    listings: int
    server_seconds: float
    has_dead_letters: bool


class Catalogue:
    """The definitions in force, as its owner last read them."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}

    def refresh(self, connection: Connection) -> list[Document]:
        """All definitions in force now; they are read again only if a generation has changed, or what ails one."""
        now = connection.execute(_GENERATIONS).fetchall()
        known = [
            (name, one.generation, one.role, one.halted is not None, one.unwell is not None)
            for name, one in self._documents.items()
        ]
        if sorted(now) != sorted(known):
            self._read(connection)
        return list(self._documents.values())

    def last(self, connection: Connection, index_name: str) -> Document | None:
        """One definition as it was last read, for who finds out whether it is still in force."""
        if index_name not in self._documents:
            self._read(connection)
        return self._documents.get(index_name)

    def forget(self) -> None:
        """Read the definitions again when next asked for one."""
        self._documents = {}

    def _read(self, connection: Connection) -> None:
        self._documents = {one.index_name: one for one in documents(connection)}


def documents(connection: Connection) -> list[Document]:
    """All definitions in force, by name, the one that is served before the others of its name."""
    return [
        _document(
            name,
            generation,
            stored,
            target=Target(index_name=index_name, write_alias=write_alias),
            role=Role(role),
            is_filled=is_filled,
            halted=halted,
            unwell=unwell,
        )
        for name, generation, stored, index_name, write_alias, role, is_filled, halted, unwell in connection.execute(
            _DOCUMENTS
        )
    ]


def served(connection: Connection) -> dict[str, Document]:
    """The definitions whose index searches find, by name."""
    return {one.name: one for one in documents(connection) if one.role is Role.SERVING}


def by_role(connection: Connection, name: str) -> dict[Role, Document]:
    """The rows of one document, by what their index is for."""
    return {one.role: one for one in documents(connection) if one.name == name}


def _document(
    name: str,
    generation: int,
    stored: dict[str, Any],
    *,
    target: Target,
    role: Role,
    is_filled: bool,
    halted: str | None,
    unwell: str | None,
) -> Document:
    return Document(
        name=name,
        generation=generation,
        index=stored["index"],
        select=stored["select"],
        affects=stored["affects"],
        index_body=stored["index_body"],
        dependencies=_dependencies(stored["dependencies"]),
        target=target,
        role=role,
        is_filled=is_filled,
        halted=halted,
        unwell=unwell,
    )


def _dependencies(stored: dict[str, Any]) -> Dependencies:
    return Dependencies(
        **{
            **stored,
            "fields": tuple(Field(**one) for one in stored["fields"]),
            "tables": {relation: _table_use(use) for relation, use in stored["tables"].items()},
            "shapes": {relation: Shape(**one) for relation, one in stored["shapes"].items()},
            "views": tuple(stored["views"]),
            "lookups": tuple(
                Lookup(relation=one["relation"], columns=tuple(one["columns"])) for one in stored["lookups"]
            ),
        }
    )


def _table_use(stored: dict[str, Any]) -> TableUse:
    sets = {name: frozenset(stored[name]) for name in ("watched", "routing")}
    return TableUse(**{**stored, **sets, **{name: tuple(stored[name]) for name in ("id_columns", "affected")}})


def generations(connection: Connection) -> dict[str, int]:
    """The last generation of every document that was ever in force."""
    return dict(connection.execute(_GENERATIONS_USED).fetchall())


def put_document(connection: Connection, document: Document) -> None:
    """Put a definition in force for its index, as not yet filled."""
    dependencies = asdict(document.dependencies)
    for use in dependencies["tables"].values():
        use |= {"watched": sorted(use["watched"]), "routing": sorted(use["routing"])}
    stored = {
        "index": document.index,
        "select": document.select,
        "affects": document.affects,
        "index_body": document.index_body,
        "dependencies": dependencies,
    }
    connection.execute(_PUT_GENERATION, (document.name, document.generation))
    where = (document.target.index_name, document.target.write_alias, document.role)
    connection.execute(_PUT_DOCUMENT, (document.name, document.generation, Jsonb(stored), *where))


def drop_document(connection: Connection, document: Document) -> None:
    """Put a definition out of force: its index is written no more."""
    connection.execute(_DROP_DOCUMENT, (document.index_name,))


def assign(connection: Connection, document: Document, role: Role) -> None:
    """Say what the index of a definition is for from now on."""
    connection.execute(_ASSIGN, (document.index_name, role))


def mark_filled(connection: Connection, document_name: str, generation: int) -> bool:
    """Remember that every document has been written once under this generation; False if it ended or halted."""
    return connection.execute(_MARK_FILLED, (document_name, generation)).rowcount == 1


def mark_unfilled(connection: Connection, index_names: Sequence[str]) -> None:
    """Remember that changes of the documents in these indices may have been missed."""
    connection.execute(_MARK_UNFILLED, (list(index_names),))


def halt(connection: Connection, document_name: str, generation: int, reason: str) -> bool:
    """Halt a document; False if it is halted already, or another generation is in force."""
    return connection.execute(_HALT, (document_name, generation, reason)).rowcount == 1


def mark_unwell(connection: Connection, index_name: str, said: str) -> bool:
    """Remember that an index takes no documents for now; False if that was known already, or it is not in force."""
    return connection.execute(_MARK_UNWELL, (index_name, said)).rowcount == 1


def mark_well(connection: Connection, index_name: str) -> float | None:
    """Forget that; for how many seconds it was so, None if it was not."""
    row = connection.execute(_MARK_WELL, (index_name,)).fetchone()
    return None if row is None else float(row[0])


def unwell(connection: Connection) -> list[str]:
    """The indices that take no documents for now."""
    return [row[0] for row in connection.execute(_UNWELL)]


def state(connection: Connection, index_name: str) -> DocumentState | None:
    """What the caller's snapshot says of the definition for an index; None if it is no longer in force."""
    row = connection.execute(_STATE, (index_name,)).fetchone()
    if row is None:
        return None
    generation, role, is_halted, listings, server_seconds, has_dead_letters = row
    return DocumentState(
        generation=generation,
        role=Role(role),
        is_halted=is_halted,
        listings=listings,
        server_seconds=server_seconds,
        has_dead_letters=has_dead_letters,
    )


def installation(connection: Connection) -> str:
    """What tells this database's indices from those of another one."""
    return str(value(connection, _INSTALLATION))
