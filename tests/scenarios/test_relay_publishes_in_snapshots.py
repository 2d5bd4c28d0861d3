"""Every committed change is published, once if nothing fails, whatever the order of ids, commits and crashes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from syncer.base.model import Change
from syncer.capture.reader import OutboxReader
from syncer.kafka.producer import ChangeProducer
from syncer.relay import loop
from syncer.relay.loop import Relay
from tests.support.world import DEADLINE_SECONDS, World, wait_until

Application = psycopg.Connection[tuple[Any, ...]]

USER = "INSERT INTO users (id, name, email) VALUES ({id}, 'somebody', 'some@body.com')"


def insert(world: World, *ids: int) -> None:
    """Commit a user for each id, each in a transaction of its own."""
    with psycopg.connect(world.dsn, autocommit=True) as application:
        for id_ in ids:
            application.execute(USER.format(id=id_))


def insert_many(world: World, count: int, *, first: int = 1) -> None:
    """Commit many users at once."""
    world.sql(
        "INSERT INTO users (id, name, email) "
        "SELECT n, 'somebody', 'some@body.com' FROM generate_series(%s::int, %s::int) AS n",
        first,
        first + count - 1,
    )


@contextmanager
def transaction(world: World, *ids: int, begin: str = "BEGIN") -> Iterator[Application]:
    """A transaction that has inserted these users and is open."""
    with psycopg.connect(world.dsn, autocommit=True) as application:
        application.execute(begin)
        for id_ in ids:
            application.execute(USER.format(id=id_))
        yield application


def published(world: World) -> list[int]:
    """The ids of the users in the topic, sorted: each as often as it was published."""
    topic = world.settings.kafka.topic
    consumer = Consumer(
        {
            "bootstrap.servers": world.settings.kafka.bootstrap_servers,
            "group.id": f"{world.name}-look",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        ends: dict[int, int] = {}
        for number in range(world.settings.kafka.partitions):
            _, ends[number] = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60)
        places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number, end in ends.items() if end]
        found: list[int] = []
        if places:
            consumer.assign(places)

        def is_read() -> bool:
            for message in consumer.consume(5000, 0.2):
                assert message.error() is None
                (image,) = Change.parse(message.value() or b"").images
                found.append(int(image["id"] or ""))
            return len(found) >= sum(ends.values())

        if places:
            wait_until(is_read, what="the topic is read to its end")
        return sorted(found)
    finally:
        consumer.close()


def cursor(world: World) -> tuple[Any, ...]:
    """The saved cursor."""
    (row,) = world.sql("SELECT system_identifier, snapshot::text FROM syncer.cursor ORDER BY id DESC LIMIT 1")
    return row


def outbox_count(world: World) -> int:
    """How many rows are in the outbox."""
    return int(world.sql("SELECT count(*) FROM syncer.outbox")[0][0])


# Order


def commit_out_of_order(world: World, relay: Relay) -> list[int]:
    """The older transaction commits after the younger one was published."""
    with transaction(world, 1) as older:
        insert(world, 2)
        relay.run_once()
        insert(world, 3)
        relay.run_once()
        older.execute("COMMIT")
        relay.run_once()
    return published(world)


def test_an_older_transaction_that_commits_later_is_published(world: World) -> None:
    """Commits that come out of the order of their ids all arrive, each exactly once."""
    with world.relay() as relay:
        assert commit_out_of_order(world, relay) == [1, 2, 3]


def test_a_transaction_open_for_hours_neither_stalls_nor_causes_rescans(world: World) -> None:
    """Behind a transaction that stays open, each turn publishes what is new, and nothing twice."""
    with world.relay() as relay, transaction(world, 1) as long:
        for id_ in range(2, 22):
            insert(world, id_)
            assert relay.run_once().published == 1
            assert relay.run_once().published == 0
        long.execute("COMMIT")
        assert relay.run_once().published == 1
    assert published(world) == list(range(1, 22))


def test_prepared_transactions_arrive_once_they_are_committed(two_phase_world: World) -> None:
    """A two-phase commit is published after its second phase, and never if it is rolled back."""
    world = two_phase_world
    with world.relay() as relay:
        for id_, end in ((1, "COMMIT"), (2, "ROLLBACK")):
            with transaction(world, id_) as application:
                application.execute(f"PREPARE TRANSACTION '{world.name}'")
            try:
                insert(world, id_ + 10)
                assert relay.run_once().published == 1
                assert relay.run_once().published == 0
            finally:
                with psycopg.connect(world.dsn, autocommit=True) as other:
                    other.execute(f"{end} PREPARED '{world.name}'")
            assert relay.run_once().published == (1 if end == "COMMIT" else 0)
    assert published(world) == [1, 11, 12]


def test_rows_of_savepoints_belong_to_their_transaction(world: World) -> None:
    """What a released savepoint wrote arrives with its transaction; what was rolled back never does."""
    with world.relay() as relay:
        with transaction(world, 1) as application:
            application.execute(f"SAVEPOINT a; {USER.format(id=2)}; RELEASE a")
            application.execute(f"SAVEPOINT b; {USER.format(id=3)}; ROLLBACK TO b")
            application.execute(f"SAVEPOINT c; SAVEPOINT d; {USER.format(id=4)}")
            insert(world, 5)
            assert relay.run_once().published == 1
            application.execute("COMMIT")
        assert relay.run_once().published == 3
        assert relay.run_once().published == 0
    assert published(world) == [1, 2, 4, 5]


def publish_all(relay: Relay) -> list[int]:
    """Turn a relay until no more are known to wait; how many changes each turn published."""
    published = []
    while True:
        report = relay.run_once()
        published.append(report.published)
        if not report.is_behind:
            return published


@pytest.mark.parametrize("transactions", [1, 5, 25])
def test_a_backlog_is_published_in_pages(world: World, monkeypatch: pytest.MonkeyPatch, transactions: int) -> None:
    """Whatever the size of the backlog, and of a transaction, a turn takes no more than a page."""
    monkeypatch.setattr(loop, "PAGE_ROWS", 10)
    for number in range(transactions):
        insert_many(world, 25 // transactions, first=1 + number * (25 // transactions))
    with world.relay() as relay:
        pages = publish_all(relay)
        assert (max(pages), sum(pages)) == (10, 25)
        insert(world, 26)
        assert publish_all(relay) == [1]
    assert published(world) == list(range(1, 27))


def test_a_backlog_beside_open_transactions_is_published_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was in progress at a cursor comes first, and what is in progress yet comes later."""
    monkeypatch.setattr(loop, "PAGE_ROWS", 10)
    with world.relay() as relay, transaction(world, 1) as first, transaction(world, 2) as second:
        insert(world, 3)
        assert relay.run_once().published == 1
        insert_many(world, 25, first=4)
        first.execute("INSERT INTO users SELECT g, 'n', 'e' FROM generate_series(101, 125) AS g; COMMIT")
        assert sum(publish_all(relay)) == 51
        second.execute("COMMIT")
        assert publish_all(relay) == [1]
    assert published(world) == [*range(1, 29), *range(101, 126)]


