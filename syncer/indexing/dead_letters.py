"""Dead letters: documents that could not be written, each a row of ``syncer.dead_letter`` until it is.

Guarantees: a dead letter is in Postgres before its document counts as done. A newer dead letter is kept. A dead letter
is removed once the document was written or deleted with a newer version than the one that failed. Even with 200,000
dead letters, each query is answered by Postgres with one page or a count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from psycopg import sql

from syncer.base.model import ID_BYTES_MAX
from syncer.base.postgres import Connection, value
from syncer.documents import registry, suspend
from syncer.documents.queries import is_text
from syncer.documents.registry import Document
from syncer.indexing.fault import Fault

_LONG_ID_CHARACTERS = 80
_PAGE_IDS = 10_000

# In the order of ids, as every statement that locks several.
_DEAD_LETTER = """
INSERT INTO syncer.dead_letter (document, index_name, id, version, kind, error, field, value_type, is_id_cut)
SELECT d.name, d.index_name, p.id, $2, p.kind, p.error, p.field, p.value_type, p.is_id_cut
FROM syncer.document AS d,
     unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::boolean[])
         AS p (id, kind, error, field, value_type, is_id_cut)
WHERE d.index_name = $1 ORDER BY p.id FOR KEY SHARE OF d
ON CONFLICT (index_name, id) DO UPDATE
SET version = excluded.version, kind = excluded.kind, error = excluded.error, field = excluded.field,
    value_type = excluded.value_type, failed_at = now(), recorded_in = excluded.recorded_in
WHERE dead_letter.version <= excluded.version
"""
_CLEAR = """
DELETE FROM syncer.dead_letter AS l
USING unnest($2::text[]) AS written (id)
WHERE l.index_name = $1 AND l.id = written.id AND l.version < $3
"""
COUNTS = "SELECT index_name, count(*) FROM syncer.dead_letter GROUP BY index_name"
"""A query that returns the number of dead letters by index."""
_WORST = """
SELECT l.id, l.error FROM syncer.dead_letter AS l
WHERE l.index_name = $1 AND l.kind = (
    SELECT k.kind FROM syncer.dead_letter AS k WHERE k.index_name = $1 GROUP BY k.kind ORDER BY count(*) DESC LIMIT 1)
ORDER BY l.id LIMIT 1
"""
_ERRORS = "SELECT id, error FROM syncer.dead_letter WHERE index_name = $1 AND id = ANY ($2)"
_COLUMNS = "l.document, l.index_name, l.id, l.version, l.kind, l.error, l.field, l.value_type, l.is_id_cut, l.failed_at"
_ONE = f"SELECT {_COLUMNS} FROM syncer.dead_letter AS l WHERE l.index_name = $1 AND l.id = $2"  # noqa: S608 - constants
_PAGE = f"""
SELECT {_COLUMNS} FROM syncer.dead_letter AS l WHERE {{which}} ORDER BY l.index_name, l.id LIMIT $7 OFFSET $8
"""  # noqa: S608 - constants
_SINCE = f"""
SELECT {_COLUMNS} FROM syncer.dead_letter AS l
WHERE l.index_name = ANY ($1) AND l.recorded_in > $2::xid8 ORDER BY l.index_name, l.id LIMIT $3
"""  # noqa: S608 - constants
_KINDS = """
SELECT l.document, l.index_name, l.kind, l.field, l.value_type, count(*), min(l.failed_at), max(l.failed_at),
       min(l.id COLLATE "C"), max(l.id COLLATE "C")
