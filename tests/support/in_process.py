"""What follows the application in this very process, for tests that say when: a relay, a worker, a job worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from syncer.base.postgres import Connection, snapshot
from syncer.indexing import version
from syncer.jobs import model
from syncer.jobs.model import JobKind
from tests.support.world import World, running, wait_until


def admin(world: World) -> AdminClient:
    """For what an operator does to Kafka."""
    return AdminClient({"bootstrap.servers": world.endpoints.kafka_bootstrap_servers})


def ends(world: World) -> dict[int, int]:
    """By partition, the next offset to be written, once Kafka says so: a partition without a leader does not."""
    ends_by_partition: dict[int, int] = {}

    def is_known() -> bool:
        with suppress(KafkaException):
            asked = admin(world)
            name = world.settings.kafka.topic
            partitions = [
                TopicPartition(name, partition)
                for partition in asked.list_topics(name, timeout=10).topics[name].partitions
            ]
            offsets = asked.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()), request_timeout=10)
            ends_by_partition.update({tp.partition: int(offset.result(10).offset) for tp, offset in offsets.items()})
        return bool(ends_by_partition) and min(ends_by_partition.values()) >= 0

    wait_until(is_known, what="Kafka says how far the topic is")
    return ends_by_partition


def let_expire(world: World) -> None:
    """What retention does: all records go."""
    positions = [TopicPartition(world.settings.kafka.topic, partition, end) for partition, end in ends(world).items()]
    client = admin(world)  # answers only as long as it lives
    for deleted in client.delete_records(positions).values():
        deleted.result()


def publish(world: World, *changes: str) -> None:
    """Make changes, and relay them."""
    with world.relay() as relay:
        for change in changes:
            world.sql(change)
        assert relay.run_once().published


@contextmanager
def handling(world: World) -> Iterator[None]:
    """A worker and a job worker at work."""
    with (
        world.index() as index,
        world.worker(index) as worker,
        world.job_worker(index) as job_worker,
        running(worker),
        running(job_worker),
    ):
        yield


@contextmanager
def following(world: World) -> Iterator[None]:
    """The same, and a relay."""
    with handling(world), world.relay() as relay, running(relay):
        yield


def refreshes(world: World) -> dict[int, str | None]:
    """The jobs that wrote everything again, and why."""
    with world.connect() as connection:
        jobs = model.unfinished(connection) + model.finished(connection)  # one may be in both
    return {job.id: job.occasion for job in jobs if job.kind is JobKind.REFRESH}


def assign(connection: Connection) -> int:
    """Assign one, in a snapshot that nothing is read in."""
    with snapshot(connection):
        connection.execute("SET TRANSACTION READ WRITE", prepare=False)
        answers = connection.execute(version.assign_version(), prepare=False)
        while answers.description is None:
            answers.nextset()
        row = answers.fetchone()
        assert row is not None
        return int(row[0])
