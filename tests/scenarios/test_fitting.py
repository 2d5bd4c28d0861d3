"""What syncer says of a type and a mapping is what the real servers do."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from ctypes import c_float
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.plan import fitting, verdict
from syncer.plan.fitting import Misfit
from syncer.plan.verdict import Effect
from syncer.postgres import Connection, value
from tests.harness import World

REFUSED, CHANGED, UNSEARCHABLE = Effect.REFUSED, Effect.CHANGED, Effect.UNSEARCHABLE

TYPES = """
CREATE TYPE mood AS ENUM ('Happy', 'sad');
CREATE DOMAIN price AS numeric CHECK (value > 0);
CREATE DOMAIN prices AS price[];
CREATE TYPE item AS (name text, amount numeric);
"""

# A value, its mapping, and what becomes of it.
CASES: list[tuple[str, str | dict[str, Any], Effect | None]] = [
    # whole numbers
    ("7::smallint", "byte", None),
    ("300::smallint", "byte", REFUSED),
    ("7::smallint", "short", None),
    ("7::int", "integer", None),
    ("70000::int", "short", REFUSED),
    ("9007199254740993::bigint", "long", None),
    ("9007199254740993::bigint", "integer", REFUSED),
    ("12::bigint", "integer", None),
    ("12::bigint", "short", None),
    ("-5::bigint", "short", None),
    ("70000::bigint", "short", REFUSED),
    # fractions into whole numbers
    ("12.34::numeric", "integer", CHANGED),
    ("12::numeric", "integer", None),
    ("12.34::numeric", "long", CHANGED),
    ("12.0::numeric", "short", None),
    ("0.5::float8", "byte", CHANGED),
    ("0.5::float4", "long", CHANGED),
    ("123456789012345678901234567890::numeric", "long", REFUSED),
    ("1e300::float8", "integer", REFUSED),
    ("12.34::numeric", {"type": "integer", "coerce": False}, REFUSED),
    ("12::numeric", {"type": "integer", "coerce": False}, None),
    ("12.34::price", "integer", CHANGED),
    ("array[1, 2.5]::price[]", "integer", CHANGED),
    ("array[1, 2.5]::prices", "integer", CHANGED),
    ("array[1, 2]::prices", "integer", None),
    # into fractions
    ("12.34::numeric", "double", None),
    ("0.1234567890123456789::numeric", "double", CHANGED),
    ("0::numeric", "double", None),
    ("'NaN'::numeric", "double", REFUSED),
    ("'Infinity'::float8", "double", REFUSED),
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
    ("'twelve'::text", "integer", REFUSED),
    ("'twelve'::varchar", "double", REFUSED),
    ("'sad'::mood", "long", REFUSED),
    ("true", "integer", REFUSED),
    ("'2026-11-21'::date", "long", REFUSED),
    ("'2026-11-21 10:00'::timestamptz", "long", REFUSED),
    ("'1 day'::interval", "long", REFUSED),
    ("12.34::money", "double", REFUSED),
    ("'5'::jsonb", "integer", None),
    ("'[5]'::jsonb", "integer", None),
    ("'\"x\"'::jsonb", "integer", REFUSED),
    ("'{\"a\": 5}'::json", "integer", REFUSED),
    ("row('pen', 5)::item", "integer", REFUSED),
    ("'[1,10)'::int4range", "integer", REFUSED),
    # keywords
    ("'hello World'::text", "keyword", None),
    ("repeat('ab', 20000)", "keyword", REFUSED),
    ("repeat('ab', 20000)", {"type": "keyword", "ignore_above": 256}, UNSEARCHABLE),
    ("repeat('ab', 100)", {"type": "keyword", "ignore_above": 256}, None),
    ("'ab'::char(5)", "keyword", UNSEARCHABLE),
    ("'ab'::char(2)", "keyword", None),
    ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "keyword", None),
    ("'Happy'::mood", "keyword", None),
    ("9007199254740993::bigint", "keyword", None),
    ("true", "keyword", None),
    ("array['a', 'B']", "keyword", None),
    ("'\"x\"'::jsonb", "keyword", None),
    ("'{\"a\": 5}'::jsonb", "keyword", REFUSED),
    ("'[{\"a\": 5}]'::jsonb", "keyword", REFUSED),
    ("row('pen', 5)::item", "keyword", REFUSED),
    # words
    ("'hello'::text", "text", None),
    ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "text", UNSEARCHABLE),
    (
        "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid",
        {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        None,
    ),
    ("'Happy'::mood", "text", UNSEARCHABLE),
    ("'2026-11-21'::date", "text", UNSEARCHABLE),
    ("'10.0.0.0/8'::cidr", "text", UNSEARCHABLE),
    ("to_tsvector('simple', 'fat Rat')", "text", CHANGED),
    ("'{\"a\": 5}'::jsonb", "text", REFUSED),
    ("row('pen', 5)::item", "text", REFUSED),
    # dates
    ("'2026-11-21'::date", "date", None),
    ("'2026-11-21 10:00:00.123456'::timestamp", "date", None),
    ("'2026-11-21 10:00:00.123456+00'::timestamptz", "date", None),
    ("'0001-01-01'::date", "date", None),
    ("'infinity'::date", "date", REFUSED),
    ("'-infinity'::timestamptz", "date", REFUSED),
    ("'0044-03-15 BC'::date", "date", REFUSED),
    ("'10000-01-01'::timestamp", "date", REFUSED),
    ("array['2026-11-21'::date, 'infinity']", "date", REFUSED),
    ("'2026-11-21 10:00:00.123456+00'::timestamptz", "date_nanos", None),
    ("'1600-01-01'::date", "date_nanos", REFUSED),
    ("'2300-01-01'::timestamptz", "date_nanos", REFUSED),
    ("'2026-11-21'::date", {"type": "date", "format": "yyyy-MM-dd"}, None),
    ("'2026-11-21 10:00'::timestamptz", {"type": "date", "format": "yyyy-MM-dd"}, REFUSED),
    ("'2026-11-21 10:00'::timestamptz", {"type": "date", "format": "strict_date||strict_date_time"}, None),
    ("'2026-11-21 10:00'::timestamp", {"type": "date", "format": "strict_date_time"}, REFUSED),
    ("'2026-11-21 10:00'::timestamptz", {"type": "date", "format": "strict_date_time_no_millis"}, None),
    ("'2026-11-21 10:00:00.5'::timestamptz", {"type": "date", "format": "strict_date_time_no_millis"}, REFUSED),
    ("'2026-11-21'::date", {"type": "date", "format": "epoch_millis"}, REFUSED),
    ("1790000000::bigint", {"type": "date", "format": "epoch_second"}, None),
    ("2026", "date", CHANGED),
    ("'2026-11-21'::text", "date", None),
    ("'yesterday'::text", "date", REFUSED),
    ("true", "date", REFUSED),
    ("'10:00'::time", "date", REFUSED),
    ("'1 day'::interval", "date", REFUSED),
    # the others
    ("true", "boolean", None),
    ("'true'::text", "boolean", None),
    ("'yes'::text", "boolean", REFUSED),
    ("1", "boolean", REFUSED),
    ("12.34::numeric", "boolean", REFUSED),
    ("'true'::jsonb", "boolean", None),
    ("'5'::jsonb", "boolean", REFUSED),
    ("'hello'::bytea", "binary", CHANGED),
    ("encode('hello', 'base64')", "binary", None),
    ("'10.0.0.1'::inet", "ip", None),
    ("'10.0.0.0/8'::inet", "ip", REFUSED),
    ("'10.0.0.0/8'::cidr", "ip", REFUSED),
    ("'10.0.0.0/8'::cidr", "ip_range", None),
    ("'10.0.0.0/8'::inet", "ip_range", None),
    ("'10.0.0.1'::inet", "ip_range", REFUSED),
    ("5", "ip", REFUSED),
    ("'[1,10)'::int4range", "integer_range", REFUSED),
    ("'[1,10)'::int4range", "keyword", None),
    ("'[2026-01-01,2026-02-01)'::daterange", "date_range", REFUSED),
    ("'{[1,10)}'::int4multirange", "integer_range", REFUSED),
    ("jsonb_build_object('gte', 1, 'lt', null)", "integer_range", None),
    ("5", "integer_range", REFUSED),
    ("'{\"a\": 5}'::jsonb", "object", None),
    ("'[{\"a\": 5}]'::jsonb", "nested", None),
    ("'5'::jsonb", "object", REFUSED),
    ("'hello'::text", "object", REFUSED),
    ("'hello'::text", {"type": "object", "enabled": False}, None),
    ("array['hello']", "nested", REFUSED),
    ("row('pen', 5)::item", {"properties": {"name": {"type": "keyword"}, "amount": {"type": "double"}}}, None),
    ("row('pen', 5.5)::item", {"properties": {"name": {"type": "long"}, "amount": {"type": "double"}}}, REFUSED),
    (
        "array[row('pen', 5)::item]",
        {"type": "nested", "dynamic": "strict", "properties": {"name": {"type": "keyword"}}},
        REFUSED,
    ),
    (
        "array[row('pen', 5.5)::item, row('ink', 5)::item]",
        {"properties": {"name": {"type": "keyword"}, "amount": {"type": "long", "coerce": False}}},
        REFUSED,
    ),
    (
        "array[row('pen', 5)::item]",
        {"properties": {"name": {"type": "keyword"}, "amount": {"type": "long", "coerce": False}}},
        None,
    ),
    ("point(2.35, 48.85)", "geo_point", REFUSED),
    ("array[2.35, 48.85]", "geo_point", None),
    ("jsonb_build_object('lon', (point(2.35, 48.85))[0], 'lat', (point(2.35, 48.85))[1])", "geo_point", None),
    ("5", "geo_point", REFUSED),
    ("array[0.1, 0.2, 0.3]::real[]", {"type": "dense_vector", "dims": 3}, None),
    ("0.1::real", {"type": "dense_vector", "dims": 3}, REFUSED),
    ("'x'::text", {"type": "alias", "path": "other"}, REFUSED),
    # options
    ("'twelve'::text", {"type": "integer", "ignore_malformed": True}, UNSEARCHABLE),
    ("'hello'::text", {"type": "text", "fields": {"number": {"type": "long"}}}, REFUSED),
    ("'hello'::text", {"type": "keyword", "copy_to": "a_number"}, REFUSED),
    # options that are spelled as texts
    ("'hello'::text", {"type": "object", "enabled": "false"}, None),
    ("12.34::numeric", {"type": "integer", "coerce": "false"}, REFUSED),
    ("12.34::numeric", {"type": "integer", "coerce": "true"}, CHANGED),
    ("'twelve'::text", {"type": "integer", "ignore_malformed": "false"}, REFUSED),
    ("'hello'::text", {"type": "keyword", "ignore_above": "3"}, UNSEARCHABLE),
    ("'hello'::text", {"type": "keyword", "ignore_above": "5"}, None),
    ("12.345::numeric", {"type": "scaled_float", "scaling_factor": "100"}, CHANGED),
    ("'hello'::text", {"type": "keyword", "copy_to": ["other", "a_number"]}, REFUSED),
    # what is not judged
    ("B'101'", "keyword", None),
    ("'08:00:2b:01:02:03'::macaddr", "keyword", None),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the servers did with one value."""

    source: dict[str, Any]
    is_refused: bool
    shown: list[Any] | None
    is_found: bool


