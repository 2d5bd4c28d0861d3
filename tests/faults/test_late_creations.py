"""A writer that was delayed while Elasticsearch forgot a delete leaves no deleted document behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from syncer.base.errors import DocumentError
from syncer.base.model import Composition, Target
from syncer.elasticsearch.bulk import BulkOutcome, Rejection
from syncer.indexing.writer import Slice
from syncer.worker.job_loop import JobWorker
from tests.support.world import World, running


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


def test_a_deleted_document_does_not_come_back_with_a_suspension(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index takes one document late and refuses another: it is suspended, and refreshed when it is resumed."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'old', ''), (3, 1, 'old', '')")
    name = world.index_of()
    with (
        world.elasticsearch() as client,
        world.index() as index,
        world.index() as held,
        world.writer(held) as late,
        world.writer(index) as prompt,
    ):
        write = held.write

        def delayed(target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
            world.sql("DELETE FROM posts WHERE id = 2")
            prompt.write(name, ["2"])
            client.indices.close(index=name)
            client.indices.open(index=name, wait_for_active_shards=1)
            outcome = write(target, [each for each in compositions if each.id == "2"])
            (refused,) = [each for each in compositions if each.id == "3"]
            kind = "unavailable_shards_exception"
            outcome.rejections.append(Rejection(composition=refused, status=503, kind=kind, reason="primary away"))
            return outcome

        monkeypatch.setattr(held, "write", delayed)
        with pytest.raises(DocumentError) as raised:
            late.write(name, ["2", "3"])
        assert raised.value.is_stale
        late.suspend(raised.value)
        assert "2" in world.held()
        with running(JobWorker(connect=world.connect, index=index)):
            world.wait_until_level()
