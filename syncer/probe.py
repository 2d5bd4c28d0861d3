"""Probe: what a query reads, asked of Postgres itself.

The query is made a temporary view in a transaction that is rolled back. The catalogue then says which columns
of which tables it depends on, and ``pg_get_viewdef`` gives it back with every name qualified and every star
expanded: the *canonical* query, whose meaning no search_path can change. Only that canonical text is parsed
here, for what the catalogue does not tell.

Guarantee: a column that the query reads is reported, or the query is refused. Where single columns cannot be
told, all columns of the table are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import sqlglot
from psycopg import errors as pg
from sqlglot import exp
from sqlglot.errors import ParseError

from syncer.errors import DefinitionError
from syncer.postgres import Connection

_PREFIX = "CREATE TEMPORARY VIEW syncer_probe AS\n"
_COLUMNS = """
SELECT attname::text, format_type(atttypid, -1) FROM pg_attribute
WHERE attrelid = 'pg_temp.syncer_probe'::regclass AND attnum > 0 ORDER BY attnum
"""
_CANONICAL = "SELECT pg_get_viewdef('pg_temp.syncer_probe'::regclass)"
_READS = """
SELECT c.oid, format('%I.%I', n.nspname, c.relname), n.nspname::text, c.relname::text, c.relkind::text,
       c.relispartition, EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent)),
       array_remove(array_agg(a.attname::text), NULL)
FROM pg_rewrite AS r
JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                   AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> r.ev_class
JOIN pg_class AS c ON c.oid = d.refobjid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid AND d.refobjsubid > 0
WHERE r.ev_class = 'pg_temp.syncer_probe'::regclass
GROUP BY c.oid, n.nspname
ORDER BY 2
"""
_ALL_COLUMNS = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped"
# A trigger sees no value of a virtual generated column, and may not name it: what it is computed from stands for it.
_VIRTUAL = """
SELECT a.attname::text, array_remove(array_agg(s.attname::text), NULL)
FROM pg_attribute AS a
JOIN pg_attrdef AS e ON e.adrelid = a.attrelid AND e.adnum = a.attnum
LEFT JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid
                        AND d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid
LEFT JOIN pg_attribute AS s ON s.attrelid = a.attrelid AND s.attnum = d.refobjsubid AND s.attnum <> a.attnum
WHERE a.attrelid = $1 AND a.attgenerated = 'v'
GROUP BY a.attname
"""
# Written in SQL or in a language on top of it, a function may read tables that nobody sees from outside.
_FUNCTIONS = """
SELECT DISTINCT format('%I.%I', n.nspname, p.proname)
FROM pg_rewrite AS r
JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_proc'::regclass
JOIN pg_proc AS p ON p.oid = d.refobjid
JOIN pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_language AS l ON l.oid = p.prolang
WHERE r.ev_class = 'pg_temp.syncer_probe'::regclass AND l.lanname NOT IN ('internal', 'c') AND p.provolatile <> 'i'
"""

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "p": "a partitioned table",
    "S": "a sequence",
}

TableName = tuple[str, str]
"""Schema and table, as the catalogue spells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a query reads of one table.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        name: The same, as the catalogue spells it.
        columns: Which columns.
    """

    relation: str
    name: TableName
    columns: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What is known of a query.

    Args:
        canonical: The query as Postgres understood it.
        tree: The same, parsed.
        columns: Its columns in order, each with its type, without type modifier.
        reads: What it reads, by table.
    """

    canonical: str
    tree: exp.Expr
    columns: dict[str, str]
    reads: tuple[Read, ...]


def probe(connection: Connection, query: str, file: str) -> Probe:
    """Ask Postgres about a query.

    Args:
        connection: Nothing on it is changed.
        query: One SELECT.
        file: Where it was read, for errors.

    Raises:
        DefinitionError: Postgres refuses the query, or it reads something whose changes cannot be captured.
    """
    with _as_view(connection, query, file):
        columns: dict[str, str] = dict(connection.execute(_COLUMNS).fetchall())
        canonical = _canonical(connection)
        tree = _parse(canonical, file)
        _require_plain_functions(connection, file)
        _require_no_catalogue(tree, file)
        reads = tuple(_reads(connection, tree, file))
        _require_no_locks(connection)
    return Probe(canonical=canonical, tree=tree, columns=columns, reads=reads)


def table_name(table: exp.Table) -> TableName:
    """A table of a canonical query, as the catalogue spells it."""
    return table.db, table.name


def tables(tree: exp.Expr) -> list[exp.Table]:
    """Every occurrence of a table in a canonical query; a name of a CTE is none."""
    return [table for table in tree.find_all(exp.Table) if table.db]


