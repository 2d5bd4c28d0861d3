"""A document may read a partitioned table: whatever way its rows come, go and move, the outbox has it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from syncer.base.model import Image
from syncer.capture import install as capture_install, table_files, triggers
from syncer.recovery.schema_watch import Watch
from tests.support.capture import Change, capture_only, define, forget, install, is_installed, plan, written
from tests.support.world import DEADLINE_SECONDS, World, wait_until

# Three levels; partitions whose columns are numbered otherwise than their parent's.
EVENTS = """
CREATE TABLE events (day int, id int, kind text, note text, doc jsonb, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (10) TO (20);
CREATE TABLE events_2 (gone int, note text, kind text, id int NOT NULL, doc jsonb, day int NOT NULL);
ALTER TABLE events_2 DROP COLUMN gone;
ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM (20) TO (30);
CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (30) TO (40) PARTITION BY RANGE (id);
CREATE TABLE events_3a PARTITION OF events_3 FOR VALUES FROM (0) TO (100);
CREATE TABLE events_3b PARTITION OF events_3 DEFAULT;
INSERT INTO events (day, id, kind, note) VALUES (10, 1, 'a', 'x'), (20, 2, 'a', 'x'), (30, 3, 'a', 'x');
"""
SELECT = "SELECT e.id || '-' || e.day AS _id, e.kind FROM events AS e"
LEAVES = {"events": 10, "events_1": 10, "events_2": 20, "events_3": 30, "events_3a": 30}
RELATION = "public.events"
TRUNCATED: Change = (RELATION, "T", None, None)


@pytest.fixture
def events(empty_world: World) -> World:
    """A partitioned table of three levels and three rows, captured, and an empty outbox."""
    capture_only(empty_world, EVENTS, SELECT)
    forget(empty_world)
    return empty_world


def event(id_: int, day: int) -> Image:
    """The image of an event."""
    return {"id": str(id_), "day": str(day)}


def inserted(id_: int, day: int) -> Change:
    """What is left by an event that is new."""
    return RELATION, "I", None, event(id_, day)


def deleted(id_: int, day: int) -> Change:
    """What is left by an event that goes."""
    return RELATION, "D", event(id_, day), None


def updated(id_: int, day: int) -> Change:
    """What is left by an event that changes."""
    return RELATION, "U", event(id_, day), event(id_, day)


def note(world: World) -> list[str]:
    """Let the watcher look once."""
    with world.connect() as connection:
        return table_files.note(connection)


# Rows


def test_rows_are_captured_whichever_table_they_are_written_through(events: World) -> None:
    """Through the parent, or straight into a partition of any level: the changes are the parent's."""
    for table, day in LEAVES.items():
        events.sql(f"INSERT INTO {table} (day, id, kind, note) VALUES ({day}, 7, 'a', 'x')")
        events.sql(f"UPDATE {table} SET kind = 'a', note = 'unwatched' WHERE id = 7")
        events.sql(f"UPDATE {table} SET kind = 'b' WHERE id = 7")
        with events.application() as session, session.cursor().copy(f"COPY {table} (day, id) FROM STDIN") as copy:
            copy.write_row((day, 9))
        events.sql(f"DELETE FROM {table} WHERE id IN (7, 9)")
        changes = [deleted(7, day), deleted(9, day), inserted(7, day), inserted(9, day), updated(7, day)]
        assert written(events) == changes, table


def test_a_row_that_moves_to_another_partition_is_deleted_and_inserted(events: World) -> None:
    """A cross-partition UPDATE names the document under its old and its new key, also where the key stays."""
    events.sql("UPDATE events SET day = 21 WHERE id = 1")
    assert written(events) == [deleted(1, 10), inserted(1, 21)]
    events.sql("UPDATE events_3 SET id = 300")  # from 3a to 3b
    assert written(events) == [deleted(3, 30), inserted(300, 30)]


# Partitions


def test_partitions_that_come_later_are_captured(events: World) -> None:
    """A partition that is created or attached after apply has the trigger, and it is always enabled."""
    events.sql("CREATE TABLE events_4 PARTITION OF events FOR VALUES FROM (40) TO (50) PARTITION BY HASH (id)")
    events.sql("CREATE TABLE events_4a PARTITION OF events_4 FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    events.sql("CREATE TABLE events_5 (doc jsonb, note text, kind text, id int NOT NULL, day int NOT NULL)")
    events.sql("ALTER TABLE events ATTACH PARTITION events_5 FOR VALUES FROM (50) TO (60)")
    events.sql("SET LOCAL session_replication_role = replica; INSERT INTO events VALUES (40, 4), (50, 5)")
    events.sql("INSERT INTO events_4a VALUES (41, 4); INSERT INTO events_5 (day, id) VALUES (51, 5)")
    assert written(events) == [inserted(4, 40), inserted(4, 41), inserted(5, 50), inserted(5, 51)]
    assert is_installed(events, RELATION)
    assert plan(events).captures == ()


CHANGED_SETS = {
    "attached_with_rows": "CREATE TABLE n (LIKE events_1); INSERT INTO n VALUES (45, 9); "
    "ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)",
    "dropped": "DROP TABLE events_2",
    "attached_below": "CREATE TABLE n (LIKE events_1); "
    "ALTER TABLE events_3 ATTACH PARTITION n FOR VALUES FROM (1000) TO (2000)",
    "subtree_detached": "ALTER TABLE events DETACH PARTITION events_3",
    "away_for_a_moment": "ALTER TABLE events DETACH PARTITION events_2; UPDATE events_2 SET kind = 'unheard'; "
    "ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM (20) TO (30)",
    "subtree_away_for_a_moment": "ALTER TABLE events DETACH PARTITION events_3; UPDATE events_3 SET note = 'unheard'; "
    "ALTER TABLE events ATTACH PARTITION events_3 FOR VALUES FROM (30) TO (40)",
    "truncated": "TRUNCATE events_1",
    "truncated_below": "TRUNCATE events_3",
}


def test_partitions_that_come_or_go_with_their_rows_are_noted_once(events: World) -> None:
    """What no trigger sees becomes a change of the whole table at the next look, and only then."""
    for name, change in CHANGED_SETS.items():
        events.sql(f"DROP SCHEMA public CASCADE; CREATE SCHEMA public; {EVENTS}")
        install(events)
        note(events)
        assert note(events) == [], name
        events.sql(change)
        forget(events)
        assert note(events) == [RELATION], name
        assert written(events) == [TRUNCATED], name
        assert note(events) == [], name
        assert written(events) == [], name


def test_a_partition_that_is_being_detached_concurrently_is_noted_once(events: World) -> None:
    """DETACH … CONCURRENTLY is two transactions; after the first, no new query sees the partition's rows."""

    def detach() -> None:
        with psycopg.connect(events.dsn, autocommit=True) as application:
            application.execute("ALTER TABLE events DETACH PARTITION events_2 CONCURRENTLY")

    with ThreadPoolExecutor(1) as threads, psycopg.connect(events.dsn) as reader:
        reader.execute("SELECT FROM events")
        detaching = threads.submit(detach)
        pending = "SELECT 1 FROM pg_inherits WHERE inhdetachpending"
        wait_until(lambda: bool(events.sql(pending)) or detaching.done(), what="the first transaction is done")
        assert not detaching.done()
        assert note(events) == [RELATION]
        reader.rollback()
        detaching.result(timeout=DEADLINE_SECONDS)
    assert note(events) == []
    assert written(events) == [TRUNCATED]


def test_an_attach_that_is_not_committed_is_noted_when_it_is(events: World) -> None:
    """An open transaction does not hold the watcher up, and is not missed; of several watchers one notes it.

    An apply for another document does not take the partition for known, and the role of a daemon suffices to look.
    """
    role = f"watcher_{events.name}"
    define(events, "other", "SELECT e.id || '-' || e.day AS _id, e.note FROM events AS e")
    events.sql(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA syncer TO {role};"
        f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA syncer TO {role};"
        f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA syncer TO {role}"
    )

    def look(world: World) -> list[str]:
        with world.connect() as watcher:
            watcher.execute(f"SET ROLE {role}; SET lock_timeout = '2s'")
            assert capture_install.is_installed(watcher, RELATION)
            return table_files.note(watcher)

    try:
        with psycopg.connect(events.dsn) as application:
            application.execute("CREATE TABLE n (LIKE events_1)")
            application.execute("ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)")
            application.execute("ALTER TABLE events DETACH PARTITION events_2")
            assert look(events) == []
            application.commit()
        install(events)
        with ThreadPoolExecutor(4) as threads:
            assert [table for found in threads.map(look, [events] * 4) for table in found] == [RELATION]
        assert written(events) == [TRUNCATED]
    finally:
        events.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_partition_attached_while_triggers_are_made_is_noted(events: World) -> None:
    """From the look at the partitions until it is remembered, nothing slips through, and rows are captured at once."""
    with events.connect() as connection, events.application() as application:
        capture = capture_install.captured(connection)[RELATION]
        capture_install.remove(connection, RELATION)
        application.execute("SELECT FROM events; CREATE TABLE n (LIKE events_1); INSERT INTO n VALUES (40, 4)")
        application.execute("ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)")
        capture_install.install(connection, capture, waiting=lambda _: application.commit())
    assert note(events) == [RELATION]
    events.sql("INSERT INTO n (day, id) VALUES (41, 1)")
    assert written(events) == [inserted(1, 41), TRUNCATED]


# Triggers


def test_apply_fixes_triggers_that_someone_has_meddled_with(events: World) -> None:
    """A trigger that is disabled or gone, on whatever partition, is noticed and is whole again after apply."""
    for harm in (
        "ALTER TABLE events_1 DISABLE TRIGGER USER",
        f"ALTER TABLE events_3a ENABLE TRIGGER {triggers.row_trigger(RELATION)}",
        f"DROP TRIGGER {triggers.truncate_trigger(RELATION)} ON events",
        f"DROP TRIGGER {triggers.row_trigger(RELATION)} ON events",
    ):
        events.sql(harm)
        assert not is_installed(events, RELATION), harm
        install(events)
        assert is_installed(events, RELATION), harm
        forget(events)
        events.sql("SET LOCAL session_replication_role = replica; INSERT INTO events_1 VALUES (11, 7); TRUNCATE events")
        assert written(events) == [inserted(7, 11), TRUNCATED], harm


def test_a_table_that_becomes_partitioned_is_captured_anew(empty_world: World) -> None:
    """A table is renamed, a partitioned one takes its name, and the old one becomes its partition: nothing fails."""
    tables = "CREATE TABLE events (day int, id int, kind text, PRIMARY KEY (id, day)); INSERT INTO events VALUES (1, 1)"
    capture_only(empty_world, tables, SELECT)
    empty_world.sql(
        """
        ALTER TABLE events RENAME TO events_old;
        ALTER INDEX events_pkey RENAME TO events_old_pkey;
        CREATE TABLE events (day int, id int, kind text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        ALTER TABLE events ATTACH PARTITION events_old FOR VALUES FROM (0) TO (10);
        INSERT INTO events VALUES (2, 2);
        INSERT INTO events_old VALUES (3, 3);
        """
    )
    assert not is_installed(empty_world, RELATION)
    install(empty_world)
    forget(empty_world)
    empty_world.sql("INSERT INTO events VALUES (4, 4); INSERT INTO events_old VALUES (5, 5)")
    assert written(empty_world) == [inserted(4, 4), inserted(5, 5)]
    assert is_installed(empty_world, RELATION)


def test_a_table_captured_by_itself_can_be_attached_and_released(events: World) -> None:
    """Triggers that a table has brought along neither hinder ATTACH nor DETACH, nor fail its writes."""
    events.sql("CREATE TABLE own (LIKE events_1 INCLUDING INDEXES)")
    define(events, "other", "SELECT o.id || '-' || o.day AS _id, o.kind FROM own AS o")
    install(events)
    events.sql("ALTER TABLE events ATTACH PARTITION own FOR VALUES FROM (40) TO (50)")
    events.sql("INSERT INTO own VALUES (40, 4)")
    assert written(events) == [inserted(4, 40), ("public.own", "I", None, event(4, 40))]
    with events.connect() as connection:
        capture_install.remove(connection, "public.own")
    events.sql("ALTER TABLE events DETACH PARTITION own; INSERT INTO own VALUES (41, 4)")
    assert written(events) == []
    with events.connect() as connection:
        capture_install.remove(connection, RELATION)
    assert events.sql("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'syncer%'") == []
    events.sql("INSERT INTO events VALUES (11, 7); TRUNCATE events")
    assert written(events) == []


def test_a_writer_of_a_partition_in_flight_is_waited_for(events: World) -> None:
    """A definition that reads more columns waits for who wrote a partition under the function before."""
    define(events, "thing", "SELECT e.id || '-' || e.day AS _id, e.kind, e.note FROM events AS e")
    holders: list[str] = []

    def wait(holder: str) -> None:
        holders.append(holder)
        application.commit()

    with psycopg.connect(events.dsn) as application, events.connect() as connection:
        application.execute("UPDATE events_1 SET note = 'unheard'")
        capture_install.install(connection, plan(events).captures[0], waiting=wait)
    assert holders


def test_a_document_over_partitions_follows_what_is_attached(empty_world: World) -> None:
    """Through relay and worker: rows that come with a partition are found, and those that go with one are not."""
    world = empty_world
    (world.document_folder / "select.sql").write_text("SELECT e.id AS _id, e.kind AS title FROM events AS e")
    world.sql(EVENTS)
    world.migrate()
    world.apply()
    assert world.differences() == []
    with (
        world.index() as index,
        world.relay() as relay,
        world.worker(index) as worker,
        closing(Watch(connect=world.connect)) as watch,
    ):
        assert watch.run_once().noted == ()
        world.sql("CREATE TABLE n (LIKE events_1); INSERT INTO n VALUES (40, 4, 'came'); DELETE FROM n WHERE id = 3")
        world.sql("ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)")
        world.sql("ALTER TABLE events DETACH PARTITION events_2")
        assert watch.run_once().noted == (RELATION,)
        world.sql("UPDATE events_1 SET kind = 'moved', day = 12")
        world.drain(relay, worker)
    assert set(world.held()) == {"1", "3", "4"}
