"""What `syncer plan` says of values that Elasticsearch changes without an error is what the real servers do.

The table of types says it of columns, and the comparison of a sample says it of values, wherever they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from ctypes import c_float
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from elasticsearch import Elasticsearch

from syncer.apply.preview import sample, silent
from syncer.apply.preview.column_type import column_type
from syncer.apply.preview.silent import Silent
from syncer.base.model import Target
from syncer.base.postgres import Connection, value
from tests.support.world import World


class Effect(StrEnum):
    """What becomes of a value."""

    CHANGED = "changed"
    UNSEARCHABLE = "unsearchable"


CHANGED, UNSEARCHABLE = Effect.CHANGED, Effect.UNSEARCHABLE
NUMBERS = {
    *("byte", "short", "integer", "long", "unsigned_long", "half_float", "float", "double", "scaled_float"),
}
DATES = {"date", "date_nanos"}
BY_SAMPLE_ALONE = {("'twelve'::text", "integer")}
"""What no type tells: a text may be a number."""

TYPES = """
CREATE TYPE status AS ENUM ('Happy', 'sad');
CREATE DOMAIN price AS numeric CHECK (value > 0);
CREATE DOMAIN prices AS price[];
CREATE TYPE item AS (name text, amount numeric);
"""

# A value, its mapping, and what becomes of it.
CASES: list[tuple[str, str | dict[str, Any], Effect | None]] = [
    # whole numbers
    ("7::smallint", "byte", None),
    ("7::smallint", "short", None),
    ("7::int", "integer", None),
    ("9007199254740993::bigint", "long", None),
    ("12::bigint", "integer", None),
    # fractions into whole numbers
    ("12.34::numeric", "integer", CHANGED),
    ("12::numeric", "integer", None),
    ("12.34::numeric", "long", CHANGED),
    ("12.0::numeric", "short", None),
    ("0.5::float8", "byte", CHANGED),
    ("0.5::float4", "long", CHANGED),
    ("12::numeric", {"type": "integer", "coerce": False}, None),
    ("12.34::price", "integer", CHANGED),
    ("array[1, 2.5]::price[]", "integer", CHANGED),
    ("array[1, 2.5]::prices", "integer", CHANGED),
    ("array[1, 2]::prices", "integer", None),
    # into fractions
    ("12.34::numeric", "double", None),
    ("0.1234567890123456789::numeric", "double", CHANGED),
    ("0::numeric", "double", None),
    ("12.3456789::numeric", "float", CHANGED),
    ("0.1::float8", "double", None),
    ("0.1::float4", "double", None),
    ("0.1::float4", "float", None),
    ("0.5::float8", "float", None),
    ("0.123456789::float8", "float", CHANGED),
    ("9007199254740993::bigint", "double", CHANGED),
    ("9007199254740992::bigint", "double", None),
    ("16777217::int", "float", CHANGED),
    ("16777217::int", "double", None),
    ("3001::smallint", "half_float", CHANGED),
    ("12.34::numeric", {"type": "scaled_float", "scaling_factor": 100}, None),
    ("12.345::numeric", {"type": "scaled_float", "scaling_factor": 100}, CHANGED),
    # what is not a number into numbers
    ("'12'::text", "integer", None),
    ("''::text", "integer", None),
    ("'5'::jsonb", "integer", None),
    ("'[5]'::jsonb", "integer", None),
    # keywords
    ("'hello World'::text", "keyword", None),
    ("repeat('ab', 20000)", {"type": "keyword", "ignore_above": 256}, UNSEARCHABLE),
    ("repeat('ab', 100)", {"type": "keyword", "ignore_above": 256}, None),
    ("'ab'::char(2)", "keyword", None),
    ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "keyword", None),
    ("'Happy'::status", "keyword", None),
    ("9007199254740993::bigint", "keyword", None),
    ("true", "keyword", None),
    ("'\"x\"'::jsonb", "keyword", None),
    # words
    ("'hello'::text", "text", None),
    # dates
    ("'2026-11-21'::date", "date", None),
    ("'2026-11-21 10:00:00.123456'::timestamp", "date", None),
    ("'2026-11-21 10:00:00.123456+00'::timestamptz", "date", None),
    ("'2026-11-21 10:00:00.123456+00'::timestamptz", "date_nanos", None),
    ("'2026-11-21'::date", {"type": "date", "format": "yyyy-MM-dd"}, None),
    ("1790000000::bigint", {"type": "date", "format": "epoch_second"}, None),
    ("2026", "date", CHANGED),
    ("'2026-11-21'::text", "date", None),
    # the others
    ("true", "boolean", None),
    ("encode('hello', 'base64')", "binary", None),
    ("'[{\"a\": 5}]'::jsonb", "nested", None),
    ("'hello'::text", {"type": "object", "enabled": False}, None),
    ("row('pen', 5)::item", {"properties": {"name": {"type": "keyword"}, "amount": {"type": "double"}}}, None),
    (
        "array[row('pen', 5)::item]",
        {"properties": {"name": {"type": "keyword"}, "amount": {"type": "long", "coerce": False}}},
        None,
    ),
    ("array[2.35, 48.85]", "geo_point", None),
    ("jsonb_build_object('lon', (point(2.35, 48.85))[0], 'lat', (point(2.35, 48.85))[1])", "geo_point", None),
    ("array[0.1, 0.2, 0.3]::real[]", {"type": "dense_vector", "dims": 3}, None),
    # options
    ("'twelve'::text", {"type": "integer", "ignore_malformed": True}, UNSEARCHABLE),
    # options that are spelled as texts
    ("12.34::numeric", {"type": "integer", "coerce": "true"}, CHANGED),
    ("'hello'::text", {"type": "keyword", "ignore_above": "3"}, UNSEARCHABLE),
    ("'hello'::text", {"type": "keyword", "ignore_above": "5"}, None),
    ("12.345::numeric", {"type": "scaled_float", "scaling_factor": "100"}, CHANGED),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the servers did with one value."""

    raw: bytes
    source: dict[str, Any]
    is_refused: bool
    shown: list[Any] | None
    is_found: bool


