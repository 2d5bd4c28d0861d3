"""Progress is saved only for what is done: a worker that dies in between loses nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from elasticsearch import Elasticsearch

from syncer.base.model import Composition, Target
from syncer.elasticsearch.bulk import BulkOutcome, Index
from syncer.worker.loop import Worker
from tests.support.world import World, wait_until


class Killed(BaseException):
    """Ends a worker in the middle, as SIGKILL would."""


class DyingIndex(Index):
    """Kills whoever writes, before or after the write has reached Elasticsearch."""

    def __init__(self, client: Elasticsearch, *, after_write: bool) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self._after_write = after_write

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Die."""
        if self._after_write:
            super().write(target, compositions)
        raise Killed


def write_one_post(world: World) -> None:
    """A post, published as one change and not yet handled."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    world.sql("DELETE FROM syncer.outbox")  # no document shows him yet; his change would name the post too
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'title', 'body')")
    with world.relay() as relay:
        assert relay.run_once().published == 1


def die(worker: Worker) -> None:
    """Turn a worker until it is killed in the middle of a batch."""
    with pytest.raises(Killed):
        wait_until(lambda: bool(worker.run_once() and False), what="the worker dies")


@pytest.mark.parametrize("after_write", [False, True], ids=["before the write", "after the write"])
def test_the_next_worker_does_it_again(world: World, *, after_write: bool) -> None:
    """What a dead worker had received and not committed is handled by its successor."""
    write_one_post(world)
    with world.elasticsearch() as client:
        with world.worker(DyingIndex(client, after_write=after_write), name="dies") as worker:
            die(worker)
        with world.index() as index, world.relay() as relay, world.worker(index) as successor:
            world.drain(relay, successor)
