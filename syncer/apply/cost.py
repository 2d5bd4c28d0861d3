"""Cost: how many documents one changed row leads to, how long that takes, and which index would help.

Queries are run on real rows, one row at a time, read-only and for a bounded time, with ``EXPLAIN ANALYZE``. Postgres
itself tells which index is missing: a table that a slow query reads completely, even if the planner is told to prefer
indexes, has none for the equality in the query's plan.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlglot
from psycopg import errors as pg, sql
from sqlglot import exp
from sqlglot.errors import SqlglotError

from syncer.base.error_policy import is_of_data
from syncer.base.lifecycle import clock
from syncer.base.postgres import Connection, bounded, value

SAMPLE_ROWS = 20
"""How many rows of a table are tried."""
SECONDS_MAX = 2.0
"""How long one query may run; after that, no other row is tried."""
_FEW_PAGES = 1_000
_PAGES_PER_DOCUMENT = 100
"""To read so many takes about as long as to write a document: an index does not help a change that leads to many."""

_SAMPLE = "SELECT jsonb_build_array(to_jsonb(r.*))::text FROM (SELECT {columns} FROM {relation} LIMIT {rows}) AS r"
_EXPLAIN = "EXPLAIN (FORMAT JSON, VERBOSE{analyze}) {query}"
_PREFER_INDEXES = """
SELECT set_config(name, 'off', true) FROM unnest('{enable_seqscan,enable_hashjoin,enable_mergejoin}'::text[]) AS name
"""
_CONDITIONS = ("Index Cond", "Recheck Cond", "Filter", "Join Filter", "Hash Cond", "Merge Cond")
# A partition stands for its table, whose index every partition gets.
_TABLE = """
SELECT format('%I.%I', n.nspname, c.relname), c.relkind = 'p', c.oid <> given.oid
FROM (SELECT to_regclass(format('%I.%I', $1::text, $2::text))::oid AS oid) AS given
JOIN pg_class AS c ON c.oid = coalesce(pg_partition_root(given.oid), given.oid)
JOIN pg_namespace AS n ON n.oid = c.relnamespace
"""
_FIRST = "SELECT pg_get_indexdef(to_regclass(format('%I.%I', $1::text, $2::text)), 1, true)"
# An index on a varchar, or on a domain, serves a comparison of the column cast to text, or to the domain's base type.
_IS_NO_CAST = """
SELECT b.oid = to_regtype($3) OR b.oid = 'varchar'::regtype AND to_regtype($3) = 'text'::regtype
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
JOIN pg_type AS b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
WHERE a.attrelid = to_regclass($1) AND a.attname = $2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a query costs for the row with the most results, of those that were tried.

    If it did not finish, ``seconds`` is None, and the documents are those that the planner expects. The pages are those
    of tables and indexes, in memory or not. The failure is Postgres' message, if the query fails on the data.
    """

    documents: int
    seconds: float | None
    pages: int = 0
    failure: str = ""

    @property
    def is_slow(self) -> bool:
        """Whether an index may help: it reads many pages, and longer than to write the documents."""
        if self.seconds is None:
            return not self.failure
        return self.pages >= max(_FEW_PAGES, self.documents * _PAGES_PER_DOCUMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingIndex:
    """An index without which a query reads a whole table.

    Args:
        statement: Creates it.
        advice: What else to change: a cast hides a column from its index.
        document: The definition that needs it.
        change_of: The table whose changes need it; empty if every build of a document does.
        documents: How many one changed row leads to.
        seconds: How long they take to find, or the document to build; None if it did not finish in two seconds.
    """

    statement: str
    advice: str
    document: str
    change_of: str
    documents: int
    seconds: float | None


def rows(connection: Connection, relation: str, columns: Collection[str]) -> list[tuple[object, ...]]:
    """Return some rows of a table, each as the parameter of an affects query: a JSON array with these columns."""
    statement = sql.SQL(_SAMPLE).format(
        columns=sql.SQL(", ").join(sql.Identifier(name) for name in sorted(columns)),
        relation=sql.SQL(relation),  # quoted by Postgres
        rows=sql.Literal(SAMPLE_ROWS),
    )
    return connection.execute(statement).fetchall()


def measure(connection: Connection, query: sql.Composable, tries: Iterable[tuple[object, ...]]) -> Cost | None:
    """Return what a query costs; None if there is nothing to try it with."""
    costs: list[Cost] = []
    began = clock()
    for parameters in tries:
        try:
            with bounded(connection, seconds=SECONDS_MAX):
                plan = _explain(connection, query, parameters, ", ANALYZE, TIMING OFF, BUFFERS")
        except psycopg.Error as error:
            if not isinstance(error, pg.QueryCanceled) and not is_of_data(error):
                raise
            expected = _explain(connection, query, parameters)["Plan"]["Plan Rows"]
            failure = str(error.diag.message_primary) if is_of_data(error) else ""
            return Cost(documents=int(expected), seconds=None, failure=failure)
        root = plan["Plan"]
        pages = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
        costs.append(Cost(documents=int(root["Actual Rows"]), seconds=plan["Execution Time"] / 1000, pages=pages))
        if clock() - began >= SECONDS_MAX:
            break
    return max(costs, key=lambda cost: (cost.documents, -(cost.seconds or 0)), default=None)


def missing_indexes(
    connection: Connection,
    query: sql.Composable,
    parameters: tuple[object, ...],
    cost: Cost,
    *,
    document: str,
    change_of: str = "",
) -> Iterator[MissingIndex]:
    """Yield the indexes without which a query of this cost reads whole tables."""
    with bounded(connection, seconds=SECONDS_MAX):
        connection.execute(_PREFER_INDEXES)
        nodes = list(_nodes(_explain(connection, query, parameters)["Plan"]))
    scans = {node["Alias"]: node for node in nodes if _reads_all(connection, node)}
    equalities = [equal for node in nodes for key in _CONDITIONS for equal in _equalities(node.get(key, ""))]
    for alias, node in scans.items():
        row = connection.execute(_TABLE, (node["Schema"], node["Relation Name"])).fetchone()
        assert row is not None  # it was just planned
        relation, is_partitioned, is_partition = row
        # A condition above the partitions names their table.
        sides = _compared(equalities, {alias, alias.rpartition("_")[0]} if is_partition else {alias})
        keys = [_key(connection, relation, side) for side in sides]
        if keys:
            how = "" if is_partitioned else "CONCURRENTLY "  # a partitioned table refuses it
            yield MissingIndex(
                statement=f"CREATE INDEX {how}ON {relation} ({', '.join(dict.fromkeys(key for key, _ in keys))});",
                advice=" ".join(advice for _, advice in keys if advice),
                document=document,
                change_of=change_of,
                documents=cost.documents,
                seconds=cost.seconds,
            )


def ranked(found: Iterable[MissingIndex]) -> tuple[MissingIndex, ...]:
    """Return each index once, for the change that needs it most; the slowest change first."""
    first: dict[str, MissingIndex] = {}
    for index in sorted(found, key=lambda index: (-(index.seconds or SECONDS_MAX), -index.documents)):
        first.setdefault(index.statement, index)
    return tuple(first.values())


def _explain(
    connection: Connection, query: sql.Composable, parameters: tuple[object, ...], analyze: str = ""
) -> dict[str, Any]:
    statement = sql.SQL(_EXPLAIN).format(analyze=sql.SQL(analyze), query=query)
    [(output,)] = connection.execute(statement, parameters).fetchall()
    plan: dict[str, Any] = json.loads(output)[0]
    return plan


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _reads_all(connection: Connection, node: dict[str, Any]) -> bool:
    """Whether a part of a plan reads a whole table, or a whole index whose first column it does not compare."""
    if node["Node Type"] == "Seq Scan":
        return True
    scan = node["Plans"][0] if node["Node Type"] == "Bitmap Heap Scan" else node
    if "Index Name" not in scan or "Alias" not in node:
        return False
    condition, first = scan.get("Index Cond"), value(connection, _FIRST, (node["Schema"], scan["Index Name"]))
    return condition is None or ("(" not in str(first) and f"{node['Alias']}.{first}" not in condition)


def _equalities(condition: str) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """Yield both sides of each equality that must hold, both ways round."""
    try:
        tree = sqlglot.parse_one(condition, read="postgres").unnest() if condition else None
    except SqlglotError:  # it mentions another part of the plan
        return
    for equal in tree.flatten() if isinstance(tree, exp.And) else [tree]:
        if isinstance(equal, exp.EQ):
            yield equal.left.unnest(), equal.right.unnest()
            yield equal.right.unnest(), equal.left.unnest()


def _compared(equalities: Iterable[tuple[exp.Expr, exp.Expr]], aliases: set[str]) -> Iterable[exp.Expr]:
    """Return the expressions over one table that are compared with others; with constants, only if no others are."""
    own = [
        (side, bool(_tables(other)))
        for side, other in equalities
        if _tables(side) and _tables(side) <= aliases and not _tables(other) & aliases
    ]
    is_joined = any(with_table for _, with_table in own)
    return {side.sql(): side for side, with_table in own if with_table or not is_joined}.values()


def _tables(expression: exp.Expr) -> set[str]:
    return {column.table for column in expression.find_all(exp.Column)}


def _key(connection: Connection, relation: str, side: exp.Expr) -> tuple[str, str]:
    """Return the column or expression to index, and what to change in the SELECT for the index to serve."""
    bare = side.transform(_without_table)
    text, column = bare.sql(dialect="postgres"), bare
    if isinstance(bare, exp.Cast):
        column = bare.this.unnest()
    if not isinstance(column, exp.Column):
        return f"({text})", ""
    name = column.sql(dialect="postgres")
    if column is bare or value(
        connection, _IS_NO_CAST, (relation, column.name, bare.args["to"].sql(dialect="postgres"))
    ):
        return name, ""
    return name, f"Compare {name} itself, as in {name} = other.column::text: the cast {text} makes no use of the index."


def _without_table(part: exp.Expr) -> exp.Expr:
    column = part.unnest()
    return exp.Column(this=column.this.copy()) if isinstance(column, exp.Column) else part
