"""Dead letters: documents that could not be written, each a row of ``syncer.dead_letter`` until it is.

Guarantees: a dead letter is in Postgres before its document counts as done. A newer one is kept. It is removed once the
document was written or deleted with a newer version. Each query returns one page or counts: there may be 200,000.

The job worker tries each again from time to time: see `syncer.worker.job_loop`. If that fails, it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TypeVar

import psycopg
from psycopg.rows import class_row

from syncer.base.error_policy import TOO_MUCH_KINDS, Action, decide, kind as kind_of
from syncer.base.errors import NotReadyError
from syncer.base.formatting import without_values
from syncer.base.model import ID_BYTES_MAX
from syncer.base.postgres import Connection
from syncer.documents.queries import is_text

_Row = TypeVar("_Row")
_LONG_ID_CHARACTERS = 80
_ERROR_CHARACTERS_MAX = 500
_PAGE_IDS = 10_000
_DAMAGED = "Was the table syncer.dead_letter changed by hand? If not, please report it."

# In the order of ids, as every statement that locks several.
_DEAD_LETTER = """
INSERT INTO syncer.dead_letter (document, index_name, id, version, kind, error, is_id_cut)
SELECT d.name, d.index_name, p.id, $2, p.kind, p.error, p.is_id_cut
FROM syncer.document AS d,
     unnest($3::text[], $4::text[], $5::text[], $6::boolean[]) AS p (id, kind, error, is_id_cut)
WHERE d.index_name = $1 ORDER BY p.id FOR KEY SHARE OF d
ON CONFLICT (index_name, id) DO UPDATE
SET version = excluded.version, kind = excluded.kind, error = excluded.error,
    failed_at = now(), recorded_in = excluded.recorded_in
WHERE dead_letter.version <= excluded.version
"""
_CLEAR = "DELETE FROM syncer.dead_letter WHERE index_name = $1 AND id = ANY ($2::text[]) AND version < $3"
COUNTS = "SELECT index_name, count(*) FROM syncer.dead_letter GROUP BY index_name"
_LETTERS = "SELECT document, index_name, id, version, kind, error, is_id_cut, failed_at FROM syncer.dead_letter"
_OF = "WHERE ($1::text IS NULL OR document = $1)"
_WITH_IDS = f"{_LETTERS} WHERE index_name = $1 AND id = ANY ($2)"
_PAGE = f"{_LETTERS} {_OF} ORDER BY index_name, id LIMIT $2"
_SINCE = f"{_LETTERS} WHERE index_name = ANY ($1) AND recorded_in > $2::xid8 ORDER BY index_name, id LIMIT $3"
_KINDS = f"""
SELECT document, index_name, kind, count(*) AS letters, min(failed_at) AS first_at, min(id) AS example
FROM syncer.dead_letter {_OF}
GROUP BY document, index_name, kind ORDER BY letters DESC, document, index_name, kind
"""
_INDICES = f"""
SELECT index_name, count(*) FROM syncer.dead_letter {_OF} AND ($2::text IS NULL OR id = $2)
GROUP BY index_name ORDER BY index_name
"""
_IDS = """
SELECT id FROM syncer.dead_letter
WHERE index_name = $1 AND NOT is_id_cut AND id > $2 AND ($4::boolean IS NULL OR $4 = (kind = ANY ($5)))
ORDER BY id LIMIT $3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a document could not be written: the name of the error in Elasticsearch or psycopg, and its message."""

    kind: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A document that could not be written, and why. If ``is_id_cut``, ``id`` is as `recorded` cuts a longer one."""

    document: str
    index_name: str
    id: str
    version: int
    kind: str
    error: str
    is_id_cut: bool
    failed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters of one index with the same kind of error, since when, and one of their ids."""

    document: str
    index_name: str
    kind: str
    letters: int
    first_at: datetime
    example: str


def dead_letter(connection: Connection, index_name: str, version: int, failed: Mapping[str, Failure]) -> None:
    """Record in one statement that documents could not be written with this version; a newer record is kept."""
    rows = [
        (recorded(id_), _storable(failure.kind), _storable(failure.error), recorded(id_) != id_)
        for id_, failure in failed.items()
    ]
    try:
        connection.execute(_DEAD_LETTER, (index_name, version, *map(list, zip(*rows, strict=True))))
    except psycopg.Error as error:
        if decide(error) is not Action.DEAD_LETTER:
            raise
        problem = f"Documents of {index_name} cannot be dead-lettered: {kind_of(error)}"
        raise NotReadyError(problem, hint=_DAMAGED, kind=kind_of(error)) from error


def _storable(text: str) -> str:
    """Return a text as Postgres can hold it, without a field's value: its readers may not be allowed to see it."""
    text = without_values(text).replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    text = " ".join(text.split())
    return text if len(text) <= _ERROR_CHARACTERS_MAX else f"{text[:_ERROR_CHARACTERS_MAX]}…"