def test_what_is_said_is_what_the_servers_do(empty_world: World) -> None:
    """A value that is said to be changed differs, one that is said not to be found is not, the others are found."""
    empty_world.sql(TYPES)
    with empty_world.connect() as connection, empty_world.elasticsearch() as client, empty_world.indices() as indices:
        connection.execute("SET search_path TO DEFAULT")  # the cases are written as a definition is
        cases = [(expression, _mapping(mapping), effect) for expression, mapping, effect in CASES]
        cases = [case for case in cases if _is_known(client, empty_world.alias, case[1])]
        assert len(cases) > 50
        target = Target.of_index(f"{empty_world.alias}-silent")
        truths = list(_truths(connection, client, target.index_name, cases))
        mappings = indices.body(target)["mappings"]
        indexed = indices.indexed(target, sample.compared_fields(mappings))
        sources = {str(number): one.raw for number, one in enumerate(truths)}
        altered = {
            one.id: CHANGED if one.indexed else UNSEARCHABLE for one in sample.altered(sources, indexed, mappings)
        }
        wrong = []
        for number, ((expression, mapping, effect), truth) in enumerate(zip(cases, truths, strict=True)):
            by_type, by_sample = _said(connection, expression, mapping), altered.get(str(number))
            kind = mapping.get("type")
            is_right = (
                _holds(truth, effect)
                and (by_type == effect or (expression, kind) in BY_SAMPLE_ALONE)
                and by_sample == effect
            )
            if not is_right:
                wrong.append(
                    f"{expression} into {mapping}: {effect}, by type {by_type}, by sample {by_sample}, {truth}"
                )
    assert not wrong, "\n".join(wrong)


def _mapping(mapping: str | dict[str, Any]) -> dict[str, Any]:
    return {"type": mapping} if isinstance(mapping, str) else mapping


def _is_known(client: Elasticsearch, alias: str, mapping: dict[str, Any]) -> bool:
    """Whether this server has the mapping type: some come with plugins."""
    name = f"{alias}-known"
    body = {"properties": {"f": mapping, "a_number": {"type": "long"}, "other": {"type": "keyword"}}}
    answer = client.options(ignore_status=400).indices.create(index=name, mappings=body)
    client.options(ignore_status=404).indices.delete(index=name)
    return "No handler for type" not in str(answer.body)


