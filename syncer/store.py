"""What syncer remembers of its documents, in Postgres: definitions, generations, targets, dead letters.

A definition is stored with what was found out about it when it was applied, so that no daemon needs a config
folder and all daemons agree. Reading it and a document's rows in one snapshot is what makes a change of
definition safe: see `syncer.compose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Jsonb

from syncer.dependency import Dependencies, Field, TableUse
from syncer.model import Target
from syncer.postgres import Connection, value
from syncer.route import Lookup
from syncer.shape import Shape

_GENERATIONS = "SELECT name, generation, halted IS NOT NULL FROM syncer.document"
_DOCUMENTS = """
SELECT name, generation, definition, filled_at IS NOT NULL, halted FROM syncer.document ORDER BY name
"""
_STATE = """
SELECT d.generation,
       d.halted IS NOT NULL,
       array(SELECT (t.index_name, t.write_alias, t.mapping_generation)
             FROM syncer.target AS t WHERE t.document = d.name ORDER BY t.index_name),
       EXISTS (SELECT FROM syncer.dead_letter AS l WHERE l.document = d.name)
FROM syncer.document AS d
WHERE d.name = $1
"""
_TARGETS = "SELECT index_name, write_alias, mapping_generation FROM syncer.target WHERE document = $1 ORDER BY 1"
_PUT_DOCUMENT = """
INSERT INTO syncer.document (name, generation, definition) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE
SET generation = excluded.generation, definition = excluded.definition, applied_at = now(), filled_at = NULL,
    halted = NULL, halted_at = NULL
"""
_PUT_TARGET = """
INSERT INTO syncer.target (document, index_name, write_alias, mapping_generation) VALUES ($1, $2, $3, $4)
ON CONFLICT (document, index_name) DO UPDATE SET mapping_generation = excluded.mapping_generation
"""
_DROP_TARGETS = "DELETE FROM syncer.target WHERE document = $1"
_MARK_FILLED = """
UPDATE syncer.document SET filled_at = now() WHERE name = $1 AND generation = $2 AND halted IS NULL
"""
_MARK_UNFILLED = "UPDATE syncer.document SET filled_at = NULL WHERE name = ANY ($1)"
# The first reason stays. Changes are skipped from here on: whatever was filled no longer is.
_HALT = """
UPDATE syncer.document SET halted = $3, halted_at = now(), filled_at = NULL
WHERE name = $1 AND generation = $2 AND halted IS NULL
"""
_INSTALLATION = "SELECT installation::text FROM syncer.incarnation"
_PARK = """
INSERT INTO syncer.dead_letter (document, id, version, error) VALUES ($1, $2, $3, $4)
ON CONFLICT (document, id) DO UPDATE
SET version = excluded.version, error = excluded.error, parked_at = now()
WHERE dead_letter.version <= excluded.version
"""
_DEAD_LETTERS = """
SELECT error, count(*) OVER (PARTITION BY split_part(error, ':', 1)), id FROM syncer.dead_letter
WHERE document = $1 ORDER BY 2 DESC, id LIMIT 1
"""
_CLEAR = """
DELETE FROM syncer.dead_letter AS l
USING unnest($2::text[]) AS written (id)
WHERE l.document = $1 AND l.id = written.id AND l.version < $3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A definition in force.

    Args:
        name: The document's name.
        generation: Grows with every apply that changed the definition.
        index: The alias that searches use.
        select: The SELECT as it was written, to compare with.
        affects: The affects queries as they were written, to compare with.
        index_body: Settings and mappings.
        dependencies: What the SELECT reads and returns.
        is_filled: Whether every document has been written once under this generation.
        halted: If it is halted: what happened, and what to do.
    """

    name: str
    generation: int
    index: str
    select: str
    affects: dict[str, str]
    index_body: dict[str, Any]
    dependencies: Dependencies
    is_filled: bool = False
    halted: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """What a snapshot says about a document besides its rows.

    Args:
        generation: The generation in force.
        is_halted: Whether it is to be skipped until the next generation: see `syncer.halting`.
        targets: Where it is to be written.
        has_dead_letters: Whether any of its documents is parked.
    """

    generation: int
    is_halted: bool
    targets: tuple[Target, ...]
    has_dead_letters: bool


class Catalogue:
    """The definitions in force, as its owner last read them."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}

    def refresh(self, connection: Connection) -> list[Document]:
        """All definitions in force now; they are read again only if a generation has changed, or a halt began."""
        now = connection.execute(_GENERATIONS).fetchall()
        known = [(name, one.generation, one.halted is not None) for name, one in self._documents.items()]
        if sorted(now) != sorted(known):
            self._read(connection)
        return list(self._documents.values())

    def last(self, connection: Connection, name: str) -> Document | None:
        """One definition as it was last read, for who finds out whether it is still in force."""
        if name not in self._documents:
            self._read(connection)
        return self._documents.get(name)

    def forget(self) -> None:
        """Read the definitions again when next asked for one."""
        self._documents = {}

    def _read(self, connection: Connection) -> None:
        self._documents = {one.name: one for one in documents(connection)}


