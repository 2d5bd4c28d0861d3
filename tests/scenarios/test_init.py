"""`syncer init` drafts a document from any table or SELECT, and what it drafts is put active and followed as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.world import BLOG_SCHEMA, VERSIONS, World

KEYWORD = {"type": "keyword", "ignore_above": 8191}
TEXT = {"type": "text", "fields": {"keyword": KEYWORD}}


@pytest.fixture
def bare(empty_world: World) -> World:
    """A world without a document."""
    shutil.rmtree(empty_world.document_folder)
    return empty_world


def drafted(world: World, *arguments: str) -> str:
    """What `syncer init` prints; the documents get an alias of this world."""
    ended = world.prints("init", *arguments)
    world.documents = tuple(sorted(folder.name for folder in (world.config / "documents").iterdir()))
    for name in world.documents:
        (world.config / "documents" / name / "document.yaml").write_text(f"index: {world.alias_of(name)}\n")
    return ended


def followed(world: World) -> None:
    """Everything is put active as it is, and equals its SELECT."""
    world.prints("plan", "--json")
    world.migrate()
    world.apply()
    for name in world.documents:
        expected, indexed = world.expected(name), world.held(name)
        assert expected.keys() == indexed.keys()
        for id_, document in expected.items():
            # The oracle's session writes intervals in Postgres' own style.
            differing = {
                key for key, value in document.items() if value != indexed[id_][key] and " interval" not in key
            }
            assert differing == set()


def mapping(world: World, name: str) -> dict[str, Any]:
    """The mapping of a document's fields."""
    body = json.loads((world.config / "documents" / name / "index.json").read_text())
    properties: dict[str, Any] = body["mappings"]["properties"]
    return properties


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
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext"), "a %s {} 'quoted' / \\ \N{SNOWMAN}"),
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
    "numrange": "(1.5,]",
    "tstzrange": "[2026-01-01,infinity]",
    "daterange": "empty",
    "datemultirange": "{[2026-01-01,2026-02-01)}",
    "status": "so: so",
    "price": "12345678.90",
    "address": '("High Street",7,2026-11-21,odd,"(1,2)")',
    "moods": "{fine}",
    "tsvector": "a:1",
}


def test_a_table_with_every_type_that_there_is(bare: World) -> None:
    """Each of them, and an array of each, gets a field that takes its values, or is left out with a reason."""
    bare.sql(OWN_TYPES)
    types = bare.sql(TYPES)
    assert len(types) > 60
    columns = [f'"c {name}" {type_}' for type_, name in types]
    columns += [f'"a {name}" {type_}[]' for type_, name in types if name != "int2vector"]
    bare.sql(f"CREATE TABLE everything (id integer PRIMARY KEY, {', '.join(columns)})")
    sampled = {name: SAMPLES[name] for _, name in types if name in SAMPLES}
    quoted = ", ".join(f'"c {name}", "a {name}"' for name in sampled)
    values = [value for type_, name in types if name in sampled for value in (sampled[name], [sampled[name]])]
    marks = ", ".join(f"%s::{type_}, (%s::text[])::{type_}[]" for type_, name in types if name in sampled)
    bare.sql(f"INSERT INTO everything (id, {quoted}) VALUES (1, {marks})", *values)
    bare.sql("INSERT INTO everything (id) VALUES (2)")
    printed = drafted(bare, "--table", "everything")
    left_out = " ".join(line for line in printed.splitlines() if line.startswith("  left out, since"))
    for name in ("c bytea", "a bytea", "c tsvector", "c regclass", "a regrole"):
        assert f"everything.{name}" in left_out
    followed(bare)
    shown = bare.held("everything")["1"]
    assert shown["c address"]["number"] == 7
    assert shown["a jsonb"] == [{"a": 1}]
    assert mapping(bare, "everything")["c tstzrange"] == {"type": "date_range"}
    assert (shown["c numrange"], shown["c daterange"]) == ({"gt": 1.5}, None)
    assert shown["c price"] == 12345678.90
    assert shown.keys() >= {f"c {name}" for name in sampled if name not in ("bytea", "tsvector")}


