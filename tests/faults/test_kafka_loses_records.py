"""Kafka loses records before they are handled: that is noticed, and every document is written again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from structlog.testing import capture_logs

from syncer.base.error_policy import Action, decide
from syncer.kafka import topic
from syncer.kafka.topic import Observer
from syncer.recovery import lost_records
from syncer.worker import group
from tests.support.in_process import admin, ends, following, handle, handling, publish, refreshes
from tests.support.world import World, wait_until
from tests.support.writers import fill


def let_expire(world: World) -> None:
    """What retention does: all records go."""
    places = [TopicPartition(world.settings.kafka.topic, one, end) for one, end in ends(world).items()]
    client = admin(world)  # answers only as long as it lives
    for deleted in client.delete_records(places).values():
        deleted.result()


def make_anew(world: World) -> None:
    """Delete the topic, and make another one of the same name."""
    name = world.settings.kafka.topic
    client = admin(world)
    client.delete_topics([name])[name].result()
    wait_until(lambda: name not in client.list_topics(timeout=60).topics, what="the topic is gone")
    wait_until(lambda: _is_made(client, name), what="another topic is there")
    ends(world)  # each of its partitions has a leader


def _is_made(client: AdminClient, name: str) -> bool:
    try:
        client.create_topics([NewTopic(name, num_partitions=4)])[name].result()
    except Exception:  # noqa: BLE001 - it is being deleted yet
        return False
    return True


def commit(world: World, partition: int, offset: int, metadata: str = "") -> None:
    """Say for the workers that all before an offset of a partition is handled."""
    kafka = world.settings.kafka
    place = TopicPartition(kafka.topic, partition, offset, metadata=metadata)
    client = admin(world)
    client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(kafka.group, [place])])[kafka.group].result()


UPDATE, DELETE = "UPDATE posts SET title = 'lost'", "DELETE FROM posts WHERE id % 10 = 0"


def test_records_go_out_of_the_topic_before_they_are_handled(world: World) -> None:
    """Updates and deletes that nobody has read are made up for by one job, and new changes arrive as ever."""
    fill(world)
    handle(world)
    publish(world, UPDATE, DELETE)
    let_expire(world)
    with capture_logs() as said, following(world):
        world.wait_until_level()
        world.sql("UPDATE posts SET title = 'new'")
        world.wait_until_level()
    assert refreshes(world) == 1
    (told,) = [one for one in said if one["event"] == "topic.records_lost"]
    assert told["log_level"] == "error"
    assert len(told["partitions"]) == 4
    assert told["documents"] == ["blogpost"]


def test_nobody_knows_how_far_the_workers_were(world: World) -> None:
    """Without committed offsets, a partition that does not begin at its beginning has lost something."""
    fill(world)
    publish(world, DELETE)
    let_expire(world)
    with handling(world):
        world.wait_until_level()
    assert refreshes(world) == 1


def test_the_workers_are_said_to_be_further_than_the_topic(world: World) -> None:
    """Offsets beyond the end are a loss; the workers go on at the end."""
    fill(world)
    handle(world)
    publish(world, UPDATE)
    let_expire(world)
    for partition in range(4):
        commit(world, partition, 10_000)
    with following(world):
        world.wait_until_level()
        world.sql("UPDATE posts SET title = 'new'")
        world.wait_until_level()
    assert refreshes(world) == 1


def test_the_topic_is_another_one_than_it_was(world: World) -> None:
    """What was in the other topic is made up for."""
    fill(world)
    handle(world)
    publish(world, UPDATE, DELETE)
    make_anew(world)
    with following(world):
        world.wait_until_level()
        world.sql("UPDATE posts SET title = 'new'")
        world.wait_until_level()
    assert refreshes(world) == 1


def test_an_offset_of_another_topic_skips_nothing(world: World) -> None:
    """An offset that would hide records of the new topic is known by the id that it was committed with."""
    fill(world)
    handle(world)
    before = Observer(world.settings.kafka).id()
    make_anew(world)
    handle(world)
    publish(world, UPDATE)
    for partition, end in ends(world).items():
        commit(world, partition, end, metadata=str(before))
    with following(world):
        world.wait_until_level()
    assert refreshes(world) == 1


def test_an_offset_of_another_topic_hides_no_lag(world: World) -> None:
    """The whole topic waits, as the next worker begins at its beginning."""
    fill(world)
    handle(world)
    before = Observer(world.settings.kafka).id()
    make_anew(world)
    handle(world)
    publish(world, UPDATE)
    for partition in ends(world):
        commit(world, partition, 1_000_000, metadata=str(before))
    lags = Observer(world.settings.kafka).lag()
    assert sum(one.records for one in lags) == sum(one.end for one in lags) > 0


def test_another_topic_costs_one_job(world: World) -> None:
    """The worker's offsets are of the topic before, which is made up for already: it makes no second job."""
    fill(world)
    handle(world)
    publish(world, UPDATE, DELETE)
    make_anew(world)
    with world.relay() as relay, world.index() as index:
        relay.run_once()
        assert refreshes(world) == 1
        world.refresh(index)
    with following(world):
        world.sql("UPDATE posts SET title = 'new'")
        world.wait_until_level()
        wait_until(world.is_handled, what="all is committed")
    assert refreshes(world) == 1


def test_a_running_worker_learns_of_another_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It joins again, and reads the other topic from its beginning."""
    monkeypatch.setattr(group, "_LOOK_SECONDS", 0.2)
    fill(world)
    handle(world)
    with capture_logs() as said, handling(world):
        wait_until(lambda: len(assigned(said)) == 1, what="the worker has its partitions")
        with world.connect() as connection:
            connection.execute("UPDATE syncer.topic SET id = 'another'")
        wait_until(lambda: len(assigned(said)) > 1, what="the worker has joined again")


def assigned(said: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The times when a worker was assigned all partitions."""
    return [one for one in said if one["event"] == "worker.partitions_assigned" and len(one["partitions"]) == 4]


def test_a_new_partition_is_read_from_its_beginning(world: World) -> None:
    """What was written to it before anybody took it is handled like everything else."""
    fill(world)
    handle(world)
    kafka = world.settings.kafka
    client = admin(world)
    client.create_partitions([NewPartitions(kafka.topic, 8)])[kafka.topic].result()
    wait_until(lambda: len(ends(world)) == 8, what="they are there")
    publish(world, UPDATE)
    assert any(ends(world)[one] for one in range(4, 8))
    with handling(world):
        world.wait_until_level()
    assert refreshes(world) == 0


def test_kafka_goes_away_before_the_topic_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes of that is tried again."""
    fill(world)
    handle(world)
    kafka = world.settings.kafka
    client = admin(world)
    client.delete_topics([kafka.topic])[kafka.topic].result()
    observer = Observer(kafka)
    wait_until(lambda: observer.id() is None, what="the topic is gone")
    monkeypatch.setattr(topic, "ANSWER_SECONDS", 1)
    away = kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:1"})
    with world.connect() as connection, pytest.raises(KafkaException) as met:
        lost_records.examine(connection, away, observer)
    assert decide(met.value) is Action.RETRY
