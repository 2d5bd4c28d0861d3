"""Cost: how many documents one changed row leads to, how long that takes, and which index would help.

Queries are run on real rows, one row at a time, read-only and for a bounded time, with ``EXPLAIN ANALYZE``. Postgres
itself tells which index is missing: a table that a slow query reads completely, even if the planner is told to prefer
indexes, has none for the conditions in the query's plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import psycopg
from psycopg import sql

from syncer.base.error_policy import is_of_data, is_of_some_rows, takes_too_much
from syncer.base.lifecycle import clock
from syncer.base.model import is_utf8
from syncer.base.postgres import Connection, snapshot, value
from syncer.documents import queries
from syncer.documents.affected import over
from syncer.documents.registry import Document, TableUse
from syncer.documents.snapshot import Tries
from syncer.drafts.catalogue import as_indexed
from syncer.drafts.rules import KEY_TEXTS

SAMPLE_ROWS = 20
"""How many rows of a table are tried."""
SECONDS_MAX = 2.0
"""How long one query may run, and `Tries` share a snapshot; after that, no other row is tried."""
_FEW_PAGES = 200
"""A query that reads fewer needs no index, nor does a smaller table."""
_BYTES_PER_PAGE = 4096
"""A document has at most so many bytes for each page that holds its values, unless Postgres has compressed them."""
_ROWS_PER_PAGE = 100
"""So many rows count as a page: they take as long, also if an index or a narrow table has more of them on a page."""
_APART_PAGES_MAX = 1_000_000
"""A build of one document that does not end in time is taken for one that reads so many."""
_PAGES_PER_DOCUMENT = 100
"""To read so many takes about as long as to write a document: an index does not help a change that leads to many."""

# Each row is the parameter of an affects query: a JSON array with these columns.
_SAMPLE = "SELECT jsonb_build_array(to_jsonb(r.*))::text FROM (SELECT {columns} FROM {relation} LIMIT {rows}) AS r"
# One join for all rows: Postgres takes each for a hundred, and would read whole tables for each.
_MOST = """
SELECT number FROM (
    SELECT DISTINCT tried.number, touched.id FROM unnest($1::jsonb[]) WITH ORDINALITY AS tried (image, number)
    CROSS JOIN LATERAL ({query}) AS touched (id)
) AS touched GROUP BY number ORDER BY count(*) DESC, number LIMIT 1
"""
_EXPLAIN = "EXPLAIN (FORMAT JSON, VERBOSE{analyze}) {query}"
_PREFER_INDEXES = """
SELECT set_config(name, 'off', true) FROM unnest('{enable_seqscan,enable_hashjoin,enable_mergejoin}'::text[]) AS name
"""
_CONDITIONS = ("Index Cond", "Recheck Cond", "Filter", "Join Filter", "Hash Cond", "Merge Cond")
# A partition stands for its table, whose index every partition gets.
_TABLE = """
SELECT format('%I.%I', n.nspname, c.relname), c.relkind = 'p', greatest(c.reltuples / $3,
       coalesce((SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree(c.oid)), pg_relation_size(c.oid))
       / current_setting('block_size')::int)
