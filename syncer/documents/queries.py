"""The queries of a definition: its documents as the SELECT returns them, counted, listed, sampled.

For comparing, listing and estimating. Documents that are to be written are read by `syncer.indexing.compose`, with a
version. That module lets Postgres turn a row into JSON; here each column is turned into JSON by itself, so that a
comparison does not repeat a mistake of the writer.

A SELECT of any size is walked range by range of its ids, each in a short snapshot of its own. Guarantee: the ranges of
a walk are disjoint, and each id belongs to one of them, whatever is written meanwhile. The walk follows an index on the
unique column that is ``_id``. A document without such an index has one range: all ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import sql

from syncer.base.error_policy import is_of_some_rows
from syncer.base.errors import ComposeError, DocumentError
from syncer.base.model import Place, is_utf8
from syncer.base.postgres import Connection, copied, value
from syncer.documents.registry import Document
from syncer.documents.snapshot import Tries, reading

_DOCUMENTS = """
SELECT d._id::text, '{{' || array_to_string(ARRAY[{fields}]::text[], ',') || '}}', {routing} FROM
"""
_FIELD = "{name} || coalesce(to_json({column})::text, 'null')"
BUILD = "SELECT to_jsonb(d.*) FROM {wanted}"
"""Builds documents, for a trial."""
_COMPOSE = _DOCUMENTS + "{wanted}"
_EXISTING = "SELECT d._id::text, {routing} FROM {wanted}"
_TOGETHER = "({select}) AS d WHERE d._id = ANY ($1::text[]::{id_type}[])"
# Postgres pushes no array of ids into a grouping or a window, but it does push a single one. Two texts may be one id.
_APART = """
(SELECT DISTINCT asked.id FROM unnest($1::text[]::{id_type}[]) AS asked (id)) AS k
CROSS JOIN LATERAL (SELECT * FROM ({select}) AS d WHERE d._id = k.id OFFSET 0) AS d
"""
_COUNT = "SELECT count(*) FROM ({select}) AS d WHERE d._id IS NOT NULL"
_WITHOUT_ID = "SELECT count(*) FROM ({select}) AS d WHERE d._id IS NULL"
_DUPLICATE = """
SELECT d._id::text FROM ({select}) AS d WHERE d._id IS NOT NULL GROUP BY d._id HAVING count(*) > 1 LIMIT 1
"""
_Result = TypeVar("_Result")
_ROUTING = sql.SQL("coalesce(d._routing::text, '')")
_NO_ROUTING = sql.SQL("NULL::text")
_IN_RANGE = _DOCUMENTS + "({select}) AS d WHERE {condition}"

_SOME_IDS = "SELECT d._id::text FROM ({select}) AS d WHERE d._id IS NOT NULL ORDER BY hashtext(d._id::text), 1 LIMIT $1"
_COUNTED_IDS = _SOME_IDS.replace(" FROM", ", count(*) OVER () FROM", 1)
SAMPLE_MAX = 200
"""How many documents a sample has at most."""
_GREATEST_ID = "SELECT d._id::text FROM ({select}) AS d WHERE d._id IS NOT NULL ORDER BY d._id DESC LIMIT $1"
_FIRST_IDS = "SELECT d._id::text, NULL::bigint FROM ({select}) AS d WHERE d._id IS NOT NULL LIMIT $1"

# The order must be the one that Postgres itself defines for `<`: that of an operator class of a user's may be another.
_HAS_INDEX = """
SELECT EXISTS (
    SELECT FROM pg_index AS i
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    JOIN pg_opclass AS o ON o.oid = i.indclass[0]
    JOIN pg_am AS m ON m.oid = o.opcmethod
    WHERE i.indrelid = to_regclass($1) AND a.attname = $2 AND i.indisvalid AND i.indpred IS NULL
      AND m.amname = 'btree' AND o.opcdefault AND o.opcnamespace = 'pg_catalog'::regnamespace
      AND i.indcollation[0] = a.attcollation)
