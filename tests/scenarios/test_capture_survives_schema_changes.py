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
from tests.support.standbys import restore
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
def table_world(empty_world: World) -> World:
    """A captured table with one row: id is its key, place routes, name is watched, note and views are not."""
    capture_only(empty_world, ORDINARY, SELECT)
    empty_world.sql("INSERT INTO things VALUES (1, 5, 'name', 'note', 0)")
    assert written(empty_world) == [(RELATION, "I", None, image(1))]
    return empty_world


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


WRITES = [
    (RELATION, "D", image(7, 6), None),
    (RELATION, "I", None, image(7)),
    (RELATION, "T", None, None),
    (RELATION, "U", image(7), image(7, 6)),
]
UNKNOWN = [(RELATION, operation, None, None) for operation in "DITU"]
"""Which documents the row belongs to cannot be told, so the change touches all, until apply."""
MIGRATIONS = (
    "ALTER TABLE things DROP COLUMN name",
    "ALTER TABLE things RENAME COLUMN name TO title",
    "ALTER TABLE things ALTER COLUMN name TYPE json USING to_json(name)",
    "CREATE DOMAIN short AS varchar(99) CHECK (value <> ''); ALTER TABLE things ALTER name TYPE short",
    "CREATE TYPE pair AS (a json, b text); ALTER TABLE things ALTER name TYPE pair USING NULL",
    "ALTER TABLE things DROP COLUMN name; ALTER TABLE things ADD COLUMN name box",
    "ALTER TABLE things ADD COLUMN more json DEFAULT '\"\\u0000\"'",
    "ALTER TABLE things DROP name; ALTER TABLE things ADD name text GENERATED ALWAYS AS ('n' || views) STORED",
    "ALTER TABLE things DROP name; ALTER TABLE things ADD name text GENERATED ALWAYS AS ('n' || views) VIRTUAL",
    "ALTER TABLE things RENAME name TO old; ALTER TABLE things ADD name text; UPDATE things SET name = old",
    "ALTER TABLE things RENAME TO stuff",
    "ALTER TABLE things SET SCHEMA elsewhere",
    # Named like our own words.
    """
    ALTER TABLE things RENAME name TO untouched; ALTER TABLE things ADD "new" int, ADD "old" int, ADD segment int,
    ADD tg_op int, ADD relation int, ADD old_image int, ADD record int
    """,
)
LOST = {
    "ALTER TABLE things RENAME COLUMN place TO spot": ("id", "spot"),
    "ALTER TABLE things RENAME COLUMN id TO ident; ALTER TABLE things DROP COLUMN place": ("ident", "views"),
}
"""What takes a column of the image away, and which columns are then written."""


@pytest.mark.parametrize("tables", [ORDINARY, PARTITIONED], ids=["ordinary", "partitioned"])
def test_writes_go_on_and_are_captured_after_a_migration(table_world: World, tables: str) -> None:
    """In a session that wrote before and in a new one; each changed row leaves its key and its place, if they exist."""
    is_old = int(table_world.sql("SHOW server_version_num")[0][0]) < 180_000
    for migration in (*MIGRATIONS, *LOST):
        if "VIRTUAL" in migration and is_old:
            continue
        table_world.sql(
            "DROP SCHEMA IF EXISTS elsewhere, public CASCADE; CREATE SCHEMA elsewhere; CREATE SCHEMA public"
        )
        table_world.sql(tables)
        install(table_world)
        table_world.sql("INSERT INTO things VALUES (1, 5, 'name', 'note', 0)")
        with session(table_world) as application, psycopg.connect(table_world.dsn, autocommit=True) as newcomer:
            table_world.sql(migration)
            newcomer.execute("SET search_path = public, elsewhere")
            [(table,)] = newcomer.execute("SELECT coalesce(to_regclass('stuff'), to_regclass('things'))::text")
            id_, place = LOST.get(migration, ("id", "place"))
            for writer in (application, newcomer):
                forget(table_world)
                writer.execute(f"INSERT INTO {table} ({id_}, {place}) VALUES (7, 5)")
                writer.execute(f"UPDATE {table} SET {place} = 6 WHERE {id_} = 7")
                writer.execute(f"DELETE FROM {table} WHERE {id_} = 7")
                writer.execute(f"TRUNCATE {table}")
                assert written(table_world) == (UNKNOWN if migration in LOST else WRITES), migration


