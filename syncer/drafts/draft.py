"""Draft: the SELECT of a table, with what is asked for.

A document shows the columns of its table, and each row that a foreign key refers to as an object of its key and its
names. Tables that refer to it are added on request, at any depth. What each becomes is one of these:

    a reference                   an object; an array if it is temporal
    rows that refer               an array, in the order of a column that is made for it; an object if there is one
    translations, keys and values an object by locale, or by key
    rows behind a link table      an array, in the order of the link

Rows that are deleted softly, and drafts, are left out.

Guarantee: different rows have different ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from psycopg import errors as pg, sql

from syncer.base.postgres import value
from syncer.drafts import naming, rules
from syncer.drafts.catalogue import Catalogue, Column, Reference, Table, as_indexed, listed, unquoted
from syncer.drafts.naming import Branch, Tree

_LINE_CHARACTERS_MAX = 90
_COLUMNS_WITHOUT_LABEL_MAX = 8
"""A row that has no name is shown whole if it has no more columns; else its key is all that is shown."""
_PAIRS_MAX = 50
"""How many fields jsonb_build_object takes at once: a function has at most 100 arguments."""
_INDENT = "    "
_LINE = re.compile(r"""\"(?:[^"]|"")*"|'(?:[^']|'')*'|\n""")
"""A name, a text, or the end of a line: one inside a name is none."""
_NO_COLON = frozenset({"int2", "int4", "int8", "uuid", "numeric", "date", "timestamp", "timestamptz", "bool"})
"""Types whose text in a key has no colon."""
_NOT_IN_FIELDS = re.compile(r"[^\w$@ -]")
_SCHEMA_OF_POSTGIS = """
SELECT CASE WHEN pg_type_is_visible(t.oid) THEN '' ELSE quote_ident(n.nspname) || '.' END
FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE t.typname = 'geometry' ORDER BY 1 LIMIT 1
"""
_WITHOUT_ROWS = "deleted rows and drafts are left out by: {}"
_LABELLED = "shown by key and name: {}; --with such a table shows its other columns"
_WITHOUT_COLUMNS = "left out as bookkeeping, personal or secret by name (--columns takes all): {}"
_UNREADABLE = "left out, since this role may not read it: {}"
_BY_NAME = "joined by name, without a foreign key: {}"
_POLYMORPHIC = "{}: may refer to rows of several tables; join those that you need in select.sql"
_MORE = "--with adds rows of: {}"
_BY_ID = "documents are found by _id with: {}"
_NOT_BY_ID = "_id is made of a type whose text no index can find, so loads are slow; a key of its own is faster"


class _Field(NamedTuple):
    """A field of a draft, and its expression in the SELECT."""

    name: str
    expression: str


class _Row(NamedTuple):
    """The row of a table in a query: a document, one that is shown inside, or its key and label alone.

    If it is one of those that refer to another row, ``parent`` is their reference.
    """

    table: Table
    alias: str
    role: Literal["document", "row", "label"]
    parent: Reference | None = None


