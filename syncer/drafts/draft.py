"""Draft: the SELECT of a table, with what is asked for.

A document shows the columns of its table, and each row that a foreign key refers to as an object of its key and its
names. Tables that refer to it are added on request, at any depth: as arrays of rows, link tables as arrays of the rows
behind them, and tables of translations as objects by locale. Arrays are in the order of a column that is made for it.
Rows that are deleted softly, and drafts, are left out.

Guarantee: different rows have different ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from psycopg import errors as pg, sql

from syncer.base.errors import DefinitionError
from syncer.base.postgres import Connection, value
from syncer.drafts import rules
from syncer.drafts.catalogue import Catalogue, Column, Reference, Table, without_key

_SUGGESTED_MAX = 20
_INDENT = "    "
_LINE = re.compile(r"""\"(?:[^"]|"")*"|'(?:[^']|'')*'|\n""")
"""A name, a text, or the end of a line: one inside a name is none."""
_LINE_CHARACTERS_MAX = 90
_PAIRS_MAX = 50
"""How many fields jsonb_build_object takes at once: a function has at most 100 arguments."""
_NO_COLON = frozenset({"int2", "int4", "int8", "uuid", "numeric", "date", "timestamp", "timestamptz", "bool"})
"""Types whose text in a key has no colon."""
_NUMBERS = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric"})
_DATES = frozenset({"date", "timestamp", "timestamptz"})
_TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "name"})
_NOT_IN_FIELDS = re.compile(r"[^\w$@ -]")
_HAS_SAME = """
SELECT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = $1::oid AND i.indisvalid AND i.indpred IS NULL
               AND pg_get_indexdef(i.indexrelid, 1, true) = pg_get_indexdef('pg_temp.syncer_by_id'::regclass, 1, true))
"""
_STEP = re.compile(r'((?:"(?:[^"]|"")+"|[^".:]+))(?::((?:"(?:[^"]|"")+"|[^".:]+)))?\.?')
"""A step of --with: a name, and perhaps a column."""


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


