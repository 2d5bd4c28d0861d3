"""Silent changes: values that Elasticsearch accepts, but indexes differently or not at all.

A sample on a scratch index shows such values: see `syncer.apply.preview.sample`. But a sample can miss a rare one. So
each column whose type and mapping are in `_RULES` is checked for such values in all documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from syncer.apply.preview.column_type import ColumnType

_INTEGERS = frozenset({"int2", "int4", "int8"})
_FRACTIONS = frozenset({"numeric", "float4", "float8"})
_WHOLE = frozenset({"byte", "short", "integer", "long", "unsigned_long"})
_FLOATING = {"half_float": 11, "float": 24, "double": 53}
"""Each with the bits of its significand."""
_DIGITS = {"half_float": 3, "float": 6, "double": 15}
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
        action="Map it as double, or as scaled_float for money; or round it in the SELECT.",
        values=f"{_IS_A_NUMBER} AND {{v}} <> trunc({{v}}::numeric)",
    ),
    _Rule(
        types=_INTEGERS,
        mappings=frozenset(_FLOATING),
        message="whole numbers beyond {limit:,} are rounded, so that two different ones are found as the same",
        action="Map it as long.",
        values="{v} NOT BETWEEN -{limit} AND {limit}",
        only_if_found=True,
    ),
    _Rule(
        types=frozenset({"numeric", "float8"}),
        mappings=frozenset({"half_float", "float"}),
        message="numbers of more than {digits} digits are rounded",
        action="Map it as double, or as scaled_float for money.",
        values=_HAS_MORE_DIGITS,
    ),
    _Rule(
        types=frozenset({"numeric"}),
        mappings=frozenset({"double"}),
        message="numbers of more than {digits} digits are rounded",
        action="Map it as keyword, which keeps every digit, or as scaled_float for money.",
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
        types=_INTEGERS | _FRACTIONS,
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A column whose values are changed, or not found.

    Args:
        is_found: Whether searches find the values, in altered form.
        condition: SQL over the SELECT as ``d`` that selects affected documents; None for all with a value.
        only_if_found: Whether to report it only if there is such a document.
    """

    field: str
    message: str
    action: str
    is_found: bool
    condition: str | None
    only_if_found: bool


def check(fields: Mapping[str, ColumnType], mappings: Mapping[str, Any]) -> Iterator[Silent]:
    """Compare the columns of a SELECT with the mappings of an index.json that Elasticsearch has accepted."""
    for name, type_ in fields.items():
        mapping = mappings.get("properties", {}).get(name, {})
        inner = {f"{name}.{sub}": one for sub, one in mapping.get("fields", {}).items()}
        for path, one in {name: mapping, **inner}.items():
            yield from (_silent(path, name, type_, one, rule) for rule in _RULES if _applies(rule, type_, one))


def _applies(rule: _Rule, type_: ColumnType, mapping: Mapping[str, Any]) -> bool:
    kind = mapping.get("type", "object")
    return (type_.kind in rule.types and kind in rule.mappings) and not (
        (kind in _WHOLE and str(mapping.get("coerce")).lower() == "false")  # rejected, not changed
        or (kind in ("date", "date_nanos") and "format" in mapping)
        or (kind in ("keyword", "wildcard") and "ignore_above" not in mapping)
    )


def _silent(path: str, name: str, type_: ColumnType, mapping: Mapping[str, Any], rule: _Rule) -> Silent:
    kind = mapping["type"]
    # Elasticsearch takes these options as texts, too.
    factor = float(mapping.get("scaling_factor", 1))
    known = {
        "limit": 1 << _FLOATING.get(kind, 0),
        "digits": _DIGITS.get(kind, 0),
        "factor": int(factor) if factor.is_integer() else factor,
        "ignore_above": int(mapping.get("ignore_above", 0)),
    }
    return Silent(
        field=path,
        message=f"{rule.message.format(**known)} ({type_.said} into {kind})",
        action=rule.action,
        is_found=rule.is_found,
        condition=_condition(rule.values, known, name, type_),
        only_if_found=rule.only_if_found,
    )


def _condition(values: str | None, known: Mapping[str, float], name: str, type_: ColumnType) -> str | None:
    """Return a condition on a value as one on a column, or on any element of an array column."""
    if values is None:
        return None
    column = f"d.{sql.Identifier(name).as_string()}"
    if not type_.is_array:
        return values.format(v=column, **known)
    return f"EXISTS (SELECT FROM unnest({column}) AS e (v) WHERE {values.format(v='e.v', **known)})"
