"""Kafka loses, refuses, repeats or reassigns records, or is shared: no change is lost, and no document goes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic
from structlog.testing import capture_logs

from syncer.base.errors import LossError
from syncer.base.postgres import Link
from syncer.base.retry import troubles
from syncer.capture import progress
from syncer.jobs import model
from syncer.jobs.model import JobKind
from syncer.kafka import producer
from syncer.kafka.consumer import ChangeConsumer
from syncer.kafka.topic import INSTALLATION
from syncer.sandbox import Endpoints, Sandbox
from syncer.worker import source
from tests.faults import harness
from tests.faults.harness import after, committed, needs_kafka, require_holds, spoilt
from tests.support.in_process import admin, ends, following, handling, let_expire, publish, refreshes
from tests.support.standbys import standbys
from tests.support.world import DEADLINE_SECONDS, World, elsewhere, running, wait_until
from tests.support.writers import fill

pytestmark = needs_kafka
UPDATE, DELETE = "UPDATE posts SET title = 'lost'", "DELETE FROM posts WHERE id % 10 = 0"
NEW = "UPDATE posts SET title = 'new' WHERE id = 1"
"""So little that a topic that is created anew does not get longer than the one before was."""


def handle(world: World) -> None:
    """Let all that was changed be handled, its offsets be committed, and every job be done."""
    with harness.following(world) as follower:
        follower.drain()


@pytest.fixture
def blog(world: World) -> World:
    """A blog, all of which is handled."""
    fill(world)
    handle(world)
    return world


# It loses records: a gap in their numbers is noticed, and every document is written again


def delete(world: World) -> None:
    """Delete the topic; the relay creates it again."""
    client, name = admin(world), world.settings.kafka.topic
    client.delete_topics([name])[name].result()
    wait_until(lambda: name not in client.list_topics(timeout=10).topics, what="it is gone")


def create_anew(world: World, *, partitions: int = 4) -> None:
    """Delete the topic, and make another one of the same name."""
    client, name = admin(world), world.settings.kafka.topic
    delete(world)

    def is_created() -> bool:
        with suppress(KafkaException):  # it is being deleted yet
            client.create_topics([NewTopic(name, num_partitions=partitions)])[name].result()
            return True
        return False

    wait_until(is_created, what="another topic is there")
    ends(world)  # each of its partitions has a leader


create_anew_with_fewer = partial(create_anew, partitions=1)
"""As a broker does that creates topics by itself."""


def create_anew_and_longer(world: World) -> None:
    """The same, and more changes in it than the workers had handled of the one before: they would pass over them."""
    create_anew(world)
    with world.relay() as relay:
        for number in range(8):
            world.sql("UPDATE posts SET title = %s", str(number))
            assert relay.run_once().published


def cut_off_the_end(world: World) -> None:
    """A replica that had the earlier half of the records leads, as after an unclean election."""
    name, servers = world.settings.kafka.topic, world.endpoints.kafka_bootstrap_servers
    records: list[Message] = []
    with closing(Consumer({"bootstrap.servers": servers, "group.id": name + ".reader"})) as reader:
        for partition, end in ends(world).items():
            reader.assign([TopicPartition(name, partition, 0)])
            earlier: list[Message] = []
            while len(earlier) < end // 2:
                earlier += reader.consume(end // 2 - len(earlier), 1)
            records += earlier
    create_anew(world)
    replica = Producer({"bootstrap.servers": servers})
    for record in records:
        replica.produce(name, record.value(), record.key(), partition=record.partition() or 0, headers=record.headers())
    replica.flush()


def add_partitions(world: World) -> None:
    """The topic has twice as many; the keys of changes lead to others."""
    client, name, number = admin(world), world.settings.kafka.topic, len(ends(world))
    client.create_partitions([NewPartitions(name, 2 * number)])[name].result()


HAZARDS = {
    "it is deleted": (delete, False, True),
    "it is created anew": (create_anew, False, True),
    "it is created anew, with one partition": (create_anew_with_fewer, False, True),
    "it is created anew, and grows longer": (create_anew_and_longer, True, True),
    "an unclean election cuts off its end": (cut_off_the_end, False, True),
    "its records expire": (let_expire, False, True),
    "partitions are added": (add_partitions, False, False),
}
"""What happens to the topic, and whether every document is refreshed: if all was handled, and if changes wait in it."""


@pytest.mark.parametrize(("happens", "if_handled", "if_waiting"), HAZARDS.values(), ids=HAZARDS)
def test_a_loss_is_made_good(
    blog: World,
    happens: Callable[[World], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    if_handled: bool,
    if_waiting: bool,
) -> None:
    """Also a lost end behind which nothing changes: a quiet partition gets an empty record. A loss is an error."""
    monkeypatch.setattr(producer, "QUIET_SECONDS", 0.5)
    happens(blog)
    with following(blog):
        blog.sql(NEW)
        require_holds(blog)
    jobs_before = refreshes(blog)
    assert bool(jobs_before) is if_handled
    # So many that half of the log is longer than what was handled: see the exception in docs/protocol.md.
    publish(blog, *[f"UPDATE posts SET title = 'lost {number}'" for number in range(5)], DELETE)
    happens(blog)
    with capture_logs() as logs, following(blog):
        require_holds(blog)
    caused = [occasion for job, occasion in refreshes(blog).items() if job not in jobs_before]
    # Partitions are found lost one after the other: what was published between makes another refresh.
    assert bool(caused) is if_waiting, caused
    lost = [event for event in logs if event["event"] == "topic.records_lost"]
    assert {(event["log_level"], *event["documents"]) for event in lost} <= {("error", "blogpost")}
    assert bool(lost) is if_waiting


def test_partitions_that_are_gone_are_made_up_for(blog: World) -> None:
    """What waited in them is written by a refresh, nothing is sent there, and that there are fewer is told."""
    publish(blog, UPDATE, DELETE)
    create_anew_with_fewer(blog)
    with following(blog):
        token = committed(blog, NEW)
        require_holds(blog)
        blog.prints("wait", str(token))
        assert [trouble for trouble in troubles() if "1 partition instead of 4" in trouble.error] != []
    assert refreshes(blog) != {}  # partitions are found lost one after the other
    with blog.connect() as connection:
        saved = progress.read(connection)
    assert saved is not None
    assert saved.numbers.keys() <= {0}


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


def put(world: World, *values: bytes, installation: str | None) -> None:
    """Put records into the topic that the relay did not publish."""
    client = Producer({"bootstrap.servers": world.settings.kafka.bootstrap_servers})
    headers: list[tuple[str, str | bytes | None]] = [] if installation is None else [(INSTALLATION, installation)]
    for value in values:
        client.produce(world.settings.kafka.topic, value, partition=0, headers=headers)
    client.flush()


def test_records_that_cannot_be_read_are_made_good_by_a_refresh(blog: World) -> None:
    """Changes before, between and behind them are written, and so is what they may have changed."""
    with blog.relay() as relay:
        ours = blog.settings.kafka.installation
        put(blog, *GARBAGE[:4], installation=ours)
        blog.sql("UPDATE posts SET title = 'other' WHERE id = 1")
        assert relay.run_once().published
        put(blog, *GARBAGE[4:], installation=ours)
    blog.sql("SET session_replication_role = replica; UPDATE posts SET title = 'not captured' WHERE id = 2")
    with capture_logs() as logs, handling(blog):
        require_holds(blog)
    lost = [event for event in logs if event["event"] == "topic.records_lost"]
    assert {(event["log_level"], event["documents"][0]) for event in lost} == {("error", "blogpost")}
    assert "a newer version of syncer" in lost[0]["cause"]
    assert 0 < len(refreshes(blog)) < len(GARBAGE), "one does for all that is received with it"


def use_another_topic(world: World) -> None:
    """Name another topic, and apply."""
    world.worker_settings["SYNCER_KAFKA_TOPIC"] = world.settings.kafka.topic + ".own"
    world.prints("apply", "--yes")


HINTS: dict[str, tuple[Callable[[World], None], str, Callable[[World], None], bool]] = {
    "a record that syncer did not publish": (
        lambda world: put(world, b"hello", installation=None),
        "Then delete the topic and start the",
        delete,
        True,
    ),
    "a record of another database": (
        lambda world: put(world, b"hello", installation=str(UUID(int=0))),
        "Each database needs a topic of its own",
        use_another_topic,
        True,
    ),
    "fewer partitions than configured": (
        lambda world: create_anew(world, partitions=2),
        "--partitions 4",
        add_partitions,
        False,
    ),
}
"""What happens to the topic, what the daemon or the status says, how that is followed, and whether the daemon ends."""


@pytest.mark.parametrize(("happens", "hint", "follow", "ends"), HINTS.values(), ids=HINTS)
def test_a_hint_leads_on(
    blog: World, happens: Callable[[World], None], hint: str, follow: Callable[[World], None], *, ends: bool
) -> None:
    """Rule: what a message about the topic says to do ends the trouble, and no document is stale.

    A daemon ends rather than take what another one waits for.
    """
    happens(blog)
    blog.sql(NEW)
    daemon = blog.daemon(until="daemon.started")
    wait_until(lambda: hint in daemon.log_file.read_text() + blog.syncer("status").stdout, what="it is hinted at")
    if ends:
        assert daemon.exit_code() == 1
    follow(blog)
    if ends:
        blog.daemon()
    require_holds(blog)
    wait_until(lambda: blog.syncer("status").returncode == 0, what="all is well")


# A client that fetches nothing


class Deaf(ChangeConsumer):
    """A member of the group that is assigned its partitions, and to which nothing arrives."""

    def receive(self, *, records_max: int, wait_seconds: float) -> None:  # noqa: ARG002 - as it is
        """Nothing, but for its assignment."""
        numbers = dict(self.numbers)
        with suppress(LossError):
            super().receive(records_max=1, wait_seconds=wait_seconds)
        self.numbers |= {partition: number for partition, number in numbers.items() if partition in self.numbers}


@pytest.fixture
def deaf(blog: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A blog whose first client is deaf, and soon at fault."""
    clients = iter([Deaf])

    def client(*arguments: Any, **options: Any) -> ChangeConsumer:
        return next(clients, ChangeConsumer)(*arguments, **options)

    monkeypatch.setattr(source, "ChangeConsumer", client)
    monkeypatch.setattr(source, "SILENT_SECONDS", 0.5)
    yield blog
    assert refreshes(blog) == {}


