"""Silent changes: values that Elasticsearch accepts, but indexes differently or not at all.

A sample written to a scratch index shows rejected values and what happens to nested ones: see
`syncer.apply.preview.estimate`. But a sample can miss a rare value. So each column whose type and mapping are in
`_RULES` is checked for such values in all documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from syncer.apply.preview.column_type import ColumnType

_INTEGERS = frozenset({"int2", "int4", "int8"})
_FRACTIONS = frozenset({"numeric", "float4", "float8"})
_NUMBERS = _INTEGERS | _FRACTIONS
_WHOLE = frozenset({"byte", "short", "integer", "long", "unsigned_long"})
_FLOATING = {"half_float": 11, "float": 24, "double": 53}
"""Each with the bits of its significand."""
_DIGITS = {"half_float": 3, "float": 6, "double": 15}
_WORDS = frozenset({"text", "match_only_text", "search_as_you_type"})
_EXACT = frozenset({"uuid", "enum", "bool", "date", "timestamp", "timestamptz", "inet", "cidr", "macaddr"}) | _NUMBERS

OR_SCALED = ", or as scaled_float for money"
"""The part of an action that needs an optional module of Elasticsearch."""
_IS_A_NUMBER = "{v}::text NOT IN ('NaN', 'Infinity', '-Infinity')"
_HAS_MORE_DIGITS = (
    f"CASE WHEN {_IS_A_NUMBER} AND {{v}} <> 0 "
    "THEN round({v}::numeric, {digits} - 1 - floor(log(abs({v}::numeric)))::int) <> {v}::numeric ELSE false END"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """What a mapping does to the values of some types.

    Args:
        types: Kinds of `ColumnType`.
        values: SQL that selects the affected values ``{v}``; None for all.
        only_if_found: Whether to report it only if such a value exists, because they are rare.
        is_found: Whether searches find the values, in altered form.
    """

    types: frozenset[str]
    mappings: frozenset[str]
    message: str
    action: str
    values: str | None = None
    only_if_found: bool = False
    is_found: bool = True


_RULES = (
    _Rule(
        types=_FRACTIONS,
        mappings=_WHOLE,
        message="fractions are cut off: 12.34 is searched, sorted and summed as 12",
        action=f"Map it as double{OR_SCALED}; or round it in the SELECT.",
        values=f"{_IS_A_NUMBER} AND {{v}} <> trunc({{v}}::numeric)",
    ),
    _Rule(
        types=_INTEGERS,
        mappings=frozenset(_FLOATING),
        message="whole numbers beyond {limit:,} are rounded, so that two different ones are found as the same",
        action="Map it as long.",
        values="{v} NOT BETWEEN -{limit} AND {limit}",
    ),
    _Rule(
        types=_FRACTIONS,
        mappings=frozenset({"half_float", "float"}),
        message="numbers of more than {digits} digits are rounded",
        action=f"Map it as double{OR_SCALED}.",
        values=_HAS_MORE_DIGITS,
    ),
    _Rule(
        types=frozenset({"numeric"}),
        mappings=frozenset({"double"}),
        message="numbers of more than {digits} digits are rounded",
        action=f"Map it as keyword, which keeps every digit{OR_SCALED}.",
        values=_HAS_MORE_DIGITS,
        only_if_found=True,
    ),
    _Rule(
        types=_FRACTIONS,
        mappings=frozenset({"scaled_float"}),
        message="values are rounded to a multiple of 1/{factor}",
        action="Raise scaling_factor until it keeps every decimal of the column.",
        values=f"{_IS_A_NUMBER} AND {{v}}::numeric * {{factor}} <> round({{v}}::numeric * {{factor}})",
        only_if_found=True,
    ),
    _Rule(
        types=_NUMBERS,
        mappings=frozenset({"date", "date_nanos"}),
        message="a number is read as milliseconds since 1970: the year 2026 becomes two seconds",
        action='Select to_timestamp(column) for seconds; or set "format": "epoch_millis" if it is milliseconds.',
    ),
    _Rule(
        types=frozenset({"text"}),
        mappings=frozenset({"keyword", "wildcard"}),
        message="texts of more than {ignore_above:,} characters (ignore_above) are not found",
        action="Raise ignore_above, or search such texts in a field of type text.",
        values="char_length({v}::text) > {ignore_above}",
        only_if_found=True,
        is_found=False,
    ),
    _Rule(
        types=frozenset({"bpchar"}),
        mappings=frozenset({"keyword", "wildcard"}),
        message="char(n) is padded with spaces, and an exact search without them does not find it",
        action="Cast it in the SELECT: column::text.",
        values="octet_length({v}) <> octet_length({v}::text)",
        is_found=False,
    ),
    _Rule(
        types=_EXACT,
        mappings=_WORDS,
        message="it is cut into words: no exact search, no range, no sorting, no aggregation",
        action="Map it as its own type, such as date, boolean, long or keyword.",
        is_found=False,
    ),
    _Rule(
        types=frozenset({"bytea"}),
        mappings=frozenset({"binary"}),
        message=r"Postgres writes \x68656c6c6f, and Elasticsearch takes it for Base64",
        action="Select encode(column, 'base64').",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A column whose values are changed, or not found.

    Args:
        types: Both types, as in: numeric into long.
        is_found: Whether searches find the values, in altered form.
        condition: SQL over the SELECT as ``d`` that selects affected documents; None for all with a value.
        only_if_found: Whether to report it only if there is such a document.
        is_note: Whether it may be intended.
    """

    field: str
    types: str
    message: str
    action: str
    is_found: bool = True
    condition: str | None = None
    only_if_found: bool = False
    is_note: bool = False


