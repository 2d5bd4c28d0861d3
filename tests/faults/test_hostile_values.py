"""Values that are large, deep or spelled oddly, and types with casts of their own: no write fails, no document is lost.

And roles that try to have the functions of the triggers work for them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from structlog.testing import capture_logs

from syncer.capture import triggers
from tests.support.capture import capture_only, define, forget, install, written
from tests.support.world import World

PAPERS = """
CREATE TABLE files (id int PRIMARY KEY, code text);
CREATE TABLE papers (id int PRIMARY KEY, doc {} NOT NULL);
INSERT INTO files SELECT g, g FROM generate_series(1, 3) AS g;
INSERT INTO papers VALUES (1, '{{"file": 1}}'), (2, '{{"file": 2}}');
"""
NUMBER_OF_PAPERS = """
SELECT f.id AS _id, (SELECT count(*) FROM papers AS p WHERE (p.doc ->> 'file')::int = f.id) AS title FROM files AS f
"""


def set_up(world: World, tables: str, select: str) -> None:
    """One document over these tables, loaded."""
    (world.document_folder / "select.sql").write_text(select)
    for file in (world.document_folder / "affects").glob("*.sql"):
        file.unlink()
    world.sql(tables)
    world.set_up()


def follow(world: World) -> None:
    """Handle all that was written, jobs included, and require that every document is as its SELECT says."""
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        world.drain(relay, worker)


DOCS = {
    "a number of 5,001 digits": """'{"file": 3, "n": 1e5000}'""",
    "nested a thousand levels": """('{"file": 3, "n": ' || repeat('[', 1000) || repeat(']', 1000) || '}')""",
    "more than Kafka takes": """('{"file": 3, "n": [' || repeat('1e130000, ', 9) || '0]}')""",
    "more than a gigabyte": """('{"file": 3, "n": [' || repeat('1e130000, ', 8400) || '0]}')""",
    "large": """('{"file": 3, "n": "' || repeat('x', 3000000) || '"}')""",
}


@pytest.mark.parametrize("type_", ["json", "jsonb"])
def test_whatever_an_application_commits_reaches_its_documents(empty_world: World, type_: str) -> None:
    """The documents of the row as it was and as it is are written, whether its image can be carried or not."""
    set_up(empty_world, PAPERS.format(type_), NUMBER_OF_PAPERS)
    with capture_logs() as said:
        for doc in DOCS.values():
            empty_world.sql(f"UPDATE papers SET doc = {doc}::{type_} WHERE id = 1")
            empty_world.sql("UPDATE papers SET doc = '{\"file\": 1}' WHERE id = 2")
            assert len(empty_world.differences()) > 1, doc
            follow(empty_world)
            empty_world.sql("UPDATE papers SET doc = format('{\"file\": %s}', id)::text::" + type_)
            assert len(empty_world.differences()) > 1, doc
            follow(empty_world)
    assert not [one for one in said if one["event"] == "topic.records_lost"]


KEPT = {
    "half a surrogate pair": r"""'{"title": "cut \ud83d", "a": [{"_source": {"b": "]}"}}]}'""",
    "the other half": r"""'{"\udc00": "\udc00\ud83d"}'""",
    "a number beyond all bounds": """'{"a": 1e999999, "b": -0, "c": 12345678901234567890123.10}'""",
    "nested deep": """('{"a":' || repeat('[', 900) || '"\\ud83d"' || repeat(']', 900) || '}')::json""",
    "escapes and control characters": r"""'{"a": "\u0001\b\f\/\"\\", "b\n": "\u2028"}'""",
}
"""Texts of type json that Elasticsearch keeps as they are, and parsers differ about."""


def test_whatever_elasticsearch_keeps_is_compared(empty_world: World) -> None:
    """Verify, explain and a rebuild read such documents, and notice one that differs."""
    world = empty_world
    (world.document_folder / "select.sql").write_text("SELECT p.id AS _id, p.doc FROM papers AS p")
    (world.document_folder / "index.json").write_text('{"mappings": {"enabled": false}}')
    world.sql("CREATE TABLE papers (id int PRIMARY KEY, doc json)")
    for number, doc in enumerate(KEPT.values()):
        world.sql(f"INSERT INTO papers VALUES ({number}, {doc})")
    world.set_up()
    for command in (("verify", "--json"), ("index", "rebuild", "blogpost"), ("explain", "blogpost", "0")):
        done = world.syncer(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    with world.elasticsearch() as client:
        client.index(index=world.alias, id="0", document={"doc": "other"}, refresh=True)
    done = world.syncer("verify", "--json")
    assert done.returncode == 1
    assert '"different"' in done.stdout


LARGE = {
    "a text of 270 MB": ("text", "repeat('x', 270000000)"),
    "an incompressible text": ("text", "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 100000) AS g)"),
    "a bytea that is doubled when printed": ("bytea", "decode(repeat('00', 40000), 'hex')"),
    "jsonb that prints more than a gigabyte": ("jsonb", "('[' || repeat('1e130000, ', 8400) || '0]')::jsonb"),
    "nothing but escapes": ("text", r"repeat(E'\x01', 65000)"),
}


@pytest.mark.parametrize(("type_", "value"), LARGE.values(), ids=LARGE.keys())
def test_no_value_is_too_large_to_be_written(empty_world: World, type_: str, value: str) -> None:
    """Its row is captured, without images unless they are small enough; what comes in between is captured in full."""
    tables = f"CREATE TABLE things (id int PRIMARY KEY, place {type_}, name text);"
    affects = "SELECT c.id AS _id FROM %(rows)s AS c WHERE c.place IS NOT NULL"
    shutil.rmtree(empty_world.document_folder)
    define(empty_world, "thing", "SELECT t.id AS _id, t.name FROM things AS t", things=affects)
    empty_world.sql(tables)
    empty_world.migrate()
    install(empty_world)
    empty_world.sql(f"INSERT INTO things VALUES (1, {value}, 'a')")
    empty_world.sql("UPDATE things SET name = 'b'")
    empty_world.sql("DELETE FROM things")
    changes = written(empty_world)
    assert sorted(operation for _, operation, _, _ in changes) == ["D", "I", "U"]
    images = [one for change in changes for one in change[2:] if one is not None]
    assert not images or (
        "escapes" not in value and all(len(one["place"]) < triggers.IMAGE_BYTES_MAX for one in images)
    )
    empty_world.sql("INSERT INTO things VALUES (2, NULL, 'a')")
    assert written(empty_world) == [("public.things", "I", None, {"id": "2", "place": None})]


CODES = """
CREATE TABLE things (id int PRIMARY KEY, code text);
CREATE TABLE links (id int PRIMARY KEY, data {});
INSERT INTO things VALUES (1, '1e3'), (2, '1000'), (3, '1.50');
"""
LINKED = """
SELECT t.id AS _id, (SELECT count(*) FROM links AS k WHERE k.data ->> 'code' = t.code) AS title FROM things AS t
"""


@pytest.mark.parametrize("type_", ["json", "jsonb"])
def test_a_number_in_json_leads_where_its_text_does(empty_world: World, type_: str) -> None:
    """1e3 in a json column is 1e3, and 1000 in a jsonb column; 1.50 is 1.50 in both."""
    set_up(empty_world, CODES.format(type_), LINKED)
    empty_world.sql("""INSERT INTO links VALUES (1, '{"code": 1e3}'), (2, '{"code": 1.50}')""")
    assert len(empty_world.differences()) > 1
    follow(empty_world)
    empty_world.sql("DELETE FROM links")
    assert len(empty_world.differences()) > 1
    follow(empty_world)


# Roles


@pytest.fixture
def lesser(empty_world: World) -> Iterator[psycopg.Connection]:
    """A session of a role that may create tables, types and casts of its own; a table of another role is captured."""
    capture_only(
        empty_world,
        "CREATE TABLE things (id int PRIMARY KEY, name text)",
        "SELECT t.id AS _id, t.name FROM things AS t",
    )
    role = sql.Identifier(f"{empty_world.name}_lesser")
    with psycopg.connect(empty_world.dsn, autocommit=True) as session:
        session.execute(sql.SQL("CREATE ROLE {0}; GRANT USAGE ON SCHEMA syncer TO {0}").format(role))
        session.execute(sql.SQL("CREATE SCHEMA mine AUTHORIZATION {}").format(role))
        session.execute(sql.SQL("SET ROLE {}; SET search_path = mine, public").format(role))
        try:
            yield session
        finally:
            session.execute("RESET ROLE")
            session.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(role))


EVENTS = ["INSERT OR UPDATE OR DELETE ON own FOR EACH ROW", "TRUNCATE ON own FOR EACH STATEMENT"]


@pytest.mark.parametrize("event", EVENTS)
def test_no_role_writes_the_outbox_from_a_table_of_its_own(
    empty_world: World, lesser: psycopg.Connection, event: str
) -> None:
    """The trigger is refused, also where the function was made by an earlier version, or granted to all since."""
    lesser.execute("CREATE TABLE own (id int, name text)")
    create = f'CREATE TRIGGER t AFTER {event} EXECUTE FUNCTION syncer."capture_public.things"()'
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        lesser.execute(create)
    empty_world.sql('GRANT EXECUTE ON FUNCTION syncer."capture_public.things"() TO PUBLIC')
    install(empty_world)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        lesser.execute(create)
    assert written(empty_world) == []


TYPES = {
    "enum": ("CREATE TYPE evil AS ENUM ('a')", "'a'"),
    "composite": ("CREATE TYPE evil AS (n int)", "ROW(1)"),
    "range": ("CREATE TYPE evil AS RANGE (subtype = int)", "'[1,2)'"),
    "array": ("CREATE TYPE evil AS ENUM ('a')", "ARRAY['a'::evil]"),
}


@pytest.mark.parametrize("kind", ["", "PARTITION BY RANGE (id)"], ids=["ordinary", "partitioned"])
@pytest.mark.parametrize(("type_", "value"), TYPES.values(), ids=TYPES.keys())
def test_no_cast_runs_with_the_rights_of_the_function(
    empty_world: World, lesser: psycopg.Connection, kind: str, type_: str, value: str
) -> None:
    """Casts to json, jsonb and text that fail, or do harm, are not run; nor is one to a type of ours to be had."""
    lesser.execute(type_)
    for target in ("json", "jsonb", "text"):
        body = "$$BEGIN RAISE EXCEPTION 'run as %', current_user; END$$"
        lesser.execute(f"CREATE FUNCTION to_{target}_evil(evil) RETURNS {target} LANGUAGE plpgsql AS {body}")
        lesser.execute(f"CREATE CAST (evil AS {target}) WITH FUNCTION to_{target}_evil(evil) AS IMPLICIT")
    column = "evil[]" if "ARRAY" in value else "evil"
    tables = f"CREATE TABLE mine.taken (id int PRIMARY KEY, spot mine.{column}, kind text) {kind};"
    if kind:
        tables += "CREATE TABLE mine.taken_1 PARTITION OF mine.taken DEFAULT;"
    empty_world.sql(tables)
    shutil.rmtree(empty_world.config / "documents" / "thing")
    affects = "SELECT c.id AS _id FROM %(rows)s AS c WHERE c.spot IS NULL OR c.kind IS NULL"
    select = "SELECT t.id AS _id, t.kind FROM mine.taken AS t"
    define(empty_world, "taken", select, **{"mine.taken": affects})
    install(empty_world)
    forget(empty_world)
    with psycopg.connect(empty_world.dsn, autocommit=True) as application:
        application.execute("SET search_path = mine, pg_catalog")
        for turn in range(2):
            application.execute(f"INSERT INTO taken VALUES (1, {value}, {'NULL' if turn else repr('b')})")
            application.execute(f"UPDATE taken SET kind = {value if turn else repr('c')}")
            application.execute("DELETE FROM taken")
            changes = written(empty_world)
            assert [operation for _, operation, _, _ in changes] == ["D", "I", "U"], turn
            # The function was made when this was a text.
            application.execute(f"ALTER TABLE taken ALTER COLUMN kind TYPE {column} USING {value}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        lesser.execute("CREATE FUNCTION to_gone(evil) RETURNS syncer.gone LANGUAGE sql AS 'SELECT NULL::syncer.gone'")


def test_an_owner_adds_partitions_as_ever(empty_world: World, lesser: psycopg.Connection) -> None:
    """The trigger of the partition is created by the owner of the table, who may do so."""
    lesser.execute("CREATE TABLE parted (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    shutil.rmtree(empty_world.config / "documents" / "thing")
    define(empty_world, "parted", "SELECT t.id AS _id, t.name FROM mine.parted AS t")
    install(empty_world)
    lesser.execute("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)")
    lesser.execute("INSERT INTO parted VALUES (1, 'a')")
    assert written(empty_world) == [("mine.parted", "I", None, {"id": "1"})]
