"""Partitions change hands all the time: no change is lost between two workers, and no document goes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from syncer.base import retry
from syncer.base.postgres import Connection
from syncer.base.retry import Backoff
from syncer.base.settings import KafkaSettings, WorkerSettings
from syncer.kafka.consumer import ChangeConsumer
from syncer.worker import source
from syncer.worker.loop import Worker
from syncer.worker.source import TopicSource
from tests.support.in_process import ends, publish
from tests.support.world import DEADLINE_SECONDS, World, running, wait_until
from tests.support.writers import fill

TURNS = 6


def test_who_leaves_in_the_middle_of_a_rebalance_is_soon_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for a coordinator that hears it only later; nor does its log speak of that."""
    monkeypatch.setattr("syncer.kafka.consumer.CLOSE_SECONDS", 0.1)  # far less than the five that it takes who waits
    settings = world.settings.kafka
    told: list[tuple[str, list[int]]] = []
    with capture_logs() as logs:
        first = ChangeConsumer(settings, begin=dict, on_change=lambda *event: told.append(event))
        wait_until(lambda: polled(first) and "worker.partitions_assigned" in dict(told), what="it has all partitions")
        second = ChangeConsumer(settings, begin=dict, on_change=lambda *_: None)
        wait_until(
            lambda: polled(second) and polled(first) and "worker.partitions_revoked" in dict(told),
            what="it gives some of them back",
        )
        began = time.monotonic()
        second.close()
        first.close()
        assert time.monotonic() - began < 4
    assert [one for one in logs if one["event"] == "topic.troubled"] == []


def test_a_partition_that_went_while_it_was_paused_is_read_when_it_comes_back(world: World) -> None:
    """Staying in the group pauses what is assigned, and may be when it goes; later that is forgotten."""
    settings = hurried(world)  # a member that leaves in the middle of a rebalance is soon taken for dead
    told: list[tuple[str, list[int]]] = []
    first = ChangeConsumer(settings, begin=dict, on_change=lambda *event: told.append(event))
    try:
        wait_until(lambda: polled(first) and bool(assigned(told)), what="it has all partitions")
        everything = assigned(told)
        second = ChangeConsumer(settings, begin=dict, on_change=lambda *_: None)
        try:
            wait_until(lambda: polled(second) and stayed(first) and assigned(told) < everything, what="some of them go")
        finally:
            second.close()
        wait_until(lambda: polled(first) and assigned(told) == everything, what="they come back")
        with world.relay() as relay:
            world.sql("INSERT INTO users (id, name, email) SELECT g, 'u', 'e' FROM generate_series(1, 200) AS g")
            relay.run_once()
        deadline = time.monotonic() + DEADLINE_SECONDS
        seen: set[int] = set()
        while seen != everything and time.monotonic() < deadline:
            seen |= received(first)
        assert seen == everything
    finally:
        first.close()


HURRIED = {"session.timeout.ms": 2000, "max.poll.interval.ms": 3000}
"""Kafka's client takes a worker that asks it nothing for dead after 3 s; by default, it does so after 5 minutes."""
TAKEN_FOR_DEAD_SECONDS = 4


def test_what_is_said_to_who_stays_is_no_record(world: World) -> None:
    """It joins anew; what it has read is not read again from the first partition's beginning."""
    publish(world, "INSERT INTO users (id, name, email) SELECT g, 'u', 'e' FROM generate_series(1, 200) AS g")
    consumer = ChangeConsumer(hurried(world), begin=dict, on_change=lambda *_: None)
    try:
        offsets: dict[int, int] = {}

        def take() -> bool:
            batch = consumer.receive(records_max=500, wait_seconds=0.1)
            offsets.update({one: place.next_offset or 0 for one, place in batch.reached.items()} if batch else {})
            return offsets == ends(world)

        wait_until(take, what="all has come")
        time.sleep(TAKEN_FOR_DEAD_SECONDS)  # the fault
        consumer.keep_alive()
        with pytest.raises(KafkaException) as said:
            wait_until(lambda: consumer.receive(records_max=1, wait_seconds=0.1) is not None, what="it is said, or not")
        assert said.value.args[0].code() == KafkaError._MAX_POLL_EXCEEDED
    finally:
        consumer.close()


def test_who_waits_for_postgres_keeps_its_partitions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of another server is not taken for a worker's own: the group does not change for it."""
    monkeypatch.setattr(source, "_KEEP_ALIVE_SECONDS", 1)
    monkeypatch.setattr(retry, "Backoff", partial(Backoff, longest_seconds=1))
    is_away = threading.Event()

    def connect() -> Connection:
        if is_away.is_set():
            raise psycopg.OperationalError("it is away")
        return world.connect("away")

    def events(logs: Sequence[Mapping[str, Any]]) -> list[str]:
        return [one["event"] for one in logs if one["event"].startswith("worker.partitions_")]

    fill(world)
    with world.index() as index, capture_logs() as logs:
        worker = Worker(
            connect=connect,
            source=lambda link, pause: TopicSource(link=link, settings=hurried(world), pause=pause, name="away"),
            index=index,
            settings=WorkerSettings(),
        )
        with running(worker):
            wait_until(lambda: bool(events(logs)), what="it has all partitions")
            is_away.set()
            world.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'syncer away'")
            with world.relay() as relay:
                relay.run_once()
            time.sleep(TAKEN_FOR_DEAD_SECONDS)  # the fault
            is_away.clear()
            world.wait_until_level()
            wait_until(world.is_handled, what="all is committed")
            assert events(logs) == ["worker.partitions_assigned"]


def hurried(world: World) -> KafkaSettings:
    """As a member has them of whom Kafka's client thinks so soon that it is dead."""
    return world.settings.kafka.model_copy(update={"properties": HURRIED})


def assigned(told: Sequence[tuple[str, list[int]]]) -> set[int]:
    """Which partitions a consumer has after what it was told of."""
    found: set[int] = set()
    for event, partitions in told:
        found = found | set(partitions) if event == "worker.partitions_assigned" else found - set(partitions)
    return found


def received(consumer: ChangeConsumer) -> set[int]:
    """The partitions of what has come."""
    batch = consumer.receive(records_max=100, wait_seconds=0.1)
    return set() if batch is None else set(batch.reached)


def stayed(consumer: ChangeConsumer) -> bool:
    """Let it take part, as one who has his hands full."""
    consumer.keep_alive()
    return True


def polled(consumer: ChangeConsumer) -> bool:
    """Let it take part in what the group does."""
    return consumer.receive(records_max=1, wait_seconds=0.01) is None
