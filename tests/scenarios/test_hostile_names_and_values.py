"""Names, ids and values that are hostile to SQL, URLs and formats go through, and no value is logged."""

from __future__ import annotations

import json
import shutil
from typing import Any

import psycopg
from psycopg import sql

from tests.faults import harness
from tests.support.in_process import following
from tests.support.world import NOT_PARSED, World, wait_until

SCHEMA = 'Sch"e%s.ma'
# 63 bytes, the longest that Postgres has; keywords; what formats, LIKE, JSON and psycopg might take for theirs.
TABLES = ("select", "ta'b\"le.%(x)s {0} $1 \\ \N{SNOWMAN} ;--")
COLUMNS = (
    "user", "group", "Order", 'qu"ote', "apo'strophe", "per%cent", "%s", "%(name)s", "{}", "{0}", "$1", "$$",
    "back\\slash", "with.dot", "with space", "semi;colon--", "\N{LATIN SMALL LETTER E WITH ACUTE}t", "\N{SNOWMAN}" * 21,
    "x" * 63, "line\nbreak", "/* comment */", "old", "new", "old_rows", "trigger", "image", "gone",
)  # fmt: skip
IDS = (
    "a/b", "a'b", 'a"b', "a\nb", "a b", "%s", "%(id)s", "{}", "$1", "a,b", "*", "?q=1", "#", "..", "a\\b",
    "\N{SNOWMAN}", "1", " ", "null", "_id", "i" * 512, "\N{SNOWMAN}" * 170, "'; DROP TABLE users; --", "a\tb",
    '{"a": 1}', "[1]", "a:b",
)  # fmt: skip
PAYLOADS = (
    "%s %(x)s {} {0} $1", "'; DROP SCHEMA syncer CASCADE; --", '"}\n{"index": {}}\n', "\\u0000 \\ud800",
    "</script><script>", "\x01\x1f\x7f\u2028\ufeff", "\N{PILE OF POO}" * 50, "", "line\r\nbreak",
)  # fmt: skip


def follow_only(world: World, tables: str, select: str, fields: dict[str, Any], **affects: str) -> None:
    """Make one document active, on tables of its own."""
    shutil.rmtree(world.config / "documents")
    world.define("note", select, {"properties": fields}, **affects)
    world.documents = ("note",)
    world.sql(tables)
    world.migrate()
    world.apply()


def test_names_that_are_hostile_to_sql(empty_world: World) -> None:
    """Tables and columns of any name are captured, derived, composed and repaired; and so drafted."""
    world = empty_world
    one, other = (sql.Identifier(SCHEMA, table) for table in TABLES)
    shutil.rmtree(world.config / "documents")
    names, values = (sql.SQL(", ").join(map(kind, COLUMNS)) for kind in (sql.Identifier, sql.Literal))
    columns = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(name)) for name in COLUMNS)

    def execute(statement: str) -> None:
        """What an application does; as literals, since with parameters a percent sign in a name would be one."""
        with world.application() as connection:
            schema = sql.Identifier(SCHEMA)
            names_and_values = {
                "schema": schema,
                "one": one,
                "other": other,
                "columns": columns,
                "names": names,
                "values": values,
            }
            connection.execute(sql.SQL(statement).format(**names_and_values))

    execute("CREATE SCHEMA {schema}; CREATE TABLE {one} (id int, {columns}, PRIMARY KEY (id))")
    execute('CREATE TABLE {other} ("%s" int REFERENCES {one}, no int, """" text, PRIMARY KEY ("%s", no))')
    table, with_ = one.as_string(), other.as_string()
    world.prints("init", "--table", table, "--with", with_, "--name", "posts")
    (world.config / "documents" / "posts" / "document.yaml").write_text(f"index: {world.alias_of('posts')}\n")
    world.documents = ("posts",)
    world.migrate()
    world.apply()
    with harness.following(world) as follower:
        execute("INSERT INTO {one} (id, {names}) SELECT n, {values} FROM generate_series(1, 3) AS n")
        execute("INSERT INTO {other} SELECT 1, n, '%s' FROM generate_series(1, 2) AS n")
        follower.drain()
        assert len(world.held("posts")) == 3
        execute("""UPDATE {one} SET "per%cent" = 'x' WHERE id = 2; DELETE FROM {other} WHERE no = 1""")
        follower.drain()
        execute("TRUNCATE {one} CASCADE")
        follower.drain()
    assert world.held("posts") == {}


