"""Field: maps a Postgres type to an Elasticsearch mapping, and a column to an expression of the SELECT.

Guarantee: the mapping accepts every value of the type except NaN, Infinity, the date infinity, and vectors that
Elasticsearch cannot index. Types that are changed, left out or better mapped otherwise get a remark.
"""

from __future__ import annotations

import re
from typing import Any

from psycopg import sql

from syncer.apply.preview.column_type import ColumnType
from syncer.apply.scaffold.catalogue import Column

_LONG_DIGITS_MAX = 18
_IGNORE_ABOVE = 8191
_NUMERIC = re.compile(r"numeric\((\d+),0\)(\[\])*$")
_DIMENSIONS = re.compile(r"\((\d+)\)")

TEXT: dict[str, Any] = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": _IGNORE_ABOVE}},
}
_KEYWORD: dict[str, Any] = {"type": "keyword", "ignore_above": _IGNORE_ABOVE}
DATE: dict[str, Any] = {"type": "date"}

_MAPPINGS: dict[str, dict[str, Any]] = {
    "int2": {"type": "short"},
    "int4": {"type": "integer"},
    "int8": {"type": "long"},
    "float4": {"type": "float"},
    "float8": {"type": "double"},
    "numeric": {"type": "double"},
    "bool": {"type": "boolean"},
    "text": TEXT,
    "bpchar": TEXT,
    **dict.fromkeys(("date", "timestamp", "timestamptz"), DATE),
}
"""By kind of type. Other types are mapped as keyword, with the text that Postgres shows."""

_LEFT_OUT = {
    "bytea": "bytes are not searched: encode(column, 'base64') and the type binary would show them",
    "tsvector": "it is Postgres' own way to search: select the text that it is made of",
    "geometry": "its text is not readable: ST_AsGeoJSON(column)::jsonb and the type geo_shape would make it searchable",
}
_CASTS = {"money": "numeric", "bpchar": "text", "vector": "real[]"}
_REMARKS = {
    "numeric": "double rounds to 15 digits; for money use scaled_float if the server has it, for every digit keyword",
    "money": "a text with a currency sign; column::numeric would make it a number",
    "vector": "a text; column::real[] and the type dense_vector would make it searchable",
    "inet": "the type ip searches by network, if no address has a netmask",
    "cidr": "the type ip_range searches by network",
    "range": "shown as text; a range type wants jsonb_build_object('gte', lower(column), 'lt', upper(column))",
    "point": "shown as text; geo_point wants column[1] || ',' || column[0], latitude first",
}


def expression(column: Column, name: sql.Composable) -> sql.Composable:
    """Return what a draft selects of a column that it does not leave out."""
    cast = _CASTS.get(column.type.kind)
    return (
        sql.SQL("{}::{}{}").format(name, sql.SQL(cast), sql.SQL("[]" if column.type.is_array else "")) if cast else name
    )


def of_type(type_: ColumnType) -> tuple[dict[str, Any], str]:
    """Return the mapping of a type, and a remark on it, which may be empty."""
    kind = type_.kind
    whole = _NUMERIC.match(type_.said)
    if whole and int(whole[1]) <= _LONG_DIGITS_MAX:
        return {"type": "long"}, ""
    if kind == "text" and type_.is_array:
        return dict(_KEYWORD), ""
    if kind == "vector" and type_.is_array:
        dimensions = _DIMENSIONS.search(type_.said)
        return {"type": "dense_vector"} | ({"dims": int(dimensions[1])} if dimensions else {}), ""
    return dict(_MAPPINGS.get(kind, _KEYWORD)), _REMARKS.get(kind) or _LEFT_OUT.get(kind, "")


def left_out(column: Column) -> str:
    """Why a draft leaves a column out; empty if it does not."""
    return _LEFT_OUT.get(column.type.kind, "")
