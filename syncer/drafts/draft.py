"""Draft: the SELECT of a table, with what is asked for.

A document shows the columns of its table, and each row that a foreign key refers to as an object of its key and its
names. Tables that refer to it are added on request, at any depth: as arrays of rows, link tables as arrays of the rows
behind them, and tables of translations as objects by locale. Arrays are in the order of a column that is made for it.
Rows that are deleted softly, and drafts, are left out.

Guarantee: different rows have different ids.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from psycopg import errors as pg, sql

from syncer.base.errors import DefinitionError
from syncer.base.postgres import Connection, value
from syncer.drafts import rules
from syncer.drafts.catalogue import Catalogue, Column, Reference, Table, unquoted, without_key

_LISTED_MAX = 20
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
_FRACTIONS = frozenset({"float4", "float8", "numeric"})
_NUMBERS = _FRACTIONS | {"int2", "int4", "int8"}
_DATES = frozenset({"date", "timestamp", "timestamptz"})
_TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "name"})
_NOT_IN_FIELDS = re.compile(r"[^\w$@ -]")
_HAS_SAME = """
SELECT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = $1::oid AND i.indisvalid AND i.indpred IS NULL
               AND pg_get_indexdef(i.indexrelid, 1, true) = pg_get_indexdef('pg_temp.syncer_by_id'::regclass, 1, true))
