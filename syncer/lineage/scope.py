"""Scopes: resolves names in a SELECT to columns of graph nodes, and describes the columns of queries."""

from __future__ import annotations

from sqlglot import exp

from syncer.lineage.graph import Node, Types, numbers
from syncer.lineage.select_parts import column_aliases

# Deterministic and strict expressions; ``||`` is strict for scalars.
STEADY = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam,
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Lower, exp.Upper, exp.Length, exp.DPipe,
    exp.JSONExtract, exp.JSONExtractScalar,
)  # fmt: skip

Columns = list[tuple[str, list[exp.Expr]]]
"""A query's columns in terms of nodes: one alternative for each UNION branch in which it is known."""


class Branches(list[exp.Expr]):
    """Alternatives for every branch in which a column is not always null."""


def _named(columns: Columns, name: str) -> list[exp.Expr]:
    found = [alternatives for one, alternatives in columns if one == name]
    return found[0] if len(found) == 1 else []


def kept_in(columns: Columns) -> Columns:
    """Return the same columns without their meaning, so that no edge leads out of the query."""
    return [(name, []) for name, _ in columns]


def renamed(columns: Columns, item: exp.Expr) -> Columns:
    """Return the columns under the names of an alias, as in ``AS s(a, b)``."""
    names = column_aliases(item)
    return [(names[at] if at < len(names) else name, alternatives) for at, (name, alternatives) in enumerate(columns)]


class Scope:
    """The sources that names in one SELECT can refer to, and its outer scopes."""

    def __init__(self, outer: Scope | None, types: Types) -> None:
        self.outer = outer
        self._types = types
        self.sources: dict[str, Node | Columns] = {}

    def resolve(self, reference: exp.Column) -> list[exp.Expr]:
        """Return what a column reference stands for."""
        scope: Scope | None = None if isinstance(reference.this, exp.Star) else self
        while scope is not None:
            source = scope.source(reference)
            if isinstance(source, Node):
                is_known = reference.name in self._types.get(source.table, {})
                return Branches([_column(source, reference.name)]) if is_known else []
            if source is not None:
                return _named(source, reference.name)
            # In canonical SQL an unqualified name never refers to an outer SELECT.
            scope = scope.outer if reference.table else None
        return []

    def source(self, reference: exp.Column) -> Node | Columns | None:
        """Return the source that a reference names, if it belongs to this SELECT."""
        if reference.table:
            return self.sources.get(reference.table)
        # Postgres omits the qualifier if there is a single source, and for columns merged by FULL JOIN … USING.
        return next(iter(self.sources.values())) if len(self.sources) == 1 else None

    def nodes_of(self, reference: exp.Column) -> set[int]:
        """Return the numbers of the nodes that a column reference stands for."""
        return set().union(*map(numbers, self.resolve(reference)))

    def meaning(self, expression: exp.Expr) -> list[exp.Expr]:
        """Return a deterministic expression in terms of nodes."""
        expression = expression.unnest()
        if not all(isinstance(part, STEADY) for part in expression.walk()):
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