"""
_LAST = """
SELECT last._id::text FROM (
    SELECT d._id FROM ({among}) AS d WHERE {after} ORDER BY d._id LIMIT 1 OFFSET {rows}
) AS last
"""
_ROWS = "SELECT r.{key} AS _id FROM {root} AS r"

_IDS_IN_RANGE = "SELECT d._id::text FROM ({among}) AS d WHERE {condition}"

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMERIC = re.compile(r"-?[0-9]+(\.[0-9]+)?|NaN|-?Infinity")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def _is_integer(bits: int) -> Callable[[str], bool]:
    limit = 1 << (bits - 1)
    return lambda text: _INTEGER.fullmatch(text) is not None and -limit <= int(text) < limit


def is_text(text: str) -> bool:
    """Return whether it can be sent to Postgres: no text in Postgres contains a zero byte, or may be no UTF-8."""
    return "\0" not in text and is_utf8(text)


# Types of which every value has one of these texts, or that accept any text. For other types Postgres is asked.
_IS_ID: dict[str, Callable[[str], bool]] = {
    "text": is_text,
    "character varying": is_text,
    "character": is_text,
    "name": is_text,
    "smallint": _is_integer(16),
    "integer": _is_integer(32),
    "bigint": _is_integer(64),
    "numeric": lambda text: _NUMERIC.fullmatch(text) is not None,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
}
_CASTS = "SELECT $1::text[]::{id_type}[]"
_NOT_CASTABLE = (psycopg.DataError, psycopg.errors.CheckViolation, psycopg.errors.SyntaxError)
"""Errors of a type's or domain's input function for invalid text. Some types report a syntax error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A document as the SELECT returns it: its fields as JSON on one line, and its routing as in `Composition`."""

    source: bytes
    routing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """The ids greater than ``after``, up to ``through`` and including it; None for no limit."""

    after: str | None = None
    through: str | None = None

    @property
    def is_last(self) -> bool:
        """Whether no id is greater than those of this range."""
        return self.through is None


def count(connection: Connection, document: Document, *, seconds: float, in_time: bool = False) -> int:
    """Return the number of documents of the SELECT, if it is counted in time."""
    with reading(connection, document, statement_seconds=seconds, in_time=in_time):
        return int(str(value(connection, query_of(_COUNT, document))))


def count_without_id(connection: Connection, document: Document, *, seconds: float) -> int | None:
    """Return how many rows of the SELECT have no id, and are no documents; None if that fails, or takes longer."""
    try:
        with reading(connection, document, statement_seconds=seconds, in_time=True):
            return int(str(value(connection, query_of(_WITHOUT_ID, document))))
    except DocumentError as error:
        if not is_of_some_rows(error):
            raise
        return None


def estimate(connection: Connection, document: Document, span: IdRange) -> tuple[float, float]:
    """Return what Postgres expects to spend on reading a range, in its own unit, and to return in rows."""
    query = query_of(_IN_RANGE, document, condition=condition(document, span))
    explained: Any = value(connection, sql.SQL("EXPLAIN (FORMAT JSON) {}").format(query))
    plan = msgspec.json.decode(explained)[0]["Plan"]
    return plan["Total Cost"], plan["Plan Rows"]


def require_unique(connection: Connection, document: Document) -> None:
    """Refuse a SELECT that returns an id more than once on the current data."""
    row = connection.execute(query_of(_DUPLICATE, document)).fetchone()
    if row is not None:
        raise twice(connection, document, f"_id {row[0]}")


def twice(
    connection: Connection, document: Document, which: str, *, hint: str = "", ids: Sequence[str] = ()
) -> ComposeError:
    """Return the error for a SELECT whose ids are not unique, such as these."""
    from syncer.lineage.routes import keys_and_types  # noqa: PLC0415 - it imports sqlglot, which is slow to load

    root, key = document.dependencies.root, document.dependencies.root_key
    if root and key and frozenset({key}) not in keys_and_types(connection, [root])[0][root]:
        return ComposeError(
            f"The SELECT of {document.name} returns {which} more than once: {root}.{key} is no longer unique",
            hint="Its primary key or unique index is gone. Remove the rows that are there twice, and add it again, as\n"
            f"in: ALTER TABLE {root} ADD PRIMARY KEY ({key}). The document then resumes by itself.",
            ids=ids,
        )
    return ComposeError(
        f"The SELECT of {document.name} returns {which} more than once",
        hint=f"{hint}Does a join multiply its rows? Then aggregate the joined table in a subquery, and run\n"
        "syncer apply. If the rows are wrong, fix them: the document then resumes by itself.",
        ids=ids,
    )


def existing(connection: Connection, document: Document, ids: Sequence[str]) -> set[Place]:
    """Return the places of those ids that the SELECT returns, in the caller's snapshot."""
    query = query_of(_EXISTING, document, documents=len(ids))
    rows = connection.execute(query, (castable(connection, document, ids),), prepare=True)
    return {Place.of(id_, routing) for id_, routing in rows}


def castable(connection: Connection, document: Document, ids: Sequence[str]) -> list[str]:
    """Return the ids that are valid for the type of ``_id``. No row has another one."""
    is_valid = _IS_ID.get(document.dependencies.id_type)
    if is_valid is not None:
        return [id_ for id_ in ids if is_valid(id_)]
    return _cast(connection, query_of(_CASTS, document), [id_ for id_ in ids if is_text(id_)])


