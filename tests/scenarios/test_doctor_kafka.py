"""Whatever is broken in Kafka, the doctor says so, and what he says mends it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from syncer import topic
from syncer.doctor.patient import Patient
from syncer.doctor.symptom import How, Severity
from syncer.doctor.topic_checks import Copies, judge_copies
from syncer.sandbox import Endpoints, Sandbox
from syncer.settings import Settings
from tests.doctoring import is_well, look, mend
from tests.faults.following import admin
from tests.harness import World, made, running, wait_until

CONSIDER, WRONG = Severity.CONSIDER, Severity.WRONG


@pytest.fixture(scope="module")
def world(sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world; each test leaves it as it has found it."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("doctor"))) as world:
        world.set_up()
        yield world


@pytest.fixture(scope="module")
def careless(endpoints: Endpoints) -> Iterator[Endpoints]:
    """A Kafka of its own, set up as nobody should."""
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        server = Sandbox(Path(folder) / "servers").kafka
        server.settings |= {
            "auto.create.topics.enable": "true",
            "offsets.retention.minutes": "60",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
        server.start()
        try:
            yield replace(endpoints, kafka_bootstrap_servers=server.address)
        finally:
            server.stop()


def configure(world: World, name: str, value: str) -> None:
    """Give the topic a setting, as somebody does who knows no better; the broker knows it a moment later."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic, incremental_configs=[entry])
    client = admin(world)  # answers only as long as it lives
    client.incremental_alter_configs([resource])[resource].result()
    asked = ConfigResource(ResourceType.TOPIC, world.settings.kafka.topic)
    wait_until(lambda: client.describe_configs([asked])[asked].result()[name].value == value, what=f"{name} is {value}")


def with_kafka(world: World, **changes: object) -> Settings:
    """The settings of this world with others for Kafka."""
    return world.settings.model_copy(update={"kafka": world.settings.kafka.model_copy(update=changes)})


SETTINGS = {
    "kafka.cleanup_policy": ("cleanup.policy", "compact", WRONG),
    "kafka.unclean_election": ("unclean.leader.election.enable", "true", WRONG),
    "kafka.record_size": ("max.message.bytes", "1000", WRONG),
    "kafka.in_sync": ("min.insync.replicas", "2", WRONG),
    "kafka.retention": ("retention.ms", "60000", CONSIDER),
}


@pytest.mark.parametrize("id_", SETTINGS)
def test_a_setting_that_breaks_a_promise_is_seen_and_mended(world: World, id_: str) -> None:
    """It is well, it is set wrong and seen, what the doctor says is pasted, and it is well again."""
    name, value, severity = SETTINGS[id_]
    assert is_well(look(world, id_))
    configure(world, name, value)
    (found,) = look(world, id_)
    assert found.severity is severity
    mend(world, found)
    wait_until(lambda: is_well(look(world, id_)), what="the broker knows of it")


