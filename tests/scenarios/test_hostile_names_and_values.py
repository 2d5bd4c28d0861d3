"""Names that are hostile to SQL, ids that are hostile to URLs, values that are hostile to formats: all go through."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import psycopg
from psycopg import sql

import syncer
from tests.support.world import REPOSITORY, World

SCHEMA = 'Sch"e%s.ma'
# 63 bytes, the longest that Postgres has; keywords; what formats, LIKE, JSON and psycopg might take for theirs.
TABLES = ("select", "ta'b\"le.%(x)s {0} $1 \\ \N{SNOWMAN} ;--")
COLUMNS = (
    *(
        "user",
        "group",
        "Order",
        'qu"ote',
        "apo'strophe",
        "per%cent",
        "%s",
        "%(name)s",
        "{}",
        "{0}",
        "$1",
        "$$",
        "back\\slash",
    ),
    *(
        "with.dot",
        "with space",
        "semi;colon--",
        "\N{LATIN SMALL LETTER E WITH ACUTE}t\N{LATIN SMALL LETTER E WITH ACUTE}",
    ),
    *(
        "\N{SNOWMAN}" * 21,
        "x" * 63,
        "line\nbreak",
        "/* comment */",
        "old",
        "new",
        "old_rows",
        "trigger",
        "image",
        "gone",
    ),
)
IDS = (
    *(
        "a/b",
        "a'b",
        'a"b',
        "a\nb",
        "a b",
        "%s",
        "%(id)s",
        "{}",
        "$1",
        "a,b",
        "*",
        "?q=1",
        "#",
        "..",
        "a\\b",
        "\N{SNOWMAN}",
        "1",
    ),
    *(" ", "null", "_id", "i" * 512, "\N{SNOWMAN}" * 170, "'; DROP TABLE users; --", "a\tb", '{"a": 1}', "[1]", "a:b"),
)
PAYLOADS = (
    *(
        "%s %(x)s {} {0} $1",
        "'; DROP SCHEMA syncer CASCADE; --",
        '"}\n{"index": {}}\n',
        "\\u0000 \\ud800",
        "</script><script>",
    ),
    *("\x01\x1f\x7f\u2028\ufeff", "\N{PILE OF POO}" * 50, "", "line\r\nbreak"),
)


def quoted(*names: str) -> sql.Identifier:
    """A name as SQL has it."""
    return sql.Identifier(*names)


def test_names_that_are_hostile_to_sql(empty_world: World) -> None:
    """Tables and columns of any name are captured, derived, composed and repaired; and so drafted."""
    world, (one, other) = empty_world, TABLES
    shutil.rmtree(world.config / "documents")
    columns = sql.SQL(", ").join(sql.SQL("{} text").format(quoted(name)) for name in COLUMNS)
    with world.application() as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(quoted(SCHEMA)))
        connection.execute(
            sql.SQL("CREATE TABLE {} (id int, {}, PRIMARY KEY (id))").format(quoted(SCHEMA, one), columns)
        )
        connection.execute(
            sql.SQL("CREATE TABLE {} ({} int REFERENCES {}, no int, {} text, PRIMARY KEY ({}, no))").format(
                quoted(SCHEMA, other), quoted("%s"), quoted(SCHEMA, one), quoted('"'), quoted("%s")
            )
        )
    drafted = world.syncer("init", "--table", f"{SCHEMA}.{one}", "--with", f"{SCHEMA}.{other}", "--name", "posts")
    assert drafted.returncode == 0, drafted.stderr
    (world.config / "documents" / "posts" / "document.yaml").write_text(f"index: {world.alias_of('posts')}\n")
    world.documents = ("posts",)
    world.migrate()
    world.apply()
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        with world.application() as connection:
            names = sql.SQL(", ").join(map(quoted, COLUMNS))
            # As literals: with parameters, a percent sign in a name would be taken for one.
            values = sql.SQL(", ").join(map(sql.Literal, COLUMNS))
            connection.execute(
                sql.SQL("INSERT INTO {} (id, {}) SELECT n, {} FROM generate_series(1, 3) AS n").format(
                    quoted(SCHEMA, one), names, values
                )
            )
            connection.execute(
                sql.SQL("INSERT INTO {} SELECT 1, n, {} FROM generate_series(1, 2) AS n").format(
                    quoted(SCHEMA, other), sql.Literal("%s")
                )
            )
        world.drain(relay, worker)
        assert len(world.held("posts")) == 3
        with world.application() as connection:
            connection.execute(
                sql.SQL("UPDATE {} SET {} = 'x' WHERE id = 2").format(quoted(SCHEMA, one), quoted("per%cent"))
            )
            connection.execute(sql.SQL("DELETE FROM {} WHERE no = 1").format(quoted(SCHEMA, other)))
        world.drain(relay, worker)
        with world.application() as connection:
            connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(quoted(SCHEMA, one)))
        world.drain(relay, worker)
    assert world.held("posts") == {}


def test_ids_and_values_that_are_hostile_to_formats(empty_world: World) -> None:
    """Every id that Elasticsearch takes is written, found, explained and deleted, whatever it shows."""
    world = empty_world
    shutil.rmtree(world.config / "documents")
    folder = world.config / "documents" / "posts"
    folder.mkdir(parents=True)
    (folder / "document.yaml").write_text(f"index: {world.alias_of('posts')}\n")
    (folder / "select.sql").write_text("SELECT p.id AS _id, p.body, p.data FROM posts AS p\n")
    (folder / "index.json").write_text('{"mappings": {"properties": {"data": {"enabled": false, "type": "object"}}}}')
    world.documents = ("posts",)
    world.sql("CREATE TABLE posts (id text PRIMARY KEY, body text, data jsonb)")
    world.migrate()
    world.apply()
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        for number, id_ in enumerate(IDS):
            body = PAYLOADS[number % len(PAYLOADS)]
            world.sql("INSERT INTO posts VALUES (%s, %s, %s)", id_, body, json.dumps({body: [body]}))
        world.drain(relay, worker)
        assert world.held("posts").keys() == set(IDS)
        for id_ in ("a/b", "a\nb", "%s", "'; DROP TABLE users; --"):
            explained = world.syncer("explain", "posts", id_, "--json", "--timeout", "2")
            assert json.loads(explained.stdout)["is_equal"], explained.stderr
        listed = world.folder / "ids"
        lines = [one for one in IDS if one.strip() == one and "\n" not in one]
        listed.write_text("\r\n".join(lines), encoding="utf-8-sig")  # as an editor of Windows leaves it
        written = world.syncer("backfill", "posts", "--ids", str(listed), "--json")
        assert json.loads(written.stdout)["job"]["indexed"] == len(lines), written.stderr
        world.sql("DELETE FROM posts WHERE length(id) < 400")
        world.drain(relay, worker)
    assert len(world.held("posts")) == 1


SOURCE = Path(syncer.__file__).parent
_ALIAS = r"\bAS (?:NOT )?(?:MATERIALIZED )?([a-z_][a-z0-9_]*)\b"
_CTE = r"(?:WITH|RECURSIVE|,) ([a-z_]+)(?: \([a-z, ]+\))? AS \("
ALIASES = sorted(
    {"n0", "n1", "syncer row", "syncer_probe"}.union(
        name
        for file in [*SOURCE.rglob("*.py"), *(REPOSITORY / "migrations").glob("*.sql")]
        for found in re.findall(f"{_ALIAS}|{_CTE}", file.read_text("utf-8"))
        for name in filter(None, found)
        if name not in ("id", "parent") and not name.startswith("_")
    )
)
"""Every alias and CTE in SQL of syncer's."""


