"""Dead letters: documents that could not be written, each a row of ``syncer.dead_letter`` until it is.

Guarantees: a dead letter is in Postgres before anybody takes its document for done; a newer one stays; it goes away
once a version that is newer than the one that failed has been written, or the document has been deleted with one; all
that is asked of 200,000 of them is asked of Postgres, which answers with a page, or a count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from psycopg import sql

from syncer.fault import Fault
from syncer.model import ID_BYTES_MAX
from syncer.postgres import Connection, value

_LONG_ID_CHARACTERS = 80

# In the order of ids, as by all who lock several.
_PARK = """
INSERT INTO syncer.dead_letter (document, index_name, id, version, kind, error, field, value_type, is_id_cut)
SELECT d.name, d.index_name, p.id, $2, p.kind, p.error, p.field, p.value_type, p.is_id_cut
FROM syncer.document AS d,
     unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::boolean[])
         AS p (id, kind, error, field, value_type, is_id_cut)
WHERE d.index_name = $1 ORDER BY p.id FOR KEY SHARE OF d
ON CONFLICT (index_name, id) DO UPDATE
SET version = excluded.version, kind = excluded.kind, error = excluded.error, field = excluded.field,
    value_type = excluded.value_type, parked_at = now(), parked_in = excluded.parked_in
WHERE dead_letter.version <= excluded.version
"""
_CLEAR = """
DELETE FROM syncer.dead_letter AS l
USING unnest($2::text[]) AS written (id)
WHERE l.index_name = $1 AND l.id = written.id AND l.version < $3
"""
_COUNTS = "SELECT index_name, count(*) FROM syncer.dead_letter GROUP BY index_name"
_WORST = """
SELECT l.id, l.error FROM syncer.dead_letter AS l
WHERE l.index_name = $1 AND l.kind = (
    SELECT k.kind FROM syncer.dead_letter AS k WHERE k.index_name = $1 GROUP BY k.kind ORDER BY count(*) DESC LIMIT 1)
