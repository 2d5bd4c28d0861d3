"""Whatever writes a captured table, and whatever is in it, the outbox holds the row."""

from __future__ import annotations

import shutil

import psycopg
import pytest

from syncer.base.model import Change
from syncer.lineage import routes
from tests.support import capture as capturing
from tests.support.capture import capture_only, define, forget, install, written
from tests.support.world import World

FAMILY = """
CREATE TABLE parents (id int PRIMARY KEY, code int UNIQUE, name text);
CREATE TABLE children (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text,
    by_cascade int REFERENCES parents (code) ON UPDATE CASCADE ON DELETE CASCADE,
    by_null int REFERENCES parents ON DELETE SET NULL,
    by_default int DEFAULT 3 REFERENCES parents ON DELETE SET DEFAULT
);
INSERT INTO parents VALUES (1, 10, 'one'), (2, 20, 'two'), (3, 30, 'three');
INSERT INTO children (name, by_cascade, by_null, by_default) VALUES ('a', 10, NULL, NULL), ('b', NULL, 1, 1);
"""
CHILDREN = "SELECT c.id AS _id, c.name, c.by_cascade, c.by_null, c.by_default FROM children AS c"


def child(operation: str, id_: int) -> capturing.Change:
    """What is left by a child."""
    image = {"id": str(id_)}
    return "public.children", operation, None if operation == "I" else image, None if operation == "D" else image


@pytest.fixture
def family(empty_world: World) -> World:
    """Children that refer to their parents in several ways; only the children are captured."""
    capture_only(empty_world, FAMILY, CHILDREN)
    return empty_world


WAYS: dict[str, tuple[str, list[capturing.Change]]] = {
    "identity": (
        "INSERT INTO children (name) VALUES ('x'); INSERT INTO children OVERRIDING SYSTEM VALUE VALUES (99, 'y')",
        [child("I", 3), child("I", 99)],
    ),
    "copy_between_tables": ("INSERT INTO children (name) SELECT name FROM children", [child("I", 3), child("I", 4)]),
    "cascaded_update": ("UPDATE parents SET code = 11 WHERE id = 1", [child("U", 1)]),
    "cascaded_delete_and_null": ("DELETE FROM parents WHERE id = 1", [child("D", 1), *[child("U", 2)] * 2]),
    "upsert_that_does_nothing": (
        "INSERT INTO children OVERRIDING SYSTEM VALUE VALUES (1, 'x'), (50, 'y') ON CONFLICT DO NOTHING",
        [child("I", 50)],
    ),
    "update_from": (
        "UPDATE children AS c SET name = p.name FROM parents AS p WHERE p.code = c.by_cascade",
        [child("U", 1)],
    ),
    "delete_returning_into": (
        "WITH gone AS (DELETE FROM children RETURNING *) INSERT INTO children (name) SELECT name FROM gone",
        [child("D", 1), child("D", 2), child("I", 3), child("I", 4)],
    ),
    "several_in_one_statement": (
        (
            "WITH a AS (UPDATE children SET name = 'n' WHERE id = 1), b AS (DELETE FROM children WHERE id = 2) "
            "INSERT INTO children (name) VALUES ('m')"
        ),
        [child("D", 2), child("I", 3), child("U", 1)],
    ),
    "function": (
        (
            "CREATE FUNCTION rename() RETURNS void LANGUAGE plpgsql AS "
            "$$BEGIN FOR i IN 1..2 LOOP UPDATE children SET name = 'f' WHERE id = i; END LOOP; END$$; SELECT rename()"
        ),
        [child("U", 1), child("U", 2)],
    ),
    "rule_also": (
        (
            "CREATE RULE r AS ON UPDATE TO parents DO ALSO UPDATE children SET name = new.name WHERE by_null = new.id; "
            "UPDATE parents SET name = 'r'"
        ),
        [child("U", 2)],
    ),
    "rule_instead": (
        (
            "CREATE RULE r AS ON INSERT TO parents DO INSTEAD INSERT INTO children (name) VALUES (new.name); "
            "INSERT INTO parents VALUES (9, 9, 'r')"
        ),
        [child("I", 3)],
    ),
    "writable_view": (
        (
            "CREATE VIEW v AS SELECT id, name FROM children; "
            "UPDATE v SET name = 'v' WHERE id = 1; DELETE FROM v WHERE id = 2"
        ),
        [child("D", 2), child("U", 1)],
    ),
    "trigger_of_the_application": (
        (
            "CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.id := 77; RETURN NEW; END$$; "
            "CREATE TRIGGER t BEFORE INSERT ON children FOR EACH ROW EXECUTE FUNCTION t(); "
            "INSERT INTO children (name) VALUES ('t')"
        ),
        [child("I", 77)],
    ),
    "session_that_replicates": (
        "SET session_replication_role = replica; UPDATE children SET name = 'r' WHERE id = 1",
        [child("U", 1)],
    ),
    "cursor": (
        (
            "DECLARE c CURSOR FOR SELECT * FROM children WHERE id = 2; FETCH c; "
            "UPDATE children SET name = 'c' WHERE CURRENT OF c"
        ),
        [child("U", 2)],
    ),
}


