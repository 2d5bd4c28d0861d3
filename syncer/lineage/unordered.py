"""Unordered fields: those whose elements come in an order that Postgres may choose anew each time.

They come from an aggregate over rows without ORDER BY or DISTINCT, in the SELECT itself or in a subquery of it. An
aggregate inside a view or a function is not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import sqlglot
from sqlglot import exp

_PARSED = (exp.ArrayAgg, exp.JSONArrayAgg, exp.GroupConcat)
_NAMED = frozenset({"jsonb_agg", "json_agg_strict", "jsonb_agg_strict", "xmlagg"})
_ORDERED = (exp.Order, exp.Distinct)


@lru_cache(maxsize=16)
def unordered_fields(select: str) -> frozenset[str]:
    """Return the columns of a SELECT, as Postgres deparses it, whose elements may come in another order."""
    try:
        tree = sqlglot.parse_one(select, dialect="postgres")
    except sqlglot.ParseError:
        return frozenset()
    columns = {one.alias_or_name for query in _selects(tree) for one in query.expressions}
    return frozenset(name for name in columns if _is_unordered(tree, name))


def _is_unordered(query: exp.Expr, name: str, within: tuple[exp.Expr, ...] = ()) -> bool:
    """Whether a column of a query is, or is made of, such an aggregate; ``within`` are the queries that read it."""
    return query not in within and any(
        _has_bare_aggregate(expression)
        or any(_is_unordered(source, column.name, (*within, query)) for column, source in _sources(select, expression))
        for select in _selects(query)
        for expression in select.expressions
        if expression.alias_or_name == name
    )


def _has_bare_aggregate(expression: exp.Expr) -> bool:
    calls: list[exp.Expr] = [*expression.find_all(*_PARSED)]
    calls += [one for one in expression.find_all(exp.Anonymous) if one.name.lower() in _NAMED]
    return any(not isinstance(part, _ORDERED) for one in calls for part in _arguments(one)[:1])


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    return list(call.expressions) if isinstance(call, exp.Anonymous) else [call.this]


def _selects(query: exp.Expr) -> Iterator[exp.Select]:
    """Yield the SELECT of a query, or those of its UNION."""
    if isinstance(query, exp.Select):
        yield query
    elif isinstance(query, exp.SetOperation):
        yield from _selects(query.left)
        yield from _selects(query.right)
    elif isinstance(query, exp.Subquery | exp.Lateral | exp.CTE):
        yield from _selects(query.this)


def _sources(select: exp.Select, expression: exp.Expr) -> Iterator[tuple[exp.Column, exp.Expr]]:
    """Yield the columns in an expression that come from a subquery or CTE in FROM, with that query."""
    top = select.root()
    ctes = {one.alias: one for one in top.find_all(exp.CTE)}
    sources = {one.alias_or_name: one for one in select.find_all(exp.Subquery, exp.Lateral, exp.Table)}
    for column in expression.find_all(exp.Column):
        source = sources.get(column.table)
        if isinstance(source, exp.Table):
            source = ctes.get(source.name)
        if source is not None:
            yield column, source
