"""A document may read a partitioned table: whatever way its rows come, go and move, the outbox has it."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from typing import Any

import psycopg
import pytest

from syncer.base.model import Image
from syncer.capture import install as capture_install, table_files, triggers
from syncer.recovery.schema_watch import Watch
from tests.support.capture import Change, capture_only, define, forget, install, plan, written
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


TRUNCATED: Change = (RELATION, "T", None, None)


def note(world: World) -> list[str]:
    """Let the watcher look once."""
    with world.connect() as connection:
        return table_files.note(connection)


# Rows


@pytest.mark.parametrize(("table", "day"), LEAVES.items())
def test_rows_are_captured_whichever_table_they_are_written_through(events: World, table: str, day: int) -> None:
    """Through the parent, or straight into a partition of any level: the changes are the parent's."""
    events.sql(f"INSERT INTO {table} (day, id, kind, note) VALUES ({day}, 7, 'a', 'x')")
    assert written(events) == [inserted(7, day)]
    events.sql(f"UPDATE {table} SET kind = 'a', note = 'unwatched' WHERE id = 7")
    assert written(events) == []
    events.sql(f"UPDATE {table} SET id = 8 WHERE id = 7")
    assert written(events) == [(RELATION, "U", event(7, day), event(8, day))]
    with psycopg.connect(events.dsn) as one, one.cursor().copy(f"COPY {table} (day, id, kind) FROM STDIN") as copy:
        copy.write_row((day, 9, "a"))
    assert written(events) == [inserted(9, day)]
    events.sql(f"DELETE FROM {table} WHERE id IN (8, 9)")
    assert written(events) == [deleted(8, day), deleted(9, day)]


def test_an_update_of_a_watched_column_is_one_change(events: World) -> None:
    """An UPDATE within a partition leaves both images, in the parent's names."""
    for table in ("events", "events_1", "events_2"):
        events.sql(f"UPDATE {table} SET kind = kind || '{table}' WHERE day < 30")
    assert written(events) == sorted([updated(1, 10)] * 2 + [updated(2, 20)] * 2, key=repr)


def test_a_row_that_moves_to_another_partition_is_deleted_and_inserted(events: World) -> None:
    """A cross-partition UPDATE names the document under its old and its new key, also where the key stays."""
    events.sql("UPDATE events SET day = 21 WHERE id = 1")
    assert written(events) == [deleted(1, 10), inserted(1, 21)]
    events.sql("UPDATE events_3 SET id = 300")  # from 3a to 3b
    assert written(events) == [deleted(3, 30), inserted(300, 30)]


def test_merge_and_upsert_are_captured(events: World) -> None:
    """ON CONFLICT and MERGE over several partitions leave what they did to each row."""
    events.sql(
        "INSERT INTO events (day, id, kind) VALUES (10, 1, 'z'), (25, 5, 'z') "
        "ON CONFLICT (id, day) DO UPDATE SET kind = excluded.kind"
    )
    assert written(events) == [inserted(5, 25), updated(1, 10)]
    events.require_postgres(15, "MERGE")
    events.sql(
        "MERGE INTO events AS e USING (VALUES (1, 10), (2, 20), (6, 35)) AS v (i, d) ON e.id = v.i AND e.day = v.d "
        "WHEN MATCHED AND v.i = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET kind = 'm' "
        "WHEN NOT MATCHED THEN INSERT (day, id) VALUES (v.d, v.i)"
    )
    assert written(events) == [deleted(1, 10), inserted(6, 35), updated(2, 20)]