"""


class _Role(Enum):
    """How the row of a table is shown."""

    DOCUMENT = "document"
    ROW = "row"
    LABEL = "label"


@dataclass(frozen=True, slots=True)
class _Branch:
    """What is asked for: the rows of a reference; those behind a link table, by its second reference; or one row."""

    reference: Reference
    behind: Reference | None = None
    is_one: bool = False

    @property
    def end(self) -> str:
        """The table whose rows are shown."""
        reference = self.behind or self.reference
        return reference.to if self.behind or self.is_one else reference.relation


_Tree = dict[_Branch, "_Tree"]


class _Field(NamedTuple):
    """A field of a draft, and its expression in the SELECT."""

    name: str
    expression: str


class _Row(NamedTuple):
    """The row of a table in a query. If it is one of an array, ``parent`` is its reference to what has the array."""

    table: Table
    alias: str
    role: _Role
    parent: Reference | None = None


@dataclass
class Drafter:
    """Drafts the SELECT of a table; ``remarks`` has what to know of it."""

    connection: Connection
    catalogue: Catalogue
    has_all_columns: bool = False
    _aliases: set[str] = field(default_factory=set)
    _left_out: dict[str, dict[str, None]] = field(default_factory=dict)
    _labelled: dict[str, None] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)
    _conditions: dict[str, None] = field(default_factory=dict)

    def select(self, table: Table, asked: Sequence[str]) -> str:
        """Return the SELECT of a table, with what ``asked`` names: paths of tables that refer to it."""
        if not table.key:
            raise without_key(table.relation)
        tree: _Tree = {}
        for path in asked:
            self._add(tree, table, unquoted(path), path)
        row = self._row(table, _Role.DOCUMENT)
        columns = [f"{self.id_of(table, row.alias)} AS _id"]
        for name, expression in _renamed(self._fields(row, tree)):
            is_column = expression == self._sql(row.alias, name)
            columns.append(expression if is_column else f"{expression} AS {self._sql(name)}")
        conditions = _where(self._conditions_on(row))
        drawn = {branch.reference for branch in tree}
        if more := dict.fromkeys(reference.relation for reference in table.referring if reference not in drawn):
            self._note(f"--with adds rows of: {_listed(more)}")
        return f"SELECT\n{_lines(columns)}\nFROM {table.relation} AS {self._sql(row.alias)}{conditions}\n"

    @property
    def remarks(self) -> list[str]:
        """What to know of the draft, one line each."""
        left_out = "; ".join(f"{table}: {', '.join(names)}" for table, names in self._left_out.items())
        remarks = {
            f"deleted rows and drafts are left out by: {', '.join(self._conditions)}": self._conditions,
            f"shown by key and name: {', '.join(self._labelled)}; --with such a table shows its other columns": (
                self._labelled
            ),
            f"left out as bookkeeping, personal or secret by name (--columns takes all): {left_out}": self._left_out,
        }
        return [*(remark for remark, subjects in remarks.items() if subjects), *self._notes]

    def _note(self, remark: str) -> None:
        self._notes[remark] = None

    # What is asked for

    def _add(self, tree: _Tree, table: Table, path: str, asked: str) -> None:
        """Add the branches that a path of --with names: it begins with the longest name that fits.

        Of the same name, a table that refers comes before one behind a link, and both before the name of a field.
        """
        choices = [choice for choice in self._choices(table) if choice[1]]
        fitting = [
            (-len(name), rank, branch)
            for rank, name, branch in choices
            if name in (path[: len(name)], path[: len(name)].lower()) and path[len(name) :][:1] in ("", ".")
        ]
        if not fitting:
            names = {name for rank, name, _ in choices if rank == 0 and ":" not in name}
            similar = _listed(difflib.get_close_matches(path, sorted(names), len(names) or 1, 0))
            raise DefinitionError(
                f"--with {asked}: {table.relation} has no table or reference {path or repr(path)} to add",
                hint="--with takes tables that refer to it, tables behind links, and references: "
                f"{similar or 'none'}.\n"
                "Add rows of others in select.sql, and run init --from-select.",
            )
        best = min(choice[:2] for choice in fitting)
        for length, rank, branch in fitting:
            if (length, rank) == best:
                inside = tree.setdefault(branch, {})
                if rest_of_path := path[1 - length :]:
                    self._add(inside, self.catalogue.tables[branch.end], rest_of_path, asked)

    def _choices(self, table: Table) -> Iterator[tuple[int, str, _Branch]]:
        """Yield what may be asked for of a table by each of its names, and the rank of that name."""
        for reference in table.referring:
            referring = self.catalogue.tables[reference.relation]
            behind = self._behind(referring, reference)
            for branch in [_Branch(reference, second) for second in behind] or [_Branch(reference)]:
                end = self.catalogue.tables[branch.end]
                for column in ("", *(f":{column}" for column in reference.columns)):
                    names = (referring.name, end.name, unquoted(referring.relation), unquoted(end.relation))
                    yield from ((rank, name + column, branch) for rank, name in enumerate(names))
                yield 4, self._name_of_rows(referring, reference, table), branch
        for reference in table.references:
            end = self.catalogue.tables[reference.to]
            for rank, name in enumerate((self._name_of(reference), end.name, unquoted(end.relation))):
                yield rank, name, _Branch(reference, is_one=True)

    def _behind(self, table: Table, reference: Reference) -> list[Reference]:
        """Return the references to the rows behind a link table, seen from one of its references; none if it is none.

        Besides references, a link has its key, an order and bookkeeping, and if it leads to one of several tables,
        a text that says as what.
        """
        behind = [second for second in table.references if second != reference and second not in table.guards]
        linked = {column for second in table.references for column in second.columns}
        more = [
            column
            for column in table.columns.values()
            if column.name not in linked
            and (column.name,) != table.key
            and not self._is_left_out(table, column)
            and not _is_order(column)
            and not (column.type.name in _DATES and rules.NOTED_ON.search(column.name))
        ]
        is_choice = len(behind) > 1 and not any(
            table.columns[name].is_required for second in behind for name in second.columns
        )
        is_link = not more or (is_choice and len(more) == 1 and more[0].type.name in _TEXTS)
        return behind if is_link and (len(behind) == 1 or is_choice) and not table.referring else []

    # What is shown

    def _fields(self, row: _Row, tree: _Tree) -> list[_Field]:
        """Return the columns of a row, the rows that it refers to, and what is asked for."""
        table, columns, objects = row.table, dict(self._columns(row)), []
        for reference in table.references if row.role is not _Role.LABEL else ():
            if reference == row.parent or reference in table.guards or self._is_bookkeeping(table, reference):
                continue
            inside = tree.get(_Branch(reference, is_one=True))
            if (drawn := self._object(reference, row, columns, inside)) is None:
                continue
            objects.append(drawn)
            # The object has the key, unless the reference is to other columns, or to rows of a period.
            if {column for _, column in reference.pairs} <= {*self.catalogue.tables[reference.to].key}:
                own_key = table.key if row.role is _Role.DOCUMENT else ()
                for name in reference.columns.difference(own_key) if not reference.is_temporal else ():
                    columns.pop(name, None)
        arrays = [self._array(branch, inside, row) for branch, inside in tree.items() if not branch.is_one]
        return [*map(_Field._make, columns.items()), *objects, *arrays]

    def _columns(self, row: _Row) -> Iterator[_Field]:
        """Yield the columns that are shown of a row."""
        table, point = row.table, _point(row.table) if row.role is not _Role.LABEL else ()
        hidden = self._hidden(row) | {*point} | (row.parent.columns if row.parent else set())
        for name, column in table.columns.items():
            if name in hidden:
                continue
            if column.type.name in rules.LEFT_OUT:
                self._note(f"{table.name}.{name} is left out: {rules.LEFT_OUT[column.type.name]}")
            elif self._is_left_out(table, column):
                self._left_out.setdefault(table.name, {})[name] = None
            else:
                yield self._column(row, column)
            id_ = re.sub(r"_type$", "_id", re.sub(r"Type$", "Id", name))
            if row.role is _Role.DOCUMENT and id_ != name and id_ in table.columns and not _refers(table, id_):
                self._note(
                    f"{name}, {id_}: may refer to rows of several tables; join those that you need in select.sql"
                )
        if point:
            lat, lon = (self._sql(row.alias, name) for name in point)
            exists = f"{lat} IS NOT NULL AND {lon} IS NOT NULL"
            yield _Field("location", f"CASE WHEN {exists} THEN jsonb_build_object('lat', {lat}, 'lon', {lon}) END")

    def _hidden(self, row: _Row) -> set[str]:
        """Return the columns that a row's place in the document says already, or that say nothing there."""
        table = row.table
        if self.has_all_columns:
            return set()
        if row.role is _Role.DOCUMENT:
            return self._conditional(table) | {*(table.key if len(table.key) == 1 else ())}
        hidden = {name for name in table.columns if rules.CHANGED.search(name) or name.startswith("_")}
        if row.role is _Role.ROW:
            order = _order(table)
            return (hidden | self._conditional(table) | {order or ""}) - {*table.key}
        hidden |= {name for name in table.columns if _refers(table, name)}
        labels = {name for name, column in table.columns.items() if self._is_label(table, column)} - hidden
        if labels or len(table.columns.keys() - hidden) > _COLUMNS_WITHOUT_LABEL_MAX:
            hidden = {*table.columns} - labels
            self._labelled |= dict.fromkeys([table.relation] if hidden - {*table.key} else [])
        return hidden - {*table.key}

    def _conditional(self, table: Table) -> set[str]:
        return {name for name, _ in _conditions_of(table) if not rules.PUBLISHED_ON.search(name)}

    def _column(self, row: _Row, column: Column) -> _Field:
        expression, template = self._sql(row.alias, column.name), rules.CASTS.get(column.type.name, "{0}")
        if column.type.is_array and "(" in template:
            return _Field(column.name, expression)
        return _Field(column.name, template.format(expression, "[]" if column.type.is_array else ""))

    def _object(
        self, reference: Reference, outer: _Row, columns: Mapping[str, str], tree: _Tree | None
    ) -> _Field | None:
        """Return the row that a reference leads to; an array of them if it is temporal; None if its key says it all."""
        target = self.catalogue.tables[reference.to]
        if not target.may_read:
            self._note(f"{reference.to} is left out: this role may not read it")
            return None
        row = self._row(target, _Role.LABEL if tree is None else _Role.ROW)
        # What is part of both keys, such as a tenant, is said by the row itself.
        is_shared = len(reference.pairs) > 1
        shared = {other for column, other in reference.pairs if is_shared and column in outer.table.key}
        fields = [drawn for drawn in self._fields(row, tree or {}) if drawn.name not in shared]
        if tree is None and {drawn.name for drawn in fields} <= {*target.key} and reference.columns <= columns.keys():
            return None
        shown = self._json(fields)
        if reference.is_temporal:
            shown = _aggregated(shown, [self._sql(row.alias, name) for name in target.key])
        names = (self._name_of(reference), target.name)
        taken = {*columns} - reference.columns
        taken |= {self._name_of(sibling) for sibling in outer.table.references if sibling is not reference}
        name = next((name for name in names if name not in taken), names[0])
        pairs = [(other, column) for column, other in reference.pairs]
        return _Field(name, self._query(shown, row, [self._joined(row, outer, pairs, reference)]))

    def _array(self, branch: _Branch, tree: _Tree, outer: _Row) -> _Field:
        """Return the rows that refer: an array, one object if there is at most one, or an object by locale."""
        reference = branch.reference
        row = self._row(self.catalogue.readable(self.catalogue.tables[reference.relation]), _Role.ROW, reference)
        conditions = [self._joined(row, outer, reference.pairs, reference), *self._conditions_on(row)]
        if branch.behind is not None:
            return self._linked(row, branch.behind, tree, outer, conditions)
        name, fields = self._name_of_rows(row.table, reference, outer.table), self._fields(row, tree)
        if (locale := _locale(row.table, reference)) is not None:
            fields = [drawn for drawn in fields if drawn.name != locale and drawn.name not in row.table.key]
            json = fields[0].expression if len(fields) == 1 else self._json(fields)
            json = f"coalesce(jsonb_object_agg({self._sql(row.alias, locale)}, {json}), '{{}}'::jsonb)"
        elif reference.is_unique and not reference.is_temporal:
            name, json = _singular(name), self._json(fields)
        else:
            key = row.table.key or [n for n, column in row.table.columns.items() if column.type.name != "json"]
            json = _aggregated(self._json(fields), self._sorted(row, key, reference.columns))
        return _Field(name, self._query(json, row, conditions))

    def _linked(self, link: _Row, behind: Reference, tree: _Tree, outer: _Row, conditions: list[str]) -> _Field:
        """Return the rows behind a link table."""
        assert link.parent is not None
        table, end = link.table, self.catalogue.readable(self.catalogue.tables[behind.to])
        row = self._row(end, _Role.ROW if tree else _Role.LABEL)
        linked = link.parent.columns | behind.columns
        hidden = {*table.key}.union(*(reference.columns for reference in table.references))
        fields = self._fields(row, tree) + [
            self._column(link, column)
            for column in table.columns.values()
            if column.name not in hidden and column.type.name in _TEXTS and not self._is_left_out(table, column)
        ]
        order = self._sorted(link, table.key, linked)
        if not {*table.key} - linked:
            order += [self._sql(row.alias, name) for name in end.key]
        pairs = [(other, column) for column, other in behind.pairs]
        join = f"\nJOIN {end.relation} AS {self._sql(row.alias)} ON {self._joined(row, link, pairs, behind)}"
        name = self._name_of_rows(end, link.parent, outer.table)
        if end.relation == outer.table.relation:
            name = _plural(self._name_of(behind))
        json = _aggregated(self._json(fields), order)
        return _Field(name, self._query(json, link, [*conditions, *self._conditions_on(row)], join))

    # What the rules say of a table

    def _is_left_out(self, table: Table, column: Column) -> bool:
        if self.has_all_columns or column.name in table.key:
            return False
        is_personal = column.type.name != "bool" and rules.PERSONAL.search(column.name)
        return bool(is_personal or rules.BOOKKEEPING.search(column.name))

    def _is_bookkeeping(self, table: Table, reference: Reference) -> bool:
        """Whether a reference is left out; then it is noted."""
        names = [name for name in reference.columns - {*table.key} if rules.BOOKKEEPING.search(name)]
        if self.has_all_columns or not names:
            return False
        self._left_out.setdefault(table.name, {}).update(dict.fromkeys(names))
        return True

    def _is_label(self, table: Table, column: Column) -> bool:
        is_text = column.type.name in _TEXTS and not column.type.is_array
        return is_text and bool(rules.LABEL.search(column.name)) and not self._is_left_out(table, column)

    def _sorted(self, row: _Row, key: Iterable[str], linked: frozenset[str]) -> list[str]:
        """Return what the rows of an array are ordered by: the order column, and the rest of the key."""
        order = _order(row.table)
        names = dict.fromkeys([*([order] if order else []), *(name for name in key if name not in linked)])
        return [self._sql(row.alias, name) for name in names]

    def _conditions_on(self, row: _Row) -> list[str]:
        """Return the conditions on the rows that are shown, spelled as the table's partial indexes have them."""
        conditions, predicates = [], " ".join(f"({predicate})" for predicate in row.table.predicates)
        for name, spellings in _conditions_of(row.table):
            indexed = [text for text in spellings if f"({text.format(self._sql(name))})" in predicates]
            spelling = (indexed or spellings)[0]
            conditions.append(spelling.format(self._sql(row.alias, name)))
            self._conditions[f"{row.table.name}: {spelling.format(self._sql(name))}"] = None
        return conditions

    # Names

    def _name_of(self, reference: Reference) -> str:
        """Return ``user`` for ``user_id``, ``area`` for ``area``; the table's name if several columns do not tell."""
        is_single = len(reference.pairs) == 1
        column = reference.pairs[0 if is_single or reference.is_temporal else -1][0]
        name = rules.KEY_SUFFIX.sub("", column)
        if not name or (not is_single and name == column):
            return self.catalogue.tables[reference.to].name
        return _plural(name) if reference.is_temporal else name

    def _name_of_rows(self, table: Table, reference: Reference, parent: Table) -> str:
        """Return ``lines`` for rows of ``order_line`` in an order; told apart by column if several references lead."""
        name = table.name
        for prefix in (parent.name, _singular(parent.name), parent.name.partition("_")[0]):
            if name.lower().startswith(f"{prefix}_".lower()) and len(name) > len(prefix) + 1:
                name = name[len(prefix) + 1 :]
                break
        name = _plural(name[0].lower() + name[1:])
        is_several = [sibling.relation for sibling in parent.referring].count(table.relation) > 1
        return f"{name}_{reference.pairs[0][0]}" if is_several else name

    def _row(self, table: Table, role: _Role, parent: Reference | None = None) -> _Row:
        initial = table.name.lstrip("_")[:1].lower()
        alias = _free(initial if initial.isascii() and initial.isalpha() else "t", self._aliases)
        return _Row(table, alias, role, parent)

    def _sql(self, *names: str) -> str:
        """An identifier, quoted where Postgres would quote it."""
        return ".".join(str(value(self.connection, "SELECT quote_ident($1)", (name,))) for name in names)

    # SQL

    def _joined(self, row: _Row, outer: _Row, pairs: Sequence[tuple[str, str]], reference: Reference) -> str:
        """Return the condition of a join: pairs are columns of a row, and equal ones of the query around it."""
        operators = ["="] * (len(pairs) - 1) + ["&&" if reference.is_temporal else "="]
        return " AND ".join(
            f"{self._sql(row.alias, column)} {operator} {self._sql(outer.alias, outer_column)}"
            for operator, (column, outer_column) in zip(operators, pairs, strict=True)
        )

    def _query(self, shown: str, row: _Row, conditions: Iterable[str], join: str = "") -> str:
        source = f"{row.table.relation} AS {self._sql(row.alias)}{join}"
        return f"(\n{_indented(f'SELECT {shown}{chr(10)}FROM {source}{_where(conditions)}')}\n)"

    def _json(self, fields: Iterable[_Field]) -> str:
        """Return an expression for an object of these fields, on one line if it is short."""
        pairs = [f"{sql.quote(name, self.connection)}, {expression}" for name, expression in _renamed(fields)]
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
        self._note_index(table, expression.replace(f"{self._sql(alias)}.", ""))
        return expression

    def _note_index(self, table: Table, expression: str) -> None:
        """Say which index finds documents by a composed _id, unless there is one; it is tried on an empty copy."""
        try:
            with self.connection.transaction(force_rollback=True):
                self.connection.execute(sql.SQL(f"CREATE TEMPORARY TABLE syncer_copy (LIKE {table.relation})"))
                self.connection.execute(sql.SQL(f"CREATE INDEX syncer_by_id ON syncer_copy (({expression}))"))
                if not value(self.connection, _HAS_SAME, (table.oid,)):
                    self._note(f"documents are found by _id with: CREATE INDEX ON {table.relation} (({expression}))")
        except pg.InvalidObjectDefinition:
            self._note(
                "_id is made of a type whose text no index can find, so loads are slow; a key of its own is faster"
            )
        except pg.InsufficientPrivilege:
            pass


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join([*listed[:_LISTED_MAX], *(["…"] if len(listed) > _LISTED_MAX else [])])


