"""Kafka loses records before they are handled: that is noticed, and every document is written again."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from structlog.testing import capture_logs

from syncer import loss, membership, rewrites, topic
from syncer.policy import Action, decide
from syncer.topic import Observer
from tests.faults.following import admin, ends, following, handle, handling, publish, refreshes
from tests.faults.writers import fill
from tests.harness import World, wait_until
from tests.proof import Rule, faces

WRITTEN_AGAIN = Rule(
    "what is lost is written again before anybody goes on behind it",
    module="syncer.loss",
    text="        made = _refresh_all(connection)\n        if",
    instead="        made: list[Job] = []\n        if",
)
NOTICED = Rule(
    "who takes a partition sees to it that nothing is gone from it",
    module="syncer.consumer",
    text="        if losses:\n",
    instead="        if False:\n",
)
ANOTHER = Rule(
    "another topic of the same name is not taken for the one that it was",
    module="syncer.loss",
    text="else _refresh_all(connection)\n",
    instead="else list[Job]()\n",
)


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


@faces("retention passes before the workers are back", promises=(1, 3), without=WRITTEN_AGAIN)
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


@faces("the group's offsets are forgotten, and records went before they were handled", promises=(1, 3), without=NOTICED)
def test_nobody_knows_how_far_the_workers_were(world: World) -> None:
    """Without committed offsets, a partition that does not begin at its beginning has lost something."""
    fill(world)
    publish(world, DELETE)
    let_expire(world)
    with handling(world):
        world.wait_until_level()
    assert refreshes(world) == 1


@faces("records are cut off, and the committed offsets lie behind the end", promises=(1, 3), without=WRITTEN_AGAIN)
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


@faces("the topic is deleted and made again by hand, with records in it", promises=(1, 3), without=ANOTHER)
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


@faces(
    "the topic is made again, and a worker that was held up commits an offset of the one before",
    promises=(1, 3),
    without=Rule(
        "an offset counts for the topic only that it was committed for",
        module="syncer.consumer",
        text='elif (place.metadata or "").partition(" ")[0] not in ("", id_):',
        instead="elif False:",
    ),
)
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
    assert refreshes(world) == 2


@faces(
    "Kafka takes back what a running worker has handled, and he does not see it",
    promises=(1, 3),
    without=Rule(
        "a running worker looks for rewrites",
        module="syncer.membership",
        text="if found != self._consumer.rewrites:",
        instead="if False:",
    ),
)
def test_a_running_worker_goes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """He handles again what lies behind the place that the relay names, and his offsets are true from then on."""

    def handled() -> int:
        return sum(one["changes"] for one in said if one["event"] == "worker.batch_indexed")

    monkeypatch.setattr(membership, "_LOOK_SECONDS", 0.2)
    fill(world)
    handle(world)
    before = ends(world)
    with capture_logs() as said, handling(world):
        publish(world, UPDATE)
        wait_until(lambda: handled() >= 60 and world.is_handled(), what="all is handled")
        first = handled()  # more, if Kafka gave some of it twice
        with world.connect() as connection:
            rewrites.add(connection, str(Observer(world.settings.kafka).id()), before)
        wait_until(lambda: handled() >= first + 60 and world.is_handled(), what="all is handled again")
    with capture_logs() as said, handling(world):
        publish(world, "UPDATE posts SET title = 'new' WHERE id = 1")
        world.wait_until_level()
        wait_until(lambda: handled() > 0 and world.is_handled(), what="it is handled, and said so")
        assert handled() == 1
    assert refreshes(world) == 0


@faces(
    "partitions are added while no worker is there, and are written to",
    promises=(1,),
    without=Rule(
        "a partition that was never read is read from its beginning",
        module="syncer.consumer",
        text="place.offset = OFFSET_BEGINNING",
        instead="place.offset = -1",
    ),
)
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


@faces(
    "Kafka goes away just after it has said that the topic is gone",
    promises=(1,),
    without=Rule(
        "a stage that makes the topic again waits for Kafka, and does not end",
        module="syncer.loss",
        text="if topic.make(settings):",
        instead="if topic.ensure_topic(settings):",
    ),
)
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
        loss.examine(connection, away, observer)
    assert decide(met.value) is Action.RETRY