@pytest.mark.parametrize(
    ("before", "after"),
    [("1.0", "1.00"), ("NULL", "0"), ("0", "NULL")],
)
def test_values_are_compared_as_the_document_shows_them(empty_world: World, before: str, after: str) -> None:
    """Numbers that are equal and read differently are a change of a partitioned table too."""
    tables = f"""
        CREATE TABLE things (id int PRIMARY KEY, amount numeric, other int) PARTITION BY RANGE (id);
        CREATE TABLE things_1 PARTITION OF things FOR VALUES FROM (0) TO (9);
        INSERT INTO things VALUES (1, {before}, 1)
    """
    capture_only(empty_world, tables, "SELECT id AS _id, amount FROM things")
    update = [("public.things", "U", {"id": "1"}, {"id": "1"})]
    empty_world.sql(f"UPDATE things SET amount = {after}")
    assert written(empty_world) == update
    empty_world.sql(f"UPDATE things SET amount = {after}, other = other + 1")
    assert written(empty_world) == []


@pytest.mark.parametrize(
    ("type_", "before", "after"),
    [
        ("real", "'0'", "'-0'"),
        ("jsonb", "NULL", "'null'"),
        ("json", "'{\"a\":1}'", "'{\"a\": 1}'"),
        ("float8", "0.3", "0.1::float8 + 0.2::float8"),
    ],
)
def test_values_that_json_cannot_tell_apart_count_as_changed(
    empty_world: World, type_: str, before: str, after: str
) -> None:
    """What looks the same in JSON, or in a session that prints few digits, is still a change."""
    tables = f"""
        CREATE TABLE things (id int PRIMARY KEY, v {type_}) PARTITION BY RANGE (id);
        CREATE TABLE things_1 PARTITION OF things FOR VALUES FROM (0) TO (9);
        INSERT INTO things VALUES (1, {before})
    """
    capture_only(empty_world, tables, "SELECT id AS _id, v FROM things")
    empty_world.sql(f"SET LOCAL extra_float_digits = -10; UPDATE things SET v = ({after})::{type_}")
    assert written(empty_world) == [("public.things", "U", {"id": "1"}, {"id": "1"})]


def test_json_that_jsonb_does_not_take_fails_no_write(empty_world: World) -> None:
    r"""Beside a json value with \u0000, half a surrogate pair or a huge number a row is captured like any other."""
    tables = """
        CREATE TABLE things (id text PRIMARY KEY, doc json) PARTITION BY LIST (id);
        CREATE TABLE things_1 PARTITION OF things DEFAULT;
    """
    capture_only(empty_world, tables, "SELECT id AS _id, doc FROM things")
    key = r"a\u0000b"
    for doc in (r'"\u0000"', r'"\ud800"', r'{"a": ["\\\u0000\u0000\uD83D"]}'):
        empty_world.sql("INSERT INTO things VALUES (%s, %s)", key, doc)
        empty_world.sql("DELETE FROM things")
        assert written(empty_world) == [
            ("public.things", "D", {"id": key}, None),
            ("public.things", "I", None, {"id": key}),
        ]
    empty_world.sql("INSERT INTO things VALUES ('huge', '1e999999')")
    assert written(empty_world) == [("public.things", "I", None, {"id": "huge"})]