def test_kafkas_own_tool_takes_the_mend(world: World, sandbox: Sandbox) -> None:
    """What is said to be pasted is understood by kafka-configs.sh, which is a class of Kafka's and a shell script."""
    configure(world, "cleanup.policy", "compact")
    (found,) = look(world, "kafka.cleanup_policy")
    assert found.mend is not None
    assert found.mend.how is How.SHELL
    tool, *arguments = found.mend.text.split()
    assert tool == "kafka-configs.sh"
    done = subprocess.run(
        [*sandbox.kafka._java("kafka.admin.ConfigCommand"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wait_until(lambda: is_well(look(world, "kafka.cleanup_policy")), what="the broker knows of it")


def test_retention_by_size_is_told_of(world: World) -> None:
    """A limit in bytes pushes out what is not read, however young it is."""
    configure(world, "retention.bytes", "1000000")
    (found,) = look(world, "kafka.retention")
    assert found.severity is CONSIDER
    assert "retention.bytes" in found.found
    mend(world, found)
    wait_until(lambda: is_well(look(world, "kafka.retention")), what="the broker knows of it")


def test_what_will_be_lost_soon_is_told_of(world: World) -> None:
    """How long the oldest change that no worker has done still has is told from its own time."""
    assert is_well(look(world, "kafka.retention"))
    world.sql("INSERT INTO users (name, email) VALUES ('John', 'j@example.com')")
    with world.relay() as relay:
        relay.run_once()
    configure(world, "retention.ms", "90000000")
    limits = {"retention_left_share": 1.0}
    (found,) = look(world, "kafka.retention", limits=limits)
    assert found.severity is CONSIDER
    assert "no worker has done" in found.found
    (found,) = look(world, "kafka.retention", limits=limits | {"outbox_seconds": 1e9})
    assert found.severity is WRONG
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:

        def is_read() -> bool:
            relay.run_once()
            worker.run_once()
            return is_well(look(world, "kafka.retention", limits=limits))

        wait_until(is_read, what="nothing is unread")
    configure(world, "retention.ms", "604800000")


def test_changes_that_left_the_topic_unread_are_told_of(world: World) -> None:
    """What retention has taken before it was read is counted, until a worker has found out and made up for it."""
    settings = world.settings.kafka
    assert is_well(look(world, "kafka.lost"))
    world.sql("INSERT INTO users (name, email) SELECT 'n' || n, 'e' FROM generate_series(1, 40) AS n")
    with world.relay() as relay:
        relay.run_once()
    places = {one.partition: one.committed for one in topic.lag(settings)}
    client = admin(world)
    asked = client.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(settings.group, [TopicPartition(settings.topic, *one) for one in places.items()])]
    )
    asked[settings.group].result()
    ends = [TopicPartition(settings.topic, one.partition, one.end) for one in topic.lag(settings) if one.records]
    for deleted in client.delete_records(ends).values():
        deleted.result()
    (found,) = look(world, "kafka.lost")
    assert found.severity is WRONG
    assert "changes left the topic" in found.found
    with world.index() as index, world.worker(index) as worker, running(worker):
        wait_until(lambda: is_well(look(world, "kafka.lost")), what="the worker goes on behind what is lost")
    assert world.sql("SELECT kind FROM syncer.job ORDER BY id DESC LIMIT 1") == [("refresh",)]


def test_foreign_records_are_told_of(world: World) -> None:
    """What is no change of ours is found among the last records, and forgotten once it is gone."""
    settings = world.settings.kafka
    assert is_well(look(world, "kafka.records"))
    producer = Producer({"bootstrap.servers": world.endpoints.kafka_bootstrap_servers})
    producer.produce(settings.topic, b"hello", partition=0)
    producer.flush()
    (found,) = look(world, "kafka.records")
    assert found.severity is WRONG
    assert found.found.startswith("1 record of the last")
    end = next(one.end for one in topic.lag(settings) if one.partition == 0)
    place = TopicPartition(settings.topic, 0, end)
    client = admin(world)
    for deleted in client.delete_records([place]).values():
        deleted.result()
    asked = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(settings.group, [place])])
    asked[settings.group].result()
    assert is_well(look(world, "kafka.records"))


