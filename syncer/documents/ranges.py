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
SELECT last._id::text FROM (
    SELECT d._id FROM ({among}) AS d WHERE {after} ORDER BY d._id LIMIT 1 OFFSET {rows}
) AS last
"""
_ROWS = "SELECT r.{key} AS _id FROM {root} AS r"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """The ids greater than ``after``, up to ``through`` and including it; None for no limit."""

    after: str | None = None
    through: str | None = None

    @property
    def is_last(self) -> bool:
        """Whether no id is greater than those of this range."""
        return self.through is None


def next_range(connection: Connection, document: Document, after: str | None, *, rows: int) -> IdRange:
    """Return the range of the next so many rows after an id; None stands for the beginning.

    Args:
        connection: To Postgres. Within a snapshot, the range has these rows in it.
        document: The definition.
        after: The last id of the range before.
        rows: How many rows of the root table the range has at most.
    """
    found = document.dependencies
    if after is None and not (found.root and value(connection, _HAS_INDEX, (found.root, found.root_key))):
        return IdRange()
    root = sql.SQL(_ROWS).format(key=sql.Identifier(found.root_key or ""), root=sql.SQL(found.root or ""))
    after_it = condition(document, IdRange(after=after))
    query = sql.SQL(_LAST).format(among=root, after=after_it, rows=sql.Literal(rows - 1))
    row = connection.execute(query).fetchone()
    return IdRange(after=after, through=None if row is None else row[0])


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
