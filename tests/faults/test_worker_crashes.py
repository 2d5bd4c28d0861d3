"""An offset is committed only for what is done: a worker that dies in between loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from elasticsearch import Elasticsearch

from syncer.index import BulkOutcome, Index
from syncer.lifecycle import Stop
from syncer.model import Composition, Target
from syncer.topic import ChangeConsumer, Received
from syncer.worker import Worker, WorkerReport
from tests.harness import World, wait_until


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


class CommitsFirst(Worker):
    """The rule taken out: offsets are committed before the documents are written."""

    def _commit_first(self, received: Received) -> None:
        self._joined().commit(received)
        self._joined()._commit()
        wait_until(lambda: self._joined().receive(records_max=1, wait_seconds=0.01) is None, what="commits go out")

    def run_once(self) -> WorkerReport:
        """Receive, commit, and only then handle."""
        received = self._joined().receive(records_max=100, wait_seconds=0.1)
        if received is None:
            return WorkerReport()
        self._commit_first(received)
        self._handle([self._parse(value) for value in received.values])
        return WorkerReport(changes=len(received.values))


def write_one_post(world: World) -> None:
    """A user and a post, published and not yet handled."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'title', 'body')")
    with world.relay() as relay:
        assert relay.run_once().published == 2


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


def test_without_the_rule_the_change_is_lost(world: World) -> None:
    """With offsets committed first, the successor never sees what the dead worker had in hand."""
    write_one_post(world)
    with world.elasticsearch() as client:
        with world.worker(DyingIndex(client, after_write=False), name="dies") as worker:
            worker.__class__ = CommitsFirst
            die(worker)
        with world.index() as index, world.worker(index) as successor:
            quiet = 0

            def is_quiet() -> bool:
                nonlocal quiet
                quiet = 0 if successor.run_once().changes else quiet + 1
                return quiet > 20 and successor._consumer is not None

            wait_until(is_quiet, what="the successor has nothing left to do")
        assert len(world.differences()) == 1


def test_offsets_that_cannot_be_read_are_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that does not answer while partitions are assigned costs a rejoin, not the worker."""
    write_one_post(world)
    beginnings = ChangeConsumer._beginnings
    refusals = [KafkaException(KafkaError(KafkaError._TIMED_OUT))]

    def refuse_once(self: ChangeConsumer, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        if refusals:
            raise refusals.pop()
        return beginnings(self, consumer, partitions)

    monkeypatch.setattr(ChangeConsumer, "_beginnings", refuse_once)
    stop = Stop()
    with world.index() as index, world.worker(index) as worker:
        thread = threading.Thread(target=worker.run, args=(stop,))
        thread.start()
        try:
            world.wait_until_level()
        finally:
            stop.request()
            thread.join()
    assert refusals == []
