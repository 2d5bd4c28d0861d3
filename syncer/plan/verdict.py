"""Verdicts: what a mapping makes of a type's values, and the types on either side. Pure.

Who judges: `syncer.plan.judging`, of numbers `syncer.plan.numeric`, of dates and times `syncer.plan.temporal`.
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


WHOLE_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}

FLOAT_BITS = {"half_float": 11, "float": 24, "double": 53}

NUMBERS = {*WHOLE_BITS, *FLOAT_BITS, "scaled_float", "unsigned_long"}

OBJECTS = {"object", "nested"}

WORDS = {"text", "match_only_text", "search_as_you_type"}

DATES = {"date", "date_nanos"}

INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}

FRACTIONS = {"numeric", "float4", "float8"}

POSTGRES_NUMBERS = {*INTEGER_BITS, *FRACTIONS}

STRINGS = {"text", "bpchar", "enum"}

TEMPORAL = {"date", "timestamp", "timestamptz"}

BETTER = {
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
    **dict.fromkeys(POSTGRES_NUMBERS, "Map it as a number: long, double or scaled_float."),
    **dict.fromkeys(STRINGS, "Map it as keyword or text, or cast it in the SELECT."),
}


def kind_of(mapping: Mapping[str, Any]) -> str:
    """The mapping's type; a field with properties alone is an object."""
    return str(mapping.get("type", "object"))


def refused(what: str, mend: str, *, when: str | None = None, is_rare: bool = False) -> Verdict:
    """A verdict that Elasticsearch takes no document with such a value."""
    return Verdict(effect=Effect.REFUSED, what=what, mend=mend, when=when, is_rare=is_rare)


def never(type_: ColumnType, what: str) -> Verdict:
    """For a type of which no value fits."""
    return refused(f"every value is refused: {what}", BETTER.get(type_.kind, "Map it as keyword, or cast it."))


def not_a_number(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    """Of a type that is no number, in a mapping for numbers."""
    if type_.kind in STRINGS and mapping.get("coerce") is not False:
        yield refused(
            "a text that is not a number is refused",
            "Cast it in the SELECT, as in column::bigint, or map it as keyword.",
            when=r"{}::text !~ '^([+-]?\d+(\.\d+)?)?$'",
        )
    elif type_.kind == "json":
        yield refused(
            "JSON that is not a number is refused", BETTER["json"], when=json_is_not("number", "array", "null")
        )
    else:
        yield never(type_, f"{like(type_)} is not a number")


def json_is_not(*kinds: str) -> str:
    """The condition that JSON is of none of these kinds."""
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    return f"jsonb_typeof({{}}::jsonb) NOT IN ({listed})"


def like(type_: ColumnType) -> str:
    """What a value of the type is, as it is called in a sentence."""
    return f"{'an array of ' if type_.is_array else ''}{type_.said.removesuffix('[]')}"