def test_images_are_the_same_as_those_of_an_ordinary_table(empty_world: World) -> None:
    """Every type has the same image, whether its table is partitioned or not."""
    columns = """(
        id int PRIMARY KEY, a bigint DEFAULT 9007199254740993, b numeric DEFAULT 1.00,
        c timestamptz DEFAULT 'infinity',
        d bytea DEFAULT '\\x00ff', e text DEFAULT E'\\x01"\\\\é☃', f float8 DEFAULT 0.1,
        g interval DEFAULT '-1 day -02:03',
        h daterange DEFAULT '[2020-01-31,)', i int[] DEFAULT '{1,NULL}', j jsonb DEFAULT '{"a": 1.0}', k uuid DEFAULT
        '00000000-0000-0000-0000-000000000001', l bool DEFAULT true, m char(3) DEFAULT 'x', n inet DEFAULT '::1')
    """
    rows = ", ".join(f"t.{one}" for one in "abcdefghijklmn")
    select = f"SELECT t.id AS _id, {rows} FROM {{0}} AS t"
    affects = f"SELECT c.id AS _id FROM %(rows)s AS c WHERE ({rows.replace('t.', 'c.')}) IS NOT NULL"
    empty_world.sql(f"CREATE TABLE plain {columns}; CREATE TABLE parted {columns} PARTITION BY RANGE (id)")
    empty_world.sql("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (9)")
    for table in ("plain", "parted"):
        define(empty_world, table, select.format(table), **{table: affects})
    shutil.rmtree(empty_world.document_folder)
    empty_world.migrate()
    install(empty_world)
    settings = (
        "SET LOCAL DateStyle = 'SQL, DMY'; SET LOCAL IntervalStyle = 'sql_standard'; SET LOCAL extra_float_digits = -5;"
    )
    for table in ("plain", "parted"):
        empty_world.sql(f"{settings} INSERT INTO {table} (id) VALUES (1)")
    images = {relation: new for relation, _, _, new in written(empty_world)}
    assert images["public.plain"] == images["public.parted"]
    assert len(images["public.plain"]) == 15
    assert empty_world.sql(
        "SELECT f, g, h FROM jsonb_populate_record(NULL::plain, %s::jsonb) INTERSECT SELECT f, g, h FROM plain",
        json.dumps(images["public.plain"]),
    )


# Partitions