def test_a_relay_that_dies_in_a_backlog_repeats_a_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor moves with each page, by whole transactions, though a transaction is open."""
    monkeypatch.setattr(loop, "PAGE_ROWS", 10)
    with transaction(world, 1):
        with world.relay() as relay:
            relay.run_once()  # takes the outbox over, as it has no cursor yet
            insert(world, *range(2, 40))
            assert [relay.run_once().published for _ in range(2)] == [10, 10]
        with world.relay() as relay:
            assert sum(publish_all(relay)) == 38 - 19
    assert set(published(world)) == set(range(2, 40))


# Crashes


def flushing(monkeypatch: pytest.MonkeyPatch, instead: Callable[[ChangeProducer, Callable[[], None]], None]) -> None:
    """Do this instead of the next flush."""
    flush = ChangeProducer.flush

    def once(producer: ChangeProducer) -> None:
        monkeypatch.setattr(ChangeProducer, "flush", flush)
        instead(producer, lambda: flush(producer))

    monkeypatch.setattr(ChangeProducer, "flush", once)


def test_a_relay_that_dies_between_publish_and_save_publishes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor follows the acknowledgement: after a crash in between, the next relay repeats, and loses nothing."""
    insert(world, 1, 2)
    with world.relay() as first:
        monkeypatch.setattr(OutboxReader, "save", _die)
        with pytest.raises(KeyboardInterrupt):
            first.run_once()
    monkeypatch.undo()
    with world.relay() as second:
        assert second.run_once().published == 2
        assert second.run_once().published == 0
    with world.relay() as third:
        assert third.run_once().published == 0
    assert published(world) == [1, 1, 2, 2]


def _die(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_sent", [True, False])
def test_the_cursor_stays_until_every_record_is_acknowledged(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool
) -> None:
    """A flush that fails saves nothing, whether Kafka has the records or not, and all of them come again."""

    def fail(producer: ChangeProducer, flush: Callable[[], None]) -> None:
        if is_sent:
            flush()
        else:
            producer._producer.purge()
            producer._producer.flush()
        raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))

    with world.relay() as relay:
        insert(world, 1)
        assert relay.run_once().published == 1
        before = cursor(world)
        insert(world, 2)
        flushing(monkeypatch, fail)
        with pytest.raises(KafkaException):
            relay.run_once()
        assert cursor(world) == before
        relay.close()
        insert(world, 3)
        assert relay.run_once().published == 2
    assert published(world) == ([1, 2, 2, 3] if is_sent else [1, 2, 3])


