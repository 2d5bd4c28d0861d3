"""Explain one document: each state where it holds, and what a stranger asks."""

from __future__ import annotations

import pytest

from syncer.base.errors import DefinitionError
from syncer.indexing import dead_letters
from syncer.indexing.dead_letters import Failure
from syncer.verify.explain import InIndex, State, explain
from tests.support.routing import put
from tests.support.world import World

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com'), (3, 'Alice John', 'alice@john.com');
INSERT INTO posts (id, user_id, title, body) VALUES
    (2, 1, 'Relationships', 'long'), (4, 3, 'are cool', 'short'), (5, 3, 'to the last', 'post');
INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less');
"""
FAR_AHEAD = 1 << 62
"""A version that no assign reaches: whatever was written with it stays."""
NOWHERE = {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


@pytest.fixture
def blog(world: World) -> World:
    """Three posts, in Postgres and in Elasticsearch."""
    world.sql(BLOG)
    world.backfill()
    world.sql("TRUNCATE syncer.outbox")  # as if that were handled
    return world


def explained(world: World, id_: str = "2", *, seconds: float = 60) -> InIndex:
    """What syncer explains of one post."""
    with world.connect() as connection, world.index() as index:
        (found,) = explain(connection, index, "blogpost", id_, seconds=seconds).indices
    return found


def test_a_change_is_followed_from_the_outbox_to_the_index(blog: World) -> None:
    """In the outbox, in the topic, handled: the document is busy until then."""
    blog.sql("UPDATE users SET name = 'J. Smith' WHERE id = 1")
    seen = explained(blog, seconds=0)
    assert (seen.state, seen.says) == (State.BUSY, "Different; earlier changes are not handled.")
    assert [part.path for part in seen.differences] == ["user.name"]
    assert explained(blog, "4").state is State.EQUAL
    with blog.index() as index, blog.relay() as relay, blog.worker(index) as worker:
        relay.run_once()
        assert explained(blog, seconds=0).state is State.BUSY
        blog.handle(worker)
    assert explained(blog).state is State.EQUAL
    done = blog.syncer("explain", "blogpost", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Equal to its SELECT.\n")


def test_what_differs_with_nothing_on_its_way_can_be_repaired(blog: World) -> None:
    """A lost write, and a document of another client; a version that syncer never reaches needs a new index.

    Kafka is not asked.
    """
    with blog.elasticsearch() as client:
        client.delete(index=blog.alias, id="2")
        put(client, blog, "ghost", None, {"title": "nobody wrote this"})
        client.index(index=blog.alias, id="4", document={}, version=FAR_AHEAD, version_type="external")
    for id_, word in (("2", "Missing from Elasticsearch"), ("ghost", ""), ("4", "")):
        seen = explained(blog, id_)
        assert (seen.state, word in seen.says) == (State.DIFFERENT, True), id_
    assert "syncer index rebuild blogpost" in seen.hint
    done = blog.syncer("explain", "blogpost", "2", environment=NOWHERE)
    assert (done.returncode, "syncer verify blogpost --repair" in done.stdout) == (1, True), done.stderr


def test_a_suspended_document_is_read_as_far_as_it_can_be(blog: World) -> None:
    """Both sides, if its index is at fault; if its tables are, what Elasticsearch has; nothing of a closed index."""
    blog.sql(r"UPDATE syncer.document SET suspended = E'its index is blocked\nlift the block'")
    blog.sql("UPDATE posts SET title = 'new' WHERE id = 4")
    seen = explained(blog, "4")
    assert (seen.state, seen.says) == (State.UNKNOWN, f"{blog.index_of()} is suspended: its index is blocked.")
    assert seen.elasticsearch
    assert [part.path for part in seen.differences] == ["title"]
    blog.sql("ALTER TABLE posts RENAME title TO heading")
    seen = explained(blog, "4")
    assert (seen.postgres.exists, seen.differences, len(seen.elasticsearch or ())) == (None, (), 1)
    with blog.connect() as connection:
        dead_letters.dead_letter(connection, blog.index_of(), 1, {"4": Failure(kind="any", error="because")})
    seen = explained(blog, "4")
    assert (seen.dead_letter is not None, "is suspended" in seen.says) == (True, True)
    with blog.elasticsearch() as client:
        client.indices.close(index=blog.index_of(), wait_for_active_shards=0)
    assert explained(blog, "4").elasticsearch is None


def test_bad_input_is_explained(blog: World) -> None:
    """An unknown document, letters for a number, another spelling of a number, nothing, far too much."""
    for id_ in ("abc", "99999999999999999999", "007"):
        seen = explained(blog, id_)
        assert (seen.state, "bigint" in seen.says) == (State.ABSENT, True)
    for id_ in ("", "x" * 513):
        with pytest.raises(DefinitionError, match="1 to 512 bytes"):
            explained(blog, id_)
    done = blog.syncer("explain", "blogspot", "2")
    assert (done.returncode, "Active documents: blogpost" in done.stderr) == (1, True), done.stderr
