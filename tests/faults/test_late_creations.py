"""A writer that was delayed while Elasticsearch forgot a delete leaves no deleted document behind."""

from __future__ import annotations

from syncer.indexing.writer import Slice
from tests.support.world import World


def test_a_deleted_document_does_not_come_back(world: World) -> None:
    """Read while it was there, written when its delete is forgotten: that is noticed, and it is deleted again."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'old', '')")
    name = world.index_of()
    with (
        world.elasticsearch() as client,
        world.index() as index,
        world.writer(index) as late,
        world.writer(index) as prompt,
    ):
        late.build(attempt := Slice(index_name=name, ids=["2"]))
        world.sql("DELETE FROM posts WHERE id = 2")
        prompt.write(name, ["2"])
        late.send(attempt)
        assert attempt.outcome.done == {"2": "skipped"}
        client.indices.close(index=name)
        client.indices.open(index=name, wait_for_active_shards=1)
        late.send(attempt)
        assert attempt.outcome.done == {"2": "indexed"}
        assert len(world.differences()) == 1
        assert late.settle(attempt) == ["2"]
        late.write(name, ["2"])
        assert world.differences() == []


def test_what_is_created_in_time_is_written_once(world: World) -> None:
    """Nobody who was not held up does anything twice."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'new', '')")
    with world.index() as index, world.writer(index) as writer:
        writer.build(attempt := Slice(index_name=world.index_of(), ids=["2"]))
        writer.send(attempt)
        assert len(attempt.outcome.created) == 1
        assert writer.settle(attempt) == []