def test_every_judgement_is_what_the_servers_do(empty_world: World) -> None:
    """A value that is said to be refused is refused, one said to be changed differs, the others are found again."""
    empty_world.sql(TYPES)
    with empty_world.connect() as connection, empty_world.elasticsearch() as client:
        cases = [(expression, _mapping(mapping), effect) for expression, mapping, effect in CASES]
        cases = [case for case in cases if _is_known(client, empty_world.alias, case[1])]
        assert len(cases) > 100
        truths = _truths(connection, client, empty_world.alias, cases)
        wrong = [
            f"{expression} into {mapping}: expected {effect}, said {said}, truth {truth}"
            for (expression, mapping, effect), truth in zip(cases, truths, strict=True)
            if (said := _said(connection, expression, mapping)) != effect or not _holds(truth, effect)
        ]
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
    """What `fitting` says of this one value: the gravest misfit whose condition holds for it."""
    type_ = value(connection, f"SELECT pg_typeof({expression})::text")
    body = {"mappings": {"properties": {"f": mapping, "a_number": {"type": "long"}, "other": {"type": "keyword"}}}}
    found = [
        one
        for one in fitting.check(connection, {"f": str(type_)}, body)
        if one.effect is not Effect.UNUSED and _is_met(connection, expression, one)
    ]
    order = list(Effect)
    return min((one.effect for one in found), key=order.index, default=None)


