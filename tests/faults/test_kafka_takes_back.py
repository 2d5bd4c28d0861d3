"""Kafka loses acknowledged records: a broker loses its last seconds, or one with fewer records is elected."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from syncer.relay import loop as relaying
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.kafka import KafkaServer
from tests.faults.test_kafka_loses_records import commit
from tests.support.in_process import admin, ends, following, handle, handling, publish, refreshes
from tests.support.world import DEADLINE_SECONDS, World, made, wait_until
from tests.support.writers import fill

UPDATES = "DO $$ BEGIN FOR i IN 1..{} LOOP UPDATE posts SET title = 'n' || i WHERE id = 1; END LOOP; END $$"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaServer]:
    """A broker that may be broken."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        server = Sandbox(Path(folder) / "servers").kafka
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def frail_world(
    sandbox: Sandbox, endpoints: Endpoints, kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A world whose changes are all in one partition on that broker, with a blog that is level."""
    monkeypatch.setattr(relaying, "LEASE_SECONDS", 600)  # a relay that the test turns leads while the broker starts
    there = replace(endpoints, kafka_bootstrap_servers=kafka.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        client = admin(world)
        name = world.settings.kafka.topic
        client.create_topics([NewTopic(name, num_partitions=1)])[name].result()
        world.set_up()
        fill(world)
        handle(world)
        yield world


def copy(kafka: KafkaServer) -> Path:
    """The disk of a broker as it is now."""
    kept = kafka.folder / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    kafka.pause()
    shutil.copytree(kafka.data_folder, kept)
    kafka.resume()
    owner = kafka.data_folder.stat()
    for path in (kept, *kept.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    return kept


def crash(kafka: KafkaServer, kept: Path) -> None:
    """A loss of power: what was written since is not on the disk."""
    kafka.kill()
    shutil.rmtree(kafka.data_folder)
    kept.rename(kafka.data_folder)
    kafka.start()


def test_acknowledged_records_are_gone(frail_world: World, kafka: KafkaServer) -> None:
    """The next relay that leads notices it."""
    kept = copy(kafka)
    publish(frail_world, "UPDATE posts SET title = 'lost' WHERE id = 1", "DELETE FROM posts WHERE id = 2")
    crash(kafka, kept)
    with following(frail_world):
        frail_world.wait_until_level()
    assert refreshes(frail_world) == 1


def test_lost_records_are_overtaken(frail_world: World, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay that goes on notices it by where its next records are."""
    monkeypatch.setattr(relaying, "_LOOK_SECONDS", 3600)
    with frail_world.relay() as relay:
        relay.run_once()
        kept = copy(kafka)
        frail_world.sql("UPDATE posts SET title = 'lost' WHERE id = 1")
        assert relay.run_once().published
        crash(kafka, kept)
        for number in range(3):
            frail_world.sql("UPDATE posts SET title = %s WHERE id = 2", f"overtakes {number}")
        assert relay.run_once().published
    with handling(frail_world):
        frail_world.wait_until_level()
    assert refreshes(frail_world) == 1


def test_nothing_is_published_below_what_was_handled(frail_world: World, kafka: KafkaServer) -> None:
    """The refresh is over when the newer changes come; a worker that goes on at its offset sees all of them."""
    with frail_world.relay() as relay:
        relay.run_once()
        kept = copy(kafka)
        frail_world.sql(UPDATES.format(50))
        relay.run_once()
        handled = ends(frail_world)
        crash(kafka, kept)
        relay.close()
        relay.run_once()
        with frail_world.index() as index:
            frail_world.refresh(index)
        assert refreshes(frail_world) == 1
        frail_world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
        assert relay.run_once().published
        frail_world.sql(UPDATES.format(100))
        assert relay.run_once().published
    for partition, offset in handled.items():
        commit(frail_world, partition, offset)
    with following(frail_world):
        frail_world.wait_until_level()
    assert refreshes(frail_world) == 1


@contextmanager
def refusing(world: World) -> Iterator[None]:
    """Kafka answers every question, and takes no record: each is too large."""
    refuse_records(world, AlterConfigOpType.SET)
    try:
        yield
    finally:
        refuse_records(world, AlterConfigOpType.DELETE)


def refuse_records(world: World, operation: AlterConfigOpType) -> None:
    """Set, or remove, a limit that no record keeps; return once the broker knows."""
    entry = ConfigEntry("max.message.bytes", "1", incremental_operation=operation)
    topic = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic, incremental_configs=[entry])
    client = admin(world)  # a name of its own: it must outlive its answer
    client.incremental_alter_configs([topic])[topic].result(DEADLINE_SECONDS)

    def is_known() -> bool:
        limit = client.describe_configs([topic])[topic].result(DEADLINE_SECONDS)["max.message.bytes"].value
        return (limit == "1") is (operation is AlterConfigOpType.SET)

    # The controller answers before the broker has applied it.
    wait_until(is_known, what="the broker knows the limit")


def test_a_loss_is_made_up_for_once(frail_world: World, kafka: KafkaServer) -> None:
    """Further attempts create no job, even once the first one is done; the last one fills the offsets."""
    kept = copy(kafka)
    publish(frail_world, "UPDATE posts SET title = 'lost' WHERE id = 1")
    crash(kafka, kept)
    with frail_world.relay() as relay, frail_world.index() as index:
        with refusing(frail_world):
            for _ in range(3):
                with pytest.raises(KafkaException):
                    relay.run_once()
                relay.close()
                frail_world.refresh(index)
        assert refreshes(frail_world) == 1
        before = sum(ends(frail_world).values())
        relay.run_once()
        assert sum(ends(frail_world).values()) > before
    with following(frail_world):
        frail_world.sql("UPDATE posts SET title = 'new' WHERE id = 2")
        frail_world.wait_until_level()
    assert refreshes(frail_world) == 1
