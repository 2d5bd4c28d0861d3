"""A document with a ``_routing`` is on its shard and nowhere else; verify sees when not, and backfill fixes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import DocumentError
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
    return {one.id: one.kind for one in verified(world).drifts}


@pytest.fixture
def routed(empty_world: World) -> World:
    """Posts routed by their author, on three shards."""
    return make(empty_world)


@pytest.mark.parametrize("routing", ["nullif(p.user_id, 3)", "'a,b €😀' || p.user_id"])
def test_a_document_is_found_with_its_routing(empty_world: World, routing: str) -> None:
    """A search with the routing, and a get with it, find what the SELECT routed so; NULL is the id's own shard."""
    make(empty_world, routing=routing)
    assert empty_world.differences() == []
    assert verified(empty_world).holds
    rows = empty_world.sql(f"SELECT p.id::text, coalesce(({routing})::text, p.id::text) FROM posts AS p")
    with empty_world.elasticsearch() as client:
        for id_, place in rows:
            assert client.get(index=empty_world.alias, id=id_, routing=place).body["found"]


def test_routing_is_no_field(routed: World) -> None:
    """The column says where a document lies, and is not in it."""
    with routed.elasticsearch() as client:
        hit = client.get(index=routed.alias, id="7", routing="1").body
    assert hit["_routing"] == "1"
    assert "_routing" not in hit["_source"]
    assert hit["_source"]["title"] == "title"


def test_changes_reach_the_document_wherever_it_is(routed: World) -> None:
    """Through relay and worker, a post follows its author to another shard, and a deleted one leaves every shard."""
    with routed.index() as index, routed.relay() as relay, routed.worker(index) as worker:
        routed.sql("UPDATE posts SET user_id = (user_id + 1) % 6 WHERE id < 30")
        routed.sql("DELETE FROM posts WHERE id % 5 = 0")
        routed.drain(relay, worker)
        routed.sql("TRUNCATE posts CASCADE")
        routed.drain(relay, worker)
    assert routed.held() == {}


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
    return next(one for one in map(str, range(100, 200)) if known.shard(one) == known.shard("1"))


FAULTS: dict[str, tuple[DriftKind, str, Plant]] = {
    "missing": (DriftKind.MISSING, "7", lambda c, w, _: c.delete(index=w.alias, id="7", routing="1")),
    "different": (DriftKind.DIFFERENT, "7", lambda c, w, s: put(c, w, "7", "1", s | {"title": "other"})),
    "extra": (DriftKind.EXTRA, "99", lambda c, w, s: put(c, w, "99", None, s)),
    "extra_under_a_routing": (DriftKind.EXTRA, "99", lambda c, w, s: put(c, w, "99", _elsewhere(w), s)),
    "extra_of_another_kind": (DriftKind.EXTRA, "no number", lambda c, w, s: put(c, w, "no number", _elsewhere(w), s)),
    "a_second_copy": (DriftKind.MISPLACED, "7", lambda c, w, s: put(c, w, "7", _elsewhere(w), s)),
    "a_second_copy_with_other_contents": (
        DriftKind.MISPLACED,
        "7",
        lambda c, w, s: put(c, w, "7", _elsewhere(w), s | {"title": "other"}),
    ),
    "moved": (
        DriftKind.MISPLACED,
        "7",
        lambda c, w, s: c.bulk(
            index=w.alias,
            operations=[
                {"delete": {"_id": "7", "routing": "1"}},
                {"index": {"_id": "7", "routing": _elsewhere(w)}},
                s,
            ],
        ),
    ),
    "on_its_shard_under_another_routing": (
        DriftKind.MISPLACED,
        "7",
        lambda c, w, s: put(c, w, "7", _neighbour(w), s),
    ),
}


def test_planted_faults_are_found_and_fixed(routed: World) -> None:
    """Verify names the document and what is wrong with it, and nothing else; after a backfill all is well."""
    assert found(routed) == {}
    with routed.elasticsearch() as client:
        source = client.get(index=routed.alias, id="7", routing="1").body["_source"]
        for name, (kind, id_, plant) in FAULTS.items():
            plant(client, routed, source)
            assert found(routed) == {id_: kind}, name
            routed.backfill()
            assert found(routed) == {}, name
            assert routed.differences() == [], name


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


def test_verify_tells_where_the_copy_is(routed: World) -> None:
    """On the command line, a misplaced document is shown with the routing under which it was found."""
    place = _elsewhere(routed)
    with routed.elasticsearch() as client:
        put(client, routed, "7", place, {"title": "title"})
    seen = routed.syncer("verify", "--settle", "0")
    assert seen.returncode == 1
    assert f"misplaced (routing {place})" in seen.stdout
    assert routed.syncer("backfill", "blogpost").returncode == 0
    assert routed.syncer("verify").returncode == 0


