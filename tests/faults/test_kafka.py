"""Kafka loses, refuses, repeats or reassigns records, or is shared: no change is lost, and no document goes back."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic
from structlog.testing import capture_logs

from syncer.base import retry
from syncer.base.errors import LossError
from syncer.base.postgres import Connection
from syncer.base.retry import Backoff
from syncer.base.settings import KafkaSettings, WorkerSettings
from syncer.capture import reader
from syncer.kafka import producer
from syncer.kafka.consumer import ChangeConsumer
from syncer.kafka.topic import INSTALLATION
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.kafka import KafkaServer
from syncer.worker import source
from syncer.worker.loop import Worker
from syncer.worker.source import TopicSource
from tests.faults.harness import require_holds
from tests.support.in_process import admin, ends, following, handle, handling, publish, refreshes
from tests.support.world import DEADLINE_SECONDS, World, made, running, wait_until
from tests.support.writers import fill, writing

UPDATE, DELETE = "UPDATE posts SET title = 'lost'", "DELETE FROM posts WHERE id % 10 = 0"
NEW = "UPDATE posts SET title = 'new'"


@pytest.fixture
def blog(world: World) -> World:
    """A blog, all of which is handled."""
    fill(world)
    handle(world)
    return world


# It loses records: a gap in their numbers is noticed, and every document is written again


def let_expire(world: World) -> None:
    """What retention does: all records go."""
    places = [TopicPartition(world.settings.kafka.topic, partition, end) for partition, end in ends(world).items()]
    client = admin(world)  # answers only as long as it lives
    for deleted in client.delete_records(places).values():
        deleted.result()


def delete(world: World) -> None:
    """Delete the topic; the relay creates it again."""
    name, client = world.settings.kafka.topic, admin(world)
    client.delete_topics([name])[name].result()
    wait_until(lambda: name not in client.list_topics(timeout=60).topics, what="the topic is gone")


def make_anew(world: World) -> None:
    """Delete the topic, and make another one of the same name."""
    delete(world)
    client, name = admin(world), world.settings.kafka.topic
    wait_until(lambda: _is_made(client, name), what="another topic is there")
    ends(world)  # each of its partitions has a leader


def _is_made(client: AdminClient, name: str) -> bool:
    try:
        client.create_topics([NewTopic(name, num_partitions=4)])[name].result()
    except KafkaException:  # it is being deleted yet
        return False
    return True


def make_anew_and_longer(world: World) -> None:
    """The same, and more changes in it than the workers had handled of the one before."""
    make_anew(world)
    with world.relay() as relay:
        for number in range(8):
            world.sql("UPDATE posts SET title = %s", str(number))
            assert relay.run_once().published


@pytest.mark.parametrize("lose", [let_expire, delete, make_anew, make_anew_and_longer])
def test_what_is_lost_before_it_is_handled_is_written_by_a_refresh(blog: World, lose: Callable[[World], None]) -> None:
    """Updates and deletes that no worker has read; new changes arrive as ever."""
    publish(blog, UPDATE, DELETE)
    lose(blog)
    with capture_logs() as logs, following(blog):
        blog.sql(NEW)
        require_holds(blog)
    assert refreshes(blog) > 0
    lost = [event for event in logs if event["event"] == "topic.records_lost"]
    assert {event["log_level"] for event in lost} == {"error"}
    assert lost[0]["documents"] == ["blogpost"]


@pytest.mark.parametrize("lose", [let_expire, make_anew])
def test_what_is_lost_after_it_was_handled_costs_nothing(blog: World, lose: Callable[[World], None]) -> None:
    """The numbers show that nothing is missing."""
    lose(blog)
    with following(blog):
        blog.sql(NEW)
        require_holds(blog)
    assert refreshes(blog) == 0


def test_a_lost_end_is_noticed_though_nothing_changes(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet partition gets an empty record, whose predecessor is missing."""
    monkeypatch.setattr(producer, "QUIET_SECONDS", 0.5)
    publish(blog, UPDATE, DELETE)
    make_anew(blog)
    with following(blog):
        require_holds(blog)
    assert refreshes(blog) > 0