def _said(connection: Connection, expression: str, mapping: dict[str, Any]) -> Effect | None:
    """What the table says of this one value."""
    type_ = column_type(connection, str(value(connection, f"SELECT pg_typeof({expression})::text")))
    found = silent.check({"f": type_}, {"properties": {"f": mapping}})
    said = [one for one in found if _is_met(connection, expression, one)]
    return min((CHANGED if one.is_found else UNSEARCHABLE for one in said), default=None)


def _is_met(connection: Connection, expression: str, one: Silent) -> bool:
    if one.condition is None:
        return True
    return bool(value(connection, f'SELECT {one.condition} FROM (SELECT {expression} AS "f") AS d'))


def _truths(
    connection: Connection, client: Elasticsearch, index: str, cases: list[tuple[str, dict[str, Any], Effect | None]]
) -> Iterator[Truth]:
    properties = {f"f{number}": mapping for number, (_, mapping, _) in enumerate(cases)}
    client.indices.create(
        index=index,
        settings={"number_of_replicas": 0},
        mappings={"properties": {**properties, "a_number": {"type": "long"}, "other": {"type": "keyword"}}},
    )
    operations: list[Any] = []
    types: list[object] = []
    for number, (expression, _, _) in enumerate(cases):
        types.append(value(connection, f"SELECT pg_typeof({expression})::text"))
        source = value(connection, f'SELECT row_to_json(d) FROM (SELECT {expression} AS "f{number}") AS d')
        operations += [{"index": {"_id": str(number)}}, source]
    answer = client.bulk(index=index, operations=operations, refresh=True)
    for number, (item, type_) in enumerate(zip(answer.body["items"], types, strict=True)):
        field = f"f{number}"
        source = json.loads(operations[2 * number + 1], parse_float=Decimal)
        yield Truth(
            raw=operations[2 * number + 1],
            source={"value": source[field], "mapping": properties[field], "type": type_},
            is_refused="error" in item["index"],
            shown=_shown(client, index, number, properties[field]),
            is_found=_is_found(client, index, number, source[field], properties[field]),
        )


def _shown(client: Elasticsearch, index: str, number: int, mapping: dict[str, Any]) -> list[Any] | None:
    """The values that a search sorts and sums by."""
    if mapping.get("type", "object") not in (*NUMBERS, *DATES):
        return None
    ask: Any = {"field": f"f{number}"}
    answer = client.search(index=index, query={"ids": {"values": [str(number)]}}, docvalue_fields=[ask]).body
    hits = answer["hits"]["hits"]
    return hits[0].get("fields", {}).get(f"f{number}", []) if hits else None


_OPAQUE = {"object", "nested", "binary", "geo_point", "dense_vector"}
"""Kinds without an exact search: what is accepted counts as found."""


def _is_found(client: Elasticsearch, index: str, number: int, source: Any, mapping: dict[str, Any]) -> bool:
    """Whether an exact search finds the document by this value, or by the first of them."""
    kind = mapping.get("type", "object")
    first = source[0] if isinstance(source, list) else source
    if kind in _OPAQUE or kind.endswith("_range") or (first == "" and kind in NUMBERS):
        return bool(client.exists(index=index, id=str(number)))
    if isinstance(first, dict):
        return False
    field = f"f{number}"
    term = first if isinstance(first, bool) else str(first).rstrip()
    answer = client.options(ignore_status=400).search(index=index, query={"term": {field: {"value": term}}}).body
    return any(hit["_id"] == str(number) for hit in answer.get("hits", {}).get("hits", []))


def _holds(truth: Truth, effect: Effect | None) -> bool:
    """Whether the effect is what happened."""
    if truth.is_refused:
        return False
    if effect is CHANGED:
        return _is_changed(truth)
    if effect is UNSEARCHABLE:
        return not truth.is_found
    return truth.is_found and not _is_changed(truth)


def _is_changed(truth: Truth) -> bool:
    source, mapping = truth.source["value"], truth.source["mapping"]
    if truth.shown is None or source == "":
        return False
    values = source if isinstance(source, list) else [source]
    if mapping["type"] in DATES:
        days = [str(one)[:10] for one in values]
        return [str(one)[:10] for one in truth.shown] != days
    if mapping["type"] == "float" and truth.source["type"] == "real":
        return [c_float(float(one)).value for one in values] != truth.shown
    return [Decimal(repr(one)) for one in truth.shown] != sorted(Decimal(str(one)) for one in values)