def documents(connection: Connection) -> list[Document]:
    """All definitions in force, by name."""
    return [
        _document(name, generation, stored, is_filled=is_filled, halted=halted)
        for name, generation, stored, is_filled, halted in connection.execute(_DOCUMENTS).fetchall()
    ]


def _document(name: str, generation: int, stored: dict[str, Any], *, is_filled: bool, halted: str | None) -> Document:
    return Document(
        name=name,
        generation=generation,
        index=stored["index"],
        select=stored["select"],
        affects=stored["affects"],
        index_body=stored["index_body"],
        dependencies=_dependencies(stored["dependencies"]),
        is_filled=is_filled,
        halted=halted,
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


def put_document(connection: Connection, document: Document) -> None:
    """Put a definition in force, as not yet filled."""
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
    connection.execute(_PUT_DOCUMENT, (document.name, document.generation, Jsonb(stored)))


def mark_filled(connection: Connection, document: Document) -> bool:
    """Remember that every document has been written once under this generation; False if it ended or halted."""
    return connection.execute(_MARK_FILLED, (document.name, document.generation)).rowcount == 1


def mark_unfilled(connection: Connection, names: Sequence[str]) -> None:
    """Remember that changes of these documents may have been missed."""
    connection.execute(_MARK_UNFILLED, (list(names),))


def halt(connection: Connection, document_name: str, generation: int, reason: str) -> bool:
    """Halt a document; False if it is halted already, or another generation is in force."""
    return connection.execute(_HALT, (document_name, generation, reason)).rowcount == 1


def put_target(connection: Connection, document_name: str, target: Target) -> None:
    """Add a target, or note that its index has a newer mapping."""
    connection.execute(_PUT_TARGET, (document_name, target.index_name, target.write_alias, target.mapping_generation))


def drop_targets(connection: Connection, document_name: str) -> None:
    """Forget where a document was written."""
    connection.execute(_DROP_TARGETS, (document_name,))


def targets(connection: Connection, document_name: str) -> tuple[Target, ...]:
    """Where a document is written."""
    return tuple(_target(row) for row in connection.execute(_TARGETS, (document_name,)))


def state(connection: Connection, document_name: str) -> DocumentState | None:
    """What the caller's snapshot says of a document; None if it is no longer in force."""
    row = connection.execute(_STATE, (document_name,)).fetchone()
    if row is None:
        return None
    generation, is_halted, rows, has_dead_letters = row
    return DocumentState(
        generation=generation,
        is_halted=is_halted,
        targets=tuple(_target(fields) for fields in rows),
        has_dead_letters=has_dead_letters,
    )


def _target(row: Sequence[Any]) -> Target:
    index_name, write_alias, mapping_generation = row
    return Target(index_name=index_name, write_alias=write_alias, mapping_generation=int(mapping_generation))


def installation(connection: Connection) -> str:
    """What tells this database's indices from those of another one."""
    return str(value(connection, _INSTALLATION))


def park(connection: Connection, document_name: str, id_: str, version: int, error: str) -> None:
    """Record that a document could not be written with this version; a newer record stays."""
    connection.execute(_PARK, (document_name, id_, version, error))


def worst_dead_letter(connection: Connection, document_name: str) -> tuple[str, str] | None:
    """The id and the error of a dead letter of the most frequent kind."""
    row = connection.execute(_DEAD_LETTERS, (document_name,)).fetchone()
    return (row[2], row[0]) if row else None


def clear_dead_letters(connection: Connection, document_name: str, ids: Sequence[str], version: int) -> None:
    """Forget what was parked of these documents before this version was written."""
    connection.execute(_CLEAR, (document_name, list(ids), version))