def test_an_offset_beyond_the_end_and_a_new_partition_skip_nothing(blog: World) -> None:
    """A worker begins with the oldest record where it knows no offset, or one that the topic does not have."""
    publish(blog, UPDATE)
    blog.sql("UPDATE syncer.partition SET next_offset = 1000000")
    kafka, client = blog.settings.kafka, admin(blog)
    client.create_partitions([NewPartitions(kafka.topic, 8)])[kafka.topic].result()
    wait_until(lambda: len(ends(blog)) == 8, what="they are there")
    publish(blog, NEW)
    assert any(ends(blog)[partition] for partition in range(4, 8))
    with handling(blog):
        require_holds(blog)
    assert refreshes(blog) == 0


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


# It loses records that it has acknowledged


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
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
def frail(
    sandbox: Sandbox, endpoints: Endpoints, broker: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A handled blog whose changes are all in one partition on that broker."""
    monkeypatch.setattr(reader, "LEASE_SECONDS", 600)  # a relay that the test turns leads while the broker starts
    there = replace(endpoints, kafka_bootstrap_servers=broker.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        client, name = admin(world), world.settings.kafka.topic
        client.create_topics([NewTopic(name, num_partitions=1)])[name].result()
        world.set_up()
        fill(world)
        handle(world)
        yield world


def copy(broker: KafkaServer) -> Path:
    """The disk of a broker as it is now."""
    kept = broker.folder / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    broker.pause()
    shutil.copytree(broker.data_folder, kept)
    broker.resume()
    owner = broker.data_folder.stat()
    for path in (kept, *kept.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    return kept


def crash(broker: KafkaServer, kept: Path) -> None:
    """A loss of power: what was written since is not on the disk."""
    broker.kill()
    shutil.rmtree(broker.data_folder)
    kept.rename(broker.data_folder)
    broker.start()


UPDATES = "DO $$ BEGIN FOR i IN 1..{} LOOP UPDATE posts SET title = 'n' || i WHERE id = 1; END LOOP; END $$"


@pytest.mark.parametrize("is_handled", [False, True], ids=["before it is handled", "after it was handled"])
def test_acknowledged_records_are_lost_and_overtaken(frail: World, broker: KafkaServer, *, is_handled: bool) -> None:
    """New records take their offsets before a worker comes; also a worker that goes on behind them meets a gap."""
    kept = copy(broker)
    publish(frail, UPDATES.format(50) if is_handled else "UPDATE posts SET title = 'lost' WHERE id = 1", DELETE)
    if is_handled:
        with handling(frail):
            require_holds(frail)
    crash(broker, kept)
    publish(frail, "UPDATE posts SET title = 'hidden' WHERE id = 2", UPDATES.format(100 if is_handled else 3))
    with handling(frail):
        require_holds(frail)
    assert refreshes(frail) > 0


# It refuses records


TABLES = """
CREATE TABLE shelves (word text, label text);
CREATE TABLE books (id int PRIMARY KEY, word text);
ALTER TABLE shelves ADD id int PRIMARY KEY;
"""
SELECT = """
SELECT b.id AS _id, (SELECT max(s.label) FROM shelves AS s WHERE s.word = b.word) AS label FROM books AS b
"""
MANY_POSTS = "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 't', '' FROM generate_series(100, 999) AS g"
# Does not get smaller when it is compressed.
LARGE = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 1500) AS g)"


def limit_records(world: World, bytes_max: int) -> None:
    """Have the topic take no larger records, nor batches of records."""
    client = admin(world)
    limit = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic, incremental_configs=[limit])
    client.incremental_alter_configs([topic])[topic].result()


def test_a_change_is_too_large(empty_world: World) -> None:
    """The documents that read its table are written again, and the next changes go on as ever."""
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
        world.sql("INSERT INTO books VALUES (2, 'short')")
        require_holds(world)
    assert world.held()["1"] == {"label": "found"}
    shortened = [event["relations"] for event in logs if event["event"] == "relay.changes_shortened"]
    assert shortened[0] == ["public.shelves"]


def test_a_batch_is_too_large(blog: World) -> None:
    """Records that are small enough arrive as they are: nothing has to be written again."""
    limit_records(blog, 2000)
    with following(blog):
        blog.sql(MANY_POSTS)
        require_holds(blog)
    assert refreshes(blog) == 0


# Its partitions change hands

HURRIED = {"session.timeout.ms": 2000, "max.poll.interval.ms": 3000}
"""Kafka's client takes a worker that asks it nothing for dead after 3 s; by default, it does so after 5 minutes."""
TAKEN_FOR_DEAD_SECONDS = 4


def hurried(world: World) -> KafkaSettings:
    """The settings of such a client."""
    return world.settings.kafka.model_copy(update={"properties": HURRIED})


def test_a_member_that_was_taken_for_dead_reads_on_where_it_was(world: World) -> None:
    """What Kafka's client says of that is no record, from which the first partition would be read again."""
    publish(world, "INSERT INTO users (id, name, email) SELECT g, 'u', 'e' FROM generate_series(1, 200) AS g")
    consumer = ChangeConsumer(hurried(world), begin=dict, on_change=lambda *_: None)
    try:
        offsets: dict[int, int] = {}

        def take() -> bool:
            batch = consumer.receive(records_max=500, wait_seconds=0.1)
            offsets.update({part: place.next_offset or 0 for part, place in batch.reached.items()} if batch else {})
            return offsets == ends(world)

        wait_until(take, what="all has come")
        time.sleep(TAKEN_FOR_DEAD_SECONDS)  # the fault
        consumer.keep_alive()
        with pytest.raises(KafkaException) as raised:
            wait_until(lambda: consumer.receive(records_max=1, wait_seconds=0.1) is not None, what="it is said, or not")
        assert raised.value.args[0].code() == KafkaError._MAX_POLL_EXCEEDED
    finally:
        consumer.close()


def test_a_worker_that_waits_for_postgres_keeps_its_partitions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of another server is not taken for a worker's own: the group does not change for it."""
    monkeypatch.setattr(source, "_KEEP_ALIVE_SECONDS", 1)
    monkeypatch.setattr(retry, "Backoff", partial(Backoff, longest_seconds=1))
    is_away = threading.Event()

    def connect() -> Connection:
        if is_away.is_set():
            raise psycopg.OperationalError("it is away")
        return world.connect("away")

    def events(logs: Sequence[Mapping[str, Any]]) -> list[str]:
        return [event["event"] for event in logs if event["event"].startswith("worker.partitions_")]

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
            require_holds(world)
            assert events(logs) == ["worker.partitions_assigned"]


# It is shared

DEFAULT = {"SYNCER_KAFKA_TOPIC": ""}


@pytest.fixture
def two(sandbox: Sandbox, endpoints: Endpoints, world: World, tmp_path: Path) -> Iterator[tuple[World, World]]:
    """Two databases on the same servers; topics by other names than their worlds' are deleted afterwards."""
    client = AdminClient({"bootstrap.servers": endpoints.kafka_bootstrap_servers})
    before = set(client.list_topics(timeout=DEADLINE_SECONDS).topics)
    folder = tmp_path / "other"
    folder.mkdir()
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=folder)) as other:
        other.set_up()
        yield world, other
    if left := set(client.list_topics(timeout=DEADLINE_SECONDS).topics) - before - {world.settings.kafka.topic}:
        for deleted in client.delete_topics(list(left)).values():
            deleted.exception(DEADLINE_SECONDS)