def test_ids_and_values_that_are_hostile_to_formats(empty_world: World) -> None:
    """Every id that Elasticsearch takes is written, found, explained and deleted, whatever it shows."""
    world = empty_world
    tables = "CREATE TABLE notes (id text PRIMARY KEY, body text, data jsonb)"
    fields = {"data": {"enabled": False, "type": "object"}}
    follow_only(world, tables, "SELECT n.id AS _id, n.body, n.data FROM notes AS n\n", fields)
    with harness.following(world) as follower:
        for number, id_ in enumerate(IDS):
            body = PAYLOADS[number % len(PAYLOADS)]
            world.sql("INSERT INTO notes VALUES (%s, %s, %s)", id_, body, json.dumps({body: [body]}))
        follower.drain()
        assert world.held("note").keys() == set(IDS)
        for id_ in ("a/b", "a\nb", "%s", "'; DROP TABLE users; --"):
            world.prints("explain", "note", id_, "--json")
        world.sql("DELETE FROM notes WHERE length(id) < 400")
        follower.drain()
    assert len(world.held("note")) == 1


LETTERS = "SELECT id, error FROM syncer.dead_letter"


def test_an_id_of_any_length_is_dead_lettered_and_holds_up_nobody(empty_world: World) -> None:
    """Elasticsearch takes none of more than 512 bytes, and an index of Postgres none of 3,000: it has a digest."""
    world = empty_world
    select = "SELECT n.code || n.id::text AS _id, n.name FROM notes AS n"
    follow_only(world, "CREATE TABLE notes (id int PRIMARY KEY, code text, name text)", select, {})
    with following(world):
        world.sql("INSERT INTO notes SELECT g, 'code' || g FROM generate_series(1, 3) AS g")
        # Of random characters, since what repeats itself is compressed.
        long = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 120) AS g)"
        world.sql(f"UPDATE notes SET code = {long} WHERE id = 2")
        wait_until(lambda: len(world.held("note")) == 2 and len(world.sql(LETTERS)) == 1, what="it is a dead letter")
        [(id_, error)] = world.sql(LETTERS)
        assert len(id_) < 200
        assert "512 bytes" in error
        assert "characters) missing" in world.syncer("verify").stdout
        world.sql("UPDATE notes SET code = 'short' WHERE id = 2")
        wait_until(lambda: len(world.held("note")) == 3 and world.sql(LETTERS) == [], what="it is written")


ALIASES = (
    "affected", "c", "changed", "chunk", "d", "document", "fields", "found", "image", "job", "listed", "n", "n0", "n1",
    "o", "r", "record", "stored", "syncer row", "syncer_probe", "t", "touched", "u", "x",
)  # fmt: skip
"""As syncer's own SQL names its tables, its CTEs and its columns."""


def test_names_that_syncer_uses_itself(empty_world: World) -> None:
    """As columns of plain and composite types, as tables and as functions: documents are as the SELECT says."""
    world = empty_world

    def all_(template: str, separator: str = ", ") -> str:
        """This text for every such name."""
        return separator.join(template.format(sql.Identifier(name).as_string()) for name in ALIASES)

    values = {"text": "'plain'", "jsonb": """'{"k": [1.00]}'""", "pair": "ROW('x', 1)::pair"}
    shutil.rmtree(world.config / "documents")
    world.documents = tuple(f"of_{kind}s" for kind in values)
    world.sql("CREATE TYPE pair AS (k text, v int)")
    world.sql(all_("CREATE TABLE public.{} (id int PRIMARY KEY, label text)", "; "))
    trap = "CREATE FUNCTION public.{}(anyelement) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'trap' $$"
    world.sql(all_(trap, "; "))
    world.sql("; ".join(map(trap.format, {"row_to_json", "to_json", "to_jsonb", "array_to_string"} - {*ALIASES})))
    for table, (kind, value) in zip(world.documents, values.items(), strict=True):
        world.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, parent int, {all_('{} ' + kind)})")
        listed = ", ".join([value] * len(ALIASES))
        world.sql(f"INSERT INTO {table} SELECT n, 1, {listed} FROM generate_series(1, 3) AS n")
        select = (
            f"SELECT t.id AS _id, {all_('t.{}')}, (SELECT f.label FROM fields AS f WHERE f.id = t.parent) AS label_of, "
            f"(SELECT d.label FROM d WHERE d.id = t.parent) AS label_too FROM {table} AS t"
        )
        world.define(table, select, {"enabled": False})
    world.migrate()
    world.sql("INSERT INTO fields VALUES (1, 'one'); INSERT INTO d VALUES (1, 'two')")
    world.prints("plan")
    world.apply()
    with harness.following(world) as follower:
        world.sql(
            "UPDATE fields SET label = 'changed'; DELETE FROM of_texts WHERE id = 3; UPDATE of_pairs SET parent = 2"
        )
        follower.drain()
        for table in world.documents:
            assert world.held(table) == world.expected(table)
            world.prints("verify", table, "--json")


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


VALUE = "Wert-der-Zeile"
"""What is in rows, and in nothing else."""
FRAGILE = """
SELECT n.id AS _id, nullif(n.title, 'fine')::integer AS number, n.body,
       (SELECT p.name FROM people AS p WHERE p.id = n.person) AS name FROM notes AS n
"""
AFFECTS = """
SELECT n.id AS _id FROM %(rows)s AS changed JOIN notes AS n ON n.person = changed.id
WHERE changed.name !~ 'poison' OR changed.name::integer > 0
"""


