"""A shape tells every change that a document would show, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from syncer.base.postgres import Connection, names_as_written
from syncer.documents import analyze
from syncer.documents.definition import Definition
from syncer.lineage import fingerprint
from syncer.lineage.fingerprint import Shape
from syncer.sandbox import Endpoints, Sandbox
from tests.support.world import World, made

TABLES = """
CREATE SCHEMA "Other";
CREATE TYPE "Other".status AS ENUM ('sad', 'happy');
CREATE TYPE public.status AS ENUM ('sad', 'happy');
CREATE DOMAIN public.short AS varchar(10);
CREATE TABLE "Other"."a.b" (
    id bigint PRIMARY KEY, "Name" varchar(20), amount numeric(10, 2),
    status public.status, moods public.status[], short short,
    twice numeric GENERATED ALWAYS AS (amount * 2) STORED, unread text
);
CREATE FUNCTION public.half(numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT $1 / 2';
CREATE TABLE halves (id bigint PRIMARY KEY, amount numeric, half numeric GENERATED ALWAYS AS (half(amount)) STORED);
CREATE TABLE single (only_column int);
CREATE VIEW counted AS SELECT count(*) FROM single;
CREATE VIEW named AS SELECT id, "Name" AS name, half(amount) AS half FROM "Other"."a.b" WHERE status = 'happy'
"""
SHOWN = """
CREATE TYPE place AS (street text, town text);
CREATE TABLE shops (id int PRIMARY KEY, name text, at place);
CREATE FUNCTION loud(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN upper(t); END'
"""
DEEP = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN feeling AS mood;
CREATE DOMAIN price AS numeric;
CREATE TYPE prices AS RANGE (SUBTYPE = price);
CREATE TYPE inner_part AS (a int, mood mood);
CREATE TYPE outer_part AS (inner_ inner_part, n int);
CREATE DOMAIN kept AS outer_part;
CREATE TABLE deep (
    id int PRIMARY KEY, name text, other text, c kept, moods feeling[], span prices, mood mood
);
CREATE VIEW deep_view AS SELECT id, c FROM deep;
CREATE FUNCTION part_json(inner_part) RETURNS json LANGUAGE sql IMMUTABLE AS 'SELECT ''1''::json';
CREATE FUNCTION clean(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower(t)';
CREATE FUNCTION slug(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN public.clean(t); END';
CREATE FUNCTION standard(t text) RETURNS text LANGUAGE sql IMMUTABLE RETURN clean(t);
CREATE AGGREGATE product(int) (SFUNC = int4mul, STYPE = int, INITCOND = 1);
CREATE VIEW lower_view AS SELECT id, slug(name) AS f FROM deep;
CREATE VIEW upper_view AS SELECT id, f || '!' AS f FROM lower_view
"""
NAMED = {
    '"Other"."a.b"': ["id", "Name", "amount", "status", "moods", "short", "twice"],
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
    'DROP VIEW named; ALTER TABLE "Other"."a.b" ALTER status TYPE "Other".status USING status::text::"Other".status': (
        'status was public.status and is "Other".status'
    ),
    "ALTER TYPE public.status RENAME VALUE 'sad' TO 'blue'": "type public.status.sad is gone",
    'ALTER TABLE "Other"."a.b" RENAME status TO x; ALTER TABLE "Other"."a.b" RENAME unread TO status; '
    'ALTER TABLE "Other"."a.b" RENAME status TO unread; ALTER TABLE "Other"."a.b" DROP moods; '
    'ALTER TABLE "Other"."a.b" RENAME x TO status; '
    'ALTER TABLE "Other"."a.b" ADD moods public.status[]': '"Other"."a.b".moods is another column than before',
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
    "ALTER TYPE public.status ADD VALUE 'calm'": "a value that is added",
    'CREATE INDEX ON "Other"."a.b" (amount)': "an index",
    'ALTER TABLE "Other"."a.b" SET (fillfactor = 50); TRUNCATE "Other"."a.b"': "another file",
}


@pytest.fixture(scope="module")
def connection(
    sandbox: Sandbox, endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connection]:
    """A database with tables of every kind of column that counts; each test takes its changes back."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=tmp_path_factory.mktemp("shape"))) as world:
        for statement in f"{TABLES};\n{SHOWN};\n{DEEP}".split(";\n"):
            world.sql(statement)
        with world.connect() as connection:
            yield connection


def differences(connection: Connection, statements: str, before: Mapping[str, Shape]) -> list[str]:
    """What these statements change in the shape."""
    assert fingerprint.differences(before, fingerprint.read_again(connection, before)) == []
    with connection.transaction(force_rollback=True):
        with names_as_written(connection):
            connection.execute(statements.encode())
        return fingerprint.differences(before, fingerprint.read_again(connection, before))


def named(connection: Connection) -> Mapping[str, Shape]:
    """The shape of what is named."""
    found = fingerprint.read(connection, NAMED, types=["public.status", "public.short"])
    assert {one: sorted(shape.parts) for one, shape in found.items() if not one.startswith("type ")} == {
        one: sorted(columns) for one, columns in NAMED.items()
    }
    return found


@pytest.mark.parametrize(("statements", "says"), CHANGES.items())
def test_what_a_document_would_show(connection: Connection, statements: str, says: str) -> None:
    """It is told, by name."""
    said = differences(connection, statements, named(connection))
    assert any(says in one for one in said), said


@pytest.mark.parametrize("statements", HARMLESS.keys(), ids=HARMLESS.values())
def test_what_no_document_would_show(connection: Connection, statements: str) -> None:
    """It is no difference."""
    assert differences(connection, statements, named(connection)) == []


def test_no_search_path_makes_a_difference(empty_world: World) -> None:
    """Whoever applies and whoever watches see the same shape, whatever their role's search_path is."""
    for statement in TABLES.split(";\n"):
        empty_world.sql(statement)
    empty_world.sql(
        """
        CREATE TYPE public.report AS (about text, status public.status);
        CREATE TABLE reports (id int PRIMARY KEY, report public.report);
        CREATE FUNCTION public.is_happy(public.status) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN $1 = 'happy';
        """
    )
    with empty_world.connect() as connection:
        before = fingerprint.read(
            connection,
            NAMED | {"public.reports": ["report"]},
            functions=["public.is_happy(public.status)"],
            types=["public.report", "public.status"],
        )
        assert before["type public.report"].definition == "c about text, status public.status"
    for path in ("pg_catalog", '"Other", public', "nowhere"):
        empty_world.sql(f'ALTER DATABASE "{empty_world.name}" SET search_path = {path}')
        with empty_world.connect() as connection:
            assert fingerprint.read_again(connection, before) == before


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
        "the type public.place is defined anew",
    ),
    **{
        f"{what}, in {where}": (
            f"SELECT s.id AS _id, {where} AS f FROM deep AS s",
            statement,
            says,
        )
        for where in ("s.c", "to_jsonb(s)", "(SELECT v.c FROM deep_view AS v WHERE v.id = s.id)")
        for what, statement, says in (
            ("an enum in a composite", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "mood.sad is gone"),
            (
                "a composite in a composite",
                "ALTER TYPE inner_part RENAME ATTRIBUTE a TO b",
                "inner_part is defined anew",
            ),
            ("an attribute more", "ALTER TYPE inner_part ADD ATTRIBUTE more int", "inner_part is defined anew"),
            (
                "a cast to json",
                "CREATE CAST (inner_part AS json) WITH FUNCTION part_json",
                "inner_part is defined anew",
            ),
        )
    },
    "an array of a domain over an enum": (
        "SELECT s.id AS _id, s.moods FROM deep AS s",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "mood.sad is gone",
    ),
    "a range over a domain": (
        "SELECT s.id AS _id, s.span FROM deep AS s",
        "ALTER DOMAIN price RENAME TO cost",
        "type public.price is gone",
    ),
    "a value more of an enum whose values are listed": (
        "SELECT s.id AS _id, enum_range(s.mood) AS moods FROM deep AS s",
        "ALTER TYPE mood ADD VALUE 'calm'",
        "mood.calm is new",
    ),
    "columns that swap their names": (
        "SELECT s.id AS _id, s.name FROM deep AS s",
        "ALTER TABLE deep RENAME name TO old; ALTER TABLE deep RENAME other TO name",
        "public.deep.name is another column than before",
    ),
    "a column of a join that is dropped and added": (
        "SELECT s.id AS _id, d.name FROM deep AS s JOIN deep AS d ON d.other = s.name",
        "ALTER TABLE deep DROP other; ALTER TABLE deep ADD other text DEFAULT 'x'",
        "public.deep.other is another column than before",
    ),
    "a function that a function calls": (
        "SELECT s.id AS _id, slug(s.name) AS f FROM deep AS s",
        "CREATE OR REPLACE FUNCTION clean(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT t'",
        "the function public.clean(text) is defined anew",
    ),
    "a function that a body in standard SQL calls": (
        "SELECT s.id AS _id, standard(s.name) AS f FROM deep AS s",
        "CREATE OR REPLACE FUNCTION clean(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT t'",
        "the function public.clean(text) is defined anew",
    ),
    "a function behind a view over a view": (
        "SELECT v.id AS _id, v.f FROM upper_view AS v",
        "CREATE OR REPLACE FUNCTION clean(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT t'",
        "the function public.clean(text) is defined anew",
    ),
    "an aggregate": (
        "SELECT s.id AS _id, (SELECT product(d.id) FROM deep AS d WHERE d.name = s.name) AS f FROM deep AS s",
        "CREATE OR REPLACE AGGREGATE product(int) (SFUNC = int4pl, STYPE = int, INITCOND = 1)",
        "the function public.product(integer) is defined anew",
    ),
}


@pytest.mark.parametrize(("select", "statement", "says"), INDIRECT.values(), ids=INDIRECT.keys())
def test_what_a_document_shows_without_naming_it(
    connection: Connection, tmp_path: Path, select: str, statement: str, says: str
) -> None:
    """Columns of whole rows, bodies of functions and attributes of types are part of the shape."""
    document = Definition(name="shop", index="shop", select=select, index_body={}, affects={}, folder=tmp_path)
    (said,) = differences(connection, statement, analyze.analyse(connection, document).shapes)
    assert says in said
