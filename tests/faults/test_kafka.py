"""Kafka loses, refuses, repeats or reassigns records, or is shared: no change is lost, and no document goes back."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from structlog.testing import capture_logs

from syncer.base.errors import LossError
from syncer.base.postgres import Link
from syncer.kafka import producer
from syncer.kafka.consumer import ChangeConsumer
from syncer.kafka.topic import INSTALLATION
from syncer.worker import source
from tests.faults.harness import require_holds
from tests.support.in_process import admin, ends, following, handle, handling, let_expire, publish, refreshes
from tests.support.world import World, wait_until
from tests.support.writers import fill

UPDATE, DELETE = "UPDATE posts SET title = 'lost'", "DELETE FROM posts WHERE id % 10 = 0"
NEW = "UPDATE posts SET title = 'new'"


@pytest.fixture
def blog(world: World) -> World:
    """A blog, all of which is handled."""
    fill(world)
    handle(world)
    return world


# It loses records: a gap in their numbers is noticed, and every document is written again


def make_anew(world: World) -> None:
    """Delete the topic, and make another one of the same name."""
    client, name = admin(world), world.settings.kafka.topic
    client.delete_topics([name])[name].result()
    wait_until(lambda: _is_made(client, name), what="another topic is there")
    ends(world)  # each of its partitions has a leader


def _is_made(client: AdminClient, name: str) -> bool:
    with suppress(KafkaException):  # it is being deleted yet
        client.create_topics([NewTopic(name, num_partitions=4)])[name].result()
        return True
    return False


def make_anew_and_longer(world: World) -> None:
    """The same, and more changes in it than the workers had handled of the one before: they would pass over them."""
    make_anew(world)
    with world.relay() as relay:
        for number in range(8):
            world.sql("UPDATE posts SET title = %s", str(number))
            assert relay.run_once().published


def test_what_is_lost_before_it_is_handled_is_written_by_a_refresh(blog: World) -> None:
    """Updates and deletes that no worker has read; new changes arrive as ever. What was handled costs nothing."""
    let_expire(blog)
    with following(blog):
        blog.sql(NEW)
        require_holds(blog)
    assert refreshes(blog) == 0
    publish(blog, UPDATE, DELETE)
    make_anew_and_longer(blog)
    with capture_logs() as logs, following(blog):
        blog.sql(NEW)
        require_holds(blog)
    assert refreshes(blog) > 0
    lost = [event for event in logs if event["event"] == "topic.records_lost"]
    assert {event["log_level"] for event in lost} == {"error"}
    assert lost[0]["documents"] == ["blogpost"]


def test_a_lost_end_is_noticed_though_nothing_changes(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet partition gets an empty record, whose predecessor is missing."""
    monkeypatch.setattr(producer, "QUIET_SECONDS", 0.5)
    publish(blog, UPDATE, DELETE)
    make_anew(blog)
    with following(blog):
        require_holds(blog)
    assert refreshes(blog) > 0


NESTED = b'{"id":1,"changed_at":1,"relation":"public.posts","operation":"I","old":null,"new":{"id":%s%s%s}}'
GARBAGE = (
    b"",
    b"\xff\xfe",
    b"{",
    b'{"id": 7, "from": "a newer version"}',
    b"[" * 50_000,
    b'{"id":1,"changed_at":1e999,"relation":"public.posts","operation":"T","old":null,"new":null}',
    b'{"id":1,"changed_at":1,"relation":"public.posts","operation":"X","old":null,"new":null}',
    b'{"id":1,"changed_at":1,"relation":"public.posts","operation":"I","old":null,"new":{"id":"\\u0000"}}',
    NESTED % (b"[" * 970, b"1", b"]" * 970),
    NESTED % (b'{"a":' * 500, b'"\\u0000"', b"}" * 500),
)


def test_records_that_cannot_be_read_are_made_good_by_a_refresh(blog: World) -> None:
    """Changes before, between and behind them are written, and so is what they may have changed."""

    def put(*values: bytes) -> None:
        kafka = blog.settings.kafka
        client = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for each in values:
            client.produce(kafka.topic, each, b"key", partition=0, headers=[(INSTALLATION, kafka.installation)])
        client.flush()

    with blog.relay() as relay:
        put(*GARBAGE[:4])
        blog.sql("UPDATE posts SET title = 'other' WHERE id = 1")
        assert relay.run_once().published
        put(*GARBAGE[4:])
    blog.sql("SET session_replication_role = replica; UPDATE posts SET title = 'not captured' WHERE id = 2")
    with capture_logs() as logs, handling(blog):
        require_holds(blog)
    lost = [event for event in logs if event["event"] == "topic.records_lost"]
    assert {(event["log_level"], event["documents"][0]) for event in lost} == {("error", "blogpost")}
    assert "a newer version of syncer" in lost[0]["cause"]
    assert refreshes(blog) == 1


