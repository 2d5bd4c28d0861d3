"""Mapping: derives the mapping of a SELECT, and completes one that exists.

What the existing mapping says is kept. An object in it that says what to do with other fields (``dynamic`` or
``enabled``) is complete. Arrays of objects become ``nested``, so that a search can relate the fields of one object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from syncer.apply.scaffold import field as fields, guess, naming
from syncer.base.postgres import Connection, bounded

if TYPE_CHECKING:
    from syncer.apply.scaffold.shape import Shape

_GUESS = "its mapping is a guess from sampled documents; others may be rejected"
_FIELDS_MAX = 1000
"""How many fields an index has at most by default."""
_SAMPLE_DOCUMENTS = 200
_SAMPLE_SECONDS = 5.0
_SAMPLE = "SELECT to_jsonb(d.*)::text FROM ({select}) AS d LIMIT {limit}"

EMPTY_BODY: Mapping[str, Any] = {
    "settings": {"number_of_shards": 1},
    "mappings": {"dynamic": "strict", "properties": {}},
}
"""What the index.json of a draft begins with."""


def completed(
    connection: Connection, select: str, file: str, body: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return an index.json with a mapping for every field of a SELECT, and what to know of the fields, one line each.

    What ``body`` says is kept. ``file`` names the SELECT in errors.

    Raises:
        DefinitionError: Postgres refuses the SELECT, or it reads what cannot be captured.
    """
    from syncer.apply.scaffold import shape  # noqa: PLC0415 - it imports sqlglot: slow to load, and few commands need it
    from syncer.lineage import catalog  # noqa: PLC0415 - likewise

    probe = catalog.probe(connection, select, file)
    deriving = _Deriving(sample=cache(lambda: _sampled(connection, probe.canonical)))
    mappings = dict(body.get("mappings", {}))
    given = mappings.get("properties", {})
    mappings["properties"] = united(given, deriving.missing(shape.read(connection, probe), given, ()))
    remarks = deriving.remarks
    if deriving.personal:
        listed = ", ".join(deriving.personal)
        remarks.append(f"personal or secret by name: {listed}; check who may search and read the index")
    made = {**body, "mappings": mappings}
    if (number := _number_of_fields(mappings["properties"])) > _FIELDS_MAX:
        settings = dict(body.get("settings", {}))
        made["settings"] = {"index.mapping.total_fields.limit": number + _FIELDS_MAX} | settings
    return made, remarks


@dataclass(slots=True, kw_only=True)
class _Deriving:
    """Derives the mappings of fields.

    Args:
        sample: Returns some documents, for what types do not tell.
        remarks: What to know of a field, one line each.
        personal: The paths that look like secrets or personal data.
    """

    sample: Callable[[], list[dict[str, Any]]]
    remarks: list[str] = field(default_factory=list)
    personal: list[str] = field(default_factory=list)

    def missing(self, shapes: Mapping[str, Shape], given: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        found = {}
        for name, one in shapes.items():
            there = given.get(name)
            if there is None:
                found[name] = self._mapping(one, (*path, name))
            elif one.properties and _is_open(there):
                inside = self.missing(one.properties, there.get("properties", {}), (*path, name))
                found |= {name: {"properties": inside}} if inside else {}
        return found

    def _mapping(self, one: Shape, path: tuple[str, ...]) -> dict[str, Any]:
        if one.properties:
            inside = {"properties": self.missing(one.properties, {}, path)}
            return {"type": "nested", **inside} if one.is_array else inside
        said = ".".join(path)
        if naming.is_personal(path[-1], one.type.kind if one.type else ""):
            self.personal.append(said)
        if one.type is None:
            made, remark = guess.mapping(guess.at(self.sample(), path)), _GUESS
            if made == guess.STORED:
                remark = "kept and shown, but not searched: samples do not tell its type"
        else:
            made, remark = fields.of_type(one.type)
            if one.type.is_array and one.type.kind in ("float4", "vector") and "dims" not in made:
                dimensions = guess.dimensions(guess.at(self.sample(), path))
                if dimensions:
                    made, remark = {"type": "dense_vector", "dims": dimensions}, _GUESS
        if remark:
            self.remarks.append(f"{said}: {remark}")
        return made


def _sampled(connection: Connection, select: str) -> list[dict[str, Any]]:
    """Return some documents; none if that takes too long, or the SELECT fails on the data."""
    query = sql.SQL(_SAMPLE).format(select=sql.SQL(select), limit=sql.Literal(_SAMPLE_DOCUMENTS))
    try:
        with bounded(connection, seconds=_SAMPLE_SECONDS):
            return [json.loads(one) for (one,) in connection.execute(query)]
    except (psycopg.DataError, psycopg.errors.QueryCanceled):
        return []


def _number_of_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields Elasticsearch counts: objects, and the ways in which a field is indexed, too."""
    return sum(
        1 + _number_of_fields(field.get("properties", {})) + len(field.get("fields", {}))
        for field in properties.values()
    )


def _is_open(mapping: Mapping[str, Any]) -> bool:
    """Whether an existing mapping is one of an object that does not say what to do with other fields."""
    return mapping.get("type", "object") in ("object", "nested") and not mapping.keys() & {"dynamic", "enabled"}


def united(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Unite two JSON objects, object by object; the second one counts."""
    found = {**one, **other}
    for name in one.keys() & other.keys():
        if isinstance(one[name], Mapping) and isinstance(other[name], Mapping):
            found[name] = united(one[name], other[name])
    return found
