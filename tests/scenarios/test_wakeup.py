"""Writers wake a relay that sleeps: no wake-up is lost, no write fails because of it, and no writer notifies in vain.

In these tests the safety look of a sleeping relay is as far away as it may be, so a notification that is lost fails the
test.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from syncer.base.postgres import AdvisoryLock, Connection
from syncer.capture import leader, outbox, table_files, wakeup
from syncer.kafka.producer import ChangeProducer
from syncer.relay import loop as relaying
from syncer.relay.loop import Relay
from syncer.sandbox import Endpoints, Sandbox
from tests.support import world as worlds
from tests.support.capture import capture_only
from tests.support.world import DEADLINE_SECONDS, World, made, postgres_with, wait_until

HOUR = 3600.0
RING_SECONDS = DEADLINE_SECONDS
"""How soon at the latest a sleeping relay has published, or has heeded a stop; a machine may be very busy."""
HEARD = "syncer_test_heard"
"""Where a listener tells itself that it has heard all that was said before."""

Application = psycopg.Connection[tuple[Any, ...]]

HELD = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND mode = %s AND classid::bigint << 32 | objid::bigint = %s
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture(scope="module")
def short_queue(endpoints: Endpoints) -> Iterator[Endpoints]:
    """A Postgres with a short queue of notifications."""
    with postgres_with(endpoints, {"max_notify_queue_pages": "64"}) as others:
        yield others


@pytest.fixture
def bare(sandbox: Sandbox, short_queue: Endpoints, tmp_path: Path) -> Iterator[World]:
    """A world on that server, with nothing in its database."""
    with made(World(sandbox=sandbox, endpoints=short_queue, folder=tmp_path)) as world:
        yield world


@pytest.fixture
def blog(bare: World) -> World:
    """The blog, with two posts."""
    bare.set_up()
    bare.sql("INSERT INTO users (id, name, email) VALUES (1, 'somebody', 'some@body.com')")
    bare.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1, 1, 'one', ''), (2, 1, 'two', '')")
    return bare


@pytest.fixture(autouse=True)
def sleeps_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays sleep as soon as they may, and for as long."""
    monkeypatch.setattr(relaying, "AWAKE_SECONDS", 0.0001)
    monkeypatch.setattr(relaying, "SAFETY_POLL_SECONDS", leader.LEASE_SECONDS / 6)


def relay_of(world: World, name: str = "relay") -> Relay:
    """A relay of this world."""
    return Relay(
        connect=lambda: world.connect(name),
        produce=lambda: ChangeProducer(world.settings.kafka),
    )


@contextmanager
def running(world: World, name: str = "relay") -> Iterator[Relay]:
    """That relay at work, in a thread."""
    relay = relay_of(world, name)
    with worlds.running(relay, seconds=RING_SECONDS):  # a relay that sleeps heeds a stop
        yield relay


def held(world: World, mode: str) -> int:
    """How many sessions hold the wake-up's lock in this mode."""
    return int(world.sql(HELD, mode, int(AdvisoryLock.WAKEUP))[0][0])


def is_asleep(world: World) -> bool:
    """Whether a relay sleeps."""
    return held(world, "ExclusiveLock") == 1


def wait_until_asleep(world: World) -> None:
    """Return when a relay sleeps."""
    wait_until(lambda: is_asleep(world), what="the relay sleeps")


def waiting(world: World) -> int:
    """How many changes are not published."""
    with world.connect() as connection:
        return outbox.waiting(connection, outbox.saved_cursor(connection))[0]


def wait_until_published(world: World) -> None:
    """Return when everything is published, which must not take long."""
    wait_until(lambda: waiting(world) == 0, what="all is published", seconds=RING_SECONDS)


def write(world: World, id_: int = 1) -> None:
    """Commit one change."""
    world.sql("UPDATE posts SET title = title || '.' WHERE id = %s", id_)


@contextmanager
def transaction(world: World) -> Iterator[Application]:
    """A transaction that has written and is open."""
    with psycopg.connect(world.dsn, autocommit=True) as application:
        application.execute("BEGIN")
        application.execute("UPDATE posts SET title = 'open' WHERE id = 2")
        yield application


