"""Catalogue: the tables that can be captured, with columns, keys and references, read once.

A reference that is declared twice is one: that of fewer columns, if the same columns lead to the same table.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field

import psycopg

from syncer.base.errors import DefinitionError, SourceError
from syncer.base.postgres import Connection, names_as_written, value
from syncer.capture import install
from syncer.drafts.shapes import ColumnType, Types

_TABLES = """
SELECT c.oid, format('%I.%I', n.nspname, c.relname), c.relname::text, c.relispartition,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       (SELECT json_agg(json_build_array(a.attname, a.atttypid::int8, a.atttypmod, a.attnotnull) ORDER BY a.attnum)
        FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT json_agg(json_build_array(i.indisprimary, columns.names) ORDER BY NOT i.indisprimary, i.indexrelid)
        FROM pg_index AS i CROSS JOIN LATERAL (
            SELECT json_agg(a.attname ORDER BY k.place) AS names
            FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (number, place)
            JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
        ) AS columns
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL),
       array(SELECT pg_get_expr(i.indpred, c.oid) FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indpred IS NOT NULL)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'syncer') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY n.nspname <> 'public', 2
"""
# Those of few columns come first.
_REFERENCES = """
SELECT k.conrelid, k.confrelid,
       array(SELECT ARRAY[a.attname, b.attname]::text[]
             FROM unnest(k.conkey, k.confkey) WITH ORDINALITY AS p (own, other, place)
             JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = p.own
             JOIN pg_attribute AS b ON b.attrelid = k.confrelid AND b.attnum = p.other ORDER BY p.place),
       coalesce((to_jsonb(k) -> 'conperiod')::boolean, false)
FROM pg_constraint AS k
WHERE k.contype = 'f' AND k.conparentid = 0
ORDER BY cardinality(k.conkey), k.conkey, k.conname
"""
_OID = "SELECT coalesce(to_regclass(quote_ident($1)), to_regclass($1))::oid"
_SUGGESTED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    type: ColumnType
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key of table ``relation`` to table ``to``.

    Each pair is a column and the one that it refers to. If ``is_unique``, at most one row refers to each. If it is
    temporal, the last pair are ranges: a row refers to all rows whose ranges overlap its own.
    """

    relation: str
    to: str
    pairs: tuple[tuple[str, str], ...]
    is_unique: bool
    is_temporal: bool

    @property
    def columns(self) -> frozenset[str]:
        """The columns that refer."""
        return frozenset(column for column, _ in self.pairs)


@dataclass(slots=True, kw_only=True)
class Table:
    """A table: ``key`` is its primary key, else a unique index of columns that are never null; empty without one.

    Its ``guards`` are references whose columns another one has, too: a tenant beside a row of this tenant.
    """

    oid: int
    relation: str
    name: str
    is_partition: bool
    may_read: bool
    columns: dict[str, Column]
    key: tuple[str, ...]
    unique: list[frozenset[str]]
    predicates: list[str]
    references: list[Reference] = field(default_factory=list)
    referring: list[Reference] = field(default_factory=list)
    guards: list[Reference] = field(default_factory=list)


class Catalogue:
    """The tables of a database as they are now, by their names as SQL writes them, schema public first."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        types, by_oid = Types(connection), dict[int, Table]()
        for oid, relation, name, is_partition, may_read, columns_json, indexes_json, predicates in connection.execute(
            _TABLES
        ).fetchall():
            columns = {
                column: Column(name=column, type=types.of(type_, modifier), is_required=is_required)
                for column, type_, modifier, is_required in json.loads(columns_json or "[]")
            }
            indexes = json.loads(indexes_json or "[]")
            keys = [names for is_primary, names in indexes if is_primary or all(columns[n].is_required for n in names)]
            by_oid[oid] = Table(
                oid=oid,
                relation=relation,
                name=name,
                is_partition=is_partition,
                may_read=may_read,
                columns=columns,
                key=tuple(keys[0]) if keys else (),
                unique=[frozenset(names) for _, names in indexes],
                predicates=predicates,
            )
        for oid, to_oid, pairs, is_temporal in connection.execute(_REFERENCES):
            if oid in by_oid and to_oid in by_oid:
                _refer(by_oid[oid], by_oid[to_oid], tuple((column, other) for column, other in pairs), is_temporal)
        self.tables = {table.relation: table for table in by_oid.values()}

    def find(self, name: str) -> Table:
        """Find a table by its name, quoted or not; without its schema, by the search_path or as the only one.

        Raises:
            SourceError: There is no such table, or this role may not read it.
            DefinitionError: It cannot be captured.
        """
        oid = None
        try:
            with names_as_written(self._connection):
                oid = value(self._connection, _OID, (name,))
        except psycopg.errors.InsufficientPrivilege:  # on its schema: the table may well be there
            raise
        except (psycopg.ProgrammingError, psycopg.NotSupportedError):
            pass
        if oid is None:
            homonyms = [table for table in self.tables.values() if table.name in (name, name.lower())]
            if len(homonyms) != 1:
                raise SourceError(
                    f"The database has no table {name or repr(name)}",
                    hint=self._suggestion(name, homonyms or [*self.tables.values()]),
                )
            oid = homonyms[0].oid
        install.require_capturable(self._connection, int(str(oid)), "A draft of it")
        table = next((table for table in self.tables.values() if table.oid == oid), None)
        if table is None:
            raise without_key(name)
        return self.readable(table)

    @staticmethod
    def _suggestion(name: str, tables: list[Table]) -> str:
        relations = [table.relation for table in tables if not table.is_partition]
        if not relations:
            return "It has no table at all. Check that this is the right database."
        if len(relations) > _SUGGESTED_MAX:
            similar_names = difflib.get_close_matches(name, [table.name for table in tables], _SUGGESTED_MAX, 0.5)
            similar = ", ".join(table.relation for table in tables if table.name in similar_names)
            return f"Similar names: {similar or 'none'}. syncer init lists all {len(relations):,} tables."
        return f"There are: {', '.join(relations)}"

    def readable(self, table: Table) -> Table:
        """Return the table.

        Raises:
            SourceError: This role may not read it.
        """
        if not table.may_read:
            role = value(self._connection, "SELECT quote_ident(current_user)")
            hint = f"By its owner: GRANT SELECT ON {table.relation} TO {role}"
            raise SourceError(f"This role may not read {table.relation}", hint=hint)
        return table


def unquoted(name: str) -> str:
    """Return a name that may have quoted parts, without the quotes."""
    return re.sub(r'"((?:[^"]|"")+)"', lambda quoted: quoted[1].replace('""', '"'), name)


def without_key(relation: str) -> DefinitionError:
    """Return the error for a relation of whose rows no _id can be made."""
    return DefinitionError(
        f"{relation} has no primary key, of which a draft makes the documents' _id",
        hint="Add one; or write select.sql yourself, as for a view, and run: syncer init --from-select",
    )


def _refer(table: Table, to: Table, pairs: tuple[tuple[str, str], ...], is_temporal: bool) -> None:
    """Add a reference to both of its tables, unless a narrower one is there; what it guards is marked."""
    columns = frozenset(column for column, _ in pairs)
    is_unique = any(columns >= unique for unique in table.unique)
    table.guards += [
        narrower for narrower in table.references if narrower.columns < columns and narrower.to != to.relation
    ]
    if not any(other.to == to.relation and other.columns <= columns for other in table.references):
        reference = Reference(
            relation=table.relation, to=to.relation, pairs=pairs, is_unique=is_unique, is_temporal=is_temporal
        )
        table.references.append(reference)
        to.referring.append(reference)
