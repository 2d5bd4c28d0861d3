"""A document whose routing moves it between shards leaves no copy behind, whatever is delayed or at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import DocumentError
from syncer.elasticsearch.bulk import Index
from tests.faults.test_version_rule import HeldIndex, stalled_writer
from tests.support.routing import put_routing, put_shards, shards, users_on_two_shards, verified
from tests.support.world import World, wait_until

ALLOCATION = "index.routing.allocation"
MOVE = "UPDATE posts SET user_id = {there} WHERE id = 2"
BACK = "UPDATE posts SET user_id = {here} WHERE id = 2"
DELETE = "DELETE FROM posts WHERE id = 2"
CHANGES = {"moves": (MOVE,), "is_deleted": (DELETE,), "moves_and_is_deleted": (MOVE, DELETE), "and_back": (MOVE, BACK)}


@pytest.fixture
def routed(empty_world: World) -> World:
    """A world whose posts are routed by their author, in an index of three shards."""
    put_shards(empty_world, 3)
    put_routing(empty_world, "p.user_id")
    empty_world.set_up()
    return empty_world


def authors(world: World) -> tuple[int, int]:
    """Two authors on two shards, and a post of the first, in Postgres only."""
    with world.index() as index:
        here, there = users_on_two_shards(shards(world, index))
    world.sql("INSERT INTO users (id, name, email) SELECT g, 'name ' || g, '' FROM generate_series(0, 5) AS g")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, %s, 'old', '')", here)
    return here, there


def race(world: World, held: HeldIndex, index: Index, changes: Sequence[str]) -> int:
    """A writer reads post 2 and stalls, others write each change, then it writes; how much of it was skipped."""
    here, there = authors(world)
    with world.writer(index) as prompt, stalled_writer(world, held) as resume:
        for change in changes:
            world.sql(change.format(here=here, there=there))
            prompt.write(world.index_of(), ["2"])
        return resume().skipped


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_writer_that_stalled_before_the_move_brings_nothing_back(routed: World, changes: Sequence[str]) -> None:
    """What was read under the old routing cannot come back beside what was written under the new one."""
    with routed.elasticsearch() as client, routed.index() as index:
        assert race(routed, HeldIndex(client), index, changes) == 1
    assert routed.differences() == []
    assert verified(routed).holds


def test_a_document_that_moves_is_counted_once(routed: World) -> None:
    """However many shards are told, one document is one document in the report."""
    here, there = authors(routed)
    with routed.index() as index, routed.writer(index) as writer:
        first = writer.write(routed.index_of(), ["2", "3"])
        assert (first.documents, first.indexed, first.deleted) == (2, 1, 1)
        routed.sql(MOVE.format(here=here, there=there))
        moved = writer.write(routed.index_of(), ["2"])
        assert (moved.documents, moved.indexed, moved.deleted) == (1, 1, 0)
        routed.sql(DELETE)
        assert writer.write(routed.index_of(), ["2"]).deleted == 1
    assert routed.held() == {}


class _Impatient(Elasticsearch):
    """A client that does not wait for a shard that is away."""

    def bulk(self, **options: Any) -> Any:
        return super().bulk(**options | {"timeout": "100ms"})


def lose_a_shard(client: Elasticsearch, name: str) -> int:
    """Make the empty index anew, so that one of its three shards is nowhere to be had; which one."""
    (made,) = client.indices.get(index=name, expand_wildcards="all").body.values()
    client.indices.delete(index=name)
    limit = {"index.number_of_shards": 3, "index.number_of_replicas": 0, f"{ALLOCATION}.total_shards_per_node": 2}
    client.indices.create(
        index=name,
        settings=limit,
        mappings=made["mappings"],
        aliases=made["aliases"],
        wait_for_active_shards=0,
    )
    states: dict[str, int] = {}

    def are_two_there() -> bool:
        seen: Any = client.cat.shards(index=name, format="json", h="shard,state").body
        states.update({one["state"]: int(one["shard"]) for one in seen})
        return [one["state"] for one in seen].count("STARTED") == 2

    wait_until(are_two_there, what="two of three shards are there")
    return states["UNASSIGNED"]


def test_a_shard_that_cannot_delete_makes_the_document_be_written_again(routed: World) -> None:
    """While a shard is away, a document that left it is not called written: a late writer could still put it there."""
    with _Impatient(routed.endpoints.elasticsearch_url, request_timeout=60) as client:
        (name,) = client.indices.get_alias(name=routed.alias).body
        away = lose_a_shard(client, name)
        index = Index(client, bulk_bytes_max=1_000_000)
        known = shards(routed, index)
        here = next(one for one in range(100) if known.shard(str(one)) == away)
        there = next(one for one in range(100) if known.shard(str(one)) != away)
        routed.sql("INSERT INTO users (id, name, email) SELECT g, 'name', '' FROM generate_series(0, 99) AS g")
        routed.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, %s, 'old', '')", here)
        with routed.writer(index) as writer, stalled_writer(routed, HeldIndex(client)) as resume:
            routed.sql(MOVE.format(there=there))
            with pytest.raises(DocumentError, match="unavailable_shards"):
                writer.write(routed.index_of(), ["2"])
            client.indices.put_settings(index=name, settings={f"{ALLOCATION}.total_shards_per_node": -1})
            client.cluster.health(index=name, wait_for_status="green", timeout="50s")
            assert writer.write(routed.index_of(), ["2"]).indexed == 1
            assert resume().skipped == 1
    assert routed.differences() == []
