"""Cost: what the queries behind a document cost on this database, and which indexes they miss.

Nothing is guessed that can be asked: a query is run on a few real rows, read-only and for a bounded time, with
``EXPLAIN ANALYZE``; what does not finish in that time, or fails on a row, is told by the planner alone.
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

from syncer.policy import is_of_data
from syncer.postgres import Connection, bounded, value
from syncer.uses import Lookup

SAMPLE_ROWS = 20
"""How many rows of a table are taken for changed ones."""
LARGE_ROWS = 100_000
"""From how many rows on it matters that a table is read from end to end."""

_EXPLAIN = "EXPLAIN (FORMAT JSON, VERBOSE{analyze}) {query}"
_NAME = "SELECT format('%I.%I', $1::text, $2::text)"
# Of a partitioned table those of its partitions; of one that was never analysed what the statistics have counted.
_ROWS = """
SELECT coalesce(sum(CASE WHEN c.reltuples >= 0 THEN c.reltuples ELSE s.n_live_tup END), 0)::bigint
FROM pg_class AS c LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relkind <> 'p' AND c.oid IN (SELECT $1::regclass UNION ALL SELECT relid FROM pg_partition_tree($1::regclass))
"""
_SAMPLE = (
    "SELECT coalesce(jsonb_agg(to_jsonb(r)), '[]')::text "
    "FROM (SELECT {columns} FROM {relation} {sample} LIMIT {rows}) AS r"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a query costs.

    Args:
        total: The planner's cost of all of it.
        seconds: How long it took; None if it was not run, or not to its end.
        rows: How many rows it returned, or, where it did not, how many the planner expects.
        scans: The large tables that are read from end to end.
        failure: What Postgres said, if it fails on the data.
    """

    total: float
    seconds: float | None
    rows: float
    scans: tuple[str, ...]
    failure: str | None = None


def explain(
    connection: Connection, query: sql.Composable, parameters: tuple[object, ...], *, seconds_max: float
) -> Cost:
    """What a query costs; it is run, for at most that long, in a transaction that can only read."""
    try:
        with bounded(connection, seconds=seconds_max):
            return _cost(connection, _plan(connection, query, parameters, analyze=", ANALYZE, TIMING OFF"))
    except pg.QueryCanceled:
        return _cost(connection, _plan(connection, query, parameters, analyze=""))
    except psycopg.Error as error:
        if not is_of_data(error):
            raise
        planned = _cost(connection, _plan(connection, query, parameters, analyze=""))
        return replace(planned, failure=str(error.diag.message_primary))


def _plan(
    connection: Connection, query: sql.Composable, parameters: tuple[object, ...], *, analyze: str
) -> dict[str, Any]:
    statement = sql.SQL(_EXPLAIN).format(analyze=sql.SQL(analyze), query=query)
    said = value(connection, statement, parameters)
    plan: dict[str, Any] = json.loads(said if isinstance(said, (str, bytes)) else json.dumps(said))[0]
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
    """About how many rows a table has, by what Postgres knows without reading it."""
    return int(str(value(connection, _ROWS, (relation,))))


def sample(connection: Connection, relation: str, columns: Collection[str]) -> str:
    """Some rows of a table, as the images of changes are: a JSON array with these columns; from one page, if large."""
    known = rows(connection, relation)
    if known > LARGE_ROWS:
        percent = min(100.0, 100 * SAMPLE_ROWS * SAMPLE_ROWS / known)
        found = _sample(connection, relation, columns, f"TABLESAMPLE SYSTEM ({percent:.6f}) REPEATABLE (1)")
        if found != "[]":
            return found
    return _sample(connection, relation, columns, "")


def _sample(connection: Connection, relation: str, columns: Collection[str], how: str) -> str:
    statement = sql.SQL(_SAMPLE).format(
        columns=sql.SQL(", ").join(sql.Identifier(one) for one in sorted(columns)),
        relation=sql.SQL(relation),  # quoted by Postgres
        sample=sql.SQL(how),  # a constant of ours
        rows=sql.Literal(SAMPLE_ROWS),
    )
    return str(value(connection, statement))