def test_a_routing_column_may_get_another_type(table_world: World) -> None:
    """A session that goes on may know nothing of a row until apply; no write fails, and no change is lost."""
    with session(table_world) as application:
        table_world.sql("ALTER TABLE things ALTER COLUMN place TYPE bigint")
        forget(table_world)
        application.execute("UPDATE things SET place = 6")
        assert written(table_world) in ([(RELATION, "U", image(1), image(1, 6))], [(RELATION, "U", None, None)])
        (capture,) = plan(table_world).captures  # a function depends on types
        install(table_world)
        with table_world.connect() as connection:
            assert capture_install.outdated(connection, [capture]) == []
        application.execute("UPDATE things SET place = 5")
        assert written(table_world) == [(RELATION, "U", image(1, 6), image(1))]
    assert plan(table_world).captures == ()


def test_where_a_watched_column_is_gone_every_update_is_a_change(table_world: World) -> None:
    """What the column has become cannot be told, so nothing is left out; after apply, what is not watched is again."""
    with session(table_world) as application:
        table_world.sql("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'other'")
        application.execute("UPDATE things SET views = 9")
        assert written(table_world) == [UPDATED] * 2
        table_world.define("thing", SELECT.replace("t.name", "t.title"))
        install(table_world)
        application.execute("UPDATE things SET views = 10")
        assert written(table_world) == []
        application.execute("UPDATE things SET title = 'third'")
        assert written(table_world) == [UPDATED]


def test_a_function_that_was_made_for_fewer_columns_is_none(table_world: World) -> None:
    """As a tool puts it back that keeps the schema in a file: it leaves out what documents read since then."""
    ((earlier,),) = table_world.sql("SELECT pg_get_functiondef('syncer.\"capture_public.things\"'::regproc)")
    table_world.define("thing", SELECT.replace("t.name", "t.name, t.note"))
    install(table_world)
    assert is_installed(table_world, RELATION)
    table_world.sql(earlier)
    assert not is_installed(table_world, RELATION)
    install(table_world)
    assert is_installed(table_world, RELATION)
    forget(table_world)
    table_world.sql("UPDATE things SET note = 'other'")
    assert written(table_world) == [UPDATED]


def test_a_transaction_whose_snapshot_is_older_than_the_migration_goes_on(table_world: World) -> None:
    """REPEATABLE READ sees the catalogue as it was; the table is as it is. No write fails for that."""
    with psycopg.connect(table_world.dsn) as application:
        application.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        application.execute("SELECT 1")
        table_world.sql("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'x', views = 5")
    assert written(table_world) == [UPDATED]


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
WHOLE = "public.events"
NOTED: Change = (WHOLE, "N", None, None)


@pytest.fixture
def events(empty_world: World) -> World:
    """A partitioned table of three levels and three rows, captured, and an empty outbox."""
    capture_only(empty_world, EVENTS, OF_EVENTS)
    forget(empty_world)
    return empty_world


def inserted(*events: tuple[int, int]) -> list[Change]:
    """What new events leave, each of an id and a day."""
    return [(WHOLE, "I", None, {"id": str(id_), "day": str(day)}) for id_, day in events]


def note(world: World) -> list[str]:
    """Let the watcher look once."""
    with world.connect() as connection:
        return capture_install.note(connection)


def make_anew(world: World, tables: str) -> None:
    """The tables as they were first, captured and looked at, and an empty outbox."""
    world.sql(f"DROP SCHEMA public CASCADE; CREATE SCHEMA public; {tables}")
    install(world)
    note(world)
    assert note(world) == []
    forget(world)


def execute_each(world: World, statements: str) -> None:
    """Each statement in a transaction of its own."""
    with psycopg.connect(world.dsn, autocommit=True) as application:
        for statement in statements.split(";"):
            application.execute(statement.encode())


