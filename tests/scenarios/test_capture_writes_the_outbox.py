"""Any value of any type is captured beside traffic; what can change past our triggers is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import psycopg
import pytest

from syncer.apply import activate
from syncer.base.errors import DefinitionError, SourceError, SyncerError
from syncer.base.model import Change, dump_images
from syncer.capture import install as capture_install
from syncer.documents import analyze, definition
from syncer.lineage import routes
from syncer.recovery.schema_watch import Watch
from tests.support import capture as support
from tests.support.capture import capture_only, forget, plan, triggers, written
from tests.support.world import BLOG_SCHEMA, World

UPDATED: support.Change = ("public.things", "U", {"id": "1"}, {"id": "1"})


VALUES = [
    ("text", r"""'quote '' " \ back'"""),
    ("text", r"E'\x01\t\n\r\x7f'"),
    ("text", "'☃ \U0001f600 é é'"),
    ("text", r"'\u0000'"),
    ("char(5)", "'ab'"),
    ("numeric", "1.0"),
    ("numeric", "12345678901234567890123456789.000000000000000000001"),
    ("float8", "0.1::float8 + 0.2::float8"),
    ("real", "16777217.123"),
    ("timestamptz", "'infinity'"),
    ("timestamptz", "'2020-02-29 23:59:59.999999+05:45'"),
    ("interval", "'1 mon -1 day 02:03'"),
    ("bytea", r"'\x00ff5c27'"),
    ("inet", "'::ffff:1.2.3.4/96'"),
    ("text[]", r"""ARRAY['a,b', '"', '\', NULL, 'NULL', '']"""),
    ("tstzrange[]", "ARRAY['[2020-03-04 12:00+03,)'::tstzrange]"),
    ("status[]", "'{\"so so\",sad}'"),
    ("pair", "ROW(1, 'x\"y')"),
    ("json", r"""'{"text": "\u0000\ud800", "number": 1e999999}'"""),
    ("jsonb", '\'{"a": [12345678901234567890, null, 1.50, "1.50", 1e400]}\''),
    ("point", "'(0,-0)'"),
    ("tstzmultirange", "'{[2020-03-04 12:00+03,)}'"),
    ("money", "'-1234.56'"),
]
TYPES = """
CREATE TYPE status AS ENUM ('sad', 'so so');
CREATE DOMAIN short AS text CHECK (length(value) < 9);
CREATE TYPE pair AS (n int, t text);
"""
ODD_SETTINGS = """
SET LOCAL DateStyle = 'SQL, DMY'; SET LOCAL IntervalStyle = 'sql_standard'; SET LOCAL extra_float_digits = -9;
SET LOCAL TimeZone = 'Asia/Kathmandu'; SET LOCAL bytea_output = 'escape'; SET LOCAL xmloption = document;
SET LOCAL quote_all_identifiers = on; SET LOCAL array_nulls = off; SET LOCAL standard_conforming_strings = off;
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
        [rows] = routes.changed_rows(connection, ("public.things", columns))
        rows = rows.replace(routes.ROWS_MARK, "$1::jsonb")
        connection.execute("SET search_path = public")  # where the types of the test are
        counted = connection.execute(
            f"SELECT count(*), {same} FROM {rows} AS c",
            (dump_images([image for change in changes for image in change.images]),),
        ).fetchone()
    assert counted is not None
    assert counted[0] == 4
    assert [value for value, is_same in zip(VALUES, counted[1:], strict=True) if not is_same] == []


# Of a value that Postgres stores apart, since it is long: its type, one value, and another.
WIDE = [
    ("text", "repeat(md5(random()::text), 60000)", "body || 'x'"),
    ("jsonb", "jsonb_build_object('a', repeat(md5(random()::text), 60000))", "body || '{\"b\": 1}'"),
    ("bytea", "convert_to(repeat(md5(random()::text), 60000), 'UTF8')", "body || '\\x00'"),
    ("int[]", "ARRAY(SELECT (random() * 1e9)::int FROM generate_series(1, 50000))", "body || 7"),
]


@pytest.mark.parametrize(("type_", "made", "changed"), WIDE)
def test_a_long_value_that_an_update_leaves_is_not_read(
    empty_world: World, type_: str, made: str, changed: str
) -> None:
    """Neither where nothing that is shown changes, nor where another column does; a change of the value is noticed."""
    empty_world.require_postgres(17, "a function that tells where a value is stored")
    capture_only(
        empty_world,
        f"CREATE TABLE things (id int PRIMARY KEY, name text, seen int, body {type_});"
        f"INSERT INTO things SELECT i, 'a', 0, {made} FROM generate_series(1, 3) AS i",
        "SELECT id AS _id, name, left(body::text, 9) AS body FROM things",
    )
    forget(empty_world)
    blocks = "SELECT toast_blks_read + toast_blks_hit FROM pg_statio_user_tables WHERE relname = 'things'"
    blocks_before = empty_world.sql(blocks)
    for statement in ("UPDATE things SET seen = seen + 1", "UPDATE things SET name = 'b' WHERE id = 1"):
        empty_world.sql(f"{statement}; SELECT pg_stat_force_next_flush()")
    assert empty_world.sql(blocks) == blocks_before
    assert written(empty_world) == [UPDATED]
    forget(empty_world)
    empty_world.sql(f"UPDATE things SET body = {changed} WHERE id = 1")
    assert written(empty_world) == [UPDATED]


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


GENERATED = "CREATE TABLE things (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) {})"
ANY = {"total": "SELECT t.id AS _id FROM things AS t, %(rows)s AS changed"}
# The tables, the SELECT, affects queries, what is written, and each change with its old and its new image.
KINDS: dict[str, tuple[str, str, dict[str, str], str, list[tuple[str, object, object]]]] = {
    "a generated column": (
        GENERATED.format("STORED"), "SELECT id AS _id, b FROM things", {},
        "INSERT INTO things VALUES (1, 1); UPDATE things SET a = 2",
        [("I", None, {"id": "1"}), ("U", {"id": "1"}, {"id": "1"})],
    ),
    "a virtual column, which has no value in a trigger": (
        GENERATED.format("VIRTUAL"), "SELECT id AS _id, b FROM things", {},
        "INSERT INTO things VALUES (1, 1); UPDATE things SET a = 2",
        [("I", None, {"id": "1"}), ("U", {"id": "1"}, {"id": "1"})],
    ),
    "no key: each of two equal rows has changes of its own, also where what leads to documents is null": (
        "CREATE TABLE things (a int, name text)", "SELECT a AS _id, name FROM things", {},
        "INSERT INTO things VALUES (1, 'a'), (1, 'a'); UPDATE things SET a = NULL; DELETE FROM things",
        [("I", None, {"a": "1"}), ("U", {"a": "1"}, {"a": None}), ("D", {"a": None}, None)] * 2,
    ),
    "no column leads to documents: the image is empty": (
        "CREATE TABLE things (id int PRIMARY KEY); CREATE TABLE total (n int)",
        "SELECT t.id AS _id, (SELECT sum(n) FROM total) AS n FROM things AS t", ANY,
        "INSERT INTO total VALUES (1); UPDATE total SET n = 2", [("I", None, {}), ("U", {}, {})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_any_kind_is_captured(empty_world: World, kind: str) -> None:
    """With its changes, and no more."""
    if "virtual" in kind:
        empty_world.require_postgres(18, "virtual columns")
    tables, select, affects, statements, expected = KINDS[kind]
    capture_only(empty_world, tables, select, **affects)
    empty_world.sql(statements)
    assert [change[1:] for change in written(empty_world)] == sorted(expected, key=repr)


# Beside traffic


@contextmanager
def open_transaction(world: World, statement: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A transaction of an application that has run this statement and stays open."""
    with psycopg.connect(world.dsn, application_name="long report") as application:
        application.execute(statement)
        yield application


