"""Unordered: the fields of a SELECT that depend on the order in which Postgres reads rows, since no ORDER BY says it.

The elements of an aggregate may come in another order each time. Sums of floating-point numbers are rounded
differently. A LIMIT takes other rows: an UPDATE of a column that no document reads may move them, uncaptured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

from sqlglot import exp

from syncer.base.postgres import Connection
from syncer.lineage import parser
from syncer.lineage.scope import distinct_on, is_cut

# Aggregates over json objects are left out: the order of keys is no difference.
_PARSED = (exp.ArrayAgg, exp.JSONArrayAgg, exp.GroupConcat, exp.AnyValue)
_OF_ROWS = (exp.RowNumber, exp.FirstValue, exp.LastValue, exp.NthValue, exp.Lag, exp.Lead)
"""Window functions that depend on the order of single rows."""
_ROUNDED = re.compile("Sum|Avg|Std.*|Var.*|Corr|Covar.*|Regr.*")
"""The parser's names of aggregates that add up."""
_FLOATS = ("double", "float")
_FLOAT_TYPE = re.compile("double precision|real")
_NAMED = frozenset({"jsonb_agg", "json_agg_strict", "jsonb_agg_strict", "json_arrayagg", "xmlagg"})
_RETURNING = re.compile(r" RETURNING jsonb?\b")
"""What Postgres adds to JSON_ARRAYAGG, and the parser does not know."""
_VIEWS = "SELECT btrim(pg_get_viewdef(oid), '; ') FROM unnest($1::text[]::regclass[]) AS oid ORDER BY oid"
_FLOAT_COLUMNS = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = ANY ($1::text[]::regclass[]) AND atttypid IN ('real'::regtype, 'double precision'::regtype)
"""


def unordered_fields(
    connection: Connection, select: str, views: Collection[str], tables: Iterable[str]
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the columns of a canonical SELECT that depend on an order: by elements, by rounding, by rows."""
    queries = [select, *(view for (view,) in (connection.execute(_VIEWS, (list(views),)) if views else ()))]
    floats = frozenset(name for (name,) in connection.execute(_FLOAT_COLUMNS, (list(tables),)))
    return unordered_columns(floats, *queries)


@lru_cache(maxsize=16)
def unordered_columns(floats: frozenset[str], *queries: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return these columns of a SELECT and the views that it reads, all as Postgres deparses them.

    ``floats`` are the columns of tables that are floating-point numbers.
    """
    rounded = frozenset[str]()
    if floats or any(map(_FLOAT_TYPE.search, queries)):
        all_floats = floats | _columns(queries, lambda column: _is_float(column, floats), of_all=True)
        rounded = _columns(queries, lambda column: _is_rounded(column, all_floats))
    return _columns(queries, _is_unordered), rounded, _columns(queries, _is_arbitrary)


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


def _is_arbitrary(column: exp.Expr) -> bool:
    """Whether a column has a part of a query, or is in one, of which it is open which rows it returns."""
    selects = [select for select in column.find_all(exp.Select) if not isinstance(select.parent, exp.Exists)]
    if column.parent_select is not None and column.unalias() not in distinct_on(column.parent_select):
        selects.append(column.parent_select)
    return any(map(_takes_any_rows, selects)) or any(
        isinstance(window.this, _OF_ROWS) and not window.args.get("order") for window in column.find_all(exp.Window)
    )


def _takes_any_rows(select: exp.Select) -> bool:
    order = select.args.get("order")
    if keys := distinct_on(select):  # it is ordered by these first
        return order is None or len(order.expressions) <= len(keys)
    is_one_row = not select.args.get("group") and any(item.find(exp.AggFunc) for item in select.expressions)
    return is_cut(select) and not order and not is_one_row and not _reads_in_order(select)


def _reads_in_order(select: exp.Select | None) -> bool:
    """Whether all rows of a SELECT come from one subquery that has an ORDER BY, and stay in its order."""
    source = None if select is None else select.args.get("from_")
    changes = ("joins", "group", "distinct", "windows")
    if select is None or source is None or any(select.args.get(name) for name in changes):
        return False
    return isinstance(source.this, exp.Subquery) and bool(source.this.this.args.get("order"))
