"""With and without Kafka: setting or removing it needs a restart of the daemons, and no reload."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import pytest

from syncer.capture.leader import LEASE_SECONDS
from tests.support.in_process import following, handle, handling, publish, refreshes
from tests.support.world import World, wait_until
from tests.support.writers import fill

CHANGE = "UPDATE posts SET title = title || '.'"


def other_way(world: World) -> World:
    """The same database and index, without Kafka if it is used, and with it if not."""
    return replace(world, uses_kafka=not world.uses_kafka, daemons=world.daemons)


@pytest.fixture
def plain(world: World) -> World:
    """A world without Kafka, with a blog."""
    world.uses_kafka = False
    fill(world)
    return world


def test_turning_kafka_off_costs_nothing_if_all_is_handled(world: World) -> None:
    """The outbox is read on from where the relay was; and back again from where the leader was."""
    fill(world)
    handle(world)
    for _ in range(2):
        for one in (other_way(world), world):
            one.sql(CHANGE)
            with one.index() as index, one.worker(index) as worker:
                if one.uses_kafka:
                    publish(one)
                one.handle(worker)
            assert one.differences() == []
    assert refreshes(world) == 0


def test_turning_kafka_off_makes_up_for_what_only_the_topic_has(world: World) -> None:
    """Changes that were published and not handled are written by a refresh, and counted as handled."""
    fill(world)
    handle(world)
    publish(world, CHANGE, "DELETE FROM posts WHERE id = 1")
    plain = other_way(world)
    with handling(plain):
        plain.wait_until_level()
        wait_until(plain.is_handled, what="everything counts as handled")
    assert refreshes(world) == 1
    with following(world):  # what waits in the topic is handled once more, and harms nothing
        world.sql(CHANGE)
        world.wait_until_level()
    assert refreshes(world) == 1


def test_a_frozen_leader_is_replaced_and_saves_nothing(plain: World) -> None:
    """The standby leads once Postgres has ended the session of the first, which stands by when it goes on."""
    frozen = plain.daemon()
    frozen.wait_for("relay.led")
    plain.wait_until_level()
    heir = plain.daemon()
    heir.wait_for("relay.stood_by")
    began = time.monotonic()
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        plain.sql(CHANGE)
        heir.wait_for("relay.led")
        assert time.monotonic() - began < 2 * LEASE_SECONDS
        plain.wait_until_level()
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    frozen.wait_for("relay.stood_by")
    plain.sql(CHANGE)
    plain.wait_until_level()


def test_a_large_backlog_is_written_in_pages(plain: World) -> None:
    """The cursor is saved page by page, also in the middle of what waits."""
    plain.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 't', '' FROM generate_series(100, 9999) AS g")
    for _ in range(3):
        plain.sql(CHANGE)
    plain.sql("DELETE FROM posts WHERE id > 5000")
    daemon = plain.daemon()
    plain.wait_until_level()
    batches = [one["changes"] for one in daemon.events() if one["event"] == "worker.batch_indexed"]
    assert max(batches) <= 2000
    wait_until(plain.is_handled, what="all is handled")
