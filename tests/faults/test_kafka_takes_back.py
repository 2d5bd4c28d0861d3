"""Kafka forgets what it has acknowledged: a broker that lost its last seconds, or an election of one who knew less."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from syncer import loss, relay as relaying, rewrites
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.kafka import KafkaServer
from syncer.topic import OVERTAKEN, Loss, Observer
from tests.faults.following import admin, following, handle, handling, publish, refreshes
from tests.faults.writers import fill
from tests.harness import World, made
from tests.proof import Rule, faces


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
def frail_world(sandbox: Sandbox, endpoints: Endpoints, kafka: KafkaServer, tmp_path: Path) -> Iterator[World]:
    """A world whose changes are all in one partition on that broker, with a blog that is level."""
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


@faces(
    "the broker loses power, and with it records that it had acknowledged",
    promises=(1, 3),
    without=Rule(
        "a partition that ends before what was acknowledged has lost records",
        module="syncer.loss",
        text="if partition in extents and extents[partition].end < end",
        instead="if False",
    ),
)
def test_acknowledged_records_are_gone(frail_world: World, kafka: KafkaServer) -> None:
    """The next relay that leads notices it."""
    kept = copy(kafka)
    publish(frail_world, "UPDATE posts SET title = 'lost' WHERE id = 1", "DELETE FROM posts WHERE id = 2")
    crash(kafka, kept)
    with following(frail_world):
        frail_world.wait_until_level()
    assert refreshes(frail_world) == 1


@faces(
    "the same, and newer records have taken the place of the lost ones before anybody looked",
    promises=(1, 3),
    without=Rule(
        "an acknowledgement for a place that was acknowledged before is a loss",
        module="syncer.producer",
        text="if offset < end:",
        instead="if False:",
    ),
)
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


@faces(
    "the same, and the relay that has published the newer records dies before it has noticed",
    promises=(1, 3),
    without=Rule(
        "whoever leads next looks whether the last record is the one that it was",
        module="syncer.loss",
        text="        if id_in(one.value) != lasts[one.partition]\n",
        instead="        if False\n",
    ),
)
def test_lost_records_are_overtaken_by_a_relay_that_dies(
    frail_world: World, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next relay finds another record in the place of the last one that was acknowledged."""
    with frail_world.relay() as relay, monkeypatch.context() as patched:
        patched.setattr(relaying, "_LOOK_SECONDS", 3600)
        relay.run_once()
        kept = copy(kafka)
        frail_world.sql("UPDATE posts SET title = 'lost' WHERE id = 1")
        assert relay.run_once().published
        crash(kafka, kept)
        for number in range(3):
            frail_world.sql("UPDATE posts SET title = %s WHERE id = 2", f"overtakes {number}")
        patched.setattr(relay, "_make_up", _die)
        with pytest.raises(KeyboardInterrupt):
            relay.run_once()
    with following(frail_world):
        frail_world.wait_until_level()
    assert refreshes(frail_world) == 1


def _die(*_: object) -> None:
    raise KeyboardInterrupt


@faces(
    "a partition falls back twice while one batch is published",
    promises=(1,),
    without=Rule(
        "of a partition that fell back twice the lowest place counts",
        module="syncer.loss",
        text="for one in sorted(losses, key=lambda one: -one.end)}",
        instead="for one in losses}",
    ),
)
def test_a_partition_falls_back_twice(world: World) -> None:
    """Whatever a worker had handled of it before counts no further than the lowest place that it fell back to."""
    losses = [
        Loss(partition=0, cause=OVERTAKEN, position=position, begin=end, end=end)
        for position, end in ((200, 90), (150, 100))
    ]
    topic_id = str(Observer(world.settings.kafka).id())
    with world.connect() as connection:
        loss.make_up(connection, losses, rewritten=topic_id)
        assert rewrites.read(connection, topic_id).true_until(0, 200, "") == 90