def test_a_client_that_fetches_nothing_is_replaced(deaf: World) -> None:
    """Kafka has records that do not arrive: the worker joins its group with another client."""
    with capture_logs() as logs, following(deaf):
        deaf.sql(UPDATE)
        require_holds(deaf)
    assert "worker.consumer_renewed" in [event["event"] for event in logs]


def test_a_worker_that_is_busy_for_long_keeps_its_client(deaf: World) -> None:
    """It receives nothing meanwhile, since it does not wait for anything: its client is not at fault."""
    with capture_logs() as logs, closing(Link(deaf.connect)) as link, closing(deaf.source(link, time.sleep)) as topic:
        publish(deaf, UPDATE)
        for _ in range(4):
            topic.receive(records_max=1, wait_seconds=0.01)
            time.sleep(0.6)
    assert "worker.consumer_renewed" not in [event["event"] for event in logs]


# Postgres fails over, and the worker lives on

RENAME = "UPDATE users SET name = 'new' WHERE id = 1"
SUSPEND = "UPDATE syncer.document SET suspended = 'by hand', suspended_at = now()"
LIVED_ON = {
    "the worker has it in hand": (RENAME, "", False),
    "it was saved as handled": (RENAME, "", True),
    "its definition is suspended": (UPDATE, SUSPEND, True),
}
"""A change that becomes a fan-out, what happens before, and whether the worker has saved it when its job is lost."""


