"""Any value, type and name is captured, and no change is lost while triggers are installed, widened and removed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import psycopg
import pytest

from syncer.apply import activate
from syncer.base.errors import SourceError
from syncer.base.model import Change
from syncer.capture import install as capture_install
from syncer.capture.triggers import function, row_trigger, truncate_trigger
from syncer.lineage import routes
from tests.support import capture as support
from tests.support.capture import capture_only, define, forget, install, plan, triggers, written
from tests.support.world import DEADLINE_SECONDS, World

UPDATED: support.Change = ("public.things", "U", {"id": "1"}, {"id": "1"})


@pytest.fixture
def blog(world: World) -> World:
    """The blog with two posts and two comments, and an empty outbox."""
    world.sql(
        """
        INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
        INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long'), (4, 1, 'Cool', 'short');
        INSERT INTO comments (id, post_id, name, comment) VALUES (1, 2, 'Alice White', 'More'), (2, 2, 'Bob', 'Less')
        """
    )
    forget(world)
    return world


# Values and names

VALUES = [
    ("text", r"""'quote '' " \ back'"""),
    ("text", r"E'\x01\t\n\r\x7f'"),
    ("text", "'☃ \U0001f600 é é'"),
    ("text", r"'\u0000'"),
    ("text", "''"),
    ("char(5)", "'ab'"),
    ("bigint", "9223372036854775807"),
    ("numeric", "1.0"),
    ("numeric", "12345678901234567890123456789.000000000000000000001"),
    ("numeric", "'NaN'"),
    ("float8", "0.1::float8 + 0.2::float8"),
    ("float8", "'-Infinity'"),
    ("float8", "5e-324"),
    ("real", "16777217.123"),
    ("timestamptz", "'infinity'"),
    ("timestamptz", "'2020-02-29 23:59:59.999999+05:45'"),
    ("timestamp", "'0044-03-15 BC'"),
    ("date", "'5874897-12-31'"),
    ("time", "'24:00'"),
    ("interval", "'-1 day -02:03:04.5'"),
    ("interval", "'1 mon -1 day 02:03'"),
    ("bytea", r"'\x00ff5c27'"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
    ("boolean", "false"),
    ("inet", "'::ffff:1.2.3.4/96'"),
    ("int[]", "'{{1},{NULL}}'"),
    ("text[]", r"""ARRAY['a,b', '"', '\', NULL, 'NULL', '']"""),
    ("float8[]", "ARRAY[0.1::float8 + 0.2::float8]"),
    ("daterange", "'[2020-01-31,)'"),
    ("tstzrange", "'[2020-01-31 12:00+03, infinity)'"),
    ("tstzrange[]", "ARRAY['[2020-03-04 12:00+03,)'::tstzrange]"),
    ("status", "'so so'"),
    ("status[]", "'{\"so so\",sad}'"),
    ("short", "'abc'"),
    ("pair", "ROW(1, 'x\"y')"),
    ("json", r"""'{"text": "\u0000\ud800", "number": 1e999999}'"""),
    ("jsonb", '\'{"a": [12345678901234567890, null, 1.50, "1.50", 1e400]}\''),
    ("point", "'(0,-0)'"),
    ("bit(3)", "B'101'"),
    ("oid", "4294967295"),
]
TYPES = """
CREATE TYPE status AS ENUM ('sad', 'so so');
CREATE DOMAIN short AS text CHECK (length(value) < 9);
CREATE TYPE pair AS (n int, t text);
"""
ODD_SETTINGS = """
SET LOCAL DateStyle = 'SQL, DMY'; SET LOCAL IntervalStyle = 'sql_standard'; SET LOCAL extra_float_digits = -9;
SET LOCAL TimeZone = 'Asia/Kathmandu'; SET LOCAL bytea_output = 'escape'; SET LOCAL xmloption = document;
"""
RECORDS = """
SELECT row_to_json(o)::text
FROM (SELECT id, extract(epoch FROM changed_at) AS changed_at, relation, operation, old, new FROM syncer.outbox) AS o
ORDER BY id
"""