def test_a_stranger_in_the_group_is_told_of(world: World) -> None:
    """Somebody else's consumer takes a part of the changes; our own does not count as one."""
    settings = world.settings.kafka
    with world.index() as index, world.worker(index) as worker:
        worker.run_once()
        wait_until(lambda: topic.members(settings) == 1, what="our worker has joined")
        assert is_well(look(world, "kafka.group"))
    stranger = Consumer(
        {
            "bootstrap.servers": world.endpoints.kafka_bootstrap_servers,
            "group.id": settings.group,
            "client.id": "reports",
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    stranger.subscribe([settings.topic])
    wait_until(lambda: stranger.poll(0.1) is None and bool(stranger.assignment()), what="the stranger has joined")
    (found,) = look(world, "kafka.group")
    assert found.severity is WRONG
    assert "reports" in found.found
    stranger.close()
    wait_until(lambda: topic.members(settings) == 0, what="the stranger has left")
    assert is_well(look(world, "kafka.group"))


def test_too_few_partitions_are_seen_and_added(world: World) -> None:
    """The topic is held against the settings, in either direction, and the daemon's threads against the topic."""
    assert is_well(look(world, "kafka.partitions"))
    wanted = with_kafka(world, partitions=5)
    (found,) = look(world, "kafka.partitions", settings=wanted)
    assert found.severity is CONSIDER
    mend(world, found)
    wait_until(lambda: is_well(look(world, "kafka.partitions", settings=wanted)), what="there is one more partition")
    (found,) = look(world, "kafka.partitions")
    assert "kafka.partitions says 4" in found.found
    many = world.settings.model_copy(update={"worker": world.settings.worker.model_copy(update={"threads": 6})})
    assert [one.severity for one in look(world, "syncer.threads_and_partitions", settings=many)] == [CONSIDER]
    assert is_well(look(world, "syncer.threads_and_partitions"))


def test_one_replica_is_told_of(world: World) -> None:
    """With one broker there is one copy: it is said, and is no failure."""
    assert [one.severity for one in look(world, "kafka.replication")] == [CONSIDER]


def test_partitions_without_a_leader_or_with_replicas_behind_are_told_of(world: World) -> None:
    """A broker that is down shows in the partitions that it led, and in those that it follows."""
    whole = Copies(partition=0, leader=1, replicas=3, in_sync=3)

    def judged(*copies: Copies) -> list[tuple[Severity, str]]:
        with Patient(world.settings, world.config) as patient:
            return [(one.severity, one.found) for one in judge_copies(patient, copies, 2)]

    assert judged(whole) == []
    assert judged(whole, replace(whole, partition=1, leader=-1)) == [(WRONG, "Partition 1 has no leader")]
    assert judged(replace(whole, in_sync=1))[0][0] is WRONG
    assert judged(replace(whole, in_sync=2))[0][0] is CONSIDER


def test_a_careless_broker_is_told_of(world: World, careless: Endpoints, tmp_path: Path) -> None:
    """Topics that come by themselves, offsets that are forgotten, and privileges that lack; and the mend of those."""
    other = World(sandbox=world.sandbox, endpoints=careless, folder=tmp_path, name=world.name)
    other.config.symlink_to(world.config)
    topic.ensure_topic(other.settings.kafka)
    for id_ in ("kafka.auto_create", "kafka.offsets_retention"):
        assert [one.severity for one in look(other, id_)] == [CONSIDER]
        assert is_well(look(world, id_))
    assert is_well(look(other, "kafka.privileges"))
    kept = AclBinding(
        ResourceType.TOPIC,
        other.settings.kafka.topic,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    client = admin(other)
    for one in client.create_acls([kept]).values():
        one.result()
    wait_until(lambda: not is_well(look(other, "kafka.privileges")), what="the broker knows of it")
    (found,) = look(other, "kafka.privileges")
    assert found.severity is WRONG
    assert found.found.startswith("Write is not allowed")
    mend(other, found)
    wait_until(lambda: is_well(look(other, "kafka.privileges")), what="the broker allows it")


PROPERTIES: Mapping[str, str | bool] = {
    "acks": "1",
    "enable.auto.commit": True,
    "auto.offset.reset": "latest",
    "partition.assignment.strategy": "range",
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_that_undo_what_nothing_is_lost_by_are_told_of(world: World, name: str) -> None:
    """They are passed to librdkafka after our own."""
    assert is_well(look(world, "syncer.kafka_properties"))
    assert is_well(look(world, "syncer.kafka_properties", settings=with_kafka(world, properties={"acks": "all"})))
    settings = with_kafka(world, properties={name: PROPERTIES[name]})
    (found,) = look(world, "syncer.kafka_properties", settings=settings)
    assert found.severity is WRONG
    assert name in found.found
