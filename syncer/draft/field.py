"""Field: what a column becomes: an expression of the SELECT, and its mapping.

Guarantees that no value of the column's type is refused by the mapping, with these exceptions, which `syncer plan`
looks for among the rows: numbers that are none (NaN, Infinity), dates that are none (infinity), JSON that is no object.
What is changed, or left out, has a remark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from syncer.draft.catalogue import Column
from syncer.plan.verdict import ColumnType

_LONG_DIGITS_MAX = 18
_IGNORE_ABOVE = 8191
_NUMERIC = re.compile(r"numeric\((\d+),0\)(\[\])*$")

_TEXT: dict[str, Any] = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": _IGNORE_ABOVE}},
}
_LABELS: dict[str, Any] = {"type": "keyword", "ignore_above": _IGNORE_ABOVE}
"""Of several texts: they are mostly labels."""
_KEYWORD: dict[str, Any] = {"type": "keyword"}
_DATE: dict[str, Any] = {"type": "date"}
_OBJECT: dict[str, Any] = {"type": "object", "dynamic": False}

_MAPPINGS: dict[str, dict[str, Any]] = {
    "int2": {"type": "short"},
    "int4": {"type": "integer"},
    "int8": {"type": "long"},
    "float4": {"type": "float"},
    "float8": {"type": "double"},
    "numeric": {"type": "double"},
    "money": {"type": "double"},
    "bool": {"type": "boolean"},
    "text": _TEXT,
    "bpchar": _TEXT,
    **dict.fromkeys(("date", "timestamp", "timestamptz"), _DATE),
    **dict.fromkeys(("json", "composite"), _OBJECT),
    **dict.fromkeys(("uuid", "enum", "time", "timetz", "interval", "inet", "cidr", "macaddr", "range"), _KEYWORD),
    **dict.fromkeys(("point", "shape"), _KEYWORD),
}
"""By the kind of a type. Whatever is not here is a keyword, as the text that Postgres shows."""

SHOWN_AS_THEY_ARE = frozenset(_MAPPINGS) - {"money", "bpchar", "range", "point", "shape"}
"""The kinds that are not cast."""

_LEFT_OUT = {
    "bytea": "bytes are not searched: encode(column, 'base64') and the type binary would show them",
    "tsvector": "it is Postgres' own way to search: select the text that it is made of",
    "vector": "column::real[] and the type dense_vector would make it searchable",
}
_CASTS = {"money": "numeric", "bpchar": "text", "range": "text", "point": "text", "shape": "text"}
_REMARKS = {
    "numeric": "double rounds to 15 digits; for money use scaled_float, for every digit keyword",
    "money": "double rounds to 15 digits; for money use scaled_float",
    "json": "shown whole, and not searched: flattened, or properties of its own, would make it searchable",
    "inet": "the type ip searches by network, if no address has a netmask",
    "cidr": "the type ip_range searches by network",
    "range": "shown as text; a range type wants jsonb_build_object('gte', lower(column), 'lt', upper(column))",
    "point": "shown as text; geo_point wants jsonb_build_object('lon', column[0], 'lat', column[1])",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What a column becomes.

    Args:
        expression: Of the SELECT; None if the column is left out.
        mapping: Of Elasticsearch; None likewise.
        remark: What to know of it; empty if there is nothing.
    """

    expression: sql.Composable | None
    mapping: dict[str, Any] | None
    remark: str = ""


def of_column(column: Column, expression: sql.Composable) -> Field:
    """What a column becomes.

    Args:
        column: Which.
        expression: How the SELECT names it.
    """
    kind = column.type.kind
    if kind in _LEFT_OUT:
        return Field(expression=None, mapping=None, remark=_LEFT_OUT[kind])
    cast = _CASTS.get(kind) or ("" if kind in _MAPPINGS else "text")
    if cast:
        expression = sql.SQL("{}::{}{}").format(
            expression, sql.SQL(cast), sql.SQL("[]" if column.type.is_array else "")
        )
    whole = _NUMERIC.match(column.said)
    if whole and int(whole[1]) <= _LONG_DIGITS_MAX:
        return Field(expression=expression, mapping={"type": "long"})
    return Field(expression=expression, mapping=_mapping(column.type), remark=_REMARKS.get(kind, ""))


def _mapping(type_: ColumnType) -> dict[str, Any]:
    if type_.is_array and type_.kind == "text":
        return dict(_LABELS)
    mapping = dict(_MAPPINGS.get(type_.kind, _KEYWORD))
    if type_.kind == "composite":
        # What is left out here is shown all the same, and not searched.
        inside = {
            name: _mapping(one)
            for name, one in type_.attributes.items()
            if one.kind in _MAPPINGS and one.kind not in _CASTS and _is_plain(name)
        }
        mapping |= {"properties": inside} if inside else {}
    return mapping


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z]\w*", name) is not None
