"""Tree: the tables of a draft, from the one whose rows become documents down to what each row shows of others.

By default, a document shows every column of its table, and each row that a foreign key refers to as an object. Paths
add rows of other tables along foreign keys, in both directions and through link tables, to any depth. Columns that
look like secrets or personal data are left out unless they are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from syncer.apply.scaffold import catalogue, field as fields, naming
from syncer.apply.scaffold.catalogue import Reference, Table
from syncer.apply.scaffold.naming import Names
from syncer.base.errors import ConfigError, DefinitionError
from syncer.base.postgres import Connection

_OFFERED_MAX = 10
_PART = re.compile(r'"(?:[^"]|"")*"|[^".]+')


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A field of a table's rows, and the column that it shows."""

    name: str
    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A table on the way from the rows of a parent.

    Args:
        pairs: A column of the table before it and the equal one of this table, for each column of the key.
    """

    table: Table
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What a draft shows of a table's rows.

    Args:
        name: The field of the parent that shows them; empty for the table whose rows are documents.
        joins: The way from the parent's rows; the last joins the table itself.
        is_array: Whether there may be several rows.
    """

    table: Table
    shown: tuple[Shown, ...]
    children: tuple[Branch, ...] = ()
    name: str = ""
    joins: tuple[Join, ...] = ()
    is_array: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One step along foreign keys: the field that it makes, and the way."""

    name: str
    joins: tuple[Join, ...]
    is_array: bool


@dataclass(slots=True)
class _Wish:
    """What is asked for of one table: its columns, None for those that are not personal, and the steps below it."""

    columns: tuple[str, ...] | None = None
    below: dict[str, _Wish] = field(default_factory=dict)


def split(said: str) -> tuple[str, tuple[str, ...] | None]:
    """Split ``TABLE:COLUMN,COLUMN``.

    Raises:
        ConfigError: There is a colon without columns.
    """
    name, colon, listed = said.partition(":")
    columns = tuple(one.strip() for one in listed.split(",") if one.strip())
    if colon and not columns:
        raise ConfigError(f"Missing columns: {said}", hint="Use TABLE:COLUMN,COLUMN, or TABLE for all columns.")
    return name, columns if colon else None


def grow(
    connection: Connection,
    table: Table,
    *,
    columns: tuple[str, ...] | None,
    paths: Sequence[str],
    remarks: list[str],
    with_personal: bool = False,
) -> Branch:
    """Return the tree of a draft; what it leaves out is added to ``remarks``.

    Args:
        connection: To the database of the tables.
        table: The table whose rows become documents.
        columns: The columns of it to show; None for all that are not personal.
        paths: ``TABLE/TABLE…``, each with ``:COLUMN,COLUMN`` on request.
        remarks: What was left out, and why.
        with_personal: Whether to show columns that look personal or secret.

    Raises:
        DefinitionError: A path does not follow foreign keys, or a table lacks a column.
        SourceError: A table on a path cannot be read.
    """
    root = _Wish(columns=columns)
    for path in paths:
        said, wanted = split(path)
        wish = root
        for step in said.split("/"):
            wish = wish.below.setdefault(step, _Wish())
        wish.columns = wanted
    return _Grower(connection, remarks, with_personal=with_personal).root(table, root)


class _Grower:
    """Grows a tree."""

    def __init__(self, connection: Connection, remarks: list[str], *, with_personal: bool) -> None:
        self._connection = connection
        self._remarks = remarks
        self._with_personal = with_personal

    def root(self, table: Table, wish: _Wish) -> Branch:
        shown = shown_columns(table, wish.columns, self._remarks, with_personal=self._with_personal)
        chosen = self._chosen(table, wish)
        columns = {one.column for one in shown}
        default = [(edge, _Wish()) for one in table.refers if set(one.columns) <= columns for edge in self._object(one)]
        default = [(edge, below) for edge, below in default if edge not in (one for one, _ in chosen)]
        grown = [*default, *chosen]
        shown = _not_replaced(shown, grown)
        return Branch(table=table, shown=shown, children=self._children(grown, shown, ""))

    def _chosen(self, table: Table, wish: _Wish) -> list[tuple[Edge, _Wish]]:
        return [(one, below) for step, below in wish.below.items() for one in edges(self._connection, table, step)]

    def _children(self, grown: list[tuple[Edge, _Wish]], shown: Sequence[Shown], path: str) -> tuple[Branch, ...]:
        names = Names(one.name for one in shown)
        return tuple(self._branch(edge, wish, names.give(edge.name), path) for edge, wish in grown)

    def _branch(self, edge: Edge, wish: _Wish, name: str, path: str) -> Branch:
        table, path = edge.joins[-1].table, f"{path}{name}."
        shown = shown_columns(table, wish.columns, self._remarks, path=path, with_personal=self._with_personal)
        chosen = self._chosen(table, wish)
        shown = _not_replaced(shown, chosen)
        children = self._children(chosen, shown, path)
        return Branch(table=table, shown=shown, children=children, name=name, joins=edge.joins, is_array=edge.is_array)

    def _object(self, reference: Reference) -> Iterator[Edge]:
        """Yield the step to the row that a foreign key refers to, if it can be read."""
        other = catalogue.readable(self._connection, reference.to)
        if isinstance(other, str):
            self._remarks.append(f"{reference.to} is left out: {other}")
        else:
            yield Edge(name=_object_name(reference), joins=(up(reference, other),), is_array=False)


def _not_replaced(shown: Sequence[Shown], grown: Sequence[tuple[Edge, _Wish]]) -> tuple[Shown, ...]:
    """Return the fields but for a key's column that gives the object behind it its name: that object has the key."""
    objects = {(edge.name, edge.joins[0].pairs[0][0]) for edge, wish in grown if not edge.is_array and not wish.columns}
    return tuple(field for field in shown if (field.name, field.column) not in objects)


