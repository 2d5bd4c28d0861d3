"""Uniqueness: whether keys of the tables ensure that a SELECT returns each ``_id`` at most once.

A source is *determined* if it has at most one row for given values of the known columns: they contain a key of it. All
columns of a determined source are known, and so is a column that must equal known ones. If all sources are determined,
so is the row. What is not understood is not determined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from sqlglot import exp

from syncer.lineage.catalog import TableName, table_name
from syncer.lineage.outer_joins import effective_sides
from syncer.lineage.routes import KnownTable
from syncer.lineage.select_parts import column_aliases, conjuncts, queries

# Expressions of which equal values nearly always come from equal columns.
_FAITHFUL = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam,
    exp.DPipe, exp.Concat, exp.ConcatWs, exp.MD5, exp.Neg, exp.Add, exp.Sub, exp.Length,
)  # fmt: skip

_Ctes = Mapping[str, exp.CTE]


def undetermined(
    tree: exp.Expr, tables: Mapping[TableName, KnownTable], views: Mapping[TableName, exp.Expr]
) -> list[str]:
    """Return the sources of which several rows may have the same ``_id``; none if ``_id`` is unique.

    Args:
        tree: A canonical SELECT.
        tables: Its tables.
        views: The canonical SELECT of each view that it reads.
    """
    return _Uniqueness(tables, views).undetermined(tree, frozenset({"_id"}), {})


@dataclass(slots=True)
class _Sources:
    """The FROM items of one SELECT by alias, and the equalities between their columns.

    An equality may only determine the aliases that stand with it; None for all.
    """

    items: dict[str, exp.Expr] = field(default_factory=dict)
    equal: list[tuple[exp.Expr, exp.Expr, Collection[str] | None]] = field(default_factory=list)

    def equate(self, condition: exp.Expr, allowed: Collection[str] | None) -> None:
        """Add the equalities of a condition, in both directions."""
        for one in conjuncts(condition):
            if isinstance(one, exp.EQ):
                self.equal += [(one.left, one.right, allowed), (one.right, one.left, allowed)]


class _Uniqueness:
    def __init__(self, tables: Mapping[TableName, KnownTable], views: Mapping[TableName, exp.Expr]) -> None:
        self._tables = tables
        self._views = views

    def undetermined(self, tree: exp.Expr, known: frozenset[str], ctes: _Ctes) -> list[str]:
        """Return the sources of a query that may have several rows for given values of the known columns."""
        clause = tree.args.get("with_")
        if clause is not None:
            ctes = {**ctes, **{cte.alias: cte for cte in clause.expressions}}
        limit = tree.args.get("limit")
        if limit is not None and limit.expression is not None and limit.expression.unnest().name == "1":
            return []
        if isinstance(tree, exp.Subquery):
            return self.undetermined(tree.this, known, ctes)
        if isinstance(tree, exp.SetOperation):
            return self._of_branches(tree, known, ctes)
        return self._of_select(tree, known, ctes) if isinstance(tree, exp.Select) else ["a query"]

    def _of_branches(self, tree: exp.SetOperation, known: frozenset[str], ctes: _Ctes) -> list[str]:
        names = _names(tree)
        if isinstance(tree, exp.Union) and tree.args.get("distinct") and known >= set(names):
            return []
        at = [number for number, name in enumerate(names) if name in known]
        left = self.undetermined(tree.this, known, ctes)
        if isinstance(tree, exp.Except):
            return left
        right = self.undetermined(tree.expression, frozenset(_names(tree.expression)[number] for number in at), ctes)
        if isinstance(tree, exp.Intersect):
            return left and right
        return left + right or ([] if _are_apart(tree.this, tree.expression, at) else ["two branches of a UNION"])

    def _of_select(self, tree: exp.Select, known: frozenset[str], ctes: _Ctes) -> list[str]:
        outputs = {one.alias_or_name: one.unalias() for one in tree.expressions}
        distinct, group = tree.args.get("distinct"), tree.args.get("group")
        on = distinct.args.get("on") if distinct is not None else None
        if (distinct is not None and on is None and known >= outputs.keys()) or (group is None and _aggregates(tree)):
            return []
        wanted = [outputs[name] for name in known if name in outputs]
        sources = self._sources(tree, wanted, ctes)
        fixed = {column for one in wanted for column in _faithful(one, sources)}
        determined = self._close(sources, fixed, ctes)
        left = [alias for alias in sources.items if alias not in determined]
        competitors = (on.expressions if isinstance(on, exp.Tuple) else [on]) if on is not None else None
        if group is not None:
            if group.find(exp.GroupingSets, exp.Cube, exp.Rollup) is not None:
                return [*left, "the grouping sets"]
            competitors = group.expressions
        if competitors is not None and all(_is_fixed(one, sources, fixed, determined) for one in competitors):
            return []
        return left

    def _close(self, sources: _Sources, fixed: set[tuple[str, str]], ctes: _Ctes) -> set[str]:
        """Add to the fixed columns what follows from them; return the determined sources."""
        determined: set[str] = set()
        before = -1
        while before < len(fixed) + len(determined):
            before = len(fixed) + len(determined)
            for one, other, allowed in sources.equal:
                column = _bare(one)
                if isinstance(column, exp.Column) and _is_fixed(other, sources, fixed, determined):
                    place = _place(column, sources)
                    if allowed is None or place[0] in allowed:
                        fixed.add(place)
            for alias, item in sources.items.items():
                columns = frozenset(name for source, name in fixed if source == alias)
                if alias not in determined and self._is_determined(item, columns, ctes):
                    determined.add(alias)
        return determined

    def _is_determined(self, item: exp.Expr, columns: frozenset[str], ctes: _Ctes) -> bool:
        query, names, ctes = self._query(item, ctes)
        if query is not None:
            inner = frozenset(name for name, shown in zip(_names(query), names, strict=True) if shown in columns)
            return not self.undetermined(query, inner, ctes)
        return isinstance(item, exp.Table) and any(key <= columns for key in self._table(item).keys)

    def _query(self, item: exp.Expr, ctes: _Ctes) -> tuple[exp.Query | None, list[str], _Ctes]:
        """Return the query of a FROM item, if it is one, the item's column names, and the CTEs that the query sees."""
        query = item.this if isinstance(item, exp.Lateral | exp.Subquery) else None
        names = column_aliases(item)
        if isinstance(item, exp.Table) and item.db:
            query = self._views.get(table_name(item))
        elif isinstance(item, exp.Table) and item.name in ctes:
            query, names = ctes[item.name].this, names or column_aliases(ctes[item.name])
            ctes = {name: one for name, one in ctes.items() if name != item.name}
        if isinstance(query, exp.Query):
            return query, [*names, *_names(query)[len(names) :]], ctes
        return None, names or list(self._table(item).types), ctes

    def _table(self, item: exp.Expr) -> KnownTable:
        known = self._tables.get(table_name(item)) if isinstance(item, exp.Table) else None
        return known or KnownTable(keys=frozenset(), types={})

    def _sources(self, tree: exp.Select, wanted: list[exp.Expr], ctes: _Ctes) -> _Sources:
        sides, _ = effective_sides(tree, wanted, are_texts=True)
        found = _Sources()
        source, where = tree.args.get("from_"), tree.args.get("where")
        items = [source.this] if source is not None else []
        for item in (*items, *(join.this for join in tree.args.get("joins") or [])):
            self._read(item, found, sides, ctes)
        if where is not None:
            found.equate(where.this, None)
        return found

    def _read(self, item: exp.Expr, found: _Sources, sides: Mapping[int, str], ctes: _Ctes) -> set[str]:
        """Add a FROM item with the joins attached to it; return its aliases."""
        if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table | exp.Subquery) and not item.alias:
            left = self._read(item.this, found, sides, ctes)
        else:
            left = {item.alias_or_name}
            found.items[item.alias_or_name] = item
        for join in item.args.get("joins") or []:
            right = self._read(join.this, found, sides, ctes)
            allowed = {"": None, "LEFT": right, "RIGHT": left}.get(sides[id(join)], set())
            if join.args.get("on") is not None:
                found.equate(join.args["on"], allowed)
            for name in (one.name for one in join.args.get("using") or []):
                mine, theirs = (
                    [exp.column(name, table=one) for one in arm if name in self._query(found.items[one], ctes)[1]]
                    for arm in (left, right)
                )
                for one, other in product(mine, theirs):
                    found.equate(exp.EQ(this=one, expression=other), allowed)
            left |= right
        return left


