"""Remarks: what the result of a SELECT depends on besides its rows, for `syncer plan` to point out.

Aggregates without an order, and casts of texts to dates, are found in the stored query and in those of the views that
it reads, at any depth. Fields that depend on a setting are found by trying: some documents are built with another
setting, and compared. This covers functions and casts of any kind. But it needs a row that shows the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

from syncer.base.postgres import Connection
from syncer.lineage import parser
from syncer.lineage.catalog import as_view, mentioned, stored
from syncer.lineage.unordered import unordered_aggregates

# Of these types, the text 'today' is another value tomorrow.
_CLOCK_TYPES = """
SELECT format_type(oid, NULL) FROM pg_type
WHERE oid = ANY ($1::oid[]) AND typname ~ '^(date|time|timetz|timestamp|timestamptz|(date|ts|tstz)(multi)?range)$'
ORDER BY 1
"""
# In one of the two zones, any instant has another date than in UTC.
_SETTINGS = (
    ("TimeZone", "Pacific/Kiritimati"),
    ("TimeZone", "Etc/GMT+12"),
    ("DateStyle", "German"),
    ("IntervalStyle", "postgres"),
)
_PINNED = {
    "TimeZone": ("UTC", "Name the zone, as in: (placed AT TIME ZONE 'America/New_York')::date."),
    "DateStyle": ("ISO", "If the text matters, use to_char with a format."),
    "IntervalStyle": ("iso_8601", "If the text matters, use to_char with a format."),
}
# ``d.*`` is the row, even if it has a column d.
_FIELDS = """
SELECT d._id::text, f.key, f.value::text
FROM (SELECT * FROM pg_temp.syncer_probe LIMIT 50) AS d, json_each(row_to_json(d.*)) AS f
"""
# Each sample begins with the same rows.
_SET = """
SELECT set_config('statement_timeout', '500ms', true), set_config('synchronize_seqscans', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true), set_config($1, $2, true)
"""
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What the result of a SELECT depends on, and what to write instead."""

    message: str
    action: str


def remarks(connection: Connection, query: str, file: str) -> list[Remark]:
    """Return what to point out in a SELECT that `syncer.lineage.catalog.probe` accepts; ``file`` is for errors."""
    with as_view(connection, query, file):
        casts = connection.execute(_CLOCK_TYPES, (mentioned(connection).get("resulttype", []),)).fetchall()
        unordered = [
            f"{name} in the view {relation}" if at else name
            for at, (relation, *_, text) in enumerate(stored(connection))
            for name in _unordered(text)
        ]
        fields = dict.fromkeys(_differing(connection))
    return [
        *(
            Remark(
                message=f"a text is cast to {type_} while the SELECT runs: a row with the text 'today', 'now' or the "
                "like makes a document that is soon outdated, without a change",
                action="If a row may have such a text, use to_date(column, 'YYYY-MM-DD') or to_timestamp instead.",
            )
            for (type_,) in casts
        ),
        *(
            Remark(
                message=f"{aggregate} has no ORDER BY: the elements may come in another order each time, and verify "
                "then reports a difference",
                action="Add ORDER BY inside the call, as in: jsonb_agg(c.name ORDER BY c.id).",
            )
            for aggregate in dict.fromkeys(unordered)
        ),
        *(
            Remark(
                message=f"the field {field} depends on {setting}: syncer uses {_PINNED[setting][0]}, whatever the "
                "database, the role or psql use",
                action=_PINNED[setting][1],
            )
            for field, setting in fields
        ),
    ]


def _unordered(text: str) -> list[str]:
    try:
        return list(unordered_aggregates(parser.parsed(text)))
    except parser.UnreadableError:
        return []


def _differing(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield the fields that differ in a sample under another setting; none if the sample takes too long, or fails."""
    try:
        pinned = _sample(connection)
        for setting, other_value in _SETTINGS:
            sample = _sample(connection, setting, other_value)
            for key in pinned.keys() & sample.keys():
                if pinned[key] != sample[key]:
                    yield key[1], setting
    except psycopg.Error:
        if connection.broken:
            raise


def _sample(
    connection: Connection, setting: str = "TimeZone", setting_value: str = "UTC"
) -> dict[tuple[str, str], str]:
    """Return fields by id and name; an instant that is shown with its offset does not depend on the zone."""
    with connection.transaction(force_rollback=True):
        connection.execute(_SET, (setting, setting_value))
        rows = connection.execute(_FIELDS).fetchall()
    return {(id_, field): _INSTANT.sub(_in_utc, text) for id_, field, text in rows if id_ is not None}


def _in_utc(found: re.Match[str]) -> str:
    try:
        return datetime.fromisoformat(found[0]).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return found[0]