def test_two_databases_share_a_broker_but_no_topic(two: tuple[World, World]) -> None:
    """With a topic of both, their daemons end and say why; by default each has its own, and nothing is missing."""
    shared = {"SYNCER_KAFKA_TOPIC": f"{two[0].name}.shared"}
    for world in two:
        assert world.syncer("apply", "--yes", environment=shared).returncode == 0
    daemons = [world.daemon(environment=shared) for world in two]
    for world in two:
        fill(world)
    for daemon in daemons:
        assert "changes of another database" in daemon.wait_for("component.failed")["error"]
        assert daemon.process.wait(DEADLINE_SECONDS) == 1
    for world in two:
        assert world.syncer("apply", "--yes", environment=DEFAULT).returncode == 0
        world.daemon(environment=DEFAULT)
    with writing(two[0]), writing(two[1]):
        for world in two:
            wait_until(lambda world=world: world.held() != {}, what="documents come")  # type: ignore[misc]
    for world in two:
        require_holds(world)


def test_a_record_of_an_unknown_client_is_refused(world: World) -> None:
    """The daemon ends and says why; once the topic is deleted, all goes on."""
    fill(world)
    daemon = world.daemon()
    world.wait_until_level()
    kafka = world.settings.kafka
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    client.produce(kafka.topic, b"hello")
    client.flush()
    assert "syncer did not publish" in daemon.wait_for("component.failed")["error"]
    assert daemon.process.wait(DEADLINE_SECONDS) == 1
    world.sql("UPDATE posts SET title = 'meanwhile'")
    delete(world)
    world.daemon()
    require_holds(world)
    wait_until(lambda: world.syncer("status").returncode == 0, what="all is well")
