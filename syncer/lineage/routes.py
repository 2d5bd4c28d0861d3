"""Routes: SQL that leads from the changed rows of a table to document ids.

Guarantee: a route finds every document that its reading of the table takes part in, along the path that
`syncer.lineage.build` has found. Postgres has accepted the resulting query.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql
from sqlglot import exp

from syncer.base.errors import DefinitionError
from syncer.base.postgres import Connection
from syncer.lineage.build import read_graph
from syncer.lineage.catalog import Probe
from syncer.lineage.graph import PLAIN_TYPES, Graph, Hop, Node, Path, numbers

ROWS_MARK = "'\"syncer: the changed rows\"'::jsonb"
"""Placeholder for the changed rows until a query is run; deparsing preserves it literally."""


# An image holds each value as text, which Postgres parses like any input. For a json column, however, the string itself
# would become the value, so it is read as text and cast. Also, an image lacks some columns, but a domain may refuse
# nulls: so a domain is replaced by its base type.
_READ_APART = """
WITH RECURSIVE type (number, name, oid, modifier, collated, refuses) AS (
    SELECT attnum, attname, atttypid, atttypmod, attcollation, false
    FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT y.number, y.name, t.typbasetype, t.typtypmod, y.collated,
           y.refuses OR t.typnotnull OR EXISTS (SELECT FROM pg_constraint WHERE contypid = t.oid)
    FROM type AS y JOIN pg_type AS t ON t.oid = y.oid AND t.typtype = 'd'
)
SELECT string_agg(CASE WHEN is_json THEN format('%1$I::%2$s AS %1$I', y.name, format_type(y.oid, y.modifier))
                       ELSE quote_ident(y.name) END, ', ' ORDER BY y.number),
       string_agg(concat(format('%I %s', y.name, CASE WHEN is_json THEN 'text' ELSE format_type(y.oid, y.modifier) END),
                         CASE WHEN k.oid <> 100 THEN format(' COLLATE %I.%I', n.nspname, k.collname) END),
                  ', ' ORDER BY y.number)
FROM type AS y JOIN pg_type AS t ON t.oid = y.oid AND t.typtype <> 'd'
CROSS JOIN LATERAL (SELECT y.oid IN ('json'::regtype, 'jsonb'::regtype)) AS j (is_json)
LEFT JOIN pg_collation AS k ON k.oid = y.collated LEFT JOIN pg_namespace AS n ON n.oid = k.collnamespace
HAVING bool_or(y.refuses OR is_json)
"""


def changed_rows(connection: Connection, relation: str) -> str:
    """Return the changed rows of a table as a FROM item without an alias."""
    row = connection.execute(_READ_APART, (relation,)).fetchone()
    if row is None:
        return f"jsonb_populate_recordset(NULL::{relation}, {ROWS_MARK})"
    columns, read = row  # quoted by Postgres
    return f"(SELECT {columns} FROM jsonb_to_recordset({ROWS_MARK}) AS changed ({read}))"  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Finds documents from the changed rows of one reading of a table, by a query over ``$1::jsonb``.

    ``columns`` are those that it reads of the changed rows. ``id_column`` is set if one of them is the id.
    """

    query: str
    columns: frozenset[str]
    id_column: str | None


