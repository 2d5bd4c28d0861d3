"""The shard of a routing value is known exactly as Elasticsearch itself computes it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import IndexingError
from syncer.base.model import Target
from syncer.elasticsearch import routing
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.routing import Shards
from tests.support.world import World

VALUES = 3000
INDICES: dict[str, dict[str, Any]] = {
    "one": {"number_of_shards": 1},
    "two": {"number_of_shards": 2},
    "three": {"number_of_shards": 3},
    "seven": {"number_of_shards": 7},
    "sixteen": {"number_of_shards": 16},
    "own_routing_number": {"number_of_shards": 3, "number_of_routing_shards": 27},
}


def values() -> list[str]:
    """Routing values of all kinds: keys, words, every plane of Unicode, separators, long ones."""
    dice = random.Random(1)
    alphabets = ("0123456789", "abc-_", "äß€", "漢字かな", "😀𝔘𐍈", " ,;|\"'\\/\t", "é\u0301\u200d\ufeff\uffff")
    made = {"".join(dice.choices(dice.choice(alphabets), k=dice.randint(1, 40))) for _ in range(VALUES)}
    mixed = {"".join(dice.choices("".join(alphabets), k=dice.randint(1, 9))) for _ in range(VALUES)}
    return sorted(made | mixed | {"x" * 32000} | {str(one) for one in range(-500, VALUES)})


def put_all(client: Elasticsearch, name: str, routings: list[str]) -> None:
    """One document for each value, routed by it; its id is its place in the list."""
    for start in range(0, len(routings), 2000):
        part = routings[start : start + 2000]
        lines = [
            line
            for at, routing in enumerate(part, start)
            for line in ({"index": {"_id": str(at), "routing": routing}}, {})
        ]
        assert not client.bulk(index=name, operations=lines).body["errors"]
    client.indices.refresh(index=name)


def found_on(client: Elasticsearch, name: str, shard: int) -> list[int]:
    """The documents on a shard."""
    hits = client.search(index=name, preference=f"_shards:{shard}", size=10_000, source=False).body["hits"]["hits"]
    return [int(hit["_id"]) for hit in hits]


def shards(client: Elasticsearch, name: str) -> Shards:
    """As syncer reads them."""
    index = Index(client, bulk_bytes_max=1_000_000)
    return index.holdings.shards(Target(index_name=name, write_alias=name))


def require_right(client: Elasticsearch, name: str, routings: list[str]) -> None:
    """Every document is on the shard that its routing was said to lead to."""
    known = shards(client, name)
    seen = 0
    for shard in range(known.number):
        places = found_on(client, name, shard)
        assert {known.shard(routings[at]) for at in places} <= {shard}
        seen += len(places)
    assert seen == len(routings)


@pytest.mark.parametrize("settings", INDICES.values(), ids=INDICES.keys())
def test_a_routing_leads_where_elasticsearch_puts_the_document(empty_world: World, settings: dict[str, Any]) -> None:
    """Thousands of values, beyond the basic plane too, lead to the shards where their documents are found."""
    routings = values()
    name = f"{empty_world.alias}-shards"
    with empty_world.elasticsearch() as client:
        client.indices.create(index=name, settings={**settings, "number_of_replicas": 0})
        put_all(client, name, routings)
        require_right(client, name, routings)


@pytest.mark.parametrize(("resize", "before", "after"), [("shrink", 6, 2), ("split", 2, 8)])
def test_an_index_that_was_resized(empty_world: World, resize: str, before: int, after: int) -> None:
    """A split or shrunk index moves whole parts of its source's shards, and is understood."""
    routings = values()[:3000]
    name = f"{empty_world.alias}-before"
    with empty_world.elasticsearch() as client:
        client.indices.create(index=name, settings={"number_of_shards": before, "number_of_replicas": 0})
        put_all(client, name, routings)
        client.indices.put_settings(index=name, settings={"index.blocks.write": True})
        resized = f"{empty_world.alias}-after"
        settings = {"index.number_of_shards": after, "index.number_of_replicas": 0, "index.blocks.write": None}
        getattr(client.indices, resize)(index=name, target=resized, settings=settings, wait_for_active_shards=1)
        client.indices.refresh(index=resized)
        require_right(client, resized, routings)


@pytest.mark.parametrize("number", [2, 3, 16])
def test_an_unknown_function_is_refused(empty_world: World, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """If Elasticsearch finds shards by another function, nothing is written by ours."""

    def another(text: str, number: int, routing_number: int) -> int:
        return (original(text, number, routing_number) + 1) % number

    original = routing._shard
    name = f"{empty_world.alias}-shards"
    with empty_world.elasticsearch() as client:
        client.indices.create(index=name, settings={"number_of_shards": number, "number_of_replicas": 0})
        assert shards(client, name).number == number
        monkeypatch.setattr(routing, "_shard", another)
        with pytest.raises(IndexingError, match="to other shards than syncer computes"):
            shards(client, name)


@pytest.mark.parametrize(("created", "shard"), [("8518000", 1), ("9063999", 1), ("9064000", 0), ("9064001", 0)])
def test_an_index_keeps_the_function_that_it_was_created_with(created: str, shard: int) -> None:
    """Elasticsearch 9.4 creates indices with another function, and reads older indices with theirs."""
    settings = {"number_of_shards": "3", "version": {"created": created}}
    made = Shards.of_index({"routing_num_shards": 768, "settings": {"index": settings}})
    assert made.shard("2") == shard


@pytest.mark.parametrize("number", [1, 2, 3, 5, 16, 1024])
def test_there_is_an_address_for_every_shard(number: int) -> None:
    """Each shard can be spoken to, and the others of a routing are all but its own."""
    made = Shards.of(number=number, routing_number=number * (1 if number == 1024 else 64))
    assert [made.shard(one) for one in made.addresses] == list(range(number))
    own = made.shard("some routing")
    assert [made.shard(one) for one in made.others("some routing")] == [one for one in range(number) if one != own]
