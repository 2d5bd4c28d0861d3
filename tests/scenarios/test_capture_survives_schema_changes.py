"""An application's migration may come before ours: no write ever fails in our triggers, and no change is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from syncer.base.model import Image
from syncer.capture import install as capture_install, table_files
from tests.support.capture import Change, capture_only, define, forget, install, is_installed, plan, written
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
    "key": "ALTER TABLE things RENAME COLUMN id TO ident",
    "routing": "ALTER TABLE things RENAME COLUMN place TO spot",
    "both": "ALTER TABLE things RENAME COLUMN id TO ident; ALTER TABLE things RENAME COLUMN place TO spot",
    "dropped": "ALTER TABLE things DROP COLUMN place; ALTER TABLE things ADD COLUMN spot int",
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
        define(things, "thing", SELECT.replace("t.name", "t.title"))
        install(things)
        application.execute("UPDATE things SET views = 10")
        assert written(things) == []
        application.execute("UPDATE things SET title = 'third'")
        assert written(things) == [UPDATED]


def test_a_migration_in_the_writers_own_transaction(things: World) -> None:
    """DDL and writes in one transaction, to and fro."""
    with session(things) as application, application.transaction():
        application.execute("UPDATE things SET name = 'a'")
        application.execute("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'b'")
        application.execute("ALTER TABLE things RENAME COLUMN title TO name")
        application.execute("UPDATE things SET name = 'c'")
        application.execute("UPDATE things SET views = 7")
    assert written(things) == [UPDATED] * 3


def test_a_transaction_whose_snapshot_is_older_than_the_migration_goes_on(things: World) -> None:
    """REPEATABLE READ sees the catalogue as it was; the table is as it is. No write fails for that."""
    with psycopg.connect(things.dsn) as application:
        application.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        application.execute("SELECT 1")
        things.sql("ALTER TABLE things RENAME COLUMN name TO title")
        application.execute("UPDATE things SET title = 'x', views = 5")
    assert written(things) == [UPDATED]


def test_a_table_of_very_many_columns(empty_world: World) -> None:
    """More columns than a function takes arguments, named as words of ours, and each may go."""
    columns = [f"c{number}" for number in range(150)] + ["old", "new", "tg_op", "old_image", "untouched", "segment"]
    capture_only(
        empty_world,
        "CREATE TABLE things (id int PRIMARY KEY, {}); INSERT INTO things VALUES (1)".format(
            ", ".join(f'"{column}" int' for column in columns)
        ),
        "SELECT t.id AS _id, " + ", ".join(f't."{column}"' for column in columns) + " FROM things AS t",
    )
    forget(empty_world)
    update = [(RELATION, "U", {"id": "1"}, {"id": "1"})]
    with psycopg.connect(empty_world.dsn, autocommit=True) as application:
        for column in columns[149:]:
            for expected in (update, []):
                application.execute(f'UPDATE things SET "{column}" = 1')
                assert written(empty_world) == expected, column
            application.execute(f'ALTER TABLE things RENAME COLUMN "{column}" TO away')
            application.execute("UPDATE things SET away = 2")
            assert written(empty_world) == update, column
            application.execute(f'ALTER TABLE things RENAME COLUMN away TO "{column}"')


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
    assert written(things) == [UPDATED]
    assert not is_installed(things, RELATION)
    install(things)
    assert is_installed(things, RELATION)
    things.sql("UPDATE old_things SET name = 'unheard'; INSERT INTO things VALUES (3, 5, 'n', 'm', 0)")
    assert written(things) == [(RELATION, "I", None, image(3))]


def test_capture_survives_dump_and_restore(things: World) -> None:
    """A database that was dumped and restored captures as before, and its partitions are looked at once."""
    make_anew(things, PARTITIONED)
    bin_folder = things.sandbox.postgres.bin_folder

    def run(program: str, *options: str, given: bytes | None = None) -> bytes:
        command = [str(bin_folder / program), things.dsn, *options]
        return subprocess.run(command, input=given, check=True, capture_output=True, timeout=DEADLINE_SECONDS).stdout

    dump = run("pg_dump").replace(b"CREATE SCHEMA public;", b"")
    things.sql("DROP SCHEMA public, syncer, elsewhere CASCADE; CREATE SCHEMA public")
    run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", given=dump)
    assert is_installed(things, RELATION)
    assert plan(things).captures == ()
    with things.connect() as connection:
        assert table_files.note(connection) == [RELATION]
    forget(things)
    things.sql("UPDATE things SET name = 'z'; UPDATE things SET views = 8")
    assert written(things) == [UPDATED]
    things.sql("ALTER TABLE things RENAME COLUMN name TO title")
    things.sql("UPDATE things SET views = 9")
    assert written(things) == [UPDATED]
