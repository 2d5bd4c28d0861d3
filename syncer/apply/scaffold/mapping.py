"""Mapping: maps the columns of any SELECT, and completes a mapping that exists.

The type of a column tells its mapping, which takes every value of the type except NaN, Infinity and the date infinity.
JSON is sampled, and its mapping reported as a guess, which takes every sampled value and alters no other. Arrays of
objects become ``nested``, so that a search can relate the fields of one object.

What the existing mapping says is kept. An object in it that says what to do with other fields (``dynamic`` or
``enabled``) is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from syncer.base.postgres import Connection, bounded

# Domains are resolved to their base type, arrays to their element type. Composites become JSON, as do types with a
# cast to it.
_TYPE = """
WITH RECURSIVE base AS (
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typbasetype, t.typelem, false AS is_array
    FROM pg_type AS t WHERE t.oid = $1::regtype
    UNION ALL
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typbasetype, t.typelem, b.is_array OR b.typtype <> 'd'
    FROM base AS b
    JOIN pg_type AS t ON t.oid = CASE WHEN b.typtype = 'd' THEN b.typbasetype
                                      WHEN b.typcategory = 'A' THEN b.typelem END
)
SELECT CASE WHEN typtype IN ('c', 'p') OR typname = 'jsonb'
                 OR EXISTS (SELECT FROM pg_cast
                            WHERE castsource = base.oid AND casttarget = 'json'::regtype AND castmethod = 'f')
            THEN 'json' ELSE typname END, is_array
FROM base WHERE typtype <> 'd' AND typcategory <> 'A'
"""
_LONG_DIGITS_MAX = 18
_WHOLE = re.compile(r"numeric\((\d+),0\)")
KEYWORD: dict[str, Any] = {"type": "keyword", "ignore_above": 8191}
TEXT: dict[str, Any] = {"type": "text", "fields": {"keyword": KEYWORD}}
DATE: dict[str, Any] = {"type": "date"}
STORED: dict[str, Any] = {"type": "object", "enabled": False}
"""Takes any JSON: it is kept and shown, but not searched."""
_MAPPINGS: dict[str, dict[str, Any]] = {
    "int2": {"type": "short"},
    "int4": {"type": "integer"},
    "int8": {"type": "long"},
    "float4": {"type": "float"},
    "float8": {"type": "double"},
    "numeric": {"type": "double"},
    "bool": {"type": "boolean"},
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext", "char", "xml"), TEXT),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), DATE),
}
"""By name in the system catalogue. Other types are mapped as keyword, with the text that Postgres shows."""
CASTS = {"money": "numeric", "bpchar": "text", "vector": "real[]", "halfvec": "real[]"}
"""What a draft casts a column to."""
LEFT_OUT = {
    "bytea": "bytes are not searched: encode(column, 'base64') and the type binary would show them",
    "tsvector": "it is Postgres' own way to search: select the text that it is made of",
    **dict.fromkeys(("geometry", "geography"), "its text is not readable: select ST_AsGeoJSON(column)::jsonb"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """A type: the name of its base type in the catalogue, ``json`` for any JSON or composite, and its mapping.

    The mapping is None for JSON, of which a type does not tell the content.
    """

    name: str
    is_array: bool
    mapping: dict[str, Any] | None


def column_type(connection: Connection, declared: str) -> ColumnType:
    """Return what a type is, by its name as ``format_type`` returns it."""
    # There is no row for a type that only looks like an array, such as int2vector.
    name, is_array = connection.execute(_TYPE, (declared,)).fetchone() or ("", False)
    whole = _WHOLE.match(declared)
    mapping = _MAPPINGS.get(name, KEYWORD)
    if whole and int(whole[1]) <= _LONG_DIGITS_MAX:
        mapping = {"type": "long"}
    elif mapping is TEXT and is_array:
        mapping = KEYWORD
    return ColumnType(name=name, is_array=is_array, mapping=None if name == "json" else dict(mapping))


_FIELDS_MAX = 1000
"""How many fields an index has at most by default."""
_KEYS_MAX = 50
"""Objects with more keys than this are taken for maps, whose keys are data."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?")
_DIMENSIONS = range(2, 4097)
"""How many numbers a dense_vector may have; a single number is none."""
_SAMPLE_DOCUMENTS = 200
_SAMPLE_SECONDS = 5.0
_SAMPLE = "SELECT to_jsonb(d.*)::text FROM ({select}) AS d WHERE {which} LIMIT {limit}"
_SAYS_SOMETHING = "d.{column} IS NOT NULL AND d.{column}::text <> '[]'"

EMPTY_BODY: Mapping[str, Any] = {
    "settings": {"number_of_shards": 1},
    "mappings": {"dynamic": "strict", "properties": {}},
}
"""What the index.json of a draft begins with."""