def test_a_value_of_any_type_comes_back_from_its_image(empty_world: World) -> None:
    """An image read as syncer reads it is the value, byte by byte, whatever settings the writer's session had."""
    columns = [f"k{number}" for number in range(len(VALUES))]
    typed = ", ".join(f"{column} {type_}" for column, (type_, _) in zip(columns, VALUES, strict=True))
    capture_only(
        empty_world,
        f"{TYPES} CREATE TABLE things (id int PRIMARY KEY, name text, {typed})",
        "SELECT t.id AS _id, t.name FROM things AS t",
        things=f"SELECT c.id AS _id FROM %(rows)s AS c WHERE num_nulls({', '.join(f'c.{k}' for k in columns)}) = 0",
    )
    literals = ", ".join(literal for _, literal in VALUES)
    for write in (
        f"INSERT INTO things VALUES (1, 'a', {literals})",
        "UPDATE things SET name = 'b'",
        "DELETE FROM things",
    ):
        empty_world.sql(f"{ODD_SETTINGS} {write}")
    changes = [Change.parse(record.encode()) for (record,) in empty_world.sql(RECORDS)]
    assert [change.operation.value for change in changes] == ["I", "U", "D"]
    same = ", ".join(
        f"bool_and(ROW(c.{column}::{type_})::record *= ROW(({literal})::{type_})::record)"
        for column, (type_, literal) in zip(columns, VALUES, strict=True)
    )
    with empty_world.connect() as connection:
        rows = routes.changed_rows(connection, "public.things").replace(routes.ROWS_MARK, "$1::jsonb")
        connection.execute("SET search_path = public")  # where the types of the test are
        found = connection.execute(
            f"SELECT count(*), {same} FROM {rows} AS c", (Change.dump_images(changes),)
        ).fetchone()
    assert found is not None
    assert found[0] == 4
    assert [value for value, is_same in zip(VALUES, found[1:], strict=True) if not is_same] == []


def test_a_value_that_equals_but_reads_differently_is_a_change(empty_world: World) -> None:
    """Values are compared byte by byte, since types have no equality, or one that hides what a document shows."""
    tables = """
        CREATE TABLE things (
            id int PRIMARY KEY, amount numeric, doc json, docb jsonb, name text, price real, exact float8, spot point
        );
        INSERT INTO things VALUES (1, 1.0, '{"a": 1}', NULL, NULL, 0, 0.3, '(0,0)')
    """
    capture_only(empty_world, tables, "SELECT id AS _id, amount, doc, docb, name, price, exact, spot FROM things")
    forget(empty_world)
    for change in (
        *("amount = 1.00", "doc = '{\"a\":1}'", "doc = NULL", "docb = 'null'", "name = ''", "name = NULL"),
        *("price = '-0'", "exact = 0.1::float8 + 0.2::float8", "spot = '(0,-0)'"),
    ):
        empty_world.sql(f"SET LOCAL extra_float_digits = -10; UPDATE things SET {change}")
        assert written(empty_world) == [UPDATED], change
        empty_world.sql(f"UPDATE things SET {change}")
        assert written(empty_world) == [], change


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_a_generated_column_is_watched(empty_world: World, kind: str) -> None:
    """A virtual column has no value in a trigger; a change of its source is a change all the same."""
    if kind == "VIRTUAL":
        empty_world.require_postgres(18, "virtual columns")
    tables = f"""
        CREATE TABLE things (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) {kind});
        INSERT INTO things (id, a) VALUES (1, 1)
    """
    capture_only(empty_world, tables, "SELECT id AS _id, b FROM things")
    empty_world.sql("UPDATE things SET a = 2")
    assert written(empty_world) == [UPDATED]


def test_a_large_value_that_is_not_touched_is_not_read(empty_world: World) -> None:
    """An UPDATE beside a value of many megabytes that is not watched does not fetch it."""
    capture_only(
        empty_world,
        "CREATE TABLE things (id int PRIMARY KEY, name text, big text);"
        "ALTER TABLE things ALTER COLUMN big SET STORAGE EXTERNAL;"
        "INSERT INTO things VALUES (1, 'a', repeat('x', 50000000))",
        "SELECT id AS _id, name FROM things",
    )
    with psycopg.connect(empty_world.dsn) as application:
        application.execute("UPDATE things SET name = 'warm'")
        toast = "SELECT pg_stat_get_xact_blocks_fetched(reltoastrelid) FROM pg_class WHERE oid = 'things'::regclass"
        before = application.execute(toast).fetchall()
        application.execute("UPDATE things SET name = 'b'")
        assert application.execute(toast).fetchall() == before


