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

INDICES: dict[str, tuple[dict[str, Any], str, int]] = {
    "two": ({"number_of_shards": 2}, "", 0),
    "sixteen": ({"number_of_shards": 16}, "", 0),
    "own_routing_number": ({"number_of_shards": 3, "number_of_routing_shards": 27}, "", 0),
    "shrunk": ({"number_of_shards": 6}, "shrink", 2),
    "split": ({"number_of_shards": 2}, "split", 8),
}


def values() -> list[str]:
    """Routing values of all kinds: keys, words, every plane of Unicode, separators, long ones."""
    dice = random.Random(1)
    alphabets = ("0123456789", "abc-_", "äß€", "漢字かな", "😀𝔘𐍈", " ,;|\"'\\/\t", "é\u0301\u200d\ufeff\uffff")
    alike = {"".join(dice.choices(dice.choice(alphabets), k=dice.randint(1, 40))) for _ in range(1000)}
    mixed = {"".join(dice.choices("".join(alphabets), k=dice.randint(1, 9))) for _ in range(1000)}
    return sorted(alike | mixed | {"x" * 32000} | {str(number) for number in range(-500, 500)})


def shards(client: Elasticsearch, name: str) -> Shards:
    """As syncer reads them."""
    return Index(client).holdings.shards(Target(index_name=name, write_alias=name))


@pytest.mark.parametrize(("settings", "resize", "number"), INDICES.values(), ids=INDICES.keys())
def test_a_routing_leads_where_elasticsearch_puts_the_document(
    empty_world: World, settings: dict[str, Any], resize: str, number: int
) -> None:
    """Thousands of values, beyond the basic plane too, lead to the shards where their documents are found.

    A split or shrunk index moves whole parts of its source's shards.
    """
    name = f"{empty_world.alias}-shards"
    with empty_world.elasticsearch() as client:
        client.indices.create(index=name, settings={**settings, "number_of_replicas": 0})
        lines = [line for value in values() for line in ({"index": {"routing": value}}, {"routing": value})]
        assert not client.bulk(index=name, operations=lines).body["errors"]
        if resize:
            client.indices.put_settings(index=name, settings={"index.blocks.write": True})
            changed = {"index.number_of_shards": number, "index.number_of_replicas": 0, "index.blocks.write": None}
            source, name = name, f"{name}-resized"
            getattr(client.indices, resize)(index=source, target=name, settings=changed, wait_for_active_shards=1)
        client.indices.refresh(index=name)
        known, seen = shards(client, name), 0
        for shard in range(known.number):
            found = client.search(index=name, preference=f"_shards:{shard}", size=10_000).body["hits"]["hits"]
            assert {known.shard(hit["_source"]["routing"]) for hit in found} <= {shard}
            seen += len(found)
        assert seen == len(values())


def test_an_unknown_function_is_refused(empty_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Elasticsearch finds shards by another function, nothing is written by ours."""
    name = f"{empty_world.alias}-shards"
    refused = 0
    with empty_world.elasticsearch() as client:
        client.indices.create(index=name, settings={"number_of_shards": 3, "number_of_replicas": 0})
        for since in (0, 10**9):  # whichever of its two functions Elasticsearch has, syncer takes the other one once
            monkeypatch.setattr(routing, "MODULO_SINCE", since)
            try:
                shards(client, name)
            except IndexingError as error:
                assert "to other shards than syncer computes" in error.message  # noqa: PT017 - one of the two
                refused += 1
    assert refused == 1


@pytest.mark.parametrize(("created", "shard"), [("8518000", 1), ("9063999", 1), ("9064000", 0), ("9064001", 0)])
def test_an_index_keeps_the_function_that_it_was_created_with(created: str, shard: int) -> None:
    """Elasticsearch 9.4 creates indices with another function, and reads older indices with theirs."""
    settings = {"number_of_shards": "3", "version": {"created": created}}
    found = Shards.of_index({"routing_num_shards": 768, "settings": {"index": settings}})
    assert found.shard("2") == shard


@pytest.mark.parametrize("number", [1, 3, 16])
def test_there_is_an_address_for_every_shard(number: int) -> None:
    """Each shard can be spoken to, and the others of a routing are all but its own."""
    found = Shards.of(number=number, routing_number=number * 64)
    assert [found.shard(address) for address in found.addresses] == list(range(number))
    own = found.shard("some routing")
    others = [found.shard(address) for address in found.others("some routing")]
    assert others == [shard for shard in range(number) if shard != own]
