"""Unordered fields: those whose elements come in an order that Postgres may choose anew each time.

They come from an aggregate over rows without ORDER BY or DISTINCT, in the SELECT itself or in a subquery of it. An
aggregate inside a view or a function is not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from sqlglot import exp

from syncer.lineage import parser

# Aggregates over json objects are left out: the order of keys is no difference.
_PARSED: dict[type[exp.Expr], str] = {
    exp.ArrayAgg: "array_agg",
    exp.JSONArrayAgg: "json_agg",
    exp.GroupConcat: "string_agg",
}
_NAMED = frozenset({"jsonb_agg", "json_agg_strict", "jsonb_agg_strict", "json_arrayagg", "xmlagg"})


def unordered_aggregates(tree: exp.Expr) -> Iterator[str]:
    """Yield the names of the aggregates in an expression or query whose result depends on the order of its rows."""
    for call in tree.find_all(exp.Anonymous, *_PARSED):
        named = call.name.lower() if isinstance(call, exp.Anonymous) else ""
        first = next(iter(call.expressions), None) if named else call.this
        name = named if named in _NAMED else _PARSED.get(type(call))
        if name is not None and not isinstance(first, exp.Order | exp.Distinct):
            yield name


@lru_cache(maxsize=16)
def unordered_fields(select: str) -> frozenset[str]:
    """Return the columns of a SELECT, as Postgres deparses it, whose elements may come in another order.

    A column is found by the name that it has in a subquery. So a column of the same name elsewhere is found, too.
    """
    try:
        tree = parser.parsed(select)
    except parser.UnreadableError:
        return frozenset()
    columns = [column for query in tree.find_all(exp.Select) for column in query.expressions]
    names: set[str] = set()
    while True:
        found = {
            column.alias_or_name
            for column in columns
            if any(unordered_aggregates(column)) or any(part.name in names for part in column.find_all(exp.Column))
        }
        if found <= names:
            return frozenset(names.intersection(tree.named_selects))
        names |= found
