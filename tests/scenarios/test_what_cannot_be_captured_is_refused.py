"""A relation whose rows can change past our triggers, or cannot be told apart, is refused with what to do."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

from syncer.base.errors import DefinitionError
from syncer.capture import eligibility
from syncer.documents import analyze, definition
from syncer.recovery.schema_watch import Watch
from tests.support.capture import capture_only, define, plan, written
from tests.support.world import World

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
"""
REFUSED = {
    "parent": ("a table that others inherit from", "ALTER TABLE public.child NO INHERIT public.parent"),
    "fast": ("an unlogged table", "ALTER TABLE public.fast SET LOGGED"),
    "summary": ("a materialized view", "Select from the tables that it is made of"),
    "numbers": ("a sequence", "Select from the table that it numbers"),
    "away": ("a foreign table", "Copy them into a table"),
    "mixed": ("its partition public.mixed_away is a foreign table", "Copy them into a table"),
    "partly": ("its partition public.partly_fast is an unlogged table", "ALTER TABLE public.partly_fast SET LOGGED"),
    "syncer.outbox": ("syncer's own", "Select from tables of yours"),
    "information_schema.sql_features": ("a system catalogue", "Keep what you need of it in a table"),
    # A row whose key is -0 and then 0 keeps its key, as Postgres has it, and would be two documents.
    "floats": ("_id is of type real, of which 0 and -0 are equal", ""),
}
IDS = {"numbers": "last_value", "information_schema.sql_features": "feature_id"}


def test_each_is_refused_with_what_to_do(empty_world: World) -> None:
    """The reason and the way out, each in its own words."""
    shutil.rmtree(empty_world.document_folder)
    empty_world.sql(TABLES)
    empty_world.migrate()
    for relation, (reason, hint) in REFUSED.items():
        define(empty_world, "thing", f"SELECT t.{IDS.get(relation, 'id')} AS _id FROM {relation} AS t")
        with pytest.raises(DefinitionError, match=reason) as refused:
            plan(empty_world)
        assert hint in refused.value.hint, relation
    define(empty_world, "thing", "SELECT t.id AS _id FROM passing AS t")
    with empty_world.connect() as connection:
        connection.execute("CREATE TEMPORARY TABLE passing (id int PRIMARY KEY)")
        with pytest.raises(DefinitionError, match="a temporary table"):
            analyze.analyse(connection, definition.load_all(empty_world.config)[0])


KEYS = {
    "primary_key_before_others": ("id int PRIMARY KEY, a int NOT NULL UNIQUE", "", ("id",)),
    "a_deferrable_primary_key": ("id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED", "", ("id",)),
    "included_columns_are_no_key": ("id int, a int, PRIMARY KEY (id) INCLUDE (a)", "", ("id",)),
    "order_of_the_key": ("a int, b int, PRIMARY KEY (b, a)", "", ("b", "a")),
    "fewest_columns": ("a int NOT NULL, b int NOT NULL, c int NOT NULL UNIQUE, UNIQUE (a, b)", "", ("c",)),
    "replica_identity": (
        "a int NOT NULL, b int NOT NULL, c int NOT NULL UNIQUE, CONSTRAINT ab UNIQUE (a, b)",
        "ALTER TABLE things REPLICA IDENTITY USING INDEX ab",
        ("a", "b"),
    ),
    "unique_with_included": ("a int NOT NULL, b int", "CREATE UNIQUE INDEX ON things (a) INCLUDE (b)", ("a",)),
    # And what is none.
    "partly_nullable": ("a int NOT NULL, b int, UNIQUE (a, b)", "", None),
    "partial": ("a int NOT NULL", "CREATE UNIQUE INDEX ON things (a) WHERE a > 0", None),
    "expression": ("a int NOT NULL, b int NOT NULL", "CREATE UNIQUE INDEX ON things (a, (b + 1))", None),
    "deferrable": ("a int NOT NULL UNIQUE DEFERRABLE", "", None),
    "not_unique": ("a int NOT NULL", "CREATE INDEX ON things (a)", None),
    "invalid": (
        "a int NOT NULL",
        "CREATE UNIQUE INDEX i ON things (a); UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'i'::regclass",
        None,
    ),
}


def test_a_unique_index_does_the_work_of_a_primary_key(empty_world: World) -> None:
    """The primary key, or the best of what tells rows apart as well; or a refusal that says what is missing."""
    with empty_world.connect() as connection:
        for name, (columns, then, key) in KEYS.items():
            empty_world.sql(f"DROP TABLE IF EXISTS things; CREATE TABLE things ({columns}); {then}")
            if key is not None:
                assert eligibility.primary_key(connection, "public.things") == key, name
                continue
            with pytest.raises(DefinitionError, match="has no primary key") as refused:
                eligibility.primary_key(connection, "public.things")
            assert "unique index" in refused.value.hint, name


def test_a_table_without_primary_key_is_captured_by_its_unique_index(empty_world: World) -> None:
    """Keys that change are captured there too, also once a key has become nullable."""
    tables = "CREATE TABLE things (a int NOT NULL UNIQUE, name text)"
    capture_only(empty_world, tables, "SELECT t.a AS _id, t.name FROM things AS t")
    empty_world.sql("INSERT INTO things VALUES (1, 'a'); ALTER TABLE things ALTER COLUMN a DROP NOT NULL")
    empty_world.sql("UPDATE things SET a = NULL; UPDATE things SET name = 'b'; UPDATE things SET a = 3")
    one, three, none = ({"a": value} for value in ("1", "3", None))
    images = ((one, none), (none, none), (none, three))
    changes = [("public.things", "I", None, one), *(("public.things", "U", *both) for both in images)]
    assert written(empty_world) == sorted(changes, key=repr)


def test_an_unlogged_partition_that_comes_later_suspends(empty_world: World) -> None:
    """A crash would empty it without a change: who reads the table suspends within one turn, with what to do."""
    shutil.rmtree(empty_world.document_folder)
    empty_world.sql("CREATE TABLE whole (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    empty_world.migrate()
    define(empty_world, "thing", "SELECT t.id AS _id, t.name FROM whole AS t")
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