# A client that fetches nothing


class Deaf(ChangeConsumer):
    """A member of the group that is assigned its partitions, and to which nothing arrives."""

    def receive(self, *, records_max: int, wait_seconds: float) -> None:  # noqa: ARG002 - as it is
        """Nothing, but for its assignment."""
        before = dict(self.numbers)
        with suppress(LossError):
            super().receive(records_max=1, wait_seconds=wait_seconds)
        self.numbers |= {partition: number for partition, number in before.items() if partition in self.numbers}


def test_a_client_that_fetches_nothing_is_replaced(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka has records that do not arrive: the worker joins its group with another client."""
    clients = iter([Deaf])

    def client(*what: Any, **how: Any) -> ChangeConsumer:
        return next(clients, ChangeConsumer)(*what, **how)

    monkeypatch.setattr(source, "ChangeConsumer", client)
    monkeypatch.setattr(source, "SILENT_SECONDS", 2.0)
    with capture_logs() as logs, following(blog):
        blog.sql(UPDATE)
        require_holds(blog)
    assert [event["event"] for event in logs].count("worker.consumer_renewed") == 1
    assert refreshes(blog) == 0


def test_a_worker_that_is_busy_for_long_keeps_its_client(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It receives nothing meanwhile, since it asks for nothing: its client is not at fault."""
    monkeypatch.setattr(source, "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(source, "_KEEP_ALIVE_SECONDS", 0.0)
    with capture_logs() as logs, closing(Link(blog.connect)) as link, closing(blog.source(link, time.sleep)) as topic:
        publish(blog, UPDATE)
        wait_until(lambda: topic.receive(records_max=1, wait_seconds=0.01) is not None, what="it is behind")
        for _ in range(4):
            time.sleep(0.2)
            topic.keep_alive()
            topic.receive(records_max=1, wait_seconds=0)
    assert "worker.consumer_renewed" not in [event["event"] for event in logs]


# It refuses records that are too large


TABLES = """
CREATE TABLE shelves (word text, label text);
CREATE TABLE books (id int PRIMARY KEY, word text);
ALTER TABLE shelves ADD id int PRIMARY KEY;
"""
SELECT = """
SELECT b.id AS _id, (SELECT max(s.label) FROM shelves AS s WHERE s.word = b.word) AS label FROM books AS b
"""
# Does not get smaller when it is compressed.
LARGE = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 1500) AS g)"


def limit_records(world: World, bytes_max: int) -> None:
    """Have the topic take no larger records, nor batches of records."""
    client = admin(world)
    limit = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic, incremental_configs=[limit])
    client.incremental_alter_configs([topic])[topic].result()


def test_a_change_or_a_batch_is_too_large(empty_world: World) -> None:
    """The documents that read a change's table are written again; records that are small enough arrive as they are."""
    world = empty_world
    (world.document_folder / "select.sql").write_text(SELECT)
    (world.document_folder / "index.json").write_text('{"mappings": {"properties": {"label": {"type": "keyword"}}}}')
    world.sql(TABLES)
    world.migrate()
    world.apply()
    limit_records(world, 20_000)
    with capture_logs() as logs, following(world):
        world.sql(f"INSERT INTO books SELECT 1, {LARGE}")
        world.sql(f"INSERT INTO shelves (id, word, label) SELECT 1, {LARGE}, 'found'")
        world.wait_until_level()
        before = refreshes(world)
        world.sql("INSERT INTO books SELECT g, 'short' FROM generate_series(2, 999) AS g")
        require_holds(world)
        assert refreshes(world) == before > 0
    assert world.held()["1"] == {"label": "found"}
    shortened = [event["relations"] for event in logs if event["event"] == "relay.changes_shortened"]
    assert shortened[0] == ["public.shelves"]


# It is shared


def test_a_topic_that_has_records_of_another_database_is_refused(blog: World) -> None:
    """The daemon ends and says why, rather than take what another one waits for; later, nothing is missing."""
    kafka = blog.settings.kafka
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    client.produce(kafka.topic, b"hello", headers=[(INSTALLATION, str(UUID(int=0)))])
    client.flush()
    daemon = blog.daemon(until="component.failed")
    assert "of another database" in daemon.wait_for("component.failed")["error"]
    assert daemon.exit_code() == 1
    blog.sql(NEW)
    make_anew(blog)
    with following(blog):
        require_holds(blog)
