"""Tables: the tables of a database, their columns and their foreign keys.

Tables that cannot be captured are recognised: see `syncer.capture.eligibility`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from syncer.apply.scaffold.types import ColumnType, column_type
from syncer.base.errors import SourceError
from syncer.base.postgres import Connection
from syncer.capture import eligibility

# Partitions are read through their table; `eligibility` refuses inherited and unlogged tables.
_RELATIONS = """
SELECT format('%I.%I', n.nspname, c.relname), format('%s.%s', n.nspname, c.relname), c.relname::text, c.oid,
       c.relkind IN ('r', 'p'), c.relpersistence = 'p',
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'syncer') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY n.nspname <> 'public', 1
"""
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_REFERENCES = """
SELECT format('%I.%I', n.nspname, c.relname), c.relname::text, format('%I.%I', fn.nspname, f.relname), f.relname::text,
       array(SELECT ARRAY[a.attname, b.attname]::text[]
             FROM unnest(k.conkey, k.confkey) WITH ORDINALITY AS p (own, other, place)
             JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = p.own
             JOIN pg_attribute AS b ON b.attrelid = k.confrelid AND b.attnum = p.other ORDER BY p.place),
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
_PART = re.compile(r'"(?:[^"]|"")*"|[^".]+')


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key of table ``relation`` to table ``to``.

    Args:
        table: The name of that table, without its schema; likewise ``to_table``.
        pairs: A column of the table and the one that it refers to, for each column of the key.
        is_unique: Whether at most one row refers to each.
    """

    relation: str
    table: str
    to: str
    to_table: str
    pairs: tuple[tuple[str, str], ...]
    is_unique: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that can be captured.

    Args:
        relation: ``schema.table``, quoted where SQL needs it.
        columns: The types by name, in order.
        key: The columns of its primary key, or of the unique index that replaces it.
        refers: Its foreign keys.
        referred: The foreign keys that refer to it.
    """

    relation: str
    name: str
    columns: dict[str, ColumnType]
    key: tuple[str, ...]
    refers: tuple[Reference, ...]
    referred: tuple[Reference, ...]


def tables(connection: Connection) -> dict[str, bool]:
    """Return the tables to choose from, schema public first, and whether this role may read each."""
    rows = connection.execute(_RELATIONS).fetchall()
    return {name: may_read for _, name, _, _, is_table, is_logged, may_read in rows if is_table and is_logged}


def find(connection: Connection, name: str) -> Table:
    """Find a table by its name, quoted or not; without its schema, one in public is preferred.

    Raises:
        SourceError: There is no such table, several have the name, or this role may not read it.
        DefinitionError: It cannot be captured, or has no key.
    """
    rows, plain = connection.execute(_RELATIONS).fetchall(), bare(name)
    found = [row for row in rows if row[0] == name] or [row for row in rows if row[1] in (name, plain)]
    if not found:
        found = [row for row in rows if row[2] in (name, plain)]
        found = [row for row in found if row[1].startswith("public.")] or found
    if not found:
        raise SourceError(f"The database has no table {name or repr(name)}", hint=_listed(connection))
    if len(found) > 1:
        names = ", ".join(str(row[0]) for row in found)
        raise SourceError(f"Several tables are called {name}: {names}", hint="Name one of them with its schema.")
    relation, _, bare_name, oid, is_table, _, may_read = found[0]
    if not is_table:
        raise SourceError(
            f"{relation} is a view or a foreign table, and a draft begins with a table",
            hint="Name the table whose rows become documents; you can then change select.sql to read the view.",
        )
    eligibility.require_capturable(connection, oid, "A draft of it")
    if not may_read:
        raise SourceError(
            f"This role may not read {relation}", hint=f"By its owner: GRANT SELECT ON {relation} TO the role"
        )
    references = [
        Reference(
            relation=own, table=table, to=to, to_table=to_table, pairs=tuple(map(tuple, pairs)), is_unique=is_unique
        )
        for own, table, to, to_table, pairs, is_unique in connection.execute(_REFERENCES, (relation,)).fetchall()
    ]
    columns = connection.execute(_COLUMNS, (relation,)).fetchall()
    return Table(
        relation=relation,
        name=bare_name,
        columns={column: column_type(connection, type_) for column, type_ in columns},
        key=eligibility.primary_key(connection, relation),
        refers=tuple(reference for reference in references if reference.relation == relation),
        referred=tuple(reference for reference in references if reference.to == relation),
    )


def bare(relation: str) -> str:
    """Return ``schema.table`` without quotes."""
    parts = _PART.findall(relation)
    return ".".join(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


def _listed(connection: Connection) -> str:
    found = list(tables(connection))
    if not found:
        return "It has no table at all. Check that this is the right database."
    more = f" and {len(found) - _LISTED_MAX:,} more" if len(found) > _LISTED_MAX else ""
    return "There are: " + ", ".join(found[:_LISTED_MAX]) + more
