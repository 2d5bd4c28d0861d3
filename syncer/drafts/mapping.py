"""Mapping: maps the columns of any SELECT, and completes a mapping that exists.

Postgres tells the types, also inside JSON that the SELECT builds: see `syncer.drafts.value_types`. A mapping takes
every value of its type except NaN, Infinity and the date infinity. Arrays of objects become ``nested``, so that a
search can relate the fields of one object. Where keys are data, one rule holds: ``flattened`` finds each key, also the
next one. OpenSearch has other types for some: see `syncer.drafts.rules`. A sample decides for JSON that comes out of a
column, which has no type, and for the length of vectors.

What the existing mapping says is kept. An object in it that says what to do with other fields (``dynamic`` or
``enabled``) is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import psycopg
from psycopg import sql

from syncer.base.formatting import amount
from syncer.base.postgres import Connection, snapshot
from syncer.documents import queries
from syncer.documents.snapshot import Tries
from syncer.drafts import rules, value_types
from syncer.drafts.draft import Drafter
from syncer.drafts.rules import DATE, KEYS_ARE_DATA, KEYWORD, STORED, TEXT
from syncer.drafts.value_types import ValueType

_FIELDS_MAX = 1000
"""How many fields an index has at most by default."""
_DIMENSIONS = range(2, 4097)
"""How many numbers a dense_vector may have; a single number is none."""
_SAMPLE_SECONDS = 5.0
_SAMPLE_QUERY = "SELECT to_jsonb(d.*)::text FROM ({select}) AS d WHERE d._id = ANY ($1::text[]::{id_type}[])"
_WITH_VALUE_QUERY = (
    "SELECT to_jsonb(d.*)::text FROM ({select}) AS d WHERE d.{column}::text NOT IN ('[]', 'null') LIMIT 200"
)

EMPTY_BODY: Mapping[str, Any] = {
    "settings": {"number_of_shards": 1},
    "mappings": {"dynamic": "strict", "properties": {}},
}
"""What the index.json of a draft begins with."""
_SAYINGS = {
    "data": "keys are data, so it is {flattened}: any key is found by its exact text; what is no object, or {limit}, "
    'is rejected. For full text, numbers or dates, map it as an object with "properties" and "dynamic": false; other '
    "keys are then shown, not found",
    "values": "a guess from {sample} without an object: an object would be rejected",
    "place": "GeoJSON in {sample}, so searches find it by its place; any other value is shown, not found",
    "projected": "GeoJSON with a crs, which no search server takes as a place: select "
    "ST_AsGeoJSON(ST_Transform(column, 4326))::jsonb",
    "stored": "kept and shown, not searched: {sample} does not tell what it holds. If it is to hold objects, map it as "
    '{{"type": "{flattened}"}}',
    "vector": "its mapping is a guess from sampled documents; an array of another length would be rejected",
    "open": 'keys are data, so it got "dynamic": false: keys that it does not map are shown, not found',
    "double": "double rounds to 15 digits; for money use scaled_float, for every digit keyword",
    "epoch": "numbers that count from 1970 in {sample}, so they are found as dates; 0 is 1970",
    "malformed": "a date takes no infinity, no BC and no year of five digits: such values are shown, not found",
}
"""What to know of a field, by kind."""
_TOLERANT = {"ignore_malformed": True}
_FLATTENED = {"flattened": "flattened", "limit": "nested more than 20 levels deep"}
_FLAT_OBJECT = {"flattened": "flat_object", "limit": "has a text longer than 32,000 bytes"}


def completed(
    drafter: Drafter, select: str, file: str, body: Mapping[str, Any]
) -> tuple[dict[str, Any], bool, list[str]]:
    """Complete an index.json with a mapping for every column of a SELECT, which ``file`` names in errors.

    What ``body``, the existing one, says is kept. Also returns whether fields were added, and what to know of them.

    Raises:
        DefinitionError: Postgres refuses the SELECT, or it reads what cannot be captured.
    """
    from syncer.lineage import catalog  # noqa: PLC0415 - it imports sqlglot: slow to load, and few commands need it

    connection = drafter.catalogue.connection
    probe = catalog.probe(connection, select, file)
    sample = _Sample(connection, probe.canonical, probe.columns.get("_id", "text"))
    mapper = _Mapper(sample, drafter.is_for_opensearch)
    columns = value_types.of_select(connection, probe.canonical)
    fields = {name: value_type for name, value_type in columns.items() if name not in ("_id", "_routing")}
    mappings, settings = body.get("mappings", {}), body.get("settings", {})
    properties = mapper.properties((), fields, mappings.get("properties", {}))
    number = json.dumps(properties).count('": {')  # objects count, as does each way to index a field
    if number > _FIELDS_MAX:
        settings = {"index.mapping.total_fields.limit": number + _FIELDS_MAX} | settings
    if drafter.is_for_opensearch and "vector" in mapper.notes.values():
        settings = {"index.knn": True} | settings
    body = {**body, "settings": settings, "mappings": {**mappings, "properties": properties}}
    return body, mapper.has_more, mapper.remarks()


@dataclass
class _Sample:
    """Documents of a SELECT, chosen as `syncer plan` does: none if that takes too long, or fails on the data."""

    connection: Connection
    select: str
    id_type: str

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        """The documents; they are read once, if they are needed."""
        with closing(Tries(self.connection, seconds=_SAMPLE_SECONDS)) as tries:
            ids, _ = queries.sampled_ids(tries, self.select)
        return self._sampled(sql.SQL(_SAMPLE_QUERY), ids)

    def values(self, path: tuple[str, ...]) -> list[Any]:
        """Return the values of a field that are not null, out of all arrays; if none has one, look for others."""
        return _values(self.documents, path) or _values(self._sampled(sql.SQL(_WITH_VALUE_QUERY), None, path[0]), path)

    def _sampled(self, query: sql.SQL, ids: list[str] | None, column: str = "_id") -> list[dict[str, Any]]:
        id_type = sql.SQL(self.id_type)
        composed = query.format(select=sql.SQL(self.select), id_type=id_type, column=sql.Identifier(column))
        # A number in it may be too long for Python, and it may be nested too deeply.
        with (
            suppress(psycopg.DataError, psycopg.errors.QueryCanceled, ValueError, RecursionError),
            snapshot(self.connection, statement_seconds=_SAMPLE_SECONDS),
        ):
            rows = self.connection.execute(composed, () if ids is None else (ids,))
            return [json.loads(document) for (document,) in rows]
        return []


@dataclass
class _Mapper:
    """Maps values, and notes what to know of fields: kinds of remarks, by the path of the field."""

    sample: _Sample
    is_for_opensearch: bool
    has_more: bool = False
    notes: dict[str, str] = field(default_factory=dict)

    def properties(
        self, path: tuple[str, ...], fields: Mapping[str, ValueType], existing: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the existing properties, and those that they lack."""
        return {**existing, **{name: self._field((*path, name), fields[name], existing.get(name)) for name in fields}}

    def _field(
        self, path: tuple[str, ...], value_type: ValueType, existing: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Return the mapping of a field: the existing one, with what it lacks if it is an object."""
        has_any_keys = value_type.fields is None and value_type.mapping in (None, KEYS_ARE_DATA)
        if existing is not None:
            is_complete = not existing.keys().isdisjoint(("dynamic", "enabled"))
            is_object = existing.get("type", "object") in ("object", "nested")
            if is_complete or not is_object or not (value_type.fields or has_any_keys):
                return existing
        self.has_more |= existing is None or has_any_keys
        if has_any_keys and existing is not None:
            return self._noted(path, "open", {**existing, "dynamic": False})
        if value_type.fields is None:
            return self._of_value(path, value_type)
        if existing is None and (bounds := _of_bounds(value_type.fields)):
            return bounds
        # A dot in a key would be a step into an object.
        named = {name: inner for name, inner in value_type.fields.items() if name.strip() and "." not in name}
        mapping = existing or ({"type": "nested"} if value_type.is_array else {})
        if existing is None and len(named) < len(value_type.fields):
            mapping = self._noted(path, "open", {**mapping, "dynamic": False})
        return {**mapping, "properties": self.properties(path, named, mapping.get("properties", {}))}

    def _of_value(self, path: tuple[str, ...], value_type: ValueType) -> Mapping[str, Any]:
        """Return the mapping of a value that is no object whose fields are known."""
        noted, mapping = "", value_type.mapping
        if mapping is None:  # JSON that comes out of a column
            noted, mapping = _of_json(self.sample.values(path))
        elif mapping == KEYS_ARE_DATA:
            noted = "data"
        elif mapping == TEXT and (value_type.is_array or rules.KEYWORD_NAMES.search(rules.snake(path[-1]))):
            mapping = KEYWORD
        elif value_type.name == "numeric" and mapping["type"] == "double":
            noted = "double"
        elif value_type.name == "float4" and value_type.is_array:
            vectors = _values(self.sample.documents, path, flat=False)
            lengths = {None if None in vector else len(vector) for vector in vectors}
            if len(lengths) == 1 and lengths <= set(_DIMENSIONS):
                noted, mapping = "vector", {**rules.VECTOR, "dims": lengths.pop()}
        elif mapping["type"] in ("integer", "long") and rules.INSTANT_NAMES.search(rules.plain(path[-1])):
            if unit := _epoch(_values(self.sample.documents, path)):
                noted, mapping = "epoch", {**DATE, "format": f"strict_date_optional_time||{unit}", **_TOLERANT}
        elif mapping == DATE and not all(map(_is_date, _values(self.sample.documents, path))):
            noted, mapping = "malformed", {**mapping, **_TOLERANT}
        return self._noted(path, noted, rules.for_opensearch(mapping) if self.is_for_opensearch else mapping)

    def _noted(self, path: tuple[str, ...], kind: str, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        self.notes[".".join(path)] = kind
        return mapping

    def remarks(self) -> list[str]:
        """Return what to know of the fields that were added, each kind once."""
        sample = f"a sample of {amount(len(self.sample.documents), 'document')}" if self.notes else ""
        fields = {kind: [path for path, noted in self.notes.items() if noted == kind] for kind in _SAYINGS}
        words = {"sample": sample, **(_FLAT_OBJECT if self.is_for_opensearch else _FLATTENED)}
        return [f"{', '.join(fields[kind])}: {_SAYINGS[kind].format(**words)}" for kind in _SAYINGS if fields[kind]]


def _of_bounds(fields: Mapping[str, ValueType]) -> Mapping[str, Any] | None:
    """Return the mapping of a range or a point; None if an object is neither."""
    types = {(inner.mapping or {}).get("type", "") for inner in fields.values()}
    if fields and fields.keys() <= rules.RANGE_BOUNDS and len(types) == 1 and types <= rules.RANGE_TYPES.keys():
        return {"type": rules.RANGE_TYPES[types.pop()]}
    if fields.keys() == rules.POINT and types <= {"double", "float", "long", "integer", "short"}:
        return {"type": "geo_point", **_TOLERANT}
    return None


def _of_json(values: list[Any]) -> tuple[str, Mapping[str, Any]]:
    """Return what to know of JSON that comes out of a column, and its mapping."""
    if values and all(map(_is_geometry, values)):
        if any("crs" in geometry for geometry in values):
            return "projected", KEYS_ARE_DATA
        is_point = all(geometry["type"] == "Point" for geometry in values)
        return "place", {"type": "geo_point" if is_point else "geo_shape", **_TOLERANT}
    kinds = {type(value) for value in values}
    if kinds == {dict}:
        return "data", KEYS_ARE_DATA
    return ("values", KEYWORD) if kinds and dict not in kinds else ("stored", STORED)


def _is_geometry(value: Any) -> bool:
    """Whether a value is a place in GeoJSON; with ``crs``, as PostGIS casts a geometry to JSON."""
    if not isinstance(value, dict) or value.get("type") not in rules.GEOMETRIES:
        return False
    content = "geometries" if value["type"] == "GeometryCollection" else "coordinates"
    return value.keys() - {"crs"} == {"type", content} and isinstance(value[content], list)


def _values(value: Any, path: tuple[str, ...], *, flat: bool = True) -> list[Any]:
    """Return the values at a path that are not null, out of all arrays on the way, and those at its end if flat."""
    if isinstance(value, list) and (path or flat):
        return [inner for element in value for inner in _values(element, path, flat=flat)]
    if not path:
        return [] if value is None else [value]
    return _values(value.get(path[0]), path[1:], flat=flat) if isinstance(value, dict) else []


def _is_date(text: Any) -> bool:
    """Whether Elasticsearch takes a date that Postgres has printed."""
    return isinstance(text, str) and text[:4].isdecimal() and text[4:5] == "-" and not text.endswith("BC")


def _epoch(values: list[Any]) -> str | None:
    """Return in which unit numbers count from 1970, as a format of dates; None if they do not. Often 0 means never."""
    numbers = {*values} - {0}
    fitting = (unit for unit, epoch in rules.EPOCHS.items() if numbers and all(map(epoch.__contains__, numbers)))
    return next(fitting, None)
