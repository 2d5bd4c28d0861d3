"""The document registry in Postgres: definitions, revisions, targets.

Owns ``syncer.document``. A definition is stored with its analysis when it is applied, so that daemons need no config
folder, parse no SQL, and all of them agree. A change of definition is safe because the definition and a document's rows
are read in one snapshot: see `syncer.indexing.compose`.

A row is an active definition and the index it is written to. A document has a second row while its index is rebuilt.
Each row is handled like a document of its own, so that an index that fails is suspended alone; the rows of a document
share name and alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import msgspec
from psycopg.types.json import Jsonb

from syncer.base.errors import DefinitionError, UnavailableError
from syncer.base.model import Change, Lead, Role, Target, watched_digest
from syncer.base.postgres import Connection, value
from syncer.lineage.fingerprint import Shape

_VERSIONS = "SELECT index_name, xmin::text FROM syncer.document"
_DOCUMENTS = """
SELECT definition || jsonb_build_object(
           'name', name, 'revision', revision, 'role', role, 'is_loaded', loaded_at IS NOT NULL,
           'suspended', suspended, 'accepted', accepted
       ), index_name, (SELECT epoch FROM syncer.installation)
FROM syncer.document ORDER BY name, role <> 'current', index_name
"""
STATE_COLUMNS = """
d.revision, d.role, d.suspended IS NOT NULL, d.listings,
EXISTS (SELECT FROM syncer.dead_letter AS l WHERE l.index_name = d.index_name),
(SELECT i.epoch FROM syncer.installation AS i)
"""
"""The columns for `DocumentState.of`, from a row of ``syncer.document`` as ``d``."""
_REVISIONS_USED = "SELECT document, last FROM syncer.revision"
_PUT_REVISION = """
INSERT INTO syncer.revision AS g (document, last) VALUES ($1, $2)
ON CONFLICT (document) DO UPDATE SET last = greatest(g.last, excluded.last)
"""
_PUT_DOCUMENT = """
INSERT INTO syncer.document AS d (name, revision, definition, index_name, role, accepted)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (index_name) DO UPDATE
SET revision = excluded.revision, definition = excluded.definition, role = excluded.role, accepted = excluded.accepted,
    applied_at = now(), loaded_at = NULL, suspended = NULL, suspended_ids = '{}', is_stale = false,
    stale_since = coalesce(d.stale_since, now())
"""
_DROP_DOCUMENT = "DELETE FROM syncer.document WHERE index_name = $1"
_MAKE_CURRENT = "UPDATE syncer.document SET role = 'current' WHERE index_name = $1"
_MARK_LOADED = """
UPDATE syncer.document SET loaded_at = now(), stale_since = NULL
WHERE name = $1 AND revision = $2 AND suspended IS NULL
"""
_MARK_INCOMPLETE = """
UPDATE syncer.document SET loaded_at = NULL, stale_since = coalesce(stale_since, now()) WHERE index_name = ANY ($1)
"""
_SUSPEND = """
WITH before AS (
    SELECT index_name, suspended, suspended_at FROM syncer.document WHERE name = $1 AND revision = $2 FOR NO KEY UPDATE
)
UPDATE syncer.document AS d
SET suspended = $3, suspended_ids = $4,
    suspended_at = CASE WHEN b.suspended IS NULL THEN clock_timestamp() ELSE b.suspended_at END
FROM before AS b WHERE d.index_name = b.index_name AND b.suspended IS DISTINCT FROM $3
RETURNING b.suspended IS NULL
"""
_ACCEPT = "UPDATE syncer.document SET accepted = $2 WHERE index_name = $1 AND revision = $3"
_STORE = "UPDATE syncer.document SET definition = $2, accepted = NULL WHERE index_name = $1"
_MARK_STALE = """
UPDATE syncer.document AS d SET is_stale = true, loaded_at = NULL, stale_since = coalesce(stale_since, least(now(), (
    SELECT min(j.changed_at) FROM syncer.job AS j
    WHERE j.index_name = d.index_name AND j.kind = 'fan_out' AND j.state = 'new')))
