"""Catalogue: the tables of a database, their columns and their foreign keys.

Tables that cannot be captured are recognised: see `syncer.capture.eligibility`.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncer.apply.preview.column_type import ColumnType, column_type
from syncer.base.errors import DefinitionError, SourceError
from syncer.base.postgres import Connection, names_as_written, value
from syncer.capture import eligibility

# Partitions are read through their table; `eligibility` refuses inherited and unlogged tables.
_TABLES = """
SELECT format('%s.%s', n.nspname, c.relname),
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'syncer') AND n.nspname !~ '^pg_toast'
ORDER BY n.nspname <> 'public', 1
"""
_RELATION = """
SELECT c.oid, format('%I.%I', n.nspname, c.relname), c.relname::text, c.relkind::text,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
  AND ($1 IN (format('%s.%s', n.nspname, c.relname), format('%I.%I', n.nspname, c.relname))
       OR $1 IN (c.relname::text, quote_ident(c.relname)) AND c.oid = ANY ($2))
ORDER BY n.nspname, c.relname
"""
# Every name is qualified, because it runs under the role's search_path.
_VISIBLE = "SELECT pg_catalog.array_agg(oid) FROM pg_catalog.pg_class WHERE pg_catalog.pg_table_is_visible(oid)"
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_REFERENCES = """
SELECT k.conname::text, format('%I.%I', n.nspname, c.relname), format('%I.%I', fn.nspname, f.relname),
       array(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS p (number, place)
             JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = p.number ORDER BY p.place),
       array(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS p (number, place)
             JOIN pg_attribute AS a ON a.attrelid = k.confrelid AND a.attnum = p.number ORDER BY p.place),
       c.relname::text, f.relname::text,
       EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = k.conrelid AND i.indisunique AND i.indisvalid
               AND i.indpred IS NULL AND i.indexprs IS NULL
               AND (i.indkey::int2[])[0:i.indnkeyatts - 1] <@ k.conkey)
FROM pg_constraint AS k
JOIN pg_class AS c ON c.oid = k.conrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_class AS f ON f.oid = k.confrelid JOIN pg_namespace AS fn ON fn.oid = f.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND to_regclass($1) IN (k.conrelid, k.confrelid)
ORDER BY k.conkey, k.conname
"""


_LISTED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key of table ``relation`` to table ``to``.

    Args:
        name: The constraint's name.
        table: The name of that table, without its schema; likewise ``to_table``.
        to_columns: The referenced columns, in the same order.
        is_unique: Whether at most one row refers to each.
    """

    name: str
    relation: str
    table: str
    columns: tuple[str, ...]
    to: str
    to_table: str
    to_columns: tuple[str, ...]
    is_unique: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that can be captured.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        key: The columns of its primary key, or of the unique index that replaces it.
        refers: Its foreign keys.
        referred: The foreign keys of other tables that refer to it.
    """

    relation: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    refers: tuple[Reference, ...]
    referred: tuple[Reference, ...]

    def column(self, name: str) -> Column:
        """Return the column of that name."""
        return next(one for one in self.columns if one.name == name)


def tables(connection: Connection) -> dict[str, bool]:
    """Return the tables to choose from, schema public first, and whether this role may read each."""
    return dict(connection.execute(_TABLES).fetchall())


def find(connection: Connection, said: str) -> Table:
    """Find a table by its name, with or without its schema, quoted or not.

    Raises:
        SourceError: There is no such table, several have the name, or this role may not read it.
        DefinitionError: It cannot be captured, or has no key.
    """
    with names_as_written(connection):
        visible = value(connection, _VISIBLE)
    found = connection.execute(_RELATION, (said, visible)).fetchall()
    exact = [one for one in found if one[1] == said]
    if len(exact or found) != 1:
        if found:
            names = ", ".join(str(one[1]) for one in found)
            raise SourceError(f"Several tables are called {said}: {names}", hint="Name one of them with its schema.")
        raise SourceError(f"The database has no table {said or repr(said)}", hint=_listed(connection, said))
    oid, relation, _, kind, may_read = (exact or found)[0]
    if kind == "v":
        raise SourceError(
            f"{relation} is a view, and a draft begins with a table",
            hint="Name the table whose rows become documents; you can then change select.sql to read the view.",
        )
    eligibility.require_capturable(connection, oid, "A draft of it")
    if not may_read:
        raise SourceError(
            f"This role may not read {relation}", hint=f"By its owner: GRANT SELECT ON {relation} TO the role"
        )
    return read(connection, relation)


def read(connection: Connection, relation: str) -> Table:
    """Read a table.

    Raises:
        DefinitionError: It has no key.
    """
    references = [
        Reference(
            name=name,
            relation=one,
            table=table,
            columns=tuple(columns),
            to=to,
            to_table=to_table,
            to_columns=tuple(to_columns),
            is_unique=is_unique,
        )
        for name, one, to, columns, to_columns, table, to_table, is_unique in connection.execute(
            _REFERENCES, (relation,)
        )
    ]
    name = connection.execute("SELECT relname::text FROM pg_class WHERE oid = to_regclass($1)", (relation,)).fetchone()
    return Table(
        relation=relation,
        name=name[0] if name else relation,
        columns=tuple(
            Column(name=name, type=column_type(connection, said))
            for name, said in connection.execute(_COLUMNS, (relation,)).fetchall()
        ),
        key=eligibility.primary_key(connection, relation),
        refers=tuple(one for one in references if one.relation == relation),
        referred=tuple(one for one in references if one.to == relation),
    )


def readable(connection: Connection, relation: str) -> Table | str:
    """Find a table that refers to another or is referred to; or return why a document cannot show its rows."""
    try:
        return find(connection, relation)
    except (DefinitionError, SourceError) as error:
        return error.message


def _listed(connection: Connection, said: str) -> str:
    """List tables with that name in other schemas; otherwise those that exist."""
    found = list(tables(connection))
    if not found:
        return "It has no table at all. Check that this is the right database."
    bare = said.rpartition(".")[2].casefold()
    if meant := [one for one in found if one.rpartition(".")[2].casefold() == bare]:
        return f"Is it {' or '.join(meant)}?"
    more = f" and {len(found) - _LISTED_MAX:,} more" if len(found) > _LISTED_MAX else ""
    return "There are: " + ", ".join(found[:_LISTED_MAX]) + more
