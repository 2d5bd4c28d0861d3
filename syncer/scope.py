"""Scope: what a name stands for where it is written, in terms of readings of tables; what a query's columns are."""

from __future__ import annotations

from sqlglot import exp

from syncer.clause import column_aliases
from syncer.graph import Node, Types

# The same whenever it is asked, and null if an argument is; ``||`` is so for scalars.
_STEADY = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam,
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Lower, exp.Upper, exp.Length, exp.DPipe,
    exp.JSONExtract, exp.JSONExtractScalar,
)  # fmt: skip

Columns = list[tuple[str, list[exp.Expr]]]
"""What a query's columns are in terms of nodes: one alternative for each UNION branch where that is known."""


def _named(columns: Columns, name: str) -> list[exp.Expr]:
    found = [alternatives for one, alternatives in columns if one == name]
    return found[0] if len(found) == 1 else []


def kept_in(columns: Columns) -> Columns:
    """The same columns, with nothing that leads out."""
    return [(name, []) for name, _ in columns]


def renamed(columns: Columns, item: exp.Expr) -> Columns:
    """Columns under the names that an alias gives them, as in ``AS s(a, b)``."""
    names = column_aliases(item)
    return [(names[at] if at < len(names) else name, alternatives) for at, (name, alternatives) in enumerate(columns)]


class Scope:
    """The sources that names can refer to in one SELECT, and those around it."""

    def __init__(self, outer: Scope | None, types: Types) -> None:
        self.outer = outer
        self._types = types
        self.sources: dict[str, Node | Columns] = {}

    def resolve(self, reference: exp.Column) -> list[exp.Expr]:
        """What a reference stands for."""
        scope: Scope | None = None if isinstance(reference.this, exp.Star) else self
        while scope is not None:
            source = scope.source(reference)
            if isinstance(source, Node):
                return [_column(source, reference.name)] if reference.name in self._types.get(source.table, {}) else []
            if source is not None:
                return _named(source, reference.name)
            # A name without qualifier is never one of an outer SELECT.
            scope = scope.outer if reference.table else None
        return []

    def source(self, reference: exp.Column) -> Node | Columns | None:
        """The source that a reference names, if it is one of this SELECT."""
        if reference.table:
            return self.sources.get(reference.table)
        # Postgres leaves the qualifier out where there is one source, and of what FULL JOIN … USING has merged.
        return next(iter(self.sources.values())) if len(self.sources) == 1 else None

    def meaning(self, expression: exp.Expr) -> list[exp.Expr]:
        """What a steady expression is in terms of nodes."""
        expression = expression.unnest()
        if not all(isinstance(part, _STEADY) for part in expression.walk()):
            return []
        if isinstance(expression, exp.Column):
            return self.resolve(expression)
        resolved = [self.resolve(one) for one in expression.find_all(exp.Column)]
        if not resolved or any(len(found) != 1 for found in resolved):
            return []
        meant = expression.copy()
        for place, (found,) in zip(list(meant.find_all(exp.Column)), resolved, strict=True):
            place.replace(found.copy() if isinstance(found, exp.Column) else exp.paren(found.copy()))
        return [meant]


def _column(node: Node, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(f"n{node.number}", quoted=True))