PEOPLE = """
CREATE SCHEMA "Shop";
CREATE TABLE countries (code text, region text, name text, PRIMARY KEY (code, region));
CREATE TABLE people (
    id bigint PRIMARY KEY, boss_id bigint REFERENCES people, code text, region text, data jsonb, name text NOT NULL,
    email text, "passwordHash" text, date_of_birth date, email_verified boolean, password_changed_at timestamptz,
    FOREIGN KEY (code, region) REFERENCES countries
);
CREATE TABLE badges (person_id bigint PRIMARY KEY REFERENCES people, number integer);
CREATE TABLE skills (id integer PRIMARY KEY, name text);
CREATE TABLE people_skills (
    person_id bigint REFERENCES people, skill_id integer REFERENCES skills, PRIMARY KEY (person_id, skill_id)
);
CREATE TABLE "Shop"."Visits" (
    person bigint REFERENCES people, place text, day date, host bigint REFERENCES people, notes jsonb,
    PRIMARY KEY (person, place, day)
) PARTITION BY LIST (place);
CREATE TABLE "Shop"."Visits1" PARTITION OF "Shop"."Visits" FOR VALUES IN ('there');
INSERT INTO countries VALUES ('a:b', 'c', 'one'), ('a', 'b:c', 'two');
INSERT INTO people VALUES (1, NULL, 'a', 'b:c', '[1]', 'Ada', 'a@b', 'x', '1990-01-01', true, now());
INSERT INTO people VALUES (2, 1, 'a:b', 'c', NULL, 'Bob');
INSERT INTO badges VALUES (1, 7);
INSERT INTO skills VALUES (1, 'SQL'), (2, 'Go');
INSERT INTO people_skills VALUES (1, 1), (1, 2);
INSERT INTO "Shop"."Visits" SELECT id, 'there', '2026-11-21', boss_id, '{"n": 1}' FROM people;
"""


def test_a_wide_table_raises_the_limit_of_fields(bare: World) -> None:
    """Its draft is put active as it is."""
    columns = ", ".join(f"c{number} text" for number in range(600))
    bare.sql(f"CREATE TABLE wide (id int PRIMARY KEY, {columns}); INSERT INTO wide (id) VALUES (1)")
    drafted(bare, "--table", "public.wide")
    followed(bare)


def test_references_are_objects_and_tables_that_refer_are_arrays(bare: World) -> None:
    """Keys of several columns, to the table itself, of link tables; quoted names; a document of each table."""
    bare.sql(PEOPLE)
    referring = ("badges", "people_skills", '"Shop"."Visits"')
    drafted(bare, "--table", "public.people", *(word for name in referring for word in ("--with", name)))
    columns = ("id", "email", "passwordHash", "date_of_birth", "password_changed_at")
    printed = bare.syncer("init", "--table", "people", "--name", "x").stdout
    assert ", ".join(f"people.{name}" for name in columns[1:]) in printed
    drafted(bare, "--table", "people", "--name", "x", "--columns", "--force")
    assert mapping(bare, "x").keys() >= {*columns}
    shutil.rmtree(bare.config / "documents" / "x")
    drafted(bare, "--table", "countries")
    drafted(bare, "--table", "skills")
    assert "--with adds" not in drafted(bare, "--table", '"Shop"."Visits"', "--name", "visits")
    people = mapping(bare, "people")
    assert (people["skills"]["type"], people["badge"].get("type")) == ("nested", None)
    # What looks personal or secret is left out, and a flag beside it is not.
    assert not people.keys() & {"email", "passwordHash", "date_of_birth"}
    assert people.keys() >= {"email_verified", "name"}
    followed(bare)
    person, other = (bare.held("people")[id_] for id_ in ("1", "2"))
    assert person["countries"] == {"code": "a", "region": "b:c", "name": "two"}
    assert (person["data"], person["badge"]["number"]) == ([1], 7)
    assert person["skills"] == [{"id": 1, "name": "SQL"}, {"id": 2, "name": "Go"}]
    assert (other["boss"], other["visits_person"][0]["host"]["name"]) == ({"id": 1, "name": "Ada"}, "Ada")
    assert [visit["place"] for visit in person["visits_host"]] == ["there"]
    # Keys that differ only in where a colon stands are two documents.
    assert (len(bare.held("countries")), len(bare.held("visits"))) == (2, 2)