@pytest.fixture
def thing_world(empty_world: World) -> World:
    """A table with one row, whose triggers a new definition widens."""
    tables = "CREATE TABLE things (id int PRIMARY KEY, name text); INSERT INTO things VALUES (1, 'first')"
    capture_only(empty_world, tables, "SELECT id AS _id FROM things")
    forget(empty_world)
    empty_world.define("thing", "SELECT id AS _id, name FROM things")
    return empty_world


def test_install_waits_for_a_long_transaction_and_others_do_not(thing_world: World) -> None:
    """While apply waits for a table, other writers are held up for a moment only; then everything is captured."""
    (capture,) = plan(thing_world).captures
    written_beside = 0

    def write_beside(holder: str) -> None:
        nonlocal written_beside
        assert "long report" in holder
        writer.execute("INSERT INTO things VALUES (%s, 'quick')", (written_beside + 2,))
        written_beside += 1
        if written_beside == 2:
            long.rollback()

    with (
        open_transaction(thing_world, "UPDATE things SET name = 'long'") as long,
        psycopg.connect(thing_world.dsn, autocommit=True, options="-c lock_timeout=10s") as writer,
        thing_world.connect() as connection,
    ):
        capture_install.install(connection, capture, waiting=write_beside)
    assert written_beside == 2
    forget(thing_world)
    thing_world.sql("UPDATE things SET name = 'captured' WHERE id = 1")
    assert written(thing_world) == [UPDATED]