def _is_met(connection: Connection, expression: str, misfit: Misfit) -> bool:
    if misfit.condition is None:
        return True
    return bool(value(connection, f'SELECT {misfit.condition} FROM (SELECT {expression} AS "f") AS d'))


def _truths(
    connection: Connection, client: Elasticsearch, alias: str, cases: list[tuple[str, dict[str, Any], Effect | None]]
) -> Iterator[Truth]:
    index = f"{alias}-fitting"
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
            source={"value": source[field], "mapping": properties[field], "type": type_},
            is_refused="error" in item["index"],
            shown=_shown(client, index, number, properties[field]),
            is_found=_is_found(client, index, number, source[field], properties[field]),
        )


def _shown(client: Elasticsearch, index: str, number: int, mapping: dict[str, Any]) -> list[Any] | None:
    """The values that a search sorts and sums by."""
    if mapping.get("type", "object") not in (*verdict.NUMBERS, *verdict.DATES):
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
    if kind in _OPAQUE or kind.endswith("_range") or (first == "" and kind in verdict.NUMBERS):
        return bool(client.exists(index=index, id=str(number)))
    if isinstance(first, dict):
        return False
    field = f"f{number}.raw" if "raw" in mapping.get("fields", {}) else f"f{number}"
    term = first if isinstance(first, bool) else str(first).rstrip()
    answer = client.options(ignore_status=400).search(index=index, query={"term": {field: {"value": term}}}).body
    return any(hit["_id"] == str(number) for hit in answer.get("hits", {}).get("hits", []))


