"""Verdicts: what each mapping type of Elasticsearch makes of each type of Postgres. Pure: a table, in code.

Guarantee: every verdict is held against the real servers by ``tests/scenarios/test_fitting.py``. A pair of types
that is not judged here gets no verdict; what becomes of its values, the trial finds out: `syncer.plan.estimate`.
That a ``date`` keeps milliseconds, of Postgres' microseconds, is not worth a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """What becomes of a value that does not fit."""

    REFUSED = "refused"
    CHANGED = "changed"
    UNSEARCHABLE = "unsearchable"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """A type as far as JSON shows it: domains are what they are based on, arrays what their elements are.

    Args:
        said: As Postgres says it.
        kind: What its JSON is like: see `_KINDS`.
        is_array: Whether it is an array of that.
        attributes: Of a composite type.
    """

    said: str
    kind: str
    is_array: bool
    attributes: Mapping[str, ColumnType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of values.

    Args:
        effect: In one word.
        what: The same in a sentence.
        mend: What to do.
        when: SQL that says of which values, each ``{}`` being the value; None if of every one.
        is_rare: Whether such values are so unusual that only one that is there is worth a word.
    """

    effect: Effect
    what: str
    mend: str
    when: str | None = None
    is_rare: bool = False


def judge(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    """What a mapping makes of values of a type; nothing if they fit, or if that is not known."""
    known = _JUDGES.get(kind_of(mapping))
    if known is not None and type_.kind and mapping.get("enabled") is not False:
        yield from known(type_, mapping)


def kind_of(mapping: Mapping[str, Any]) -> str:
    """The mapping's type; a field with properties alone is an object."""
    return str(mapping.get("type", "object"))


# Elasticsearch's types

_WHOLE_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_FLOAT_BITS = {"half_float": 11, "float": 24, "double": 53}
NUMBERS = {*_WHOLE_BITS, *_FLOAT_BITS, "scaled_float", "unsigned_long"}
OBJECTS = {"object", "nested"}
WORDS = {"text", "match_only_text", "search_as_you_type"}
DATES = {"date", "date_nanos"}
_RANGES = {"integer_range", "long_range", "float_range", "double_range", "date_range"}

_POSTGRES_BITS = {"float4": 24, "float8": 53}
_INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
FRACTIONS = {"numeric", "float4", "float8"}
_POSTGRES_NUMBERS = {*_INTEGER_BITS, *FRACTIONS}
_STRINGS = {"text", "bpchar", "enum"}
_TEMPORAL = {"date", "timestamp", "timestamptz"}
_DAY = frozenset({"date"})
_INSTANT = frozenset({"timestamptz"})
_KEYWORD_BYTES_MAX = 32766

_DATE_FORMATS = {
    **dict.fromkeys(
        ("strict_date_optional_time", "date_optional_time", "strict_date_optional_time_nanos", "iso8601"), _TEMPORAL
    ),
    **dict.fromkeys(("strict_date", "date", "strict_year_month_day", "year_month_day", "yyyy-MM-dd"), _DAY),
    **dict.fromkeys(("strict_date_time", "date_time"), _INSTANT),
    **dict.fromkeys(("strict_date_time_no_millis", "date_time_no_millis"), _INSTANT),
    **dict.fromkeys(("epoch_millis", "epoch_second"), _POSTGRES_NUMBERS),
}
"""Which types each format of Elasticsearch parses, as Postgres writes them in JSON. Others are not judged."""
_NO_FRACTION = {"strict_date_time_no_millis", "date_time_no_millis", "epoch_millis", "epoch_second"}


def _refused(what: str, mend: str, *, when: str | None = None, is_rare: bool = False) -> Verdict:
    return Verdict(effect=Effect.REFUSED, what=what, mend=mend, when=when, is_rare=is_rare)


def _never(type_: ColumnType, what: str) -> Verdict:
    """For a type of which no value fits."""
    return _refused(f"every value is refused: {what}", _BETTER.get(type_.kind, "Map it as keyword, or cast it."))


_BETTER = {
    "bool": "Map it as boolean, or cast it in the SELECT: column::int.",
    "bytea": "Map it as binary, and select encode(column, 'base64').",
    "cidr": "Map it as ip_range.",
    "composite": "Map it as object, with the composite type's columns as its properties.",
    "date": "Map it as date.",
    "inet": "Map it as ip.",
    "interval": "Select extract(epoch FROM column) and map it as double, or map it as keyword.",
    "json": "Map it as object or flattened, or select the one value: column ->> 'name'.",
    "money": "Select column::numeric and map it as scaled_float.",
    "point": "Map it as geo_point; and select jsonb_build_object('lon', column[0], 'lat', column[1]).",
    "range": "Map it as a range (integer_range, date_range, …), and select its bounds as an object:\n"
    "jsonb_build_object('gte', lower(column), 'lt', upper(column)).",
    "timestamp": "Map it as date.",
    "timestamptz": "Map it as date.",
    "vector": "Map it as dense_vector, and select column::real[].",
    **dict.fromkeys(_POSTGRES_NUMBERS, "Map it as a number: long, double or scaled_float."),
    **dict.fromkeys(_STRINGS, "Map it as keyword or text, or cast it in the SELECT."),
}


def _whole(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    kind = kind_of(mapping)
    low, high = (0, (1 << 64) - 1) if kind == "unsigned_long" else _limits(_WHOLE_BITS[kind])
    if type_.kind in _INTEGER_BITS:
        least, greatest = _limits(_INTEGER_BITS[type_.kind])
        if least < low or greatest > high:
            yield _refused(
                f"a value outside {low:,} to {high:,} is refused",
                f"Map it as {_whole_type(type_.kind)}.",
                when=f"{{}} NOT BETWEEN {low} AND {high}",
            )
    elif type_.kind in FRACTIONS and mapping.get("coerce") is False:
        yield _refused("a fraction is refused", _AS_FRACTION, when="{} <> trunc({}::numeric)")
    elif type_.kind in FRACTIONS:
        yield Verdict(
            effect=Effect.CHANGED,
            what="fractions are cut off: 12.34 is searched, sorted and summed as 12",
            mend=_AS_FRACTION,
            when="{}::text NOT IN ('NaN', 'Infinity', '-Infinity') AND {} <> trunc({}::numeric)",
        )
        yield _beyond(low, high)
    else:
        yield from _not_a_number(type_, mapping)


_AS_FRACTION = "Map it as double, or as scaled_float for money; or round it in the SELECT."


def _beyond(low: int, high: int) -> Verdict:
    return Verdict(
        effect=Effect.REFUSED,
        what=f"a value outside {low:,} to {high:,} is refused",
        mend="Map it as double or keyword.",
        when=f"{{}}::text <> 'NaN' AND {{}} NOT BETWEEN {low} AND {high}",
        is_rare=True,
    )


def _limits(bits: int) -> tuple[int, int]:
    return -(1 << bits - 1), (1 << bits - 1) - 1


def _whole_type(kind: str) -> str:
    return next(name for name, bits in _WHOLE_BITS.items() if bits == _INTEGER_BITS[kind])


def _not_a_number(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind in _STRINGS and mapping.get("coerce") is not False:
        yield _refused(
            "a text that is not a number is refused",
            "Cast it in the SELECT, as in column::bigint, or map it as keyword.",
            when=r"{}::text !~ '^([+-]?\d+(\.\d+)?)?$'",
        )
    elif type_.kind == "json":
        yield _refused(
            "JSON that is not a number is refused", _BETTER["json"], when=_json_is_not("number", "array", "null")
        )
    else:
        yield _never(type_, f"{_like(type_)} is not a number")


def _json_is_not(*kinds: str) -> str:
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    return f"jsonb_typeof({{}}::jsonb) NOT IN ({listed})"


def _floating(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    bits = _FLOAT_BITS[kind_of(mapping)]
    if _INTEGER_BITS.get(type_.kind, 0) > bits:
        yield Verdict(
            effect=Effect.CHANGED,
            what=f"numbers beyond {1 << bits:,} are rounded, so that two different ones are found as the same",
            mend=f"Map it as {_whole_type(type_.kind)}.",
            when=f"{{}} NOT BETWEEN {-(1 << bits)} AND {1 << bits}",
        )
    elif type_.kind in _INTEGER_BITS:
        return
    elif type_.kind in FRACTIONS:
        if type_.kind == "numeric" or bits < _POSTGRES_BITS[type_.kind]:
            yield _rounded(type_, bits)
        yield _refused(
            "NaN and Infinity are refused",
            "Select nullif(column, 'NaN').",
            when="{}::text IN ('NaN', 'Infinity', '-Infinity')",
            is_rare=True,
        )
    else:
        yield from _not_a_number(type_, mapping)


_DIGITS = {11: 3, 24: 6, 53: 15}


def _rounded(type_: ColumnType, bits: int) -> Verdict:
    digits = _DIGITS[bits]
    money = "scaled_float keeps a fixed number of decimals, keyword keeps every digit."
    exact = f"round({{}}::numeric, {digits} - 1 - floor(log(abs({{}}::numeric)))::int) <> {{}}::numeric"
    return Verdict(
        effect=Effect.CHANGED,
        what=f"a number of more than {digits} digits is rounded",
        mend=money if type_.kind == "numeric" else "Map it as double.",
        when=f"CASE WHEN {{}}::text IN ('NaN', 'Infinity', '-Infinity') OR {{}} = 0 THEN false ELSE {exact} END",
        is_rare=bits == _FLOAT_BITS["double"],
    )


def _scaled(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    factor = mapping.get("scaling_factor", 1)
    if type_.kind in FRACTIONS:
        yield Verdict(
            effect=Effect.CHANGED,
            what=f"a value is rounded to a multiple of 1/{factor}",
            mend="Is scaling_factor large enough for every decimal of the column?",
            when=f"{{}}::text NOT IN ('NaN', 'Infinity', '-Infinity') "
            f"AND {{}}::numeric * {factor} <> round({{}}::numeric * {factor})",
            is_rare=True,
        )
    elif type_.kind not in _INTEGER_BITS:
        yield from _not_a_number(type_, mapping)


def _keyword(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    longest = mapping.get("ignore_above")
    if type_.kind == "composite":
        yield _never(type_, "it is an object")
    elif type_.kind == "json":
        yield _refused(
            "a JSON object is refused",
            _BETTER["json"],
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
        yield _refused(
            f"a text of more than {_KEYWORD_BYTES_MAX:,} bytes is refused",
            "Set ignore_above (8191 is safe for any text), or map it as text.",
            when=f"octet_length({{}}::text) > {_KEYWORD_BYTES_MAX}",
            is_rare=True,
        )


_EXACT = {"uuid", "enum", "inet", "cidr", "macaddr", "money", "interval", "range", "time", "timetz", "bytea", "bool"}


def _words(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    others = {kind_of(one) for one in mapping.get("fields", {}).values()}
    if type_.kind == "composite":
        yield _never(type_, "it is an object")
    elif type_.kind == "json":
        yield from _keyword(type_, mapping)
    elif type_.kind == "tsvector":
        yield Verdict(
            effect=Effect.CHANGED,
            what="a tsvector is Postgres' own index of a text, such as 'fat':1 'rat':2, and is searched as that",
            mend="Select the text that it was made of.",
        )
    elif type_.kind in _EXACT | _POSTGRES_NUMBERS | _TEMPORAL and others <= WORDS:
        yield Verdict(
            effect=Effect.UNSEARCHABLE,
            what="it is cut into words: no exact search, no range, no sorting, no aggregation",
            mend=_FITTING.get(type_.kind, "Map it as keyword."),
        )


_FITTING = {
    "bool": "Map it as boolean.",
    "inet": "Map it as ip.",
    "cidr": "Map it as ip_range.",
    **dict.fromkeys(_INTEGER_BITS, "Map it as long, or as keyword if it is only ever looked up."),
    **dict.fromkeys(FRACTIONS, "Map it as double or scaled_float."),
    **dict.fromkeys(_TEMPORAL, "Map it as date."),
}


def _date(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    formats = str(mapping.get("format", "strict_date_optional_time||epoch_millis")).split("||")
    if type_.kind in _TEMPORAL:
        yield from _time(type_, mapping, formats)
    elif type_.kind in _POSTGRES_NUMBERS and "format" not in mapping:
        yield Verdict(
            effect=Effect.CHANGED,
            what="a number is read as milliseconds since 1970: the year 2026 becomes two seconds",
            mend="Select to_timestamp(column) for seconds; or, if it is milliseconds, say so: "
            '"format": "epoch_millis".',
        )
    elif type_.kind in _STRINGS and "format" not in mapping:
        yield _refused(
            "a text that is not a date is refused",
            "Cast it in the SELECT, as in column::timestamptz, or map it as keyword.",
            when=r"{}::text !~ '^\d{4}(-\d\d){0,2}(T.*)?$|^-?\d+$'",
        )
    elif type_.kind == "json" or type_.kind in _POSTGRES_NUMBERS | _STRINGS:
        return
    else:
        yield _never(type_, f"{_like(type_)} is not a date")


def _time(type_: ColumnType, mapping: Mapping[str, Any], formats: list[str]) -> Iterator[Verdict]:
    known = [_DATE_FORMATS[one] for one in formats if one in _DATE_FORMATS]
    if len(known) == len(formats) and not any(type_.kind in one for one in known):
        yield _refused(
            f"every value is refused: Postgres writes {_EXAMPLES[type_.kind]}, and the format is {'||'.join(formats)}",
            "Leave format out, or add strict_date_optional_time to it with ||.",
        )
        return
    if set(formats) <= _NO_FRACTION:
        yield _refused(
            "a fraction of a second is refused by the format",
            "Leave format out, or select date_trunc('second', column).",
            when="{} <> date_trunc('second', {})",
        )
    if kind_of(mapping) == "date_nanos":
        yield _refused(
            "date_nanos holds 1970 to 2262, and a value outside is refused",
            "Map it as date.",
            when="{} NOT BETWEEN '1970-01-01' AND '2262-04-11'",
            is_rare=True,
        )
    else:
        yield _refused(
            "infinity, and a year before 1 or after 9999, is refused",
            "Select CASE WHEN isfinite(column) THEN column END.",
            when="{} NOT BETWEEN '0001-01-01' AND '9999-12-31'",
            is_rare=True,
        )


_EXAMPLES = {
    "date": "2026-11-21",
    "timestamp": "2026-11-21T10:00:00.123456",
    "timestamptz": "2026-11-21T10:00:00.123456+00:00",
}


def _boolean(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind in _STRINGS:
        yield _refused(
            "a text other than true and false is refused",
            "Map it as keyword, or compare in the SELECT: column = 'yes'.",
            when="{}::text NOT IN ('true', 'false', '')",
        )
    elif type_.kind == "json":
        yield _refused(
            "JSON other than true and false is refused", _BETTER["json"], when=_json_is_not("boolean", "null")
        )
    elif type_.kind in _POSTGRES_NUMBERS:
        yield _refused("every value is refused: a number is not true or false", "Select column <> 0.")
    elif type_.kind != "bool":
        yield _never(type_, f"{_like(type_)} is not true or false")


def _binary(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "bytea":
        yield Verdict(
            effect=Effect.CHANGED,
            what=r"Postgres writes \x68656c6c6f, and Elasticsearch takes it for Base64",
            mend="Select encode(column, 'base64').",
        )


def _ip(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "inet":
        yield _refused(
            "an address with a netmask is refused",
            "Select host(column), or map it as ip_range and select network(column).",
            when="masklen({}) <> CASE family({}) WHEN 4 THEN 32 ELSE 128 END",
            is_rare=True,
        )
    elif type_.kind in _STRINGS:
        yield _refused("a text that is not an address is refused", "Cast it in the SELECT, host(column::inet).")
    elif type_.kind != "json":
        yield _never(type_, f"{_like(type_)} is not an address")


def _ip_range(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "inet":
        yield _refused(
            "an address without a netmask is refused",
            "Map it as ip; or select network(column), which always has one.",
            when="masklen({}) = CASE family({}) WHEN 4 THEN 32 ELSE 128 END",
        )
    elif type_.kind not in ("cidr", "json", *_STRINGS):
        yield _never(type_, f"{_like(type_)} is not a network")


def _range(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "range":
        yield _refused("every value is refused: Postgres writes [1,10) where bounds are expected", _AS_BOUNDS)
    elif type_.kind not in ("json", "composite"):
        yield _never(type_, f"{_like(type_)} is not a range")


_AS_BOUNDS = (
    "Select its bounds as an object:\n"
    "CASE WHEN NOT isempty(column) THEN jsonb_build_object('gte', lower(column), 'lt', upper(column)) END."
)


def _object(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "json":
        yield _refused(
            "JSON that is not an object is refused",
            "Select CASE jsonb_typeof(column) WHEN 'object' THEN column END.",
            when=_json_is_not("object", "array", "null"),
            is_rare=True,
        )
    elif type_.kind != "composite":
        yield _never(type_, f"{_like(type_)} is not an object")


def _geo_point(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "point":
        yield _refused("every value is refused: Postgres writes (2.35,48.85)", _BETTER["point"])
    elif not (type_.is_array and type_.kind in _POSTGRES_NUMBERS) and type_.kind not in ("json", *_STRINGS):
        yield _never(type_, f"{_like(type_)} is not a point")


def _vector(type_: ColumnType, _: Mapping[str, Any]) -> Iterator[Verdict]:
    if type_.kind == "vector":
        yield _refused("every value is refused: Postgres writes it as a text", "Select column::real[].")
    elif not (type_.is_array and type_.kind in _POSTGRES_NUMBERS) and type_.kind != "json":
        yield _never(type_, f"{_like(type_)} is not a list of numbers")


def _alias(_: ColumnType, __: Mapping[str, Any]) -> Iterator[Verdict]:
    yield _refused("every document is refused: an alias holds no value of its own", "Map the field itself.")


def _like(type_: ColumnType) -> str:
    return f"{'an array of ' if type_.is_array else ''}{type_.said.removesuffix('[]')}"


_JUDGES = {
    **dict.fromkeys((*_WHOLE_BITS, "unsigned_long"), _whole),
    **dict.fromkeys(_FLOAT_BITS, _floating),
    "scaled_float": _scaled,
    **dict.fromkeys(("keyword", "wildcard"), _keyword),
    **dict.fromkeys(WORDS, _words),
    **dict.fromkeys(DATES, _date),
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
