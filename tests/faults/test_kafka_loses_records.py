"""Kafka loses records: a gap in their numbers is noticed, and every document is written again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from structlog.testing import capture_logs

from syncer.kafka import producer, topic
from tests.support.in_process import admin, ends, following, handle, handling, publish, refreshes
from tests.support.world import World, wait_until
from tests.support.writers import fill

UPDATE, DELETE = "UPDATE posts SET title = 'lost'", "DELETE FROM posts WHERE id % 10 = 0"
NEW = "UPDATE posts SET title = 'new'"


def let_expire(world: World) -> None:
    """What retention does: all records go."""
    places = [TopicPartition(world.settings.kafka.topic, one, end) for one, end in ends(world).items()]
    client = admin(world)  # answers only as long as it lives
    for deleted in client.delete_records(places).values():
        deleted.result()


def delete(world: World) -> None:
    """Delete the topic; the relay creates it again."""
    name = world.settings.kafka.topic
    client = admin(world)
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
    except Exception:  # noqa: BLE001 - it is being deleted yet
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
def test_what_is_lost_before_it_is_handled_is_made_up_for(world: World, lose: Callable[[World], None]) -> None:
    """Updates and deletes that nobody has read are written by a refresh, and new changes arrive as ever."""
    fill(world)
    handle(world)
    publish(world, UPDATE, DELETE)
    lose(world)
    with capture_logs() as logs, following(world):
        world.sql(NEW)
        world.wait_until_level()
    assert refreshes(world) > 0
    lost = [one for one in logs if one["event"] == "topic.records_lost"]
    assert {one["log_level"] for one in lost} == {"error"}
    assert lost[0]["documents"] == ["blogpost"]


@pytest.mark.parametrize("lose", [let_expire, make_anew])
def test_what_is_lost_after_it_was_handled_costs_nothing(world: World, lose: Callable[[World], None]) -> None:
    """The numbers show that nothing is missing."""
    fill(world)
    handle(world)
    lose(world)
    with following(world):
        world.sql(NEW)
        world.wait_until_level()
    assert refreshes(world) == 0


def test_a_lost_end_is_noticed_though_nothing_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet partition gets an empty record, whose predecessor is missing."""
    monkeypatch.setattr(producer, "QUIET_SECONDS", 0.5)
    fill(world)
    handle(world)
    publish(world, UPDATE, DELETE)
    make_anew(world)
    with following(world):
        world.wait_until_level()
        wait_until(world.is_handled, what="everything counts as handled")
    assert refreshes(world) > 0


def test_a_place_beyond_the_end_skips_nothing(world: World) -> None:
    """A worker whose offset the topic does not have begins with the oldest record."""
    fill(world)
    handle(world)
    publish(world, UPDATE)
    world.sql("UPDATE syncer.partition SET next_offset = 1000000")
    with handling(world):
        world.wait_until_level()
    assert refreshes(world) == 0


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


def test_a_record_that_cannot_be_read_is_made_up_for(world: World) -> None:
    """It may be of a newer version of syncer: every document is written again, and the others go on."""
    fill(world)
    handle(world)
    kafka = world.settings.kafka
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    headers: list[tuple[str, str | bytes | None]] = [(topic.INSTALLATION, kafka.installation)]
    client.produce(kafka.topic, b'{"id": 7, "from": "a newer version"}', headers=headers)
    client.flush()
    with capture_logs() as logs, following(world):
        wait_until(lambda: refreshes(world) == 1, what="a refresh")
        world.sql(NEW)
        world.wait_until_level()
    (cause,) = [one["cause"] for one in logs if one["event"] == "topic.records_lost"]
    assert "a newer version of syncer" in cause