ORDER BY l.id LIMIT 1
"""
_ERRORS = "SELECT id, error FROM syncer.dead_letter WHERE index_name = $1 AND id = ANY ($2)"
_COLUMNS = "l.document, l.index_name, l.id, l.version, l.kind, l.error, l.field, l.value_type, l.is_id_cut, l.parked_at"
_ONE = f"SELECT {_COLUMNS} FROM syncer.dead_letter AS l WHERE l.index_name = $1 AND l.id = $2"  # noqa: S608 - constants
_PAGE = f"""
SELECT {_COLUMNS} FROM syncer.dead_letter AS l WHERE {{which}} ORDER BY l.index_name, l.id LIMIT $7 OFFSET $8
"""  # noqa: S608 - constants
_SINCE = f"""
SELECT {_COLUMNS} FROM syncer.dead_letter AS l
WHERE l.index_name = ANY ($1) AND l.parked_in > $2::xid8 ORDER BY l.index_name, l.id LIMIT $3
"""  # noqa: S608 - constants
_KINDS = """
SELECT l.document, l.index_name, l.kind, l.field, l.value_type, count(*), min(l.parked_at), max(l.parked_at),
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
_IDS = "SELECT l.id AS _id FROM syncer.dead_letter AS l WHERE {which} AND NOT l.is_id_cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A document that could not be written.

    Args:
        document: The document's name.
        index_name: The index that did not get it.
        id: Which of its instances.
        version: The version that it was to be written with.
        kind: The name of the error: see `syncer.fault`.
        error: What the server said.
        field: The field that is at fault, if that was said.
        value_type: The type of its value.
        is_id_cut: Whether ``id`` is the beginning of a longer one, and its digest.
        parked_at: When.
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
    parked_at: datetime

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "parked_at": self.parked_at.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Dead letters that are alike.

    Args:
        document: The document's name.
        index_name: The index that did not get them.
        kind: The name of their error.
        field: The field that is at fault, if that was said.
        value_type: The type of its value.
        letters: How many they are.
        first_at: When the oldest of them was parked.
        last_at: When the newest.
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
        """Plain data."""
        return {**asdict(self), "first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Some dead letters: those that meet all that is said.

    Args:
        document: Of this document.
        index_name: Of this index.
        kind: Of this kind of error.
        field: With this field at fault; empty for those of which none was said.
        value_type: With a value of this type in it; empty likewise.
        ids: These; none stands for any.
    """

    document: str | None = None
    index_name: str | None = None
    kind: str | None = None
    field: str | None = None
    value_type: str | None = None
    ids: tuple[str, ...] = ()

    def of_index(self, index_name: str) -> Selection:
        """Those of them that are of one index."""
        return replace(self, index_name=index_name)

    @property
    def parameters(self) -> tuple[object, ...]:
        """What the queries about some dead letters have as ``$1`` to ``$6``."""
        ids = [recorded(one) for one in self.ids] or None
        return (self.document, self.index_name, self.kind, self.field, self.value_type, ids)


def park(connection: Connection, index_name: str, version: int, faults: Mapping[str, Fault]) -> None:
    """Record that documents could not be written with this version, in one statement; a newer record stays.

    An id that is longer than any that Elasticsearch takes is recorded by its beginning and its digest.
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
    connection.execute(_PARK, (index_name, version, *map(list, zip(*rows, strict=True))))


def _storable(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def recorded(id_: str) -> str:
    """An id as a dead letter has it: an index of Postgres holds no text of any length."""
    if len(id_.encode()) <= ID_BYTES_MAX:
        return id_
    return f"{id_[:_LONG_ID_CHARACTERS]}… ({sha256(id_.encode()).hexdigest()})"


def clear(connection: Connection, index_name: str, ids: Sequence[str], version: int) -> None:
    """Forget what was parked of these documents before this version was written."""
    connection.execute(_CLEAR, (index_name, [recorded(one) for one in ids], version))


# To look at


def counts(connection: Connection) -> dict[str, int]:
    """How many there are, by index."""
    return dict(connection.execute(_COUNTS).fetchall())


def worst(connection: Connection, index_name: str) -> tuple[str, str] | None:
    """The id and the error of a dead letter of the most frequent kind."""
    row = connection.execute(_WORST, (index_name,)).fetchone()
    return None if row is None else (row[0], row[1])


def errors(connection: Connection, index_name: str, ids: Sequence[str]) -> dict[str, str]:
    """What was said of those of the documents that are parked."""
    said: dict[str, str] = dict(connection.execute(_ERRORS, (index_name, [recorded(one) for one in ids])).fetchall())
    return {one: said[recorded(one)] for one in ids if recorded(one) in said}


def find(connection: Connection, index_name: str, id_: str) -> DeadLetter | None:
    """What is known of one document that could not be written; None if it could."""
    row = connection.execute(_ONE, (index_name, recorded(id_))).fetchone()
    return None if row is None else _letter(row)


def since(connection: Connection, index_names: Sequence[str], xid: int, *, limit: int) -> list[DeadLetter]:
    """Some of these indices' that were parked after a transaction: by whoever was to show it, and by others."""
    return [_letter(row) for row in connection.execute(_SINCE, (list(index_names), str(xid), limit))]


def kinds(connection: Connection, selection: Selection) -> list[Kind]:
    """Which kinds there are, the most frequent first."""
    rows = connection.execute(_about(_KINDS), selection.parameters)
    return [
        Kind(
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
    """Some of them, by index and id."""
    return [_letter(row) for row in connection.execute(_about(_PAGE), (*selection.parameters, limit, offset))]


def count(connection: Connection, selection: Selection) -> int:
    """How many they are."""
    return int(str(value(connection, _about(_COUNT), selection.parameters)))


def known(connection: Connection, selection: Selection) -> set[str]:
    """Which ids they have, as they are recorded: for who has named some."""
    return {row[0] for row in connection.execute(_about(_KNOWN), selection.parameters)}


def _letter(row: Sequence[Any]) -> DeadLetter:
    document, index_name, id_, version, kind, error, field_, value_type, is_id_cut, parked_at = row
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
        parked_at=parked_at,
    )


def _about(template: str) -> sql.Composed:
    return sql.SQL(template).format(which=_WHICH)  # a constant of ours


# To do something about them


def indices(connection: Connection, selection: Selection) -> dict[str, int]:
    """In which indices they are, and how many of them."""
    return dict(connection.execute(_about(_INDICES), selection.parameters).fetchall())


def ids_query(selection: Selection) -> tuple[sql.Composed, tuple[object, ...]]:
    """A query for the ids of those that can be tried by their id, and its parameters, ``$1`` to ``$6``."""
    return _about(_IDS), selection.parameters


def discard(connection: Connection, selection: Selection) -> int:
    """Forget them; how many they were. Their documents stay as they are until they change."""
    return connection.execute(_about(_DISCARD), selection.parameters).rowcount