def test_what_is_there_is_kept_and_compared_with_a_new_draft(bare: World) -> None:
    """A second draft is shown as a difference, even if the SELECT fails; only index.json gets what it lacks."""
    bare.sql(BLOG_SCHEMA.read_text())
    drafted(bare, "--table", "posts")
    settings, select = bare.config / "syncer.yaml", bare.config / "documents" / "posts" / "select.sql"
    settings.write_text("# mine\n")
    own_select = select.read_text().replace("p.body,", "lower(p.body) AS small,")
    select.write_text(own_select)
    bare.sql("ALTER TABLE posts ADD subtitle text")
    difference = bare.syncer("init", "--table", "posts").stdout.splitlines()
    assert {"-    lower(p.body) AS small,", "+    p.body,", "+    p.subtitle,"} <= {line[2:] for line in difference}
    assert (select.read_text(), settings.read_text()) == (own_select, "# mine\n")
    assert "small" in mapping(bare, "posts")
    assert "Nothing to add" in bare.syncer("init", "--table", "posts").stdout
    bare.sql("ALTER TABLE posts RENAME body TO words")
    refused = bare.syncer("init", "--table", "posts")
    assert ("+    p.words," in refused.stdout, "p.body does not exist" in refused.stderr) == (True, True)
    assert select.read_text() == own_select
    drafted(bare, "--table", "posts", "--force")
    assert ("p.subtitle" in select.read_text(), settings.read_text()) == (True, "# mine\n")


PRINTED = """
CREATE TABLE makers (id int PRIMARY KEY, name text); CREATE TABLE "Item" (a int, b date, note text, PRIMARY KEY (a, b));
CREATE TABLE goods (id int PRIMARY KEY, maker_id int REFERENCES makers, name text);
INSERT INTO makers VALUES (1, 'one'); INSERT INTO goods VALUES (1, 1, 'FROM "x" LIMIT 1'), (2, NULL, 'two');
INSERT INTO "Item" VALUES (1, '1899-01-01', 'x'), (1, '2026-01-01', NULL);
"""


@pytest.mark.parametrize(
    ("printed", "changes", "ids"),
    [
        (
            "  Goods Load (0.4ms)  SELECT goods.* FROM goods ORDER BY goods.id LIMIT 11",
            ("around", "left out ORDER"),
            "12",
        ),
        (
            (
                'SELECT "goods"."id", "makers"."id", ("goods"."name") AS "name" FROM "goods" LEFT JOIN "makers" ON '
                """("makers"."id" = "goods"."maker_id") WHERE NOT ("goods"."name" = 'a, FROM b');"""
            ),
            ("named the second id makers_id",),
            "12",
        ),
        ('SELECT i."note" FROM public."Item" i WHERE i.note IS NOT NULL', ("by the key of public.",), ["1:-25932"]),
        ("SELECT DISTINCT goods.name FROM goods", ("added goods.id AS _id",), "12"),
        ("-- goods with a name\nSELECT goods.name FROM goods", ("added goods.id AS _id",), "12"),
    ],
)
def test_what_an_orm_prints_becomes_a_document(
    bare: World, printed: str, changes: tuple[str, ...], ids: list[str]
) -> None:
    """The _id is made of the primary key; what is changed is said; texts that look like SQL stay."""
    bare.sql(PRINTED)
    file = bare.folder / "printed.sql"
    file.write_text(printed)
    told = drafted(bare, "--from-select", str(file))
    assert [change for change in changes if change not in told] == []
    followed(bare)
    assert sorted(bare.held("printed")) == [*ids]