def _holds(truth: Truth, effect: Effect | None) -> bool:
    """Whether the effect is what happened."""
    if effect is REFUSED or truth.is_refused:
        return truth.is_refused and effect is REFUSED
    if effect is CHANGED:
        return _is_changed(truth)
    if effect is UNSEARCHABLE:
        return not truth.is_found
    return truth.is_found and not _is_changed(truth)


def _is_changed(truth: Truth) -> bool:
    source, mapping = truth.source["value"], truth.source["mapping"]
    if mapping.get("type") == "binary":
        return not _is_base64(source)
    if mapping.get("type") == "text":
        return ":" in str(source)  # the positions of a tsvector have become words
    if truth.shown is None or source == "":
        return False
    values = source if isinstance(source, list) else [source]
    if mapping["type"] in verdict.DATES:
        days = [str(one)[:10] for one in values]
        return [str(one)[:10] for one in truth.shown] != days
    if mapping["type"] == "float" and truth.source["type"] == "real":
        return [c_float(float(one)).value for one in values] != truth.shown
    return [Decimal(repr(one)) for one in truth.shown] != sorted(Decimal(str(one)) for one in values)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("dynamic", "effect"), [("strict", REFUSED), ("false", UNSEARCHABLE), (False, UNSEARCHABLE), (None, None)]
)
def test_a_field_that_no_mapping_names(empty_world: World, dynamic: object, effect: Effect | None) -> None:
    """dynamic: strict refuses the document, false keeps the field from every search, and the default takes it."""
    mappings = {"properties": {}} if dynamic is None else {"dynamic": dynamic, "properties": {}}
    with empty_world.connect() as connection, empty_world.elasticsearch() as client:
        found = fitting.check(connection, {"title": "text"}, {"mappings": mappings})
        assert [one.effect for one in found] == ([] if effect is None else [effect])
        client.indices.create(index=f"{empty_world.alias}-x", settings={"number_of_replicas": 0}, mappings=mappings)
        item = client.bulk(
            index=f"{empty_world.alias}-x", operations=[{"index": {}}, {"title": "hello"}], refresh=True
        ).body["items"][0]["index"]
        assert ("error" in item) == (effect is REFUSED)
        if effect is not REFUSED:
            hits = client.count(index=f"{empty_world.alias}-x", query={"match": {"title": "hello"}}).body["count"]
            assert hits == (0 if effect is UNSEARCHABLE else 1)


def test_the_first_document_decides_an_unmapped_number(empty_world: World) -> None:
    """Without a mapping, a first whole number makes every later fraction one."""
    with empty_world.connect() as connection, empty_world.elasticsearch() as client:
        (found,) = fitting.check(connection, {"price": "numeric"}, {})
        assert found.effect is CHANGED
        name = f"{empty_world.alias}-x"
        client.indices.create(index=name, settings={"number_of_replicas": 0})
        client.index(index=name, document={"price": 12}, refresh=True)
        client.index(index=name, document={"price": 12.34}, refresh=True)
        assert client.count(index=name, query={"term": {"price": 12}}).body["count"] == 2


def test_a_mapping_without_a_column_is_noted(empty_world: World) -> None:
    """A name that only index.json has is often one that Postgres has folded to lower case."""
    mappings = {
        "properties": {
            "authorName": {"type": "keyword"},
            "title": {"type": "text", "copy_to": "all"},
            "all": {"type": "text"},
            "headline": {"type": "alias", "path": "title"},
            "user": {"properties": {"name": {"type": "text"}}},
        }
    }
    with empty_world.connect() as connection:
        fields = {"authorname": "text", "title": "text", "user.name": "text"}
        found = fitting.check(connection, fields, {"mappings": mappings})
    assert [(one.field, one.effect) for one in found] == [("authorName", Effect.UNUSED)]
