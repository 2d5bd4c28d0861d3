"""A document with a ``_routing`` is on its shard and nowhere else; verify sees when not, and backfill fixes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.verify.diff import DriftKind
from tests.support.routing import (
    put,
    put_parents_and_children,
    put_routing,
    put_shards,
    shards,
    users_on_two_shards,
    verified,
)
from tests.support.world import World

USERS = "INSERT INTO users (id, name, email) SELECT g, 'name ' || g, '' FROM generate_series(0, 5) AS g"
POSTS = "INSERT INTO posts (id, user_id, title, body) SELECT g, g % 6, 'title', '' FROM generate_series(0, 59) AS g"


def make(world: World, *, routing: str | None = "p.user_id", number: int = 3) -> World:
    """Sixty posts by six authors, in Postgres and in Elasticsearch."""
    put_shards(world, number)
    put_routing(world, routing)
    world.set_up()
    world.sql(USERS)
    world.sql(POSTS)
    world.backfill()
    world.sql("TRUNCATE syncer.outbox")  # as if that were handled
    return world


def found(world: World) -> dict[str, DriftKind]:
    """What verify says of which documents."""
    return {drift.id: drift.kind for drift in verified(world).drifts}


def test_a_document_is_found_with_its_routing(empty_world: World) -> None:
    """A get with the routing finds what the SELECT routed so; it is no field; NULL is the id's own shard."""
    routing = "'a,b €😀' || nullif(p.user_id, 3)"
    make(empty_world, routing=routing)
    assert empty_world.differences() == []
    assert verified(empty_world).holds
    rows = empty_world.sql(f"SELECT p.id::text, coalesce(({routing})::text, p.id::text) FROM posts AS p")
    with empty_world.elasticsearch() as client:
        for id_, place in rows:
            hit = client.get(index=empty_world.alias, id=id_, routing=place).body
            assert (hit["_source"]["title"], "_routing" in hit["_source"]) == ("title", False)


# Faults put by others

Plant = Callable[[Elasticsearch, World, dict[str, Any]], object]


def _elsewhere(world: World) -> str:
    """An author whose posts are not on the shard of post 7, which is author 1's."""
    with world.index() as index:
        return str(users_on_two_shards(shards(world, index))[1])


def _neighbour(world: World) -> str:
    """Another routing that leads to the shard of author 1."""
    with world.index() as index:
        known = shards(world, index)
    return next(routing for routing in map(str, range(100, 200)) if known.shard(routing) == known.shard("1"))


def _move(client: Elasticsearch, world: World, source: dict[str, Any]) -> None:
    client.delete(index=world.alias, id="7", routing="1")
    put(client, world, "7", _elsewhere(world), source)


FAULTS: dict[str, tuple[DriftKind, str, Plant]] = {
    "missing": (DriftKind.MISSING, "7", lambda c, w, _: c.delete(index=w.alias, id="7", routing="1")),
    "different": (DriftKind.DIFFERENT, "7", lambda c, w, s: put(c, w, "7", "1", s | {"title": "other"})),
    "extra": (DriftKind.EXTRA, "99", lambda c, w, s: put(c, w, "99", _elsewhere(w), s)),
    "extra of another kind": (DriftKind.EXTRA, "no number", lambda c, w, s: put(c, w, "no number", _elsewhere(w), s)),
    "a second copy": (DriftKind.MISPLACED, "7", lambda c, w, s: put(c, w, "7", _elsewhere(w), s | {"title": "x"})),
    "moved": (DriftKind.MISPLACED, "7", _move),
    "on its shard under another routing": (DriftKind.MISPLACED, "7", lambda c, w, s: put(c, w, "7", _neighbour(w), s)),
}