def test_a_table_that_stays_in_use_is_an_error_that_names_the_user(thing_world: World) -> None:
    """When the lock is not to be had in time, the error says who holds the table, and nothing was changed."""
    (capture,) = plan(thing_world).captures
    triggers_before = triggers(thing_world, "things")
    message = r"held by process {} long report"
    with thing_world.connect() as connection:
        captured = capture_install.captured(connection)
        with open_transaction(thing_world, "UPDATE things SET name = 'long'") as long:
            with pytest.raises(SourceError, match=message.format(long.info.backend_pid)) as refused:
                capture_install.install(connection, capture, timeout_seconds=0)
            assert "Nothing was changed" in refused.value.hint
        with open_transaction(thing_world, "SELECT FROM things") as long:  # dropping a trigger waits even for readers
            expected = pytest.raises(SourceError, match=message.format(long.info.backend_pid))
            with expected:
                capture_install.remove(connection, "public.things", timeout_seconds=0)
        assert capture_install.captured(connection) == captured
    assert triggers(thing_world, "things") == triggers_before


# What a change of definitions must not lose


def test_an_apply_that_failed_half_way_and_was_taken_back_has_lost_nothing(world: World) -> None:
    """A narrower definition that could not be put active, and was undone, leaves no change unheard."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'Relationships', 'long')")
    world.sql("CREATE TABLE tags (id int PRIMARY KEY)")
    forget(world)
    select = world.document_folder / "select.sql"
    select_before = select.read_text()
    select.write_text("SELECT p.id AS _id, p.title, (SELECT max(t.id) FROM tags AS t) AS body FROM posts AS p")
    (world.document_folder / "affects").mkdir()
    affects = world.document_folder / "affects" / "tags.sql"
    affects.write_text("SELECT p.id AS _id FROM posts AS p, %(rows)s AS changed")
    decided = plan(world)
    open_ = open_transaction(world, "INSERT INTO tags VALUES (1)")
    with open_, world.connect() as connection, world.indices() as indices:
        with pytest.raises(SourceError, match=r"public\.tags is in use"):
            activate.carry_out(connection, indices, decided, timeout_seconds=0)
        world.sql("UPDATE posts SET body = 'written meanwhile' WHERE id = 2")
    select.write_text(select_before)
    affects.unlink()
    world.apply()
    assert ("public.posts", "U", {"id": "2"}, {"id": "2"}) in written(world)
    select.write_text("SELECT p.id AS _id, p.title FROM posts AS p")
    world.apply()
    forget(world)
    world.sql("UPDATE posts SET body = 'no document reads it' WHERE id = 2")
    assert written(world) == [], "once a narrower definition is active, no more is captured than it reads"


@contextmanager
def taken_alias(world: World, name: str) -> Iterator[None]:
    """The alias of the document is an index, or leads to an index of another program."""
    with world.elasticsearch() as client:
        client.indices.create(index=name, aliases={} if name == world.alias else {world.alias: {}})
        yield
        client.indices.delete(index=name)


FAILURES: dict[str, Callable[[World], AbstractContextManager[object]]] = {
    "an index has the alias's name": lambda world: taken_alias(world, world.alias),
    "the alias is another's": lambda world: taken_alias(world, f"{world.alias}-other"),
    "a table is in use": lambda world: open_transaction(world, "LOCK TABLE users IN ROW EXCLUSIVE MODE"),
}


@pytest.mark.parametrize("fails", FAILURES.values(), ids=FAILURES)
def test_an_apply_that_fails_leaves_no_trigger_that_nothing_reads(
    empty_world: World, fails: Callable[[World], AbstractContextManager[object]]
) -> None:
    """What they wrote would stay in the outbox, if no daemon ever runs. The next apply ends what it began."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text())
    world.migrate()
    decided, reported = plan(world), list[str]()
    with fails(world), world.connect() as connection, world.indices() as indices:
        with pytest.raises(SyncerError):
            activate.carry_out(connection, indices, decided, report=reported.append, timeout_seconds=0)
        assert "triggers of public.posts are in place" in reported
        assert capture_install.captured(connection) == {}
        assert triggers(world, "posts") == []
        assert "triggers of public.posts are removed again" in reported
    world.apply()
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', '')")
    assert len(written(world)) == 1


