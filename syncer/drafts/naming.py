"""Naming: what names mean, by the kinds of columns and the keys: which table is a link, what rows are called.

It also reads the paths of ``--with``, as a tree of branches: the rows that a draft shows beside its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple

from syncer.base.errors import DefinitionError
from syncer.drafts import rules
from syncer.drafts.catalogue import Reference, Table, listed, unquoted


class Branch(NamedTuple):
    """A way from a row to others: down to the rows that refer to it, up to the row that it refers to.

    Down and up leads through a link table to the rows behind it.
    """

    down: Reference | None
    up: Reference | None

    @property
    def end(self) -> Table:
        """The table whose rows are shown."""
        assert self.down or self.up
        return self.up.to if self.up else self.down.table  # type: ignore[union-attr]


Tree = dict[Branch, "Tree"]


def add_branches(tree: Tree, table: Table, path: str, asked: str) -> None:
    """Add the branches that a path names: it begins with the longest name that fits.

    Of the same name, a table that refers comes before one behind a link, and both before the name of a field.

    Raises:
        DefinitionError: Nothing has that name.
    """
    choices = [*_choices(table)]
    fitting = [
        ((-len(name), rank), branch)
        for rank, name, branch in choices
        if name and name in (path[: len(name)], path[: len(name)].lower()) and path[len(name) :][:1] in ("", ".")
    ]
    if not fitting:
        names = {name for rank, name, _ in choices if rank == 0 and ":" not in name}
        raise DefinitionError(
            f"--with {asked}: {table.relation} has no table or reference {path or repr(path)} to add",
            hint="--with takes tables that refer to it, tables behind links, and references: "
            f"{listed(difflib.get_close_matches(path, sorted(names), len(names) or 1, 0)) or 'none'}.\n"
            "Without a foreign key, a column refers by the name of a table and its key: customer_id to customers.id.\n"
            "Add rows of others in select.sql, and run init --from-select.",
        )
    best = min(order for order, _ in fitting)
    for branch in [branch for order, branch in fitting if order == best]:
        inside = tree.setdefault(branch, {})
        if deeper := path[1 - best[0] :]:
            add_branches(inside, branch.end, deeper, asked)


def _choices(table: Table) -> Iterator[tuple[int, str, Branch]]:
    """Yield what may be asked for of a table by each of its names, and the rank of that name."""
    for down in table.referring:
        behind = references_behind(down)
        for branch in [Branch(down, up) for up in behind] or [Branch(down, None)]:
            ends = (down.table, branch.end)
            named = [*(table.name for table in ends), *(unquoted(table.relation) for table in ends)]
            for column in ("", *(f":{column}" for column in down.columns)):
                yield from ((rank, name + column, branch) for rank, name in enumerate(named))
            yield len(named), name_of_rows(down.table, down), branch
        for up in () if behind else down.table.references:
            if down.columns | up.columns in down.table.unique and up.to is not table:  # a link with columns of its own
                yield from ((2, name, Branch(down, None)) for name in (up.to.name, unquoted(up.to.relation)))
    for up in table.references:
        for rank, name in enumerate((name_of(up), up.to.name, unquoted(up.to.relation))):
            yield rank, name, Branch(None, up)


def private_columns(table: Table) -> set[str]:
    """Return the columns that are bookkeeping, personal or secret; a primary key never is."""
    keys = table.of_kind("key") if rules.KEY_TABLES.search(rules.snake(table.name)) else ()
    return {*table.of_kind("private"), *keys}.difference(table.key)


def label_columns(table: Table) -> set[str]:
    """Return the texts that name a row: by their own names, or that of the table, as ``genres.genre``."""
    texts = {name for name, column in table.columns.items() if column.type.name in rules.TEXTS}
    return {*table.of_kind("label"), *texts.intersection({table.name.lower(), rules.singular(table.name.lower())})}


def condition_columns(table: Table) -> list[str]:
    """Return the columns that tell which rows are shown: those of deletions, and the first one of a publication."""
    published = [name for kind in rules.CONDITIONS if kind.startswith("published") for name in table.of_kind(kind)]
    return [*table.of_kind("deleted_on", "deleted", "deleted_number"), *published[:1]]


def locale_column(reference: Reference) -> str | None:
    """Return the column that tells the referring rows apart, if they are translations, or keys with one value."""
    table, columns = reference.table, reference.columns
    for unique in table.unique:
        if columns <= unique and len(unique - columns) == 1:
            (column,) = (table.columns[name] for name in unique - columns)
            values = table.columns.keys() - unique - {*table.key}
            if column.is_required and (column.kind == "locale" or (column.kind == "key" and len(values) == 1)):
                return column.name
    return None


def references_behind(reference: Reference) -> list[Reference]:
    """Return the references to the rows behind a link table, seen from one of its references; none if it is none.

    Besides references, a link has its key, an order and bookkeeping, and if it leads to one of several tables,
    a text that says as what.
    """
    table = reference.table
    behind = [second for second in table.references if second is not reference and second not in table.guards]
    referring = {name for second in table.references for name in second.columns}
    mere = referring.union(
        table.key if len(table.key) == 1 else (), table.of_kind("private", "order", "noted", "changed")
    )
    are_texts = [column.type.name in rules.TEXTS for name, column in table.columns.items() if name not in mere]
    is_choice = len(behind) > 1 and not any(table.columns[name].is_required for up in behind for name in up.columns)
    is_link = not are_texts or (is_choice and are_texts == [True])
    return behind if is_link and (len(behind) == 1 or is_choice) and not table.referring else []


def name_of(reference: Reference) -> str:
    """Return ``user`` for ``user_id``, ``area`` for ``area``; the table's name if several columns do not tell."""
    column = reference.pairs[0 if reference.is_temporal else -1][0]
    name = rules.KEY_SUFFIX.sub("", column)
    if not name or (len(reference.pairs) > 1 and name == column):
        return reference.to.name
    return rules.plural(name) if reference.is_temporal else name


def name_of_rows(table: Table, reference: Reference) -> str:
    """Return ``lines`` for rows of ``order_line`` in an order; told apart by column if several references lead."""
    name, parent = table.name, reference.to
    for prefix in (parent.name, rules.singular(parent.name), parent.name.partition("_")[0]):
        if name.lower().startswith(f"{prefix}_".lower()) and len(name) > len(prefix) + 1:
            name = name[len(prefix) + 1 :]
            break
    name = rules.plural(name[0].lower() + name[1:])
    is_several = [sibling.table for sibling in parent.referring].count(table) > 1
    return f"{name}_{reference.pairs[0][0]}" if is_several else name
