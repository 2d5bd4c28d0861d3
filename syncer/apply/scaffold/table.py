"""Table: drafts the SELECT of a table, and the mapping of the JSON that it builds.

A document shows the columns of its table, and each row that a foreign key refers to as an object. Tables that refer to
it are added on request, as arrays of rows, which show the rows that they refer to in the same way. Columns that look
like secrets or personal data are left out.

Guarantee: different rows have different ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from syncer.apply.scaffold.mapping import CASTS, LEFT_OUT, STORED, ColumnType, column_type
from syncer.base.errors import DefinitionError, SourceError
from syncer.base.postgres import Connection, names_as_written, value
from syncer.capture import install

_MAY_READ = "has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')"
_TABLES = f"""
SELECT format('%I.%I', n.nspname, c.relname), {_MAY_READ}
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'syncer') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY n.nspname <> 'public', 1
"""
_TABLE = f"""
SELECT format('%I.%I', n.nspname, c.relname), c.relname::text, {_MAY_READ}
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = $1
"""
_OID = "SELECT coalesce(to_regclass(quote_ident($1)), to_regclass($1))::oid"
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_KEY = """
SELECT array(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS c (number, place)
             JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = c.number ORDER BY c.place)
FROM pg_constraint AS k WHERE k.conrelid = to_regclass($1) AND k.contype = 'p'
"""
_REFERENCES = """
SELECT format('%I.%I', n.nspname, c.relname), format('%I.%I', fn.nspname, f.relname),
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
_INDENT = "    "
_LINE = re.compile(r"""\"(?:[^"]|"")*"|'(?:[^']|'')*'|\n""")
"""A name, a text, or the end of a line: one inside a name is none."""
_PAIRS_MAX = 50
"""How many fields jsonb_build_object takes at once: a function has at most 100 arguments."""
_NO_COLON = frozenset({"int2", "int4", "int8", "uuid", "numeric", "date", "bool"})
"""Types whose text has no colon."""
_PERSONAL = re.compile(
    r"passw|passphrase|passcode|secret|token|(api|private|access).?key|e.?mail|phone|passport|(tax|national).?id"
    r"|card.?number|salary|birth|gender|religion|ethnic|(ip|remote).?addr"
    r"|(^|_)(pwd|salt|t?otp|pin|cvv|cvc|mobile|fax|msisdn|ssn|iban|born|dob)(_|$)",
    re.IGNORECASE,
)
_HIDDEN = "left out, personal or secret by name"
_NOT_IN_FIELDS = re.compile(r"[^\w$@ -]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key of table ``relation`` to table ``to``.

    Each pair is a column and the one that it refers to. If ``is_unique``, at most one row refers to each.
    """

    relation: str
    to: str
    pairs: tuple[tuple[str, str], ...]
    is_unique: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTable:
    """A table that can be captured, with the foreign keys that it has, and those that refer to it."""

    relation: str
    name: str
    columns: dict[str, ColumnType]
    key: tuple[str, ...]
    refers: tuple[Reference, ...]
    referred: tuple[Reference, ...]


def tables(connection: Connection) -> dict[str, bool]:
    """Return the tables to choose from, as SQL names them, schema public first, and whether this role may read each."""
    return dict(connection.execute(_TABLES).fetchall())


def find(connection: Connection, name: str) -> DraftTable:
    """Find a table by its name, quoted or not; without its schema, by the role's search_path.

    Raises:
        SourceError: There is no such table, or this role may not read it.
        DefinitionError: It cannot be captured, or has no key.
    """
    oid = None
    with suppress(psycopg.ProgrammingError, psycopg.NotSupportedError), names_as_written(connection):
        oid = value(connection, _OID, (name,))
    if oid is None:
        known = list(tables(connection))
        shown = ", ".join([*known[:_LISTED_MAX], *(["…"] if len(known) > _LISTED_MAX else [])])
        raise SourceError(
            f"The database has no table {name or repr(name)}",
            hint=f"There are: {shown}" if known else "It has no table at all. Check that this is the right database.",
        )
    install.require_capturable(connection, int(str(oid)), "A draft of it")
    [(relation, bare_name, may_read)] = connection.execute(_TABLE, (oid,))
    if not may_read:
        raise SourceError(
            f"This role may not read {relation}", hint=f"By its owner: GRANT SELECT ON {relation} TO the role"
        )
    references = [
        Reference(relation=own, to=to, pairs=tuple(map(tuple, pairs)), is_unique=is_unique)
        for own, to, pairs, is_unique in connection.execute(_REFERENCES, (relation,)).fetchall()
    ]
    columns = connection.execute(_COLUMNS, (relation,)).fetchall()
    key = connection.execute(_KEY, (relation,)).fetchone()
    if key is None:
        raise DefinitionError(
            f"{relation} has no primary key, of which a draft makes the documents' _id",
            hint="Add one; or write select.sql yourself, as for a view, and run: syncer init --from-select",
        )
    return DraftTable(
        relation=relation,
        name=bare_name,
        columns={column: column_type(connection, type_) for column, type_ in columns},
        key=tuple(key[0]),
        refers=tuple(reference for reference in references if reference.relation == relation),
        referred=tuple(reference for reference in references if reference.to == relation),
    )


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a draft: its expression in the SELECT, and its mapping."""

    name: str
    expression: str
    mapping: dict[str, Any]


class Drafter:
    """Drafts the SELECT of a table; ``remarks`` has what to know of it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._aliases: set[str] = set()
        self.remarks: list[str] = []

    def select(self, table: DraftTable, referring: Sequence[str]) -> tuple[str, dict[str, Any]]:
        """Return the SELECT of a table, with the rows of tables that refer to it, and the mapping of the JSON in it."""
        wanted = dict.fromkeys(reference for name in referring for reference in self._referring(table, name))
        alias = self._alias(table.name)
        fields = self._fields(table, alias, "")
        fields = _renamed([*fields, *(self._rows(reference, table, alias) for reference in wanted)])
        columns = [f"{self._id(table, alias)} AS _id"]
        for field in fields:
            is_column = field.expression == self._name(alias, field.name)
            columns.append(field.expression if is_column else f"{field.expression} AS {self._name(field.name)}")
        if any(remark.startswith(_HIDDEN) for remark in self.remarks):
            self.remarks.append("to show columns that are left out, add them in select.sql; then: init --from-select")
        others = sorted({found.relation for found in table.referred if found not in wanted})
        if others:
            self.remarks.append(f"--with adds rows of other tables: {', '.join(others)}")
        built = {field.name: field.mapping for field in fields if "properties" in field.mapping}
        return f"SELECT\n{_listed(columns)}\nFROM {table.relation} AS {self._name(alias)}\n", built

    def _referring(self, table: DraftTable, name: str) -> list[Reference]:
        """Return the foreign keys to a table of the table with this name."""
        other = find(self._connection, name)
        found = [reference for reference in table.referred if reference.relation == other.relation]
        if not found:
            known = sorted({reference.relation for reference in table.referred})
            raise DefinitionError(
                f"{other.relation} has no foreign key to {table.relation}",
                hint=f"--with takes a table that refers to {table.relation}: {', '.join(known) or 'there is none'}. "
                "Add rows of others in select.sql, and run init --from-select.",
            )
        return found

    def _fields(self, table: DraftTable, alias: str, path: str, *, but: Reference | None = None) -> list[_Field]:
        """Return the columns of a table's rows, and the rows that they refer to, except by one foreign key."""
        columns = {field.name: field for field in self._columns(table, alias, path)}
        objects = []
        for reference in table.refers:
            if reference != but and columns.keys() >= {column for column, _ in reference.pairs}:
                try:
                    other = find(self._connection, reference.to)
                except (DefinitionError, SourceError) as error:
                    self.remarks.append(f"{path}{reference.to} is left out: {error.message}")
                    continue
                (column, _), *others = reference.pairs
                # ``user`` for ``user_id``, ``area`` for ``area``
                name = re.sub(r"_?(id|uuid|key|fk)$", "", column, flags=re.IGNORECASE)
                name = other.name if others or not name else name
                joined = [(theirs, own) for own, theirs in reference.pairs]
                inside = self._alias(other.name)
                fields = _renamed(list(self._columns(other, inside, f"{path}{name}.")))
                shown = self._subquery(self._json(fields), other, inside, alias, joined)
                objects.append(_Field(name, shown, _properties(fields)))
        replaced = {field.name for field in objects}  # such an object has the key
        return [*(field for field in columns.values() if field.name not in replaced), *objects]

    def _columns(self, table: DraftTable, alias: str, path: str) -> Iterator[_Field]:
        hidden = []
        for name, type_ in table.columns.items():
            if type_.name in LEFT_OUT:
                self.remarks.append(f"{path}{name} is left out: {LEFT_OUT[type_.name]}")
            elif name not in table.key and type_.name != "bool" and _PERSONAL.search(name):
                hidden.append(f"{path}{name}")
            else:
                column, mapping = self._name(alias, name), type_.mapping or STORED
                if type_.name in CASTS:
                    cast = f"{CASTS[type_.name]}{'[]' if type_.is_array else ''}"
                    column, mapping = f"{column}::{cast}", column_type(self._connection, cast).mapping or STORED
                yield _Field(name, column, mapping)
        if hidden:
            self.remarks.append(f"{_HIDDEN}: {', '.join(hidden)}")

    def _rows(self, reference: Reference, root: DraftTable, outer: str) -> _Field:
        """Return the rows that refer, as an array of objects; as one object if there is at most one."""
        table = find(self._connection, reference.relation)
        # Tables that refer to this one more than once are told apart by the column.
        is_only = sum(other.relation == reference.relation for other in root.referred) == 1
        alias, name = self._alias(table.name), table.name if is_only else f"{table.name}_{reference.pairs[0][0]}"
        fields = _renamed(self._fields(table, alias, f"{name}.", but=reference))
        shown = self._json(fields)
        if not reference.is_unique:
            order = ", ".join(self._name(alias, column) for column in table.key)
            shown = f"coalesce(jsonb_agg({shown} ORDER BY {order}), '[]'::jsonb)"
        nested = {} if reference.is_unique else {"type": "nested"}
        rows = self._subquery(shown, table, alias, outer, reference.pairs)
        return _Field(name, rows, {**nested, **_properties(fields)})

    def _subquery(
        self, shown: str, table: DraftTable, alias: str, outer: str, joined: Iterable[tuple[str, str]]
    ) -> str:
        """Return a subquery; ``joined`` has columns of the table and the equal ones of the query around it."""
        equal = " AND ".join(f"{self._name(alias, own)} = {self._name(outer, other)}" for own, other in joined)
        query = f"SELECT {shown}\nFROM {table.relation} AS {self._name(alias)}\nWHERE {equal}"
        return f"(\n{_indented(query)}\n)"

    def _json(self, fields: Sequence[_Field]) -> str:
        """Return an expression for an object of these fields."""
        pairs = [f"{sql.quote(field.name, self._connection)}, {field.expression}" for field in fields]
        pieces = [pairs[place : place + _PAIRS_MAX] for place in range(0, len(pairs), _PAIRS_MAX)] or [[]]
        return " || ".join(f"jsonb_build_object(\n{_listed(piece)}\n)" for piece in pieces)

    def _id(self, table: DraftTable, alias: str) -> str:
        key = [(self._name(alias, name), table.columns[name].name) for name in table.key]
        if len(key) == 1:
            name, type_ = key[0]
            return f"{name}::text" if type_ == "bpchar" else name
        free = [name for name, type_ in key if type_ not in _NO_COLON]
        parts = []
        for name, _ in key:
            # A text may contain a colon: the length before it keeps ids of different keys different.
            if len(free) > 1 and name in free:
                parts.append(f"length({name}::text)::text")
            parts.append(f"{name}::text")
        return " || ':' || ".join(parts)

    def _alias(self, table: str) -> str:
        initial = table[:1].lower()
        return _free(initial if initial.isascii() and initial.isalpha() else "t", self._aliases)

    def _name(self, *names: str) -> str:
        """An identifier, quoted where Postgres would quote it."""
        return ".".join(str(value(self._connection, "SELECT quote_ident($1)", (name,))) for name in names)


def _renamed(fields: Iterable[_Field]) -> list[_Field]:
    """Give the fields of an object names that Elasticsearch accepts: their own ones, if possible.

    A dot would be a step into an object, and Elasticsearch reserves names that begin with an underscore.
    """
    taken: set[str] = set()
    plain = [(_NOT_IN_FIELDS.sub("_", field.name).strip().lstrip("_") or "column", field) for field in fields]
    return [replace(field, name=_free(name, taken)) for name, field in plain]


def _free(name: str, taken: set[str]) -> str:
    """Return the name, with a number if it is taken, and take it."""
    made, number = name, 1
    while made in taken:
        number += 1
        made = f"{name}_{number}"
    taken.add(made)
    return made


def _listed(parts: Iterable[str]) -> str:
    return _indented(",\n".join(parts))


def _indented(query: str) -> str:
    return _INDENT + _LINE.sub(lambda found: f"\n{_INDENT}" if found[0] == "\n" else found[0], query)


def _properties(fields: Iterable[_Field]) -> dict[str, Any]:
    return {"properties": {field.name: field.mapping for field in fields}}
