"""Remarks: parts of a SELECT whose result depends on the session or on chance, for `syncer plan` to point out.

They are found in the stored query itself, and in those of the views that it reads, at any depth; not in the bodies of
functions, nor where a function such as `concat` prints a value of any type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from syncer.base.postgres import Connection
from syncer.lineage.catalog import RULES, as_view


class RemarkKind(StrEnum):
    """What a result depends on."""

    ORDER = "order"
    """The order in which an aggregate meets its rows."""
    TIME_ZONE = "time zone"
    """The setting TimeZone."""
    FORMAT = "format"
    """The settings TimeZone, DateStyle, IntervalStyle or extra_float_digits."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Remark:
    """A part of a SELECT.

    Args:
        kind: What its result depends on.
        name: The function, or the cast.
        view: The view that it is in, ``schema.view``; empty if it is in the SELECT itself.
    """

    kind: RemarkKind
    name: str
    view: str


_NODES = (
    RULES
    + """
SELECT CASE WHEN c.oid = 'pg_temp.syncer_probe'::regclass THEN '' ELSE format('%I.%I', n.nspname, c.relname) END,
       r.ev_action::text
FROM rule JOIN pg_rewrite AS r ON r.oid = rule.oid
JOIN pg_class AS c ON c.oid = rule.ev_class JOIN pg_namespace AS n ON n.oid = c.relnamespace
"""
)
# Aggregates over json objects are left out: the order of keys is no difference. So are those of users, which may not
# depend on the order.
_ORDERED = """
SELECT oid::int, proname::text FROM pg_proc
WHERE oid = ANY ($1) AND pronamespace = 'pg_catalog'::regnamespace
  AND proname ~ '^(array_agg|string_agg|xmlagg|jsonb?_agg(_strict)?)$'
"""
# A stable function of Postgres that takes or returns a time with a zone, or converts one to the other, unless it is
# told the zone, or only adds an interval.
_ZONED = """
SELECT p.oid::int, format('%s(%s)', p.proname, oidvectortypes(p.proargtypes))
FROM pg_proc AS p
WHERE p.oid = ANY ($1) AND p.provolatile = 's' AND p.pronamespace = 'pg_catalog'::regnamespace
  AND p.proargtypes::oid[] || p.prorettype && '{timestamptz,timetz,tstzrange}'::regtype[]::oid[]
  AND p.proname NOT IN ('timestamptz_pl_interval', 'timestamptz_mi_interval', 'interval_pl_timestamptz')
  AND NOT (p.proname = 'date_trunc' AND p.pronargs = 3) AND NOT (p.proname = 'make_timestamptz' AND p.pronargs = 7)
"""
_INTERVALS = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = 'pg_temp.syncer_probe'::regclass AND attnum > 0
      AND atttypid IN ('interval'::regtype, 'interval[]'::regtype)
"""
_TYPES = "SELECT oid::int, format_type(oid, NULL) FROM pg_type WHERE oid = ANY ($1)"
_PRINTED_BY_SETTING = frozenset(
    {
        *("date", "timestamp without time zone", "timestamp with time zone", "time with time zone", "interval"),
        *("real", "double precision"),
    }
)
_TEXTS = frozenset({25, 1042, 1043})
_FUNCTION = re.compile(r":(?:funcid|opfuncid) (\d+)")
_AGGREGATE = re.compile(r"\{AGGREF :aggfnoid (\d+)")
_CAST = re.compile(r"\{COERCEVIAIO :arg \{")
_TYPES_OF_NODES = (
    *("vartype", "consttype", "paramtype", "funcresulttype", "opresulttype", "resulttype", "aggtype", "wintype"),
    *("casetype", "coalescetype", "minmaxtype"),
)
"""The fields in which nodes of an expression keep the type of their value."""
# In a name, a brace stands behind a backslash.
_BRACE = re.compile(r"\\.|[{}]")
_BRACE_OR_FIELD = re.compile(r"\\.|[{}]|:(\w+) ([^\s{}]+)")
_DEPTHS = {"{": 1, "}": -1}


def remarks(connection: Connection, query: str, file: str) -> list[Remark]:
    """Return what to point out in a SELECT that `syncer.lineage.catalog.probe` accepts."""
    with as_view(connection, query, file):
        found = [
            remark
            for view, tree in connection.execute(_NODES).fetchall()
            for remark in (
                *_unordered(connection, view, tree),
                *_zoned(connection, view, tree),
                *_printed(connection, view, tree),
            )
        ]
        found += [
            Remark(kind=RemarkKind.FORMAT, name=f"the interval {name}", view="")
            for (name,) in connection.execute(_INTERVALS).fetchall()
        ]
    return sorted(set(found))


def _unordered(connection: Connection, view: str, tree: str) -> Iterator[Remark]:
    """Yield the aggregates without ORDER BY or DISTINCT whose result depends on the order."""
    bare = {
        int(found[1])
        for found in _AGGREGATE.finditer(tree)
        for node in [_node(tree, found.start())]
        if _field(node, "aggorder") == "<>" and _field(node, "aggdistinct") == "<>"
    }
    for _, name in connection.execute(_ORDERED, (sorted(bare),)).fetchall() if bare else ():
        yield Remark(kind=RemarkKind.ORDER, name=name, view=view)


def _zoned(connection: Connection, view: str, tree: str) -> Iterator[Remark]:
    called = sorted({int(number) for number in _FUNCTION.findall(tree)})
    for _, name in connection.execute(_ZONED, (called,)).fetchall() if called else ():
        yield Remark(kind=RemarkKind.TIME_ZONE, name=name, view=view)


def _printed(connection: Connection, view: str, tree: str) -> Iterator[Remark]:
    """Yield the casts to text of types that are printed as settings say."""
    types = set()
    for found in _CAST.finditer(tree):
        cast, argument = _node(tree, found.start()), _node(tree, found.end() - 1)
        of = next(filter(None, (_field(argument, name) for name in _TYPES_OF_NODES)), "")
        if of and int(_field(cast, "resulttype")) in _TEXTS:
            types.add(int(of))
    for _, name in connection.execute(_TYPES, (sorted(types),)).fetchall() if types else ():
        if name in _PRINTED_BY_SETTING:
            yield Remark(kind=RemarkKind.FORMAT, name=f"{name}::text", view=view)


def _node(tree: str, start: int) -> str:
    """Return the text of the node that begins at a brace."""
    depth = 0
    for found in _BRACE.finditer(tree, start):
        depth += _DEPTHS.get(found[0], 0)
        if not depth:
            return tree[start : found.end()]
    return tree[start:]


def _field(node: str, name: str) -> str:
    """Return the beginning of a field of a node itself, not of a node in it."""
    depth = 0
    for found in _BRACE_OR_FIELD.finditer(node):
        depth += _DEPTHS.get(found[0], 0)
        if depth == 1 and found[1] == name:
            return found[2]
    return ""