FROM (SELECT to_regclass(format('%I.%I', $1::text, $2::text))::oid AS oid) AS given
JOIN pg_class AS c ON c.oid = coalesce(pg_partition_root(given.oid), given.oid)
JOIN pg_namespace AS n ON n.oid = c.relnamespace
"""
_COMPUTED_ID = re.compile(r"\((.+) = ANY \('\{.*\}'::.*\)\)", re.DOTALL)
"""How a build finds documents by an ``_id`` that is an expression."""
_KEY_COLUMNS = """
SELECT quote_ident(a.attname), t.typname FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND t.typname = ANY ($2)
"""
_FIRST = "SELECT pg_get_indexdef(to_regclass(format('%I.%I', $1::text, $2::text)), 1, true)"
_EQUAL = r'(?<![\w."])(?:{0})\.("[^"]+"|\w+)\)*(?:::[^=<>]*)? = |= \(*(?:{0})\.("[^"]+"|\w+)'
"""A column of a table by its alias, as a side of an equality; perhaps cast."""
_CONTAINS = r'(?<![\w."])(?:{0})\.("[^"]+"|\w+) @> ARRAY\['
"""The same of an array that contains an element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a query costs for the row with the most results, of those that were tried.

    If it did not finish, ``seconds`` is None, and the documents are those that the planner expects. It is slow if an
    index may help: it reads many pages, and longer than to write the documents. The failure is Postgres' message, if
    the query fails on the data.
    """

    documents: int
    seconds: float | None
    is_slow: bool
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingIndex:
    """An index without which a query reads a whole table.

    Args:
        condition: What the query compares, as Postgres writes it. A cast of the column makes no use of the index.
        change_of: The table whose changes need it; empty if every build of a document does.
        documents: How many one changed row leads to.
        seconds: How long they take to find, or the document to build; None if it did not finish in two seconds.
    """

    statement: str
    condition: str
    document: str
    change_of: str
    documents: int
    seconds: float | None


def duration(seconds: float | None) -> str:
    """Format how long a query took; None if it did not end in time."""
    return f"more than {SECONDS_MAX:.0f} s" if seconds is None else f"{seconds * 1000:,.1f} ms"


def of_changes(tries: Tries, document: str, use: TableUse) -> Iterator[tuple[str, Cost | None, list[MissingIndex]]]:
    """Try the queries from changed rows of a table to a document on rows that it has; `measure` each."""
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in sorted(use.routing))
    # The relation is quoted by Postgres.
    sample = sql.SQL(_SAMPLE).format(columns=columns, relation=sql.SQL(use.relation), rows=sql.Literal(SAMPLE_ROWS))
    images = [image for image in tries.connection.execute(sample) if is_utf8(image[0])] if use.affected else []
    for query in use.affected:
        most = _leading_most(tries, query, images)
        distinct = f"SELECT DISTINCT * FROM ({query}) AS touched"
        yield query, *measure(tries, sql.SQL(distinct), most, document=document, change_of=use.relation)


def of_build(
    tries: Tries, document: Document, ids: Iterable[str], *, document_bytes: int = 0
) -> tuple[Cost | None, list[MissingIndex]]:
    """Try the query that builds a document on each of these ids, of which none is larger; `measure` it."""
    build = queries.query_of(queries.BUILD, document, documents=1)
    pages_min = _FEW_PAGES + document_bytes / _BYTES_PER_PAGE
    return measure(tries, build, [([id_],) for id_ in ids], document=document.name, pages_min=pages_min)


def _leading_most(tries: Tries, query: str, images: Sequence[tuple[object, ...]]) -> Sequence[tuple[object, ...]]:
    """Return the one of these changed rows that a query leads to the most documents from; all if that fails."""
    comparison = sql.SQL(_MOST).format(query=sql.SQL(over("tried.image", query)))
    try:
        with tries.bounded():
            most = tries.connection.execute(comparison, ([image for (image,) in images],)).fetchone()
    except psycopg.Error as error:
        if not is_of_some_rows(error):
            raise
        return images
    return [images[most[0] - 1]] if most else images[:1]


def measure(
    tries: Tries,
    query: sql.Composable,
    samples: Sequence[tuple[object, ...]],
    *,
    document: str,
    change_of: str = "",
    pages_min: float = _FEW_PAGES,
) -> tuple[Cost | None, list[MissingIndex]]:
    """Return what a query costs, and the indexes that it lacks if it is slow; None if there is nothing to try.

    A query is not slow if it reads fewer than ``pages_min``.
    """
    costs: list[Cost] = []
    began = clock()
    parameters = samples[0] if samples else ()
    try:
        with tries.bounded():
            for parameters in samples:
                root = (plan := _explain(tries.connection, query, parameters, ", ANALYZE, TIMING OFF, BUFFERS"))["Plan"]
                documents = int(root["Actual Rows"])
                is_slow = _pages(root) >= max(pages_min, documents * _PAGES_PER_DOCUMENT)
                costs.append(Cost(documents=documents, seconds=plan["Execution Time"] / 1000, is_slow=is_slow))
                if clock() - began >= SECONDS_MAX:
                    break
    except psycopg.Error as error:
        if not is_of_some_rows(error):
            raise
        expected = int(_explain(tries.connection, query, parameters)["Plan"]["Plan Rows"])
        failure = str(error.diag.message_primary) if is_of_data(error) else ""
        costs = [Cost(documents=expected, seconds=None, is_slow=not failure, failure=failure)]
    cost = max(costs, key=lambda cost: (cost.documents, -(cost.seconds or 0)), default=None)
    if cost is None or not cost.is_slow:
        return cost, []
    missing = partial(
        MissingIndex, document=document, change_of=change_of, documents=cost.documents, seconds=cost.seconds
    )
    tries.close()
    lacking = _lacking(tries.connection, query, samples[0])
    return cost, [missing(statement=statement, condition=condition) for statement, condition in lacking]


def apart_max(tries: Tries, document: Document, id_: str) -> int | None:
    """Try up to how many documents are built with fewer pages if each is looked up by itself; None if that fails.

    That is so where Postgres computes a subquery or view for all documents before it joins it to some.
    """
    pages: list[float] = []
    for apart in (0, 1):
        query = queries.query_of(queries.BUILD, replace(document, apart_max=apart), documents=1)
        try:
            with tries.bounded():
                plan = _explain(tries.connection, query, ([id_],), ", ANALYZE, TIMING OFF, BUFFERS")["Plan"]
        except psycopg.Error as error:
            if is_of_data(error):
                return None
            if not takes_too_much(error):
                raise
            pages.append(inf)
        else:
            pages.append(_pages(plan))
        if not apart and pages[0] < _FEW_PAGES:
            return 0
    pages_together, pages_apart = pages
    if pages_apart == inf:
        return None if pages_together == inf else 0
    ratio = int(min(pages_together, _APART_PAGES_MAX) / max(1, pages_apart))
    return ratio if ratio > 1 else 0


def _lacking(
    connection: Connection, query: sql.Composable, parameters: tuple[object, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the statement that creates each index that a query lacks, and the condition that it is for."""
    with snapshot(connection, statement_seconds=SECONDS_MAX):
        connection.execute(_PREFER_INDEXES)
        nodes = list(_nodes(_explain(connection, query, parameters)["Plan"]))
    conditions = list(dict.fromkeys(node[key] for node in nodes for key in _CONDITIONS if " = " in node.get(key, "")))
    for node in nodes:
        if not _reads_all(connection, node):
            continue
        [(relation, is_partitioned, pages)] = connection.execute(
            _TABLE, (node["Schema"], node["Relation Name"], _ROWS_PER_PAGE)
        )
        # A condition above the partitions names their table.
        aliases = {node["Alias"], node["Alias"].rpartition("_")[0] if is_partitioned else node["Alias"]}
        names = "|".join(map(re.escape, aliases))
        equal = re.compile(_EQUAL.format(names))
        sides = {condition: equal.findall(condition) for condition in conditions if equal.search(condition)}
        columns = list(dict.fromkeys(column for pairs in sides.values() for pair in pairs for column in pair if column))
        condition = " AND ".join(sides)
        if pages < _FEW_PAGES:
            continue
        if computed_id := _COMPUTED_ID.fullmatch(node.get("Filter", "")):
            expression = re.sub(rf'(?<![\w."]){re.escape(node["Alias"])}\.', "", computed_id[1])
            if (indexed := _indexed(connection, relation, expression)) is None:
                yield f"-- no index can find this _id of {relation}: use a column of its own as _id", expression
                continue
            text, is_rewritten, exists = indexed
            columns, condition = [] if exists else [text], "_id"
            if is_rewritten:
                condition = "_id, once select.sql makes it so: Postgres cannot index the text of an instant or a date"
            if is_rewritten and exists:
                yield f"-- {relation} has an index for another _id: make it so in select.sql: {text}", condition
        how = "" if is_partitioned else "CONCURRENTLY "  # a partitioned table refuses it
        if contained := re.findall(_CONTAINS.format(names), " ".join(conditions)):
            yield f"CREATE INDEX {how}ON {relation} USING gin ({contained[0]});", f"elements of {contained[0]}"
        elif columns:
            yield f"CREATE INDEX {how}ON {relation} ({', '.join(columns)});", condition


