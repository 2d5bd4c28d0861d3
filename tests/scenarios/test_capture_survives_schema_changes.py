"""An application's migration may come before ours: no write ever fails in our triggers, and no change is lost."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from syncer.base.model import Image
from syncer.capture import install as capture_install, table_files, triggers
from tests.support.capture import Change, capture_only, define, forget, install, plan, written
from tests.support.world import DEADLINE_SECONDS, World

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


@pytest.fixture(params=[ORDINARY, PARTITIONED], ids=["ordinary", "partitioned"])
def things(request: pytest.FixtureRequest, empty_world: World) -> World:
    """A captured table with one row: id is its key, place routes, name is watched, note and views are not."""
    capture_only(empty_world, request.param, SELECT)
    empty_world.sql("INSERT INTO things VALUES (1, 5, 'name', 'note', 0)")
    assert written(empty_world) == [inserted(1)]
    return empty_world


def image(id_: int, place: int = 5) -> Image:
    """The image of a thing."""
    return {"id": str(id_), "place": str(place)}


def inserted(id_: int) -> Change:
    """What is left by a thing that is new."""
    return RELATION, "I", None, image(id_)


def updated(id_: int) -> Change:
    """What is left by a thing that changes."""
    return RELATION, "U", image(id_), image(id_)


@contextmanager
def session(world: World) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """An application that has written the table before, in every way, so that its plans are made."""
    with psycopg.connect(world.dsn, autocommit=True) as application:
        for turn in range(7):  # a plan is kept for good after five
            application.execute(f"INSERT INTO things VALUES ({turn + 100}, 5, 'a', 'b', 0)")
            application.execute(f"UPDATE things SET name = 'c', views = 1 WHERE id = {turn + 100}")
            application.execute(f"DELETE FROM things WHERE id = {turn + 100}")
        forget(world)
        yield application


# A column that is not in an image is missed by nobody until the next apply loads the documents


MIGRATIONS = {
    "watched_dropped": "ALTER TABLE things DROP COLUMN name",
    "watched_renamed": "ALTER TABLE things RENAME COLUMN name TO title",
    "watched_to_json": "ALTER TABLE things ALTER COLUMN name TYPE json USING to_json(name)",
    "watched_to_point": "ALTER TABLE things ALTER COLUMN name TYPE point USING '(0,0)'",
    "watched_to_domain": "CREATE DOMAIN short AS varchar(99) CHECK (value <> ''); "
    "ALTER TABLE things ALTER COLUMN name TYPE short",
    "watched_to_composite": "CREATE TYPE pair AS (a json, b text); ALTER TABLE things ALTER name TYPE pair USING NULL",
    "watched_replaced": "ALTER TABLE things DROP COLUMN name; ALTER TABLE things ADD COLUMN name box",
    "added": "ALTER TABLE things ADD COLUMN more json DEFAULT '\"\\u0000\"'",
    "unwatched_dropped": "ALTER TABLE things DROP COLUMN note",
    "default": "ALTER TABLE things ALTER COLUMN name SET DEFAULT 'x', ALTER COLUMN place SET NOT NULL",
    "generated": "ALTER TABLE things DROP COLUMN name; "
    "ALTER TABLE things ADD COLUMN name text GENERATED ALWAYS AS ('n' || views) STORED",
    "virtual": "ALTER TABLE things DROP COLUMN name; "
    "ALTER TABLE things ADD COLUMN name text GENERATED ALWAYS AS ('n' || views) VIRTUAL",
    "column_order": "ALTER TABLE things RENAME COLUMN name TO old; ALTER TABLE things ADD COLUMN name text; "
    "UPDATE things SET name = old; ALTER TABLE things DROP COLUMN old",
    "renamed": "ALTER TABLE things RENAME TO stuff",
    "moved": "CREATE SCHEMA elsewhere; ALTER TABLE things SET SCHEMA elsewhere",
    "named_like_our_words": "ALTER TABLE things RENAME COLUMN name TO last_value; ALTER TABLE things"
    ' ADD COLUMN "1" int, ADD COLUMN whole int, ADD COLUMN here int, ADD COLUMN n int, ADD COLUMN o int,'
    ' ADD COLUMN "new" int,'
    ' ADD COLUMN "old" int, ADD COLUMN segment int, ADD COLUMN tg_op int, ADD COLUMN relation int',
}


@pytest.mark.parametrize("migration", MIGRATIONS.values(), ids=MIGRATIONS.keys())
def test_writes_go_on_and_are_captured_after_a_migration(things: World, migration: str) -> None:
    """In a session that wrote before and in a new one; each changed row leaves its key and its place."""
    with session(things) as application:
        things.sql(migration)
        forget(things)
        with psycopg.connect(things.dsn, autocommit=True) as newcomer:
            for one, id_ in ((application, 7), (newcomer, 8)):
                one.execute("SET search_path = public, elsewhere")
                ((table,),) = one.execute("SELECT coalesce(to_regclass('stuff'), to_regclass('things'))::text")
                one.execute(f"INSERT INTO {table} (id, place) VALUES ({id_}, 5)")
                assert written(things) == [inserted(id_)]
                one.execute(f"UPDATE {table} SET place = 6, views = 3 WHERE id = {id_}")
                assert written(things) == [(RELATION, "U", image(id_), image(id_, 6))]
                one.execute(f"DELETE FROM {table} WHERE id = {id_}")
                assert written(things) == [(RELATION, "D", image(id_, 6), None)]
                one.execute(f"TRUNCATE {table}")
                assert (RELATION, "T", None, None) in written(things)


def test_a_routing_column_may_get_another_type(things: World) -> None:
    """A session that goes on may know nothing of a row until apply; no write fails, and no change is lost."""
    with session(things) as application:
        things.sql("ALTER TABLE things ALTER COLUMN place TYPE bigint")
        forget(things)
        things.sql("INSERT INTO things (id, place) VALUES (7, 5)")
        assert written(things) == [inserted(7)]
        application.execute("UPDATE things SET place = 6 WHERE id = 7")
        assert written(things) in ([(RELATION, "U", image(7), image(7, 6))], [(RELATION, "U", None, None)])
        install(things)
        application.execute("UPDATE things SET place = 5 WHERE id = 7")
        assert written(things) == [(RELATION, "U", image(7, 6), image(7))]


def test_where_a_watched_column_is_gone_every_update_is_a_change(things: World) -> None:
    """What the column has become cannot be told, so nothing is left out; after apply, what is not watched is again."""
    with session(things) as application:
        things.sql("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'other'")
        application.execute("UPDATE things SET views = 9")
        assert written(things) == [updated(1)] * 2
        define(things, "thing", SELECT.replace("t.name", "t.title"))
        install(things)
        application.execute("UPDATE things SET views = 10")
        assert written(things) == []
        application.execute("UPDATE things SET title = 'third'")
        assert written(things) == [updated(1)]


LOST = {
    "key": "ALTER TABLE things RENAME COLUMN id TO ident",
    "routing": "ALTER TABLE things RENAME COLUMN place TO spot",
    "both": "ALTER TABLE things RENAME COLUMN id TO ident; ALTER TABLE things RENAME COLUMN place TO spot",
}


@pytest.mark.parametrize("migration", LOST.values(), ids=LOST.keys())
def test_where_a_column_of_the_image_is_gone_a_change_names_no_row(things: World, migration: str) -> None:
    """Which documents the row belongs to cannot be told, so the change touches all, until apply."""
    with session(things) as application:
        things.sql(migration)
        application.execute("UPDATE things SET views = 2")
        application.execute("INSERT INTO things VALUES (2, 6, 'n', 'm', 0)")
        application.execute("DELETE FROM things")
        changes = written(things)
    assert {operation for _, operation, _, _ in changes} >= {"I", "D"}
    assert all((old, new) == (None, None) for _, _, old, new in changes)


def test_a_dropped_key_fails_no_write(things: World) -> None:
    """A table that has lost its primary key column is written on, and each row leaves something."""
    with session(things) as application:
        things.sql("ALTER TABLE things DROP COLUMN place, ALTER COLUMN id DROP IDENTITY IF EXISTS")
        if things.sql("SELECT relkind = 'r' FROM pg_class WHERE oid = 'things'::regclass") == [(True,)]:
            things.sql("ALTER TABLE things DROP COLUMN id")
        application.execute("UPDATE things SET views = 2, name = 'x'")
        application.execute("DELETE FROM things")
    changes = written(things)
    assert changes
    assert all((old, new) == (None, None) for _, _, old, new in changes)


@pytest.mark.parametrize("type_", ["json", "point", "text[]", "float8"])
def test_a_key_may_become_anything(empty_world: World, type_: str) -> None:
    """Also a type without equality, or without an order."""
    capture_only(empty_world, ORDINARY, SELECT)
    empty_world.sql("INSERT INTO things VALUES (1, 5, 'name', 'note', 0), (2, 5, 'name', 'note', 0)")
    with session(empty_world) as application:
        values = {"point": "'(1,2)'", "text[]": "ARRAY[id]"}
        using = values.get(type_, "id::text::" + type_)
        empty_world.sql(f"ALTER TABLE things DROP CONSTRAINT things_pkey, ALTER COLUMN id TYPE {type_} USING {using}")
        application.execute("UPDATE things SET name = 'other'")
        changes = written(empty_world)
    assert len(changes) >= 2
    assert {operation for _, operation, _, _ in changes} == {"U"}


def test_a_migration_in_the_writers_own_transaction(things: World) -> None:
    """DDL and writes in one transaction, to and fro."""
    with session(things) as application, application.transaction():
        application.execute("UPDATE things SET name = 'a'")
        application.execute("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'b'")
        application.execute("ALTER TABLE things RENAME COLUMN title TO name")
        application.execute("UPDATE things SET name = 'c'")
        application.execute("UPDATE things SET views = 7")
    assert written(things) == [updated(1)] * 3


def test_a_transaction_whose_snapshot_is_older_than_the_migration_goes_on(things: World) -> None:
    """REPEATABLE READ sees the catalogue as it was; the table is as it is. No write fails for that."""
    with psycopg.connect(things.dsn) as application:
        application.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        application.execute("SELECT 1")
        things.sql("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'x', views = 5")
    assert written(things) == [updated(1)]


def test_every_sequence_of_migrations_leaves_the_table_writable(things: World) -> None:
    """Columns go and come back in any order, in one session."""
    with session(things) as application:
        steps = [
            "ALTER TABLE things DROP COLUMN name",
            "ALTER TABLE things RENAME COLUMN place TO spot",
            "ALTER TABLE things ADD COLUMN extra int DEFAULT 3",
        ]
        for order in itertools.permutations(steps):
            with application.transaction(force_rollback=True):
                for step in order:
                    application.execute(step)
                    application.execute("UPDATE things SET views = views + 1")
                    application.execute("INSERT INTO things (id) VALUES (9)")
                    application.execute("DELETE FROM things WHERE id = 9")
        application.execute("UPDATE things SET views = views + 1")
        assert written(things) == []


OUR_WORDS = [
    "last_value", "log_cnt", "whole", "here", "image", "o", "n", "c", "s", "r", "gone", "1", "2", "new", "old", "tg_op",
    "new_rows", "old_rows", "relation", "operation", "segment", "found", "old_image", "new_row",
]  # fmt: skip


@pytest.mark.parametrize("partitioned", ["", "PARTITION BY RANGE (id)"])
def test_columns_may_be_called_as_our_own_words_and_go(empty_world: World, partitioned: str) -> None:
    """A captured column is found in its table, or not at all, whatever else has its name in our statements."""
    columns = ", ".join(f'"{one}" int DEFAULT 0' for one in OUR_WORDS)
    capture_only(
        empty_world,
        f"CREATE TABLE things (id int PRIMARY KEY, {columns}) {partitioned};"
        + ("CREATE TABLE things_1 PARTITION OF things DEFAULT;" if partitioned else "")
        + "INSERT INTO things VALUES (1)",
        "SELECT t.id AS _id, " + ", ".join(f't."{one}"' for one in OUR_WORDS) + " FROM things AS t",
    )
    update = [("public.things", "U", {"id": "1"}, {"id": "1"})]
    with psycopg.connect(empty_world.dsn, autocommit=True) as application:
        for one in OUR_WORDS:
            application.execute(f'UPDATE things SET "{one}" = 1')
            assert written(empty_world) == update, one
            application.execute(f'UPDATE things SET "{one}" = 1')
            assert written(empty_world) == [], one
            application.execute(f'ALTER TABLE things RENAME COLUMN "{one}" TO away')
            application.execute(
                "UPDATE things SET away = 2; INSERT INTO things VALUES (2); DELETE FROM things WHERE id = 2"
            )
            image = {"id": "2"}
            assert written(empty_world) == [
                ("public.things", "D", image, None),
                ("public.things", "I", None, image),
                *update,
            ], one
            application.execute(f'ALTER TABLE things RENAME COLUMN away TO "{one}"')


def test_a_table_that_is_renamed_is_captured_anew_under_its_name(things: World) -> None:
    """After apply the triggers are those of the new name, and none of the old name is left."""
    things.sql("ALTER TABLE things RENAME TO stuff")
    define(things, "thing", SELECT.replace("things", "stuff"))
    install(things)
    with things.connect() as connection:
        capture_install.remove(connection, RELATION)
    forget(things)
    things.sql("UPDATE stuff SET name = 'y'")
    assert written(things) == [("public.stuff", "U", image(1), image(1))]


def test_a_table_that_takes_the_place_of_another_is_captured(things: World) -> None:
    """Swapped tables: apply moves the triggers, and the old table writes nothing any more."""
    things.sql("ALTER TABLE things RENAME TO old_things; CREATE TABLE things (LIKE old_things INCLUDING INDEXES)")
    things.sql("UPDATE old_things SET name = 'still heard'")
    assert written(things) == [updated(1)]
    with things.connect() as connection:
        assert not capture_install.is_installed(connection, RELATION)
        install(things)
        assert capture_install.is_installed(connection, RELATION)
    things.sql("UPDATE old_things SET name = 'unheard'; INSERT INTO things VALUES (3, 5, 'n', 'm', 0)")
    assert written(things) == [inserted(3)]


def test_a_type_that_changes_makes_the_function_new(things: World) -> None:
    """A function depends on types (what is exact, which settings count): plan tells, and apply makes it anew once."""
    assert plan(things).captures == ()
    things.sql("ALTER TABLE things ALTER COLUMN name TYPE float8 USING 0, ALTER COLUMN place TYPE float8")
    (one,) = plan(things).captures
    with things.connect() as connection:
        assert not capture_install.is_current(connection, one)
        capture_install.install(connection, one)
        assert capture_install.is_current(connection, one)
    assert plan(things).captures == ()


def test_disabled_triggers_are_told(things: World) -> None:
    """ALTER TABLE … DISABLE TRIGGER loses changes, so it is seen."""
    with things.connect() as connection:
        for harm in ("USER", "ALL"):
            things.sql(f"ALTER TABLE things DISABLE TRIGGER {harm}")
            assert not capture_install.is_installed(connection, RELATION)
            install(things)
            assert capture_install.is_installed(connection, RELATION)


def test_capture_survives_dump_and_restore(things: World) -> None:
    """A database that was dumped and restored captures as before, and its partitions are looked at once."""
    bin_folder = things.sandbox.postgres.bin_folder
    dump = subprocess.run(
        [str(bin_folder / "pg_dump"), things.dsn], check=True, capture_output=True, timeout=DEADLINE_SECONDS
    ).stdout
    things.sql("DROP SCHEMA public, syncer CASCADE; CREATE SCHEMA public")
    psql = [str(bin_folder / "psql"), things.dsn, "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    subprocess.run(
        psql,
        input=dump.replace(b"CREATE SCHEMA public;", b""),
        check=True,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    with things.connect() as connection:
        assert capture_install.is_installed(connection, RELATION)
        assert plan(things).captures == ()
        ((files,),) = connection.execute("SELECT files FROM syncer.capture").fetchall()
        assert table_files.note(connection) == ([RELATION] if files else [])
    forget(things)
    things.sql("UPDATE things SET name = 'z'; UPDATE things SET views = 8")
    assert written(things) == [updated(1)]
    things.sql("ALTER TABLE things RENAME COLUMN name TO title")
    things.sql("UPDATE things SET views = 9")
    assert written(things) == [updated(1)]


def test_a_table_of_very_many_columns(empty_world: World) -> None:
    """More columns than a function takes arguments."""
    columns = [f"c{number}" for number in range(150)]
    for table, suffix in (("wide", ""), ("parted", "PARTITION BY RANGE (id)")):
        empty_world.sql(
            f"CREATE TABLE {table} (id int PRIMARY KEY, {', '.join(f'{one} int' for one in columns)}) {suffix}"
        )
    empty_world.sql("CREATE TABLE parted_1 PARTITION OF parted DEFAULT")
    empty_world.migrate()
    with empty_world.connect() as connection:
        for table in ("wide", "parted"):
            one = triggers.Capture(
                relation=f"public.{table}",
                watched=frozenset(columns),
                routing=frozenset(["id", *columns]),
                aggregate=f"public.{table}",
                aggregate_column="id",
            )
            capture_install.install(connection, one)
            empty_world.sql(f"INSERT INTO {table} (id, c149) VALUES (1, 2)")
            empty_world.sql(f"UPDATE {table} SET c149 = 3")
            empty_world.sql(f"UPDATE {table} SET c149 = 3")
            (_, _, _, new), (_, operation, _, newer) = written(empty_world)
            assert (new["c149"], operation, newer["c149"]) == ("2", "U", "3")
            assert len(json.dumps(new)) == len(json.dumps(newer))