WHERE name = $1 AND revision = $2 AND suspended IS NOT NULL AND NOT is_stale
"""
_DATE_STALE = """
UPDATE syncer.document SET stale_since = least(stale_since, to_timestamp($2))
WHERE index_name = $1 AND stale_since IS NOT NULL
"""
_SUSPENDED = "SELECT index_name, suspended_ids FROM syncer.document WHERE suspended IS NOT NULL"
_RESUME = """
WITH before AS (
    SELECT index_name, is_stale, suspended_at FROM syncer.document
    WHERE index_name = $1 AND revision = $2 AND suspended IS NOT NULL FOR NO KEY UPDATE
)
UPDATE syncer.document AS d SET suspended = NULL, suspended_ids = '{}', is_stale = false
FROM before AS b WHERE d.index_name = b.index_name
RETURNING b.is_stale, extract(epoch FROM clock_timestamp() - b.suspended_at)::float8
"""
_INSTALLATION = "SELECT installation::text FROM syncer.installation"
_EPOCH = "SELECT epoch FROM syncer.installation"
# A process that enters an epoch locks the row, and then looks for the active indices.
_KEEP_EPOCH = f"{_EPOCH} FOR SHARE"
_INDEX_NAMES = "SELECT index_name FROM syncer.document"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """How a document uses a table.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        watched: The columns that the SELECT reads.
        routing: The columns that determine which documents a row belongs to.
        affects: The affects query as deparsed by Postgres, with ``%(rows)s`` for the changed rows.
        places: The columns that decide which documents there are, and their ``_routing``; None if any row may.
    """

    relation: str
    watched: frozenset[str]
    routing: frozenset[str]
    leads: tuple[Lead, ...]
    affects: str | None = None
    places: frozenset[str] | None = None

    def moves(self, change: Change) -> bool:
        """Whether the documents that a change leads to may have moved to other shards, or are no longer there."""
        # Rules: moves-delete-elsewhere, what-is-received-again-deletes-elsewhere.
        if self.places is None or change.may_be_repeated:
            return True
        return bool(self.places) and watched_digest(self.places) not in change.untouched

    @property
    def affected(self) -> tuple[str, ...]:
        """The queries for affected documents."""
        return tuple(lead.query for lead in self.leads if lead.query)

    @property
    def id_columns(self) -> tuple[str, ...]:
        """The columns whose values are ids of affected documents."""
        return tuple(dict.fromkeys(lead.id_column for lead in self.leads if lead.id_column))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a document's SELECT reads and returns.

    Args:
        canonical_select: The SELECT as deparsed by Postgres.
        fields: Every column except ``_id`` and ``_routing``, in order.
        root: The table whose rows are the documents; None if ``_id`` is not a unique column of a table.
        root_key: The column of the root that is ``_id``.
        tables: How each table is used, by relation.
        shapes: The shape of each relation at the time of the analysis.
    """

    canonical_select: str
    id_type: str
    fields: tuple[str, ...]
    root: str | None
    root_key: str | None
    tables: dict[str, TableUse]
    views: tuple[str, ...]
    shapes: dict[str, Shape]
    has_routing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An active definition and the index it is written to.

    Args:
        revision: Grows with every apply that changes the definition.
        index: The search alias.
        target: The index; unique among the rows.
        is_loaded: Whether every document has been written once under this revision.
        suspended: If suspended, the reason and the hint.
        accepted: What it relies on, if that differs from what was applied and is no obstacle.
        apart_max: Up to so many documents are looked up each by itself, which plan has found to read less.
    """

    name: str
    revision: int
    index: str
    index_body: dict[str, Any]
    dependencies: Dependencies
    target: Target
    role: Role = Role.CURRENT
    is_loaded: bool = False
    suspended: str | None = None
    accepted: dict[str, Shape] | None = None
    apart_max: int = 0

    @property
    def shapes(self) -> dict[str, Shape]:
        """What it relies on in the catalogue."""
        return self.dependencies.shapes if self.accepted is None else self.accepted

    @property
    def index_name(self) -> str:
        """The physical index; it distinguishes the rows of one document."""
        return self.target.index_name

    @property
    def is_kept(self) -> bool:
        """Whether the index must equal its SELECT: always if it is current, else if it is loaded and not suspended."""
        return self.role is Role.CURRENT or (self.is_loaded and self.suspended is None)


class DocumentState(NamedTuple):
    """The state of a document in a snapshot, besides its rows; ``listings`` counts the jobs that listed its ids."""

    revision: int
    role: Role
    is_suspended: bool
    listings: int
    has_dead_letters: bool
    epoch: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self | None:
        """Return the state in a row of `STATE_COLUMNS`; None if the document is not active."""
        revision, role, *columns = row
        return None if revision is None else cls(revision, Role(role), *columns)


class Definitions:
    """The active definitions, as its owner last read them."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}
        self._versions: dict[str, str] = {}
        """By index, the transaction that wrote the definition."""

    def refresh(self, connection: Connection) -> list[Document]:
        """Return all active definitions; they are read again only if one has changed."""
        versions: dict[str, str] = dict(connection.execute(_VERSIONS).fetchall())
        if versions != self._versions:
            self._read(connection)
            self._versions = versions
        return list(self._documents.values())

    def last(self, connection: Connection, index_name: str) -> Document | None:
        """Return a definition as last read, for callers that check whether it is still active."""
        if index_name not in self._documents:
            self._read(connection)
        return self._documents.get(index_name)

    def forget(self) -> None:
        """Read the definitions again on the next request."""
        self._documents, self._versions = {}, {}

    def _read(self, connection: Connection) -> None:
        self._documents = {document.index_name: document for document in documents(connection)}


def documents(connection: Connection) -> list[Document]:
    """Return all active definitions by name, a document's current one first."""
    return [
        msgspec.convert({**stored, "target": Target.of_index(index_name, epoch)}, Document)
        for stored, index_name, epoch in connection.execute(_DOCUMENTS)
    ]


def active(connection: Connection, index_name: str) -> Document | None:
    """Return the active definition of an index; None if there is none."""
    return next((document for document in documents(connection) if document.index_name == index_name), None)


