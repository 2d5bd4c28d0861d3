"""Routes: SQL that leads from the changed rows of a table to document ids.

Guarantee: a route finds every document that its reading of the table takes part in, along the path that
`syncer.lineage.graph` has found. Postgres has accepted the resulting query. The tables are numbered anew, so that equal
uses of a table are one query.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlglot import exp

from syncer.base.errors import DefinitionError
from syncer.base.model import Lead
from syncer.base.postgres import Connection
from syncer.lineage.graph import Hop, Node, Path
from syncer.lineage.scope import PLAIN_TYPES, is_carried, type_of

_PLAIN = frozenset(PLAIN_TYPES.values())
ROWS_MARK = "'\"syncer: the changed rows\"'::jsonb"
"""Placeholder for the changed rows until a query is run; deparsing preserves it literally."""
_ROWS_ITEM = "%(rows)s"


# Only the columns that are read, by name: no other column of the table has an effect. An image holds each value as
# text, which Postgres parses like any input. For a json column, however, the string itself would become the value, so
# it is read as text and cast. Also, an image lacks some columns, but a domain may refuse nulls: so a domain is replaced
# by its base type. A type has no modifier: what the table has accepted is not checked again. Postgres expects many more
# rows than there are, and would read all of pg_attribute, but for OFFSET 0.
_ROWS = """
WITH RECURSIVE type (position, number, name, oid, collated) AS (
    SELECT asked.position, attnum, attname, atttypid, attcollation
    FROM jsonb_array_elements($1) WITH ORDINALITY AS asked (table_columns, position) CROSS JOIN LATERAL (
        SELECT * FROM pg_attribute WHERE attrelid = (table_columns ->> 0)::regclass OFFSET 0
    ) AS a WHERE table_columns -> 1 ? attname::text AND NOT attisdropped
    UNION ALL
    SELECT y.position, y.number, y.name, t.typbasetype, y.collated
    FROM type AS y JOIN pg_type AS t ON t.oid = y.oid AND t.typtype = 'd'
)
SELECT y.position::int, format(
    '(SELECT %s FROM jsonb_to_recordset(%s) AS changed (%s))',
    string_agg(format(CASE WHEN is_json THEN '%1$I::%2$s AS %1$I' ELSE '%1$I' END, y.name, format_type(y.oid, -1)),
               ', ' ORDER BY y.number),
    max($2),
    string_agg(concat(format('%I %s', y.name, CASE WHEN is_json THEN 'text' ELSE format_type(y.oid, -1) END),
                      CASE WHEN k.oid <> 100 THEN format(' COLLATE %I.%I', n.nspname, k.collname) END),
               ', ' ORDER BY y.number)
)
FROM type AS y JOIN pg_type AS t ON t.oid = y.oid AND t.typtype <> 'd'
CROSS JOIN LATERAL (SELECT y.oid IN ('json'::regtype, 'jsonb'::regtype)) AS j (is_json)
LEFT JOIN pg_collation AS k ON k.oid = y.collated LEFT JOIN pg_namespace AS n ON n.oid = k.collnamespace
GROUP BY y.position
"""

_UNIQUE_KEYS = """
SELECT asked.relation, NULL, NULL, array(SELECT a.attname::text FROM pg_attribute AS a
             WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0 : i.indnkeyatts - 1]))
FROM unnest($1::text[]) AS asked (relation) JOIN pg_index AS i ON i.indrelid = asked.relation::regclass
WHERE i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
"""
# A non-deterministic collation treats different texts as equal, so its columns get no type name. A changed row has no
# value for a virtual generated column. As JSON, it also loses details of composite values. The values of a domain are
# those of its base type. An array is told by its last two characters.
_TYPES = """
WITH RECURSIVE type (relation, name, oid, collated) AS (
    SELECT asked.relation, attname, atttypid, attcollation
    FROM unnest($1::text[]) AS asked (relation) JOIN pg_attribute ON attrelid = asked.relation::regclass
    WHERE attnum > 0 AND NOT attisdropped AND attgenerated <> 'v'
    UNION ALL
    SELECT y.relation, y.name, t.typbasetype, y.collated
    FROM type AS y JOIN pg_type AS t ON t.oid = y.oid AND t.typtype = 'd'
)
SELECT y.relation, y.name::text,
       CASE WHEN c.collisdeterministic IS FALSE THEN CASE t.typcategory WHEN 'A' THEN '[]' ELSE '' END
            WHEN t.typtype = 'e' THEN 'enum' ELSE format_type(y.oid, -1) END, NULL
FROM type AS y JOIN pg_type AS t ON t.oid = y.oid AND t.typtype <> 'd' AND t.typcategory <> 'C'
                                AND (t.typcategory <> 'A' OR format_type(y.oid, -1) LIKE '%[]')