def test_partitions_that_come_later_are_captured(events: World) -> None:
    """A partition that is created or attached after apply has the trigger, and it is always enabled."""
    events.sql("CREATE TABLE events_4 PARTITION OF events FOR VALUES FROM (40) TO (50) PARTITION BY HASH (id)")
    events.sql("CREATE TABLE events_4a PARTITION OF events_4 FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    events.sql("CREATE TABLE events_5 (doc jsonb, note text, kind text, id int NOT NULL, day int NOT NULL)")
    events.sql("ALTER TABLE events ATTACH PARTITION events_5 FOR VALUES FROM (50) TO (60)")
    assert written(events) == []
    events.sql("SET LOCAL session_replication_role = replica; INSERT INTO events VALUES (40, 4), (50, 5)")
    events.sql("INSERT INTO events_4a VALUES (41, 4); INSERT INTO events_5 (day, id) VALUES (51, 5)")
    assert written(events) == [inserted(4, 40), inserted(4, 41), inserted(5, 50), inserted(5, 51)]
    enabled = events.sql(
        "SELECT DISTINCT tgenabled::text FROM pg_trigger WHERE tgname = %s", triggers.row_trigger(RELATION)
    )
    assert enabled == [("A",)]
    with events.connect() as connection:
        assert capture_install.is_installed(connection, RELATION)
    assert plan(events).captures == ()


def test_truncate_is_captured_of_the_table_and_of_its_partitions(events: World) -> None:
    """TRUNCATE of the table is captured at once, and that of a partition at the next look at its files."""
    events.sql("TRUNCATE events")
    assert written(events) == [TRUNCATED]
    note(events)
    for table in ("events_3a", "events_3", "events_1"):
        forget(events)
        events.sql(f"TRUNCATE {table}")
        assert note(events) == [RELATION], table
        assert written(events) == [TRUNCATED], table


CHANGED_SETS = {
    "attached_with_rows": "CREATE TABLE n (LIKE events_1); INSERT INTO n VALUES (45, 9); "
    "ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)",
    "detached": "ALTER TABLE events DETACH PARTITION events_2",
    "dropped": "DROP TABLE events_2",
    "detached_below": "ALTER TABLE events_3 DETACH PARTITION events_3a",
    "attached_below": "CREATE TABLE n (LIKE events_1); "
    "ALTER TABLE events_3 ATTACH PARTITION n FOR VALUES FROM (1000) TO (2000)",
    "subtree_detached": "ALTER TABLE events DETACH PARTITION events_3",
    "away_for_a_moment": "ALTER TABLE events DETACH PARTITION events_2; UPDATE events_2 SET kind = 'unheard'; "
    "ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM (20) TO (30)",
    "subtree_away_for_a_moment": "ALTER TABLE events DETACH PARTITION events_3; UPDATE events_3 SET note = 'unheard'; "
    "ALTER TABLE events ATTACH PARTITION events_3 FOR VALUES FROM (30) TO (40)",
}


@pytest.mark.parametrize("change", CHANGED_SETS.values(), ids=CHANGED_SETS.keys())
def test_partitions_that_come_or_go_with_their_rows_are_noted_once(events: World, change: str) -> None:
    """What no trigger sees becomes a change of the whole table at the next look, and only then."""
    assert note(events) == []
    events.sql(change)
    forget(events)
    assert note(events) == [RELATION]
    assert written(events) == [TRUNCATED]
    assert note(events) == []
    assert written(events) == []


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
    """A transaction that attaches is not seen while it is open, does not hold the watcher up, and is not missed."""
    with psycopg.connect(events.dsn) as application, events.connect() as watcher:
        application.execute("CREATE TABLE n (LIKE events_1)")
        application.execute("ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)")
        application.execute("ALTER TABLE events DETACH PARTITION events_2")
        watcher.execute("SET lock_timeout = '2s'")
        assert table_files.note(watcher) == []
        assert capture_install.is_installed(watcher, RELATION)
        application.commit()
        assert table_files.note(watcher) == [RELATION]


def test_of_several_daemons_one_notes(events: World) -> None:
    """Watchers that look at the same moment write one change."""
    days = count(40, 10)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            day = next(days)
            events.sql(f"CREATE TABLE events_{day} PARTITION OF events FOR VALUES FROM ({day}) TO ({day + 10})")
            noted = [one for found in threads.map(note, [events] * 4) for one in found]
            assert noted == [RELATION]
            assert written(events) == [TRUNCATED]


def test_a_change_of_the_definition_forgets_no_partition(events: World) -> None:
    """An apply for another document does not take a partition for known that nobody has looked at yet."""
    events.sql("ALTER TABLE events DETACH PARTITION events_2")
    define(events, "other", "SELECT e.id || '-' || e.day AS _id, e.note FROM events AS e")
    install(events)
    assert note(events) == [RELATION]


@pytest.mark.parametrize("moment", ["before_the_triggers", "after_the_triggers"])
def test_a_partition_attached_while_triggers_are_made_is_noted(
    empty_world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """From the look at the partitions until it is remembered, nothing slips through, and rows are captured at once."""
    without_blocking = capture_install._without_blocking

    def attach() -> None:
        empty_world.sql("CREATE TABLE n (LIKE events_1); INSERT INTO n VALUES (40, 4)")
        empty_world.sql("ALTER TABLE events ATTACH PARTITION n FOR VALUES FROM (40) TO (50)")

    def beside(*arguments: Any) -> None:
        if moment == "before_the_triggers":
            attach()
        without_blocking(*arguments)
        if moment == "after_the_triggers":
            attach()

    monkeypatch.setattr(capture_install, "_without_blocking", beside)
    capture_only(empty_world, EVENTS, SELECT)
    forget(empty_world)
    assert note(empty_world) == [RELATION]
    empty_world.sql("INSERT INTO n (day, id) VALUES (41, 1)")
    assert written(empty_world) == [inserted(1, 41), TRUNCATED]


def test_the_watcher_needs_no_more_than_the_daemon_has(events: World) -> None:
    """A role that owns nothing, and may write the syncer schema, can note partitions."""
    role = f"watcher_{events.name}"
    events.sql(f"CREATE ROLE {role}")
    try:
        events.sql(
            f"GRANT USAGE ON SCHEMA syncer TO {role};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA syncer TO {role};"
            f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA syncer TO {role}"
        )
        events.sql("ALTER TABLE events DETACH PARTITION events_2")
        with events.connect() as connection:
            connection.execute(f"SET ROLE {role}")
            assert capture_install.is_installed(connection, RELATION)
            assert table_files.note(connection) == [RELATION]
    finally:
        events.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


# Triggers


@pytest.mark.parametrize(
    "harm",
    [
        "ALTER TABLE events_1 DISABLE TRIGGER USER",
        f"ALTER TABLE events_3a ENABLE TRIGGER {triggers.row_trigger(RELATION)}",
        f"DROP TRIGGER {triggers.truncate_trigger(RELATION)} ON events",
        f"DROP TRIGGER {triggers.row_trigger(RELATION)} ON events",
    ],
)
def test_apply_fixes_triggers_that_someone_has_meddled_with(events: World, harm: str) -> None:
    """A trigger that is disabled or gone, on whatever partition, is told and is whole again after apply."""
    events.sql(harm)
    with events.connect() as connection:
        assert not capture_install.is_installed(connection, RELATION)
        install(events)
        assert capture_install.is_installed(connection, RELATION)
    forget(events)
    events.sql("SET LOCAL session_replication_role = replica; INSERT INTO events_1 VALUES (11, 7); TRUNCATE events")
    assert written(events) == [inserted(7, 11), TRUNCATED]


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
    with empty_world.connect() as connection:
        assert not capture_install.is_installed(connection, RELATION)
    install(empty_world)
    forget(empty_world)
    empty_world.sql("INSERT INTO events VALUES (4, 4); INSERT INTO events_old VALUES (5, 5)")
    assert written(empty_world) == [inserted(4, 4), inserted(5, 5)]
    with empty_world.connect() as connection:
        assert capture_install.is_installed(connection, RELATION)


def test_a_table_captured_by_itself_can_be_attached_and_released(events: World) -> None:
    """Triggers that a table has brought along neither hinder ATTACH nor DETACH, nor fail its writes."""
    events.sql("CREATE TABLE own (LIKE events_1 INCLUDING INDEXES)")
    define(events, "other", "SELECT o.id || '-' || o.day AS _id, o.kind FROM own AS o")
    install(events)
    events.sql("ALTER TABLE events ATTACH PARTITION own FOR VALUES FROM (40) TO (50)")
    events.sql("INSERT INTO own VALUES (40, 4)")
    assert written(events) == [inserted(4, 40), ("public.own", "I", None, event(4, 40))]
    events.sql("ALTER TABLE events DETACH PARTITION own; INSERT INTO own VALUES (41, 4)")
    assert written(events) == [("public.own", "I", None, event(4, 41))]


def test_no_trigger_is_left_of_a_table_that_is_released(events: World) -> None:
    """Removing takes the triggers of all partitions with it."""
    with events.connect() as connection:
        capture_install.remove(connection, RELATION)
    assert events.sql("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'syncer%'") == []
    events.sql("INSERT INTO events VALUES (11, 7); TRUNCATE events")
    assert events.outbox() == []


def test_a_writer_of_a_partition_in_flight_is_waited_for(events: World) -> None:
    """A definition that reads more columns waits for who wrote a partition under the function before."""
    define(events, "thing", "SELECT e.id || '-' || e.day AS _id, e.kind, e.note FROM events AS e")
    told: list[str] = []
    (one,) = plan(events).captures

    def make() -> None:
        with events.connect() as connection:
            capture_install.install(connection, one, waiting=told.append)

    with ThreadPoolExecutor(1) as threads, psycopg.connect(events.dsn) as application:
        application.execute("UPDATE events_1 SET note = 'unheard'")
        installing = threads.submit(make)
        wait_until(lambda: bool(told) or installing.done(), what="it waits")
        assert not installing.done()
        application.commit()
        installing.result(timeout=DEADLINE_SECONDS)


def test_a_document_over_partitions_follows_what_is_attached(empty_world: World) -> None:
    """Through relay and worker: rows that come with a partition are found, and those that go with one are not."""
    world = empty_world
    (world.document_folder / "select.sql").write_text("SELECT e.id AS _id, e.kind AS title FROM events AS e")
    for file in (world.document_folder / "affects").glob("*.sql"):
        file.unlink()
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
