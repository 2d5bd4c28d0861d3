"""`syncer init --with` follows foreign keys to any depth and through link tables, and hides what is personal."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.scenarios.test_init_drafts import drafted, followed
from tests.support.world import World

SHOP = """
CREATE SCHEMA hr;
CREATE SCHEMA "Shop";
CREATE TABLE hr.people (
    id bigint PRIMARY KEY, boss_id bigint REFERENCES hr.people, name text NOT NULL, email text, "passwordHash" text,
    date_of_birth date, email_verified boolean, password_changed_at timestamptz
);
CREATE TABLE hr.badges (person_id bigint PRIMARY KEY REFERENCES hr.people, number integer);
CREATE TABLE hr.skills (id integer PRIMARY KEY, name text);
CREATE TABLE hr.people_skills (
    person_id bigint REFERENCES hr.people, skill_id integer REFERENCES hr.skills, PRIMARY KEY (person_id, skill_id)
);
CREATE TABLE hr.places (country text, code text, name text, PRIMARY KEY (country, code));
CREATE TABLE "Shop"."Orders" (
    no text, year integer, seller_id bigint REFERENCES hr.people, auditor_id bigint REFERENCES hr.people,
    PRIMARY KEY (no, year)
) PARTITION BY LIST (year);
CREATE TABLE "Shop"."Orders2026" PARTITION OF "Shop"."Orders" FOR VALUES IN (2026);
CREATE TABLE "Shop".lines (
    no text, year integer, line integer, sku text, amount numeric(8, 2), PRIMARY KEY (no, year, line),
    FOREIGN KEY (no, year) REFERENCES "Shop"."Orders"
);
CREATE TABLE "Shop".options (
    id integer PRIMARY KEY, no text, year integer, line integer, value text,
    FOREIGN KEY (no, year, line) REFERENCES "Shop".lines
);
INSERT INTO hr.people VALUES (1, NULL, 'Ada', 'a@b', 'x', '1990-01-01', true, now());
INSERT INTO hr.people VALUES (2, 1, 'Bob', 'b@c');
INSERT INTO hr.badges VALUES (1, 7);
INSERT INTO hr.skills VALUES (1, 'SQL'), (2, 'Go');
INSERT INTO hr.people_skills VALUES (1, 1), (1, 2);
INSERT INTO "Shop"."Orders" VALUES ('a:b', 2026, 1, 2);
INSERT INTO "Shop".lines VALUES ('a:b', 2026, 1, 'sku', 9.5), ('a:b', 2026, 2, 'sku', 1);
INSERT INTO "Shop".options VALUES (1, 'a:b', 2026, 1, 'red');
"""


@pytest.fixture
def shop(empty_world: World) -> World:
    """A world with a shop of several schemas, and without a document."""
    (empty_world.config / "documents" / "blogpost").rename(empty_world.folder / "unused")
    empty_world.sql(SHOP)
    return empty_world


def fields(world: World, name: str) -> dict[str, Any]:
    """The properties of a document's mapping."""
    file = world.config / "documents" / name / "index.json"
    properties: dict[str, Any] = json.loads(file.read_text())["mappings"]["properties"]
    return properties


def test_paths_lead_through_several_levels(shop: World) -> None:
    """Down to rows that refer, up to rows referred to, through a link table, with chosen columns."""
    world = shop
    paths = ("lines:line,amount", "lines/options:value", "seller/skills", "seller/badges", "seller/boss:name")
    table = ("--table", '"Shop"."Orders":no,seller_id', "--name", "orders")
    drafted(world, *table, *(one for path in paths for one in ("--with", path)))
    found = fields(world, "orders")
    assert found.keys() == {"no", "seller_id", "seller", "lines"}
    assert found["lines"]["type"] == "nested"
    assert found["lines"]["properties"].keys() == {"line", "amount", "options"}
    assert found["lines"]["properties"]["options"]["properties"].keys() == {"value"}
    seller = found["seller"]["properties"]
    assert "type" not in seller["badges"], "a key ensures that there is one row"
    assert seller["skills"]["type"] == "nested"
    assert seller["boss"]["properties"].keys() == {"name"}
    followed(world)
    held = world.held("orders")["a:b:2026"]
    assert [one["name"] for one in held["seller"]["skills"]] == ["SQL", "Go"]
    assert held["seller"]["badges"]["number"] == 7
    assert [[option["value"] for option in line["options"]] for line in held["lines"]] == [["red"], []]


