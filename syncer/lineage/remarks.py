"""Remarks: what the result of a SELECT depends on besides its rows, for `syncer plan` to point out.

Aggregates without an order, and casts of texts to dates, are found in the stored query and in those of the views that
it reads, at any depth. Fields that depend on a setting are found by trying: some documents are built with another
setting, and compared. This covers functions and casts of any kind. But it needs a row that shows the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache

import psycopg
from sqlglot import exp

from syncer.base.postgres import Connection
from syncer.lineage import parser
from syncer.lineage.catalog import as_view, mentioned, stored

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
_CAST = "a text is cast to {}: a row with the text 'today' or the like makes a document that is soon outdated"
_CAST_ACTION = "If a row may have such a text, use to_date(column, 'YYYY-MM-DD') or to_timestamp instead."
_UNORDERED = "{} {} no ORDER BY: elements may come in another order each time, and verify then reports a difference"
_UNORDERED_ACTION = "Add ORDER BY inside it, as in: jsonb_agg(c.name ORDER BY c.id)."
_SETTING = "{} {} on {}: syncer uses {}, whatever the database, the role or psql use"
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
# Aggregates over json objects are left out: the order of keys is no difference.
_PARSED: dict[type[exp.Expr], str] = {
    exp.ArrayAgg: "array_agg",
    exp.JSONArrayAgg: "json_agg",
    exp.GroupConcat: "string_agg",
}
_NAMED = frozenset({"jsonb_agg", "json_agg_strict", "jsonb_agg_strict", "json_arrayagg", "xmlagg"})
_RETURNING = re.compile(r" RETURNING jsonb?\b")
"""What Postgres adds to JSON_ARRAYAGG, and the parser does not know."""
_VIEWS = """
SELECT pg_get_viewdef(c.oid)
FROM unnest($1::text[]) AS asked (name) JOIN pg_class AS c ON c.oid = to_regclass(asked.name) AND c.relkind = 'v'
ORDER BY asked.name
"""
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d(:\d\d)?")


def remarks(connection: Connection, query: str, file: str) -> list[tuple[str, str]]:
    """Return what to point out in a SELECT that `syncer.lineage.catalog.probe` accepts, and what to write instead."""
    with as_view(connection, query, file):
        casts = connection.execute(_CLOCK_TYPES, (mentioned(connection).get("resulttype", []),)).fetchall()
        unordered = [
            f"{name} in the view {relation}" if at else name
            for at, (relation, *_, text) in enumerate(stored(connection))
            for name in _unordered(text)
        ]
        fields: dict[str, list[str]] = {}
        for field, setting in sorted(set(_differing(connection))):
            fields.setdefault(setting, []).append(field)
    return [
        *((_CAST.format(type_), _CAST_ACTION) for (type_,) in casts),
        *((_UNORDERED.format(*names), _UNORDERED_ACTION) for names in _named(unordered, "has", "have")),
        *(
            (_SETTING.format(*names, setting, _PINNED[setting][0]), _PINNED[setting][1])
            for setting, found in fields.items()
            for names in _named(found, "is a field that depends", "are fields that depend")
        ),
    ]


def _named(names: Iterable[str], verb: str, verbs: str) -> Iterator[tuple[str, str]]:
    """Yield these names, each once, in one text, with the verb for them; nothing if there are none."""
    if named := list(dict.fromkeys(names)):
        yield ", ".join(named), verb if len(named) == 1 else verbs


def _unordered(text: str) -> list[str]:
    try:
        return list(_unordered_aggregates(parser.parsed(_RETURNING.sub("", text))))
    except parser.UnreadableError:
        return []


def _unordered_aggregates(tree: exp.Expr) -> Iterator[str]:
    """Yield the names of the aggregates in an expression or query whose result depends on the order of its rows."""
    for call in tree.find_all(exp.Anonymous, exp.Array, *_PARSED):
        if isinstance(call, exp.Array):
            if any(isinstance(query, exp.Select) and not _has_order(query) for query in call.expressions):
                yield "ARRAY(SELECT …)"
            continue
        named = call.name.lower() if isinstance(call, exp.Anonymous) else ""
        first = next(iter(call.expressions), None) if named else call.this
        name = named if named in _NAMED else _PARSED.get(type(call))
        is_ordered = isinstance(first, exp.Order | exp.Distinct) or _reads_in_order(call.parent_select)
        if name is not None and not is_ordered:
            yield name


def _has_order(select: exp.Select) -> bool:
    return bool(select.args.get("order")) or _reads_in_order(select)


def _reads_in_order(select: exp.Select | None) -> bool:
    """Whether all rows of a SELECT come from one subquery that has an ORDER BY, and stay in its order."""
    source = None if select is None else select.args.get("from_")
    changes = ("joins", "group", "distinct", "windows")
    if select is None or source is None or any(select.args.get(name) for name in changes):
        return False
    return isinstance(source.this, exp.Subquery) and bool(source.this.this.args.get("order"))


def unordered_fields(connection: Connection, select: str, relations: Iterable[str]) -> frozenset[str]:
    """Return the columns of a SELECT of these relations whose elements may come in another order."""
    rows = connection.execute(_VIEWS, (list(relations),)).fetchall()
    return unordered_columns(select, *(view for (view,) in rows))


@lru_cache(maxsize=16)
def unordered_columns(select: str, *views: str) -> frozenset[str]:
    """Return such columns of a SELECT that reads these views, all as Postgres deparses them.

    A column is found by the name that it has in a subquery or view. So a column of the same name elsewhere is found,
    too.
    """
    try:
        tree, *others = (parser.parsed(_RETURNING.sub("", query)) for query in (select, *views))
    except parser.UnreadableError:
        return frozenset()
    selects = [query for part in (tree, *others) for query in part.find_all(exp.Select)]
    columns = [column for query in selects for column in query.expressions]
    names: set[str] = set()
    while True:
        found = {
            column.alias_or_name
            for column in columns
            if any(_unordered_aggregates(column)) or any(part.name in names for part in column.find_all(exp.Column))
        }
        if found <= names:
            return frozenset(names.intersection(tree.named_selects))
        names |= found


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
