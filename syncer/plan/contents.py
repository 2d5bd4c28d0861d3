"""Contents: does what is inside a ``jsonb`` fit its mapping?

No type tells, so real documents are looked at, value by value, with the same verdicts as for columns. Only what
Elasticsearch takes without a word is looked for here, changed or not searchable; what it refuses, a trial shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from psycopg import sql

from syncer.plan import fitting
from syncer.plan.fitting import Misfit
from syncer.plan.judging import judge
from syncer.plan.mappings import settled
from syncer.plan.verdict import OBJECTS, ColumnType, Effect, Verdict, kind_of
from syncer.postgres import Connection, value

_VALUES_MAX = 10_000
_TYPES = {"bool": "boolean", "int8": "bigint", "numeric": "numeric", "text": "text"}
_EXAMPLE = "SELECT min(e.id) FROM unnest($1::{type}[], $2::text[]) AS e (v, id) WHERE {condition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where in a document, and what kind of value; hashable by these."""

    path: str
    kind: str


@dataclass(slots=True, kw_only=True)
class _Values:
    """What was found at a place: each value as text, with its document."""

    mapping: Mapping[str, Any] | None
    dynamic: str
    texts: list[str]
    ids: list[str]


def check(
    connection: Connection, documents: Mapping[str, bytes], fields: Mapping[str, str], index_body: Mapping[str, Any]
) -> tuple[tuple[Misfit, str], ...]:
    """Hold what is inside the JSON of documents against a mapping.

    Args:
        connection: To Postgres.
        documents: Their sources, by id.
        fields: The type of each field.
        index_body: As in index.json.

    Returns:
        Each misfit with the id of a document that shows it.
    """
    names = [name for name, said in fields.items() if fitting.column_type(connection, said).kind == "json"]
    mappings = settled(index_body.get("mappings", {}))
    found: dict[_Place, _Values] = {}
    for id_, source in documents.items():
        document = json.loads(source, parse_float=Decimal)
        for leaf in _leaves({name: document[name] for name in names}, "", mappings, "true"):
            text = str(leaf.value)
            if not _is_text(text):
                continue
            place = _Place(path=leaf.path, kind=_kind(leaf.value))
            values = found.setdefault(place, _Values(mapping=leaf.mapping, dynamic=leaf.dynamic, texts=[], ids=[]))
            if len(values.texts) < _VALUES_MAX:
                values.texts.append(text)
                values.ids.append(id_)
    return tuple(_misfits(connection, found, mappings))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A value that is neither an object nor a list, with the mapping of its path, if that has one."""

    path: str
    value: object
    mapping: Mapping[str, Any] | None
    dynamic: str


def _leaves(part: object, path: str, mapping: Mapping[str, Any] | None, dynamic: str) -> Iterator[_Leaf]:
    if isinstance(part, list):
        for one in part:
            yield from _leaves(one, path, mapping, dynamic)
    elif isinstance(part, dict):
        if mapping is None or kind_of(mapping) not in OBJECTS or mapping.get("enabled") is False:
            return
        inherited = str(mapping.get("dynamic", dynamic)).lower()
        properties = mapping.get("properties", {})
        for name, one in part.items():
            head, dot, rest = name.partition(".")
            if dot and name not in properties:  # to Elasticsearch, {"a.b": 1} is {"a": {"b": 1}}
                yield from _leaves({head: {rest: one}}, path, mapping, dynamic)
            else:
                yield from _leaves(one, f"{path}.{name}" if path else name, properties.get(name), inherited)
    elif part is not None:
        yield _Leaf(path=path, value=part, mapping=mapping, dynamic=dynamic)


def _is_text(text: str) -> bool:
    """Whether Postgres has such a text: JSON may spell a NUL, or half of a pair of surrogates."""
    return "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def _kind(part: object) -> str:
    if isinstance(part, bool):
        return "bool"
    if isinstance(part, int) and -(1 << 63) <= part < 1 << 63:
        return "int8"
    return "text" if isinstance(part, str) else "numeric"


def _misfits(
    connection: Connection, found: Mapping[_Place, _Values], mappings: Mapping[str, Any]
) -> Iterator[tuple[Misfit, str]]:
    for place, values in found.items():
        type_ = ColumnType(said=f"{_TYPES[place.kind]} in JSON", kind=place.kind, is_array=False, attributes={})
        if values.mapping is None:
            unmapped = {**mappings, "dynamic": values.dynamic, "properties": {}}
            for misfit in fitting.unmapped(place.path, type_, unmapped):
                if misfit.effect is not Effect.REFUSED:
                    yield misfit, values.ids[0]
            continue
        for path, mapping in fitting.destinations(place.path, values.mapping, mappings):
            for verdict in judge(type_, mapping):
                if verdict.effect is Effect.REFUSED:
                    continue
                example = _example(connection, place.kind, values, verdict)
                if example is not None:
                    yield fitting.place(path, type_, mapping, verdict, None), example


def _example(connection: Connection, kind: str, values: _Values, verdict: Verdict) -> str | None:
    """The id of a document of which the verdict is true."""
    if verdict.when is None:
        return values.ids[0]
    condition = sql.SQL(verdict.when.replace("{}", "e.v"))
    query = sql.SQL(_EXAMPLE).format(type=sql.SQL(_TYPES[kind]), condition=condition)
    found = value(connection, query, (values.texts, values.ids))
    return None if found is None else str(found)