def _refers(table: Table, name: str) -> bool:
    return any(name in reference.columns for reference in table.references) and name not in table.key


def _is_order(column: Column) -> bool:
    return column.type.name in _NUMBERS and bool(rules.ORDER.search(_snake(column.name)))


def _order(table: Table) -> str | None:
    return next((column.name for column in table.columns.values() if _is_order(column)), None)


def _locale(table: Table, reference: Reference) -> str | None:
    """Return the column that tells the rows of a parent apart, if they are translations, or keys with one value."""
    for unique in table.unique:
        different = [table.columns[name] for name in unique - reference.columns]
        if reference.columns <= unique and len(different) == 1 and different[0].is_required:
            name, others = different[0].name, table.columns.keys() - unique - {*table.key}
            if rules.LOCALE.search(name) or (rules.KEY.search(name) and len(others) == 1):
                return name
    return None


def _conditions_of(table: Table) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the columns that tell rows to leave out, and the ways to spell what holds for the others."""
    published: list[tuple[str, tuple[str, ...]]] = []
    for column in table.columns.values():
        name, type_ = _snake(column.name), column.type.name
        if type_ in _DATES and rules.DELETED_ON.search(name):
            yield column.name, ("{0} IS NULL",)
        elif type_ == "bool" and rules.DELETED.search(name):
            yield column.name, rules.IS_NOT_SET if column.is_required else rules.IS_NOT_SET[::-1]
        elif type_ == "bool" and rules.PUBLISHED.search(name):
            published.insert(0, (column.name, rules.IS_SET))
        elif rules.PUBLISHED_LABEL in column.type.labels:
            published.insert(0, (column.name, (f"{{0}} = '{rules.PUBLISHED_LABEL}'",)))
        elif type_ in _DATES and rules.PUBLISHED_ON.search(name):
            published.append((column.name, ("{0} IS NOT NULL",)))
    yield from published[:1]


def _point(table: Table) -> tuple[str, ...]:
    """Return the columns of a latitude and a longitude, in degrees: integers are of another unit."""
    names = [column.name for column in table.columns.values() if column.type.name in _FRACTIONS]
    points = [[name for name in names if axis.search(name)] for axis in (rules.LATITUDE, rules.LONGITUDE)]
    return tuple(axis[0] for axis in points) if all(points) else ()


def _aggregated(json: str, order: Sequence[str]) -> str:
    return f"coalesce(jsonb_agg({json} ORDER BY {', '.join(order)}), '[]'::jsonb)"


def _where(conditions: Iterable[str]) -> str:
    joined = " AND ".join(conditions)
    return f"\nWHERE {joined}" if joined else ""


def _renamed(fields: Iterable[_Field]) -> list[_Field]:
    """Give the fields of an object names that Elasticsearch accepts: their own ones, if possible.

    A dot would be a step into an object, and Elasticsearch reserves names that begin with an underscore.
    """
    names: set[str] = set()
    plain = [(_NOT_IN_FIELDS.sub("_", drawn.name).strip().lstrip("_") or "column", drawn) for drawn in fields]
    return [_Field(_free(name, names), drawn.expression) for name, drawn in plain]


def _free(name: str, names: set[str]) -> str:
    """Return the name, with a number if it is taken, and take it."""
    free, number = name, 1
    while free in names:
        number += 1
        free = f"{name}_{number}"
    names.add(free)
    return free


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


def _singular(name: str) -> str:
    return f"{name[:-3]}y" if name.endswith("ies") else name[:-1] if name.endswith("s") and name[-2:] != "ss" else name


def _plural(name: str) -> str:
    if any(word != _singular(word) for word in _snake(name).split("_")):
        return name
    if re.search(r"[^aeiou]y$", name):
        return f"{name[:-1]}ies"
    return f"{name}es" if re.search(r"(s|x|z|ch|sh)$", name) else f"{name}s"


def _lines(items: Iterable[str]) -> str:
    return _indented(",\n".join(items))


def _indented(query: str) -> str:
    return _INDENT + _LINE.sub(lambda match: f"\n{_INDENT}" if match[0] == "\n" else match[0], query)