_Tree = dict[_Branch, "_Tree"]


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a draft, and its expression in the SELECT."""

    name: str
    expression: str


@dataclass
class Drafter:
    """Drafts the SELECT of a table; ``remarks`` has what to know of it."""

    connection: Connection
    catalogue: Catalogue
    has_all_columns: bool = False
    _aliases: set[str] = field(default_factory=set)
    _left_out: dict[str, dict[str, None]] = field(default_factory=dict)
    _named: dict[str, None] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)
    _conditions: dict[str, None] = field(default_factory=dict)

    def select(self, table: Table, asked: Sequence[str]) -> str:
        """Return the SELECT of a table, with what ``asked`` names: paths of tables that refer to it."""
        if not table.key:
            raise without_key(table.relation)
        tree: _Tree = {}
        for path in asked:
            self._add(tree, table, path, path)
        alias = self._alias(table.name)
        fields = _renamed(self._fields(table, alias, _Role.DOCUMENT, tree))
        columns = [f"{self.id_of(table, alias)} AS _id"]
        for shown in fields:
            is_column = shown.expression == self._name(alias, shown.name)
            columns.append(shown.expression if is_column else f"{shown.expression} AS {self._name(shown.name)}")
        conditions = _where(self._kept(table, alias))
        drawn = {branch.reference for branch in tree}
        if more := dict.fromkeys(reference.relation for reference in table.referring if reference not in drawn):
            self._notes[f"--with adds rows of: {_some(more)}"] = None
        return f"SELECT\n{_listed(columns)}\nFROM {table.relation} AS {self._name(alias)}{conditions}\n"

    @property
    def remarks(self) -> list[str]:
        """What to know of the draft, one line each."""
        remarks = []
        if self._conditions:
            remarks.append(f"deleted rows and drafts are left out by: {', '.join(self._conditions)}")
        if self._named:
            remarks.append(
                f"shown by key and name: {', '.join(self._named)}; --with such a table shows its other columns"
            )
        if self._left_out:
            tables = "; ".join(f"{table}: {', '.join(names)}" for table, names in self._left_out.items())
            remarks.append(f"left out as bookkeeping, personal or secret by name (--columns takes all): {tables}")
        return [*remarks, *self._notes]

    # What is asked for

    def _add(self, tree: _Tree, table: Table, path: str, whole: str) -> None:
        """Add the branches that a path of --with names."""
        branches = list(self._branches(table))
        # ``shop.lines`` may be a table in its schema, or a step within a step.
        steps = [match for match in [_STEP.match(path)] if match]
        if steps and (second := _STEP.match(path, steps[0].end())):
            steps.append(second)
        for count in range(len(steps), 0, -1):
            name = ".".join(_unquoted(step[1]) for step in steps[:count])
            chosen = [branch for names, branch in branches if name in names or name.lower() in names]
            if column := steps[count - 1][2]:
                chosen = [branch for branch in chosen if _unquoted(column) in branch.reference.columns]
            if chosen:
                rest = path[steps[count - 1].end() :]
                for branch in chosen:
                    inside = tree.setdefault(branch, {})
                    if rest:
                        self._add(inside, self._table_of(branch), rest, whole)
                return
        known = _some(sorted({names[0] for names, _ in branches}))
        raise DefinitionError(
            f"--with {whole}: {table.relation} has no table or reference {path or repr(path)} to add",
            hint=f"--with takes tables that refer to it, tables behind links, and references: {known or 'none'}.\n"
            "Add rows of others in select.sql, and run init --from-select.",
        )

    def _branches(self, table: Table) -> Iterator[tuple[tuple[str, ...], _Branch]]:
        """Yield what may be asked for of a table, each with the names that it has."""
        for reference in table.referring:
            referring = self.catalogue.table(reference.relation)
            behind = self._behind(referring, reference)
            for second in behind:
                end = self.catalogue.table(second.to)
                yield _names(referring), _Branch(reference, second)
                yield _names(end), _Branch(reference, second)
            if not behind:
                yield _names(referring), _Branch(reference)
        for reference in table.references:
            end = self.catalogue.table(reference.to)
            yield (self._name_of(reference), *_names(end)), _Branch(reference, is_one=True)

    def _table_of(self, branch: _Branch) -> Table:
        if branch.behind is not None:
            return self.catalogue.table(branch.behind.to)
        return self.catalogue.table(branch.reference.to if branch.is_one else branch.reference.relation)

    def _behind(self, table: Table, reference: Reference) -> list[Reference]:
        """Return the references to the rows behind a link table, seen from one of its references; none if it is none.

        Besides references, a link has its key, an order and bookkeeping, and if it leads to one of several tables,
        a text that says as what.
        """
        behind = [second for second in table.references if second not in (reference, *table.guards)]
        linked = {column for second in table.references for column in second.columns}
        more = [
            column
            for column in table.columns.values()
            if column.name not in linked
            and not (column.name in table.key and len(table.key) == 1)
            and not self._is_left_out(table, column)
            and not self._is_order(column)
            and not (column.type.name in _DATES and rules.ADDED.search(column.name))
        ]
        is_choice = len(behind) > 1 and not any(
            table.columns[name].is_required for second in behind for name in second.columns
        )
        is_link = not more or (is_choice and len(more) == 1 and more[0].type.name in _TEXTS)
        return behind if is_link and (len(behind) == 1 or is_choice) and not table.referring else []

    # What is shown

    def _fields(self, table: Table, alias: str, role: _Role, tree: _Tree, but: Reference | None = None) -> list[_Field]:
        """Return the columns of a table's row, the rows that it refers to, and what is asked for."""
        columns = {shown.name: shown for shown in self._columns(table, alias, role, but)}
        objects = []
        if role is not _Role.LABEL:
            for reference in table.references:
                if reference == but or reference in table.guards or not self._is_shown(table, reference):
                    continue
                inside = tree.get(_Branch(reference, is_one=True))
                if (drawn := self._object(table, reference, alias, columns, inside)) is not None:
                    objects.append(drawn)
                    # The object has the key, unless the reference is to other columns, or to rows of a period.
                    has_key = {column for _, column in reference.pairs} <= {*self.catalogue.table(reference.to).key}
                    for name in reference.columns if has_key and not reference.is_temporal else ():
                        if name not in table.key or role is not _Role.DOCUMENT:
                            columns.pop(name, None)
        arrays = [self._array(branch, inside, table, alias) for branch, inside in tree.items() if not branch.is_one]
        return [*columns.values(), *objects, *arrays]

    def _columns(self, table: Table, alias: str, role: _Role, but: Reference | None) -> Iterator[_Field]:
        """Yield the columns that are shown of a table's row."""
        point = _point(table) if role is not _Role.LABEL else None
        parents = but.columns if but is not None else frozenset[str]()
        is_plain_key = role is _Role.DOCUMENT and len(table.key) == 1 and not self.has_all_columns
        labels = [name for name in table.columns if self._is_label(table, name)]
        conditions = {name for name, _ in self._conditions_of(table)} if role is not _Role.LABEL else set()
        order = self._order(table) if role is _Role.ROW else None
        for column in table.columns.values():
            name, type_ = column.name, column.type
            if (is_plain_key and name in table.key) or name in parents or (point and name in point):
                continue
            if not self.has_all_columns and role is _Role.LABEL and labels and name not in (*table.key, *labels):
                self._named[table.relation] = None
                continue
            if not self.has_all_columns and (
                (name in conditions and not rules.PUBLISHED_ON.search(name))
                or (name == order and name not in table.key)
                or (role is not _Role.DOCUMENT and (rules.CHANGED.search(name) or name.startswith("_")))
                or (role is _Role.LABEL and self._refers(table, name))
            ):
                continue
            if type_.name in rules.LEFT_OUT:
                self._notes[f"{table.name}.{name} is left out: {rules.LEFT_OUT[type_.name]}"] = None
            elif self._is_left_out(table, column):
                self._left_out.setdefault(table.name, {})[name] = None
            else:
                yield _Field(name, self._shown(self._name(alias, name), column))
        if point:
            lat, lon = (self._name(alias, name) for name in point)
            there = f"{lat} IS NOT NULL AND {lon} IS NOT NULL"
            yield _Field("location", f"CASE WHEN {there} THEN jsonb_build_object('lat', {lat}, 'lon', {lon}) END")
        if role is _Role.DOCUMENT:
            self._note_pairs(table)

    @staticmethod
    def _shown(expression: str, column: Column) -> str:
        template = rules.CASTS.get(column.type.name, "{0}")
        if column.type.is_array and "(" in template:
            return expression
        return template.format(expression, "[]" if column.type.is_array else "")

    def _note_pairs(self, table: Table) -> None:
        """Say which columns refer to rows of several tables."""
        for name in table.columns:
            id_ = re.sub(r"_type$", "_id", re.sub(r"Type$", "Id", name))
            if id_ != name and id_ in table.columns and not self._refers(table, id_):
                note = f"{name}, {id_}: refer to rows of several tables; join those that you need in select.sql"
                self._notes[note] = None

    def _object(
        self, table: Table, reference: Reference, outer: str, columns: Mapping[str, _Field], tree: _Tree | None
    ) -> _Field | None:
        """Return the row that a reference leads to; an array of them if it is temporal."""
        target = self.catalogue.table(reference.to)
        if not target.may_read:
            self._notes[f"{reference.to} is left out: this role may not read it"] = None
            return None
        names = (self._name_of(reference), target.name)
        reserved = {self._name_of(sibling) for sibling in table.references if sibling is not reference}
        free = [name for name in names if name not in columns.keys() - reference.columns and name not in reserved]
        alias = self._alias(target.name)
        role = _Role.LABEL if tree is None else _Role.ROW
        # What is part of both keys, such as a tenant, is said by the row itself.
        shared = (
            {column for column_here, column in reference.pairs if column_here in table.key}
            if len(reference.pairs) > 1
            else set()
        )
        fields = self._fields(target, alias, role, tree or {})
        shown = self._json(drawn for drawn in fields if drawn.name not in shared)
        if reference.is_temporal:
            shown = _aggregated(shown, [self._name(alias, name) for name in target.key])
        pairs = [(column, column_here) for column_here, column in reference.pairs]
        return _Field(
            (free or names)[0], self._subquery(shown, target, alias, self._joined(alias, outer, pairs, reference))
        )

    def _array(self, branch: _Branch, tree: _Tree, parent: Table, outer: str) -> _Field:
        """Return the rows that refer: an array, one object if there is at most one, or an object by locale."""
        reference = branch.reference
        table = self.catalogue.readable(self.catalogue.table(reference.relation))
        alias = self._alias(table.name)
        condition = self._joined(alias, outer, reference.pairs, reference)
        if branch.behind is not None:
            return self._linked(branch, tree, parent, alias, condition)
        name = self._name_of_rows(table, reference, parent)
        kept = self._kept(table, alias)
        if (locale := self._locale(table, reference)) is not None:
            shown = [drawn for drawn in self._fields(table, alias, _Role.ROW, tree, reference) if drawn.name != locale]
            shown = [drawn for drawn in shown if drawn.name not in table.key]
            json = shown[0].expression if len(shown) == 1 else self._json(shown)
            by_locale = f"coalesce(jsonb_object_agg({self._name(alias, locale)}, {json}), '{{}}'::jsonb)"
            return _Field(name, self._subquery(by_locale, table, alias, condition, *kept))
        json = self._json(self._fields(table, alias, _Role.ROW, tree, reference))
        if reference.is_unique and not reference.is_temporal:
            return _Field(_singular(name), self._subquery(json, table, alias, condition, *kept))
        json = _aggregated(json, self._sorted(table, alias, reference))
        return _Field(name, self._subquery(json, table, alias, condition, *kept))

    def _linked(self, branch: _Branch, tree: _Tree, parent: Table, alias: str, condition: str) -> _Field:
        """Return the rows behind a link table."""
        assert branch.behind is not None
        table = self.catalogue.table(branch.reference.relation)
        end = self.catalogue.readable(self.catalogue.table(branch.behind.to))
        inner = self._alias(end.name)
        role = _Role.ROW if tree else _Role.LABEL
        fields = self._fields(end, inner, role, tree)
        columns = {column for reference in table.references for column in reference.columns} | {*table.key}
        fields += [
            _Field(column.name, self._shown(self._name(alias, column.name), column))
            for column in table.columns.values()
            if column.name not in columns and column.type.name in _TEXTS and not self._is_left_out(table, column)
        ]
        order = self._sorted(table, alias, branch.reference, behind=branch.behind)
        keys = [self._name(inner, name) for name in end.key]
        joined = self._joined(
            inner, alias, [(column, link_column) for link_column, column in branch.behind.pairs], branch.behind
        )
        source = f"{table.relation} AS {self._name(alias)}\nJOIN {end.relation} AS {self._name(inner)} ON {joined}"
        where = _where([condition, *self._kept(table, alias), *self._kept(end, inner)])
        is_ordered = bool(order) and not set(table.key) <= branch.reference.columns | branch.behind.columns
        json = _aggregated(self._json(fields), order if is_ordered else [*order, *keys])
        is_self = end.relation == parent.relation
        name = _plural(self._name_of(branch.behind)) if is_self else self._name_of_rows(end, branch.reference, parent)
        return _Field(name, f"(\n{_indented(f'SELECT {json}{chr(10)}FROM {source}{where}')}\n)")

    # What the catalogue says of a table

    def _is_left_out(self, table: Table, column: Column) -> bool:
        if self.has_all_columns or column.name in table.key:
            return False
        if rules.BOOKKEEPING.search(column.name):
            return True
        return column.type.name != "bool" and bool(rules.PERSONAL.search(column.name))

    def _is_shown(self, table: Table, reference: Reference) -> bool:
        if self.has_all_columns:
            return True
        left_out = [name for name in reference.columns if rules.BOOKKEEPING.search(name) and name not in table.key]
        for name in left_out:
            self._left_out.setdefault(table.name, {})[name] = None
        return not left_out

    def _is_label(self, table: Table, name: str) -> bool:
        column = table.columns[name]
        is_text = column.type.name in _TEXTS and not column.type.is_array
        return is_text and bool(rules.LABEL.search(name)) and not self._is_left_out(table, column)

    @staticmethod
    def _refers(table: Table, name: str) -> bool:
        return any(name in reference.columns for reference in table.references) and name not in table.key

    @staticmethod
    def _is_order(column: Column) -> bool:
        return column.type.name in _NUMBERS and bool(rules.ORDER.search(_snake(column.name)))

    def _order(self, table: Table) -> str | None:
        return next((column.name for column in table.columns.values() if self._is_order(column)), None)

    def _sorted(self, table: Table, alias: str, reference: Reference, behind: Reference | None = None) -> list[str]:
        """Return what the rows of an array are ordered by: the order column, and the rest of the key."""
        linked = reference.columns | (behind.columns if behind else frozenset())
        key = [name for name in table.key if name not in linked]
        if not table.key and behind is None:
            key = [name for name, column in table.columns.items() if name not in linked and column.type.name != "json"]
        order = self._order(table)
        return [self._name(alias, name) for name in dict.fromkeys([*([order] if order else []), *key])]

    @staticmethod
    def _locale(table: Table, reference: Reference) -> str | None:
        """Return the column that tells translations of a row apart, if a table has one for each locale."""
        for unique in table.unique:
            rest = unique - reference.columns
            if reference.columns <= unique and len(rest) == 1:
                column = table.columns[next(iter(rest))]
                if rules.LOCALE.search(column.name) and column.is_required:
                    return column.name
        return None

    @staticmethod
    def _conditions_of(table: Table) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the columns that tell rows to leave out, and the ways to say what holds for the others."""
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

    def _kept(self, table: Table, alias: str) -> list[str]:
        """Return the conditions on the rows that are shown, spelled as the table's partial indexes have them."""
        conditions, predicates = [], " ".join(f"({predicate})" for predicate in self.catalogue.predicates(table))
        for name, ways in self._conditions_of(table):
            used = [way for way in ways if f"({way.format(self._name(name))})" in predicates]
            way = (used or ways)[0]
            conditions.append(way.format(self._name(alias, name)))
            self._conditions[f"{table.name}: {way.format(self._name(name))}"] = None
        return conditions

    # Names

    def _name_of(self, reference: Reference) -> str:
        """Return ``user`` for ``user_id``, ``area`` for ``area``; the table's name if several columns do not tell."""
        column = reference.pairs[0 if len(reference.pairs) == 1 or reference.is_temporal else -1][0]
        name = rules.KEY_SUFFIX.sub("", column)
        is_telling = len(reference.pairs) == 1 or name != column
        name = _plural(name) if reference.is_temporal else name
        return name if is_telling and name else self.catalogue.table(reference.to).name

    def _name_of_rows(self, table: Table, reference: Reference, parent: Table) -> str:
        """Return ``lines`` for rows of ``order_line`` in an order; told apart by column if several references lead."""
        name = table.name
        prefixes = [f"{parent.name}_", f"{_singular(parent.name)}_", f"{parent.name.partition('_')[0]}_"]
        for prefix in prefixes:
            if name.lower().startswith(prefix.lower()) and len(name) > len(prefix):
                name = name[len(prefix) :]
                break
        name = _plural(name[0].lower() + name[1:])
        several = [sibling for sibling in parent.referring if sibling.relation == table.relation]
        return f"{name}_{reference.pairs[0][0]}" if len(several) > 1 else name

    def _alias(self, table: str) -> str:
        initial = table.lstrip("_")[:1].lower()
        return _free(initial if initial.isascii() and initial.isalpha() else "t", self._aliases)

    def _name(self, *names: str) -> str:
        """An identifier, quoted where Postgres would quote it."""
        return ".".join(str(value(self.connection, "SELECT quote_ident($1)", (name,))) for name in names)

    # SQL

    def _joined(self, alias: str, outer: str, pairs: Sequence[tuple[str, str]], reference: Reference) -> str:
        """Return the condition of a join: pairs are columns of a table, and equal ones of the query around it."""
        operators = ["="] * (len(pairs) - 1) + ["&&" if reference.is_temporal else "="]
        return " AND ".join(
            f"{self._name(alias, column)} {operator} {self._name(outer, outer_column)}"
            for operator, (column, outer_column) in zip(operators, pairs, strict=True)
        )

    def _subquery(self, shown: str, table: Table, alias: str, *conditions: str) -> str:
        query = f"SELECT {shown}\nFROM {table.relation} AS {self._name(alias)}{_where(conditions)}"
        return f"(\n{_indented(query)}\n)"

    def _json(self, fields: Iterable[_Field]) -> str:
        """Return an expression for an object of these fields, on one line if it is short."""
        pairs = [f"{sql.quote(drawn.name, self.connection)}, {drawn.expression}" for drawn in _renamed(fields)]
        line = f"jsonb_build_object({', '.join(pairs)})"
        if len(line) <= _LINE_CHARACTERS_MAX and "\n" not in line:
            return line
        pieces = [pairs[place : place + _PAIRS_MAX] for place in range(0, len(pairs), _PAIRS_MAX)] or [[]]
        return " || ".join(f"jsonb_build_object(\n{_listed(piece)}\n)" for piece in pieces)

    def id_of(self, table: Table, alias: str) -> str:
        """Return the expression of a row's _id; of several columns, one that an index can find."""
        key = [(self._name(alias, name), table.columns[name].type.name) for name in table.key]
        if len(key) == 1:
            name, type_ = key[0]
            return f"{name}::text" if type_ == "bpchar" else name
        free = [name for name, type_ in key if type_ not in _NO_COLON]
        texts = []
        for name, type_ in key:
            # A text may contain a colon: the length before it keeps ids of different keys different.
            if len(free) > 1 and name in free:
                texts.append(f"length({name}::text)::text")
            texts.append(rules.KEY_TEXTS.get(type_, "{0}::text").format(name))
        expression = " || ':' || ".join(texts)
        self._note_index(table, expression.replace(f"{self._name(alias)}.", ""))
        return expression

    def _note_index(self, table: Table, expression: str) -> None:
        """Say which index finds documents by a composed _id, unless there is one; it is tried on an empty copy."""
        try:
            with self.connection.transaction(force_rollback=True):
                copy = f"CREATE TEMPORARY TABLE syncer_copy (LIKE {table.relation})"
                self.connection.execute(sql.SQL(copy))
                self.connection.execute(sql.SQL(f"CREATE INDEX syncer_by_id ON syncer_copy (({expression}))"))
                if value(self.connection, _HAS_SAME, (table.oid,)):
                    return
        except pg.InvalidObjectDefinition:
            self._notes[
                "_id is made of a type whose text no index can find, so loads are slow; a key of its own is faster"
            ] = None
        except pg.InsufficientPrivilege:
            pass
        else:
            self._notes[f"documents are found by _id with: CREATE INDEX ON {table.relation} (({expression}))"] = None


def _names(table: Table) -> tuple[str, ...]:
    """Return the names of a table: as SQL writes it, without quotes, and without its schema."""
    plain = re.sub(r'"((?:[^"]|"")+)"', lambda quoted: quoted[1].replace('""', '"'), table.relation)
    return table.relation, plain, table.name


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join([*listed[:_SUGGESTED_MAX], *(["…"] if len(listed) > _SUGGESTED_MAX else [])])


def _point(table: Table) -> tuple[str, str] | None:
    """Return the columns of a latitude and a longitude."""
    numbers = [column.name for column in table.columns.values() if column.type.name in _NUMBERS]
    lat = [name for name in numbers if rules.LATITUDE.search(name)]
    lon = [name for name in numbers if rules.LONGITUDE.search(name)]
    return (lat[0], lon[0]) if lat and lon else None


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
    return [replace(drawn, name=_free(name, names)) for name, drawn in plain]


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


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _listed(items: Iterable[str]) -> str:
    return _indented(",\n".join(items))


def _indented(query: str) -> str:
    return _INDENT + _LINE.sub(lambda match: f"\n{_INDENT}" if match[0] == "\n" else match[0], query)
