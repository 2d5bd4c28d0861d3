"""Catalogue: the tables that can be captured, with columns, keys and references, read once.

A reference that is declared twice is one: that of fewer columns, if the same columns lead to the same table.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import psycopg

from syncer.base.errors import DefinitionError, SourceError
from syncer.base.postgres import Connection, names_as_written, value
from syncer.capture import install
from syncer.drafts.shapes import ColumnType, Types

_TABLES = """
SELECT c.oid, format('%I.%I', n.nspname, c.relname), c.relname::text,
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
       c.relispartition
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'syncer') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY n.nspname <> 'public', 2
"""
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
_PREDICATES = """
SELECT DISTINCT pg_get_expr(indpred, indrelid) FROM pg_index
WHERE indrelid = $1::regclass AND indpred IS NOT NULL ORDER BY 1
"""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: ``key`` is its primary key, else a unique index of columns that are never null; empty without one.

    Its ``guards`` are references whose columns another one has, too: a tenant beside a row of this tenant.
    """

    oid: int
    relation: str
    name: str
    may_read: bool
    columns: dict[str, Column]
    key: tuple[str, ...]
    unique: tuple[frozenset[str], ...]
    references: tuple[Reference, ...]
    referring: tuple[Reference, ...]
    guards: frozenset[Reference]


class Catalogue:
    """The tables of a database as they are now."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._types = Types(connection)
        rows = connection.execute(_TABLES).fetchall()
        # JSON comes as it is.
        self._rows = {row[0]: (*row[:4], *(json.loads(part or "[]") for part in row[4:6]), row[6]) for row in rows}
        self._by_relation = {row[1]: row[0] for row in self._rows.values()}
        self._tables: dict[int, Table] = {}

    @property
    def relations(self) -> dict[str, bool]:
        """The tables to choose from, as SQL names them, schema public first, and whether this role may read each."""
        return {row[1]: row[3] for row in self._rows.values() if not row[6]}

    @cached_property
    def _references(self) -> list[Reference]:
        references = []
        for own, to, pairs, is_temporal in self._connection.execute(_REFERENCES):
            if own in self._rows and to in self._rows:
                columns = {column for column, _ in pairs}
                references.append(
                    Reference(
                        relation=self._rows[own][1],
                        to=self._rows[to][1],
                        pairs=tuple((column, other) for column, other in pairs),
                        is_unique=any(columns >= unique for unique in self._unique(own)),
                        is_temporal=is_temporal,
                    )
                )
        return references

    def _unique(self, oid: int) -> list[set[str]]:
        return [set(names) for _, names in self._rows[oid][5]]

    def table(self, relation: str) -> Table:
        """Return a table by its name as SQL writes it."""
        oid = self._by_relation[relation]
        if oid not in self._tables:
            self._tables[oid] = self._read(oid)
        return self._tables[oid]

    def _read(self, oid: int) -> Table:
        _, relation, name, may_read, columns, indexes, _ = self._rows[oid]
        drawn = {
            column: Column(name=column, type=self._types.of(type_, modifier), is_required=is_required)
            for column, type_, modifier, is_required in columns
        }
        keys = [names for is_primary, names in indexes if is_primary or all(drawn[n].is_required for n in names)]
        own = [reference for reference in self._references if reference.relation == relation]
        return Table(
            oid=oid,
            relation=relation,
            name=name,
            may_read=may_read,
            columns=drawn,
            key=tuple(keys[0]) if keys else (),
            unique=tuple(map(frozenset, self._unique(oid))),
            references=tuple(_once(own)),
            referring=tuple(_once(reference for reference in self._references if reference.to == relation)),
            guards=frozenset(
                one for one in own if any(one.columns < other.columns and one.to != other.to for other in own)
            ),
        )

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
            named = [number for number, row in self._rows.items() if row[2] in (name, name.lower())]
            if len(named) != 1:
                raise SourceError(f"The database has no table {name or repr(name)}", hint=self._suggestion(name, named))
            oid = named[0]
        number = int(str(oid))
        install.require_capturable(self._connection, number, "A draft of it")
        if number not in self._rows:
            raise without_key(name)
        return self.readable(self.table(self._rows[number][1]))

    def _suggestion(self, name: str, named: list[int]) -> str:
        relations = [self._rows[number][1] for number in named] or list(self.relations)
        if not relations:
            return "It has no table at all. Check that this is the right database."
        if len(relations) > _SUGGESTED_MAX:
            close = difflib.get_close_matches(name, [row[2] for row in self._rows.values()], _SUGGESTED_MAX, 0.5)
            alike = ", ".join(row[1] for row in self._rows.values() if row[2] in close)
            return f"Similar names: {alike or 'none'}. syncer init lists all {len(relations):,} tables."
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

    def predicates(self, table: Table) -> list[str]:
        """Return the conditions of the table's partial indexes, as Postgres writes them."""
        return [condition for (condition,) in self._connection.execute(_PREDICATES, (table.relation,))]


def without_key(relation: str) -> DefinitionError:
    """Return the error for a relation of whose rows no _id can be made."""
    return DefinitionError(
        f"{relation} has no primary key, of which a draft makes the documents' _id",
        hint="Add one; or write select.sql yourself, as for a view, and run: syncer init --from-select",
    )


def _once(references: Iterable[Reference]) -> list[Reference]:
    """Leave out a reference whose columns include those of another one between the same tables."""
    kept: list[Reference] = []
    for reference in references:  # those of few columns come first
        if not any(
            (other.relation, other.to) == (reference.relation, reference.to) and other.columns <= reference.columns
            for other in kept
        ):
            kept.append(reference)
    return kept