def test_partitions_that_come_later_are_captured(events: World) -> None:
    """A partition that is created or attached after apply has the trigger, and it is always enabled."""
    events.sql("CREATE TABLE events_4 PARTITION OF events FOR VALUES FROM (40) TO (50) PARTITION BY HASH (id)")
    events.sql("CREATE TABLE events_4a PARTITION OF events_4 FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    events.sql("CREATE TABLE events_5 (doc jsonb, note text, kind text, id int NOT NULL, day int NOT NULL)")
    events.sql("ALTER TABLE events ATTACH PARTITION events_5 FOR VALUES FROM (50) TO (60)")
    events.sql("SET LOCAL session_replication_role = replica; INSERT INTO events VALUES (40, 4), (50, 5)")
    events.sql("INSERT INTO events_4a VALUES (41, 4); INSERT INTO events_5 (day, id) VALUES (51, 5)")
    assert written(events) == inserted((4, 40), (4, 41), (5, 50), (5, 51))
    assert is_installed(events, WHOLE)
    assert plan(events).captures == ()


CREATE_N = "CREATE TABLE n PARTITION OF events FOR VALUES FROM (40) TO (50)"
AWAY = "ALTER TABLE events DETACH PARTITION {0}; UPDATE {0} SET kind = 'x'; ALTER TABLE events ATTACH PARTITION {0} FOR"
CHANGED_SETS = (
    """
    CREATE TABLE n (LIKE events_1); INSERT INTO n VALUES (45, 9);
    ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)
    """,
    """
    CREATE TABLE n (LIKE events_1); INSERT INTO n VALUES (35, 1009);
    ALTER TABLE events_3 ATTACH PARTITION n FOR VALUES FROM (1000) TO (2000); TRUNCATE n
    """,
    "INSERT INTO events_3b VALUES (31, 500); ALTER TABLE events_3 DETACH PARTITION events_3b; DELETE FROM events_3b",
    "ALTER TABLE events DETACH PARTITION events_1; DELETE FROM events_1; VACUUM events_1",
    """
    ALTER TABLE events DETACH PARTITION events_1; DELETE FROM events_1; VACUUM events_1;
    ALTER TABLE events ATTACH PARTITION events_1 FOR VALUES FROM (10) TO (20)
    """,
    """
    ALTER TABLE events_1 DISABLE TRIGGER USER; DELETE FROM events_1; VACUUM events_1;
    ALTER TABLE events_1 ENABLE TRIGGER USER
    """,
    "DROP TABLE events_2",
    f"{AWAY.format('events_2')} VALUES FROM (20) TO (30)",
    f"{AWAY.format('events_3')} VALUES FROM (30) TO (40)",
    "TRUNCATE events_1",
    f"{CREATE_N}; INSERT INTO n (id, day) VALUES (9, 45); TRUNCATE n; INSERT INTO n (id, day) VALUES (8, 45)",
    f"""
    {CREATE_N}; INSERT INTO n (id, day) VALUES (9, 45), (8, 45);
    ALTER TABLE n DISABLE TRIGGER USER; DELETE FROM n WHERE id = 9; ALTER TABLE n ENABLE TRIGGER USER
    """,
    f"""
    {CREATE_N}; INSERT INTO n (id, day) VALUES (9, 45), (8, 45);
    ALTER TABLE events DETACH PARTITION n; DELETE FROM n WHERE id = 9;
    ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)
    """,
)


def test_partitions_that_come_or_go_with_their_rows_are_noted_once(events: World) -> None:
    """What no trigger sees becomes a change of the whole table at the next look, and only then."""
    for statements in CHANGED_SETS:
        make_anew(events, EVENTS)
        execute_each(events, statements)
        forget(events)
        looks = [(note(events), written(events)) for _ in range(2)]
        assert looks == [([WHOLE], [NOTED]), ([], [])], statements


UNCHANGED_SETS = (
    "CREATE TABLE n PARTITION OF events FOR VALUES FROM (40) TO (50)",
    "CREATE TABLE n (LIKE events_1); ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50); ANALYZE n",
    "CREATE TABLE n PARTITION OF events_3 FOR VALUES FROM (1000) TO (2000)",
    "ALTER TABLE events_3 DETACH PARTITION events_3b",
)


def test_an_empty_partition_comes_and_goes_without_a_change(events: World) -> None:
    """No document shows a row of it: nothing is written again. Rows that it gets later are changes as usual."""
    for statements in UNCHANGED_SETS:
        make_anew(events, EVENTS)
        events.sql(statements)
        assert (note(events), written(events)) == ([], []), statements
        events.sql("INSERT INTO events VALUES (12, 7)")
        assert written(events) == inserted((7, 12)), statements


NEW_SETS = (
    """
    CREATE TABLE n (note text, kind text, gone int, id int NOT NULL, doc jsonb, day int NOT NULL);
    ALTER TABLE n DROP gone; INSERT INTO n (id, day) VALUES (1, 45), (2, 45), (3, 45);
    ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50);
    COMMIT; UPDATE n SET id = 4 WHERE id = 3
    """,
    f"""
    {CREATE_N}; ALTER TABLE n DISABLE TRIGGER USER; INSERT INTO n (id, day) VALUES (1, 41), (2, 42);
    DO $$ BEGIN EXECUTE (SELECT string_agg(format('ALTER TABLE n ENABLE ALWAYS TRIGGER %I', tgname), ';')
                         FROM pg_trigger WHERE tgrelid = 'n'::regclass); END $$
    """,
    f"{CREATE_N}; COMMIT; INSERT INTO events (id, day) VALUES (1, 41)",
    """
    CREATE TABLE n PARTITION OF events_3 FOR VALUES FROM (1000) TO (2000) PARTITION BY RANGE (id);
    CREATE TABLE n_1 PARTITION OF n DEFAULT; INSERT INTO events (id, day) VALUES (1001, 30), (1002, 31);
    COMMIT; DELETE FROM events WHERE id = 1001; COMMIT; VACUUM (FREEZE) pg_attribute, pg_trigger
    """,
)


@pytest.mark.parametrize("statements", NEW_SETS)
def test_of_a_partition_that_one_transaction_created_and_attached_only_the_rows_are_changes(
    events: World, statements: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents of all other rows are left. If the rows are too many or cannot be read, all is written again."""
    [(files,)] = events.sql("SELECT files FROM syncer.capture")
    with psycopg.connect(events.dsn, autocommit=True) as application:
        for transaction in statements.split("COMMIT;"):
            application.execute(transaction.encode())
    rows = events.sql("SELECT id::text, day::text FROM n")
    assert [note(events), note(events)] == [[], []]
    changes = written(events)
    assert NOTED not in changes
    assert {*rows} <= {(image["id"], image["day"]) for *_, image in changes if image}
    for rows_max, statement in ((0, "SELECT"), (len(rows), "ALTER TABLE events RENAME id TO ident")):
        monkeypatch.setattr(capture_install, "ROWS_MAX", rows_max)
        events.sql("UPDATE syncer.capture SET files = %s", files)
        events.sql(statement)
        assert (note(events), written(events)) == ([WHOLE], [NOTED])


UNREAD = (
    "ALTER TABLE things ADD token uuid DEFAULT gen_random_uuid()",
    "ALTER TABLE things ADD twice int GENERATED ALWAYS AS (views * 2) STORED",
    "ALTER TABLE things ADD since date DEFAULT '2026-01-01'; ALTER TABLE things ALTER views TYPE bigint",
    "ALTER TABLE things ALTER note TYPE int USING length(note), ADD c float DEFAULT random(), DROP views",
    "VACUUM FULL things",
    "CLUSTER things USING things_pkey",
)
READ = (
    "ALTER TABLE things ALTER name TYPE text USING upper(name)",
    "ALTER TABLE things ADD token uuid DEFAULT gen_random_uuid(), ALTER place TYPE int USING 6",
    "ALTER TABLE things DISABLE TRIGGER USER; TRUNCATE things; ALTER TABLE things ENABLE TRIGGER USER",
)


def test_a_rewritten_table_is_noted_if_a_column_that_documents_read_may_differ(table_world: World) -> None:
    """A new column, another type of a column that none reads, and a new file with the same rows are no change."""
    for statements in (*UNREAD, *READ):
        make_anew(table_world, f"{ORDINARY}; INSERT INTO things VALUES (1, 5, 'name', 'note', 0)")
        table_world.sql("ALTER TABLE things ALTER name SET STATISTICS 7, ALTER place SET DEFAULT 1")
        assert note(table_world) == []
        execute_each(table_world, statements)
        looks = [note(table_world), note(table_world)]
        assert looks == ([[RELATION], []] if statements in READ else [[], []]), statements
        assert written(table_world) == ([(RELATION, "N", None, None)] if statements in READ else []), statements


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
    assert written(events) == [NOTED]


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
        assert [table for tables in threads.map(look, [events] * 4) for table in tables] == [WHOLE]
    assert written(events) == [NOTED]


RESTORED = {
    "an ordinary table": f"{ORDINARY}; INSERT INTO things VALUES (1, 5, 'name')",
    "a partitioned table": f"{PARTITIONED}; INSERT INTO things VALUES (1, 5, 'name')",
    "an empty table": ORDINARY,
}


@pytest.mark.parametrize("tables", RESTORED.values(), ids=RESTORED)
def test_a_restored_dump_has_its_tables_noted_once(empty_world: World, tables: str) -> None:
    """A new catalogue does not tell what happened to a table before, such as writes while triggers were disabled."""
    capture_only(empty_world, tables, SELECT)
    assert note(empty_world) == []
    execute_each(
        empty_world,
        "ALTER TABLE things DISABLE TRIGGER USER; UPDATE things SET name = 'unseen'; "
        "ALTER TABLE things ENABLE TRIGGER USER",
    )
    restore(empty_world, empty_world.dump())
    assert [note(empty_world), note(empty_world)] == [[RELATION], []]


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
    assert written(empty_world) == inserted((4, 4), (5, 5))
    assert is_installed(empty_world, WHOLE)