FROM syncer.dead_letter AS l WHERE {which}
GROUP BY l.document, l.index_name, l.kind, l.field, l.value_type
ORDER BY count(*) DESC, l.document, l.index_name, l.kind, l.field, l.value_type
"""
_COUNT = "SELECT count(*) FROM syncer.dead_letter AS l WHERE {which}"
_WHICH = sql.SQL("""
($1::text IS NULL OR l.document = $1) AND ($2::text IS NULL OR l.index_name = $2)
AND ($3::text IS NULL OR l.kind = $3) AND ($4::text IS NULL OR coalesce(l.field, '') = $4)
AND ($5::text IS NULL OR coalesce(l.value_type, '') = $5)
AND ($6::text[] IS NULL OR l.id = ANY ($6))
""")
_KNOWN = "SELECT DISTINCT l.id FROM syncer.dead_letter AS l WHERE {which}"
_DISCARD = "DELETE FROM syncer.dead_letter AS l WHERE {which}"
_INDICES = """
SELECT l.index_name, count(*) FROM syncer.dead_letter AS l WHERE {which} GROUP BY l.index_name ORDER BY l.index_name
"""
_IDS = """
SELECT l.id FROM syncer.dead_letter AS l WHERE {which} AND NOT l.is_id_cut AND l.id > $7 ORDER BY l.id LIMIT $8
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A document that could not be written.

    Args:
        document: The name of the definition.
        index_name: The index it could not be written to.
        id: The id of the document.
        version: The version that it was to be written with.
        kind: The name of the error: see `syncer.indexing.fault`.
        error: The server's message.
        field: The field at fault, if known.
        value_type: The type of its value.
        is_id_cut: Whether ``id`` is the beginning of a longer id, with its digest.
        failed_at: When it was dead-lettered.
    """

    document: str
    index_name: str
    id: str
    version: int
    kind: str
    error: str
    field: str | None
    value_type: str | None
    is_id_cut: bool
    failed_at: datetime

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "failed_at": self.failed_at.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters with the same error.

    Args:
        document: The name of the definition.
        index_name: The index they could not be written to.
        kind: The name of the error.
        field: The field at fault, if known.
        value_type: The type of its value.
        letters: The number of dead letters.
        first_at: When the oldest was dead-lettered.
        last_at: When the newest was dead-lettered.
        examples: The first and the last of their ids.
    """

    document: str
    index_name: str
    kind: str
    field: str | None
    value_type: str | None
    letters: int
    first_at: datetime
    last_at: datetime
    examples: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A filter for dead letters: those that match all given criteria.

    Args:
        document: The name of the definition.
        index_name: The index.
        kind: The kind of error.
        field: The field at fault; empty for dead letters without one.
        value_type: The type of its value; empty for dead letters without one.
        ids: The ids; empty for any.
    """

    document: str | None = None
    index_name: str | None = None
    kind: str | None = None
    field: str | None = None
    value_type: str | None = None
    ids: tuple[str, ...] = ()

    def of_index(self, index_name: str) -> Selection:
        """Return the same filter, limited to one index."""
        return replace(self, index_name=index_name)

    @property
    def parameters(self) -> tuple[object, ...]:
        """The values of ``$1`` to ``$6`` in queries with this filter."""
        ids = [recorded(one) for one in self.ids] or None
        return (self.document, self.index_name, self.kind, self.field, self.value_type, ids)


def dead_letter(connection: Connection, index_name: str, version: int, faults: Mapping[str, Fault]) -> None:
    """Record in one statement that documents could not be written with this version; a newer record is kept.

    An id longer than Elasticsearch allows is recorded by its beginning and its digest.
    """
    if not faults:
        return
    rows = [
        (
            recorded(id_),
            _storable(one.kind),
            _storable(one.error),
            one.field and _storable(one.field),
            one.value_type,
            recorded(id_) != id_,
        )
        for id_, one in faults.items()
    ]
    connection.execute(_DEAD_LETTER, (index_name, version, *map(list, zip(*rows, strict=True))))


def _storable(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def recorded(id_: str) -> str:
    """Return an id as a dead letter stores it: Postgres cannot index texts of any length, nor hold a zero byte."""
    if len(id_.encode()) <= ID_BYTES_MAX and is_text(id_):
        return id_
    beginning = id_[:_LONG_ID_CHARACTERS].replace("\0", "")
    return f"{beginning}… ({sha256(id_.encode()).hexdigest()})"


def clear(connection: Connection, index_name: str, ids: Sequence[str], version: int) -> None:
    """Remove the dead letters of documents that were recorded before this version was written."""
    connection.execute(_CLEAR, (index_name, [recorded(one) for one in ids], version))


# Reading


def worst(connection: Connection, index_name: str) -> tuple[str, str] | None:
    """Return the id and the error of a dead letter of the most frequent kind."""
    row = connection.execute(_WORST, (index_name,)).fetchone()
    return None if row is None else (row[0], row[1])


def errors(connection: Connection, index_name: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the errors of those documents that are dead-lettered, by id."""
    said: dict[str, str] = dict(connection.execute(_ERRORS, (index_name, [recorded(one) for one in ids])).fetchall())
    return {one: said[recorded(one)] for one in ids if recorded(one) in said}


