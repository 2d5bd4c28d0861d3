"""Kafka loses acknowledged records: a broker loses its last seconds, or one with fewer records is elected."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from syncer.capture import reader
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.kafka import KafkaServer
from tests.support.in_process import admin, following, handle, handling, publish, refreshes
from tests.support.world import World, made, wait_until
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
    monkeypatch.setattr(reader, "LEASE_SECONDS", 600)  # a relay that the test turns leads while the broker starts
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


NEW = "UPDATE posts SET title = 'new {0}' WHERE id = 2"


def test_acknowledged_records_are_gone(frail_world: World, kafka: KafkaServer) -> None:
    """The next record names one that no worker has seen."""
    kept = copy(kafka)
    publish(frail_world, "UPDATE posts SET title = 'lost' WHERE id = 1", "DELETE FROM posts WHERE id = 2")
    crash(kafka, kept)
    with following(frail_world):
        frail_world.sql("UPDATE posts SET title = 'new' WHERE id = 3")
        frail_world.wait_until_level()
    assert refreshes(frail_world) > 0


def test_lost_records_are_overtaken(frail_world: World, kafka: KafkaServer) -> None:
    """Others take their offsets before a worker comes."""
    kept = copy(kafka)
    publish(frail_world, "UPDATE posts SET title = 'lost' WHERE id = 1")
    crash(kafka, kept)
    publish(frail_world, *(NEW.format(number) for number in range(3)))
    with handling(frail_world):
        frail_world.wait_until_level()
    assert refreshes(frail_world) > 0


def test_nothing_is_passed_over_at_offsets_that_were_handled(frail_world: World, kafka: KafkaServer) -> None:
    """New records take the offsets of handled ones that were lost: a worker that goes on behind them meets a gap."""
    kept = copy(kafka)
    publish(frail_world, UPDATES.format(50))
    with handling(frail_world):
        frail_world.wait_until_level()
        wait_until(frail_world.is_handled, what="all is handled")
    crash(kafka, kept)
    publish(frail_world, "UPDATE posts SET title = 'hidden' WHERE id = 2", UPDATES.format(100))
    with handling(frail_world):
        frail_world.wait_until_level()
    assert refreshes(frail_world) > 0
