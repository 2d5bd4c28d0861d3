"""Catalogue: the tables that can be captured, with columns, keys and references, read once.

A reference that is declared twice is one: that of fewer columns, if the same columns lead to the same table.
Where no foreign key is declared, a column refers by its name: ``user_id`` to the key ``id`` of ``users``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from psycopg import errors as pg, sql
from psycopg.rows import dict_row

from syncer.base.errors import DefinitionError, SourceError
from syncer.base.postgres import Connection, names_as_written
from syncer.capture import install
from syncer.drafts import rules
from syncer.drafts.value_types import Types, ValueType

_TABLES = """
SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS relation, n.nspname::text AS schema, c.relname::text AS name,
       pg_table_is_visible(c.oid) AS is_visible,
       c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition AS is_table,
       concat_ws('; ',
           CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE')
                THEN format('GRANT USAGE ON SCHEMA %I TO %I', n.nspname, current_user) END,
           CASE WHEN NOT has_table_privilege(c.oid, 'SELECT')
                THEN format('GRANT SELECT ON %I.%I TO %I', n.nspname, c.relname, current_user) END) AS missing_grant,
       (SELECT json_agg(json_build_array(a.attname, a.atttypid::int8, a.atttypmod, a.attnotnull) ORDER BY a.attnum)
        FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
       (SELECT json_agg(json_build_array(i.indisprimary, columns.names) ORDER BY NOT i.indisprimary, i.indexrelid)
        FROM pg_index AS i CROSS JOIN LATERAL (
            SELECT json_agg(a.attname ORDER BY k.place) AS names
            FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (number, place)
            JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
        ) AS columns
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
       ) AS indexes,
       array(SELECT pg_get_expr(i.indpred, c.oid) FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indpred IS NOT NULL)
           AS predicates
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'syncer')
  AND n.nspname !~ '^pg_(toast|temp)'
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
# The one index of an empty copy, and whether the table has one like it.
_AS_INDEXED = """
SELECT pg_get_indexdef(t.indexrelid, 1, true), EXISTS (
    SELECT FROM pg_index AS i WHERE i.indrelid = $1::regclass AND i.indisvalid AND i.indpred IS NULL
        AND pg_get_indexdef(i.indexrelid, 1, true) = pg_get_indexdef(t.indexrelid, 1, true))
FROM pg_index AS t WHERE t.indrelid = 'pg_temp.syncer_copy'::regclass
"""
_LISTED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; its kind is what its type and its name say."""

    name: str
    type: ValueType
    kind: str
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """A foreign key of a table to another, or a column that refers by its name alone, without one.

    Each pair is a column and the one that it refers to. If it is temporal, the last pair are ranges: a row refers to
    all rows whose ranges overlap its own.
    """

    table: Table
    to: Table
    pairs: Sequence[Sequence[str]]
    is_temporal: bool
    is_by_name: bool = False

    @property
    def columns(self) -> frozenset[str]:
        """The columns that refer."""
        return frozenset(column for column, _ in self.pairs)

    @property
    def is_unique(self) -> bool:
        """Whether at most one row refers to each."""
        return any(self.columns >= unique for unique in self.table.unique)


@dataclass(slots=True, kw_only=True, eq=False)
class Table:
    """A table: ``key`` is its primary key, else a unique index of columns that are never null; empty without one.

    Its ``guards`` are references whose columns another one has, too: a tenant beside a row of this tenant. If this
    role may not read it, ``missing_grant`` is what it lacks.
    """

    oid: int
    schema: str
    relation: str
    name: str
    is_visible: bool
    is_table: bool
    missing_grant: str
    columns: dict[str, Column]
    key: tuple[str, ...]
    unique: list[frozenset[str]]
    predicates: list[str]
    references: list[Reference] = field(default_factory=list)
    referring: list[Reference] = field(default_factory=list)
    guards: list[Reference] = field(default_factory=list)

    @property
    def polymorphic(self) -> dict[str, str]:
        """Columns that may refer to rows of several tables, and the column beside each that says which."""
        plain = {rules.plain(name): name for name in self.columns}
        types = {name: re.sub("(?<=.)u?u?id$", "type", rules.plain(name)) for name in self.columns}
        return {name: plain[type_] for name, type_ in types.items() if plain.get(type_, name) != name}

    def of_kind(self, *kinds: str) -> list[str]:
        """Return the columns of these kinds."""
        return [column.name for column in self.columns.values() if column.kind in kinds]

    def readable(self) -> Table:
        """Return the table; refuse it if this role may not read it."""
        if self.missing_grant:
            raise SourceError(f"This role may not read {self.relation}", hint=f"By its owner: {self.missing_grant}")
        return self

    def require_key(self) -> None:
        """Refuse a table without a key, of whose rows no _id can be made."""
        if not self.key:
            raise DefinitionError(
                f"{self.relation} has no primary key, of which a draft makes the documents' _id",
                hint=f"Add one. If it is a view, or cannot have one, write SELECT … AS _id, * FROM {self.relation}\n"
                "to a file, where … is unique, and run: syncer init --from-select FILE",
            )


class Catalogue:
    """The tables and views of a database as they are now, by their names as SQL writes them, schema public first."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        with names_as_written(connection), connection.cursor(row_factory=dict_row) as cursor:
            relations = cursor.execute(_TABLES).fetchall()
        types = Types(connection)
        tables = {relation["oid"]: _table(types, **relation) for relation in relations}
        for oid, to_oid, pairs, is_temporal in connection.execute(_REFERENCES):
            if oid in tables and to_oid in tables:
                _refer(tables[oid], tables[to_oid], pairs, is_temporal=is_temporal)
        self._tables = [*tables.values()]
        _refer_by_name(self._tables)
        self.readable = [table.relation for table in self._tables if table.is_table and not table.missing_grant]

    def find(self, name: str) -> Table:
        """Find a table by its name, quoted or not; without its schema, by the search_path or as the only one.

        Raises:
            SourceError: There is no such table, or this role may not read it.
            DefinitionError: It cannot be captured.
        """
        by_rank: dict[tuple[bool, bool], list[Table]] = {}
        for table in self._tables:
            names = {table.name, table.relation, unquoted(table.relation)}
            if not names.isdisjoint((name, name.lower(), unquoted(name))):
                by_rank.setdefault((name not in names, not table.is_visible), []).append(table)
        homonyms = by_rank[min(by_rank)] if by_rank else []
        if len(homonyms) != 1:
            relations = [table.relation for table in homonyms] or self.readable
            similar = listed(difflib.get_close_matches(name, relations, len(relations) or 1, 0))
            hint = (
                f"There are: {similar}" if similar else "It has no table at all. Check that this is the right database."
            )
            raise SourceError(f"The database has no table {name or repr(name)}", hint=hint)
        install.require_capturable(self.connection, [homonyms[0].oid], "A draft of it")
        return homonyms[0].readable()