@dataclass
class Drafter:
    """Drafts the SELECT of a table."""

    catalogue: Catalogue
    has_all_columns: bool = False
    is_for_opensearch: bool = False
    _aliases: set[str] = field(default_factory=set)
    _tenants: set[tuple[frozenset[str], Table]] = field(default_factory=set)
    _notes: dict[str, dict[str, None]] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """What to know of the draft, one line each."""
        return [remark.format(", ".join(subjects)) for remark, subjects in self._notes.items()]

    def _note(self, remark: str, subject: str = "") -> None:
        self._notes.setdefault(remark, {})[subject] = None

    def select(self, table: Table, paths: Sequence[str]) -> str:
        """Return the SELECT of a table, with the rows that paths of --with name."""
        table.require_key()
        tree: Tree = {}
        for path in paths:
            naming.add_branches(tree, table, unquoted(path), path)
        row = self._row(table, "document")
        if not self.has_all_columns:
            own = (reference for reference in table.references if rules.TENANTS.search(naming.name_of(reference)))
            self._tenants = {(reference.columns, reference.to) for reference in own}
        columns = [f"{self.id_of(table, row.alias)} AS _id"]
        for name, expression in _renamed(self._fields(row, tree)):
            is_column = expression == self._sql(row.alias, name)
            columns.append(expression if is_column else f"{expression} AS {self._sql(name)}")
        condition = _where_clause(self._conditions_on(row))
        declared = {name for reference in table.references for name in reference.columns}
        for id_, type_ in table.polymorphic.items():
            if id_ not in declared:
                self._note(_POLYMORPHIC, f"{type_}, {id_}")
        drawn = {branch.down for branch in tree}
        if more := dict.fromkeys(down.table.relation for down in table.referring if down not in drawn):
            self._note(_MORE, listed([*more]))
        return f"SELECT\n{_lines(columns)}\nFROM {table.relation} AS {row.alias}{condition}\n"

    # What is shown of a row

    def _fields(self, row: _Row, tree: Tree) -> list[_Field]:
        """Return the columns of a row, the rows that it refers to, and what is asked for."""
        table, columns, children = row.table, dict(self._columns(row)), list[_Field]()
        for reference in table.references if row.role != "label" else ():
            is_private = not (self.has_all_columns or reference.columns.isdisjoint(naming.private_columns(table)))
            if is_private or reference is row.parent or reference in table.guards:
                continue
            if row.role != "document" and (reference.columns, reference.to) in self._tenants:
                columns = {name: expression for name, expression in columns.items() if name not in reference.columns}
                continue
            branch = Branch(None, reference)
            child = self._child(row, branch, tree.get(branch), columns.keys())
            children += child
            # The object has the key, unless the reference is to other columns, or to rows of a period.
            if child and not reference.is_temporal and {to for _, to in reference.pairs} <= {*reference.to.key}:
                for name in reference.columns.difference(table.key if row.role == "document" else ()):
                    columns.pop(name, None)
        for branch, inside in tree.items():
            children += self._child(row, branch, inside) if branch.down else []
        return [*map(_Field._make, columns.items()), *children]

    def _columns(self, row: _Row) -> Iterator[_Field]:
        """Yield the columns that are shown of a row."""
        table, point = row.table, [name for axis in ("lat", "lon") for name in row.table.of_kind(axis)[:1]]
        has_point = len(point) > 1 and row.role != "label"
        hidden = self._hidden(row).union(point if has_point else (), row.parent.columns if row.parent else ())
        private = set() if self.has_all_columns else naming.private_columns(table)
        for column in (column for name, column in table.columns.items() if name not in hidden):
            if reason := next((reason for types, reason in rules.LEFT_OUT if types.search(column.type.name)), None):
                self._note(f"left out, since {reason}: {{}}", f"{table.name}.{column.name}")
            elif column.name in private:
                self._note(_WITHOUT_COLUMNS, f"{table.name}.{column.name}")
            else:
                yield _Field(column.name, self._shown(row, column))
        if has_point:
            lat, lon = (self._sql(row.alias, name) for name in point)
            exists = f"{lat} IS NOT NULL AND {lon} IS NOT NULL"
            yield _Field("location", f"CASE WHEN {exists} THEN jsonb_build_object('lat', {lat}, 'lon', {lon}) END")

    def _hidden(self, row: _Row) -> set[str]:
        """Return the columns that a row's place in the document says already, or that say nothing there."""
        table, key = row.table, {*row.table.key}
        if self.has_all_columns:
            return set()
        conditional = {name for name in naming.condition_columns(table) if table.columns[name].kind != "published_on"}
        if row.role == "document":
            return conditional | (key if len(key) == 1 else set())
        hidden = {*table.of_kind("changed")}
        if row.role == "row":
            return hidden.union(conditional, table.of_kind("order")[:1]) - key
        hidden = hidden.union(*(reference.columns for reference in table.references))
        labels = naming.label_columns(table) - hidden
        if labels or len(table.columns.keys() - hidden) > _COLUMNS_WITHOUT_LABEL_MAX:
            hidden = {*table.columns} - labels
            if hidden - key:
                self._note(_LABELLED, table.relation)
        return hidden - key

    def _shown(self, row: _Row, column: Column) -> str:
        template = rules.CASTS.get(column.type.name, "{0}")
        template = "{0}" if column.type.is_array and "(" in template else template
        schema = value(self.catalogue.connection, _SCHEMA_OF_POSTGIS) if "{2}" in template else ""
        return template.format(self._sql(row.alias, column.name), "[]" if column.type.is_array else "", schema)

    # Rows inside others

    def _child(self, outer: _Row, branch: Branch, tree: Tree | None, columns: Iterable[str] = ()) -> list[_Field]:
        """Return the rows at the end of a branch as a field, unless a column of ``outer`` says as much.

        There is no tree if they are not asked for.
        """
        down, up = branch
        if up and not down and up.to.missing_grant:
            self._note(_UNREADABLE, up.to.relation)
            return []
        rows, sources, conditions = [outer], list[str](), list[str]()
        for reference in filter(None, branch):
            table = (reference.to if reference is up else reference.table).readable()
            is_whole = reference is down or (tree if down else tree is not None)
            row = self._row(table, "row" if is_whole else "label", None if reference is up else down)
            joined = self._joined(row, rows[-1], reference)
            sources.append(f"{table.relation} AS {row.alias}" + (f" ON {joined}" if sources else ""))
            conditions += [*([] if len(sources) > 1 else [joined]), *(self._conditions_on(row) if down else [])]
            rows.append(row)
        fields, nearest = self._fields(row, tree or {}), rows[1]
        locale, is_array = None, True
        if down and up:
            is_self = up.to is outer.table
            name = rules.plural(naming.name_of(up)) if is_self else naming.name_of_rows(up.to, down)
            fields += self._texts(nearest)
        elif up:
            # What is part of both keys, such as a tenant, is said by the outer row itself.
            shared = {to for column, to in up.pairs if len(up.pairs) > 1 and column in outer.table.key}
            fields = [shown for shown in fields if shown.name not in shared]
            if tree is None and {shown.name for shown in fields} <= {*up.to.key} and up.columns <= {*columns}:
                return []
            name, is_array = naming.name_of(up), up.is_temporal
        elif down:
            name, locale = naming.name_of_rows(down.table, down), naming.locale_column(down)
            is_array = down.is_temporal or not down.is_unique
            name = name if is_array or locale else rules.singular(name)
        for reference in (reference for reference in branch if reference and reference.is_by_name):
            self._note(_BY_NAME, f"{reference.table.name}.{reference.pairs[0][0]}")
        if locale:
            fields = [shown for shown in fields if shown.name != locale and shown.name not in nearest.table.key]
            json = fields[0].expression if len(fields) == 1 else self._json(fields)
            json = f"coalesce(jsonb_object_agg({self._sql(row.alias, locale)}, {json}), '{{}}'::jsonb)"
        elif is_array:
            order = ", ".join(self._order(nearest, row, branch))
            json = f"coalesce(jsonb_agg({self._json(fields)} ORDER BY {order}), '[]'::jsonb)"
        else:
            json = self._json(fields)
        query = f"SELECT {json}\nFROM {f'{chr(10)}JOIN '.join(sources)}{_where_clause(conditions)}"
        return [_Field(name, f"(\n{_indented(query)}\n)")]

    def _texts(self, link: _Row) -> list[_Field]:
        """Return what a link says of itself: as what it links."""
        table = link.table
        hidden = naming.private_columns(table).union(table.key, *(reference.columns for reference in table.references))
        columns = [column for name, column in table.columns.items() if name not in hidden]
        return [_Field(column.name, self._shown(link, column)) for column in columns if column.type.name in rules.TEXTS]

    def _order(self, nearest: _Row, farthest: _Row, branch: Branch) -> Iterator[str]:
        """Yield what the rows of an array are ordered by: the order column, and what else tells them apart."""
        table = nearest.table
        linked = {name for reference in branch if reference and branch.down for name in reference.columns}
        key = table.key or [name for name, column in table.columns.items() if column.type.name != "json"]
        names = dict.fromkeys([*table.of_kind("order")[:1], *(name for name in key if name not in linked)])
        yield from (self._sql(nearest.alias, name) for name in names)
        if branch.up and linked.issuperset(table.key):
            yield from (self._sql(farthest.alias, name) for name in farthest.table.key)

    def _conditions_on(self, row: _Row) -> list[str]:
        """Return the conditions on the rows that are shown, spelled as the table's partial indexes have them."""
        conditions, predicates = [], " ".join(f"({predicate})" for predicate in row.table.predicates)
        for column in (row.table.columns[name] for name in naming.condition_columns(row.table)):
            name, spellings = self._sql(column.name), rules.CONDITIONS[column.kind]
            indexed = [spelling for spelling in spellings if f"({spelling.format(name)})" in predicates]
            spelling = (indexed or [spellings[0 if column.is_required else -1]])[0]
            conditions.append(spelling.format(f"{row.alias}.{name}"))
            self._note(_WITHOUT_ROWS, f"{row.table.name}: {spelling.format(name)}")
        return conditions

    # SQL

    def _row(self, table: Table, role: Literal["document", "row", "label"], parent: Reference | None = None) -> _Row:
        initial = table.name.lstrip("_")[:1].lower()
        alias = _free(initial if initial.isascii() and initial.isalpha() else "t", self._aliases)
        return _Row(table, alias, role, parent)

    def _sql(self, *names: str) -> str:
        """An identifier, quoted where Postgres would quote it."""
        return ".".join(str(value(self.catalogue.connection, "SELECT quote_ident($1)", (name,))) for name in names)

    def _joined(self, row: _Row, outer: _Row, reference: Reference) -> str:
        """Return the condition of a join of a row to the one of the query around it."""
        pairs = [pair if reference is row.parent else pair[::-1] for pair in reference.pairs]
        operators = ["="] * (len(pairs) - 1) + ["&&" if reference.is_temporal else "="]
        return " AND ".join(
            f"{self._sql(row.alias, column)} {operator} {self._sql(outer.alias, outer_column)}"
            for (column, outer_column), operator in zip(pairs, operators, strict=True)
        )

    def _json(self, fields: Iterable[_Field]) -> str:
        """Return an expression for an object of these fields, on one line if it is short."""
        pairs = [f"{sql.quote(name, self.catalogue.connection)}, {expression}" for name, expression in _renamed(fields)]
        line = f"jsonb_build_object({', '.join(pairs)})"
        if len(line) <= _LINE_CHARACTERS_MAX and "\n" not in line:
            return line
        pieces = [pairs[start : start + _PAIRS_MAX] for start in range(0, len(pairs), _PAIRS_MAX)]
        return " || ".join(f"jsonb_build_object(\n{_lines(piece)}\n)" for piece in pieces)

    def id_of(self, table: Table, alias: str) -> str:
        """Return the expression of a row's _id; of several columns, one that an index can find."""
        key = [(self._sql(alias, name), table.columns[name].type.name) for name in table.key]
        if len(key) == 1:
            name, type_ = key[0]
            return f"{name}::text" if type_ == "bpchar" else name
        has_lengths = sum(type_ not in _NO_COLON for _, type_ in key) > 1
        texts = []
        for name, type_ in key:
            # A text may contain a colon: the length before it keeps ids of different keys different.
            if has_lengths and type_ not in _NO_COLON:
                texts.append(f"length({name}::text)::text")
            texts.append(rules.KEY_TEXTS.get(type_, "{0}::text").format(name))
        expression = " || ':' || ".join(texts)
        of_table = expression.replace(f"{self._sql(alias)}.", "")
        # The role may lack the privilege for a type of the table.
        with suppress(pg.InsufficientPrivilege):
            indexed = as_indexed(self.catalogue.connection, table.relation, of_table)
            if indexed is None:
                self._note(_NOT_BY_ID)
            elif not indexed[1]:
                self._note(_BY_ID, f"CREATE INDEX ON {table.relation} (({of_table}))")
        return expression


def _where_clause(conditions: Iterable[str]) -> str:
    joined = " AND ".join(conditions)
    return f"\nWHERE {joined}" if joined else ""


def _renamed(fields: Iterable[_Field]) -> list[_Field]:
    """Give the fields of an object names that Elasticsearch accepts: their own ones, if possible.

    A dot would be a step into an object, and Elasticsearch reserves names that begin with an underscore.
    """
    names: set[str] = set()
    plain = [(_NOT_IN_FIELDS.sub("_", name).strip().lstrip("_") or "column", expression) for name, expression in fields]
    return [_Field(_free(name, names), expression) for name, expression in plain]


def _free(name: str, names: set[str]) -> str:
    """Return the name, with a number if it is taken, and take it."""
    free, number = name, 1
    while free in names:
        number += 1
        free = f"{name}_{number}"
    names.add(free)
    return free


def _lines(items: Iterable[str]) -> str:
    return _indented(",\n".join(items))


def _indented(query: str) -> str:
    return _INDENT + _LINE.sub(lambda match: f"\n{_INDENT}" if match[0] == "\n" else match[0], query)
