"""No write fails in our triggers, and no change is lost, whatever a migration does to a table and its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from syncer.base.model import Image
from syncer.capture import install as capture_install
from tests.support.capture import Change, capture_only, forget, install, is_installed, plan, written
from tests.support.world import DEADLINE_SECONDS, World, wait_until

ORDINARY = "CREATE TABLE things (id int PRIMARY KEY, place int, name text, note text, views int)"
# The partition that is written has its columns in another order than its parent.
PARTITIONED = """
CREATE TABLE things (id int PRIMARY KEY, place int, name text, note text, views int) PARTITION BY RANGE (id);
CREATE TABLE things_1 (gone int, views int, note text, name text, place int, id int NOT NULL);
ALTER TABLE things_1 DROP COLUMN gone;
ALTER TABLE things ATTACH PARTITION things_1 DEFAULT;
"""
SELECT = (
    "SELECT t.id AS _id, t.name, (SELECT count(*) FROM things AS o WHERE o.place = t.place) AS here FROM things AS t"
)
RELATION = "public.things"


@pytest.fixture
def things(empty_world: World) -> World:
    """A captured table with one row: id is its key, place routes, name is watched, note and views are not."""
    capture_only(empty_world, ORDINARY, SELECT)
    empty_world.sql("INSERT INTO things VALUES (1, 5, 'name', 'note', 0)")
    assert written(empty_world) == [(RELATION, "I", None, image(1))]
    return empty_world


def make_anew(world: World, tables: str) -> None:
    """Make the table of `things` in this form instead of the one that a migration has left."""
    world.sql(
        "DROP TABLE IF EXISTS things, stuff, elsewhere.things; DROP TYPE IF EXISTS pair; DROP DOMAIN IF EXISTS short"
    )
    world.sql(f"CREATE SCHEMA IF NOT EXISTS elsewhere; {tables}")
    install(world)
    world.sql("INSERT INTO things VALUES (1, 5, 'name', 'note', 0)")


def image(id_: int, place: int = 5) -> Image:
    """The image of a thing."""
    return {"id": str(id_), "place": str(place)}


UPDATED: Change = (RELATION, "U", image(1), image(1))


@contextmanager
def session(world: World) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """An application that has written the table before, in every way, so that its plans are made."""
    with psycopg.connect(world.dsn, autocommit=True) as application:
        application.execute("SET search_path = public, elsewhere")
        for id_ in range(100, 107):  # a plan is kept for good after five
            application.execute(f"INSERT INTO things VALUES ({id_}, 5, 'a', 'b', 0)")
            application.execute(f"UPDATE things SET name = 'c', views = 1 WHERE id = {id_}")
            application.execute(f"DELETE FROM things WHERE id = {id_}")
        forget(world)
        yield application


MIGRATIONS = {
    "watched_dropped": "ALTER TABLE things DROP COLUMN name",
    "watched_renamed": "ALTER TABLE things RENAME COLUMN name TO title",
    "watched_to_json": "ALTER TABLE things ALTER COLUMN name TYPE json USING to_json(name)",
    "watched_to_domain": "CREATE DOMAIN short AS varchar(99) CHECK (value <> ''); "
    "ALTER TABLE things ALTER COLUMN name TYPE short",
    "watched_to_composite": "CREATE TYPE pair AS (a json, b text); ALTER TABLE things ALTER name TYPE pair USING NULL",
    "watched_replaced": "ALTER TABLE things DROP COLUMN name; ALTER TABLE things ADD COLUMN name box",
    "added": "ALTER TABLE things ADD COLUMN more json DEFAULT '\"\\u0000\"'",
    "generated": "ALTER TABLE things DROP COLUMN name; "
    "ALTER TABLE things ADD COLUMN name text GENERATED ALWAYS AS ('n' || views) STORED",
    "virtual": "ALTER TABLE things DROP COLUMN name; "
    "ALTER TABLE things ADD COLUMN name text GENERATED ALWAYS AS ('n' || views) VIRTUAL",
    "column_order": "ALTER TABLE things RENAME COLUMN name TO old; ALTER TABLE things ADD COLUMN name text; "
    "UPDATE things SET name = old; ALTER TABLE things DROP COLUMN old",
    "renamed": "ALTER TABLE things RENAME TO stuff",
    "moved": "ALTER TABLE things SET SCHEMA elsewhere",
    "named_like_our_words": "ALTER TABLE things RENAME COLUMN name TO untouched; "
    'ALTER TABLE things ADD COLUMN "new" int, ADD COLUMN "old" int, ADD COLUMN segment int, ADD COLUMN tg_op int, '
    "ADD COLUMN relation int, ADD COLUMN old_image int, ADD COLUMN record int",
}


@pytest.mark.parametrize("tables", [ORDINARY, PARTITIONED], ids=["ordinary", "partitioned"])
def test_writes_go_on_and_are_captured_after_a_migration(things: World, tables: str) -> None:
    """In a session that wrote before and in a new one; each changed row leaves its key and its place."""
    is_old = int(things.sql("SHOW server_version_num")[0][0]) < 180_000
    for name, migration in MIGRATIONS.items():
        if "VIRTUAL" in migration and is_old:
            continue
        make_anew(things, tables)
        with session(things) as application, psycopg.connect(things.dsn, autocommit=True) as newcomer:
            things.sql(migration)
            forget(things)
            newcomer.execute("SET search_path = public, elsewhere")
            [(table,)] = newcomer.execute("SELECT coalesce(to_regclass('stuff'), to_regclass('things'))::text")
            for writer, id_ in ((application, 7), (newcomer, 8)):
                writer.execute(f"INSERT INTO {table} (id, place) VALUES ({id_}, 5)")
                writer.execute(f"UPDATE {table} SET place = 6, views = 3 WHERE id = {id_}")
                writer.execute(f"DELETE FROM {table} WHERE id = {id_}")
                writer.execute(f"TRUNCATE {table}")
                assert written(things) == [
                    (RELATION, "D", image(id_, 6), None),
                    (RELATION, "I", None, image(id_)),
                    (RELATION, "T", None, None),
                    (RELATION, "U", image(id_), image(id_, 6)),
                ], name


LOST = {
    "routing": "ALTER TABLE things RENAME COLUMN place TO spot",
    "both": "ALTER TABLE things RENAME COLUMN id TO ident; ALTER TABLE things DROP COLUMN place",
}


@pytest.mark.parametrize("tables", [ORDINARY, PARTITIONED], ids=["ordinary", "partitioned"])
def test_where_a_column_of_the_image_is_gone_a_change_names_no_row(things: World, tables: str) -> None:
    """Which documents the row belongs to cannot be told, so the change touches all, until apply."""
    for name, migration in LOST.items():
        make_anew(things, tables)
        with session(things) as application:
            things.sql(migration)
            application.execute("UPDATE things SET views = 2")
            application.execute("WITH t AS (DELETE FROM things RETURNING *) INSERT INTO things SELECT * FROM t")
            changes = written(things)
        assert {operation for _, operation, _, _ in changes} == {"D", "I", "U"}, name
        assert all((old, new) == (None, None) for _, _, old, new in changes), name


def test_a_routing_column_may_get_another_type(things: World) -> None:
    """A session that goes on may know nothing of a row until apply; no write fails, and no change is lost."""
    with session(things) as application:
        things.sql("ALTER TABLE things ALTER COLUMN place TYPE bigint")
        forget(things)
        application.execute("UPDATE things SET place = 6")
        assert written(things) in ([(RELATION, "U", image(1), image(1, 6))], [(RELATION, "U", None, None)])
        (capture,) = plan(things).captures  # a function depends on types
        install(things)
        with things.connect() as connection:
            assert capture_install.is_current(connection, capture)
        application.execute("UPDATE things SET place = 5")
        assert written(things) == [(RELATION, "U", image(1, 6), image(1))]
    assert plan(things).captures == ()


def test_where_a_watched_column_is_gone_every_update_is_a_change(things: World) -> None:
    """What the column has become cannot be told, so nothing is left out; after apply, what is not watched is again."""
    with session(things) as application:
        things.sql("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'other'")
        application.execute("UPDATE things SET views = 9")
        assert written(things) == [UPDATED] * 2
        things.define("thing", SELECT.replace("t.name", "t.title"))
        install(things)
        application.execute("UPDATE things SET views = 10")
        assert written(things) == []
        application.execute("UPDATE things SET title = 'third'")
        assert written(things) == [UPDATED]


def test_a_transaction_whose_snapshot_is_older_than_the_migration_goes_on(things: World) -> None:
    """REPEATABLE READ sees the catalogue as it was; the table is as it is. No write fails for that."""
    with psycopg.connect(things.dsn) as application:
        application.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        application.execute("SELECT 1")
        things.sql("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'x', views = 5")
    assert written(things) == [UPDATED]


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
OF_EVENTS = "SELECT e.id || '-' || e.day AS _id, e.kind FROM events AS e"
LEAVES = {"events": 10, "events_1": 10, "events_2": 20, "events_3": 30, "events_3a": 30}
WHOLE = "public.events"
TRUNCATED: Change = (WHOLE, "T", None, None)


@pytest.fixture
def events(empty_world: World) -> World:
    """A partitioned table of three levels and three rows, captured, and an empty outbox."""
    capture_only(empty_world, EVENTS, OF_EVENTS)
    forget(empty_world)
    return empty_world


def event(id_: int, day: int) -> Image:
    """The image of an event."""
    return {"id": str(id_), "day": str(day)}


def change(operation: str, id_: int, day: int) -> Change:
    """What is left by an event that is new, changes or goes."""
    image = event(id_, day)
    return WHOLE, operation, None if operation == "I" else image, None if operation == "D" else image


def note(world: World) -> list[str]:
    """Let the watcher look once."""
    with world.connect() as connection:
        return capture_install.note(connection)


def test_rows_are_captured_whichever_table_they_are_written_through(events: World) -> None:
    """Through the parent, or straight into a partition of any level: the changes are the parent's."""
    for table, day in LEAVES.items():
        events.sql(f"INSERT INTO {table} (day, id, kind, note) VALUES ({day}, 7, 'a', 'x')")
        events.sql(f"UPDATE {table} SET kind = 'a', note = 'unwatched' WHERE id = 7")
        events.sql(f"UPDATE {table} SET kind = 'b' WHERE id = 7")
        with events.application() as session, session.cursor().copy(f"COPY {table} (day, id) FROM STDIN") as copy:
            copy.write_row((day, 9))
        events.sql(f"DELETE FROM {table} WHERE id IN (7, 9)")
        changes = [
            change("D", 7, day),
            change("D", 9, day),
            change("I", 7, day),
            change("I", 9, day),
            change("U", 7, day),
        ]
        assert written(events) == changes, table