def as_indexed(connection: Connection, relation: str, expression: str) -> tuple[str, bool] | None:
    """Return an expression as an index has it, and whether the table has that index; None if no index can have it."""
    with suppress(pg.InvalidObjectDefinition), connection.transaction(force_rollback=True):
        connection.execute("SET TRANSACTION READ WRITE")  # doctor's session only reads; this is rolled back
        connection.execute(sql.SQL(f"CREATE TEMPORARY TABLE syncer_copy (LIKE {relation})"))  # quoted by Postgres
        connection.execute(sql.SQL(f"CREATE INDEX ON syncer_copy (({expression}))"))
        [(text, exists)] = connection.execute(_AS_INDEXED, (relation,))
        return text, exists
    return None


def listed(names: Sequence[str]) -> str:
    """Return names, separated by commas; of many, the first."""
    return ", ".join([*names[:_LISTED_MAX], *(["…"] if len(names) > _LISTED_MAX else [])])


def unquoted(name: str) -> str:
    """Return a name that may have quoted parts, without the quotes."""
    return re.sub(r'"((?:[^"]|"")+)"', lambda quoted: quoted[1].replace('""', '"'), name)


def _table(types: Types, columns: str | None, indexes: str | None, **fields: Any) -> Table:
    by_name = {}
    for name, oid, modifier, is_required in json.loads(columns or "[]"):
        type_ = types.of(oid, modifier)
        kind = rules.kind_of(name, "" if type_.is_array else type_.name, type_.labels)
        by_name[name] = Column(name=name, type=type_, kind=kind, is_required=is_required)
    unique = json.loads(indexes or "[]")
    keys = [names for is_primary, names in unique if is_primary or all(by_name[name].is_required for name in names)]
    sets = [frozenset(names) for _, names in unique]
    return Table(columns=by_name, key=tuple(keys[0] if keys else ()), unique=sets, **fields)


def _refer(
    table: Table, to: Table, pairs: Sequence[Sequence[str]], *, is_temporal: bool, is_by_name: bool = False
) -> None:
    """Add a reference to both of its tables, unless a narrower one is there; what it guards is marked."""
    reference = Reference(table=table, to=to, pairs=pairs, is_temporal=is_temporal, is_by_name=is_by_name)
    columns = reference.columns
    narrower = [reference for reference in table.references if reference.columns <= columns]
    table.guards += [reference for reference in narrower if reference.columns != columns and reference.to is not to]
    if not any(reference.to is to for reference in narrower):
        table.references.append(reference)
        to.referring.append(reference)


def _refer_by_name(tables: Sequence[Table]) -> None:
    """Add what no foreign key says: a column that has the name of a table and its key, and the key's type.

    The name of the table may lack the first word that both tables have: ``status_id`` of ``issues`` refers to the key
    ``id`` of ``issue_statuses``.
    """
    by_name: dict[tuple[str, ...], list[Table]] = {}
    for table in (table for table in tables if table.is_table and len(table.key) == 1):
        key, (prefix, suffix) = rules.plain(table.key[0]), _prefixed(table.name)
        by_name[table.relation, f"parent{key}"] = [table]
        for namespace, name in (((table.schema,), table.name), ((table.schema, prefix), suffix)):
            names = {rules.plain(name), rules.plain(rules.singular(name))} - {""}
            for column_name in {key} if key.startswith((*names,)) else {name + key for name in names}:
                by_name.setdefault((*namespace, column_name), []).append(table)
    for table in (table for table in tables if table.is_table):
        passed = {name for reference in table.references for name in reference.columns}.union(table.polymorphic)
        namespaces = ((table.relation,), (table.schema,), (table.schema, _prefixed(table.name)[0]))
        for column in (column for name, column in table.columns.items() if name not in passed):
            name = rules.plain(column.name)
            candidates = next(filter(None, (by_name.get((*namespace, name)) for namespace in namespaces)), [])
            # A user_id of users is another id.
            if len(candidates) != 1 or (candidates[0] is table and not name.startswith("parent")):
                continue
            [referenced] = candidates
            key_column = referenced.columns[referenced.key[0]]
            types = {column.type.name, key_column.type.name}
            if not column.type.is_array and (len(types) == 1 or types in rules.ALIKE):
                _refer(table, referenced, [(column.name, key_column.name)], is_temporal=False, is_by_name=True)


def _prefixed(name: str) -> tuple[str, str]:
    """Return the first word of a table's name, and the others."""
    prefix, _, suffix = name.partition("_")
    return rules.singular(prefix), suffix