def test_long_names_do_not_collide() -> None:
    """Two tables whose names agree in the first 60 letters, or but for a dot, have a function and triggers each."""
    tables = (f"public.{'a' * 60}_1", f"public.{'a' * 60}_2", "a.b_c", "a_b.c")
    for name in (lambda table: function(table).as_string(), row_trigger, truncate_trigger):
        assert len({name(table)[:63] for table in tables}) == len(tables)


def test_rows_that_are_written_through_another_table_are_captured(empty_world: World) -> None:
    """Statements on a parent fire the row triggers of a child, and of a partition that is read by itself."""
    tables = """
        CREATE TABLE parent (id int PRIMARY KEY, name text);
        CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
        CREATE TABLE whole (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
        CREATE TABLE leaf PARTITION OF whole FOR VALUES FROM (0) TO (9);
        CREATE TABLE other PARTITION OF whole FOR VALUES FROM (9) TO (20);
        INSERT INTO child VALUES (1, 'a'); INSERT INTO whole VALUES (1, 'a')
    """
    capture_only(empty_world, tables, "SELECT id AS _id, name FROM child")
    define(empty_world, "leaf", "SELECT id AS _id, name FROM leaf")
    install(empty_world)
    image = {"id": "1"}
    empty_world.sql("UPDATE parent SET name = 'b'; UPDATE whole SET name = 'b'")
    assert written(empty_world) == [(f"public.{table}", "U", image, image) for table in ("child", "leaf")]
    empty_world.sql("UPDATE whole SET id = 10; DELETE FROM parent")
    assert written(empty_world) == [(f"public.{table}", "D", image, None) for table in ("child", "leaf")]


# Beside traffic


