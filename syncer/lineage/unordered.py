"""Unordered: the fields of a SELECT whose elements may come in another order each time, for want of an ORDER BY."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from sqlglot import exp

from syncer.base.postgres import Connection
from syncer.lineage import parser

# Aggregates over json objects are left out: the order of keys is no difference.
_PARSED = (exp.ArrayAgg, exp.JSONArrayAgg, exp.GroupConcat)
_NAMED = frozenset({"jsonb_agg", "json_agg_strict", "jsonb_agg_strict", "json_arrayagg", "xmlagg"})
_RETURNING = re.compile(r" RETURNING jsonb?\b")
"""What Postgres adds to JSON_ARRAYAGG, and the parser does not know."""
_VIEWS = """
SELECT pg_get_viewdef(view.oid) FROM unnest($1::text[]::regclass[]) AS view (oid) ORDER BY view.oid
"""


def unordered_fields(connection: Connection, select: str, views: Iterable[str]) -> frozenset[str]:
    """Return the columns of a canonical SELECT of these views whose elements may come in another order."""
    return unordered_columns(select, *(view for (view,) in connection.execute(_VIEWS, (list(views),))))


@lru_cache(maxsize=16)
def unordered_columns(select: str, *views: str) -> frozenset[str]:
    """Return such columns of a SELECT that reads these views, all as Postgres deparses them.

    A column is found by the name that it has in a subquery or view. So a column of the same name elsewhere is found,
    too.
    """
    try:
        tree, *others = (parser.parsed(_RETURNING.sub("", query)) for query in (select, *views))
    except parser.UnreadableError:
        return frozenset()
    selects = [query for part in (tree, *others) for query in part.find_all(exp.Select)]
    columns = [column for query in selects for column in query.expressions]
    names: set[str] = set()
    while True:
        found = {
            column.alias_or_name
            for column in columns
            if _is_unordered(column) or any(part.name in names for part in column.find_all(exp.Column))
        }
        if found <= names:
            return frozenset(names.intersection(tree.named_selects))
        names |= found


def _is_unordered(column: exp.Expr) -> bool:
    """Whether a column has an aggregate whose result depends on the order of its rows."""
    for call in column.find_all(exp.Anonymous, exp.Array, *_PARSED):
        if isinstance(call, exp.Array):  # ARRAY(SELECT …), or ARRAY[…]
            queries = [query for query in call.expressions if isinstance(query, exp.Select)]
            if any(not query.args.get("order") and not _reads_in_order(query) for query in queries):
                return True
            continue
        is_named = isinstance(call, exp.Anonymous)
        first = next(iter(call.expressions), None) if is_named else call.this
        is_ordered = isinstance(first, exp.Order | exp.Distinct) or _reads_in_order(call.parent_select)
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