# Definitions that change


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "p.user_id"), ("p.user_id", "p.user_id + 1"), ("p.user_id", "NULL::text"), ("p.user_id", "p.id")],
    ids=["gained", "changed", "given_up", "as_the_id"],
)
def test_another_routing_leaves_nothing_behind(empty_world: World, before: str | None, after: str) -> None:
    """After an apply that changes the routing of everything, each document is in its new place only."""
    make(empty_world, routing=before)
    put_routing(empty_world, after)
    empty_world.apply()
    assert empty_world.differences() == []
    assert found(empty_world) == {}


def test_the_routing_is_not_dropped_in_place(routed: World) -> None:
    """An index of several shards that was written with ``_routing`` is not written without: a new one is."""
    before = routed.index_of()
    put_routing(routed, None)
    routed.apply()
    assert routed.index_of() != before
    assert routed.differences() == []
    assert found(routed) == {}


def test_the_routing_can_be_dropped_where_there_is_one_shard(empty_world: World) -> None:
    """One shard holds one copy of an id, so that nothing can stay behind."""
    make(empty_world, number=1)
    put_routing(empty_world, None)
    empty_world.apply()
    assert empty_world.differences() == []
    assert found(empty_world) == {}


def test_the_routing_can_be_dropped_with_the_index(routed: World) -> None:
    """A new index knows nothing of old places."""
    with routed.elasticsearch() as client:
        (name,) = client.indices.get_alias(name=routed.alias).body
        client.indices.delete(index=name)
    put_routing(routed, None)
    routed.apply()
    assert routed.differences() == []


def test_an_index_that_is_gone_is_explained(routed: World) -> None:
    """Who has never seen the index cannot know its shards, and says so as for any other document."""
    with routed.elasticsearch() as client:
        (name,) = client.indices.get_alias(name=routed.alias).body
        client.indices.delete(index=name)
    with routed.index() as index, routed.writer(index) as writer, pytest.raises(DocumentError) as refused:
        writer.write(routed.index_of(), ["7"])
    assert "gone" in refused.value.message
    assert "syncer apply" in refused.value.hint


# Parents and children


def titles(client: Elasticsearch, world: World, query: dict[str, Any]) -> set[str]:
    """The ids that a search finds."""
    client.indices.refresh(index=world.alias)
    return {hit["_id"] for hit in client.search(index=world.alias, query=query).body["hits"]["hits"]}


def test_parents_and_children_are_joined_in_one_index(empty_world: World) -> None:
    """Questions across the join are answered right on three shards, also after a comment went to another post."""
    put_parents_and_children(empty_world)
    empty_world.set_up()
    with (
        empty_world.index() as index,
        empty_world.relay() as relay,
        empty_world.worker(index) as worker,
        empty_world.elasticsearch() as client,
    ):
        empty_world.sql(USERS)
        empty_world.sql(POSTS)
        empty_world.sql(
            "INSERT INTO comments (id, post_id, name, comment)"
            " SELECT g, g, 'c', 'word' || g FROM generate_series(0, 59) AS g"
        )
        empty_world.drain(relay, worker)
        for number in range(60):
            of_child = {"has_child": {"type": "comment", "query": {"match": {"text": f"word{number}"}}}}
            assert titles(client, empty_world, of_child) == {f"p{number}"}
        of_parent = {"has_parent": {"parent_type": "post", "query": {"ids": {"values": ["p7"]}}}}
        assert titles(client, empty_world, of_parent) == {"c7"}
        for there in range(8, 20):
            empty_world.sql("UPDATE comments SET post_id = %s WHERE id = 7", there)
            empty_world.drain(relay, worker)
            of_child = {"has_child": {"type": "comment", "query": {"match": {"text": "word7"}}}}
            assert titles(client, empty_world, of_child) == {f"p{there}"}
        assert titles(client, empty_world, of_parent) == set()
    assert verified(empty_world).holds


def test_a_routing_that_elasticsearch_refuses_is_dead_lettered(empty_world: World) -> None:
    """A routing of more than 32,766 bytes makes a dead letter of its document; the others are written."""
    put_shards(empty_world, 3)
    put_routing(empty_world, "p.title")
    empty_world.set_up()
    empty_world.sql(USERS)
    empty_world.sql(POSTS + "; UPDATE posts SET title = repeat('x', 33000) WHERE id = 7")
    empty_world.backfill()
    assert empty_world.differences() != []
    ((id_, error),) = empty_world.sql("SELECT id, error FROM syncer.dead_letter")
    assert id_ == "7"
    assert "_routing" in error
    empty_world.sql("UPDATE posts SET title = 'short' WHERE id = 7")
    empty_world.backfill()
    assert empty_world.sql("SELECT count(*) FROM syncer.dead_letter") == [(0,)]
    assert empty_world.differences() == []