def test_a_table_that_cannot_be_drafted_is_explained(bare: World) -> None:
    """No table, none of that name, no key, no rights: each is one sentence, and nothing is written."""
    assert "no table at all" in bare.syncer("init", "--table", "x").stderr
    bare.sql("""
        CREATE TABLE plain (a text); CREATE VIEW seen AS SELECT 1 AS a; CREATE UNLOGGED TABLE fast (id int PRIMARY KEY);
        CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA other; CREATE TABLE other.a (id int PRIMARY KEY);
        CREATE TABLE other."B c" (id int PRIMARY KEY)
    """)
    for arguments, expected in (
        ("--table plain", "no primary key"),
        ("--table seen", "AS _id, * FROM public.seen"),
        ("--table fast", "unlogged"),
        ("--table nope", 'other."B c"'),
        ("--table a --with other.a", "public.a has no table or reference other.a"),
        ("--table a --with b.c", "public.a has no table or reference b.c"),
        ("--table a --name x/../y", "valid document name"),
    ):
        ended = bare.syncer("init", *arguments.split())
        assert (ended.returncode in (1, 2), expected in ended.stderr) == (True, True), (arguments, ended.stderr)
    assert bare.syncer("init").stdout.split("\n")[:2] == ["public.a", "public.plain"]
    role = f"stranger_{bare.name}"
    bare.sql(f"CREATE ROLE {role} LOGIN")
    try:
        as_role = {"SYNCER_POSTGRES_DSN": bare.dsn_of(role)}
        refused = bare.syncer("init", "--table", "a", environment=as_role).stderr
        assert ("may not read public.a" in refused, f"GRANT SELECT ON public.a TO {role}" in refused) == (True, True)
        bare.sql("CREATE SCHEMA closed CREATE TABLE t (id int PRIMARY KEY)")  # it is there: that is not denied
        refused = bare.syncer("init", "--table", "closed.t", environment=as_role).stderr
        assert "may not read closed.t" in refused
        assert f"GRANT USAGE ON SCHEMA closed TO {role}" in refused
    finally:
        bare.sql(f"DROP ROLE {role}")
    assert not (bare.config / "syncer.yaml").exists()


TEMPORAL = """
CREATE TABLE plans (id int, valid {range}, name text, PRIMARY KEY (id, valid));
CREATE TABLE seats (
    number int, plan_id int, during {range}, PRIMARY KEY (number, during),
    CONSTRAINT plan FOREIGN KEY (plan_id, during) REFERENCES plans
);
SET session_replication_role = replica;
INSERT INTO plans VALUES (1, '[{a},{b})', 'basic'), (1, '[{b},{d})', 'full'), (2, '[{a},{d})', 'other');
INSERT INTO seats VALUES (7, 1, '[{a},{c})'), (8, 1, '[{b},{d})');
UPDATE pg_constraint SET conperiod = true WHERE conname = 'plan';
"""
# An integer beside WITHOUT OVERLAPS needs btree_gist, which the embedded Postgres lacks: the catalogue is set instead.


@pytest.mark.parametrize(
    ("range_", "dates"),
    [
        ("daterange", ("2026-01-01", "2026-03-01", "2026-04-01", "2027-01-01")),
        ("int4range", ("1", "3", "4", "9")),
        ("numrange", ("0.5", "1.25", "1.5", "2")),
    ],
)
def test_a_temporal_foreign_key_leads_to_all_rows_of_its_period(
    bare: World, range_: str, dates: tuple[str, ...]
) -> None:
    """Ranges of a key with PERIOD overlap: they are not equal. Both directions become arrays."""
    if bare.sql("SELECT current_setting('server_version_num')::int < 180000")[0][0]:
        pytest.skip("Postgres 18 has temporal keys")
    bare.sql(TEMPORAL.format(range=range_, **dict(zip("abcd", dates, strict=True))))
    drafted(bare, "--table", "seats")
    drafted(bare, "--table", "plans", "--with", "seats")
    followed(bare)
    seats = {seat["number"]: [row["name"] for row in seat["plans"]] for seat in bare.held("seats").values()}
    plans = {plan["name"]: [row["number"] for row in plan["seats"]] for plan in bare.held("plans").values()}
    assert seats == {7: ["basic", "full"], 8: ["full"]}
    assert plans == {"basic": [7], "full": [7, 8], "other": []}