@pytest.mark.parametrize(("change", "preparation", "is_saved"), LIVED_ON.values(), ids=LIVED_ON)
def test_a_worker_that_outlives_a_failover_receives_again_what_was_lost(
    sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path, change: str, preparation: str, *, is_saved: bool
) -> None:
    """Rule: what is resolved on a session is saved on it. So no change counts as handled whose job was lost."""
    with (
        standbys(sandbox) as servers,
        elsewhere(sandbox, endpoints, tmp_path, postgres_dsn=servers.primary.address) as world,
    ):
        fill(world)
        handle(world)
        world.sql(f"{preparation}; {NEW}" if preparation else NEW)
        publish(world, change)
        go_back, has_failed_over = servers.keep_standby(), Event()

        def fail_over() -> None:
            go_back()
            has_failed_over.set()

        late = after(fail_over if not is_saved else lambda: None)
        with spoilt(world, late) as index, world.worker(index, many=3) as worker, running(worker):
            if is_saved:
                wait_until(world.is_handled, what="all is handled")
                fail_over()
                publish(world, "DELETE FROM posts WHERE id = 2")
            assert has_failed_over.wait(DEADLINE_SECONDS)
            wait_until(world.is_handled, what="all is handled again")
        with world.connect() as connection:
            assert JobKind.FAN_OUT in [job.kind for job in model.unfinished(connection)]
        world.sql("UPDATE syncer.document SET suspended = NULL")
        handle(world)


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


def test_a_change_or_a_batch_is_too_large(empty_world: World) -> None:
    """The documents that read a change's table are written again; records that are small enough arrive as they are."""
    world = empty_world
    (world.document_folder / "select.sql").write_text(SELECT)
    (world.document_folder / "index.json").write_text('{"mappings": {"properties": {"label": {"type": "keyword"}}}}')
    world.sql(TABLES)
    world.migrate()
    world.apply()
    limit = ConfigEntry("max.message.bytes", "20000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic, incremental_configs=[limit])
    client = admin(world)  # answers only as long as it lives
    client.incremental_alter_configs([topic])[topic].result()
    with capture_logs() as logs, following(world):
        world.sql(f"INSERT INTO books SELECT 1, {LARGE}")
        world.sql(f"INSERT INTO shelves (id, word, label) SELECT 1, {LARGE}, 'found'")
        world.wait_until_level()
        jobs_before = refreshes(world)
        world.sql("INSERT INTO books SELECT g, 'short' FROM generate_series(2, 999) AS g")
        require_holds(world)
        assert jobs_before
        assert refreshes(world) == jobs_before
    assert world.held()["1"] == {"label": "found"}
    shortened = [event["relations"] for event in logs if event["event"] == "relay.changes_shortened"]
    assert shortened[0] == ["public.shelves"]
