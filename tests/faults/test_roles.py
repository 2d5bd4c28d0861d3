"""Another role creates functions, operators, types and casts where syncer's sessions and triggers may find them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from syncer.base.error_policy import explain
from syncer.base.errors import DefinitionError
from syncer.capture import install as capture_install
from syncer.capture.triggers import Capture
from syncer.documents import analyze
from syncer.documents.definition import Definition
from tests.faults import harness
from tests.support.capture import capture_only, install, written
from tests.support.in_process import assign
from tests.support.world import BLOG_SCHEMA, World

# A body that notes as whom it is run.
NOTES = """
CREATE TABLE IF NOT EXISTS public.caught (role text DEFAULT current_user);
GRANT ALL ON public.caught TO public;
"""
ASSIGNS_ALIKE = "CREATE FUNCTION public.nextval(text) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint';"
SPELLS = """
CREATE FUNCTION public.format(text, name, name) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.caught DEFAULT VALUES;
    RETURN pg_catalog.format($1, $2, $3);
END $$;
"""
JOINS_WORDS = """
CREATE FUNCTION public.concat(text, text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    INSERT INTO public.caught DEFAULT VALUES;
    RETURN 'not what was applied';
END $$;
"""


@pytest.fixture
def mallory(empty_world: World) -> Iterator[Callable[[str], None]]:
    """Executes SQL as a role that may create in the schema public, and nothing else."""
    role = sql.Identifier(f"mallory of {empty_world.name}").as_string()
    empty_world.sql(f"CREATE ROLE {role}; GRANT CREATE, USAGE ON SCHEMA public TO {role}")

    def attack(statements: str) -> None:
        empty_world.sql(f"{NOTES} SET ROLE {role}; {statements}")

    yield attack
    empty_world.sql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def caught(world: World) -> list[str]:
    """The roles that have run what another role has written."""
    return [role for (role,) in world.sql("SELECT DISTINCT role FROM public.caught")]


def test_a_function_of_another_role_has_no_part_in_what_syncer_does(
    empty_world: World, mallory: Callable[[str], None]
) -> None:
    """Not in migrate, apply, or versions; a SELECT means what it did when it was applied."""
    world = empty_world
    mallory(SPELLS)
    world.edit_file("p.title,", "concat(p.title, p.title) AS title,")
    world.set_up()
    harness.add_posts(world, 2)
    world.sql("UPDATE posts SET title = 't'")
    with world.connect() as connection, harness.following(world) as follower:
        mallory(JOINS_WORDS + ASSIGNS_ALIKE)
        follower.handle()
        assert {document["title"] for document in world.held().values()} == {"tt"}
        assert caught(world) == []
        assert assign(connection) < assign(connection)
        connection.execute("SET search_path TO DEFAULT")
        assert assign(connection) == assign(connection)  # in a session that is not pinned


# Triggers


THINGS = """
CREATE TABLE things (id bigint PRIMARY KEY, place text, day date, doc jsonb, numbers int[], mood traps.mood, name text)
"""
KEYS = frozenset({"id", "place", "day", "doc", "numbers", "mood"})
CAPTURE = Capture(relation="public.things", routing=KEYS, watched=frozenset({KEYS, KEYS | {"name"}}))
# A function for each of pg_catalog's that a trigger could name, with the same arguments; for "any", with those of the
# table. An operator likewise. Each is a better match than the original, and comes first in the path.
SET_TRAPS = """
CREATE FUNCTION pg_temp.set_traps(columns text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT DISTINCT ON (p.proname, arguments) p.proname, arguments,
               CASE WHEN t.typtype = 'p' THEN 'text' ELSE format_type(t.oid, NULL) END AS type
        FROM pg_proc AS p JOIN pg_type AS t ON t.oid = p.prorettype
        CROSS JOIN LATERAL oidvectortypes(p.proargtypes) AS wanted
        CROSS JOIN LATERAL unnest(CASE WHEN wanted LIKE '%any%' THEN columns ELSE ARRAY[wanted] END) AS arguments
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset
          AND p.proname ~ '^(array_remove|concat|jsonb?_object|jsonb?_build.*|left|pg_column_.*|pg_typeof|to_jsonb?'
                          '|pg_sequence_last_value|nextval|pg_current_xact_id|clock_timestamp|octet_length)$'
    LOOP
        EXECUTE format('CREATE FUNCTION traps.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', f.proname, f.arguments, f.type,
                       'BEGIN INSERT INTO public.caught DEFAULT VALUES; RETURN NULL; END');
    END LOOP;
    FOR f IN
        SELECT oprname AS name, oprleft::regtype AS a, oprright::regtype AS b, row_number() OVER () AS number
        FROM pg_operator AS o
        WHERE oprname IN ('=', '<>', '<', '<=', '*=', '*<>', '#>>', '||') AND oprnamespace = 'pg_catalog'::regnamespace
          AND oprleft::regtype::text IN ('bigint', 'integer', 'text', 'oid', 'record', 'json', 'jsonb', 'name')
    LOOP
        EXECUTE format('CREATE FUNCTION traps.operator_%s(%s, %s) RETURNS boolean LANGUAGE plpgsql AS %L',
                       f.number, f.a, f.b, 'BEGIN INSERT INTO public.caught DEFAULT VALUES; RETURN true; END');
        EXECUTE format('CREATE OPERATOR traps.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = traps.operator_%s)',
                       f.name, f.a, f.b, f.number);
    END LOOP;
END $$;
"""
TRAPPED_TYPES = """
CREATE TYPE traps.mood AS ENUM ('well', 'ill');
CREATE FUNCTION traps.mood_text(traps.mood) RETURNS text LANGUAGE plpgsql IMMUTABLE
    AS 'BEGIN INSERT INTO public.caught DEFAULT VALUES; RETURN NULL; END';
CREATE FUNCTION traps.mood_json(traps.mood) RETURNS json LANGUAGE plpgsql IMMUTABLE
    AS 'BEGIN INSERT INTO public.caught DEFAULT VALUES; RETURN NULL; END';
CREATE CAST (traps.mood AS text) WITH FUNCTION traps.mood_text(traps.mood) AS IMPLICIT;
CREATE CAST (traps.mood AS json) WITH FUNCTION traps.mood_json(traps.mood) AS IMPLICIT;
"""
SAME_NAMES = "".join(
    f'CREATE DOMAIN traps."{name}" AS pg_catalog.bool CHECK (false);'
    for name in ("text", "jsonb", "int8", "char", "record", "regtype", "bool", "regclass", "trigger")
)
ARGUMENTS = '{bigint,text,date,jsonb,int[],traps.mood,"text[], text[]","bigint[], bigint"}'
WRITES = (
    "INSERT INTO public.things VALUES (1, 'here', '2024-01-31', '{\"a\": 1}', '{1,2}', 'well', 'a')",
    "UPDATE public.things SET name = 'b'",
    "UPDATE public.things SET name = 'b'",
    "UPDATE public.things SET id = 2, place = NULL, mood = 'ill'",
    "DELETE FROM public.things",
    "TRUNCATE public.things",
)


def test_triggers_run_nothing_of_a_schema_of_traps_that_comes_first(
    empty_world: World, mallory: Callable[[str], None]
) -> None:
    """Functions, operators, types and casts of another role have no part in what the triggers write."""
    world = empty_world
    world.migrate()
    world.sql(f"GRANT CREATE ON DATABASE {sql.Identifier(world.name).as_string()} TO public")
    mallory(f"CREATE SCHEMA traps; GRANT USAGE ON SCHEMA traps TO public; {TRAPPED_TYPES}")
    world.sql(THINGS)
    with world.connect() as connection:
        capture_install.install(connection, CAPTURE)

    def leaves(path: str) -> list[tuple[object, ...]]:
        world.sql("DELETE FROM syncer.outbox")
        with psycopg.connect(world.dsn, autocommit=True) as application:
            application.execute(
                "CREATE TEMPORARY TABLE outbox (relation text); CREATE TEMPORARY TABLE old_image (a int)"
            )
            application.execute(f"SET search_path = {path}")
            for statement in WRITES:
                application.execute(statement)
        return world.sql("SELECT operation, old, new, untouched FROM syncer.outbox ORDER BY id")

    expected = leaves("public")
    assert [change[0] for change in expected] == ["I", "U", "U", "D", "T"]
    mallory(f"{SET_TRAPS} SELECT pg_temp.set_traps('{ARGUMENTS}'); {SAME_NAMES}")
    assert leaves("traps, pg_temp, pg_catalog, public") == expected
    assert caught(world) == []
    with world.application() as application:
        application.execute("SET search_path = traps, pg_catalog")
        application.execute("SELECT concat(1::bigint) WHERE 'a'::pg_catalog.text = 'b'")
        application.commit()
    assert caught(world) != []


@pytest.fixture
def lesser(empty_world: World) -> Iterator[psycopg.Connection]:
    """A session of a role that may create tables, types and casts of its own; a table of another role is captured."""
    tables = "CREATE TABLE things (id int PRIMARY KEY, name text)"
    capture_only(empty_world, tables, "SELECT t.id AS _id, t.name FROM things AS t")
    role = sql.Identifier(f"{empty_world.name}_lesser")
    with psycopg.connect(empty_world.dsn, autocommit=True) as session:
        session.execute(sql.SQL("CREATE ROLE {0}; GRANT USAGE ON SCHEMA syncer TO {0}").format(role))
        session.execute(sql.SQL("CREATE SCHEMA mine AUTHORIZATION {}").format(role))
        session.execute(sql.SQL("SET ROLE {}; SET search_path = mine, public").format(role))
        try:
            yield session
        finally:
            session.execute("RESET ROLE")
            session.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(role))


EVENTS = ("INSERT OR UPDATE OR DELETE ON own FOR EACH ROW", "TRUNCATE ON own FOR EACH STATEMENT")


def test_no_role_writes_the_outbox_from_a_table_of_its_own(empty_world: World, lesser: psycopg.Connection) -> None:
    """The trigger is refused, also if the function was granted to all since; an owner adds partitions as ever."""
    lesser.execute("CREATE TABLE own (id int, name text)")
    for _ in range(2):
        for event in EVENTS:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                lesser.execute(f'CREATE TRIGGER t AFTER {event} EXECUTE FUNCTION syncer."capture_public.things"()')
        empty_world.sql('GRANT EXECUTE ON FUNCTION syncer."capture_public.things"() TO PUBLIC')
        install(empty_world)
    assert written(empty_world) == []
    lesser.execute("CREATE TABLE parted (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    shutil.rmtree(empty_world.config / "documents" / "thing")
    empty_world.define("parted", "SELECT t.id AS _id, t.name FROM mine.parted AS t")
    install(empty_world)
    lesser.execute("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)")
    lesser.execute("INSERT INTO parted VALUES (1, 'a')")
    assert written(empty_world) == [("mine.parted", "I", None, {"id": "1"})]


# What a SELECT names


MOODS = """
CREATE TYPE public.status AS ENUM ('well', 'WELL', 'ill');
CREATE FUNCTION public.alike(public.status, public.status) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN lower($1::text) = lower($2::text);
CREATE OPERATOR public.= (FUNCTION = public.alike, LEFTARG = public.status, RIGHTARG = public.status);
CREATE TABLE public.people (id int PRIMARY KEY, status public.status);
CREATE TABLE public.days (id int PRIMARY KEY, person_id int, status public.status);
CREATE VIEW public.seen AS SELECT p.id, d.id AS day FROM public.people AS p JOIN public.days AS d USING (status);
"""
UNNAMED = [
    "SELECT id AS _id, nullif(status, 'well') AS status FROM people",
    "SELECT id AS _id, CASE status WHEN 'well' THEN 1 END AS status FROM people",
    "SELECT id AS _id, day FROM seen",
]


def test_an_operator_that_sql_cannot_name_is_refused(world: World) -> None:
    """Without search_path another operator would take its place, unnoticed."""
    world.sql(MOODS)
    named = "SELECT id AS _id, status = 'well' AS is_well FROM people"

    def analysed(select: str) -> str:
        folder = world.document_folder
        asked = Definition(name="d", index="d", select=select, index_body={}, affects={}, folder=folder)
        with world.connect() as connection:
            return analyze.analyse(connection, asked).canonical_select

    for select in UNNAMED:
        with pytest.raises(DefinitionError, match="where SQL cannot name one"):
            analysed(select)
    assert "OPERATOR(public.=)" in analysed(named)


CALLED = {
    "an index": "CREATE INDEX ON users (low(name))",
    "statistics": "CREATE STATISTICS low_names ON low(name), id FROM users",
    "a domain": "CREATE DOMAIN short AS text CHECK (low(VALUE) <> ''); ALTER TABLE users ADD nick short",
    "a domain of a domain": "CREATE DOMAIN a AS text CHECK (low(VALUE) <> ''); CREATE DOMAIN b AS a; "
    "ALTER TABLE users ADD nick b",
}


@pytest.mark.parametrize("made", CALLED.values(), ids=CALLED)
def test_functions_that_postgres_calls_by_itself_are_noted(
    empty_world: World, mallory: Callable[[str], None], made: str
) -> None:
    """They run as the role that plans or casts, unnamed by the SELECT; not one's own, nor a CHECK of another table."""
    empty_world.sql(BLOG_SCHEMA.read_text())
    empty_world.define("blogpost", "SELECT u.id AS _id, u.name FROM users AS u", {"dynamic": True})
    mallory("CREATE FUNCTION public.low(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END'")
    empty_world.sql("CREATE TABLE strangers (name text CHECK (low(name) <> ''))")
    assert "public.low(text)" not in empty_world.syncer("plan").stdout
    empty_world.sql(made)
    printed = " ".join(empty_world.syncer("plan").stdout.split())
    assert "call public.low(text) of" in printed
    empty_world.sql("ALTER FUNCTION low OWNER TO CURRENT_USER")
    assert "public.low(text)" not in empty_world.syncer("plan").stdout


# Refusals

LACKING = {
    "a temporary view": ("REVOKE TEMPORARY ON DATABASE {db} FROM public", "GRANT TEMPORARY ON DATABASE {db} TO {role}"),
    "a function": ("REVOKE EXECUTE ON FUNCTION twice FROM public", "GRANT EXECUTE ON FUNCTION twice TO {role}"),
    "a schema": ("REVOKE USAGE ON SCHEMA shop FROM {role}", "GRANT USAGE ON SCHEMA shop TO {role}"),
    "a table": ("REVOKE SELECT ON shop.people FROM {role}", "GRANT SELECT ON shop.people TO {role}"),
}
SHOP = """
CREATE ROLE {role}; CREATE SCHEMA shop; CREATE TABLE shop.people (id int PRIMARY KEY);
CREATE FUNCTION twice(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 2 * $1; END';
GRANT USAGE ON SCHEMA shop TO {role}; GRANT SELECT ON shop.people TO {role};
"""
PEOPLE = Definition(
    name="d", index="d", select="SELECT p.id AS _id FROM shop.people AS p WHERE twice(p.id) > 0", index_body={},
    affects={}, folder=Path("d"),
)  # fmt: skip


def test_a_refusal_names_the_privilege_that_is_missing(empty_world: World) -> None:
    """The hint begins the statement that helps; with it, the SELECT is accepted."""
    names = {"role": f'"r of {empty_world.name}"', "db": f'"{empty_world.name}"'}
    empty_world.sql(SHOP.format(**names))
    for lacking, (revoke, grant) in LACKING.items():
        empty_world.sql(revoke.format(**names))
        with empty_world.connect() as connection:
            connection.execute(f"SET ROLE {names['role']}".encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
                analyze.analyse(connection, PEOPLE)
            explained = explain(refused.value)
            assert explained is not None, lacking
            assert " ".join(grant.split()[:3]) in explained.hint, lacking
            empty_world.sql(grant.format(**names))
            analyze.analyse(connection, PEOPLE)
    empty_world.sql("DROP OWNED BY {role} CASCADE; DROP ROLE {role}".format(**names))


def test_an_event_trigger_that_forbids_ddl_is_named(empty_world: World) -> None:
    """A SELECT is read by a temporary view: that it is refused is not the SELECT's fault."""
    names = {"role": f'"r of {empty_world.name}"'}
    empty_world.sql(
        SHOP.format(**names) + "CREATE FUNCTION no_ddl() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'frozen'; END $$; CREATE EVENT TRIGGER no_ddl_now ON ddl_command_start "
        "EXECUTE FUNCTION no_ddl()"
    )
    with (
        empty_world.connect() as connection,
        pytest.raises(DefinitionError, match=r"event trigger no_ddl_now .*: frozen"),
    ):
        analyze.analyse(connection, PEOPLE)
    empty_world.sql("DROP EVENT TRIGGER no_ddl_now; DROP OWNED BY {role} CASCADE; DROP ROLE {role}".format(**names))


def test_a_table_of_another_schema_is_named(empty_world: World) -> None:
    """It is not in the role's search_path; a name that no schema has gets no such hint."""
    empty_world.sql("CREATE SCHEMA shop; CREATE TABLE shop.people (id int PRIMARY KEY)")
    for name, hint in (("people", "There is shop.people."), ("persons", "one SELECT that runs on this database")):
        with empty_world.connect() as connection, pytest.raises(DefinitionError) as refused:
            analyze.analyse(connection, replace(PEOPLE, select=f"SELECT p.id AS _id FROM {name} AS p"))
        assert hint in refused.value.hint