def _indexed(connection: Connection, relation: str, expression: str) -> tuple[str, bool, bool] | None:
    """Return an ``_id`` that an index can find; None if there is none.

    With it comes whether it is made of other texts than the ``_id`` of the definition, and whether it has its index.
    """
    rewritten = expression
    for column, type_ in connection.execute(_KEY_COLUMNS, (relation, list(KEY_TEXTS))):
        rewritten = rewritten.replace(f"({column})::text", f"({KEY_TEXTS[type_].format(column)})")
    for candidate in dict.fromkeys((expression, rewritten)):
        if indexed := as_indexed(connection, relation, candidate):
            return indexed[0], candidate != expression, indexed[1]
    return None


def ranked(missing: Iterable[MissingIndex]) -> tuple[MissingIndex, ...]:
    """Return each index once, for the change that needs it most; the slowest change first."""
    by_statement: dict[str, MissingIndex] = {}
    for index in sorted(missing, key=lambda index: (-(index.seconds or SECONDS_MAX), -index.documents)):
        by_statement.setdefault(index.statement, index)
    return tuple(by_statement.values())


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


def _pages(root: dict[str, Any]) -> float:
    """Return how many pages an executed plan reads, or as many as its rows stand for."""
    scans = [node for node in _nodes(root) if "Relation Name" in node]
    rows = sum((scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"] for scan in scans)
    return float(max(root["Shared Hit Blocks"] + root["Shared Read Blocks"], rows / _ROWS_PER_PAGE))


def _reads_all(connection: Connection, node: dict[str, Any]) -> bool:
    """Whether a part of a plan reads a whole table, or a whole index whose first column it does not compare."""
    if node["Node Type"] == "Seq Scan":
        return True
    scan = node["Plans"][0] if node["Node Type"] == "Bitmap Heap Scan" else node
    if "Index Name" not in scan or "Alias" not in node:
        return False
    condition, column = scan.get("Index Cond"), value(connection, _FIRST, (node["Schema"], scan["Index Name"]))
    return condition is None or ("(" not in str(column) and f"{node['Alias']}.{column}" not in condition)
