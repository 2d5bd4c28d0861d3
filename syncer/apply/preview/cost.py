"""Cost: what a document's queries cost on this database, and which indexes are missing.

Costs are measured where possible: a query is run on a few real rows, read-only and for a bounded time, with ``EXPLAIN
ANALYZE``. If it does not finish in that time, or fails on a row, the planner's estimate is used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import sqlglot
from psycopg import errors as pg, sql
from sqlglot import exp
from sqlglot.errors import SqlglotError

from syncer.base.error_policy import is_of_data
from syncer.base.postgres import Connection, bounded, value
from syncer.lineage.dependencies import Lookup

SAMPLE_ROWS = 20
"""How many rows of a table stand for changed ones."""
LARGE_ROWS = 100_000
"""The number of rows from which a sequential scan of a table matters."""

_EXPLAIN = "EXPLAIN (FORMAT JSON, VERBOSE{analyze}) {query}"
_NAME = "SELECT format('%I.%I', $1::text, $2::text)"
# A partitioned table counts its partitions; a table that was never analysed counts what the statistics collector saw.
_ROWS = """
SELECT coalesce(sum(CASE WHEN c.reltuples >= 0 THEN c.reltuples ELSE s.n_live_tup END), 0)::bigint
FROM pg_class AS c LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relkind <> 'p' AND c.oid IN (SELECT $1::regclass UNION ALL SELECT relid FROM pg_partition_tree($1::regclass))
"""
_SAMPLE = (
    "SELECT coalesce(jsonb_agg(to_jsonb(r.*)), '[]')::text FROM (SELECT {columns} FROM {relation} LIMIT {rows}) AS r"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a query costs.

    Args:
        seconds: How long it took; None if it was not run, or did not finish.
        rows: How many rows it returned; if it did not finish, how many the planner expects.
        scans: The large tables that it scans sequentially.
        failure: Postgres' message, if it fails on the data, or does not finish in time.
    """

    total: float
    seconds: float | None
    rows: float
    scans: tuple[str, ...]
    failure: str | None = None


def explain(
    connection: Connection, query: sql.Composable, parameters: tuple[object, ...], *, seconds_max: float
) -> Cost:
    """Return what a query costs; it is run for at most ``seconds_max``, in a read-only transaction."""
    try:
        with bounded(connection, seconds=seconds_max):
            return _cost(connection, _plan(connection, query, parameters, analyze=", ANALYZE, TIMING OFF"))
    except psycopg.Error as error:
        if not isinstance(error, pg.QueryCanceled) and not is_of_data(error):
            raise
        planned = _cost(connection, _plan(connection, query, parameters, analyze=""))
        return replace(planned, failure=str(error.diag.message_primary))


def _plan(
    connection: Connection, query: sql.Composable, parameters: tuple[object, ...], *, analyze: str
) -> dict[str, Any]:
    statement = sql.SQL(_EXPLAIN).format(analyze=sql.SQL(analyze), query=query)
    output = value(connection, statement, parameters)
    plan: dict[str, Any] = json.loads(output if isinstance(output, (str, bytes)) else json.dumps(output))[0]
    return plan


def _cost(connection: Connection, plan: dict[str, Any]) -> Cost:
    top = plan["Plan"]
    milliseconds = plan.get("Execution Time")
    nodes = [node for node in _nodes(top) if node["Node Type"] == "Seq Scan"]
    scanned = [str(value(connection, _NAME, (node["Schema"], node["Relation Name"]))) for node in nodes]
    return Cost(
        total=top["Total Cost"],
        seconds=None if milliseconds is None else milliseconds / 1000,
        rows=top.get("Actual Rows", top["Plan Rows"]),
        scans=tuple(one for one in dict.fromkeys(scanned) if rows(connection, one) >= LARGE_ROWS),
    )


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def rows(connection: Connection, relation: str) -> int:
    """Return the estimated number of rows of a table, from Postgres' statistics."""
    return int(str(value(connection, _ROWS, (relation,))))


def sample(connection: Connection, relation: str, columns: Collection[str]) -> str:
    """Return some rows of a table as images of changes: a JSON array with these columns."""
    statement = sql.SQL(_SAMPLE).format(
        columns=sql.SQL(", ").join(sql.Identifier(one) for one in sorted(columns)),
        relation=sql.SQL(relation),  # quoted by Postgres
        rows=sql.Literal(SAMPLE_ROWS),
    )
    return str(value(connection, statement))


# Indexes

