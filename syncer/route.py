"""Route: from the changed rows of a table to the ids of documents, as SQL.

Guarantee: a route names every document that its reading of the table takes part in, by the path that
`syncer.derivation` has found; the query that it becomes has been understood by Postgres.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql
from sqlglot import exp

from syncer.derivation import read_graph
from syncer.errors import DefinitionError
from syncer.graph import PLAIN_TYPES, Graph, Hop, Node, Path, numbers, of_one_row
from syncer.postgres import Connection, names_in_full
from syncer.probe import Probe
from syncer.uses import Lookup

ROWS_MARK = "'\"syncer: the changed rows\"'::jsonb"
"""Stands for the changed rows until a query is run; deparsing gives it back letter by letter."""


# A row lacks what its image lacks, and a domain may take no null: in the place of such a one stands what it is made of.
_WITHOUT_DOMAINS = """
WITH RECURSIVE type (number, name, oid, modifier, collated, refuses) AS (
    SELECT attnum, attname, atttypid, atttypmod, attcollation, false
    FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT y.number, y.name, t.typbasetype, t.typtypmod, y.collated,
           y.refuses OR t.typnotnull OR EXISTS (SELECT FROM pg_constraint WHERE contypid = t.oid)
    FROM type AS y JOIN pg_type AS t ON t.oid = y.oid AND t.typtype = 'd'
)
SELECT string_agg(concat(format('%I %s', y.name, format_type(y.oid, y.modifier)),
                         CASE WHEN k.oid <> 100 THEN format(' COLLATE %I.%I', n.nspname, k.collname) END),
                  ', ' ORDER BY y.number)
