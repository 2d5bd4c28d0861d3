"""Select: drafts the SELECT of a table, and the mapping of the JSON that it builds.

A document shows the columns of its table, and each row that a foreign key refers to as an object. Tables that refer to
it are added on request, as arrays of rows, which show the rows that they refer to in the same way. Columns that look
like secrets or personal data are left out unless they are asked for.

Guarantee: different rows have different ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from syncer.apply.scaffold import tables
from syncer.apply.scaffold.mapping import is_personal
from syncer.apply.scaffold.tables import Reference, Table
from syncer.apply.scaffold.types import CASTS, LEFT_OUT, STORED, column_type
from syncer.base.errors import DefinitionError, SourceError
from syncer.base.postgres import Connection

_PAIRS_MAX = 50
"""How many fields jsonb_build_object takes at once: a function has at most 100 arguments."""
_KEYWORDS = "SELECT word FROM pg_get_keywords() WHERE catcode <> 'U'"
_NO_COLON = frozenset({"int2", "int4", "int8", "uuid", "numeric", "date", "bool"})
"""Types whose text has no colon."""
_NOT_IN_FIELDS = re.compile(r"[^\w$@ -]")


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a draft: its expression in the SELECT, and its mapping."""

    name: str
    expression: str
    mapping: dict[str, Any]


def draft(
    connection: Connection, table: Table, *, referring: Sequence[str] = (), with_personal: bool = False
) -> tuple[str, dict[str, Any], list[str]]:
    """Return the SELECT of a table, the mapping of what it builds as JSON, and what to know of it.

    Args:
        connection: To the database of the table.
        table: The table whose rows become documents.
        referring: Names of tables that refer to it, whose rows are added.
        with_personal: Whether to show columns that look personal or secret.

    Raises:
        DefinitionError: A table does not refer to it, or cannot be captured.
        SourceError: A table cannot be read.
    """
    drafter = _Drafter(connection, with_personal=with_personal)
    select, properties = drafter.select(table, referring)
    return select, properties, drafter.remarks