# Indexes

_INDEXES = """
SELECT i.indisunique AND i.indnkeyatts = i.indnatts, m.amname::text,
       array(SELECT pg_get_indexdef(i.indexrelid, k, true) FROM generate_series(1, i.indnkeyatts) AS k ORDER BY k)
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_am AS m ON m.oid = c.relam
WHERE i.indrelid = $1::regclass AND i.indisvalid AND i.indpred IS NULL AND m.amname IN ('btree', 'hash')
"""
_IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = $1::regclass"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingIndex:
    """An index that lookups miss.

    Args:
        relation: On which table.
        columns: What it is to lead with, as SQL has it.
        rows: How many rows the table had when it was last analysed.
        statement: What makes it.
    """

    relation: str
    columns: tuple[str, ...]
    rows: int
    statement: str


def missing_indexes(connection: Connection, lookups: Iterable[Lookup]) -> tuple[MissingIndex, ...]:
    """The indexes without which a lookup reads its whole table; the largest table first."""
    wanted: dict[str, list[tuple[str, ...]]] = {}
    for lookup in dict.fromkeys(lookups):
        if not _is_served(connection, lookup):
            wanted.setdefault(lookup.relation, []).append(lookup.columns)
    found = [_missing(connection, relation, columns) for relation, lists in wanted.items() for columns in fewest(lists)]
    return tuple(sorted(found, key=lambda one: (-one.rows, one.statement)))


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
    """An expression without what Postgres and we write differently: quotes and brackets that change nothing."""
    try:
        bare = sqlglot.parse_one(expression, read="postgres").unnest()
    except SqlglotError:  # somebody's index on what the parser does not know, and so no lookup of ours
        return expression
    for brackets in list(bare.find_all(exp.Paren)):
        brackets.replace(brackets.unnest())
    return str(bare.sql(dialect="postgres", identify=True))


def fewest(lists: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The fewest lists of columns of which each given one, in some order, is the beginning of one."""
    wanted = sorted({frozenset(one): one for one in lists}.values(), key=len)
    begun: dict[tuple[str, ...], tuple[str, ...]] = {}

    def begins(shorter: tuple[str, ...], tried: set[tuple[str, ...]]) -> bool:
        """Let a list be the beginning of a longer one; if need be, what is its beginning now begins another."""
        for longer in wanted:
            if set(shorter) < set(longer) and longer not in tried:
                tried.add(longer)
                if longer not in begun or begins(begun[longer], tried):
                    begun[longer] = shorter
                    return True
        return False

    def ordered(columns: tuple[str, ...]) -> tuple[str, ...]:
        known = ordered(begun[columns]) if columns in begun else ()
        return known + tuple(one for one in columns if one not in known)

    # As many as can be begin another one, each a different one: so as few as can be are left to be indexes.
    ends = [one for one in wanted if not begins(one, set())]
    return [ordered(one) for one in ends]


def _missing(connection: Connection, relation: str, wanted: tuple[str, ...]) -> MissingIndex:
    columns = tuple(_as_postgres_says(connection, one) for one in wanted)
    # A partitioned table refuses CONCURRENTLY.
    how = "" if value(connection, _IS_PARTITIONED, (relation,)) else "CONCURRENTLY "
    return MissingIndex(
        relation=relation,
        columns=columns,
        rows=rows(connection, relation),
        statement=f"CREATE INDEX {how}ON {relation} ({', '.join(columns)});",
    )


def _as_postgres_says(connection: Connection, expression: str) -> str:
    """A column with quotes only where it needs them; an expression as it is."""
    tree = sqlglot.parse_one(expression, read="postgres")
    return (
        str(value(connection, "SELECT quote_ident($1)", (tree.name,))) if isinstance(tree, exp.Column) else expression
    )