@contextmanager
def open_transaction(world: World, statement: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A transaction of an application that has run this statement and stays open."""
    with psycopg.connect(world.dsn, application_name="long report") as application:
        application.execute(statement)
        yield application


@pytest.fixture
def things(empty_world: World) -> World:
    """A table with one row, whose triggers a new definition widens."""
    tables = "CREATE TABLE things (id int PRIMARY KEY, name text); INSERT INTO things VALUES (1, 'first')"
    capture_only(empty_world, tables, "SELECT id AS _id FROM things")
    forget(empty_world)
    define(empty_world, "thing", "SELECT id AS _id, name FROM things")
    return empty_world


def test_install_waits_for_a_long_transaction_and_others_do_not(things: World) -> None:
    """While apply waits for a table, other writers are held up for a moment only; then everything is captured."""
    (capture,) = plan(things).captures
    written_beside = 0

    def write_beside(holder: str) -> None:
        nonlocal written_beside
        assert "long report" in holder
        writer.execute("INSERT INTO things VALUES (%s, 'quick')", (written_beside + 2,))
        written_beside += 1
        if written_beside == 2:
            long.rollback()

    with (
        open_transaction(things, "UPDATE things SET name = 'long'") as long,
        psycopg.connect(things.dsn, autocommit=True, options="-c lock_timeout=10s") as writer,
        things.connect() as connection,
    ):
        capture_install.install(connection, capture, waiting=write_beside)
    assert written_beside == 2
    forget(things)
    things.sql("UPDATE things SET name = 'captured' WHERE id = 1")
    assert written(things) == [UPDATED]


def test_a_table_that_stays_in_use_is_an_error_that_names_the_user(things: World) -> None:
    """When the lock is not to be had in time, the error says who holds the table, and nothing was changed."""
    (capture,) = plan(things).captures
    before = triggers(things, "things")
    held = r"held by process {} long report"
    with things.connect() as connection:
        captured = capture_install.captured(connection)
        with open_transaction(things, "UPDATE things SET name = 'long'") as long:
            with pytest.raises(SourceError, match=held.format(long.info.backend_pid)) as refused:
                capture_install.install(connection, capture, timeout_seconds=0)
            assert "Nothing was changed" in refused.value.hint
        with open_transaction(things, "SELECT FROM things") as long:  # dropping a trigger waits even for readers
            expected = pytest.raises(SourceError, match=held.format(long.info.backend_pid))
            with expected:
                capture_install.remove(connection, "public.things", timeout_seconds=0)
        assert capture_install.captured(connection) == captured
    assert triggers(things, "things") == before


# What a change of definitions must not lose


def test_a_write_in_flight_is_not_lost_to_a_wider_definition(blog: World) -> None:
    """A transaction that wrote a column before it was watched, and commits after apply, is in the document."""
    for name, before, after in (
        ("select.sql", "p.body,", "p.body, p.views,"),
        ("index.json", '"body":', '"views": {"type": "long"}, "body":'),
    ):
        file = blog.document_folder / name
        file.write_text(file.read_text().replace(before, after))
    write = "UPDATE posts SET views = 7 WHERE id = 2"
    with ThreadPoolExecutor(1) as threads, open_transaction(blog, write) as application:
        applying = threads.submit(blog.apply)
        wait([applying], timeout=1)  # it may wait for the transaction, or not: the guarantee is the same
        application.commit()
        applying.result(timeout=DEADLINE_SECONDS)
    with blog.index() as index, blog.relay() as relay, blog.worker(index) as worker:
        blog.drain(relay, worker)


def test_an_apply_that_failed_half_way_and_was_taken_back_has_lost_nothing(blog: World) -> None:
    """A narrower definition that could not be put active, and was undone, leaves no change unheard."""
    select = blog.document_folder / "select.sql"
    before = select.read_text()
    blog.sql("CREATE TABLE tags (id int PRIMARY KEY)")
    select.write_text("SELECT p.id AS _id, p.title, (SELECT max(t.id) FROM tags AS t) AS body FROM posts AS p")
    (blog.document_folder / "affects").mkdir()
    affects = blog.document_folder / "affects" / "tags.sql"
    affects.write_text("SELECT p.id AS _id FROM posts AS p, %(rows)s AS changed")
    decided = plan(blog)
    with open_transaction(blog, "INSERT INTO tags VALUES (1)"), blog.connect() as connection, blog.indices() as indices:
        with pytest.raises(SourceError, match=r"public\.tags is in use"):
            activate.carry_out(connection, indices, decided, timeout_seconds=0)
        blog.sql("UPDATE posts SET body = 'written meanwhile' WHERE id = 2")
    select.write_text(before)
    affects.unlink()
    blog.apply()
    assert ("public.posts", "U", {"id": "2"}, {"id": "2"}) in written(blog)


def test_a_gap_without_triggers_is_loaded_though_apply_was_killed(blog: World) -> None:
    """What was written while triggers were gone is found by the next apply, when the first one died half way."""
    blog.sql(f"DROP TRIGGER {row_trigger('public.posts')} ON posts")
    blog.sql("UPDATE posts SET title = 'unheard'")
    decided = plan(blog)
    with blog.connect() as connection, blog.indices() as indices:
        activate.carry_out(connection, indices, decided)  # and nothing is loaded
    blog.apply()
    assert blog.differences() == []


def test_a_table_that_no_document_reads_any_more_is_released(blog: World) -> None:
    """After the SELECT has left a table, apply drops its triggers; another apply changes nothing."""
    (blog.document_folder / "select.sql").write_text("SELECT id AS _id, title FROM posts")
    assert plan(blog).released == ("public.comments", "public.users")
    blog.apply()
    forget(blog)
    assert triggers(blog, "comments") == triggers(blog, "users") == []
    blog.sql("UPDATE comments SET comment = 'unheard'; DELETE FROM comments; UPDATE posts SET title = 'heard'")
    assert {relation for relation, _, _, _ in written(blog)} == {"public.posts"}
    objects = "SELECT oid, tgname FROM pg_trigger UNION ALL SELECT oid, proname FROM pg_proc ORDER BY 1"
    before = blog.sql(objects), blog.sql("TABLE syncer.capture"), blog.sql("TABLE syncer.document")
    assert plan(blog).is_empty
    blog.apply()
    assert (blog.sql(objects), blog.sql("TABLE syncer.capture"), blog.sql("TABLE syncer.document")) == before