def test_planted_faults_are_found_and_fixed(empty_world: World) -> None:
    """Verify names the document and what is wrong with it, and nothing else; after a backfill all is well."""
    make(empty_world)
    assert found(empty_world) == {}
    with empty_world.elasticsearch() as client:
        source = client.get(index=empty_world.alias, id="7", routing="1").body["_source"]
        for name, (kind, id_, plant) in FAULTS.items():
            plant(client, empty_world, source)
            assert found(empty_world) == {id_: kind}, name
            empty_world.backfill()
            assert found(empty_world) == {}, name
            assert empty_world.differences() == [], name


def test_a_copy_under_a_routing_where_there_is_none(empty_world: World) -> None:
    """In an index of a document without ``_routing``, somebody's copies on other shards are found and removed."""
    make(empty_world, routing=None)
    with empty_world.elasticsearch() as client:
        source = client.get(index=empty_world.alias, id="7").body["_source"]
        for routing in map(str, range(10)):
            put(client, empty_world, "7", routing, source)
            put(client, empty_world, "99", routing, source)
    assert found(empty_world) == {"7": DriftKind.MISPLACED, "99": DriftKind.EXTRA}
    empty_world.backfill()
    assert found(empty_world) == {}
    assert empty_world.differences() == []


# Definitions that change


@pytest.mark.parametrize(
    ("before", "after", "number", "is_rebuilt"),
    [
        (None, "p.user_id", 3, False),
        ("p.user_id", "p.user_id + 1", 3, False),
        ("p.user_id", "NULL::text", 3, False),
        ("p.user_id", None, 3, True),  # a late writer may put a copy on any shard
        ("p.user_id", None, 1, False),
    ],
    ids=["gained", "changed", "given up", "dropped", "dropped where there is one shard"],
)
def test_another_routing_leaves_nothing_behind(
    empty_world: World, before: str | None, after: str | None, number: int, *, is_rebuilt: bool
) -> None:
    """After an apply that changes the routing of everything, each document is in its new place only."""
    make(empty_world, routing=before, number=number)
    index = empty_world.index_of()
    put_routing(empty_world, after)
    empty_world.apply()
    assert empty_world.differences() == []
    assert found(empty_world) == {}
    assert (empty_world.index_of() != index) is is_rebuilt


# Parents and children


def test_parents_and_children_are_joined_in_one_index(empty_world: World) -> None:
    """Questions across the join are answered right on three shards, also after a comment went to another post."""
    world = empty_world
    put_parents_and_children(world)
    world.set_up()
    with world.index() as index, world.relay() as relay, world.worker(index) as worker, world.elasticsearch() as client:
        world.sql(USERS)
        world.sql(POSTS)
        world.sql("INSERT INTO comments (id, post_id, name, comment) SELECT id, id, 'c', 'word' || id FROM posts")
        world.drain(relay, worker)

        def parents(word: str) -> set[str]:
            """The posts with a comment of this word."""
            query = {"has_child": {"type": "comment", "query": {"match": {"text": word}}}}
            client.indices.refresh(index=world.alias)
            return {hit["_id"] for hit in client.search(index=world.alias, query=query).body["hits"]["hits"]}

        for number in range(60):
            assert parents(f"word{number}") == {f"p{number}"}
        for there in range(8, 20):
            world.sql("UPDATE comments SET post_id = %s WHERE id = 7", there)
            world.drain(relay, worker)
            assert parents("word7") == {f"p{there}"}
    assert verified(world).holds


def test_a_routing_that_elasticsearch_refuses_is_dead_lettered(empty_world: World) -> None:
    """A routing of more than 32,766 bytes makes a dead letter of its document; the others are written."""
    make(empty_world, routing="p.title")
    empty_world.sql("UPDATE posts SET title = repeat('x', 33000) WHERE id = 7")
    empty_world.backfill()
    ((id_, error),) = empty_world.sql("SELECT id, error FROM syncer.dead_letter")
    assert (id_, "_routing" in error) == ("7", True)
    empty_world.sql("UPDATE posts SET title = 'short' WHERE id = 7")
    empty_world.backfill()
    assert empty_world.sql("SELECT count(*) FROM syncer.dead_letter") == [(0,)]
    assert empty_world.differences() == []