ORDERS = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, born date, tags text[]);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint NOT NULL, title text, extra jsonb, embedding real[]);
CREATE TABLE lines (order_id bigint, n integer, price numeric(8, 2), PRIMARY KEY (order_id, n));
INSERT INTO customers VALUES (1, 'Ada', '1990-01-02', '{a,b}');
INSERT INTO orders VALUES
    (1, 1, 'first', '{"gift": true, "due": "2026-12-24"}', '{0.5,1}'), (2, 1, NULL, '{"grams": 7}', '{1,1}');
INSERT INTO lines VALUES (1, 1, 4.75), (1, 2, 4.75);
"""
SELECT = """
WITH kept AS (SELECT l.order_id, l.n, l.price FROM lines AS l)
SELECT
    o.id AS _id, o.title, o.title IS NULL AS "isOpen", o.extra, o.extra -> 'nothing' AS nothing, o.embedding,
    (SELECT jsonb_build_object('name', c.name, 'born', c.born, 'tags', c.tags) FROM customers AS c
     WHERE c.id = o.customer_id) AS customer,
    coalesce((SELECT jsonb_agg(jsonb_build_object('n', k.n, 'price', k.price) ORDER BY k.n) FROM kept AS k
              WHERE k.order_id = o.id), '[]') AS lines,
    (SELECT array_agg(z.price ORDER BY z.n) FROM lines AS z WHERE z.order_id = o.id) AS prices