@pytest.mark.parametrize(("way", "expected"), WAYS.values(), ids=WAYS.keys())
def test_each_way_leaves_what_it_did(family: World, way: str, expected: list[capturing.Change]) -> None:
    """Each changed row is in the outbox, whatever has changed it."""
    family.sql(way)
    assert written(family) == expected


@pytest.mark.parametrize("kind", ["", "BINARY"])
def test_copy_is_captured(family: World, kind: str) -> None:
    """COPY FROM, as text and binary."""
    with psycopg.connect(family.dsn) as one:
        options = f"(FORMAT {kind or 'TEXT'})"
        with one.cursor().copy(f"COPY children (id, name) FROM STDIN WITH {options}") as copy:
            if kind:
                copy.set_types(["int4", "text"])
            for id_ in (50, 51):
                copy.write_row((id_, "copied"))
    assert written(family) == [child("I", 50), child("I", 51)]


@pytest.mark.parametrize("force", ["ENABLE ROW LEVEL SECURITY", "FORCE ROW LEVEL SECURITY"])
@pytest.mark.parametrize("partitioned", ["", "PARTITION BY RANGE (id)"])
def test_row_level_security_hides_nothing_from_the_outbox(empty_world: World, force: str, partitioned: str) -> None:
    """The triggers see rows that neither the writer, nor their own owner, may see."""
    owner, writer = f"owner_{empty_world.name}", f"writer_{empty_world.name}"
    empty_world.sql(f"CREATE TABLE things (id int PRIMARY KEY, tenant text, name text) {partitioned}")
    if partitioned:
        empty_world.sql("CREATE TABLE things_1 PARTITION OF things DEFAULT")
    capture_only(empty_world, "", "SELECT t.id AS _id, t.name FROM things AS t")
    empty_world.sql(f"CREATE ROLE {owner}; CREATE ROLE {writer}")
    try:
        empty_world.sql(
            f"""
            ALTER TABLE things ENABLE ROW LEVEL SECURITY, {force};
            CREATE POLICY own ON things USING (false) WITH CHECK (false);
            CREATE POLICY writers ON things TO {writer} USING (tenant = 'mine') WITH CHECK (true);
            GRANT INSERT, UPDATE, DELETE, SELECT ON things TO {writer};
            GRANT USAGE, CREATE ON SCHEMA public TO {owner};
            ALTER TABLE things OWNER TO {owner};
            GRANT USAGE ON SCHEMA syncer TO {owner};
            GRANT INSERT ON syncer.outbox TO {owner}; GRANT SELECT ON syncer.outbox_segment TO {owner};
            ALTER FUNCTION syncer."capture_public.things" OWNER TO {owner};
            """
        )
        empty_world.sql(
            f"SET LOCAL ROLE {writer};"
            "INSERT INTO things VALUES (1, 'mine', 'a'); INSERT INTO things VALUES (2, 'other', 'b');"
            "UPDATE things SET tenant = 'other', name = 'c'"
        )
        image = {"id": "1"}
        assert written(empty_world) == [
            ("public.things", "I", None, image),
            ("public.things", "I", None, {"id": "2"}),
            ("public.things", "U", image, image),
        ]
    finally:
        empty_world.sql(f"DROP OWNED BY {owner}, {writer} CASCADE; DROP ROLE {owner}, {writer}")


# Values in images


VALUES = [
    ("text", r"""'quote '' " \ back'"""),
    ("text", r"E'\x01\t\n\r\x7f'"),
    ("text", "'☃ \U0001f600 é é'"),
    ("text", r"'\u0000'"),
    ("text", "''"),
    ("char(5)", "'ab'"),
    ("bigint", "9223372036854775807"),
    ("bigint", "9007199254740993"),
    ("numeric", "1.0"),
    ("numeric", "12345678901234567890123456789.000000000000000000001"),
    ("numeric", "'NaN'"),
    ("float8", "0.1::float8 + 0.2::float8"),
    ("float8", "'-Infinity'"),
    ("float8", "5e-324"),
    ("real", "16777217.123"),
    ("timestamptz", "'infinity'"),
    ("timestamptz", "'-infinity'"),
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
    ("int4range", "'(1,5]'"),
    ("daterange", "'[2020-01-31,)'"),
    ("tstzrange", "'[2020-01-31 12:00+03, infinity)'"),
    ("tstzrange[]", "ARRAY['[2020-03-04 12:00+03,)'::tstzrange]"),
    ("status", "'so so'"),
    ("status[]", "'{\"so so\",sad}'"),
    ("short", "'abc'"),
    ("pair", "ROW(1, 'x\"y')"),
    ("jsonb", '\'{"a": [12345678901234567890, null, 1.50, "1.50", 1e400]}\''),
    ("bit(3)", "B'101'"),
    ("oid", "4294967295"),
]
TYPES = """
CREATE TYPE status AS ENUM ('sad', 'so so');
CREATE DOMAIN short AS text CHECK (length(value) < 9);
CREATE TYPE pair AS (n int, t text);
"""
ODD_SETTINGS = (
    "SET LOCAL DateStyle = 'SQL, DMY'; SET LOCAL IntervalStyle = 'sql_standard'; SET LOCAL extra_float_digits = -9;"
    "SET LOCAL TimeZone = 'Asia/Kathmandu'; SET LOCAL bytea_output = 'escape'; SET LOCAL xmloption = document;"
)


