"""Temporal: what a mapping for dates makes of each type of Postgres.

That a ``date`` keeps milliseconds, of Postgres' microseconds, is not worth a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from syncer.plan.verdict import (
    POSTGRES_NUMBERS,
    STRINGS,
    TEMPORAL,
    ColumnType,
    Effect,
    Verdict,
    kind_of,
    like,
    never,
    refused,
)

_DAY = frozenset({"date"})

_INSTANT = frozenset({"timestamptz"})

_DATE_FORMATS = {
    **dict.fromkeys(
        ("strict_date_optional_time", "date_optional_time", "strict_date_optional_time_nanos", "iso8601"), TEMPORAL
    ),
    **dict.fromkeys(("strict_date", "date", "strict_year_month_day", "year_month_day", "yyyy-MM-dd"), _DAY),
    **dict.fromkeys(("strict_date_time", "date_time"), _INSTANT),
    **dict.fromkeys(("strict_date_time_no_millis", "date_time_no_millis"), _INSTANT),
    **dict.fromkeys(("epoch_millis", "epoch_second"), POSTGRES_NUMBERS),
}
"""Which types each format of Elasticsearch parses, as Postgres writes them in JSON. Others are not judged."""

_NO_FRACTION = {"strict_date_time_no_millis", "date_time_no_millis", "epoch_millis", "epoch_second"}

_EXAMPLES = {
    "date": "2026-11-21",
    "timestamp": "2026-11-21T10:00:00.123456",
    "timestamptz": "2026-11-21T10:00:00.123456+00:00",
}


def date(type_: ColumnType, mapping: Mapping[str, Any]) -> Iterator[Verdict]:
    """``date`` and ``date_nanos``."""
    formats = str(mapping.get("format", "strict_date_optional_time||epoch_millis")).split("||")
    if type_.kind in TEMPORAL:
        yield from _time(type_, mapping, formats)
    elif type_.kind in POSTGRES_NUMBERS and "format" not in mapping:
        yield Verdict(
            effect=Effect.CHANGED,
            what="a number is read as milliseconds since 1970: the year 2026 becomes two seconds",
            mend="Select to_timestamp(column) for seconds; or, if it is milliseconds, say so: "
            '"format": "epoch_millis".',
        )
    elif type_.kind in STRINGS and "format" not in mapping:
        yield refused(
            "a text that is not a date is refused",
            "Cast it in the SELECT, as in column::timestamptz, or map it as keyword.",
            when=r"{}::text !~ '^\d{4}(-\d\d){0,2}(T.*)?$|^-?\d+$'",
        )
    elif type_.kind == "json" or type_.kind in POSTGRES_NUMBERS | STRINGS:
        return
    else:
        yield never(type_, f"{like(type_)} is not a date")


def _time(type_: ColumnType, mapping: Mapping[str, Any], formats: list[str]) -> Iterator[Verdict]:
    known = [_DATE_FORMATS[one] for one in formats if one in _DATE_FORMATS]
    if len(known) == len(formats) and not any(type_.kind in one for one in known):
        yield refused(
            f"every value is refused: Postgres writes {_EXAMPLES[type_.kind]}, and the format is {'||'.join(formats)}",
            "Leave format out, or add strict_date_optional_time to it with ||.",
        )
        return
    if set(formats) <= _NO_FRACTION:
        yield refused(
            "a fraction of a second is refused by the format",
            "Leave format out, or select date_trunc('second', column).",
            when="{} <> date_trunc('second', {})",
        )
    if kind_of(mapping) == "date_nanos":
        yield refused(
            "date_nanos holds 1970 to 2262, and a value outside is refused",
            "Map it as date.",
            when="{} NOT BETWEEN '1970-01-01' AND '2262-04-11'",
            is_rare=True,
        )
    else:
        yield refused(
            "infinity, and a year before 1 or after 9999, is refused",
            "Select CASE WHEN isfinite(column) THEN column END.",
            when="{} NOT BETWEEN '0001-01-01' AND '9999-12-31'",
            is_rare=True,
        )