class Routes:
    """The routes from the tables of one analysed SELECT to its documents; ``file`` is for errors."""

    def __init__(self, connection: Connection, found: Probe, file: str) -> None:
        self._connection = connection
        self._file = file
        self._id_type = found.columns["_id"]
        self._relations = {read.name: read.relation for read in found.reads}
        self._catalogue = {read.name: known_table(connection, read.relation) for read in found.reads}
        types = {name: table.types for name, table in self._catalogue.items()}
        self.graph = read_graph(found.tree, types, found.views) if found.tree else Graph()
        self._paths: dict[int, tuple[Path, ...]] = {}

    def root(self) -> tuple[str | None, str | None]:
        """Return table and column of ``_id``, if it is a unique column of a table; otherwise None, None."""
        if len(self.graph.ids) != 1 or not isinstance(self.graph.ids[0], exp.Column):
            return None, None
        column = self.graph.ids[0]
        node = self._node(column)
        is_unique = frozenset({column.name}) in self._catalogue[node.table].keys
        return (self._relations[node.table], column.name) if is_unique else (None, None)

    def paths(self, node: Node) -> tuple[Path, ...]:
        """Return the paths from a reading of a table that together lead to its documents; none if they do not."""
        if node.number not in self._paths:
            keys = {name: table.keys for name, table in self._catalogue.items()}
            self._paths[node.number] = self.graph.paths(node, keys)
        return self._paths[node.number]

    def _node(self, expression: exp.Expr) -> Node:
        (number,) = numbers(expression)
        return self.graph.nodes[number]

    def routes(self, node: Node) -> list[Route]:
        """Return the routes from one reading of a table, one for each of its paths."""
        return [self._route(node, path) for path in self.paths(node)]

    def _route(self, node: Node, path: Path) -> Route:
        id_, hops = self._shortened(path)
        conditions = [condition for hop in hops for condition in hop.conditions]
        own = f"n{node.number}"
        columns = frozenset(
            one.name for part in (id_, *conditions) for one in part.find_all(exp.Column) if one.table == own
        )
        is_direct = not hops and self._is_text_of_id(id_)
        return Route(query=self._query(node, id_, hops), columns=columns, id_column=id_.name if is_direct else None)

    def _shortened(self, path: Path) -> tuple[exp.Expr, tuple[Hop, ...]]:
        """Return the path without its last table, if only a key is needed of it that the table before has, too."""
        if path.hops and isinstance(path.id, exp.Column):
            last = path.hops[-1]
            for condition in last.conditions:
                for side, other in ((condition.left, condition.right), (condition.right, condition.left)):
                    is_key = side == path.id and numbers(side) == {last.node.number}
                    if is_key and isinstance(other, exp.Column) and self._is_plain(other, self._type(side)):
                        return other, path.hops[:-1]
        return path.id, path.hops

    def _type(self, column: exp.Expr) -> str:
        return self._catalogue[self._node(column).table].types.get(column.name, "")

    def _is_plain(self, column: exp.Column, type_: str) -> bool:
        """Whether equal values of a column and of a type have equal texts."""
        own = self._type(column)
        return own in PLAIN_TYPES and PLAIN_TYPES[own] == PLAIN_TYPES.get(type_)

    def _is_text_of_id(self, expression: exp.Expr) -> bool:
        """Whether an expression is a column whose text is the id as the SELECT returns it."""
        return isinstance(expression, exp.Column) and self._is_plain(expression, self._id_type)

    def _query(self, node: Node, id_: exp.Expr, hops: tuple[Hop, ...]) -> str:
        rows = changed_rows(self._connection, self._relations[node.table])
        joins = "".join(
            f"\nJOIN {self._relations[hop.node.table]} AS n{hop.node.number} ON "
            + " AND ".join(condition.sql(dialect="postgres") for condition in hop.conditions)
            for hop in hops
        )
        # Names of relations come from Postgres, conditions from its deparsed SQL.
        # The cast to the id's type is needed only if the text may differ. A wider type may hold values that the cast
        # rejects.
        as_id = "" if self._is_text_of_id(id_) else f"::{self._id_type}"
        query = f"SELECT ({id_.sql(dialect='postgres')}){as_id}::text AS _id\nFROM {rows} AS n{node.number}{joins}"
        self._require_runs(query)
        return query.replace(ROWS_MARK, "$1::jsonb")

    def _require_runs(self, query: str) -> None:
        try:
            self._connection.execute(sql.SQL("EXPLAIN " + query))
        except psycopg.ProgrammingError as error:
            raise DefinitionError(
                f"{self._file}: what was derived from it is refused by Postgres: {error}",
                hint="Please report it, with the SELECT. Meanwhile, say in affects/<table>.sql which documents a\n"
                "change touches.",
            ) from error


_UNIQUE_KEYS = """
SELECT array(SELECT a.attname::text FROM pg_attribute AS a
             WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0 : i.indnkeyatts - 1]))
FROM pg_index AS i
WHERE i.indrelid = $1::regclass AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
"""
# A non-deterministic collation treats different texts as equal, so its columns get no type name. A changed row has no
# value for a virtual generated column. As JSON, it also loses an array's lower bound and details of composite values.
_TYPES = """
SELECT a.attname::text,
       CASE WHEN c.collisdeterministic IS FALSE THEN '' ELSE format_type(a.atttypid, -1) END
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
  AND t.typcategory NOT IN ('A', 'C')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """What the catalogue says about a table.

    Args:
        keys: The sets of columns that are unique.
        types: The type of each column that a changed row contains; empty if different texts count as equal.
    """

    keys: frozenset[frozenset[str]]
    types: dict[str, str]


def known_table(connection: Connection, relation: str) -> KnownTable:
    """Return what the catalogue says about a table."""
    return KnownTable(
        keys=frozenset(frozenset(row[0]) for row in connection.execute(_UNIQUE_KEYS, (relation,)).fetchall()),
        types=dict(connection.execute(_TYPES, (relation,)).fetchall()),
    )
