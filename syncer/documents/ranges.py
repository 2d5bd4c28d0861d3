"""Ranges of ids: a SELECT of any size is walked range by range, each in a short snapshot of its own.

Guarantees: the ranges of a walk are disjoint, and each id belongs to one of them, whatever is written meanwhile. A
range has so many rows of the root table when the walk comes to it; the SELECT may return fewer of them.

The walk follows an index on the unique column that is ``_id``. A document without such an index has one range: all ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from syncer.base.postgres import Connection, value
from syncer.documents.registry import Document

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
SELECT last.key::text FROM (
    SELECT r.{key} AS key FROM {root} AS r WHERE {after} ORDER BY r.{key} LIMIT 1 OFFSET {rows}
) AS last
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """The ids greater than ``after``, up to ``through`` and including it; None for no limit."""

    after: str | None = None
    through: str | None = None

    @property
    def is_last(self) -> bool:
        """Whether no id is greater than those of this range."""
        return self.through is None


def has_index(connection: Connection, document: Document) -> bool:
    """Return whether the document can be walked in more than one range."""
    found = document.dependencies
    return found.root is not None and bool(value(connection, _HAS_INDEX, (found.root, found.root_key)))


def next_range(connection: Connection, document: Document, after: str | None, *, rows: int) -> IdRange:
    """Return the range of the next so many rows after an id; None stands for the beginning.

    Args:
        connection: To Postgres. Within a snapshot, the range has these rows in it.
        document: The definition.
        after: The last id of the range before.
        rows: How many rows of the root table the range has at most.
    """
    if after is None and not has_index(connection, document):
        return IdRange()
    found = document.dependencies
    key = sql.Identifier(found.root_key or "")
    query = sql.SQL(_LAST).format(
        key=key,
        root=sql.SQL(found.root or ""),  # quoted by Postgres
        after=_condition(document, sql.SQL("r.") + key, IdRange(after=after)),
        rows=sql.Literal(rows - 1),
    )
    row = connection.execute(query).fetchone()
    return IdRange(after=after, through=None if row is None else row[0])


def condition(document: Document, span: IdRange) -> sql.Composable:
    """Return the condition on the document's SELECT, as ``d``, that a row is in a range."""
    return _condition(document, sql.SQL("d._id"), span)


def _condition(document: Document, id_: sql.Composable, span: IdRange) -> sql.Composable:
    """Compare with literals: Postgres plans for these very values."""
    bounds = [
        sql.SQL("{} {} {}::{}").format(id_, sql.SQL(operator), sql.Literal(bound), _type(document))
        for operator, bound in ((">", span.after), ("<=", span.through))
        if bound is not None
    ]
    return sql.SQL(" AND ").join([*bounds, id_ + sql.SQL(" IS NOT NULL")])


def _type(document: Document) -> sql.SQL:
    return sql.SQL(document.dependencies.id_type)  # named by Postgres