def test_errors_on_values_are_logged_without_them(empty_world: World) -> None:
    """A value that the mapping refuses, one that the SELECT raises on, and one that an affects query raises on."""
    world = empty_world
    tables = """
        CREATE TABLE people (id int PRIMARY KEY, name text);
        CREATE TABLE notes (id int PRIMARY KEY, person int, title text, body text)
    """
    follow_only(world, tables, FRAGILE, {"body": {"type": "integer"}}, people=AFFECTS)
    daemon = world.daemon(environment={"SYNCER_LOG_LEVEL": "debug"})
    world.sql("INSERT INTO people VALUES (1, %s)", VALUE)
    world.sql("INSERT INTO notes VALUES (1, 1, 'fine', %s), (2, 1, %s, '2')", VALUE, VALUE)
    wait_until(
        lambda: {event["sample_id"] for event in daemon.events() if "sample_id" in event} == {"1", "2"},
        what="both are dead letters",
        detail=daemon.log_file.read_text,
    )
    world.sql("UPDATE people SET name = %s WHERE id = 1", f"poison {VALUE}")
    daemon.wait_for("worker.changes_unresolved")
    world.sql("ALTER TABLE notes RENAME COLUMN title TO heading")
    daemon.wait_for("document.suspended")
    assert daemon.stop() == 0
    log = daemon.log_file.read_text()
    assert "body" in log or NOT_PARSED in log
    assert VALUE not in log
    for command in (("status",), ("dead-letters", "list", "--limit", "0"), ("jobs", "list"), ("doctor",)):
        ended = world.syncer("--debug", *command)
        assert VALUE not in ended.stderr, command


def test_no_value_of_a_refused_document_is_stored_or_shown(empty_world: World) -> None:
    """A number that is out of range, beside a secret in another field: no command shows either without --values."""
    world = empty_world
    fields = {"n": {"type": "integer"}, "secret": {"type": "keyword"}}
    select = "SELECT t.id AS _id, t.n, t.secret FROM things AS t"
    follow_only(world, "CREATE TABLE things (id int PRIMARY KEY, n bigint, secret text)", select, fields)
    world.daemon()
    with psycopg.connect(world.dsn) as connection:
        connection.execute("INSERT INTO things VALUES (1, 48151623421, %s)", (VALUE,))
        (token,) = connection.execute("SELECT syncer.token()").fetchone() or ("",)
    shown = ""
    for command in (f"wait {token}", "verify", "explain note 1", "dead-letters list", "status", "events"):
        for options in ([], ["--json"]):
            shown += world.syncer(*command.split(), *options).stdout
    stored = world.sql("SELECT error FROM syncer.dead_letter")
    assert "out of range of" in shown
    assert not [value for value in (VALUE, "48151623421") if value in shown + str(stored)], shown


CONTROLS = "\x1b[31m\x9b31m\x7f\x08\u202e"
COMMANDS = (
    "status", "events", "plan", "verify", "jobs list", "dead-letters list", "doctor", "locks list",
)  # fmt: skip


def test_no_control_reaches_a_terminal(empty_world: World) -> None:
    """In ids, names of columns and tables, errors, events and the log: it is written as JSON escapes it."""
    world, table, column = empty_world, sql.Identifier(f"t{CONTROLS}"), sql.Identifier(f"c{CONTROLS}")
    create = sql.SQL("CREATE TABLE {table} (id text PRIMARY KEY, {column} text, n text)")
    select = sql.SQL("SELECT t.id AS _id, t.{column}, t.n FROM {table} AS t").format(table=table, column=column)
    follow_only(
        world, create.format(table=table, column=column).as_string(), select.as_string(), {"n": {"type": "byte"}}
    )
    id_ = f"id\n{CONTROLS}"
    console = {"SYNCER_LOG_FORMAT": "console"}
    world.daemon()
    insert = sql.SQL("INSERT INTO {table} VALUES (%s, %s, 'no number')").format(table=table)
    with psycopg.connect(world.dsn) as connection:
        connection.execute(insert, (id_, CONTROLS))
        (token,) = connection.execute("SELECT syncer.token()").fetchone() or ("",)
    ended = [world.syncer("wait", token), world.syncer("explain", "note", id_)]
    with psycopg.connect(world.dsn) as connection:
        connection.execute(sql.SQL("ALTER TABLE {table} DROP COLUMN {column}").format(table=table, column=column))
    wait_until(lambda: bool(world.sql("SELECT FROM syncer.document WHERE suspended IS NOT NULL")), what="suspended")
    ended += [world.syncer(*command.split(), environment=console, seconds=60) for command in COMMANDS]
    shown = "".join(command.stdout + command.stderr for command in ended)
    assert "\\u001b" in shown
    assert "id\\n" in shown
    assert not [character for character in id_[3:] if character in shown and character not in "[31m"], shown