def _cast(connection: Connection, casts: sql.Composed, ids: list[str]) -> list[str]:
    """Return the ids that Postgres can cast; bisects them if one fails."""
    try:
        with connection.transaction():
            connection.execute(casts, (ids,), prepare=True)
    except _NOT_CASTABLE:
        middle = len(ids) // 2
        return [*_cast(connection, casts, ids[:middle]), *_cast(connection, casts, ids[middle:])] if middle else []
    return ids


def next_range(connection: Connection, document: Document, after: str | None, *, rows: int) -> IdRange:
    """Return the range of the next so many rows after an id; None stands for the beginning.

    Within a snapshot, the range has at most so many rows of the root table in it.
    """
    dependencies = document.dependencies
    if after is None and not (
        dependencies.root and value(connection, _HAS_INDEX, (dependencies.root, dependencies.root_key))
    ):
        return IdRange()
    after_it = condition(document, IdRange(after=after))
    query = sql.SQL(_LAST).format(among=root_keys(document), after=after_it, rows=sql.Literal(rows - 1))
    row = connection.execute(query).fetchone()
    if row is not None and not is_utf8(row[0]):  # no bound can be such an id
        return next_range(connection, document, after, rows=rows + 1)
    return IdRange(after=after, through=None if row is None else row[0])


def root_keys(document: Document) -> sql.Composed:
    """Return a query for the ids of all rows of the root table, whether the SELECT returns them, fails or leaves out.

    A definition without a root has no other ids than its SELECT returns.
    """
    dependencies = document.dependencies
    if dependencies.root is None or dependencies.root_key is None:
        return sql.Composed([sql.SQL(dependencies.canonical_select)])
    return sql.SQL(_ROWS).format(key=sql.Identifier(dependencies.root_key), root=sql.SQL(dependencies.root))


def ids_in_range(connection: Connection, document: Document, span: IdRange, *, page: int) -> Generator[list[str]]:
    """Yield ids of the root table in a range, in the caller's snapshot; the connection is in use until the end."""
    query = sql.SQL(_IDS_IN_RANGE).format(among=root_keys(document), condition=condition(document, span))
    ids = (_text(id_) for (id_,) in copied(connection, query) if id_ is not None)
    while chunk := list(islice(ids, page)):
        yield chunk


def isolated(
    read: Callable[[list[str]], _Result], ids: Sequence[str]
) -> tuple[list[_Result], dict[str, psycopg.Error]]:
    """Read documents, in halves until each is alone for which the SELECT fails on the data, or takes too much.

    Returns:
        What was read, and the errors of those that cannot be, by id.

    Raises:
        DocumentError: The SELECT fails for another reason, or whatever is asked for.
    """
    results: list[_Result] = []
    failing: dict[str, psycopg.Error] = {}
    remaining, is_blamed = [list(ids)], False
    while remaining:
        group = remaining.pop()
        try:
            results.append(read(group))
        except DocumentError as error:
            cause = error.__cause__
            if not (isinstance(cause, psycopg.Error) and is_of_some_rows(cause)):
                raise
            if not is_blamed:
                read([])
                is_blamed = True
            if middle := len(group) // 2:
                remaining += [group[middle:], group[:middle]]
            else:
                failing |= dict.fromkeys(group, cause)
    return results, failing


def condition(document: Document, span: IdRange) -> sql.Composable:
    """Return the condition on the document's SELECT, as ``d``, that a row is in a range.

    It has literals, so that Postgres plans for these very values.
    """
    bounds: list[sql.Composable] = [
        sql.SQL("d._id {} {}::{}").format(sql.SQL(operator), sql.Literal(bound), sql.SQL(document.dependencies.id_type))
        for operator, bound in ((">", span.after), ("<=", span.through))
        if bound is not None
    ]
    return sql.SQL(" AND ").join([*bounds, sql.SQL("d._id IS NOT NULL")])


