"""Every committed change is published, once if nothing fails, whatever the order of ids, commits and crashes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from syncer.base.model import Change
from syncer.relay import loop
from syncer.relay.loop import Relay
from tests.support.in_process import ends
from tests.support.world import DEADLINE_SECONDS, World, wait_until

USERS = """
INSERT INTO users (id, name, email) SELECT n, 'somebody', 'some@body.com' FROM generate_series({}, {}) AS n
"""


def insert(world: World, *ids: int) -> None:
    """Commit a user for each id, each in a transaction of its own."""
    for id_ in ids:
        world.sql(USERS.format(id_, id_))


@contextmanager
def transaction(world: World, id_: int) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A transaction that has inserted this user and is open."""
    with psycopg.connect(world.dsn, autocommit=True) as application:
        application.execute(f"BEGIN; {USERS.format(id_, id_)}")
        yield application


def published(world: World) -> list[int]:
    """The ids of the users in the topic, sorted: each as often as it was published."""
    kafka = world.settings.kafka
    group = {"group.id": f"{world.name}-look", "enable.auto.commit": False, "fetch.wait.max.ms": 20}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **group})
    records = ends(world)
    consumer.assign([TopicPartition(kafka.topic, partition, OFFSET_BEGINNING) for partition in records])
    numbers: list[int] = []

    def is_read() -> bool:
        for message in consumer.consume(5000, 0.2):
            (image,) = Change.parse(message.value() or b"").images
            numbers.append(int(image["id"] or ""))
        return len(numbers) >= sum(records.values())

    try:
        wait_until(is_read, what="the topic is read to its end")
    finally:
        consumer.close()
    return sorted(numbers)


def publish_all(relay: Relay) -> list[int]:
    """Turn a relay until no more are known to wait; how many changes each turn published."""
    reports = [relay.run_once()]
    while reports[-1].is_behind:
        reports.append(relay.run_once())
    return [report.published for report in reports]


@pytest.mark.parametrize("transactions", [1, 5])
def test_a_backlog_beside_open_transactions_is_published_in_pages(
    world: World, monkeypatch: pytest.MonkeyPatch, transactions: int
) -> None:
    """A turn takes no more than a page of a backlog, or of one transaction; what is open comes when it commits."""
    monkeypatch.setattr(loop, "PAGE_ROWS", 10)
    with world.relay() as relay, transaction(world, 1) as first, transaction(world, 2) as second:
        insert(world, 3)
        assert relay.run_once().published == 1
        size = 25 // transactions
        for begin in range(4, 29, size):
            world.sql(USERS.format(begin, begin + size - 1))
        first.execute(f"{USERS.format(101, 125)}; COMMIT")
        pages = publish_all(relay)
        assert (max(pages), sum(pages)) == (10, 51)
        second.execute("COMMIT")
        assert publish_all(relay) == [1]
    assert published(world) == [*range(1, 29), *range(101, 126)]


def test_a_writer_with_an_old_segment_number_loses_nothing(world: World) -> None:
    """A row that goes, late, into a segment that was emptied in between is published, and given back later."""
    waiting = "SELECT pid FROM pg_locks WHERE relation = 'syncer.outbox_0'::regclass AND NOT granted"
    with world.relay() as relay:
        insert(world, 1)
        relay.run_once()
        with psycopg.connect(world.dsn) as trimming:
            # As the relay does it, but slowly: the writer has read the number when the segment is emptied.
            trimming.execute("LOCK TABLE syncer.outbox_0 IN ACCESS EXCLUSIVE MODE")
            writer = threading.Thread(target=insert, args=(world, 2))
            writer.start()
            wait_until(lambda: bool(world.sql(waiting)), what="the writer waits for the segment")
            trimming.execute("TRUNCATE syncer.outbox_0; SELECT setval('syncer.outbox_segment', 1)")
        writer.join(DEADLINE_SECONDS)
        assert not writer.is_alive()
        insert(world, 3)
        in_segments = world.sql("SELECT segment, new ->> 'id' FROM syncer.outbox ORDER BY segment")
        assert in_segments == [(0, "2"), (1, "3")]
        assert relay.trim() == 0
        assert relay.run_once().published == 2
        is_empty = "SELECT count(*) = 0 FROM syncer.outbox"
        wait_until(lambda: relay.trim() >= 0 and world.sql(is_empty) == [(True,)], what="both segments are emptied")
    assert published(world) == [1, 2, 3]


def test_a_long_transaction_does_not_keep_the_outbox_from_shrinking(world: World) -> None:
    """Beside a transaction that stays open and sees them all, published rows give their space back at once."""
    size = "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('syncer.outbox')"
    with world.relay() as relay, world.application() as long:
        long.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        long.execute("SELECT count(*) FROM users")
        world.sql(USERS.format(1, 5000))
        full = world.sql(size)[0][0]
        assert relay.run_once().published == 5000
        # Postgres may be vacuuming it by itself.
        wait_until(lambda: relay.trim() >= 0 and world.sql(size)[0][0] < full / 5, what="its segment is emptied")


def test_what_was_rolled_back_gives_its_space_back(world: World) -> None:
    """Of a segment that has nothing else, too."""
    size = "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('syncer.outbox')"
    with world.relay() as relay:
        with world.application() as application:
            application.execute(USERS.format(1, 5000))
            application.rollback()
        full = world.sql(size)[0][0]
        relay.run_once()
        wait_until(lambda: relay.trim() >= 0 and world.sql(size)[0][0] < full / 5, what="its segment is emptied")


FOREIGN = {
    "alike": ("written_in", "snapshot", "xid"),
    "far_ahead": ("written_in", "'900000000:900000000:'", "899999999"),
    "rows_ahead_of_their_cursor": ("written_in", "'5:5:'", "900000000"),
    "of_this_cluster_and_ahead": ("pg_current_xact_id()", "'900000000:900000000:'", "xid"),
}
"""By which transaction the cursor says that it was written, what it saw, and the transaction of the rows."""


@pytest.mark.parametrize(("written_in", "saved", "xid"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_cursor_of_another_cluster_is_not_trusted(world: World, written_in: str, saved: str, xid: str) -> None:
    """After dump and restore elsewhere every row of the outbox is published again, once, and then all goes on."""
    with world.relay() as relay:
        insert(world, 1, 2)
        relay.run_once()
    insert(world, 3)
    world.sql(
        f"UPDATE syncer.cursor SET written_in = {written_in}, snapshot = {saved};"
        f"UPDATE syncer.outbox SET xid = {xid}::text::xid8"
    )
    with world.relay() as relay, transaction(world, 4) as open_:
        insert(world, 5)
        assert relay.run_once().published == 4
        assert relay.run_once().published == 0
        open_.execute("COMMIT")
        assert relay.run_once().published == 1
    with world.relay() as relay:
        assert relay.run_once().published == 0
        insert(world, 6)
        assert relay.run_once().published == 1
    assert published(world) == [1, 1, 2, 2, 3, 4, 5, 6]