def test_names_that_syncer_uses_itself(empty_world: World) -> None:
    """As columns of plain and composite types, as tables and as functions: documents are as the SELECT says."""
    world = empty_world
    assert {"fields", "d", "r", "touched"} <= {*ALIASES}
    names = [sql.Identifier(name) for name in ALIASES]
    listed = sql.SQL(", ").join
    statements: list[sql.Composable] = [sql.SQL("CREATE TYPE pair AS (k text, v int)")]
    for table, kind in (("of_texts", "text"), ("of_jsons", "jsonb"), ("of_pairs", "pair")):
        columns = [sql.SQL("{} {}").format(name, sql.SQL(kind)) for name in names]
        statements.append(
            sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, parent int, {})").format(
                sql.Identifier(table), listed(columns)
            )
        )
    statements += [sql.SQL("CREATE TABLE public.{} (id int PRIMARY KEY, label text)").format(name) for name in names]
    statements += [
        sql.SQL(
            "CREATE FUNCTION public.{}(anyelement) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'trap' $$"
        ).format(sql.Identifier(name))
        for name in {*ALIASES, "row_to_json", "to_json", "to_jsonb", "array_to_string", "concat", "coalesce_"}
    ]
    world.sql("; ".join(statement.as_string() for statement in statements))
    for table in ("of_texts", "of_jsons", "of_pairs"):
        folder = world.config / "documents" / table
        folder.mkdir(parents=True)
        (folder / "document.yaml").write_text(f"index: {world.alias_of(table)}\n")
        (folder / "index.json").write_text('{"mappings": {"enabled": false}}')
        fields = listed(sql.Identifier("t", name) for name in ALIASES).as_string()
        (folder / "select.sql").write_text(
            f"SELECT t.id AS _id, {fields}, (SELECT f.label FROM fields AS f WHERE f.id = t.parent) AS label_of, "
            f"(SELECT d.label FROM d WHERE d.id = t.parent) AS label_too FROM {table} AS t"
        )
    shutil.rmtree(world.document_folder)
    world.documents = ("of_texts", "of_jsons", "of_pairs")
    world.migrate()
    world.sql("INSERT INTO fields VALUES (1, 'one'); INSERT INTO d VALUES (1, 'two')")
    values = {"of_texts": "'plain'", "of_jsons": """'{"k": [1.00]}'""", "of_pairs": "ROW('x', 1)::pair"}
    for table, value in values.items():
        world.sql(
            f"INSERT INTO {table} SELECT n, 1, {', '.join([value] * len(ALIASES))} FROM generate_series(1, 3) AS n"
        )
    planned = world.syncer("plan")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    world.apply()
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        world.sql(
            "UPDATE fields SET label = 'changed'; DELETE FROM of_texts WHERE id = 3; UPDATE of_pairs SET parent = 2"
        )
        world.drain(relay, worker)
        for table in values:
            assert world.held(table) == world.expected(table)
            verified = world.syncer("verify", table, "--json")
            assert verified.returncode == 0, verified.stdout


def test_a_database_that_is_not_in_utf8_is_refused(empty_world: World) -> None:
    """Its text may have no UTF-8 form, so that no relay could read the change of such a key."""
    name = f"{empty_world.name}-ascii"
    with psycopg.connect(empty_world.endpoints.postgres_dsn, autocommit=True) as admin:
        admin.execute(f"""CREATE DATABASE "{name}" TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'""")
        try:
            dsn = f"{empty_world.dsn.rsplit('/', 1)[0]}/{name}"
            refused = empty_world.syncer("migrate", environment={"SYNCER_POSTGRES_DSN": dsn})
        finally:
            admin.execute(f'DROP DATABASE "{name}"')
    assert refused.returncode == 1
    assert f"The database {name} has the encoding SQL_ASCII; syncer needs UTF8" in " ".join(refused.stderr.split())