@contextmanager
def listening(world: World) -> Iterator[Callable[[], int]]:
    """Counts the rings of all that has ended since it was asked last: a server says them in the order of commits."""
    heard: list[str] = []

    def rings() -> int:
        connection.execute(f"NOTIFY {HEARD}")
        wait_until(lambda: _has_heard(connection, heard), what="all was said")
        counted = heard.count(wakeup.CHANNEL)
        heard.clear()
        return counted

    with psycopg.connect(world.dsn, autocommit=True) as connection:
        connection.add_notify_handler(lambda said: heard.append(said.channel))
        connection.execute(f"LISTEN {wakeup.CHANNEL}; LISTEN {HEARD}")
        yield rings


def _has_heard(connection: Application, heard: list[str]) -> bool:
    connection.execute("SELECT 1")
    return HEARD in heard


# Nothing is lost


def test_a_write_wakes_the_relay(blog: World) -> None:
    """What is committed while the relay sleeps is published at once, again and again."""
    with running(blog):
        for _ in range(10):
            wait_until_asleep(blog)
            write(blog)
            wait_until_published(blog)


def write_at_random(world: World, seed: int, until: float) -> None:
    """Transactions of all kinds, with pauses in which the relay falls asleep, or is about to."""
    dice = random.Random(seed)
    with psycopg.connect(world.dsn) as application:
        while time.monotonic() < until:
            application.execute(f"SELECT pg_sleep({dice.choice((0, 0.001, 0.01, 0.05)) * dice.random()})")
            application.rollback()
            if dice.random() < 0.2:
                application.execute("SAVEPOINT s")
                application.execute("UPDATE posts SET title = title || 's' WHERE id = %s", (seed,))
                application.execute("ROLLBACK TO s")
            for _ in range(dice.randrange(3)):
                application.execute("UPDATE posts SET title = left(title, 9) || 'w' WHERE id = %s", (seed,))
                application.execute(f"SELECT pg_sleep({dice.choice((0, 0.001, 0.02)) * dice.random()})")
            (application.rollback if dice.random() < 0.1 else application.commit)()


def test_no_wake_up_is_lost_in_a_race(blog: World) -> None:
    """Many writers, a relay that falls asleep whenever it may: after each burst nothing is left unpublished."""
    blog.sql("INSERT INTO posts (id, user_id, title, body) SELECT n, 1, '', '' FROM generate_series(3, 4) AS n")
    with running(blog):
        for burst in range(10):
            until = time.monotonic() + 0.5
            writers = [
                threading.Thread(target=write_at_random, args=(blog, seed, until - burst % 3 * 0.2))
                for seed in range(1, 5)
            ]
            for one in writers:
                one.start()
            for one in writers:
                one.join()
            wait_until_published(blog)


