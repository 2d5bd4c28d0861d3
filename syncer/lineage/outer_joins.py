"""Outer joins: those that return what an inner join would, because the rows that they fill with nulls do not matter.

A column is *present* if rows in which it is null do not matter: WHERE or the ON of an inner join rejects them, or the
reader of the query does, as with ``_id``. If a column of a side is present, the join adds no rows in which that side is
null.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from syncer.lineage.scope import STEADY
from syncer.lineage.select_parts import conjuncts

Present = set[tuple[str, str]]
"""Columns, each with the alias of its source."""


def effective_sides(
    select: exp.Select, wanted: Iterable[exp.Expr], *, are_texts: bool
) -> tuple[dict[int, str], Present]:
    """Return the side that each join of a SELECT has in effect, by the join's ``id()``, and the present columns.

    Args:
        select: The SELECT.
        wanted: Expressions of which the reader rejects nulls, and which all rows that compete share.
        are_texts: Whether a ``||`` in them is one of texts, which is strict; that of arrays is not.
    """
    where, source = select.args.get("where"), select.args.get("from_")
    items = [source.this] if source is not None else []
    items += [join.this for join in select.args.get("joins") or []]  # items after a comma
    only = items[0].alias_or_name if len(items) == 1 and not items[0].args.get("joins") else ""
    present = {column for one in wanted for column in _columns(one, only, are_texts=are_texts)}
    present |= {column for one in conjuncts(where.this) for column in _rejected(one, only)} if where else set()
    sides: dict[int, str] = {}
    known = -1
    while known < len(present):
        known = len(present)
        for item in items:
            _read(item, present, sides, is_sure=True)
    return sides, present


def _read(item: exp.Expr, present: Present, sides: dict[int, str], *, is_sure: bool) -> None:
    """Decide about the joins attached to a FROM item; ``is_sure`` if all of it is in every row that matters."""
    joins = item.args.get("joins") or []
    for number, join in reversed(list(enumerate(joins))):
        left = _own_aliases(item).union(*(_aliases(one.this) for one in joins[:number]))
        has_left, has_right = (any(alias in names for alias, _ in present) for names in (left, _aliases(join.this)))
        side = (join.side or "").upper()
        keeps_left = side in ("LEFT", "FULL") and not has_right
        keeps_right = side in ("RIGHT", "FULL") and not has_left
        sides[id(join)] = {
            (False, False): "", (True, False): "LEFT", (False, True): "RIGHT", (True, True): "FULL"
        }[keeps_left, keeps_right]  # fmt: skip
        on = join.args.get("on")
        if on is not None and is_sure and not keeps_left and not keeps_right:
            present.update(column for one in conjuncts(on) for column in _rejected(one, ""))
        _read(join.this, present, sides, is_sure=is_sure and not keeps_left)
        is_sure = is_sure and not keeps_right
    if _is_parenthesised(item):
        _read(item.this, present, sides, is_sure=is_sure)


def _aliases(item: exp.Expr) -> set[str]:
    return _own_aliases(item).union(*(_aliases(join.this) for join in item.args.get("joins") or []))


def _own_aliases(item: exp.Expr) -> set[str]:
    return _aliases(item.this) if _is_parenthesised(item) else {item.alias_or_name}


def _is_parenthesised(item: exp.Expr) -> bool:
    return isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table | exp.Subquery) and not item.alias


def _rejected(condition: exp.Expr, only: str) -> Present:
    """Return the columns of which a condition rejects nulls."""
    if isinstance(condition, exp.EQ):
        return _columns(condition.left, only) | _columns(condition.right, only)
    if isinstance(condition, exp.Is) and condition.args.get("negate") and isinstance(condition.expression, exp.Null):
        return _columns(condition.this, only)
    return set()


def _columns(expression: exp.Expr, only: str, *, are_texts: bool = False) -> Present:
    """Return the columns of a strict expression; ``only`` is the single source, if there is one."""
    expression = expression.unalias()
    parts = list(expression.walk())
    if not all(isinstance(part, STEADY) and (are_texts or not isinstance(part, exp.DPipe)) for part in parts):
        return set()
    return {(part.table or only, part.name) for part in parts if isinstance(part, exp.Column)}