def test_a_row_that_moves_to_another_partition_is_deleted_and_inserted(events: World) -> None:
    """A cross-partition UPDATE names the document under its old and its new key, also where the key stays."""
    events.sql("UPDATE events SET day = 21 WHERE id = 1")
    assert written(events) == [change("D", 1, 10), change("I", 1, 21)]
    events.sql("UPDATE events_3 SET id = 300")  # from 3a to 3b
    assert written(events) == [change("D", 3, 30), change("I", 300, 30)]


def test_partitions_that_come_later_are_captured(events: World) -> None:
    """A partition that is created or attached after apply has the trigger, and it is always enabled."""
    events.sql("CREATE TABLE events_4 PARTITION OF events FOR VALUES FROM (40) TO (50) PARTITION BY HASH (id)")
    events.sql("CREATE TABLE events_4a PARTITION OF events_4 FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    events.sql("CREATE TABLE events_5 (doc jsonb, note text, kind text, id int NOT NULL, day int NOT NULL)")
    events.sql("ALTER TABLE events ATTACH PARTITION events_5 FOR VALUES FROM (50) TO (60)")
    events.sql("SET LOCAL session_replication_role = replica; INSERT INTO events VALUES (40, 4), (50, 5)")
    events.sql("INSERT INTO events_4a VALUES (41, 4); INSERT INTO events_5 (day, id) VALUES (51, 5)")
    assert written(events) == [change("I", 4, 40), change("I", 4, 41), change("I", 5, 50), change("I", 5, 51)]
    assert is_installed(events, WHOLE)
    assert plan(events).captures == ()


CHANGED_SETS = {
    "attached_with_rows": "CREATE TABLE n (LIKE events_1); INSERT INTO n VALUES (45, 9); "
    "ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)",
    "dropped": "DROP TABLE events_2",
    "attached_below": "CREATE TABLE n (LIKE events_1); "
    "ALTER TABLE events_3 ATTACH PARTITION n FOR VALUES FROM (1000) TO (2000)",
    "away_for_a_moment": "ALTER TABLE events DETACH PARTITION events_2; UPDATE events_2 SET kind = 'unheard'; "
    "ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM (20) TO (30)",
    "subtree_away_for_a_moment": "ALTER TABLE events DETACH PARTITION events_3; UPDATE events_3 SET note = 'unheard'; "
    "ALTER TABLE events ATTACH PARTITION events_3 FOR VALUES FROM (30) TO (40)",
    "truncated": "TRUNCATE events_1",
}


def test_partitions_that_come_or_go_with_their_rows_are_noted_once(events: World) -> None:
    """What no trigger sees becomes a change of the whole table at the next look, and only then."""
    for name, statements in CHANGED_SETS.items():
        events.sql(f"DROP SCHEMA public CASCADE; CREATE SCHEMA public; {EVENTS}")
        install(events)
        note(events)
        assert note(events) == [], name
        events.sql(statements)
        forget(events)
        assert note(events) == [WHOLE], name
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
        assert note(events) == [WHOLE]
        reader.rollback()
        detaching.result(timeout=DEADLINE_SECONDS)
    assert note(events) == []
    assert written(events) == [TRUNCATED]


def test_an_attach_that_is_not_committed_is_noted_when_it_is(events: World) -> None:
    """An open transaction does not hold the watcher up, and is not missed; of several watchers one notes it.

    An apply for another document does not take the partition for known.
    """
    events.define("other", "SELECT e.id || '-' || e.day AS _id, e.note FROM events AS e")

    def look(world: World) -> list[str]:
        with world.connect() as watcher:
            watcher.execute("SET lock_timeout = '2s'")
            return capture_install.note(watcher)

    with events.application() as application:
        application.execute("CREATE TABLE n (LIKE events_1)")
        application.execute("ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)")
        application.execute("ALTER TABLE events DETACH PARTITION events_2")
        assert look(events) == []
        application.commit()
    install(events)
    with ThreadPoolExecutor(4) as threads:
        assert [table for found in threads.map(look, [events] * 4) for table in found] == [WHOLE]
    assert written(events) == [TRUNCATED]


def test_a_table_that_becomes_partitioned_is_captured_anew(empty_world: World) -> None:
    """A table is renamed, a partitioned one takes its name, and the old one becomes its partition: nothing fails."""
    tables = "CREATE TABLE events (day int, id int, kind text, PRIMARY KEY (id, day)); INSERT INTO events VALUES (1, 1)"
    capture_only(empty_world, tables, OF_EVENTS)
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
    assert not is_installed(empty_world, WHOLE)
    install(empty_world)
    forget(empty_world)
    empty_world.sql("INSERT INTO events VALUES (4, 4); INSERT INTO events_old VALUES (5, 5)")
    assert written(empty_world) == [change("I", 4, 4), change("I", 5, 5)]
    assert is_installed(empty_world, WHOLE)


def test_a_table_captured_by_itself_can_be_attached_and_released(events: World) -> None:
    """Triggers that a table has brought along neither hinder ATTACH nor DETACH, nor fail its writes."""
    events.sql("CREATE TABLE own (LIKE events_1 INCLUDING INDEXES)")
    events.define("other", "SELECT o.id || '-' || o.day AS _id, o.kind FROM own AS o")
    install(events)
    events.sql("ALTER TABLE events ATTACH PARTITION own FOR VALUES FROM (40) TO (50)")
    events.sql("INSERT INTO own VALUES (40, 4)")
    assert written(events) == [change("I", 4, 40), ("public.own", "I", None, event(4, 40))]
    with events.connect() as connection:
        capture_install.remove(connection, "public.own")
    events.sql("ALTER TABLE events DETACH PARTITION own; INSERT INTO own VALUES (41, 4)")
    assert written(events) == []
    with events.connect() as connection:
        capture_install.remove(connection, WHOLE)
    assert events.sql("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'syncer%'") == []
    events.sql("INSERT INTO events VALUES (11, 7); TRUNCATE events")
    assert written(events) == []