def test_who_writes_just_before_the_relay_sleeps_is_seen(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of a commit between the relay's last look and its sleep does not notify; the relay looks once more."""
    sleep, written = wakeup.sleep, threading.Event()

    def write_and_sleep(connection: Connection) -> bool:
        if not written.is_set():
            write(blog)
            written.set()
        return sleep(connection)

    monkeypatch.setattr(wakeup, "sleep", write_and_sleep)
    with running(blog):
        assert written.wait(RING_SECONDS)
        wait_until_published(blog)
        wait_until_asleep(blog)


def test_a_notification_during_a_look_is_kept(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is committed just after the look of a relay that stays asleep leads to another look."""
    look, late = outbox.new, threading.Event()

    def look_and_write(connection: Connection, cursor: str, *, rows_max: int) -> tuple[str, list[outbox.Row]] | None:
        found = look(connection, cursor, rows_max=rows_max)
        if found and found[1] and not late.is_set():
            assert is_asleep(blog)
            write(blog)
            late.set()
        return found

    with running(blog):
        wait_until_asleep(blog)
        monkeypatch.setattr(outbox, "new", look_and_write)
        write(blog)
        assert late.wait(RING_SECONDS)
        wait_until_published(blog)


def test_who_has_not_rung_keeps_the_relay_awake(blog: World) -> None:
    """Beside a transaction that stays open, and did not ring, changes are published as ever; its own when it ends."""
    with transaction(blog) as long, running(blog):
        for _ in range(3):
            write(blog)
            wait_until_published(blog)
            assert not is_asleep(blog)
        long.execute("COMMIT")
        wait_until_published(blog)
        wait_until_asleep(blog)


def test_who_has_rung_may_take_as_long_as_it_likes(blog: World) -> None:
    """A transaction that rang, and is open while the relay wakes and sleeps again, wakes it when it ends."""
    with running(blog):
        wait_until_asleep(blog)
        with transaction(blog) as long:
            write(blog)
            wait_until_published(blog)
            wait_until_asleep(blog)
            long.execute("COMMIT")
        wait_until_published(blog)


def test_a_savepoint_that_is_rolled_back_takes_its_ring_along(blog: World) -> None:
    """What is written after a ROLLBACK TO rings again; a transaction that is rolled back rings for nobody."""
    with running(blog), listening(blog) as rings:
        wait_until_asleep(blog)
        with transaction(blog) as application:
            application.execute("ROLLBACK")
        assert rings() == 0
        with psycopg.connect(blog.dsn) as application:
            application.execute("SAVEPOINT s; UPDATE posts SET title = 'lost' WHERE id = 1; ROLLBACK TO s")
            application.execute("UPDATE posts SET title = 'kept' WHERE id = 1")
        wait_until_published(blog)
        assert rings() == 1


STATEMENTS = {
    "insert": "INSERT INTO things VALUES (7, 'new')",
    "update": "UPDATE things SET name = 'other'",
    "new_key": "UPDATE things SET id = 8 WHERE id = 1",
    "delete": "DELETE FROM things",
    "truncate": "TRUNCATE things",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
@pytest.mark.parametrize("partitioned", [False, True], ids=["table", "partitioned"])
def test_every_kind_of_change_rings(bare: World, statement: str, *, partitioned: bool) -> None:
    """INSERT, UPDATE, DELETE and TRUNCATE ring, once a transaction; what changes nothing does not."""
    tables = f"CREATE TABLE things (id int PRIMARY KEY, name text){' PARTITION BY RANGE (id)' if partitioned else ''};"
    if partitioned:
        tables += "CREATE TABLE leaf PARTITION OF things FOR VALUES FROM (0) TO (9);"
    capture_only(bare, tables + "INSERT INTO things VALUES (1, 'a'), (2, 'b')", "SELECT id AS _id, name FROM things")
    with bare.connect() as connection, listening(bare) as rings:
        assert wakeup.sleep(connection)
        bare.sql("UPDATE things SET name = name")
        assert rings() == 0
        bare.sql(statement)
        assert rings() == 1


def test_what_no_trigger_sees_rings_too(bare: World) -> None:
    """A table that lies in other files is noted as a change, and the relay is woken for it."""
    tables = "CREATE TABLE things (id int PRIMARY KEY, name text); INSERT INTO things VALUES (1, 'a')"
    capture_only(bare, tables, "SELECT id AS _id, name FROM things")
    with bare.connect() as connection, bare.connect() as watch, listening(bare) as rings:
        assert wakeup.sleep(connection)
        bare.sql("ALTER TABLE things ALTER COLUMN name TYPE varchar USING upper(name)")
        assert table_files.note(watch) == ["public.things"]
        assert rings() == 1


# Nobody notifies in vain


def test_nobody_rings_while_nobody_sleeps(blog: World) -> None:
    """Without a relay, or beside one that is awake, a write takes the lock that it gives back, and does not notify."""
    with listening(blog) as rings:
        write(blog)
        assert rings() == 0
        with transaction(blog):
            assert held(blog, "ShareLock") == 1
        assert held(blog, "ShareLock") == 0
        with relay_of(blog)._connect() as connection:
            assert wakeup.sleep(connection)
            write(blog)
            assert rings() == 1
            wakeup.wake(connection)
            write(blog)
            assert rings() == 0


def test_a_relay_that_is_killed_in_its_sleep_lets_nobody_ring(blog: World) -> None:
    """SIGKILL frees the lock: writers fall silent, and the next relay publishes what they wrote."""
    daemon = blog.daemon("--only", "relay")
    wait_until_asleep(blog)
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()
    wait_until(lambda: not is_asleep(blog), what="the lock is free")
    with listening(blog) as rings:
        write(blog)
        assert rings() == 0
    blog.daemon("--only", "relay")
    wait_until_published(blog)
    wait_until_asleep(blog)
    write(blog)
    wait_until_published(blog)


def test_the_one_that_stands_by_takes_over_from_one_that_sleeps(blog: World) -> None:
    """When the sleeping leader loses its connection another one leads, sleeps, and is woken."""
    with running(blog, "relay-1"):
        wait_until_asleep(blog)
        with running(blog, "relay-2"):
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'syncer relay-1' AND datname = %s"
            ((pid,),) = blog.sql(query, blog.name)
            blog.sql("SELECT pg_terminate_backend(%s)", pid)
            write(blog)
            wait_until_published(blog)
            wait_until_asleep(blog)
            write(blog)
            wait_until_published(blog)


def test_a_relay_that_sleeps_is_not_taken_for_dead(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks often enough to keep the lead, and sleeps on."""
    monkeypatch.setattr(relaying, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(relaying, "SAFETY_POLL_SECONDS", 0.3)
    query = "SELECT query_start FROM pg_stat_activity WHERE application_name = 'syncer relay-1' AND datname = %s"
    looks: set[Any] = set()
    with running(blog, "relay-1"), closing(relay_of(blog, "relay-2")) as other:
        wait_until_asleep(blog)

        def has_slept_for_long() -> bool:
            assert not other.run_once().is_leader
            looks.update(blog.sql(query, blog.name))
            return len(looks) > 4

        wait_until(has_slept_for_long, what="it has looked several times")


# The relay stays asleep while changes come one by one


def test_lone_changes_do_not_make_the_relay_get_up(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that sleeps publishes each of ten changes with one look and one save, and keeps the lock."""
    monkeypatch.setattr(relaying, "_LOOK_SECONDS", HOUR)
    calls: list[str] = []
    look, wake = outbox.new, wakeup.wake

    def count_looks(connection: Connection, cursor: str, *, rows_max: int) -> tuple[str, list[outbox.Row]] | None:
        calls.append("look")
        return look(connection, cursor, rows_max=rows_max)

    def count_wakes(connection: Connection) -> None:
        calls.append("get up")
        wake(connection)

    with running(blog):
        wait_until_asleep(blog)
        write(blog)
        wait_until_published(blog)
        monkeypatch.setattr(outbox, "new", count_looks)
        monkeypatch.setattr(wakeup, "wake", count_wakes)
        for _ in range(10):
            write(blog)
            wait_until_published(blog)
        assert calls == ["look"] * 10


def test_writers_that_overlap_make_the_relay_get_up(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is found beside another transaction that has begun since the last look makes the relay get up."""
    woken, wake = threading.Event(), wakeup.wake

    def note(connection: Connection) -> None:
        wake(connection)
        woken.set()

    monkeypatch.setattr(relaying, "_LOOK_SECONDS", HOUR)
    monkeypatch.setattr(wakeup, "wake", note)
    with running(blog):
        wait_until_asleep(blog)
        with transaction(blog):
            write(blog)
            assert woken.wait(RING_SECONDS)
            wait_until_published(blog)


def test_writers_need_not_notify_while_kafka_hangs(blog: World) -> None:
    """A relay that waits for Kafka for more than a moment gives the lock up; it sleeps again when Kafka answers."""
    with running(blog), listening(blog) as notifications:
        wait_until_asleep(blog)
        blog.sandbox.kafka.pause()
        try:
            write(blog)
            wait_until(lambda: not is_asleep(blog), what="the relay has got up", seconds=RING_SECONDS)
            assert notifications() == 1
            write(blog)
            assert notifications() == 0
        finally:
            blog.sandbox.kafka.resume()
        wait_until_published(blog)
        wait_until_asleep(blog)


# No write fails


def test_prepared_transactions_are_possible_where_they_were(
    two_phase_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where transactions may be prepared the relay does not sleep, so that none notifies; all are published."""
    world, tried, sleep = two_phase_world, list[bool](), wakeup.sleep

    def try_to(connection: Connection) -> bool:
        tried.append(sleep(connection))
        return tried[-1]

    monkeypatch.setattr(wakeup, "sleep", try_to)
    with running(world), listening(world) as rings:
        wait_until(lambda: bool(tried), what="the relay leads, and has found nothing to do")
        with psycopg.connect(world.dsn, autocommit=True) as application:
            application.execute("BEGIN")
            application.execute("INSERT INTO users (id, name, email) VALUES (1, 'somebody', 'some@body.com')")
            application.execute(f"PREPARE TRANSACTION '{world.name}'")
        assert held(world, "ShareLock") == 1, "the writer's lock is the prepared transaction's"
        assert held(world, "ExclusiveLock") == 0
        with psycopg.connect(world.dsn, autocommit=True) as other:
            other.execute(f"COMMIT PREPARED '{world.name}'")
        wait_until_published(world)
        assert held(world, "ShareLock") == 0
        assert rings() == 0


def fill(world: World) -> None:
    """Notify until that is refused."""
    with psycopg.connect(world.dsn, autocommit=True) as application:
        while True:
            application.execute("SELECT pg_notify('other', n || repeat('x', 7000)) FROM generate_series(1, 4) AS n")


def test_a_queue_that_is_full_fails_no_write(blog: World) -> None:
    """With no room for notifications in the server writes succeed, and the relay publishes them without a ring."""
    with running(blog), psycopg.connect(blog.dsn, autocommit=True) as idle:
        idle.execute("LISTEN other")
        idle.execute("BEGIN; SELECT 1")  # and what is in the queue stays in it
        wait_until_asleep(blog)
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            fill(blog)
        for _ in range(3):
            write(blog)
        idle.execute("ROLLBACK")
        wait_until(lambda: not list(blog.sql("SELECT WHERE pg_notification_queue_usage() > 0.2")), what="there is room")
        write(blog)
        wait_until_published(blog)


def test_a_table_of_locks_that_is_full_fails_no_write(blog: World) -> None:
    """A writer that has all other locks, and cannot have the wake-up's for want of shared memory, does without."""
    with blog.connect() as sleeper, blog.connect() as greedy, transaction(blog) as application:
        assert not wakeup.sleep(sleeper)
        application.execute("ROLLBACK")
        assert wakeup.sleep(sleeper)
        application.execute("BEGIN; UPDATE posts SET title = 'first'")
        with pytest.raises(psycopg.errors.OutOfMemory):
            greedy.execute("SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 10000000) AS n")
        application.execute("UPDATE posts SET title = 'second'")
        greedy.execute("SELECT pg_advisory_unlock_all()")
        application.execute("COMMIT")
    assert waiting(blog) > 0


# What it is for


def test_a_relay_that_sleeps_asks_nothing(blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At rest there is no query, but for the look that it takes all the same."""
    query = "SELECT query_start FROM pg_stat_activity WHERE application_name = 'syncer relay' AND datname = %s"
    wait, has_looked = wakeup.wait, threading.Event()

    def look_and_wait(connection: Connection, *, seconds: float, is_over: Callable[[], bool]) -> bool:
        has_looked.set()
        return wait(connection, seconds=seconds, is_over=is_over)

    monkeypatch.setattr(wakeup, "wait", look_and_wait)
    with running(blog), psycopg.connect(blog.dsn, autocommit=True) as listener:
        listener.execute(f"LISTEN {wakeup.CHANNEL}")
        assert has_looked.wait(DEADLINE_SECONDS)
        before = blog.sql(query, blog.name)
        assert list(listener.notifies(timeout=1)) == []
        assert blog.sql(query, blog.name) == before