def named(world: World, name: str) -> closing[Relay]:
    """A relay whose backend can be told from others."""
    return closing(Relay(connect=lambda: world.connect(name), kafka=world.settings.kafka))


def terminate(world: World, name: str) -> None:
    """End the backend of a relay, as a failing network does, and wait until it is gone."""
    found = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    world.sql(f"SELECT pg_terminate_backend(pid) {found}", f"syncer {name}")
    wait_until(lambda: not world.sql(f"SELECT pid {found}", f"syncer {name}"), what="the backend is gone")


def test_one_relay_leads_and_another_takes_over(world: World) -> None:
    """Of two relays one publishes; when its connection is gone the other does, and goes on where it was."""
    with named(world, "relay-1") as first, named(world, "relay-2") as second:
        insert(world, 1)
        assert first.run_once().is_leader
        assert not second.run_once().is_leader
        insert(world, 2)
        terminate(world, "relay-1")
        report = second.run_once()
        assert report.is_leader
        assert report.published == 1
        with pytest.raises(psycopg.OperationalError):
            first.run_once()
        first.close()
        insert(world, 3)
        assert not first.run_once().is_leader
        assert second.run_once().published == 1
    assert published(world) == [1, 2, 3]


def test_a_leader_whose_connection_is_gone_saves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that was cut off while it published cannot move the cursor of the one that leads now."""
    saved: list[tuple[Any, ...]] = []
    with named(world, "relay-1") as first, named(world, "relay-2") as second:

        def cut(_: ChangeProducer, flush: Callable[[], None]) -> None:
            flush()
            terminate(world, "relay-1")
            insert(world, 2)
            assert second.run_once().published == 2
            saved.append(cursor(world))

        insert(world, 1)
        flushing(monkeypatch, cut)
        with pytest.raises(psycopg.OperationalError):
            first.run_once()
    assert [cursor(world)] == saved
    assert published(world) == [1, 1, 2]


# Giving rows back


def test_published_rows_are_given_back(world: World) -> None:
    """After two rounds of trimming nothing published is left, and what comes next is published as ever."""
    with world.relay() as relay:
        insert(world, 1, 2)
        relay.run_once()
        assert relay.trim() == 0  # writers turn to another segment
        insert(world, 3)
        relay.run_once()
        assert relay.trim() == 1
        assert outbox_count(world) == 1
        insert(world, 4)
        relay.run_once()
        assert relay.trim() == 1
        assert outbox_count(world) == 1
    assert published(world) == [1, 2, 3, 4]


def trim_before_publishing(world: World, relay: Relay) -> list[int]:
    """Trim again and again while there is something that was not published."""
    insert(world, 1)
    relay.run_once()
    insert(world, 2)
    for id_ in range(3, 9):
        relay.trim()
        insert(world, id_)
    relay.run_once()
    return published(world)


def test_rows_that_are_not_published_are_never_given_back(world: World) -> None:
    """However often the relay trims, a segment with one unpublished row stays whole."""
    with world.relay() as relay:
        assert trim_before_publishing(world, relay) == list(range(1, 9))


def test_a_segment_of_an_open_transaction_is_left_and_found_later(world: World) -> None:
    """Trimming goes round the segment that a transaction still writes, without waiting; its rows arrive."""
    with world.relay() as relay:
        with transaction(world, 1) as long:
            insert(world, 2)
            relay.run_once()
            for id_ in range(3, 15):
                relay.trim()
                insert(world, id_)
                assert relay.run_once().published == 1
            assert world.sql("SELECT new ->> 'id' FROM syncer.outbox_0") == [("2",)]
            long.execute(USER.format(id=15))
            long.execute("COMMIT")
        assert relay.run_once().published == 2
        assert relay.trim() >= 1
        assert world.sql("TABLE syncer.outbox_0") == []
    assert published(world) == list(range(1, 16))


def test_a_transaction_that_began_before_the_trimming_loses_nothing(world: World) -> None:
    """What a repeatable read transaction writes after its snapshot's segment was emptied is published."""
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM users"
    with world.relay() as relay:
        insert(world, 1)
        relay.run_once()
        with transaction(world, begin=begin) as old:
            relay.trim()
            insert(world, 2)
            relay.run_once()
            assert relay.trim() == 1
            old.execute(USER.format(id=3))
            relay.run_once()
            relay.trim()
            old.execute("COMMIT")
        relay.run_once()
        for _ in range(3):
            relay.trim()
        assert outbox_count(world) == 0
    assert published(world) == [1, 2, 3]