def find(connection: Connection, index_name: str, id_: str) -> DeadLetter | None:
    """Return the dead letter of one document; None if there is none."""
    row = connection.execute(_ONE, (index_name, recorded(id_))).fetchone()
    return None if row is None else _letter(row)


def since(connection: Connection, index_names: Sequence[str], xid: int, *, limit: int) -> list[DeadLetter]:
    """Return dead letters of these indices that were recorded after a transaction, by any process."""
    return [_letter(row) for row in connection.execute(_SINCE, (list(index_names), str(xid), limit))]


def kinds(connection: Connection, selection: Selection) -> list[DeadLetterGroup]:
    """Return the groups of dead letters, the most frequent first."""
    rows = connection.execute(_about(_KINDS), selection.parameters)
    return [
        DeadLetterGroup(
            document=document,
            index_name=index_name,
            kind=kind,
            field=field_,
            value_type=value_type,
            letters=letters,
            first_at=first_at,
            last_at=last_at,
            examples=tuple(dict.fromkeys((least, greatest))),
        )
        for document, index_name, kind, field_, value_type, letters, first_at, last_at, least, greatest in rows
    ]


def page(connection: Connection, selection: Selection, *, limit: int, offset: int = 0) -> list[DeadLetter]:
    """Return one page of dead letters, by index and id."""
    return [_letter(row) for row in connection.execute(_about(_PAGE), (*selection.parameters, limit, offset))]


def count(connection: Connection, selection: Selection) -> int:
    """Return the number of dead letters."""
    return int(str(value(connection, _about(_COUNT), selection.parameters)))


def known(connection: Connection, selection: Selection) -> set[str]:
    """Return the ids of matching dead letters, as recorded."""
    return {row[0] for row in connection.execute(_about(_KNOWN), selection.parameters)}


def _letter(row: Sequence[Any]) -> DeadLetter:
    document, index_name, id_, version, kind, error, field_, value_type, is_id_cut, failed_at = row
    return DeadLetter(
        document=document,
        index_name=index_name,
        id=id_,
        version=version,
        kind=kind,
        error=error,
        field=field_,
        value_type=value_type,
        is_id_cut=is_id_cut,
        failed_at=failed_at,
    )


def _about(template: str) -> sql.Composed:
    return sql.SQL(template).format(which=_WHICH)  # a constant of ours


# Changing


def indices(connection: Connection, selection: Selection) -> dict[str, int]:
    """Return the number of dead letters by index."""
    return dict(connection.execute(_about(_INDICES), selection.parameters).fetchall())


def ids(connection: Connection, selection: Selection) -> Iterator[str]:
    """Yield the ids of one index that can be retried, read page by page."""
    last = ""
    while found := connection.execute(_about(_IDS), (*selection.parameters, last, _PAGE_IDS)).fetchall():
        yield from (row[0] for row in found)
        last = found[-1][0]


def discard(connection: Connection, selection: Selection) -> int:
    """Remove dead letters; return how many they were. Their documents stay as they are until they change."""
    return connection.execute(_about(_DISCARD), selection.parameters).rowcount


def to_retry(connection: Connection, selection: Selection) -> list[tuple[Document, int]]:
    """Return the definitions with dead letters to retry, and the number of documents of each.

    Raises:
        DocumentError: A definition is suspended, so none can be retried.
    """
    rows = {one.index_name: one for one in registry.documents(connection)}
    found = [(rows[name], letters) for name, letters in indices(connection, selection).items()]
    for document, _ in found:
        suspend.require_going(document)
    return found
