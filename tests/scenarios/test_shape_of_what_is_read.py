"""A shape tells every change that a document would show, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncer import dependency, shape
from syncer.definition import Definition
from tests.harness import World

TABLES = """
CREATE SCHEMA "Other";
CREATE TYPE "Other".mood AS ENUM ('sad', 'happy');
CREATE TYPE public.mood AS ENUM ('sad', 'happy');
CREATE DOMAIN public.short AS varchar(10);
CREATE TABLE "Other"."a.b" (
    id bigint PRIMARY KEY, "Name" varchar(20), amount numeric(10, 2),
    mood public.mood, moods public.mood[], short short,
    twice numeric GENERATED ALWAYS AS (amount * 2) STORED, unread text
);
CREATE FUNCTION public.half(numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT $1 / 2';
CREATE TABLE halves (id bigint PRIMARY KEY, amount numeric, half numeric GENERATED ALWAYS AS (half(amount)) STORED);
CREATE TABLE single (only_column int);
CREATE VIEW counted AS SELECT count(*) FROM single;
CREATE VIEW named AS SELECT id, "Name" AS name, half(amount) AS half FROM "Other"."a.b" WHERE mood = 'happy'
"""
NAMED = {
    '"Other"."a.b"': ["id", "Name", "amount", "mood", "moods", "short", "twice"],
    "public.halves": ["id", "half"],
    "public.named": ["name", "half"],
    "public.single": ["only_column"],
    "public.counted": [],
}

CHANGES = {
    'ALTER TABLE "Other"."a.b" RENAME COLUMN "Name" TO name': '"Other"."a.b".Name is gone',
    'ALTER TABLE "Other"."a.b" DROP COLUMN moods': '"Other"."a.b".moods is gone',
    "ALTER TABLE single RENAME COLUMN only_column TO another": "public.single.only_column is gone",
    "DROP VIEW counted": "public.counted is gone",
    'ALTER TABLE "Other"."a.b" RENAME TO c': '"Other"."a.b" is gone',
    'ALTER TABLE "Other"."a.b" SET SCHEMA public': '"Other"."a.b" is gone',
    'ALTER TABLE "Other"."a.b" ALTER short TYPE text': '"Other"."a.b".short was public.short and is text',
    'DROP VIEW named; ALTER TABLE "Other"."a.b" ALTER "Name" TYPE varchar(30)': "character varying(30)",
    'DROP VIEW named; ALTER TABLE "Other"."a.b" ALTER "Name" TYPE varchar(20) COLLATE "C"': 'COLLATE pg_catalog."C"',
    'ALTER TABLE "Other"."a.b" DROP twice; ALTER TABLE "Other"."a.b" ADD twice numeric '
    "GENERATED ALWAYS AS (amount * 3) STORED": "* (3)",
    'ALTER TABLE "Other"."a.b" ALTER twice DROP EXPRESSION': "twice was numeric GENERATED AS",
    'DROP VIEW named; ALTER TABLE "Other"."a.b" ALTER mood TYPE "Other".mood USING mood::text::"Other".mood': (
        'mood was public.mood and is "Other".mood'
    ),
    "ALTER TYPE public.mood RENAME VALUE 'sad' TO 'blue'": "mood no longer has the value sad",
    'CREATE OR REPLACE VIEW named AS SELECT id, "Name" AS name, half(amount) AS half FROM "Other"."a.b"': (
        "the view public.named is defined anew"
    ),
    "DROP VIEW named; CREATE TABLE named (id bigint, name varchar(20), half numeric)": (
        "public.named was a view and is a table"
    ),
}
HARMLESS = {
    'ALTER TABLE "Other"."a.b" ADD more text': "a column that is added",
    'ALTER TABLE "Other"."a.b" DROP unread': "a column that nobody reads",
    "ALTER TYPE public.mood ADD VALUE 'calm'": "a value that is added",
    'CREATE INDEX ON "Other"."a.b" (amount)': "an index",
    'ALTER TABLE "Other"."a.b" SET (fillfactor = 50); VACUUM FULL "Other"."a.b"': "another file",
}


@pytest.fixture
def tables(empty_world: World) -> World:
    """A world with tables of every kind of column that counts."""
    for statement in TABLES.split(";\n"):
        empty_world.sql(statement)
    return empty_world


def differences(world: World, statements: str) -> list[str]:
    """What these statements change in the shape."""
    with world.connect() as connection:
        before = shape.read(connection, NAMED)
        assert before.keys() == NAMED.keys()
        assert {one: sorted(found.columns) for one, found in before.items()} == {
            one: sorted(columns) for one, columns in NAMED.items()
        }
        for statement in statements.split("; "):
            connection.execute(statement)
        return shape.differences(before, shape.read_again(connection, before))


@pytest.mark.parametrize(("statements", "says"), CHANGES.items())
def test_what_a_document_would_show(tables: World, statements: str, says: str) -> None:
    """It is told, by name."""
    said = differences(tables, statements)
    assert any(says in one for one in said), said


@pytest.mark.parametrize("statements", HARMLESS.keys(), ids=HARMLESS.values())
def test_what_no_document_would_show(tables: World, statements: str) -> None:
    """It is no difference."""
    assert differences(tables, statements) == []


def test_no_search_path_makes_a_difference(tables: World) -> None:
    """Whoever applies and whoever watches see the same shape, and keep their own search_path."""
    tables.sql(
        """
        CREATE TYPE public.report AS (about text, mood public.mood);
        CREATE TABLE reports (id int PRIMARY KEY, report public.report);
        CREATE FUNCTION public.is_happy(public.mood) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN $1 = 'happy';
        """
    )
    with tables.connect() as connection:
        before = shape.read(
            connection, NAMED | {"public.reports": ["report"]}, functions=["public.is_happy(public.mood)"]
        )
        assert before["public.reports"].columns == {"report": "public.report of about text, mood public.mood"}
        for path in ("pg_catalog", '"Other", public', "nowhere"):
            connection.execute(f"SET search_path = {path}")
            assert shape.read_again(connection, before) == before
            assert connection.execute("SHOW search_path").fetchall() == [(path,)]


SHOWN = """
CREATE TYPE place AS (street text, town text);
CREATE TABLE shops (id int PRIMARY KEY, name text, at place);
CREATE FUNCTION loud(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN upper(t); END'
"""
INDIRECT = {
    "a column that a whole row shows": (
        "SELECT s.id AS _id, to_jsonb(s) AS shop FROM shops AS s",
        "ALTER TABLE shops ADD opened date DEFAULT '2026-01-01'",
        "public.shops.opened is new",
    ),
    "a function's body": (
        "SELECT s.id AS _id, loud(s.name) AS name FROM shops AS s",
        "CREATE OR REPLACE FUNCTION loud(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN t; END'",
        "the function public.loud(text) is defined anew",
    ),
    "what a composite type is made of": (
        "SELECT s.id AS _id, to_jsonb(s.at) AS at FROM shops AS s",
        "ALTER TYPE place RENAME ATTRIBUTE town TO city",
        "at was public.place of street text, town text and is public.place of street text, city text",
    ),
}


@pytest.mark.parametrize(("select", "statement", "says"), INDIRECT.values(), ids=INDIRECT.keys())
def test_what_a_document_shows_without_naming_it(
    empty_world: World, tmp_path: Path, select: str, statement: str, says: str
) -> None:
    """Columns of whole rows, bodies of functions and attributes of types are part of the shape."""
    empty_world.sql(SHOWN)
    document = Definition(name="shop", index="shop", select=select, index_body={}, affects={}, folder=tmp_path)
    with empty_world.connect() as connection:
        before = dependency.analyse(connection, document).shapes
        assert shape.differences(before, shape.read_again(connection, before)) == []
        empty_world.sql(statement)
        (said,) = shape.differences(before, shape.read_again(connection, before))
    assert says in said
