"""A writer that was held up while Elasticsearch forgot a delete leaves no deleted document behind."""

from __future__ import annotations

import pytest

from syncer.compose import clock
from syncer.writer import CREATED_SECONDS_MAX
from tests.harness import World, wait_until
from tests.proof import Rule, faces


@faces(
    "a writer is held up between reading and writing until Elasticsearch has forgotten a delete, as it does when it is "
    "restarted",
    promises=(2, 3),
    without=Rule(
        "who has created a document, and finds that it took long, composes and writes it again",
        module="syncer.writer",
        text="took_long = any(",
        instead="took_long = False and any(",
    ),
)
def test_a_deleted_document_does_not_come_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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
        attempt = late.compose(name, ["2"])
        world.sql("DELETE FROM posts WHERE id = 2")
        prompt.write(name, ["2"])
        late.send(attempt)
        assert attempt.report.superseded == 1
        # What a restart does at once, this does at the next refresh.
        client.indices.put_settings(index=name, settings={"index.gc_deletes": "1ms"})

        def is_forgotten() -> bool:
            client.indices.refresh(index=name)
            late.send(attempt)
            return attempt.report.indexed == 1

        monkeypatch.setattr("syncer.writer.clock", lambda: clock() + CREATED_SECONDS_MAX)
        wait_until(is_forgotten, what="the delete is forgotten")
        assert len(world.differences()) == 1
        late.write(name, late.settle(attempt))
        assert world.differences() == []


@faces("a document is created by who was not held up", promises=(2,))
def test_what_is_created_in_time_is_written_once(world: World) -> None:
    """Nobody who was not held up does anything twice."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'new', '')")
    with world.index() as index, world.writer(index) as writer:
        attempt = writer.compose(world.index_of(), ["2"])
        writer.send(attempt)
        assert len(attempt.created) == 1
        assert writer.settle(attempt) == []