def named(connection: Connection, name: str) -> list[Document]:
    """Return the active definitions of a document, one for each of its indices; the current one first.

    Raises:
        DefinitionError: There is none.
    """
    all_active = documents(connection)
    definitions = [document for document in all_active if document.name == name]
    if not definitions:
        names = ", ".join(dict.fromkeys(document.name for document in all_active)) or "none; run: syncer apply"
        raise DefinitionError(f"No document {name[:100]} is active", hint=f"Active documents: {names}")
    return definitions


def by_role(connection: Connection, name: str) -> dict[Role, Document]:
    """Return the definitions of one document, by role."""
    return {document.role: document for document in documents(connection) if document.name == name}


def revisions(connection: Connection) -> dict[str, int]:
    """Return the last revision of every document that was ever active."""
    return dict(connection.execute(_REVISIONS_USED).fetchall())


def put_document(connection: Connection, document: Document) -> None:
    """Activate a definition for its index, as not yet loaded.

    Raises:
        UnavailableError: Since the index was created, another epoch was entered: its write alias is of no use.
    """
    # Rule: an-index-is-activated-in-the-epoch-of-its-alias.
    if document.target != Target.of_index(document.index_name, int(str(value(connection, _KEEP_EPOCH)))):
        raise UnavailableError("Postgres failed over while the index was made", hint="Run the same command again.")
    connection.execute(_PUT_REVISION, (document.name, document.revision))
    accepted = None if document.accepted is None else _json(document.accepted)
    columns = (document.name, document.revision, _stored(document), document.index_name, document.role, accepted)
    connection.execute(_PUT_DOCUMENT, columns)


def store(connection: Connection, document: Document) -> None:
    """Store what was analysed again of a definition that is the same as before."""
    connection.execute(_STORE, (document.index_name, _stored(document)))


def accept(connection: Connection, document: Document, shapes: dict[str, Shape]) -> None:
    """Record that a document goes on with what it relies on now."""
    connection.execute(_ACCEPT, (document.index_name, _json(shapes), document.revision))


def _stored(document: Document) -> Jsonb:
    return _json({name: getattr(document, name) for name in ("index", "index_body", "dependencies", "apart_max")})


def _json(definition: dict[str, Any]) -> Jsonb:
    return Jsonb(msgspec.to_builtins(definition))


def drop_document(connection: Connection, document: Document) -> None:
    """Deactivate a definition; its index receives no more writes."""
    connection.execute(_DROP_DOCUMENT, (document.index_name,))


def make_current(connection: Connection, document: Document) -> None:
    """Record that searches use this index."""
    connection.execute(_MAKE_CURRENT, (document.index_name,))


def mark_loaded(connection: Connection, document_name: str, revision: int) -> bool:
    """Record that every document has been written once; False if the revision is not active, or suspended."""
    return connection.execute(_MARK_LOADED, (document_name, revision)).rowcount == 1


def mark_incomplete(connection: Connection, index_names: Sequence[str]) -> None:
    """Record that documents in these indices may be stale from now on, if they are not already."""
    connection.execute(_MARK_INCOMPLETE, (list(index_names),))


def suspend(
    connection: Connection, document_name: str, revision: int, *, reason: str, ids: Sequence[str], is_stale: bool
) -> bool:
    """Suspend a document, in the caller's transaction; False if it is suspended, or another revision is active.

    The reason is the latest: why it cannot go on now. The ids are documents to try before it is resumed. It is stale if
    changes may have been missed, which is recorded even if it is suspended already.
    """
    renewed = connection.execute(_SUSPEND, (document_name, revision, reason, list(ids))).fetchone()
    if is_stale:
        mark_stale(connection, document_name, revision)
    return renewed == (True,)


def mark_stale(connection: Connection, document_name: str, revision: int) -> None:
    """Record that a suspended document needs a refresh when it is resumed."""
    connection.execute(_MARK_STALE, (document_name, revision))


def date_stale(connection: Connection, index_name: str, changed_at: float) -> None:
    """Record that a stale index does not show a change of this time, in Unix time."""
    connection.execute(_DATE_STALE, (index_name, changed_at))


def suspended(connection: Connection) -> dict[str, list[str]]:
    """Return the suspended indices, with the ids of the documents to try before each is resumed."""
    return dict(connection.execute(_SUSPENDED).fetchall())


def resume(connection: Connection, document: Document) -> tuple[bool, float] | None:
    """End a suspension; return whether the document is stale, and for how many seconds it was suspended.

    None if it is not suspended, or another revision is active.
    """
    return connection.execute(_RESUME, (document.index_name, document.revision)).fetchone()


def installation(connection: Connection) -> str:
    """Return the id that distinguishes this database's indices from those of another one."""
    return str(value(connection, _INSTALLATION))


def epoch(connection: Connection) -> int:
    """Return the epoch in use; 0 if none was entered yet."""
    return int(str(value(connection, _EPOCH)))


def index_names(connection: Connection) -> list[str]:
    """Return the names of the active indices."""
    return [index_name for (index_name,) in connection.execute(_INDEX_NAMES)]