def in_range(
    connection: Connection, document: Document, span: IdRange, *, page: int, bytes_max: int
) -> Generator[dict[str, Row]]:
    """Yield the documents of a range of ids in the caller's snapshot, by id, in chunks, in no order.

    The result is never whole in memory: a chunk has at most ``page`` documents, and ends when it reaches ``bytes_max``.
    The connection is in use until the iterator is exhausted or closed.

    Raises:
        ComposeError: The SELECT returns an id more than once.
    """
    if span == IdRange():
        require_unique(connection, document)
    ids: set[str] = set()
    duplicate: str | None = None
    rows: dict[str, Row] = {}
    size = 0
    for id_, source, routing in copied(connection, query_of(_IN_RANGE, document, condition=condition(document, span))):
        assert id_ is not None  # the query excludes it
        assert source is not None  # no part of it is null
        name = _text(id_)
        if name in ids:
            duplicate = name
        if span != IdRange():
            ids.add(name)
        rows[name] = Row(source=one_line(source), routing=None if routing is None else _text(routing))
        size += len(source)
        if len(rows) >= page or size >= bytes_max:
            yield rows
            rows, size = {}, 0
    if duplicate is not None:
        raise twice(connection, document, f"_id {duplicate}")
    if rows:
        yield rows


def some_ids(connection: Connection, document: Document, limit: int) -> list[str]:
    """Return ids sampled from the whole SELECT, the same ones each time. Reads all of it."""
    return [row[0] for row in connection.execute(query_of(_SOME_IDS, document), (limit,))]


def sampled_ids(tries: Tries, select: str) -> tuple[list[str], int | None]:
    """Return ids from the whole of a SELECT, the same ones each time, and how many there are in all.

    If that fails or takes too long, they are the first ones, and None; there is none if no document is read in time.
    """
    rows = _ids(tries, select, (_COUNTED_IDS, _FIRST_IDS), limit=SAMPLE_MAX)
    return [row[0] for row in rows], rows[0][1] if rows else None


def first_ids(tries: Tries, select: str, limit: int) -> list[str]:
    """Return the ids that Postgres finds first; none if they cannot be read in time."""
    return [row[0] for row in _ids(tries, select, (_FIRST_IDS,), limit=limit)]


def greatest_id(tries: Tries, select: str) -> str | None:
    """Return the greatest id of a SELECT, or another if that takes too long; None if there is none in time."""
    return next((row[0] for row in _ids(tries, select, (_GREATEST_ID, _FIRST_IDS), limit=1)), None)


def _ids(tries: Tries, select: str, templates: Sequence[str], *, limit: int) -> list[tuple[Any, ...]]:
    for template in templates:
        query = sql.SQL(template).format(select=sql.SQL(select))
        try:
            with tries.bounded():
                return tries.connection.execute(query, (limit,)).fetchall()
        except psycopg.Error as error:
            if not is_of_some_rows(error):
                raise
    return []


def current(
    connection: Connection, document: Document, ids: Sequence[str], *, seconds: float, lock_seconds: float = 0
) -> dict[str, Row]:
    """Return these documents as the SELECT returns them now. Without a version: to compare, never to write."""
    with reading(connection, document, lock_seconds=lock_seconds, statement_seconds=seconds, in_time=True):
        return rows(connection, document, ids)


def rows(connection: Connection, document: Document, ids: Sequence[str]) -> dict[str, Row]:
    """Return these documents in the caller's snapshot, within `reading`."""
    query = query_of(_COMPOSE, document, documents=len(ids))
    return {
        id_: Row(source=one_line(source.encode("utf-8", "surrogateescape")), routing=routing)
        for id_, source, routing in connection.execute(query, (castable(connection, document, ids),), prepare=True)
    }


def _text(raw: bytes) -> str:
    """Return a text as `syncer.base.postgres` does, also one that is not UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


def one_line(source: bytes) -> bytes:
    """Return JSON on one line, as a bulk request needs it. A raw line break in JSON is never inside a string."""
    return source.replace(b"\n", b" ").replace(b"\r", b" ")


def query_of(
    template: str, document: Document, *, documents: int | None = None, **more: sql.Composable
) -> sql.Composed:
    """Fill in a query template for a definition; ``wanted`` are so many documents, of the ids in ``$1``, as ``d``."""
    dependencies = document.dependencies
    columns: list[sql.Composable] = [sql.Identifier("d", field) for field in dependencies.fields]
    if template.startswith(_DOCUMENTS):
        columns = [
            sql.SQL(_FIELD).format(name=sql.Literal(f"{msgspec.json.encode(field).decode()}:"), column=column)
            for field, column in zip(dependencies.fields, columns, strict=True)
        ]
    arguments = {
        "select": sql.SQL(dependencies.canonical_select),
        "id_type": sql.SQL(dependencies.id_type),
    }  # by Postgres
    return sql.SQL(template).format(  # template is a constant of this package
        fields=sql.SQL(", ").join(columns),
        routing=_ROUTING if dependencies.has_routing else _NO_ROUTING,
        wanted=sql.SQL(_APART if documents and documents <= document.apart_max else _TOGETHER).format(**arguments),
        **arguments,
        **more,
    )
