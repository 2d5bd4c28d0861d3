"""Parts of a SELECT that the derivation examines, and which of its columns competing rows share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp


def conjuncts(expression: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the conditions that must all hold: an expression split at its ANDs."""
    expression = expression.unnest()
    if isinstance(expression, exp.And):
        yield from conjuncts(expression.left)
        yield from conjuncts(expression.right)
    else:
        yield expression


def queries(part: object) -> Iterator[exp.Expr]:
    """Yield the outermost queries inside an expression."""
    if isinstance(part, exp.Query):
        yield part
    elif isinstance(part, exp.Expr):
        for child in part.iter_expressions():
            yield from queries(child)


def is_cut(query: exp.Expr) -> bool:
    """Whether a query returns only some of its rows."""
    return any(query.args.get(name) for name in ("limit", "offset", "fetch"))


def windows(select: exp.Select) -> list[exp.Window]:
    """Return a SELECT's own windows, without those of nested queries."""
    return [window for window in select.find_all(exp.Window) if window.parent_select is select]


def shared_by_competitors(select: exp.Select) -> Callable[[exp.Expr], bool]:
    """Return a test: do all rows that can displace or change one another have the same value in a column?"""
    if is_cut(select):
        return lambda _: False
    named = {window.name: window for window in select.args.get("windows") or []}
    shared = [
        {one.unnest() for one in named.get(window.alias, window).args.get("partition_by") or []}
        for window in windows(select)
    ]
    distinct = select.args.get("distinct")
    on = distinct.args.get("on") if isinstance(distinct, exp.Distinct) else None
    if on is not None:
        shared.append({one.unnest() for one in (on.expressions if isinstance(on, exp.Tuple) else [on])})
    return lambda column: all(column.unalias().unnest() in names for names in shared)


def column_aliases(item: exp.Expr) -> list[str]:
    """Return the column names of an alias."""
    alias = item.args.get("alias")
    return [one.name for one in alias.args.get("columns") or []] if isinstance(alias, exp.TableAlias) else []