LEFT JOIN pg_collation AS c ON c.oid = y.collated
"""
_KEYS_AND_TYPES = f"({_UNIQUE_KEYS}) UNION ALL ({_TYPES})"


def changed_rows(connection: Connection, *tables: tuple[str, Collection[str]]) -> list[str]:
    """Return these columns of the changed rows of each table as a FROM item without an alias."""
    items = [f"(SELECT FROM jsonb_array_elements({ROWS_MARK}))"] * len(tables)
    asked = Jsonb([[relation, list(columns)] for relation, columns in tables])
    for position, item in connection.execute(_ROWS, (asked, ROWS_MARK)):
        items[position - 1] = item
    return items


def routes(connection: Connection, paths: Sequence[tuple[Node, Path]], id_type: str) -> list[Lead]:
    """Return the paths from these readings as SQL, with the changed rows in the place of each path's first table.

    Each watches what it reads of the changed rows. One that ends at a column of theirs is that column, without a query.

    Raises:
        DefinitionError: Postgres refuses one.
    """
    derived = [_route(node, path, id_type) for node, path in paths]
    tables = [(node.relation, route.watched) for (node, _), route in zip(paths, derived, strict=True)]
    for number, rows in enumerate(changed_rows(connection, *tables) if tables else ()):
        derived[number] = replace(derived[number], query=derived[number].query.replace(_ROWS_ITEM, rows, 1))
    try:
        # One round trip.
        connection.execute(sql.SQL("; ".join(f"EXPLAIN {route.query}" for route in derived)), prepare=False)
    except psycopg.ProgrammingError as error:
        raise DefinitionError(
            f"Postgres refuses what was derived from the SELECT: {error}",
            hint="Please report it, with the SELECT. Meanwhile, say in affects/<table>.sql which documents a\n"
            "change touches.",
        ) from error
    return [
        replace(route, query="" if route.id_column else route.query.replace(ROWS_MARK, "$1::jsonb"))
        for route in derived
    ]


def _route(node: Node, path: Path, id_type: str) -> Lead:
    """Return a path as SQL, which names the changed rows `_ROWS_ITEM`."""
    id_, hops = _without_last(path)
    own_alias, names = f"n{node.number}", {f"n{node.number}": "n0"}
    joins = ""
    for position, (joined, conditions, tests) in enumerate(hops, start=1):
        names[f"n{joined.number}"] = f"n{position}"
        equal = " AND ".join(_renamed(condition, names) for condition in (*conditions, *tests))
        joins += f"\nJOIN {joined.relation} AS n{position} ON {equal}"
    # The cast to the id's type is needed only if the text may differ. A wider type may hold values that it rejects.
    is_id = isinstance(id_, exp.Column) and type_of(id_) in _PLAIN and type_of(id_) == PLAIN_TYPES.get(id_type)
    as_id = "" if is_id else f"::{id_type}"
    tests = tuple(test for test in path.tests if is_carried(test) and all(map(type_of, test.find_all(exp.Column))))
    if is_id and not path.hops:
        tests = ()  # the row is a document itself, or was one: its id is at hand without a query
    expressions = (id_, *(condition for _, conditions, _ in hops for condition in conditions), *tests)
    columns = frozenset(
        reference.name
        for expression in expressions
        for reference in expression.find_all(exp.Column)
        if reference.table == own_alias
    )
    # Names of relations come from Postgres, conditions from its deparsed SQL.
    query = f"SELECT ({_renamed(id_, names)}){as_id}::text AS _id\nFROM {_ROWS_ITEM} AS n0{joins}"
    if tests:
        query += "\nWHERE " + " AND ".join(f"({_renamed(test, names)})" for test in tests)
    return Lead(watched=columns, query=query, id_column=id_.name if is_id and not hops and not tests else "")


def _renamed(expression: exp.Expr, names: Mapping[str, str]) -> str:
    """Return an expression as SQL, with its nodes under other names."""
    renamed = expression.copy()
    for reference in renamed.find_all(exp.Column):
        reference.set("table", exp.to_identifier(names[reference.table], quoted=True))
    return renamed.sql(dialect="postgres")


def _without_last(path: Path) -> tuple[exp.Expr, tuple[Hop, ...]]:
    """Return the path without its last table, if only a key is needed of it that the table before has, too.

    So a comment whose ``post_id`` equals the ``id`` of its post leads to ``post_id``, without a look at the post.
    """
    for equal in path.hops[-1][1] if path.hops and isinstance(path.id, exp.Column) else ():
        for side, opposite in ((equal.left, equal.right), (equal.right, equal.left)):
            is_alike = (
                isinstance(opposite, exp.Column) and type_of(opposite) == type_of(side) and type_of(side) in _PLAIN
            )
            if side == path.id and is_alike and isinstance(equal, exp.EQ):
                return opposite, path.hops[:-1]
    return path.id, path.hops


def keys_and_types(
    connection: Connection, relations: Collection[str]
) -> tuple[dict[str, set[frozenset[str]]], dict[str, dict[str, str]]]:
    """Return the unique keys of each table, and the types of columns that can lead to documents; ``enum`` for any."""
    keys: dict[str, set[frozenset[str]]] = {relation: set() for relation in relations}
    types: dict[str, dict[str, str]] = {relation: {} for relation in relations}
    for relation, name, type_, key in connection.execute(_KEYS_AND_TYPES, (list(relations),)):
        if key is None:
            types[relation][name] = type_
        else:
            keys[relation].add(frozenset(key))
    return keys, types