# An index on a varchar, or on a domain, serves a comparison of the column cast to text, or to the domain's base type.
_IS_NO_CAST = """
WITH RECURSIVE type AS (
    SELECT atttypid AS oid FROM pg_attribute WHERE attrelid = $1::regclass AND attname = $2
    UNION ALL
    SELECT typbasetype FROM type JOIN pg_type AS t ON t.oid = type.oid AND typtype = 'd'
)
SELECT bool_or(oid = to_regtype($3) OR oid = 'varchar'::regtype AND to_regtype($3) = 'text'::regtype) FROM type
"""
# A comparison is never true of a null, so an index without the nulls serves it.
_INDEXES = """
SELECT i.indisunique AND i.indnkeyatts = i.indnatts, m.amname::text,
       array(SELECT pg_get_indexdef(i.indexrelid, k, true) FROM generate_series(1, i.indnkeyatts) AS k ORDER BY k)
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_am AS m ON m.oid = c.relam
WHERE i.indrelid = $1::regclass AND i.indisvalid AND m.amname IN ('btree', 'hash')
  AND (i.indpred IS NULL
       OR pg_get_expr(i.indpred, i.indrelid) = format('(%s IS NOT NULL)', pg_get_indexdef(i.indexrelid, 1, false)))
"""
_IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = $1::regclass"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingIndex:
    """An index that lookups need.

    Args:
        rows: How many rows the table had when it was last analysed.
    """

    relation: str
    rows: int
    statement: str


def missing_indexes(connection: Connection, lookups: Iterable[Lookup]) -> tuple[MissingIndex, ...]:
    """Return the indexes without which a lookup reads its whole table; the largest table first."""
    wanted = {
        (lookup.relation, frozenset(lookup.columns)): lookup
        for lookup in (_uncast(connection, one) for one in dict.fromkeys(lookups))
        if not _is_served(connection, lookup)
    }
    found = [_missing(connection, one) for one in wanted.values()]
    return tuple(sorted(found, key=lambda one: (-one.rows, one.statement)))


def _uncast(connection: Connection, lookup: Lookup) -> Lookup:
    """Return a lookup without the casts that make no difference to an index."""

    def uncast(column: str) -> str:
        tree = sqlglot.parse_one(column, read="postgres").unnest()
        cast = tree.this.unnest() if isinstance(tree, exp.Cast) else None
        if not isinstance(cast, exp.Column):
            return column
        asked = (lookup.relation, cast.name, tree.args["to"].sql(dialect="postgres"))
        return cast.sql(dialect="postgres") if value(connection, _IS_NO_CAST, asked) else column

    return replace(lookup, columns=tuple(dict.fromkeys(uncast(one) for one in lookup.columns)))


def _is_served(connection: Connection, lookup: Lookup) -> bool:
    wanted = {_meaning(one) for one in lookup.columns}
    for is_unique, method, definitions in connection.execute(_INDEXES, (lookup.relation,)).fetchall():
        columns = [_meaning(one) for one in definitions]
        if set(columns[: len(wanted)]) == wanted and (method == "btree" or len(columns) == len(wanted)):
            return True
        if is_unique and set(columns) <= wanted:
            return True
    return False


def _meaning(expression: str) -> str:
    """Normalise quotes and parentheses that Postgres and syncer write differently."""
    try:
        bare = sqlglot.parse_one(expression, read="postgres").unnest()
    except SqlglotError:  # an index expression that the parser does not know is in no lookup
        return expression
    for brackets in list(bare.find_all(exp.Paren)):
        brackets.replace(brackets.unnest())
    return str(bare.sql(dialect="postgres", identify=True))


def _missing(connection: Connection, lookup: Lookup) -> MissingIndex:
    columns = ", ".join(_as_postgres_says(connection, one) for one in lookup.columns)
    # A partitioned table refuses CONCURRENTLY.
    how = "" if value(connection, _IS_PARTITIONED, (lookup.relation,)) else "CONCURRENTLY "
    return MissingIndex(
        relation=lookup.relation,
        rows=rows(connection, lookup.relation),
        statement=f"CREATE INDEX {how}ON {lookup.relation} ({columns});",
    )


def _as_postgres_says(connection: Connection, expression: str) -> str:
    """Return a column quoted only where necessary; an expression as it is."""
    tree = sqlglot.parse_one(expression, read="postgres")
    return (
        str(value(connection, "SELECT quote_ident($1)", (tree.name,))) if isinstance(tree, exp.Column) else expression
    )