def test_a_writer_with_an_old_segment_number_loses_nothing(world: World) -> None:
    """A row that goes, late, into a segment that was emptied in between is published, and given back later."""
    with world.relay() as relay:
        insert(world, 1)
        relay.run_once()
        with psycopg.connect(world.dsn) as trimming:
            # As the relay does it, but slowly: the writer has read the number when the segment is emptied.
            trimming.execute("LOCK TABLE syncer.outbox_0 IN ACCESS EXCLUSIVE MODE")
            writer = threading.Thread(target=insert, args=(world, 2))
            writer.start()
            wait_until(lambda: waits_for_segment(world), what="the writer waits for the segment")
            trimming.execute("TRUNCATE syncer.outbox_0; SELECT setval('syncer.outbox_segment', 1)")
        writer.join(DEADLINE_SECONDS)
        assert not writer.is_alive()
        insert(world, 3)
        in_segments = world.sql("SELECT segment, new ->> 'id' FROM syncer.outbox ORDER BY segment")
        assert in_segments == [(0, "2"), (1, "3")]
        assert relay.trim() == 0
        assert relay.run_once().published == 2
        assert relay.trim() == 2
    assert published(world) == [1, 2, 3]


def waits_for_segment(world: World) -> bool:
    """Whether somebody waits for the lock of the first segment."""
    return bool(
        world.sql("SELECT pid FROM pg_locks WHERE relation = 'syncer.outbox_0'::regclass AND NOT granted LIMIT 1")
    )


def size_after_trimming(world: World, relay: Relay) -> float:
    """How much of a full outbox is left after it was published and trimmed beside a transaction that sees it all."""
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM users"
    size = "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('syncer.outbox')"
    with transaction(world, begin=begin):
        insert_many(world, 5000)
        full = world.sql(size)[0][0]
        assert relay.run_once().published == 5000
        relay.trim()
        wait_until(lambda: relay.trim() == 1, what="its segment is emptied")  # Postgres may be vacuuming it by itself
        vacuum(world)
        return float(world.sql(size)[0][0] / full)


def vacuum(world: World) -> None:
    """Give Postgres the chance to reclaim what it can."""
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        connection.execute("VACUUM syncer.outbox_0")


def test_a_long_transaction_does_not_keep_the_outbox_from_shrinking(world: World) -> None:
    """Beside a transaction that stays open, published rows give their space back at once."""
    with world.relay() as relay:
        assert size_after_trimming(world, relay) < 0.2


# Where to begin


def test_a_first_start_publishes_what_is_there(world: World) -> None:
    """Without a saved cursor every row of the outbox is new, and also those that are not committed yet."""
    insert(world, 1)
    with transaction(world, 2) as open_:
        insert(world, 3)
        with world.relay() as relay:
            assert relay.run_once().published == 2
        with world.relay() as relay:
            assert relay.run_once().published == 0
            open_.execute("COMMIT")
            assert relay.run_once().published == 1
    assert published(world) == [1, 2, 3]


def test_what_is_committed_between_a_first_start_and_the_first_look_is_published(world: World) -> None:
    """Where it begins is before whatever was open then, though nothing is published yet."""
    with world.relay() as relay, transaction(world, 1) as open_:
        insert(world, 2)
        relay.trim()
        open_.execute("COMMIT")
        assert relay.run_once().published == 2
    assert published(world) == [1, 2]


FOREIGN_CURSOR = """
UPDATE syncer.cursor SET system_identifier = system_identifier + 1, snapshot = {cursor};
UPDATE syncer.outbox SET xid = {xid}::text::xid8
"""


@pytest.mark.parametrize(
    ("saved", "xid"),
    [("snapshot", "xid"), ("'900000000:900000000:'", "899999999"), ("'5:5:'", "4"), ("'5:5:'", "900000000")],
    ids=["alike", "far_ahead", "far_behind", "rows_ahead_of_their_cursor"],
)
def test_a_cursor_of_another_cluster_is_not_trusted(world: World, saved: str, xid: str) -> None:
    """After dump and restore elsewhere every row of the outbox is published again, once, and then all goes on."""
    with world.relay() as relay:
        insert(world, 1, 2)
        relay.run_once()
    insert(world, 3)
    world.sql(FOREIGN_CURSOR.format(cursor=saved, xid=xid))
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


def test_a_cursor_from_the_future_is_not_trusted(world: World) -> None:
    """Nothing would ever be new to it, though the cluster is of the same name."""
    with world.relay() as relay:
        relay.run_once()
    world.sql("UPDATE syncer.cursor SET snapshot = '900000000:900000000:'")
    insert(world, 1)
    with world.relay() as relay:
        assert relay.run_once().published == 1