@contextmanager
def _as_view(connection: Connection, query: str, file: str) -> Iterator[None]:
    """Make the query a temporary view, and unmake it."""
    try:
        with connection.transaction(force_rollback=True):
            # Prepared, since the extended protocol refuses a second statement behind the first.
            connection.execute(_PREFIX + query + "\n", prepare=True)
            yield
    except pg.InsufficientPrivilege:
        raise
    except pg.ReadOnlySqlTransaction as error:
        raise DefinitionError(
            f"{file} takes locks (FOR UPDATE or its like)", hint="A document is read, not locked. Leave that out."
        ) from error
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError) as error:
        raise _refused(error, query, file) from error


def _refused(error: psycopg.Error, query: str, file: str) -> DefinitionError:
    said = error.diag.message_primary or str(error)
    if "multiple commands" in said:
        return DefinitionError(f"{file} has more than one statement", hint="Write one SELECT into it.")
    if '"?column?"' in said:
        return unnamed_column(file)
    return DefinitionError(
        f"{file} is refused by Postgres: {said}{_place(error, query)}",
        hint=error.diag.message_hint or "It must be one SELECT that runs on this database as it is.",
    )


def unnamed_column(file: str) -> DefinitionError:
    """The error for a column without a name."""
    return DefinitionError(f"{file}: a column has no name", hint="Give it one with AS: it becomes the field's name.")


def _place(error: psycopg.Error, query: str) -> str:
    """The line that the error is in, with a caret below the place."""
    if error.diag.statement_position is None:
        return ""
    offset = int(error.diag.statement_position) - 1 - len(_PREFIX)
    if offset < 0:
        return ""
    before = query[:offset]
    line_number = before.count("\n") + 1
    label = f"line {line_number}: "
    column = len(before) - (before.rfind("\n") + 1)
    line = query.split("\n")[line_number - 1]
    return f"\n  {label}{line}\n  {' ' * (len(label) + column)}^"


def _canonical(connection: Connection) -> str:
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        row = connection.execute(_CANONICAL).fetchone()
    assert row is not None  # noqa: S101 - the view exists
    return str(row[0]).strip().removesuffix(";")


def _parse(canonical: str, file: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(canonical, read="postgres")
    except ParseError as error:
        raise DefinitionError(f"{file} is beyond syncer's parser", hint="Please report it, with the SELECT.") from error


def _reads(connection: Connection, tree: exp.Expr, file: str) -> Iterator[Read]:
    whole = _whole_rows(tree)
    for oid, relation, schema, name, kind, is_partition, inherits, read in connection.execute(_READS).fetchall():
        _require_capturable(relation, kind, file, is_partition=is_partition, inherits=inherits)
        columns = frozenset(read)
        if (schema, name) in whole:
            columns = frozenset(row[0] for row in connection.execute(_ALL_COLUMNS, (oid,)))
        for virtual, sources in connection.execute(_VIRTUAL, (oid,)).fetchall():
            if virtual in columns:
                columns = columns - {virtual} | frozenset(sources)
        yield Read(relation=relation, name=(schema, name), columns=columns)


def _whole_rows(tree: exp.Expr) -> frozenset[TableName]:
    """Tables that are used as a whole row somewhere.

    The catalogue records no column for a whole row. In a canonical query a star is nothing else.
    """
    aliases = {column.table for column in tree.find_all(exp.Column) if isinstance(column.this, exp.Star)}
    return frozenset(table_name(table) for table in tables(tree) if table.alias_or_name in aliases)


def _require_capturable(relation: str, kind: str, file: str, *, is_partition: bool, inherits: bool) -> None:
    what = _KINDS.get(kind)
    if is_partition:
        what = "a partition"
    elif what is None and inherits:
        what = "a table that shares its rows by inheritance"
    if what is not None:
        raise DefinitionError(
            f"{file} reads {relation}, which is {what}",
            hint="syncer captures the changes of ordinary tables. Select from those directly.",
        )


def _require_plain_functions(connection: Connection, file: str) -> None:
    found = [row[0] for row in connection.execute(_FUNCTIONS)]
    if found:
        raise DefinitionError(
            f"{file} calls {', '.join(found)}: which tables that reads cannot be told",
            hint="Write its query into the SELECT; or, if it reads no table, declare the function IMMUTABLE.",
        )


def _require_no_catalogue(tree: exp.Expr, file: str) -> None:
    """Refuse system catalogues: they leave no trace among the dependencies, and no trigger can watch them."""
    ctes = {one.alias for one in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        is_alias = table.find_ancestor(exp.Lock) is not None or table.name in ctes
        if not table.db and isinstance(table.this, exp.Identifier) and not is_alias:
            raise DefinitionError(
                f"{file} reads pg_catalog.{table.name}, a system catalogue", hint="Its changes cannot be captured."
            )


def _require_no_locks(connection: Connection) -> None:
    connection.execute("SET LOCAL transaction_read_only = on")
    connection.execute("SELECT FROM pg_temp.syncer_probe LIMIT 0")
