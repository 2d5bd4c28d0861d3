"""Several databases, and copies of one, use the same Kafka: each handles its own changes, and no other's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from syncer.sandbox import Endpoints, Sandbox
from tests.support.in_process import admin
from tests.support.world import DEADLINE_SECONDS, World, made, wait_until
from tests.support.writers import fill, writing

DEFAULT = {"SYNCER_KAFKA_TOPIC": ""}


@pytest.fixture
def other(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> Iterator[World]:
    """A second database, on the same servers."""
    folder = tmp_path / "other"
    folder.mkdir()
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=folder)) as world:
        world.set_up()
        yield world


@pytest.fixture(autouse=True)
def no_topic_is_left(endpoints: Endpoints) -> Iterator[None]:
    """The topics that a test has made by other names than its world's are deleted."""
    admin = AdminClient({"bootstrap.servers": endpoints.kafka_bootstrap_servers})
    before = set(admin.list_topics(timeout=DEADLINE_SECONDS).topics)
    yield
    if left := set(admin.list_topics(timeout=DEADLINE_SECONDS).topics) - before:
        for one in admin.delete_topics(list(left)).values():
            one.exception(DEADLINE_SECONDS)


def apply(worlds: Sequence[World], environment: dict[str, str]) -> None:
    """Put the documents of each active, with these settings."""
    for world in worlds:
        done = world.syncer("apply", "--yes", environment=environment)
        assert done.returncode == 0, done.stderr


def test_two_databases_share_a_broker(world: World, other: World) -> None:
    """Each has a topic and a group of its own; the documents of both become level."""
    both = (world, other)
    apply(both, DEFAULT)
    for one in both:
        fill(one)
        one.daemon(environment=DEFAULT)
    with writing(world), writing(other):
        for one in both:
            wait_until(lambda one=one: one.held() != {}, what="documents come")  # type: ignore[misc]
    for one in both:
        one.wait_until_level()


def test_a_topic_of_two_databases_is_refused(world: World, other: World) -> None:
    """Both daemons end and say why; once each has its own topic, nothing is missing."""
    both = (world, other)
    shared = {"SYNCER_KAFKA_TOPIC": f"{world.name}.shared"}
    apply(both, shared)
    daemons = [one.daemon(environment=shared) for one in both]
    for one in both:
        fill(one)
    for daemon in daemons:
        assert "changes of another database" in daemon.wait_for("component.failed")["error"]
        assert daemon.process.wait(DEADLINE_SECONDS) == 1
    apply(both, DEFAULT)
    for one in both:
        one.daemon(environment=DEFAULT)
    for one in both:
        one.wait_until_level()


def test_a_record_of_an_unknown_client_is_refused(world: World) -> None:
    """The daemon ends and says why; once the topic is deleted, all goes on."""
    fill(world)
    daemon = world.daemon()
    world.wait_until_level()
    kafka = world.settings.kafka
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(kafka.topic, b"hello")
    producer.flush()
    assert "syncer did not publish" in daemon.wait_for("component.failed")["error"]
    assert daemon.process.wait(DEADLINE_SECONDS) == 1
    world.sql("UPDATE posts SET title = 'meanwhile'")
    client = admin(world)
    client.delete_topics([kafka.topic])[kafka.topic].result()
    wait_until(lambda: kafka.topic not in client.list_topics(timeout=60).topics, what="the topic is gone")
    world.daemon()
    world.wait_until_level()
    wait_until(lambda: world.syncer("status").returncode == 0, what="all is well")