TABLES = """
CREATE TABLE parent (id int PRIMARY KEY, name text);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
CREATE UNLOGGED TABLE fast (id int PRIMARY KEY, name text);
CREATE MATERIALIZED VIEW summary AS SELECT 1 AS id, 'x' AS name;
CREATE SEQUENCE numbers;
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
CREATE FOREIGN TABLE away (id int, name text) SERVER elsewhere;
CREATE TABLE mixed (id int, name text) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE mixed_away PARTITION OF mixed FOR VALUES FROM (0) TO (9) SERVER elsewhere;
CREATE TABLE partly (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
CREATE UNLOGGED TABLE partly_fast PARTITION OF partly FOR VALUES FROM (0) TO (9);
CREATE TABLE floats (id real PRIMARY KEY, name text);
CREATE SCHEMA of_extension;
CREATE TABLE chunked (id int PRIMARY KEY, name text);
CREATE TABLE of_extension.chunk () INHERITS (chunked);
ALTER EXTENSION plpgsql ADD SCHEMA of_extension;
"""
REFUSED = {
    "parent": "a table that others inherit from",
    "chunked": "whose rows the extension plpgsql keeps in tables of its own",
    "fast": "an unlogged table",
    "summary": "a materialized view",
    "numbers": "a sequence",
    "away": "a foreign table",
    "mixed": "its partition public.mixed_away is a foreign table",
    "partly": "its partition public.partly_fast is an unlogged table",
    "syncer.outbox": "syncer's own",
    "information_schema.sql_features": "a system catalogue",
    # A row whose key is -0 and then 0 keeps its key, as Postgres has it, and would be two documents.
    "floats": "_id is of type real, of which 0 and -0 are equal",
}
IDS = {"numbers": "last_value", "information_schema.sql_features": "feature_id"}


def test_each_is_refused_with_what_to_do(empty_world: World) -> None:
    """With the reason, and a way out."""
    shutil.rmtree(empty_world.document_folder)
    empty_world.sql(TABLES)
    empty_world.migrate()
    for relation, reason in REFUSED.items():
        empty_world.define("thing", f"SELECT t.{IDS.get(relation, 'id')} AS _id FROM {relation} AS t")
        with pytest.raises(DefinitionError, match=reason) as refused:
            plan(empty_world)
        assert refused.value.hint, relation
    empty_world.define("thing", "SELECT t.id AS _id FROM passing AS t")
    with empty_world.connect() as connection:
        connection.execute("CREATE TEMPORARY TABLE passing (id int PRIMARY KEY)")
        with pytest.raises(DefinitionError, match="a temporary table"):
            analyze.analyse(connection, definition.load(definition.folders(empty_world.config)[0]))


def test_a_schema_may_be_named_like_a_kind_of_table(empty_world: World) -> None:
    """Only the kind of a table, its persistence, and a schema of the system refuse it, not how a schema is named."""
    with empty_world.connect() as connection:
        for schema in "mfStuvp":
            empty_world.sql(f'CREATE SCHEMA "{schema}"; CREATE TABLE "{schema}".people (id int PRIMARY KEY)')
            folder = empty_world.define("thing", f'SELECT t.id AS _id FROM "{schema}".people AS t')
            assert analyze.analyse(connection, definition.load(folder)), schema


def test_an_unlogged_partition_that_comes_later_suspends(empty_world: World) -> None:
    """A crash would empty it without a change: who reads the table suspends within one turn, with what to do."""
    shutil.rmtree(empty_world.document_folder)
    empty_world.sql("CREATE TABLE whole (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    empty_world.migrate()
    empty_world.define("thing", "SELECT t.id AS _id, t.name FROM whole AS t")
    empty_world.apply()
    with closing(Watch(connect=empty_world.connect)) as watch:
        empty_world.sql("CREATE TABLE logged PARTITION OF whole FOR VALUES FROM (0) TO (9)")
        assert watch.run_once().suspended == ()
        empty_world.sql("CREATE UNLOGGED TABLE late PARTITION OF whole FOR VALUES FROM (9) TO (20)")
        assert watch.run_once().suspended == ("thing",)
        [(reason,)] = empty_world.sql("SELECT suspended FROM syncer.document")
        assert "public.whole" in reason
        assert "SET LOGGED" in reason
        empty_world.sql("ALTER TABLE late SET LOGGED")
        empty_world.apply()
        assert watch.run_once().suspended == ()