def completed(
    connection: Connection, select: str, file: str, body: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return an index.json with a mapping for every column of a SELECT, and what to know of it, one line each.

    What ``body`` says is kept. ``file`` names the SELECT in errors.

    Raises:
        DefinitionError: Postgres refuses the SELECT, or it reads what cannot be captured.
    """
    from syncer.lineage import catalog  # noqa: PLC0415 - it imports sqlglot: slow to load, and few commands need it

    probe = catalog.probe(connection, select, file)
    described = connection.execute(sql.SQL("SELECT * FROM ({}) AS d LIMIT 0").format(sql.SQL(probe.canonical)))
    digits = {column.name: column.type_display for column in described.description or ()}
    assert described.pgresult is not None  # it was just read
    stored = {name for place, name in enumerate(digits) if described.pgresult.ftable(place)}  # no expressions
    types = {
        name: column_type(connection, digits[name] if type_ == "numeric" else type_)
        for name, type_ in probe.columns.items()
        if name not in ("_id", "_routing")
    }
    vectors = {name for name, type_ in types.items() if type_.is_array and type_.name == "float4"}
    sample: list[dict[str, Any]] = []
    if vectors or any(type_.mapping is None for type_ in types.values()):
        sample = _sampled(connection, probe.canonical, sql.SQL("true"))
    mappings, remarks = body.get("mappings", {}), list[str]()
    properties = mappings.get("properties", {})
    for name, type_ in types.items():
        values = [document[name] for document in sample if document.get(name) is not None]
        if type_.mapping is None and not any(map(_flat, values)):
            which = sql.SQL(_SAYS_SOMETHING).format(column=sql.Identifier(name))
            values = [document[name] for document in _sampled(connection, probe.canonical, which)]
        made = type_.mapping or guess(values, is_free=name in stored)
        lengths = {0 if None in value else len(value) for value in values if name in vectors}
        if len(lengths) == 1 and lengths <= set(_DIMENSIONS):
            made = {"type": "dense_vector", "dims": lengths.pop()}
        properties, before = _united(properties, {name: made}), properties
        if properties == before:
            continue
        if made == STORED:
            remarks.append(f"{name}: kept and shown, but not searched: samples do not tell its type")
        elif made != type_.mapping:
            remarks.append(f"{name}: its mapping is a guess from sampled documents; others may be rejected")
        elif type_.name == "numeric" and made["type"] == "double":
            remarks.append(f"{name}: double rounds to 15 digits; for money use scaled_float, for every digit keyword")
    number = _number_of_fields(properties)
    settings = body.get("settings", {})
    if number > _FIELDS_MAX:
        settings = {"index.mapping.total_fields.limit": number + _FIELDS_MAX} | settings
    return {**body, "settings": settings, "mappings": {**mappings, "properties": properties}}, remarks


def _sampled(connection: Connection, select: str, which: sql.Composable) -> list[dict[str, Any]]:
    """Return some documents of a SELECT; none if that takes too long, or fails on the data."""
    limit = sql.Literal(_SAMPLE_DOCUMENTS)
    query = sql.SQL(_SAMPLE).format(select=sql.SQL(select), which=which, limit=limit)
    # A number in it may be too long for Python.
    with (
        suppress(psycopg.DataError, psycopg.errors.QueryCanceled, ValueError),
        bounded(connection, seconds=_SAMPLE_SECONDS),
    ):
        return [json.loads(document) for (document,) in connection.execute(query)]
    return []


def guess(values: Iterable[Any], *, is_free: bool = False) -> dict[str, Any]:
    """Return a mapping that takes these values.

    Objects that a table stores, or that differ in their keys, are free to have others, which are kept and shown, but
    not searched. Objects that a SELECT builds have the same keys everywhere.
    """
    values = [found for found in values if found is not None]
    flat = _flat(values)
    kinds = {type(found) for found in flat}
    if kinds == {dict}:
        names = list(dict.fromkeys(name for found in flat for name in found))
        known = [name for name in names if name and "." not in name] if len(names) <= _KEYS_MAX else []
        inside = {name: guess(found.get(name) for found in flat) for name in known}
        is_free = is_free or len(known) < len(names) or any(found.keys() != flat[0].keys() for found in flat)
        made = {"type": "nested" if all(isinstance(found, list) for found in values) else "object"}
        return made | ({"dynamic": False} if is_free else {}) | ({"properties": inside} if inside else {})
    if kinds == {bool}:
        return {"type": "boolean"}
    if kinds == {int} and all(abs(found) < 2**63 for found in flat):
        return {"type": "long", "coerce": False}
    if kinds and kinds <= {int, float}:
        return {"type": "double"}
    if kinds == {str}:
        return dict(DATE if all(map(_is_date, flat)) else TEXT)
    return dict(STORED)


def _is_date(text: str) -> bool:
    """Whether Elasticsearch takes a text for a date."""
    try:
        return _DATE.fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _flat(value: Any) -> list[Any]:
    """Return the values in lists within lists."""
    if isinstance(value, list):
        return [inner for found in value for inner in _flat(found)]
    return [] if value is None else [value]


def _united(given: Mapping[str, Any], derived: Mapping[str, Any]) -> dict[str, Any]:
    """Add to given properties the ones that they lack, also inside objects that do not say what to do with others."""
    found = dict(given)
    for name, mapping in derived.items():
        if name not in given:
            found[name] = mapping
        elif (
            "properties" in mapping
            and given[name].get("type", "object") in ("object", "nested")
            and not given[name].keys() & {"dynamic", "enabled"}
        ):
            inside = _united(given[name].get("properties", {}), mapping["properties"])
            found[name] = {**given[name], "properties": inside}
    return found


def _number_of_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields Elasticsearch counts: objects, and the ways in which a field is indexed, too."""
    return sum(
        1 + _number_of_fields(mapping.get("properties", {})) + len(mapping.get("fields", {}))
        for mapping in properties.values()
    )
