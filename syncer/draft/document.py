"""Document: the files of a draft: select.sql, index.json and document.yaml.

The SELECT has every column of the table, each row that a foreign key leads to as an object, and, where it was asked
for, the rows of other tables that refer to it as nested arrays. Guarantees that different rows have different ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from syncer.draft import catalogue, field as fields, naming
from syncer.draft.catalogue import Column, Reference, Table
from syncer.draft.naming import Names
from syncer.errors import DefinitionError
from syncer.postgres import Connection, bounded, value

_PAIRS_MAX = 50
"""How many fields jsonb_build_object takes at once: a function has no more than 100 arguments."""
_FIELDS_MAX = 900
"""From how many fields on an index is told to take them."""
_JSON_SECONDS = 2.0

_KEYWORDS = "SELECT word FROM pg_get_keywords() WHERE catcode <> 'U'"
# Whether any of the first rows has JSON that is no object, nor an array of some.
_HAS_SCALARS = """
SELECT EXISTS (SELECT FROM (SELECT {column}::jsonb AS j FROM {table} LIMIT 1000) AS first
               WHERE jsonb_path_exists(j, 'lax $[*] ? (@.type() != "object" && @.type() != "null")'))
"""
_FREE_TEXT = frozenset({"text", "bpchar", "json", "enum", "composite", "range", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The files.

    Args:
        name: The document's.
        select: select.sql.
        index: index.json.
        options: document.yaml.
        remarks: What somebody should know of it.
    """

    name: str
    select: str
    index: str
    options: str
    remarks: tuple[str, ...]


def draft(connection: Connection, table: Table, *, name: str, arrays: Sequence[Table] = ()) -> Draft:
    """Draft a document.

    Args:
        connection: Where the table is.
        table: Whose rows the documents are.
        name: What the document is to be called.
        arrays: Tables that refer to it, and whose rows are to be in it.

    Raises:
        DefinitionError: One of those does not refer to it.
    """
    return _Drafter(connection, table).draft(name, arrays)


@dataclass(slots=True)
class _Part:
    """One field, as a line of the SELECT."""

    expression: sql.Composable
    name: str
    mapping: dict[str, Any]
    remark: str = ""
    is_column: bool = False