def check(fields: Mapping[str, ColumnType], mappings: Mapping[str, Any]) -> Iterator[Silent]:
    """Compare the columns of a SELECT with the mappings of an index.json."""
    properties = mappings.get("properties", {})
    for name, type_ in fields.items():
        mapping = _lookup(name, properties)
        if mapping is None:
            yield from _unmapped(name, type_, mappings)
            continue
        for path, one in {
            name: mapping,
            **{f"{name}.{sub}": one for sub, one in mapping.get("fields", {}).items()},
        }.items():
            yield from (_silent(path, name, type_, one, rule) for rule in _RULES if _applies(rule, type_, one))
    yield from _unused(fields, properties)


def _applies(rule: _Rule, type_: ColumnType, mapping: Mapping[str, Any]) -> bool:
    kind = mapping.get("type", "object")
    if type_.kind not in rule.types or kind not in rule.mappings:
        return False
    others = {one.get("type") for one in mapping.get("fields", {}).values()}
    return not (
        (kind in _WHOLE and str(mapping.get("coerce")).lower() == "false")  # rejected, not changed
        or (kind in _FLOATING and {"int2": 15, "int4": 31, "int8": 63}.get(type_.kind, 99) <= _FLOATING[kind])
        or ((type_.kind, kind) == ("float4", "float"))
        or (kind in ("date", "date_nanos") and "format" in mapping)
        or ("ignore_above" in rule.message and "ignore_above" not in mapping)
        or (kind in _WORDS and not others <= _WORDS)
    )


def _silent(path: str, name: str, type_: ColumnType, mapping: Mapping[str, Any], rule: _Rule) -> Silent:
    kind = mapping["type"]
    known = {
        "limit": 1 << _FLOATING.get(kind, 0),
        "digits": _DIGITS.get(kind, 0),
        "factor": _number(mapping.get("scaling_factor", 1)),
        "ignore_above": int(_number(mapping.get("ignore_above", 0))),
    }
    return Silent(
        field=path,
        types=f"{type_.said} into {kind}",
        message=rule.message.format(**known),
        action=rule.action,
        is_found=rule.is_found,
        condition=_condition(rule.values, known, name, type_),
        only_if_found=rule.only_if_found,
    )


def _number(option: object) -> float:
    """Return an option given as a number or as text; Elasticsearch itself rejects anything else."""
    try:
        number = float(str(option))
    except ValueError:
        return 1
    return int(number) if number.is_integer() else number


def _condition(values: str | None, known: Mapping[str, float], name: str, type_: ColumnType) -> str | None:
    """Return a condition on a value as one on a column, or on any element of an array column."""
    if values is None:
        return None
    column = f"d.{sql.Identifier(name).as_string()}"
    if not type_.is_array:
        return values.format(v=column, **known)
    return f"EXISTS (SELECT FROM unnest({column}) AS e (v) WHERE {values.format(v='e.v', **known)})"


def _lookup(name: str, properties: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the mapping of a field; a dot in its name is a step into an object."""
    if name in properties:
        found: Mapping[str, Any] = properties[name]
        return found
    head, dot, rest = name.partition(".")
    return _lookup(rest, properties[head].get("properties", {})) if dot and head in properties else None


def _unmapped(name: str, type_: ColumnType, mappings: Mapping[str, Any]) -> Iterator[Silent]:
    """Check a column that has no mapping; ``dynamic: strict`` rejects it, which is not silent."""
    dynamic = str(mappings.get("dynamic", "true")).lower()
    if dynamic == "false":
        yield Silent(
            field=name,
            types=f"{type_.said}, no mapping, dynamic: false",
            message="it is kept and shown, but no search finds it",
            action=f"Add {name} to the mapping if it is to be searched.",
            is_found=False,
        )
    elif type_.kind in _FRACTIONS and dynamic == "true" and not mappings.get("dynamic_templates"):
        yield Silent(
            field=name,
            types=f"{type_.said}, no mapping",
            message="the first document decides: after a 12, which makes it long, a 12.34 is searched as 12",
            action=f"Map {name} as double{OR_SCALED}.",
        )


def _unused(fields: Mapping[str, ColumnType], properties: Mapping[str, Any]) -> Iterator[Silent]:
    """Yield mapped fields that no column fills: often a name that Postgres has folded to lower case."""
    heads = {name.partition(".")[0] for name in fields}
    copied = {one for mapping in properties.values() for one in _listed(mapping.get("copy_to", []))}
    for name, mapping in properties.items():
        if name.partition(".")[0] not in heads | copied and mapping.get("type") != "alias":
            yield Silent(
                field=name,
                types=str(mapping.get("type", "object")),
                message="index.json maps it, and the SELECT returns no such column",
                action=f'Is it spelled as in the SELECT? An unquoted name is lower case there: AS "{name}".',
                is_note=True,
            )


def _listed(option: object) -> list[object]:
    return option if isinstance(option, list) else [option]
