"""A shape tells every change that a document would show, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.types.json import Jsonb

from syncer.base.model import Target
from syncer.base.postgres import Connection, names_as_written
from syncer.documents import analyze, reconsider
from syncer.documents.definition import Definition
from syncer.documents.registry import Document
from syncer.lineage import fingerprint
from tests.support.world import World

TABLES = """
CREATE SCHEMA "Other";
CREATE TYPE "Other".status AS ENUM ('sad', 'happy');
CREATE TYPE public.status AS ENUM ('sad', 'happy');
CREATE DOMAIN short AS varchar(10);
CREATE FUNCTION half(numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT $1 / 2';
CREATE TABLE "Other"."a.b" (
    id bigint PRIMARY KEY, "Name" varchar(20), amount numeric(10, 2),
    status public.status, moods public.status[], short short,
    twice numeric GENERATED ALWAYS AS (amount * 2) STORED, unread text
);
CREATE TABLE single (only_column int PRIMARY KEY);
CREATE VIEW counted AS SELECT only_column, count(*) FROM single GROUP BY 1;
CREATE VIEW named AS SELECT id, "Name" AS name, half(amount) AS half FROM "Other"."a.b" WHERE status = 'happy';
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN feeling AS mood;
CREATE TYPE inner_part AS (a int, mood mood);
CREATE TYPE outer_part AS (inner_ inner_part, n int);
CREATE DOMAIN kept AS outer_part;
CREATE TABLE deep (
    id int PRIMARY KEY, name text, other text, c kept, moods feeling[], mood mood
);
CREATE TYPE sole AS ENUM ('a', 'b');
CREATE TABLE alone (id int PRIMARY KEY, mood sole);
CREATE VIEW deep_view AS SELECT id, c FROM deep;
CREATE TABLE part (id int PRIMARY KEY, a text);
CREATE VIEW part_view AS SELECT id, a FROM part;
CREATE TYPE around AS (p part);
CREATE TABLE holder (id int PRIMARY KEY, one part, many part[], seen part_view, around around);
CREATE FUNCTION part_json(inner_part) RETURNS json LANGUAGE sql IMMUTABLE AS 'SELECT ''1''::json';
CREATE FUNCTION clean(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower(t)';
CREATE FUNCTION slug(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN public.clean(t); END';
CREATE FUNCTION standard(t text) RETURNS text LANGUAGE sql IMMUTABLE RETURN clean(t);
CREATE AGGREGATE product(int) (SFUNC = int4mul, STYPE = int, INITCOND = 1);
CREATE VIEW lower_view AS SELECT id, slug(name) AS f FROM deep;
CREATE VIEW upper_view AS SELECT id, f || '!' AS f FROM lower_view
"""
NAMED = """
SELECT t.id AS _id, t."Name", t.status, t.moods, t.short, t.twice, n.half, c.count,
       (SELECT count(*) FROM single AS s WHERE s.only_column = t.id) AS single
FROM "Other"."a.b" AS t JOIN named AS n ON n.id = t.id JOIN counted AS c ON c.only_column = t.id
"""
CHANGES = {
    'ALTER TABLE "Other"."a.b" RENAME COLUMN "Name" TO name': '"Other"."a.b".Name is now called name',
    "DROP VIEW counted": "public.counted is gone",
    'ALTER TABLE "Other"."a.b" SET SCHEMA public': '"Other"."a.b" is gone',
    'ALTER TABLE "Other"."a.b" ALTER short TYPE text': '"Other"."a.b".short was public.short and is text',
    'DROP VIEW named; ALTER TABLE "Other"."a.b" ALTER "Name" TYPE varchar(20) COLLATE "C"': 'COLLATE pg_catalog."C"',
    'ALTER TABLE "Other"."a.b" DROP twice; ALTER TABLE "Other"."a.b" ADD twice numeric '
    "GENERATED ALWAYS AS (amount * 3) STORED": "* (3)",
    'DROP VIEW named; ALTER TABLE "Other"."a.b" ALTER status TYPE "Other".status USING status::text::"Other".status': (
        'status was public.status and is "Other".status'
    ),
    "ALTER TYPE public.status RENAME VALUE 'sad' TO 'blue'": "the label sad of public.status is now called blue",
    'ALTER TABLE "Other"."a.b" DROP moods; ALTER TABLE "Other"."a.b" ADD moods public.status[]': (
        '"Other"."a.b".moods is another column than before'
    ),
    'CREATE OR REPLACE VIEW named AS SELECT id, "Name" AS name, half(amount) AS half FROM "Other"."a.b"': (
        "the view public.named is defined anew"
    ),
    # And what no document would show.
    'ALTER TABLE "Other"."a.b" ADD more text': "",
    'ALTER TABLE "Other"."a.b" DROP unread': "",
    "ALTER TYPE public.status ADD VALUE 'calm'": "",
    'ALTER TABLE "Other"."a.b" SET (fillfactor = 50); TRUNCATE "Other"."a.b"': "",
}
CLEAN = "CREATE OR REPLACE FUNCTION clean(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT t'"
PART_IS_NEW = "inner_part, or its cast to json, is defined anew"
IS_CLEAN = "the function public.clean(text) is defined anew"
INDIRECT = {
    "a column that a whole row shows": (
        "SELECT s.id AS _id, to_jsonb(s) AS deep FROM deep AS s",
        "ALTER TABLE deep ADD opened date DEFAULT '2026-01-01'",
        "public.deep.opened is new",
    ),
    **{
        f"{change}, in {where}": (f"SELECT s.id AS _id, {where} AS f FROM deep AS s", change, difference)
        for where in ("s.c", "(SELECT to_jsonb(v) FROM deep_view AS v WHERE v.id = s.id)")
        for change, difference in (
            ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "the label sad of public.mood is now called blue"),
            ("ALTER TYPE inner_part RENAME ATTRIBUTE a TO b", PART_IS_NEW),
            ("ALTER TYPE inner_part ADD ATTRIBUTE more int", PART_IS_NEW),
            ("CREATE CAST (inner_part AS json) WITH FUNCTION part_json", PART_IS_NEW),
        )
    },
    **{
        f"a column of the row type of a relation, {column}": (
            f"SELECT s.id AS _id, s.{column} FROM holder AS s",
            "ALTER TABLE part RENAME a TO b; ALTER VIEW part_view RENAME a TO b",
            f"type public.{type_}, or its cast to json, is defined anew",
        )
        for column, type_ in {"one": "part", "many": "part", "seen": "part_view", "around": "part"}.items()
    },
    "an array of a domain over an enum": (
        "SELECT s.id AS _id, s.moods FROM deep AS s",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "the label sad of public.mood is now called blue",
    ),
    "a value more of an enum whose values are listed": (
        "SELECT s.id AS _id, enum_range(s.mood) AS moods FROM deep AS s",
        "ALTER TYPE mood ADD VALUE 'calm'",
        "the label calm of public.mood is new",
    ),
    "a column that an alias of places counts": (
        "SELECT s.a AS _id, s.b FROM deep AS s (a, b)",
        "ALTER TABLE deep DROP other; ALTER TABLE deep ADD other text",
        "public.deep.other is another column than before",
    ),
    "an enum made again in another order, whose values are listed": (
        "SELECT s.id AS _id, enum_range(s.mood) AS moods FROM alone AS s",
        """ALTER TYPE sole RENAME TO was; CREATE TYPE sole AS ENUM ('b', 'a');
        ALTER TABLE alone ALTER mood TYPE sole USING mood::text::sole; DROP TYPE was""",
        "public.sole has its labels in another order",
    ),
    "columns that swap their names": (
        "SELECT s.id AS _id, s.name FROM deep AS s",
        "ALTER TABLE deep RENAME name TO old; ALTER TABLE deep RENAME other TO name",
        "public.deep.name is another column than before: that one is now called old",
    ),
    "a column of a join that is dropped and added": (
        "SELECT s.id AS _id, d.name FROM deep AS s JOIN deep AS d ON d.other = s.name",
        "ALTER TABLE deep DROP other; ALTER TABLE deep ADD other text DEFAULT 'x'",
        "public.deep.other is another column than before",
    ),
    "a function that a body in standard SQL calls": (
        "SELECT s.id AS _id, standard(s.name) AS f FROM deep AS s",
        CLEAN,
        IS_CLEAN,
    ),
    "a function behind a view over a view": ("SELECT v.id AS _id, v.f FROM upper_view AS v", CLEAN, IS_CLEAN),
    "an aggregate": (
        "SELECT s.id AS _id, (SELECT product(d.id) FROM deep AS d WHERE d.name = s.name) AS f FROM deep AS s",
        "CREATE OR REPLACE AGGREGATE product(int) (SFUNC = int4pl, STYPE = int, INITCOND = 1)",
        "the function public.product(integer) is defined anew",
    ),
    **{change: (NAMED, change, difference) for change, difference in CHANGES.items()},
}


@pytest.fixture(scope="module")
def connection(module_world: World) -> Iterator[Connection]:
    """A database with tables of every kind of column that counts; each test takes its changes back."""
    module_world.sql(TABLES)
    with module_world.connect() as connection:
        yield connection


@pytest.mark.parametrize(("select", "change", "difference"), INDIRECT.values(), ids=INDIRECT.keys())
def test_what_a_document_would_show(
    connection: Connection, tmp_path: Path, select: str, change: str, difference: str
) -> None:
    """Columns, views, bodies of functions and attributes of types are part of the shape, named or not."""
    affects = {"deep": "SELECT c.id AS _id FROM %(rows)s AS c"} if "(a, b)" in select else {}
    document = Definition(name="deep", index="deep", select=select, index_body={}, affects=affects, folder=tmp_path)
    recorded = analyze.analyse(connection, document).shapes
    assert fingerprint.differences(recorded, fingerprint.read(connection, recorded)) == []
    with connection.transaction(force_rollback=True):
        with names_as_written(connection):
            connection.execute(change.encode())
        differences = fingerprint.differences(recorded, fingerprint.read(connection, recorded))
    assert any(difference in line for line in differences) if difference else differences == []


UNREAD = """
CREATE TYPE channel AS ENUM ('mail', 'web');
CREATE DOMAIN code AS text NOT NULL CHECK (VALUE <> '');
CREATE TYPE span AS (since date, till date);
CREATE TABLE dirs (
    legacy int, channel channel, spans span[], extra jsonb, id int PRIMARY KEY, code code, parent_id int, name text
);
CREATE TABLE files (size int, id int PRIMARY KEY, dir_id int, meta json, name text);
INSERT INTO dirs VALUES (0, 'web', NULL, '{}', 1, 'r', NULL, 'root'), (0, 'web', NULL, '{}', 2, 's', 1, 'sub');
INSERT INTO files VALUES (9, 7, 2, '{}', 'f')
"""
PATHS = """
SELECT f.id AS _id, f.name, (
    WITH RECURSIVE up AS (
        SELECT d.id, d.parent_id, d.name FROM dirs AS d WHERE d.id = f.dir_id
        UNION ALL SELECT d.id, d.parent_id, d.name FROM up AS u JOIN dirs AS d ON d.id = u.parent_id
    ) SELECT string_agg(up.name, '/' ORDER BY up.id) FROM up) AS path
FROM files AS f
"""
BELOW = """
WITH RECURSIVE down AS (
    SELECT c.id FROM %(rows)s AS c UNION SELECT d.id FROM down AS o JOIN dirs AS d ON d.parent_id = o.id
) SELECT f.id AS _id FROM files AS f JOIN down AS d ON d.id = f.dir_id
"""
JOINED = "SELECT f.id AS _id, d.name FROM files AS f JOIN dirs AS d ON d.id = f.dir_id"
MIGRATIONS = (
    "ALTER TABLE dirs DROP legacy",
    "ALTER TABLE dirs ADD kind int DEFAULT 3; ALTER TABLE dirs DROP legacy; ALTER TABLE dirs DROP spans",
    "ALTER TABLE dirs ALTER channel TYPE text USING channel::text; DROP TYPE channel",
    "ALTER TYPE channel RENAME TO source; ALTER DOMAIN code RENAME TO brief; ALTER TYPE span ADD ATTRIBUTE n int",
    "ALTER TABLE dirs DROP extra; ALTER TABLE dirs ADD more json NOT NULL DEFAULT '{}'",
    "ALTER TABLE dirs RENAME legacy TO former; ALTER DOMAIN code ADD CONSTRAINT long CHECK (length(VALUE) > 0)",
    "ALTER TABLE dirs ALTER code TYPE text; DROP DOMAIN code; ALTER TABLE dirs ADD next bigint[] DEFAULT '{1}'",
)


@pytest.mark.parametrize("migration", MIGRATIONS)
@pytest.mark.parametrize(("select", "affects"), {PATHS: BELOW, JOINED: None}.items(), ids=("affects", "derived"))
def test_a_column_that_is_not_read_has_no_effect(
    connection: Connection, tmp_path: Path, select: str, affects: str | None, migration: str
) -> None:
    """What is stored names only what is read, and by name: it still finds documents, and an apply derives the same."""
    document = Definition(
        name="file", index="file", select=select, index_body={}, affects={"dirs": affects} if affects else {},
        folder=tmp_path,
    )  # fmt: skip
    with connection.transaction(force_rollback=True):
        with names_as_written(connection):
            connection.execute(UNREAD)
        recorded = analyze.analyse(connection, document)
        with names_as_written(connection):
            connection.execute(migration.encode())
        changed = {"id": "1" if affects else "2", "parent_id": None, "name": "changed"}
        (query,) = recorded.tables["public.dirs"].affected
        assert connection.execute(query, (Jsonb([changed]),)).fetchall() == [("7",)]
        assert fingerprint.differences(recorded.shapes, fingerprint.read(connection, recorded.shapes)) == []
        assert analyze.analyse(connection, document) == recorded


SHOP = """
CREATE TYPE kind AS ENUM ('raw', 'cooked', 'frozen');
CREATE TABLE makers (id int PRIMARY KEY, name varchar(20), town varchar(20), old text);
CREATE TABLE goods (
    id int PRIMARY KEY, maker_id int, name varchar(30), price numeric(8, 2), kind kind, sold timestamp(0), n int,
    tags varchar(8)[]
);
CREATE TABLE slugs (good varchar(30), slug varchar(9));
CREATE VIEW made AS SELECT m.id AS maker, m.name AS maker_name FROM makers AS m;
CREATE FUNCTION shown(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT upper(t)'
"""
GOODS = """
SELECT g.id AS _id, g.name, g.price, g.kind, g.sold, g.n, g.tags, shown(g.name) AS title, m.maker_name,
       (SELECT min(s.slug) FROM slugs AS s WHERE s.good = g.name) AS slug,
       (SELECT jsonb_agg(o.id ORDER BY o.kind, o.id) FROM goods AS o WHERE o.maker_id = g.maker_id) AS others
FROM goods AS g LEFT JOIN made AS m ON m.maker = g.maker_id WHERE g.name <> 'none'
"""
RETYPED = "ALTER TYPE kind RENAME TO kind_old; CREATE TYPE kind AS ENUM ({}); ALTER TABLE goods ALTER kind TYPE kind"
RETYPED += " USING kind::text::kind; DROP TYPE kind_old"
NEEDS_APPLY = None
QUESTIONS = {
    "ALTER TABLE goods ALTER name TYPE varchar(200), ALTER price TYPE numeric(12, 2), ALTER tags TYPE text[]": "",
    "ALTER TABLE goods ALTER name TYPE text, ALTER sold TYPE timestamp": "",
    "ALTER TABLE slugs ALTER good TYPE text, ALTER slug TYPE text": "",
    RETYPED.format("'raw', 'cooked', 'frozen'"): "",
    RETYPED.format("'raw', 'frozen'"): "",
    "ALTER TYPE kind ADD VALUE 'baked' BEFORE 'cooked'": "",
    "ALTER TABLE makers RENAME name TO full_name": "",
    "ALTER TABLE makers RENAME name TO full_name; CREATE OR REPLACE VIEW made AS"
    "\n  SELECT m.id AS maker, m.full_name AS maker_name FROM makers AS m": "the view public.made is defined anew",
    RETYPED.format("'frozen', 'raw', 'cooked'"): "public.kind has its labels in another order",
    "ALTER TYPE kind RENAME VALUE 'raw' TO 'crude'": "the label raw of public.kind is now called crude",
    "ALTER TYPE kind RENAME VALUE 'raw' TO 'crude'; ALTER TYPE kind ADD VALUE 'raw'": (
        "the label raw of public.kind is another label than before: that one is now called crude"
    ),
    "ALTER TABLE goods ALTER n TYPE text": "public.goods.n was integer and is text",
    "ALTER TABLE goods ALTER sold TYPE timestamptz": "and is timestamp with time zone",
    "CREATE OR REPLACE FUNCTION shown(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT t'": "is defined anew",
    "ALTER TABLE goods RENAME price TO was; ALTER TABLE goods ADD price numeric": (
        "public.goods.price is another column than before: that one is now called was"
    ),
    "ALTER VIEW made RENAME maker_name TO other; ALTER VIEW made RENAME maker TO maker_name; "
    "ALTER VIEW made RENAME other TO maker": NEEDS_APPLY,
    "CREATE OR REPLACE VIEW made AS SELECT m.id AS maker, m.town AS maker_name FROM makers AS m": NEEDS_APPLY,
    "ALTER TABLE goods RENAME price TO cost": NEEDS_APPLY,
    "ALTER TABLE makers RENAME id TO number": NEEDS_APPLY,
    "ALTER TABLE goods ALTER maker_id TYPE bigint": NEEDS_APPLY,
    "DROP VIEW made; ALTER TABLE makers RENAME TO former; CREATE VIEW made AS "
    "SELECT m.id AS maker, m.name AS maker_name FROM former AS m": NEEDS_APPLY,
}


def applied(connection: Connection, folder: Path) -> Document:
    """The goods, as they are applied."""
    with names_as_written(connection):
        connection.execute(SHOP)
    defined = Definition(name="good", index="good", select=GOODS, index_body={}, affects={}, folder=folder)
    dependencies = analyze.analyse(connection, defined)
    return Document(
        name="good", revision=1, index="good", index_body={}, dependencies=dependencies, target=Target.of("good", 1)
    )


@pytest.mark.parametrize(("migration", "expected"), QUESTIONS.items(), ids=QUESTIONS)
def test_a_difference_is_a_question(
    connection: Connection, tmp_path: Path, migration: str, expected: str | None
) -> None:
    """A document goes on if the stored SELECT leads to the same; silently, if it also shows the same."""
    with connection.transaction(force_rollback=True):
        document = applied(connection, tmp_path)
        with names_as_written(connection):
            connection.execute(migration.encode())
        answer = reconsider.reconsider(connection, document)
        if answer is None or expected is None:
            assert (answer, expected) == (None, None)
            return
        analysis, shown = answer
        assert shown == [] if not expected else [line for line in shown if expected in line]
        going_on = replace(document, accepted=analysis.shapes)
        assert fingerprint.differences(going_on.shapes, fingerprint.read(connection, going_on.shapes)) == []


def test_a_restored_dump_shows_the_same_also_where_postgres_prints_views_differently(
    connection: Connection, tmp_path: Path
) -> None:
    """Other oids and numbers are no difference; a view is compared as this version prints what was applied."""
    with connection.transaction(force_rollback=True):
        document = applied(connection, tmp_path)
        shapes = document.dependencies.shapes
        recorded = {
            name: replace(shape, oid=shape.oid + 1, rule="", numbers=dict.fromkeys(shape.numbers, 99))
            for name, shape in shapes.items()
        }
        printed = "SELECT m.id AS maker, (m.name) AS maker_name FROM public.makers AS m;"
        recorded["public.made"] = replace(recorded["public.made"], definition=printed)
        restored = replace(document, dependencies=replace(document.dependencies, shapes=recorded))
        assert fingerprint.differences(recorded, shapes) == ["the view public.made is defined anew"]
        assert reconsider.reconsider(connection, restored) == (document.dependencies, [])
        # What a daemon has recorded is never executed: it may not write what another role runs.
        recorded["public.made"] = replace(recorded["public.made"], definition="SELECT 1; CREATE TABLE evil ()")
        answer = reconsider.reconsider(connection, replace(document, accepted=recorded))
        assert answer == (document.dependencies, ["the view public.made is defined anew"])
        assert connection.execute("SELECT to_regclass('public.evil')").fetchone() == (None,)
