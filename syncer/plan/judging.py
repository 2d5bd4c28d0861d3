"""Judging: what each mapping type of Elasticsearch makes of each type of Postgres. Pure: a table, in code.

Guarantee: every verdict is held against the real servers by ``tests/scenarios/test_fitting.py``. A pair of types
that is not judged here gets no verdict; what becomes of its values, the trial finds out: `syncer.plan.estimate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from syncer.plan.numeric import floating, scaled, whole
from syncer.plan.temporal import date
from syncer.plan.verdict import (
    BETTER,
    DATES,
    FLOAT_BITS,
    FRACTIONS,
    INTEGER_BITS,
    POSTGRES_NUMBERS,
    STRINGS,
    TEMPORAL,
    WHOLE_BITS,
    WORDS,
    ColumnType,
    Effect,
    Verdict,
    json_is_not,
    kind_of,
    like,
    never,
    refused,
)


def judge(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    """What a mapping makes of values of a type; nothing if they fit, or if that is not known."""
    known = _JUDGES.get(kind_of(mapping))
    if known is not None and type_.kind and mapping.get("enabled") is not False:
        yield from known(type_, mapping)


_RANGES = {"integer_range", "long_range", "float_range", "double_range", "date_range"}

_KEYWORD_BYTES_MAX = 32766

_EXACT = {"uuid", "enum", "inet", "cidr", "macaddr", "money", "interval", "range", "time", "timetz", "bytea", "bool"}

_FITTING = {
    "bool": "Map it as boolean.",
    "inet": "Map it as ip.",
    "cidr": "Map it as ip_range.",
    **dict.fromkeys(INTEGER_BITS, "Map it as long, or as keyword if it is only ever looked up."),
    **dict.fromkeys(FRACTIONS, "Map it as double or scaled_float."),
    **dict.fromkeys(TEMPORAL, "Map it as date."),
}

_AS_BOUNDS = (
    "Select its bounds as an object:\n"
    "CASE WHEN NOT isempty(column) THEN jsonb_build_object('gte', lower(column), 'lt', upper(column)) END."
)


def _keyword(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    longest = mapping.get("ignore_above")
    if type_.kind == "composite":
        yield never(type_, "it is an object")
    elif type_.kind == "json":
        yield refused(
            "a JSON object is refused",
            BETTER["json"],
            when="""jsonb_path_exists({}::jsonb, 'lax $[*] ? (@.type() == "object")')""",
        )
    elif type_.kind == "bpchar":
        yield Verdict(
            effect=Effect.UNSEARCHABLE,
            what="it is padded with spaces, and an exact search without them does not find it",
            mend="Cast it in the SELECT: column::text.",
            when="octet_length({}) <> octet_length({}::text)",
        )
    elif type_.kind == "text" and longest is not None:
        yield Verdict(
            effect=Effect.UNSEARCHABLE,
            what=f"a text of more than {longest:,} characters (ignore_above) is not found",
            mend="Raise ignore_above, or search such texts in a field of type text.",
            when=f"char_length({{}}::text) > {longest}",
            is_rare=True,
        )
    elif type_.kind == "text":
        yield refused(
            f"a text of more than {_KEYWORD_BYTES_MAX:,} bytes is refused",
            "Set ignore_above (8191 is safe for any text), or map it as text.",
            when=f"octet_length({{}}::text) > {_KEYWORD_BYTES_MAX}",
            is_rare=True,
        )


def _words(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    others = {kind_of(one) for one in mapping.get("fields", {}).values()}
    if type_.kind == "composite":
        yield never(type_, "it is an object")
    elif type_.kind == "json":
        yield from _keyword(type_, mapping)
    elif type_.kind == "tsvector":
        yield Verdict(
            effect=Effect.CHANGED,
            what="a tsvector is Postgres' own index of a text, such as 'fat':1 'rat':2, and is searched as that",
            mend="Select the text that it was made of.",
        )
    elif type_.kind in _EXACT | POSTGRES_NUMBERS | TEMPORAL and others <= WORDS:
        yield Verdict(
            effect=Effect.UNSEARCHABLE,
            what="it is cut into words: no exact search, no range, no sorting, no aggregation",
            mend=_FITTING.get(type_.kind, "Map it as keyword."),
        )


def _boolean(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind in STRINGS:
        yield refused(
            "a text other than true and false is refused",
            "Map it as keyword, or compare in the SELECT: column = 'yes'.",
            when="{}::text NOT IN ('true', 'false', '')",
        )
    elif type_.kind == "json":
        yield refused("JSON other than true and false is refused", BETTER["json"], when=json_is_not("boolean", "null"))
    elif type_.kind in POSTGRES_NUMBERS:
        yield refused("every value is refused: a number is not true or false", "Select column <> 0.")
    elif type_.kind != "bool":
        yield never(type_, f"{like(type_)} is not true or false")


def _binary(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "bytea":
        yield Verdict(
            effect=Effect.CHANGED,
            what=r"Postgres writes \x68656c6c6f, and Elasticsearch takes it for Base64",
            mend="Select encode(column, 'base64').",
        )


def _ip(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "inet":
        yield refused(
            "an address with a netmask is refused",
            "Select host(column), or map it as ip_range and select network(column).",
            when="masklen({}) <> CASE family({}) WHEN 4 THEN 32 ELSE 128 END",
            is_rare=True,
        )
    elif type_.kind in STRINGS:
        yield refused("a text that is not an address is refused", "Cast it in the SELECT, host(column::inet).")
    elif type_.kind != "json":
        yield never(type_, f"{like(type_)} is not an address")


def _ip_range(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "inet":
        yield refused(
            "an address without a netmask is refused",
            "Map it as ip; or select network(column), which always has one.",
            when="masklen({}) = CASE family({}) WHEN 4 THEN 32 ELSE 128 END",
        )
    elif type_.kind not in ("cidr", "json", *STRINGS):
        yield never(type_, f"{like(type_)} is not a network")


def _range(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "range":
        yield refused("every value is refused: Postgres writes [1,10) where bounds are expected", _AS_BOUNDS)
    elif type_.kind not in ("json", "composite"):
        yield never(type_, f"{like(type_)} is not a range")


def _object(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "json":
        yield refused(
            "JSON that is not an object is refused",
            "Select CASE jsonb_typeof(column) WHEN 'object' THEN column END.",
            when=json_is_not("object", "array", "null"),
            is_rare=True,
        )
    elif type_.kind != "composite":
        yield never(type_, f"{like(type_)} is not an object")


def _geo_point(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "point":
        yield refused("every value is refused: Postgres writes (2.35,48.85)", BETTER["point"])
    elif not (type_.is_array and type_.kind in POSTGRES_NUMBERS) and type_.kind not in ("json", *STRINGS):
        yield never(type_, f"{like(type_)} is not a point")


def _vector(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "vector":
        yield refused("every value is refused: Postgres writes it as a text", "Select column::real[].")
    elif not (type_.is_array and type_.kind in POSTGRES_NUMBERS) and type_.kind != "json":
        yield never(type_, f"{like(type_)} is not a list of numbers")


def _alias(_: ColumnType, __: Mapping[str, Any]) -> Iterator[Verdict]:
    yield refused("every document is refused: an alias holds no value of its own", "Map the field itself.")


_JUDGES = {
    **dict.fromkeys((*WHOLE_BITS, "unsigned_long"), whole),
    **dict.fromkeys(FLOAT_BITS, floating),
    "scaled_float": scaled,
    **dict.fromkeys(("keyword", "wildcard"), _keyword),
    **dict.fromkeys(WORDS, _words),
    **dict.fromkeys(DATES, date),
    "boolean": _boolean,
    "binary": _binary,
    "ip": _ip,
    "ip_range": _ip_range,
    **dict.fromkeys(_RANGES, _range),
    **dict.fromkeys(("object", "nested", "flattened"), _object),
    "geo_point": _geo_point,
    "dense_vector": _vector,
    "alias": _alias,
}