def test_a_link_table_is_offered_and_skipped(shop: World) -> None:
    """Of a table of keys alone, the rows behind it are offered and shown."""
    world = shop
    said = drafted(world, "--table", "hr.skills")
    assert "--with adds rows of other tables: hr.people" in said
    drafted(world, "--table", "hr.skills", "--with", "people", "--force")
    assert fields(world, "skills")["people"]["properties"].keys() >= {"id", "name"}


def test_what_looks_personal_is_left_out_unless_it_is_named(shop: World) -> None:
    """Passwords, addresses and birth dates are left out and said so; whether or when they changed is neither."""
    world = shop
    said = drafted(world, "--table", "hr.people")
    assert fields(world, "people").keys() == {
        *("id", "boss_id", "name", "email_verified", "password_changed_at", "boss")
    }
    assert "email, passwordHash, date_of_birth" in said
    assert "boss.email" in said
    said = drafted(world, "--table", "hr.people:id,email", "--force")
    assert fields(world, "people").keys() == {"id", "email"}
    assert "personal or secret by name: email" in said


def test_a_path_that_leads_nowhere_is_said(shop: World) -> None:
    """A table that is not next to it, a column that is not there, a colon without columns."""
    for arguments, says in (
        (("--table", "hr.people", "--with", "lines"), "no foreign key"),
        (("--table", "hr.people", "--with", "people_skills/options"), "no foreign key"),
        (("--table", "hr.people:nope"), "has no column nope"),
        (("--table", "hr.people:"), "Missing columns"),
    ):
        ended = shop.syncer("init", *arguments)
        assert ended.returncode == 1, arguments
        assert says in ended.stderr, (arguments, ended.stderr)


def test_natural_keys_make_unique_ids(shop: World) -> None:
    """An id of several texts has their lengths, so keys that differ only in where a colon stands are two documents."""
    world = shop
    world.sql("INSERT INTO hr.places VALUES ('DE:a', 'b', 'one'), ('DE', 'a:b', 'two')")
    drafted(world, "--table", "hr.places")
    ended = world.syncer("plan", "--json")
    [document] = json.loads(ended.stdout)["documents"]
    assert (document["refusals"], document["problems"]) == ([], []), ended.stderr


ODD = """
CREATE TABLE area (id int PRIMARY KEY, name text);
CREATE TABLE gender (id int PRIMARY KEY, name text);
CREATE TABLE artist (
    id int PRIMARY KEY, name text, begin_area int REFERENCES area, end_area int REFERENCES area,
    gender int REFERENCES gender, shape polygon, bits varbit, spans int4multirange
);
CREATE TABLE "Comment" (id int PRIMARY KEY, artist int REFERENCES artist, body text);
INSERT INTO area VALUES (1, 'Berlin'), (2, 'Paris');
INSERT INTO gender VALUES (1, 'f');
INSERT INTO artist VALUES (1, 'A', 1, 2, 1, (SELECT ('(' || string_agg(format('(%s,%s)', n, n), ',') || ')')::polygon
    FROM generate_series(1, 9000) AS n), '101', '{[1,2],[5,6]}');
INSERT INTO "Comment" VALUES (1, 1, 'x');
"""


def test_a_reference_has_its_columns_name_and_a_long_value_is_no_dead_letter(empty_world: World) -> None:
    """Two keys to one table; a quoted name; types without a bound; more fields than an index has by default."""
    world = empty_world
    world.sql(ODD)
    world.sql(f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'c{n} text' for n in range(600))})")
    done = world.syncer("init", "--table", "artist", "--with", '"Comment"', "--personal")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) < 15
    assert world.syncer("init", "--table", "wide").returncode == 0
    for name in ("artist", "wide"):
        (world.config / "documents" / name / "document.yaml").write_text(f"index: {world.alias}-{name}\n")
    shutil.rmtree(world.document_folder)
    world.migrate()
    applied = world.syncer("apply", "--yes")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    with world.elasticsearch() as client:
        found = client.get(index=f"{world.alias}-artist", id="1").body["_source"]
    assert (found["begin_area"]["name"], found["end_area"]["name"]) == ("Berlin", "Paris")
    assert found["gender"] == {"id": 1, "name": "f"}
    assert [comment["body"] for comment in found["Comment"]] == ["x"]
    assert world.syncer("verify").returncode == 0