def shown_columns(
    table: Table, wanted: Sequence[str] | None, remarks: list[str], *, path: str = "", with_personal: bool = False
) -> tuple[Shown, ...]:
    """Return the fields for the columns of a table; what is left out is added to ``remarks``.

    Raises:
        DefinitionError: There is no such column.
    """
    known = [one.name for one in table.columns]
    for one in wanted or ():
        if one not in known:
            raise DefinitionError(f"{table.relation} has no column {one}", hint=f"There are: {', '.join(known)}")
    names, shown, hidden = Names(), [], []
    for column in table.columns if wanted is None else [table.column(one) for one in wanted]:
        is_wanted = with_personal or wanted is not None or column.name in table.key
        if reason := fields.left_out(column):
            remarks.append(f"{path}{column.name} is left out: {reason}")
        elif is_wanted or not naming.is_personal(column.name, column.type.kind):
            shown.append(Shown(name=names.give(column.name), column=column.name))
        else:
            hidden.append(f"{path}{column.name}")
    if hidden:
        listed = ", ".join(hidden)
        remarks.append(f"left out, personal or secret by name: {listed}; to show them: --personal")
    return tuple(shown)


# Steps along foreign keys


def edges(connection: Connection, table: Table, step: str) -> list[Edge]:
    """Return the steps from a table that a name means: of a field, or of a table next to it or behind a link table.

    Raises:
        DefinitionError: There is none.
        SourceError: The table cannot be read.
    """
    meant = {step, _bare(step)}  # a name may be quoted, or contain a quote
    found = [one for one in table.refers if meant & {_object_name(one), *one.columns}]
    below = [one for one in table.referred if meant & {_array_name(one, table), one.table, _bare(one.relation)}]
    if not found and not below:
        found = [one for one in table.refers if meant & {one.to_table, _bare(one.to)}]
    made = [
        Edge(name=_object_name(one), joins=(up(one, catalogue.find(connection, one.to)),), is_array=False)
        for one in found
    ] or [
        Edge(
            name=_array_name(one, table),
            joins=(down(one, catalogue.find(connection, one.relation)),),
            is_array=not one.is_unique,
        )
        for one in below
    ]
    made = made or [one for one in _through(connection, table) if meant & set(_names_behind(one))]
    if not made:
        known = sorted(
            {_object_name(one) for one in table.refers}
            | {_bare(one.relation) for one in table.referred}
            | {_bare(one.joins[-1].table.relation) for one in _through(connection, table)}
        )
        raise DefinitionError(
            f"{step} has no foreign key to {table.relation}, nor is there one to it",
            hint=f"--with takes a path along foreign keys. Next to {table.relation}: {', '.join(known) or 'none'}",
        )
    return made


def offers(connection: Connection, root: Branch) -> list[str]:
    """Return what paths could add to the document, in one line or none."""
    taken = {join.table.relation for child in root.children for join in child.joins}
    found = {one.relation for one in root.table.referred} - taken - {root.table.relation}
    for one in _through(connection, root.table):
        link, other = (join.table for join in one.joins)
        if not {link.relation, other.relation} & taken:
            found.add(other.relation)
    names = [_bare(relation) for relation in sorted(found)]
    more = f" and {len(names) - _OFFERED_MAX} more" if len(names) > _OFFERED_MAX else ""
    return [f"--with adds rows of other tables: {', '.join(names[:_OFFERED_MAX])}{more}"] if names else []


def _through(connection: Connection, table: Table) -> list[Edge]:
    """Return the steps to tables behind link tables."""
    found = []
    for near in table.referred:
        link = catalogue.readable(connection, near.relation)
        if isinstance(link, str):
            continue
        for far in [one for one in link.refers if one != near and _is_link(link, near, one)]:
            other = catalogue.readable(connection, far.to)
            if not isinstance(other, str):
                name = far.to_table if far.to != table.relation else _object_name(far)
                found.append(Edge(name=name, joins=(down(near, link), up(far, other)), is_array=not near.is_unique))
    return found


def _is_link(table: Table, near: Reference, far: Reference) -> bool:
    """Whether each pair of rows is linked once, or the table has no other columns than keys."""
    columns = {*near.columns, *far.columns}
    return set(table.key) <= columns or {one.name for one in table.columns} <= columns | set(table.key)


def _names_behind(edge: Edge) -> tuple[str, ...]:
    table = edge.joins[-1].table
    return edge.name, table.name, _bare(table.relation)


def up(reference: Reference, other: Table) -> Join:
    """Return the join to the row that a foreign key refers to."""
    return Join(table=other, pairs=tuple(zip(reference.columns, reference.to_columns, strict=True)))


def down(reference: Reference, other: Table) -> Join:
    """Return the join to the rows that refer by a foreign key."""
    return Join(table=other, pairs=tuple(zip(reference.to_columns, reference.columns, strict=True)))


def _object_name(reference: Reference) -> str:
    return naming.of_reference(reference.columns, reference.to_table)


def _array_name(reference: Reference, table: Table) -> str:
    """Return the referring table's name, with the column if it refers to this table more than once."""
    several = [one for one in table.referred if one.relation == reference.relation]
    return reference.table if len(several) == 1 else f"{reference.table}_{reference.columns[0]}"


def _bare(relation: str) -> str:
    """Return ``schema.table`` without quotes."""
    parts = _PART.findall(relation)
    return ".".join(one[1:-1].replace('""', '"') if one.startswith('"') else one for one in parts)
