"""A dead letter names the field that is at fault and the type of its value: what Elasticsearch says, of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.base.model import Composition, Target
from syncer.elasticsearch.bulk import Index
from syncer.indexing import fault
from syncer.indexing.fault import Fault
from syncer.sandbox import Endpoints
from tests.support.world import World

PROPERTIES: dict[str, Any] = {
    **{one: {"type": one} for one in ("integer", "short", "long", "float", "date", "boolean", "keyword", "text")},
    **{one: {"type": one} for one in ("ip", "geo_point", "integer_range", "completion", "half_float", "nested")},
    "object": {"properties": {"within": {"properties": {"number": {"type": "integer"}}}}},
    "vector": {"type": "dense_vector", "dims": 3},
    "join": {"type": "join", "relations": {"question": "answer"}},
    "alias": {"type": "alias", "path": "integer"},
    "flat": {"type": "flattened", "depth_limit": 2},
}
LIMITS = {"index.mapping.nested_objects.limit": 10}


def _nested(value: Any, times: int) -> Any:
    """A value in an array in an array."""
    for _ in range(times):
        value = [value]
    return value


# What is written, the field that is named, the type that its value has.
CASES: dict[str, tuple[dict[str, Any], str | None, str | None]] = {
    "no_number": ({"integer": "xylo phone"}, "integer", "string"),
    "out_of_range": ({"short": 123456}, "short", "number"),
    "far_out_of_range": ({"long": 1e30}, "long", "number"),
    "not_finite": ({"float": 1e300}, "float", "number"),
    "not_finite_half": ({"half_float": 70000}, "half_float", "number"),
    "no_date": ({"date": "infinity"}, "date", "string"),
    "no_boolean": ({"boolean": "yes"}, "boolean", "string"),
    "no_address": ({"ip": "300.1.1.1"}, "ip", "string"),
    "no_place": ({"geo_point": "hello"}, "geo_point", "string"),
    "place_out_of_range": ({"geo_point": {"lat": 100, "lon": 0}}, "geo_point", "object"),
    "range_upside_down": ({"integer_range": {"gte": 5, "lte": 1}}, "integer_range", "object"),
    "object_for_text": ({"text": {"a": 1}}, "text", "object"),
    "object_for_keyword": ({"keyword": {"a": 1}}, "keyword", "object"),
    "immense_term": ({"keyword": "x" * 40_000}, "keyword", "string"),
    "value_for_object": ({"object": 5}, "object", "number"),
    "values_for_object": ({"object": [1, 2]}, "object", "array of number"),
    "value_for_nested": ({"nested": "a"}, "nested", "string"),
    "deep": ({"object": {"within": [{"number": 1}, {"number": "bad"}]}}, "object.within.number", "number or string"),
    "in_an_array": ({"integer": [1, 2, "bad"]}, "integer", "array of number or string"),
    "unknown_field": ({"unknown": True}, "unknown", "boolean"),
    "unknown_field_within": ({"object": {"within": {"other": None}}}, "object.within.other", "null"),
    "in_arrays_without_end": ({"integer": _nested("bad", 600)}, "integer", "array of array"),
    "dimensions": ({"vector": [1, 2]}, "vector", "array of number"),
    "completion": ({"completion": 5}, "completion", "number"),
    "join": ({"join": "zzz"}, "join", "string"),
    "alias": ({"alias": 1}, "alias", "number"),
    "too_deep": ({"flat": {"a": {"b": {"c": 1}}}}, "flat", "object"),
    "metadata": ({"_id": "7"}, "_id", "string"),
    "value_that_looks_like_a_field": ({"integer": "field [text] of type [x]", "text": "a"}, "integer", "string"),
    "no_name": ({"": 1}, None, None),
    "too_many_nested": ({"nested": [{}] * 20}, None, None),
}


@pytest.fixture(scope="module")
def said(endpoints: Endpoints) -> Iterator[dict[str, Fault]]:
    """What there is against each of these documents, on the real server."""
    client = Elasticsearch(endpoints.elasticsearch_url, request_timeout=60)
    name = "syncer-test-faults"
    client.options(ignore_status=404).indices.delete(index=name)
    target = Target(index_name=name, write_alias=f"{name}-write")
    client.indices.create(
        index=name,
        mappings={"dynamic": "strict", "properties": PROPERTIES},
        settings={"number_of_replicas": 0, **LIMITS},
        aliases={target.write_alias: {}},
    )
    compositions = [
        Composition(id=id_, version=1, source=json.dumps(document).encode()) for id_, (document, _, _) in CASES.items()
    ]
    outcome = Index(client, bulk_bytes_max=8_000_000).write(target, compositions)
    yield {
        one.composition.id: fault.of_index(one.kind, one.reason, one.composition.source) for one in outcome.rejections
    }
    client.indices.delete(index=name)
    client.close()


@pytest.mark.parametrize("case", CASES)
def test_the_field_and_the_type_of_its_value(said: dict[str, Fault], case: str) -> None:
    """Elasticsearch's own sentence, of every kind that it has, leads to the field; none is named that is not there."""
    _, field, value_type = CASES[case]
    one = said[case]
    assert (one.field, one.value_type) == (field, value_type), one.error
    assert one.error.startswith(f"{one.kind}: ")
    assert len(one.error) <= 500


def test_what_is_wrong_with_a_long_value_is_said_behind_it(said: dict[str, Fault]) -> None:
    """The value is cut, not the sentence that follows it."""
    assert "immense term" in said["immense_term"].error
    assert "x" * 200 not in said["immense_term"].error


@pytest.mark.parametrize(
    ("settings", "document", "field"),
    [
        ({"index.mapping.total_fields.limit": 10}, {f"f{number}": number for number in range(30)}, None),
        ({"index.mapping.depth.limit": 2}, {"b": {"c": {"d": {"e": 1}}}}, "b.c"),
    ],
    ids=["too_many_fields", "too_deep"],
)
def test_a_limit_of_the_mapping(world: World, settings: dict[str, Any], document: Any, field: str | None) -> None:
    """A document that would make the mapping too large or too deep is at fault, and its field is named if it is one."""
    with world.elasticsearch() as client:
        name = f"{world.alias}-limits"
        target = Target(index_name=name, write_alias=f"{name}-write")
        client.indices.create(index=name, settings=settings, aliases={target.write_alias: {}})
        one = Composition(id="1", version=1, source=json.dumps(document).encode())
        [rejection] = Index(client, bulk_bytes_max=8_000_000).write(target, [one]).rejections
    found = fault.of_index(rejection.kind, rejection.reason, one.source)
    assert rejection.status == 400
    assert found.field == field
    assert "Limit of" in found.error