RECORD = "SELECT id, extract(epoch FROM changed_at) AS changed_at, relation, operation, old, new FROM syncer.outbox"


def test_a_key_of_any_type_comes_back_from_its_image(empty_world: World) -> None:
    """An image read as syncer reads it is the row's key, byte by byte, whatever settings the writer's session had."""
    shutil.rmtree(empty_world.document_folder)
    empty_world.sql(TYPES)
    for number, (type_, _) in enumerate(VALUES):
        empty_world.sql(f"CREATE TABLE t{number} (k {type_} NOT NULL, name text)")
        empty_world.sql(f"CREATE UNIQUE INDEX ON t{number} (k)")
        define(
            empty_world,
            f"d{number}",
            f"SELECT t.k::text AS _id, t.name FROM t{number} AS t",
            **{f"t{number}": "SELECT c.k::text AS _id FROM %(rows)s AS c"},
        )
    empty_world.migrate()
    install(empty_world)
    for number, (type_, literal) in enumerate(VALUES):
        empty_world.sql(f"{ODD_SETTINGS} INSERT INTO t{number} VALUES ({literal}, 'a')")
        empty_world.sql(f"{ODD_SETTINGS} UPDATE t{number} SET name = 'b'")
        empty_world.sql(f"{ODD_SETTINGS} DELETE FROM t{number}")
        records = empty_world.sql(f"SELECT row_to_json(o)::text FROM ({RECORD}) AS o ORDER BY id")
        changes = [Change.parse(record.encode()) for (record,) in records]
        assert [change.operation.value for change in changes] == ["I", "U", "D"], literal
        with empty_world.connect() as connection:
            rows = routes.changed_rows(connection, f"public.t{number}").replace(routes.ROWS_MARK, "$1::jsonb")
            same = f"ROW(c.k::{type_})::record *= ROW(({literal})::{type_})::record"
            query = f"SELECT bool_and({same}), count(*) FROM {rows} AS c"
            connection.execute("SET search_path = public")  # where the types of the test are
            found = connection.execute(query, (Change.dump_images(changes),)).fetchone()
        assert found == (True, 4), (type_, literal, records)
        forget(empty_world)


FILED = """
CREATE TABLE files (id int PRIMARY KEY);
CREATE TABLE papers (id int PRIMARY KEY, doc json);
"""
FILES = """
SELECT f.id AS _id, (SELECT count(*) FROM papers AS p WHERE (p.doc ->> 'file')::int = f.id) AS number FROM files AS f
"""


def test_json_that_leads_to_a_document_fails_no_write(empty_world: World) -> None:
    r"""A routing column of type json may hold \u0000, and numbers that jsonb does not take; nothing of it changes."""
    capture_only(empty_world, FILED, FILES)
    empty_world.sql(r"""INSERT INTO papers VALUES (1, '{"file": 1, "text": "\u0000"}')""")
    assert written(empty_world) == [
        ("public.papers", "I", None, {"id": "1", "doc": r'{"file": 1, "text": "\u0000"}'}),
    ]
    empty_world.sql("""UPDATE papers SET doc = '{"file": 2, "number": 1e999999}'""")
    ((record,),) = empty_world.sql(f"SELECT row_to_json(o)::text FROM ({RECORD}) AS o")
    _, new = Change.parse(record.encode()).images
    assert new == {"id": "1", "doc": '{"file": 2, "number": 1e999999}'}


def test_a_watched_column_without_equality_is_watched(empty_world: World) -> None:
    """json, point and their like: a change is a change of the bytes."""
    tables = """
        CREATE TABLE things (id int PRIMARY KEY, doc json, spot point); INSERT INTO things VALUES (1, '{}', '(0,0)')
    """
    capture_only(empty_world, tables, "SELECT id AS _id, doc, spot FROM things")
    for change in ("doc = '{ }'", "spot = '(0,-0)'", "doc = NULL"):
        empty_world.sql(f"UPDATE things SET {change}")
        assert written(empty_world) == [("public.things", "U", {"id": "1"}, {"id": "1"})], change
        empty_world.sql(f"UPDATE things SET {change}")
        assert written(empty_world) == [], change


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
        (before,) = application.execute(toast).fetchall()
        application.execute("UPDATE things SET name = 'b'")
        (after,) = application.execute(toast).fetchall()
        assert before == after
