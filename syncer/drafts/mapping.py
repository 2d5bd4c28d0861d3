"""Mapping: maps the columns of any SELECT, and completes a mapping that exists.

Postgres tells the types, also inside JSON that the SELECT builds: see `syncer.drafts.shapes`. A mapping takes every
value of its type except NaN, Infinity and the date infinity. Arrays of objects become ``nested``, so that a search can
relate the fields of one object. Where keys are data, one rule holds: ``flattened`` finds each key, also the next one.
A sample decides for JSON that comes out of a column, which has no type, and for the length of vectors.

What the existing mapping says is kept. An object in it that says what to do with other fields (``dynamic`` or
``enabled``) is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from syncer.base.formatting import amount
from syncer.base.postgres import Connection, bounded
from syncer.documents import queries
from syncer.drafts import rules, shapes
from syncer.drafts.rules import KEYS_ARE_DATA, KEYWORD, STORED, TEXT
from syncer.drafts.shapes import Shape

_FIELDS_MAX = 1000
"""How many fields an index has at most by default."""
_DIMENSIONS = range(2, 4097)
"""How many numbers a dense_vector may have; a single number is none."""
_DEPTH_MAX = 20
"""How deep the objects of a flattened field are nested at most."""
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
    "data": "keys are data, so it is flattened: any key is found by its exact text; what is no object, or nested more "
    'than 20 levels deep, is rejected. For full text, numbers or dates, map it as an object with "properties" and '
    '"dynamic": false; other keys are then shown, not found',
    "values": "a guess from {sample} without an object: an object would be rejected",
    "stored": "kept and shown, not searched: {sample} does not tell what it holds. If it is to hold objects, map it as "
    '{{"type": "flattened"}}',
    "vector": "its mapping is a guess from sampled documents; an array of another length would be rejected",
    "open": 'keys are data, so it got "dynamic": false: keys that it does not map are shown, not found',
    "double": "double rounds to 15 digits; for money use scaled_float, for every digit keyword",
    "malformed": "Elasticsearch takes no infinity, no BC and no year of five digits: such values are shown, not found",
}
"""What to know of a field, by kind."""


class Completed(NamedTuple):
    """An index.json, the fields that were added to it, and what to know of them, one line each."""

    body: dict[str, Any]
    added: list[str]
    remarks: list[str]


def completed(connection: Connection, select: str, file: str, body: Mapping[str, Any]) -> Completed:
    """Return an index.json with a mapping for every column of a SELECT. What ``body`` says is kept.

    Args:
        connection: To Postgres.
        select: The SELECT.
        file: Names the SELECT in errors.
        body: The existing index.json.

    Raises:
        DefinitionError: Postgres refuses the SELECT, or it reads what cannot be captured.
    """
    from syncer.lineage import catalog  # noqa: PLC0415 - it imports sqlglot: slow to load, and few commands need it

    probe = catalog.probe(connection, select, file)
    mapper = _Mapper(_Sample(connection, probe.canonical, probe.columns.get("_id", "text")))
    columns = shapes.of_select(connection, probe.canonical)
    derived = {name: mapper.field((name,), columns[name]) for name in columns if name not in ("_id", "_routing")}
    mappings = body.get("mappings", {})
    properties, added = mapper.united(mappings.get("properties", {}), derived, "")
    number = _number_of_fields(properties)
    settings = body.get("settings", {})
    if number > _FIELDS_MAX:
        settings = {"index.mapping.total_fields.limit": number + _FIELDS_MAX} | settings
    body = {**body, "settings": settings, "mappings": {**mappings, "properties": properties}}
    return Completed(body, added, [*mapper.remarks(added)])


@dataclass
class _Sample:
    """Documents of a SELECT, chosen as `syncer plan` does: none if that takes too long, or fails on the data."""

    connection: Connection
    select: str
    id_type: str

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        """The documents; they are read once, if they are needed."""
        ids = queries.sampled_ids(self.connection, self.select, seconds=_SAMPLE_SECONDS)
        return self._read(sql.SQL(_SAMPLE_QUERY), ids)

    def values(self, path: tuple[str, ...]) -> list[Any]:
        """Return the values of a field that are not null, out of all arrays; if none has one, look for others."""
        return _values(self.documents, path) or _values(self._read(sql.SQL(_WITH_VALUE_QUERY), None, path[0]), path)

    def _read(self, query: sql.SQL, ids: list[str] | None, column: str = "") -> list[dict[str, Any]]:
        composed = query.format(
            select=sql.SQL(self.select), id_type=sql.SQL(self.id_type), column=sql.Identifier(column or "_id")
        )
        # A number in it may be too long for Python, and it may be nested too deeply.
        with (
            suppress(psycopg.DataError, psycopg.errors.QueryCanceled, ValueError, RecursionError),
            bounded(self.connection, seconds=_SAMPLE_SECONDS),
        ):
            rows = self.connection.execute(composed, () if ids is None else (ids,))
            return [json.loads(document) for (document,) in rows]
        return []


@dataclass
class _Mapper:
    """Maps shapes, and notes what to know of them: kinds of remarks, by the path of the field."""

    sample: _Sample
    notes: dict[str, str] = field(default_factory=dict)

    def field(self, path: tuple[str, ...], shape: Shape) -> dict[str, Any]:  # noqa: PLR0911 - a branch for each kind of shape
        """Return the mapping of a field."""
        dotted, type_ = ".".join(path), shape.type
        if shape.fields is not None:
            return self._object(path, shape.fields, dotted, is_array=shape.is_array)
        if shape.is_map:
            return self._noted(dotted, "data", KEYS_ARE_DATA)
        if type_ is None or type_.mapping is None:
            return self._stored_json(path, dotted)
        if type_.mapping == TEXT and (shape.is_array or rules.KEYWORD_NAMES.search(path[-1])):
            return dict(KEYWORD)
        if type_.name == "numeric" and type_.mapping["type"] == "double":
            self.notes[dotted] = "double"
        elif type_.name == "float4" and type_.is_array:
            vectors = _values(self.sample.documents, path, flat=False)
            lengths = {None if None in vector else len(vector) for vector in vectors}
            if len(lengths) == 1 and lengths <= set(_DIMENSIONS):
                return self._noted(dotted, "vector", {"type": "dense_vector", "dims": lengths.pop()})
        elif type_.mapping == rules.DATE and not all(map(_is_date, _values(self.sample.documents, path))):
            return self._noted(dotted, "malformed", {**type_.mapping, "ignore_malformed": True})
        return dict(type_.mapping)

    def _noted(self, dotted: str, kind: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
        self.notes[dotted] = kind
        return dict(mapping)

    def _object(
        self, path: tuple[str, ...], fields: Mapping[str, Shape], dotted: str, *, is_array: bool
    ) -> dict[str, Any]:
        types = {(inner.type.mapping or {}).get("type", "") for inner in fields.values() if inner.type}
        if fields and fields.keys() <= rules.RANGE_BOUNDS and len(types) == 1 and types <= rules.RANGE_TYPES.keys():
            return {"type": rules.RANGE_TYPES[types.pop()]}
        if fields.keys() == rules.POINT and types <= {"double", "float", "long", "integer", "short"}:
            return {"type": "geo_point", "ignore_malformed": True}
        # A dot in a key would be a step into an object.
        named = {name: inner for name, inner in fields.items() if name.strip() and "." not in name}
        mapping: dict[str, Any] = {"type": "nested"} if is_array else {}
        if len(named) < len(fields):
            mapping |= self._noted(dotted, "open", {"dynamic": False})
        return {**mapping, "properties": {name: self.field((*path, name), inner) for name, inner in named.items()}}

    def _stored_json(self, path: tuple[str, ...], dotted: str) -> dict[str, Any]:
        """Return a mapping for JSON that comes out of a column."""
        values = self.sample.values(path)
        kinds = {type(value) for value in values}
        if kinds == {dict} and not any(_is_deep(value) for value in values):
            return self._noted(dotted, "data", KEYS_ARE_DATA)
        if kinds and dict not in kinds:
            return self._noted(dotted, "values", KEYWORD)
        return self._noted(dotted, "stored", STORED)

    def united(
        self, given: Mapping[str, Any], derived: Mapping[str, Any], path: str
    ) -> tuple[dict[str, Any], list[str]]:
        """Add to given properties the ones that they lack, also inside objects that do not say what to do with others.

        Return the paths of what was added as well.
        """
        properties, added = dict(given), list[str]()
        for name, mapping in derived.items():
            dotted, existing = f"{path}{name}", given.get(name)
            if existing is None:
                properties[name] = mapping
                added.append(dotted)
            elif existing.get("type", "object") not in ("object", "nested") or existing.keys() & {"dynamic", "enabled"}:
                continue
            elif "properties" in mapping:
                inside, more = self.united(existing.get("properties", {}), mapping["properties"], f"{dotted}.")
                properties[name] = {**existing, "properties": inside} if more else existing
                added += more
            elif self.notes.get(dotted) in ("data", "stored"):
                properties[name] = {**existing, **self._noted(dotted, "open", {"dynamic": False})}
                added.append(dotted)
        return properties, added

    def remarks(self, added: list[str]) -> Iterator[str]:
        """Yield what to know of the fields that were added, each kind once."""
        for kind, saying in _SAYINGS.items():
            fields = [
                dotted
                for dotted, noted in self.notes.items()
                if noted == kind and any(f"{dotted}.".startswith(f"{path}.") for path in added)
            ]
            if fields:
                sample = f"a sample of {amount(len(self.sample.documents), 'document')}"
                yield f"{', '.join(fields)}: {saying.format(sample=sample)}"


def _values(value: Any, path: tuple[str, ...], *, flat: bool = True) -> list[Any]:
    """Return the values at a path that are not null, out of all arrays on the way, and those at its end if flat."""
    if isinstance(value, list) and (path or flat):
        return [inner for element in value for inner in _values(element, path, flat=flat)]
    if not path:
        return [] if value is None else [value]
    return _values(value.get(path[0]), path[1:], flat=flat) if isinstance(value, dict) else []


def _is_deep(value: Any, depth: int = _DEPTH_MAX) -> bool:
    """Whether objects in a value are nested deeper than a flattened field may be."""
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_is_deep(element, depth - isinstance(value, dict)) for element in inner)


def _is_date(text: Any) -> bool:
    """Whether Elasticsearch takes a date that Postgres has printed."""
    return isinstance(text, str) and text[:4].isdecimal() and text[4:5] == "-" and not text.endswith("BC")


def _number_of_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields Elasticsearch counts: objects, and the ways in which a field is indexed, too."""
    return sum(
        1 + _number_of_fields(mapping.get("properties", {})) + len(mapping.get("fields", {}))
        for mapping in properties.values()
    )
