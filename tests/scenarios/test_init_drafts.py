"""`syncer init` drafts a document from any table, and what it drafts is put active and followed as it is."""

from __future__ import annotations

import json

import pytest

from tests.support.world import BLOG_SCHEMA, World

TYPES = """
SELECT format('%I.%I', n.nspname, t.typname), t.typname::text
FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace
WHERE t.typtype IN ('b', 'd', 'e', 'r', 'm') AND t.typcategory <> 'Z' AND n.nspname IN ('pg_catalog', 'public')
  AND t.typelem = 0 AND t.typname !~ '^pg_(node|ndis|mcv|dep|brin)'
  OR t.typname IN ('point', 'box', 'lseg', 'line', 'name', 'address', 'int2vector')
ORDER BY 2
"""
"""Every type that a column may have, but for arrays; those of the test among them."""
OWN_TYPES = """
CREATE TYPE status AS ENUM ('fine', 'so: so');
CREATE TYPE address AS (street text, number integer, since timestamptz, "odd.name" text, position point);
CREATE DOMAIN price AS numeric(12, 2);
CREATE DOMAIN moods AS status[];
"""
SAMPLES = {
    **dict.fromkeys(("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "money", "xid8", "xid", "cid"), "7"),
    "bool": "true",
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext"), "a %s {} 'quoted' \"text\" / \\ \N{SNOWMAN}"),
    "uuid": "7f3d5a70-6f2c-4b0a-9b57-3a2f6b9f7f0e",
    **dict.fromkeys(("date", "timestamp", "timestamptz"), "2026-11-21"),
    **dict.fromkeys(("time", "timetz"), "12:30"),
    "interval": "1 day 02:03:04",
    "json": '{"a": {"b": [1, 2]}}',
    "jsonb": '{"a": 1}',
    "inet": "10.0.0.1/8",
    "cidr": "10.0.0.0/8",
    "bit": "1",
    "varbit": "101",
    "bytea": "bytes",
    "point": "(1,2)",
    "int4range": "[1,5)",
    "datemultirange": "{[2026-01-01,2026-02-01)}",
    "status": "so: so",
    "price": "12345678.90",
    "address": '("High Street",7,2026-11-21,odd,"(1,2)")',
    "moods": "{fine}",
    "tsvector": "a:1",
}


def drafted(world: World, *arguments: str) -> str:
    """What `syncer init` says; the documents get an alias of this world."""
    ended = world.syncer("init", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert not [line for line in ended.stdout.splitlines() if line.endswith(" ")]
    names = []
    for folder in sorted((world.config / "documents").iterdir()):
        names.append(folder.name)
        (folder / "document.yaml").write_text(f"index: {world.alias_of(folder.name)}\n")
    world.documents = tuple(names)
    return ended.stdout


def followed(world: World) -> None:
    """Everything is put active, and what is written then is followed."""
    ended = world.syncer("plan", "--json")
    assert ended.stdout, ended.stderr
    said = json.loads(ended.stdout)
    assert [one["refusals"] for one in said["documents"] if one["refusals"]] == []
    world.migrate()
    world.apply()
    assert world.sql("SELECT id, error FROM syncer.dead_letter") == []
    for name in world.documents:
        expected, held = world.expected(name), world.held(name)
        assert expected.keys() == held.keys()
        for id_, document in expected.items():
            assert document.keys() == held[id_].keys()
            others = {key: held[id_][key] for key, value in document.items() if value != held[id_][key]}
            # The oracle's session writes intervals in Postgres' own style.
            assert {key for key in others if not key.endswith(" interval")} == set()


@pytest.fixture
def bare(empty_world: World) -> World:
    """A world without a document."""
    (empty_world.config / "documents" / "blogpost").rename(empty_world.folder / "unused")
    return empty_world


def test_a_table_with_every_type_that_there_is(bare: World) -> None:
    """Each of them, and an array of each, gets a field that takes its values, or is left out and said so."""
    world = bare
    world.sql(OWN_TYPES)
    types = world.sql(TYPES)
    assert len(types) > 60
    columns = [f'"c {name}" {said}' for said, name in types]
    columns += [f'"a {name}" {said}[]' for said, name in types if name != "int2vector"]
    world.sql(f"CREATE TABLE everything (id integer PRIMARY KEY, {', '.join(columns)})")
    given = {name: SAMPLES[name] for _, name in types if name in SAMPLES}
    quoted = ", ".join(f'"c {name}", "a {name}"' for name in given)
    values = [one for said, name in types if name in given for one in (given[name], [given[name]])]
    marks = ", ".join(f"%s::{said}, (%s::text[])::{said}[]" for said, name in types if name in given)
    world.sql(f"INSERT INTO everything (id, {quoted}) VALUES (1, {marks})", *values)
    world.sql("INSERT INTO everything (id) VALUES (2)")
    said = drafted(world, "--table", "everything")
    for left_out in ("c bytea", "a bytea", "c tsvector"):
        assert f"{left_out} is left out" in said
    followed(world)
    shown = world.held("everything")["1"]
    assert shown["c address"]["number"] == 7
    assert shown["a jsonb"] == [{"a": 1}]
    assert shown["c price"] == 12345678.90
    assert shown.keys() >= {f"c {name}" for name in given if name not in ("bytea", "tsvector")}


def test_references_are_objects_and_what_refers_is_nested(bare: World) -> None:
    """A foreign key's row is an object, also by several columns and to the table itself; --with makes arrays."""
    world = bare
    world.sql(
        """
        CREATE TABLE countries (code text, region text, name text, PRIMARY KEY (code, region));
        CREATE TABLE people (
            id uuid PRIMARY KEY DEFAULT gen_random_uuid(), boss_id uuid REFERENCES people,
            code text, region text, data jsonb, FOREIGN KEY (code, region) REFERENCES countries
        );
        CREATE TABLE visits (
            person uuid REFERENCES people, place text, day date, host uuid REFERENCES people,
            PRIMARY KEY (person, place, day)
        );
        INSERT INTO countries VALUES ('a:b', 'c', 'one'), ('a', 'b:c', 'two');
        INSERT INTO people (code, region, data) VALUES ('a', 'b:c', '[1]'), ('a:b', 'c', NULL);
        UPDATE people SET boss_id = (SELECT min(id) FROM people);
        INSERT INTO visits SELECT id, 'there', '2026-11-21', boss_id FROM people;
    """.replace("min(id)", "id").replace("FROM people)", "FROM people LIMIT 1)")
    )
    said = drafted(world, "--table", "public.people", "--with", "visits")
    assert "--with public.people" not in said
    said = drafted(world, "--table", "countries", "--table", "visits")
    assert "--with adds rows of other tables: public.people" in said
    followed(world)
    [person, _] = sorted(world.held("people").values(), key=lambda one: one["data"] is None)
    assert person["countries"] == {"code": "a", "region": "b:c", "name": "two"}
    assert person["boss"]["id"] == person["boss_id"]
    assert person["data"] == [1]
    assert [one["place"] for one in person["visits_person"]] == ["there"]
    assert len(world.held("countries")) == 2
    assert world.held("visits").keys() == {f"{one}:there:2026-11-21" for one in world.held("people")}


def test_what_is_there_is_not_written_over(bare: World) -> None:
    """A document's files are kept unless --force says otherwise, and config/syncer.yaml is kept with it too."""
    world = bare
    world.sql(BLOG_SCHEMA.read_text())
    drafted(world, "--table", "posts")
    settings, select = world.config / "syncer.yaml", world.config / "documents" / "posts" / "select.sql"
    settings.write_text("# mine\n")
    select.write_text("-- mine\n")
    again = world.syncer("init", "--table", "posts")
    assert again.returncode == 1
    assert "is not empty" in again.stderr
    assert "--force" in again.stderr
    assert select.read_text() == "-- mine\n"
    drafted(world, "--table", "posts", "--force")
    assert select.read_text() != "-- mine\n"
    assert settings.read_text() == "# mine\n"


def test_a_table_that_cannot_be_drafted_is_said(bare: World) -> None:
    """No table, none of that name, no key, no rights, no table at all: each is one sentence, and nothing is written."""
    world = bare
    assert "no table" in world.syncer("init").stderr
    assert "no table at all" in world.syncer("init", "--table", "x").stderr
    world.sql("""
        CREATE TABLE plain (a text); CREATE VIEW seen AS SELECT 1 AS a; CREATE UNLOGGED TABLE fast (id int PRIMARY KEY);
        CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA other; CREATE TABLE other.a (id int PRIMARY KEY)
    """)
    for arguments, says in (
        (("--table", "plain"), "no primary key"),
        (("--table", "seen"), "is a view"),
        (("--table", "fast"), "unlogged"),
        (("--table", "nope"), "other.a"),
        (("--table", "a", "--table", "other.a"), "--name"),
        (("--table", "a", "--with", "other.a"), "no foreign key"),
        (("--table", "a", "--name", "x/../y"), "valid document name"),
        ((), "public.a, public.plain, other.a"),
    ):
        ended = world.syncer("init", *arguments)
        assert ended.returncode in (1, 2), arguments
        assert says in ended.stderr, (arguments, ended.stderr)
    role = f"stranger_{world.name}"
    world.sql(f"CREATE ROLE {role} LOGIN")
    try:
        as_role = {"SYNCER_POSTGRES_DSN": world.dsn.replace("postgres@", f"{role}@")}
        assert "may not read public.a" in world.syncer("init", "--table", "a", environment=as_role).stderr
        assert "cannot read any of the" in world.syncer("init", environment=as_role).stderr
    finally:
        world.sql(f"DROP ROLE {role}")
    assert not (world.config / "syncer.yaml").exists()
    file = world.folder / "file"
    file.write_text("")
    ended = world.syncer("init", "--table", "a", environment={"SYNCER_CONFIG": str(file / "config")})
    assert "cannot be written" in ended.stderr