class _Drafter:
    """Drafts one SELECT. A parameter ``line`` is a line break with the indentation of what surrounds an expression."""

    def __init__(self, connection: Connection, *, with_personal: bool) -> None:
        self._connection = connection
        self._with_personal = with_personal
        self._words = frozenset(word for (word,) in connection.execute(_KEYWORDS))
        self._aliases: set[str] = set()
        self.remarks: list[str] = []

    def select(self, table: Table, referring: Sequence[str]) -> tuple[str, dict[str, Any]]:
        wanted = dict.fromkeys(reference for name in referring for reference in _referring(table, name))
        alias, line = self._alias(table.name), "\n    "
        fields = self._fields(table, alias, line, "")
        fields = _renamed([*fields, *(self._rows(reference, table, alias, line) for reference in wanted)])
        columns = [f"{self._id(table, alias)} AS _id"]
        for field in fields:
            is_column = field.expression == self._name(alias, field.name)
            columns.append(field.expression if is_column else f"{field.expression} AS {self._name(field.name)}")
        others = sorted({tables.bare(found.relation) for found in table.referred if found not in wanted})
        if others:
            self.remarks.append(f"--with adds rows of other tables: {', '.join(others)}")
        listed = f",{line}".join(columns)
        built = {field.name: field.mapping for field in fields if "properties" in field.mapping}
        return f"SELECT{line}{listed}\nFROM {table.relation} AS {self._name(alias)}\n", built

    def _fields(self, table: Table, alias: str, line: str, path: str, *, but: Reference | None = None) -> list[_Field]:
        """Return the columns of a table's rows, and the rows that they refer to, except by one foreign key."""
        columns = {field.name: field for field in self._columns(table, alias, path)}
        objects = []
        for reference in table.refers:
            if reference != but and columns.keys() >= {column for column, _ in reference.pairs}:
                try:
                    other = tables.find(self._connection, reference.to)
                except (DefinitionError, SourceError) as error:
                    self.remarks.append(f"{path}{reference.to} is left out: {error.message}")
                    continue
                name, joined = _object_name(reference), [(theirs, own) for own, theirs in reference.pairs]
                inside = self._alias(other.name)
                fields = _renamed(list(self._columns(other, inside, f"{path}{name}.")))
                shown = self._subquery(self._json(fields, line), other, inside, alias, joined, line=line)
                objects.append(_Field(name, shown, _properties(fields)))
        replaced = {field.name for field in objects}  # such an object has the key
        return [*(field for field in columns.values() if field.name not in replaced), *objects]

    def _columns(self, table: Table, alias: str, path: str) -> Iterator[_Field]:
        hidden = []
        for name, type_ in table.columns.items():
            if type_.name in LEFT_OUT:
                self.remarks.append(f"{path}{name} is left out: {LEFT_OUT[type_.name]}")
            elif self._with_personal or name in table.key or not is_personal(name, type_.mapping or STORED):
                column, mapping = self._name(alias, name), type_.mapping or STORED
                if type_.name in CASTS:
                    cast = f"{CASTS[type_.name]}{'[]' if type_.is_array else ''}"
                    column, mapping = f"{column}::{cast}", column_type(self._connection, cast).mapping or STORED
                yield _Field(name, column, mapping)
            else:
                hidden.append(f"{path}{name}")
        if hidden:
            self.remarks.append(f"left out, personal or secret by name: {', '.join(hidden)}; to show them: --personal")

    def _rows(self, reference: Reference, root: Table, outer: str, line: str) -> _Field:
        """Return the rows that refer, as an array of objects; as one object if there is at most one."""
        table = tables.find(self._connection, reference.relation)
        alias, name = self._alias(table.name), _array_name(reference, root)
        fields = _renamed(self._fields(table, alias, line + "        ", f"{name}.", but=reference))
        shown = self._json(fields, line)
        if not reference.is_unique:
            order = ", ".join(self._name(alias, column) for column in table.key)
            shown = f"coalesce(jsonb_agg({shown} ORDER BY {order}), '[]'::jsonb)"
        nested = {} if reference.is_unique else {"type": "nested"}
        rows = self._subquery(shown, table, alias, outer, reference.pairs, line=line)
        return _Field(name, rows, {**nested, **_properties(fields)})

    def _subquery(
        self, shown: str, table: Table, alias: str, outer: str, joined: Iterable[tuple[str, str]], *, line: str
    ) -> str:
        """Return a subquery; ``joined`` has columns of the table and the equal ones of the query around it."""
        equal = " AND ".join(f"{self._name(alias, own)} = {self._name(outer, other)}" for own, other in joined)
        inner = line + "    "
        clauses = (f"SELECT {shown}", f"FROM {table.relation} AS {self._name(alias)}", f"WHERE {equal}")
        return f"({inner}{inner.join(clauses)}{line})"

    def _json(self, fields: Sequence[_Field], line: str) -> str:
        """Return an expression for an object of these fields, within a subquery."""
        end, inner = line + "    ", line + "        "
        pairs = [f"{inner}{sql.quote(field.name, self._connection)}, {field.expression}" for field in fields]
        pieces = [pairs[place : place + _PAIRS_MAX] for place in range(0, len(pairs), _PAIRS_MAX)] or [[]]
        return " || ".join(f"jsonb_build_object({','.join(piece)}{end})" for piece in pieces)

    def _id(self, table: Table, alias: str) -> str:
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
        return ".".join(
            name
            if name.isascii() and name.isidentifier() and name == name.lower() and name not in self._words
            else sql.Identifier(name).as_string(self._connection)
            for name in names
        )


def _referring(table: Table, name: str) -> list[Reference]:
    """Return the foreign keys to a table of the table that a name means, quoted or not.

    Raises:
        DefinitionError: There is none.
    """
    meant = {name, tables.bare(name)}
    found = [
        reference
        for reference in table.referred
        if meant & {reference.table, tables.bare(reference.relation), _array_name(reference, table)}
    ]
    if not found:
        known = sorted({tables.bare(reference.relation) for reference in table.referred})
        raise DefinitionError(
            f"{name} has no foreign key to {table.relation}",
            hint=f"--with takes a table that refers to {table.relation}: {', '.join(known) or 'there is none'}. "
            "Add rows of others in select.sql, and run init --from-select.",
        )
    return found


def _object_name(reference: Reference) -> str:
    """Return a name for the row that a foreign key refers to: ``user`` for ``user_id``, ``area`` for ``area``."""
    (column, _), *others = reference.pairs
    short = re.sub(r"_?(id|uuid|key|fk)$", "", column, flags=re.IGNORECASE)
    return short if short and not others else reference.to_table


def _array_name(reference: Reference, table: Table) -> str:
    """Return the referring table's name, with the column if it refers to this table more than once."""
    several = [other for other in table.referred if other.relation == reference.relation]
    return reference.table if len(several) == 1 else f"{reference.table}_{reference.pairs[0][0]}"


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


def _properties(fields: Iterable[_Field]) -> dict[str, Any]:
    return {"properties": {field.name: field.mapping for field in fields}}