def recorded(id_: str) -> str:
    """Return an id as a dead letter stores it; a longer one than Elasticsearch allows by its beginning and digest."""
    if is_text(id_) and len(id_.encode()) <= ID_BYTES_MAX:  # Postgres cannot index a text of any length
        return id_
    beginning = id_[:_LONG_ID_CHARACTERS].replace("\0", "").encode("utf-8", "replace").decode()
    return f"{beginning}… ({sha256(id_.encode('utf-8', 'surrogateescape')).hexdigest()})"


def clear(connection: Connection, index_name: str, ids: Sequence[str], version: int) -> None:
    """Remove the dead letters of documents that were recorded before this version was written."""
    connection.execute(_CLEAR, (index_name, list(map(recorded, ids)), version))


def find(connection: Connection, index_name: str, ids: Sequence[str]) -> dict[str, DeadLetter]:
    """Return the dead letters of those documents that have one, by id."""
    rows = _read(connection, DeadLetter, _WITH_IDS, index_name, list(map(recorded, ids)))
    letters = {letter.id: letter for letter in rows}
    return {id_: letters[recorded(id_)] for id_ in ids if recorded(id_) in letters}


def since(connection: Connection, index_names: Sequence[str], xid: int, *, limit: int) -> list[DeadLetter]:
    """Return dead letters of these indices that were recorded after a transaction, by any process."""
    return _read(connection, DeadLetter, _SINCE, list(index_names), str(xid), limit)


def kinds(connection: Connection, document: str | None = None) -> list[DeadLetterGroup]:
    """Return the groups of dead letters, of one definition or of all, the most frequent first."""
    return _read(connection, DeadLetterGroup, _KINDS, document)


def page(connection: Connection, *, document: str | None, limit: int) -> list[DeadLetter]:
    """Return the first dead letters, by index and id."""
    return _read(connection, DeadLetter, _PAGE, document, limit)


def _read(connection: Connection, kind: type[_Row], query: str, *parameters: object) -> list[_Row]:
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(query, parameters).fetchall()


def indices(connection: Connection, *, document: str | None = None, id_: str | None = None) -> dict[str, int]:
    """Return the number of dead letters by index, of one definition or of all."""
    parameters = (document, None if id_ is None else recorded(id_))
    return dict(connection.execute(_INDICES, parameters).fetchall())


def next_ids(
    connection: Connection, index_name: str, last: str, limit: int, *, took_too_much: bool | None = None
) -> list[str]:
    """Return the ids of one index that can be written again, after the last one of the page before.

    Either those that ``took_too_much`` to build, whose next try may take as much again, or the others; None for all.
    """
    parameters = (index_name, last, limit, took_too_much, list(TOO_MUCH_KINDS))
    return [id_ for (id_,) in connection.execute(_IDS, parameters)]


def ids(connection: Connection, index_name: str) -> Iterator[str]:
    """Yield the ids of one index that can be written again, read page by page."""
    last = ""
    while page_ids := next_ids(connection, index_name, last, _PAGE_IDS):
        yield from page_ids
        last = page_ids[-1]
