"""Unordered: the fields of a SELECT that depend on the order in which an aggregate without ORDER BY reads its rows.

Their elements may come in another order each time; or they are sums of floating-point numbers, rounded differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

from sqlglot import exp

from syncer.base.postgres import Connection
from syncer.lineage import parser

# Aggregates over json objects are left out: the order of keys is no difference.
_PARSED = (exp.ArrayAgg, exp.JSONArrayAgg, exp.GroupConcat, exp.AnyValue)
_ROUNDED = re.compile("Sum|Avg|Std.*|Var.*|Corr|Covar.*|Regr.*")
"""The parser's names of aggregates that add up."""
_FLOATS = ("double", "float")
_FLOAT_TYPE = re.compile("double precision|real")
_NAMED = frozenset({"jsonb_agg", "json_agg_strict", "jsonb_agg_strict", "json_arrayagg", "xmlagg"})
_RETURNING = re.compile(r" RETURNING jsonb?\b")
"""What Postgres adds to JSON_ARRAYAGG, and the parser does not know."""
_VIEWS = "SELECT pg_get_viewdef(view.oid) FROM unnest($1::text[]::regclass[]) AS view (oid) ORDER BY view.oid"
_FLOAT_COLUMNS = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = ANY ($1::text[]::regclass[]) AND atttypid IN ('real'::regtype, 'double precision'::regtype)
"""


def unordered_fields(
    connection: Connection, select: str, views: Collection[str], tables: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the columns of a canonical SELECT whose elements may come in another order, and those that are rounded."""
    queries = [select, *(view for (view,) in (connection.execute(_VIEWS, (list(views),)) if views else ()))]
    floats = frozenset(name for (name,) in connection.execute(_FLOAT_COLUMNS, (list(tables),)))
    return unordered_columns(*queries), rounded_columns(floats, *queries)


@lru_cache(maxsize=16)
def unordered_columns(select: str, *views: str) -> frozenset[str]:
    """Return such columns of a SELECT that reads these views, all as Postgres deparses them."""
    return _columns((select, *views), _is_unordered)


@lru_cache(maxsize=16)
def rounded_columns(floats: frozenset[str], select: str, *views: str) -> frozenset[str]:
    """Return the columns of a SELECT that sum floating-point numbers, which these columns of tables are."""
    if not floats and not any(map(_FLOAT_TYPE.search, (select, *views))):
        return frozenset()
    floats = floats | _columns((select, *views), lambda column: _is_float(column, floats), of_all=True)
    return _columns((select, *views), lambda column: _is_rounded(column, floats))


def _columns(queries: Sequence[str], is_one: Callable[[exp.Expr], bool], *, of_all: bool = False) -> frozenset[str]:
    """Return the columns of the first query, or of all, for which something holds, or that are made of such ones.

    A column is found by the name that it has in a subquery or view. So a column of the same name elsewhere is found,
    too.
    """
    try:
        tree, *other_trees = (parser.parsed(_RETURNING.sub("", query)) for query in queries)
    except parser.UnreadableError:
        return frozenset()
    selects = [query for root in (tree, *other_trees) for query in root.find_all(exp.Select)]
    columns = [column for query in selects for column in query.expressions]
    names: set[str] = set()
    while True:
        affected = {
            column.alias_or_name
            for column in columns
            if is_one(column) or any(reference.name in names for reference in column.find_all(exp.Column))
        }
        if affected <= names:
            return frozenset(names if of_all else names.intersection(tree.named_selects))
        names |= affected


def _is_float(expression: exp.Expr, floats: Collection[str]) -> bool:
    """Whether a column may be a floating-point number: nothing casts it to another type."""
    expression = expression.unalias().unnest()
    if isinstance(expression, exp.Cast):
        return expression.is_type(*_FLOATS)
    return any(
        operand.name in floats if isinstance(operand, exp.Column) else _is_float(operand, floats)
        for operand in ([expression] if isinstance(expression, exp.Column) else expression.iter_expressions())
    )


def _is_rounded(column: exp.Expr, floats: Collection[str]) -> bool:
    """Whether a column has an aggregate of floating-point numbers whose last digits depend on the order of its rows."""
    return any(
        _ROUNDED.fullmatch(type(call).__name__) and not isinstance(call.this, exp.Order) and _is_float(call, floats)
        for call in column.find_all(exp.AggFunc)
    )


def _is_unordered(column: exp.Expr) -> bool:
    """Whether a column has an aggregate whose result depends on the order of its rows."""
    for call in column.find_all(exp.Anonymous, exp.Array, *_PARSED):
        if isinstance(call, exp.Array):  # ARRAY(SELECT …), or ARRAY[…]
            queries = [query for query in call.expressions if isinstance(query, exp.Select)]
            if any(not query.args.get("order") and not _reads_in_order(query) for query in queries):
                return True
            continue
        is_named = isinstance(call, exp.Anonymous)
        argument = next(iter(call.expressions), None) if is_named else call.this
        is_ordered = isinstance(argument, exp.Order | exp.Distinct) or _reads_in_order(call.parent_select)
        if not is_ordered and (not is_named or call.name.lower() in _NAMED):
            return True
    return False


def _reads_in_order(select: exp.Select | None) -> bool:
    """Whether all rows of a SELECT come from one subquery that has an ORDER BY, and stay in its order."""
    source = None if select is None else select.args.get("from_")
    changes = ("joins", "group", "distinct", "windows")
    if select is None or source is None or any(select.args.get(name) for name in changes):
        return False
    return isinstance(source.this, exp.Subquery) and bool(source.this.this.args.get("order"))