@dataclass(slots=True)
class _Drafter:
    """A draft in the making."""

    connection: Connection
    table: Table
    remarks: list[str] = field(default_factory=list)
    words: frozenset[str] = frozenset()
    aliases: Names = field(default_factory=Names)

    def draft(self, name: str, arrays: Sequence[Table]) -> Draft:
        self.words = frozenset(word for (word,) in self.connection.execute(_KEYWORDS))
        alias = self._alias(self.table)
        names = Names()
        parts = [*self._columns(self.table, alias, names)]
        parts += [part for one in self.table.refers for part in self._object(one, alias, names)]
        for other in arrays:
            parts += self._arrays(other, alias, names)
        self._offer(arrays)
        index = naming.index_name(name)
        return Draft(
            name=name,
            select=self._select(alias, parts),
            index=json.dumps(_index_body(parts), indent=2, ensure_ascii=False) + "\n",
            options=f"# The alias that searches use. syncer makes the index behind it.\nindex: {index}\n",
            remarks=tuple(self.remarks),
        )

    # Fields

    def _columns(self, table: Table, alias: str, names: Names, *, path: str = "") -> Iterator[_Part]:
        for column in table.columns:
            made = fields.of_column(column, self._name(alias, column.name))
            if made.expression is None or made.mapping is None:
                self.remarks.append(f"{path}{column.name} is left out: {made.remark}")
                continue
            mapping = self._json_mapping(table, column) or made.mapping
            given = names.give(column.name)
            if made.remark:
                self.remarks.append(f"{path}{given}: {made.remark}")
            yield _Part(
                expression=made.expression,
                name=given,
                mapping=mapping,
                remark=made.remark,
                is_column=column.type.kind in fields.SHOWN_AS_THEY_ARE and given == column.name,
            )

    def _json_mapping(self, table: Table, column: Column) -> dict[str, Any] | None:
        """Of JSON that is not always an object: kept as it is, whatever it is."""
        if column.said not in ("json", "jsonb"):
            return None
        query = sql.SQL(_HAS_SCALARS).format(column=self._name(column.name), table=sql.SQL(table.relation))
        try:
            with bounded(self.connection, seconds=_JSON_SECONDS):
                has_scalars = bool(value(self.connection, query))
        except (psycopg.DataError, psycopg.errors.QueryCanceled):
            has_scalars = True
        return {"type": "object", "enabled": False} if has_scalars else None

    def _object(self, reference: Reference, alias: str, names: Names) -> Iterator[_Part]:
        """The row that a foreign key leads to."""
        other = self._readable(reference.to)
        if other is None:
            return
        name = names.give(naming.of_reference(reference.columns, other.name))
        inner = self._alias(other)
        inside = list(self._columns(other, inner, Names(), path=f"{name}."))
        where = self._equal(inner, reference.to_columns, alias, reference.columns)
        yield _Part(
            expression=sql.SQL("(\n        SELECT {}\n        FROM {} AS {}\n        WHERE {}\n    )").format(
                _built(inside), sql.SQL(other.relation), self._name(inner), where
            ),
            name=name,
            mapping={"properties": _properties(inside)},
        )

    def _arrays(self, other: Table, alias: str, names: Names) -> Iterator[_Part]:
        """The rows of a table that refer to this one, by each of its foreign keys."""
        references = [one for one in self.table.referred if one.relation == other.relation]
        if not references:
            known = ", ".join(sorted({one.relation for one in self.table.referred})) or "none"
            raise DefinitionError(
                f"{other.relation} has no foreign key that leads to {self.table.relation}",
                hint=f"--with takes a table that refers to it: {known}",
            )
        for reference in references:
            plain = other.name if len(references) == 1 else f"{other.name}_{reference.columns[0]}"
            name = names.give(plain)
            inner = self._alias(other)
            inside = list(self._columns(other, inner, Names(), path=f"{name}."))
            yield _Part(
                expression=sql.SQL(
                    "(\n        SELECT coalesce(jsonb_agg({} ORDER BY {}), '[]'::jsonb)\n"
                    "        FROM {} AS {}\n        WHERE {}\n    )"
                ).format(
                    _built(inside),
                    sql.SQL(", ").join(self._name(inner, one) for one in other.key),
                    sql.SQL(other.relation),
                    self._name(inner),
                    self._equal(inner, reference.columns, alias, reference.to_columns),
                ),
                name=name,
                mapping={"type": "nested", "properties": _properties(inside)},
            )

    def _readable(self, relation: str) -> Table | None:
        found = catalogue.readable(self.connection, relation)
        if isinstance(found, str):
            self.remarks.append(f"{relation} is left out: {found}")
            return None
        return found

    def _offer(self, arrays: Sequence[Table]) -> None:
        taken = {one.relation for one in arrays}
        for relation in sorted({one.relation for one in self.table.referred} - taken - {self.table.relation}):
            self.remarks.append(f"{relation} refers to it: --with {relation} puts its rows into each document")

    # SQL

    def _alias(self, table: Table) -> str:
        initial = table.name[:1].lower()
        return self.aliases.give(initial if initial.isascii() and initial.isalpha() else "t")

    def _name(self, *names: str) -> sql.Composable:
        """An identifier, quoted where Postgres would quote it."""
        return sql.SQL(".").join(
            sql.SQL(one) if _is_plain(one) and one not in self.words else sql.Identifier(one) for one in names
        )

    def _equal(self, left: str, columns: Sequence[str], right: str, others: Sequence[str]) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(self._name(left, one), self._name(right, other))
            for one, other in zip(columns, others, strict=True)
        )

    def _id(self, alias: str) -> sql.Composable:
        key = [(self._name(alias, one), self.table.column(one).type) for one in self.table.key]
        if len(key) == 1:
            return sql.SQL("{}::text").format(key[0][0]) if key[0][1].kind == "bpchar" else key[0][0]
        free = [name for name, type_ in key if type_.kind in _FREE_TEXT or type_.is_array]
        parts: list[sql.Composable] = []
        for name, _ in key:
            # A colon may be in a text: with its length before it, no two keys make one id.
            if len(free) > 1 and name in free:
                parts.append(sql.SQL("length({}::text)::text").format(name))
            parts.append(sql.SQL("{}::text").format(name))
        return sql.SQL(" || ':' || ").join(parts)

    def _select(self, alias: str, parts: Sequence[_Part]) -> str:
        title = (
            f"-- Rows of {_one_line(self.table.relation)}, drafted by syncer init. It is yours: change what you like.\n"
        )
        notes = "".join(f"-- {_one_line(one)}\n" for one in self.remarks)
        lines = [sql.SQL("    {} AS _id").format(self._id(alias))]
        for one in parts:
            line = sql.SQL("    {}" if one.is_column else "    {} AS {}")
            lines.append(line.format(one.expression, *(() if one.is_column else (self._name(one.name),))))
        body = sql.SQL(",\n").join(lines)
        query = sql.SQL("SELECT\n{}\nFROM {} AS {}\n").format(body, sql.SQL(self.table.relation), self._name(alias))
        return title + notes + query.as_string(self.connection)


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isidentifier() and name == name.lower()


def _one_line(text: str) -> str:
    """As a comment may have it."""
    return " ".join(text.split())


def _built(parts: Sequence[_Part]) -> sql.Composable:
    """An object of these fields."""
    pieces = [parts[place : place + _PAIRS_MAX] for place in range(0, len(parts), _PAIRS_MAX)] or [[]]
    return sql.SQL(" || ").join(_built_at_once(some) for some in pieces)


def _built_at_once(parts: Sequence[_Part]) -> sql.Composable:
    pairs = [sql.SQL("{}, {}").format(sql.Literal(one.name), one.expression) for one in parts]
    return sql.SQL("jsonb_build_object(\n            {}\n        )").format(sql.SQL(",\n            ").join(pairs))


def _properties(parts: Sequence[_Part]) -> dict[str, Any]:
    return {one.name: one.mapping for one in parts}


def _count(properties: dict[str, Any]) -> int:
    return sum(1 + _count(one.get("properties", {})) + _count(one.get("fields", {})) for one in properties.values())


def _index_body(parts: Sequence[_Part]) -> dict[str, Any]:
    properties = _properties(parts)
    settings: dict[str, Any] = {"number_of_shards": 1}
    many = _count(properties)
    if many > _FIELDS_MAX:
        settings["mapping.total_fields.limit"] = many + _FIELDS_MAX
    return {"settings": settings, "mappings": {"dynamic": "strict", "properties": properties}}