def _names(tree: exp.Expr) -> list[str]:
    """Return the names of a query's columns."""
    while not isinstance(tree, exp.Select):
        tree = tree.this
    return [one.alias_or_name for one in tree.expressions]


def _bare(expression: exp.Expr) -> exp.Expr:
    expression = expression.unnest()
    return _bare(expression.this) if isinstance(expression, exp.Cast) else expression


def _place(column: exp.Column, sources: _Sources) -> tuple[str, str]:
    return column.table or (next(iter(sources.items)) if len(sources.items) == 1 else ""), column.name


def _is_fixed(
    expression: exp.Expr, sources: _Sources, fixed: Collection[tuple[str, str]], determined: Collection[str]
) -> bool:
    """Whether an expression has one value; a column of an enclosing SELECT has."""
    places = [_place(one, sources) for one in expression.find_all(exp.Column)]
    return not any(queries(expression)) and all(
        place in fixed or place[0] in determined or (place[0] and place[0] not in sources.items) for place in places
    )


def _faithful(expression: exp.Expr, sources: _Sources) -> Iterator[tuple[str, str]]:
    parts = list(expression.walk(prune=lambda part: isinstance(part, exp.Length)))  # which says nothing by itself
    if all(isinstance(part, _FAITHFUL) for part in parts):
        yield from (_place(part, sources) for part in parts if isinstance(part, exp.Column))


def _aggregates(tree: exp.Select) -> bool:
    """Whether a SELECT without GROUP BY returns one row, since it aggregates."""
    return any(
        (isinstance(one, exp.AggFunc) or one.name.lower().endswith("agg"))
        and one.parent_select is tree
        and not isinstance(one.parent, exp.Window)
        for output in tree.expressions
        for one in output.find_all(exp.AggFunc, exp.Anonymous)
    )


def _are_apart(one: exp.Expr, other: exp.Expr, at: list[int]) -> bool:
    """Whether a known column begins with different constants in all branches of two queries."""
    for number in at:
        mine, theirs = (_beginnings(branch, number) for branch in (one, other))
        if all(a and b and not a.startswith(b) and not b.startswith(a) for a in mine for b in theirs):
            return True
    return False


def _beginnings(tree: exp.Expr, at: int) -> list[str]:
    """Return the constant that a column begins with, in each branch; empty if there is none."""
    if isinstance(tree, exp.SetOperation):
        return _beginnings(tree.this, at) + _beginnings(tree.expression, at)
    if not isinstance(tree, exp.Select):
        return _beginnings(tree.this, at)
    first = _bare(tree.expressions[at].unalias())
    while isinstance(first, exp.DPipe):
        first = _bare(first.left)
    return [first.name if isinstance(first, exp.Literal) else ""]
