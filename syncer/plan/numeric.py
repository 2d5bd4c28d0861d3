"""Numeric: what mappings for numbers make of each type of Postgres."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from syncer.plan.verdict import (
    FLOAT_BITS,
    FRACTIONS,
    INTEGER_BITS,
    WHOLE_BITS,
    ColumnType,
    Effect,
    Verdict,
    kind_of,
    not_a_number,
    refused,
)

_POSTGRES_BITS = {"float4": 24, "float8": 53}

_DIGITS = {11: 3, 24: 6, 53: 15}

_AS_FRACTION = "Map it as double, or as scaled_float for money; or round it in the SELECT."


def whole(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    """Mappings for whole numbers."""
    kind = kind_of(mapping)
    low, high = (0, (1 << 64) - 1) if kind == "unsigned_long" else _limits(WHOLE_BITS[kind])
    if type_.kind in INTEGER_BITS:
        least, greatest = _limits(INTEGER_BITS[type_.kind])
        if least < low or greatest > high:
            yield refused(
                f"a value outside {low:,} to {high:,} is refused",
                f"Map it as {_whole_type(type_.kind)}.",
                when=f"{{}} NOT BETWEEN {low} AND {high}",
            )
    elif type_.kind in FRACTIONS and mapping.get("coerce") is False:
        yield refused("a fraction is refused", _AS_FRACTION, when="{} <> trunc({}::numeric)")
    elif type_.kind in FRACTIONS:
        yield Verdict(
            effect=Effect.CHANGED,
            what="fractions are cut off: 12.34 is searched, sorted and summed as 12",
            mend=_AS_FRACTION,
            when="{}::text NOT IN ('NaN', 'Infinity', '-Infinity') AND {} <> trunc({}::numeric)",
        )
        yield _beyond(low, high)
    else:
        yield from not_a_number(type_, mapping)


def _beyond(low: int, high: int) -> Verdict:
    return refused(
        f"a value outside {low:,} to {high:,} is refused",
        "Map it as double or keyword.",
        when=f"{{}}::text <> 'NaN' AND {{}} NOT BETWEEN {low} AND {high}",
        is_rare=True,
    )


def _limits(bits: int) -> tuple[int, int]:
    return -(1 << bits - 1), (1 << bits - 1) - 1


def _whole_type(kind: str) -> str:
    return next(name for name, bits in WHOLE_BITS.items() if bits == INTEGER_BITS[kind])


def floating(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    """Mappings for floating point."""
    bits = FLOAT_BITS[kind_of(mapping)]
    if INTEGER_BITS.get(type_.kind, 0) > bits:
        yield Verdict(
            effect=Effect.CHANGED,
            what=f"numbers beyond {1 << bits:,} are rounded, so that two different ones are found as the same",
            mend=f"Map it as {_whole_type(type_.kind)}.",
            when=f"{{}} NOT BETWEEN {-(1 << bits)} AND {1 << bits}",
        )
    elif type_.kind in INTEGER_BITS:
        return
    elif type_.kind in FRACTIONS:
        if type_.kind == "numeric" or bits < _POSTGRES_BITS[type_.kind]:
            yield _rounded(type_, bits)
        yield refused(
            "NaN and Infinity are refused",
            "Select nullif(column, 'NaN').",
            when="{}::text IN ('NaN', 'Infinity', '-Infinity')",
            is_rare=True,
        )
    else:
        yield from not_a_number(type_, mapping)


def _rounded(type_: ColumnType, bits: int) -> Verdict:
    digits = _DIGITS[bits]
    money = "scaled_float keeps a fixed number of decimals, keyword keeps every digit."
    exact = f"round({{}}::numeric, {digits} - 1 - floor(log(abs({{}}::numeric)))::int) <> {{}}::numeric"
    return Verdict(
        effect=Effect.CHANGED,
        what=f"a number of more than {digits} digits is rounded",
        mend=money if type_.kind == "numeric" else "Map it as double.",
        when=f"CASE WHEN {{}}::text IN ('NaN', 'Infinity', '-Infinity') OR {{}} = 0 THEN false ELSE {exact} END",
        is_rare=bits == FLOAT_BITS["double"],
    )


def scaled(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    """``scaled_float``."""
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
    elif type_.kind not in INTEGER_BITS:
        yield from not_a_number(type_, mapping)