FROM orders AS o
"""
STORED = {"type": "object", "enabled": False}
DATA = {"type": "flat_object"} if VERSIONS.opensearch else {"type": "flattened", "ignore_above": 8191}
with_vectors = pytest.mark.skipif(VERSIONS.opensearch is not None, reason="the sandbox has no plugin for vectors")
EXPECTED: dict[str, Any] = {
    "title": TEXT,
    "isOpen": {"type": "boolean"},
    "customer": {"properties": {"name": TEXT, "born": {"type": "date"}, "tags": KEYWORD}},
    "lines": {"type": "nested", "properties": {"n": {"type": "integer"}, "price": {"type": "double"}}},
    "prices": {"type": "double"},
    "extra": DATA,
    "nothing": STORED,
    "embedding": {"type": "dense_vector", "dims": 2},
}


@pytest.fixture
def order(bare: World) -> Path:
    """The SELECT of a document that has nothing else."""
    bare.sql(ORDERS)
    file = bare.config / "documents" / "order" / "select.sql"
    file.parent.mkdir(parents=True)
    file.write_text(SELECT)
    return file


@with_vectors
def test_a_select_is_mapped_by_types(bare: World, order: Path) -> None:
    """Columns and what is inside JSON by the types that Postgres knows; what a sample decided is reported."""
    printed = drafted(bare, "--from-select", str(order))
    assert mapping(bare, "order") == EXPECTED
    assert ("embedding: its mapping is a guess" in printed, "extra: keys are data" in printed) == (True, True)
    assert "nothing: kept and shown, not searched" in printed
    followed(bare)
    assert "Nothing to add" in bare.syncer("init", "--from-select", str(order)).stdout


def test_a_column_that_the_first_documents_leave_empty_is_mapped_by_later_ones(bare: World) -> None:
    """Thousands of documents without a value stand before one that has it."""
    bare.sql("CREATE TABLE notes (id int PRIMARY KEY, extra jsonb, lines jsonb, marks jsonb, nothing jsonb)")
    bare.sql("INSERT INTO notes SELECT n, NULL, '[]', NULL, 'null' FROM generate_series(1, 3000) AS n")
    bare.sql("""INSERT INTO notes VALUES (9000, '{"size": 4}', '[{"on": "2026-11-27"}]', '["a", 1]', '[]')""")
    printed = drafted(bare, "--table", "notes")
    assert mapping(bare, "notes") == {
        "extra": DATA, "lines": DATA, "marks": KEYWORD, "nothing": STORED,
    }  # fmt: skip
    assert "nothing: kept and shown, not searched" in printed
    followed(bare)


POINT = '{"type": "Point", "coordinates": [13.4, 52.5]}'
SQUARE = '{"type": "Polygon", "coordinates": [[[13, 52], [14, 52], [14, 53], [13, 52]]]}'
PROJECTED = '{"type": "Point", "crs": {"type": "name", "properties": {}}, "coordinates": [1491, 6894]}'


def test_geojson_is_found_by_its_place(bare: World) -> None:
    """As PostGIS makes it of its types, or an application stores it. Other objects that have a type are none."""
    columns = {"spot": POINT, "stops": f"[{POINT}, {POINT}]", "none": '{"type": "Point", "x": 1}', "far": PROJECTED}
    bare.sql("CREATE TABLE shops (id int PRIMARY KEY, spot jsonb, stops jsonb, none jsonb, far jsonb, area jsonb)")
    bare.sql(f"INSERT INTO shops ({', '.join(columns)}, id) VALUES (%s, %s, %s, %s, 1)", *columns.values())
    printed = drafted(bare, "--table", "shops")
    point = {"type": "geo_point", "ignore_malformed": True}
    assert mapping(bare, "shops") == {
        "spot": point, "stops": point, "none": DATA, "far": DATA, "area": STORED,
    }  # fmt: skip
    assert "far: GeoJSON with a crs" in printed
    bare.sql("""INSERT INTO shops (id, spot) VALUES (2, '{"type": "Point", "coordinates": []}'), (3, %s)""", SQUARE)
    followed(bare)
    near = {"geo_distance": {"distance": "1km", "stops": [13.4, 52.5]}}
    with bare.elasticsearch() as client:
        client.indices.refresh(index=bare.alias_of("shops"))
        assert [hit["_id"] for hit in client.search(index=bare.alias_of("shops"), query=near)["hits"]["hits"]] == ["1"]
    bare.sql("UPDATE shops SET area = spot WHERE id IN (1, 3)")
    drafted(bare, "--table", "shops", "--force")
    assert mapping(bare, "shops")["area"] == mapping(bare, "shops")["spot"] == point | {"type": "geo_shape"}


GEOMETRY = """
CREATE SCHEMA "Geo"; CREATE TYPE "Geo".geometry AS (lon float8, lat float8);
CREATE FUNCTION "Geo".st_asgeojson("Geo".geometry) RETURNS text IMMUTABLE LANGUAGE sql
AS $$SELECT jsonb_build_object('type', 'Point', 'coordinates', ARRAY[($1).lon, ($1).lat])::text$$;
CREATE TABLE shops (id int PRIMARY KEY, spot "Geo".geometry); INSERT INTO shops VALUES (1, (13.4, 52.5)), (2, NULL)
"""
"""What a draft uses of PostGIS, in a schema that the search_path lacks."""


def test_a_geometry_is_drafted_as_a_place(bare: World) -> None:
    """PostGIS casts it to JSON with a crs, which is no place for Elasticsearch; ST_AsGeoJSON leaves that out."""
    bare.sql(GEOMETRY)
    drafted(bare, "--table", "shops")
    assert '"Geo".ST_AsGeoJSON(s.spot)::jsonb AS spot' in (
        bare.config / "documents" / "shops" / "select.sql"
    ).read_text(encoding="utf-8")
    assert mapping(bare, "shops") == {"spot": {"type": "geo_point", "ignore_malformed": True}}
    followed(bare)


@with_vectors
def test_what_the_user_has_set_is_kept(bare: World, order: Path) -> None:
    """Only fields that index.json lacks are added, at any level; objects that say what to do with others stay."""
    ours: dict[str, Any] = {
        "title": {"type": "text", "analyzer": "english"},
        "customer": {"type": "nested", "properties": {"name": {"type": "keyword"}}},
        "lines": {"dynamic": "false", "properties": {}},
        "extra": {"type": "flattened"},
    }
    body = {"settings": {"number_of_replicas": 0}, "mappings": {"dynamic": "false", "properties": ours}}
    file = order.parent / "index.json"
    file.write_text(json.dumps(body))
    drafted(bare, "--from-select", str(order))
    extended = json.loads(file.read_text())
    assert (extended["settings"], extended["mappings"]["dynamic"]) == (body["settings"], "false")
    customer = EXPECTED["customer"]["properties"] | {"name": {"type": "keyword"}}
    assert mapping(bare, "order") == EXPECTED | ours | {"customer": {"type": "nested", "properties": customer}}
    # After a change of the SELECT, it adds what is new.
    order.write_text(SELECT.replace("'name', c.name,", "'name', c.name, 'id', c.id,"))
    drafted(bare, "--from-select", str(order))
    assert mapping(bare, "order")["customer"]["properties"] == customer | {"id": {"type": "long"}}


SHAPES = """
CREATE TYPE mood AS ENUM ('fine', 'bad'); CREATE DOMAIN amount AS numeric(9);
CREATE TABLE kinds (id int PRIMARY KEY, mood mood, at timestamptz, n amount, during daterange, marks uuid[], data json);
CREATE VIEW seen AS SELECT k.id, jsonb_build_object('mood', k.mood, 'at', k.at) AS inside FROM kinds AS k;
CREATE TABLE words (kind_id int REFERENCES kinds, locale text, word varchar, PRIMARY KEY (kind_id, locale));
"""


INSIDE_JSON: dict[str, tuple[str, dict[str, Any]]] = {
    "of_a_view": (
        "(SELECT s.inside FROM seen AS s WHERE s.id = k.id)",
        {"properties": {"mood": KEYWORD, "at": {"type": "date"}}},
    ),
    "whole_row": ("to_jsonb(k.*) - 'data'", STORED),
    "of_a_case": (
        "CASE WHEN k.id > 1 THEN jsonb_build_object('a', k.n) ELSE jsonb_build_object('b', k.id > 2) END",
        {"properties": {"a": {"type": "long"}, "b": {"type": "boolean"}}},
    ),
    "of_a_cte": (
        """(WITH w AS (SELECT x.kind_id, array_agg(x.word ORDER BY x.locale) AS all FROM words AS x GROUP BY x.kind_id)
        SELECT json_build_object('words', w.all, 'first', k.marks[1]) FROM w WHERE w.kind_id = k.id)""",
        {"properties": {"words": KEYWORD, "first": KEYWORD}},
    ),
    "of_a_union": (
        """coalesce((SELECT jsonb_agg(u.o ORDER BY u.o) FROM (
            SELECT w.kind_id, jsonb_build_object('l', w.locale) AS o FROM words AS w
            UNION ALL SELECT l.id, jsonb_build_object('n', l.n) FROM kinds AS l
        ) AS u WHERE u.kind_id = k.id), '[]'::jsonb)""",
        {"type": "nested", "properties": {"l": TEXT, "n": {"type": "long"}}},
    ),
    "any_keys": ("(SELECT jsonb_object_agg(w.locale, w.word) FROM words AS w WHERE w.kind_id = k.id)", DATA),
    "keys_of_data": (
        "jsonb_build_object('by', jsonb_build_object(k.mood, k.n), 'x.y', 1)",
        {"dynamic": False, "properties": {"by": DATA}},
    ),
    "bounds": ("jsonb_build_object('gte', lower(k.during), 'lt', upper(k.during))", {"type": "date_range"}),
    "place": ("json_build_object('lat', 1.5, 'lon', k.id)", {"type": "geo_point", "ignore_malformed": True}),
    "of_a_text": ("(SELECT w.word FROM words AS w WHERE w.kind_id = k.id AND w.locale = '')::jsonb", STORED),
    "as_jsonb": ("(SELECT json_agg(w.word ORDER BY w.locale) FROM words AS w WHERE w.kind_id = k.id)::jsonb", KEYWORD),
    "added": (
        "jsonb_build_object('a', k.n) || jsonb_build_object('at', k.at)",
        {"properties": {"a": {"type": "long"}, "at": {"type": "date"}}},
    ),
}
"""Expressions by the names of their columns, and the mapping of each."""


def test_postgres_tells_the_types_inside_json(bare: World) -> None:
    """Through subqueries, views, CTEs, UNION, CASE, COALESCE and aggregates, without a single row."""
    bare.sql(SHAPES)
    columns = ", ".join(f"{expression} AS {name}" for name, (expression, _) in INSIDE_JSON.items())
    folder = bare.define("kind", f"SELECT k.id AS _id, {columns} FROM kinds AS k")
    drafted(bare, "--from-select", str(folder / "select.sql"))
    assert mapping(bare, "kind") == {name: field for name, (_, field) in INSIDE_JSON.items()}
    bare.sql("INSERT INTO kinds VALUES (2, 'bad', now(), 7, '[2026-01-01,2026-02-01)', NULL, '[1]')")
    bare.sql("INSERT INTO words VALUES (2, 'de', 'ja'), (2, 'fr', 'oui')")
    followed(bare)


@pytest.mark.parametrize(
    ("types", "values"),
    [
        (("int", "timestamptz"), ("7", "1899-12-31 23:00:00.123456+01")),
        (("text", "date"), ("a:b", "0044-03-15 BC")),
        (("timestamp(0)", "uuid"), ("2026-11-28 14:00", "7f3d5a70-6f2c-4b0a-9b57-3a2f6b9f7f0e")),
    ],
)
def test_a_composed_id_is_found_by_the_index_that_init_prints(
    bare: World, types: tuple[str, str], values: tuple[str, str]
) -> None:
    """Its text is immutable, whatever the types; once the index is there, init and plan ask for none."""
    bare.sql(f"CREATE TABLE pairs (a {types[0]}, b {types[1]}, v text, PRIMARY KEY (a, b))")
    bare.sql(f"INSERT INTO pairs VALUES (%s::{types[0]}, %s::{types[1]}, 'x')", *values)
    bare.sql(drafted(bare, "--table", "pairs").partition("found by _id with: ")[2].splitlines()[0])
    second_draft = bare.syncer("init", "--table", "pairs", "--force").stdout
    assert "CREATE INDEX" not in second_draft
    drafted(bare, "--table", "pairs", "--force")
    select = (bare.config / "documents" / "pairs" / "select.sql").read_text()
    with bare.application() as connection:
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute(f"EXPLAIN SELECT FROM ({select}) AS d WHERE d._id = ANY ('{{x,y}}')").fetchall()
    assert any("Index" in line for (line,) in plan)
    followed(bare)


def test_a_key_that_no_index_can_find_is_said(bare: World) -> None:
    """The text of an enum is not immutable: labels may be renamed."""
    bare.sql("CREATE TYPE size AS ENUM ('s', 'm'); CREATE TABLE sizes (id int, size size, PRIMARY KEY (id, size))")
    bare.sql("INSERT INTO sizes VALUES (1, 's'), (1, 'm')")
    assert "no index can find" in drafted(bare, "--table", "sizes")
    followed(bare)


def test_no_column_is_lost_by_a_name_or_a_reference(bare: World) -> None:
    """A text named like a reference, a reference to other columns than the key, and one that is declared twice."""
    bare.sql("""
        CREATE TABLE firms (id int, town int, code text UNIQUE, name text, UNIQUE (id), PRIMARY KEY (town, id));
        CREATE TABLE staff (
            id int PRIMARY KEY, town int, firm text, firm_id int REFERENCES firms (id),
            code text REFERENCES firms (code),
            FOREIGN KEY (town, firm_id) REFERENCES firms
        );
        INSERT INTO firms VALUES (1, 7, 'c', 'Firm'); INSERT INTO staff VALUES (1, 7, 'text', 1, 'c');
    """)
    drafted(bare, "--table", "staff")
    followed(bare)
    shown = bare.held("staff")["1"]
    assert (shown["firm"], shown["firm_2"]["name"], shown["town"], shown["code"]) == ("text", "Firm", 7, "c")
    assert [value["name"] for value in shown.values() if isinstance(value, dict)] == ["Firm", "Firm"]


def test_a_draft_says_that_the_search_server_could_not_be_asked(bare: World) -> None:
    """A draft needs none. Without it, or a login that it takes, the types may be those of another server."""
    bare.sql("CREATE TABLE notes (id int PRIMARY KEY, body text)")
    assert "could not be asked" not in bare.prints("init", "--table", "notes")
    away = {"SYNCER_ELASTICSEARCH_URL": "http://127.0.0.1:9"}
    printed = bare.prints("init", "--table", "notes", "--force", environment=away)
    assert "types are those of Elasticsearch, since the search server could not be asked" in printed