FROM type AS y JOIN pg_type AS t ON t.oid = y.oid AND t.typtype <> 'd'
LEFT JOIN pg_collation AS k ON k.oid = y.collated LEFT JOIN pg_namespace AS n ON n.oid = k.collnamespace
HAVING bool_or(y.refuses)
"""


def changed_rows(connection: Connection, relation: str) -> str:
    """The changed rows of a table, as an item of FROM that is yet to get its alias."""
    with names_in_full(connection):
        row = connection.execute(_WITHOUT_DOMAINS, (relation,)).fetchone()
    if row is None:
        return f"jsonb_populate_recordset(NULL::{relation}, {ROWS_MARK})"
    return f"(SELECT * FROM jsonb_to_recordset({ROWS_MARK}) AS changed ({row[0]}))"  # noqa: S608 - quoted by Postgres


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """From the changed rows of one reading of a table to documents.

    Args:
        query: Over ``$1::jsonb``.
        columns: What it reads of the changed rows.
        id_column: If the documents' ids are a column of the changed rows: that column.
    """

    query: str
    columns: frozenset[str]
    id_column: str | None


class Routes:
    """The ways from the tables of one SELECT to its documents.

    Args:
        connection: To ask about the tables.
        found: The SELECT.
        file: Where it was read, for errors.
    """

    def __init__(self, connection: Connection, found: Probe, file: str) -> None:
        self._connection = connection
        self._file = file
        self._id_type = found.columns["_id"]
        self._relations = {read.name: read.relation for read in found.reads}
        self._catalogue = {read.name: _table(connection, read.relation) for read in found.reads}
        types = {name: table.types for name, table in self._catalogue.items()}
        self.graph = read_graph(found.tree, types, found.views) if found.tree else Graph()
        self._paths: dict[int, Path | None] = {}
        self.has_id = bool(self.graph.ids)
        of_one_row(self.graph, types)

    def root(self) -> tuple[str | None, str | None]:
        """The table and the column that ``_id`` is, if it is a unique column of one."""
        if len(self.graph.ids) != 1 or not isinstance(self.graph.ids[0], exp.Column):
            return None, None
        column = self.graph.ids[0]
        node = self._node(column)
        is_unique = frozenset({column.name}) in self._catalogue[node.table].keys
        return (self._relations[node.table], column.name) if is_unique else (None, None)

    def lookups(self) -> Iterator[Lookup]:
        """What is looked up when documents are composed, and when those that a change touches are found."""
        for id_ in self.graph.ids:
            if len(numbers(id_)) == 1:
                node = self._node(id_)
                yield Lookup(relation=self._relations[node.table], columns=(self._bare(id_),))
        for node in self.graph.nodes:
            path = self.path(node)
            for hop in path.hops if path else ():
                yield from self._lookup(hop.node, hop.conditions)
            if path and path.hops:
                from_start = [one for one in path.hops[0].conditions if node.number in numbers(one)]
                yield from self._lookup(node, from_start)

    def _lookup(self, node: Node, conditions: Iterable[exp.EQ]) -> Iterator[Lookup]:
        sides = [side for condition in conditions for side in (condition.left, condition.right)]
        compared = dict.fromkeys(self._bare(side) for side in sides if numbers(side) == {node.number})
        if compared:
            yield Lookup(relation=self._relations[node.table], columns=tuple(compared))

    def path(self, node: Node) -> Path | None:
        """The path from a reading of a table to documents, if there is one."""
        if node.number not in self._paths:
            keys = {name: table.keys for name, table in self._catalogue.items()}
            self._paths[node.number] = self.graph.path(node, keys)
        return self._paths[node.number]

    def _node(self, expression: exp.Expr) -> Node:
        (number,) = numbers(expression)
        return self.graph.nodes[number]

    def _bare(self, expression: exp.Expr) -> str:
        """An expression over one table, as an index has it."""
        bare = expression.copy()
        for column in bare.find_all(exp.Column):
            column.set("table", None)
        text = bare.sql(dialect="postgres")
        return text if isinstance(bare, exp.Column) else f"({text})"

    def route(self, node: Node) -> Route:
        """How to find the documents of one reading of a table, from which a path leads to ``_id``."""
        path = self.path(node)
        assert path is not None  # noqa: S101 - it is required to be derivable
        id_, hops = self._shortened(path)
        conditions = [condition for hop in hops for condition in hop.conditions]
        own = f"n{node.number}"
        columns = frozenset(
            one.name for part in (id_, *conditions) for one in part.find_all(exp.Column) if one.table == own
        )
        is_direct = not hops and self._is_text_of_id(id_)
        return Route(query=self._query(node, id_, hops), columns=columns, id_column=id_.name if is_direct else None)

    def _shortened(self, path: Path) -> tuple[exp.Expr, tuple[Hop, ...]]:
        """The path without its last table, if all that is needed of that is a key that the one before has too."""
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
        """Whether equal values of a column and of a type have the same text."""
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
        # Names of relations come from Postgres, conditions from what it deparsed.
        # A column of a wider type may have values that no id can be: what is cast without need, those make fail.
        as_id = "" if self._is_text_of_id(id_) else f"::{self._id_type}"
        query = f"SELECT ({id_.sql(dialect='postgres')}){as_id}::text AS _id\nFROM {rows} AS n{node.number}{joins}"
        self._require_runs(query)
        return query.replace(ROWS_MARK, "$1::jsonb")

    def _require_runs(self, query: str) -> None:
        try:
            with names_in_full(self._connection):
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
# A collation that holds different texts to be equal makes a text less than plain. A changed row has no value for a
# virtual generated column; nor, being JSON, does it tell where an array begins, nor exactly what is in a composite.
_TYPES = """
SELECT a.attname::text,
       CASE WHEN c.collisdeterministic IS FALSE THEN '' ELSE format_type(a.atttypid, -1) END
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
  AND t.typcategory NOT IN ('A', 'C')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """What the catalogue says of a table.

    Args:
        keys: The sets of columns that are unique.
        types: The type of each column that a changed row has; empty where different texts count as equal.
    """

    keys: frozenset[frozenset[str]]
    types: dict[str, str]


def _table(connection: Connection, relation: str) -> _Table:
    return _Table(
        keys=frozenset(frozenset(row[0]) for row in connection.execute(_UNIQUE_KEYS, (relation,)).fetchall()),
        types=dict(connection.execute(_TYPES, (relation,)).fetchall()),
    )
