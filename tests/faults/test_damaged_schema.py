"""The syncer schema is damaged, emptied or dropped by others: applications go on, and each state has a way out."""

from __future__ import annotations

import random
import re
import threading
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from syncer.apply import activate, plan
from syncer.base import migrations
from syncer.base.errors import SourceError
from syncer.documents import definition
from syncer.elasticsearch.indices import Indices
from syncer.recovery.schema_watch import Watch
from tests.faults.harness import add_posts, following, require_holds, wait_for_trouble
from tests.support.capture import is_installed
from tests.support.standbys import restore
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, World, wait_until
from tests.support.writers import Work, at_work

WRITERS = 3
NOT_WHOLE = "not restored whole"


def editing(counts: list[int], number: int) -> Work:
    """An application that edits its own post, one transaction after the other; an error fails the test.

    A deadlock is repeated. DROP SCHEMA locks the sequence of ids before its table, and DROP TABLE after it, so no order
    of the trigger's locks suits both.
    """

    def work(stop: threading.Event, connection: psycopg.Connection[Any], _: random.Random) -> None:
        connection.autocommit = True
        while not stop.is_set():
            with suppress(psycopg.errors.DeadlockDetected):
                connection.execute("UPDATE posts SET title = %s WHERE id = %s", (f"edit {counts[number]}", number + 1))
                counts[number] += 1

    return work


def under_writers(world: World, statement: str) -> None:
    """Run a statement while applications write, until each has written after it as well.

    A session that also wants the lock of a table that is written gives up itself; then it goes on once they are done.
    """
    is_done = False
    counts = [0] * WRITERS
    with at_work(world, [editing(counts, number) for number in range(WRITERS)]):
        wait_until(lambda: min(counts) > 10, what="all of them write")
        with psycopg.connect(world.dsn, autocommit=True) as connection, suppress(psycopg.errors.DeadlockDetected):
            connection.execute(statement.encode())
            is_done = True
        earlier_counts = list(counts)
        wait_until(
            lambda: all(later > earlier + 10 for later, earlier in zip(counts, earlier_counts, strict=True)),
            what="they write on",
        )
    if not is_done:
        world.sql(statement)


def state(world: World) -> str:
    """What every command says of the schema; empty if it is current."""
    with world.connect() as connection:
        try:
            migrations.require_current(connection)
        except SourceError as error:
            return error.message
    return ""


def start_over(world: World, *migrate: str) -> None:
    """The way out that the messages name, while searches go on finding every document."""
    world.prints("migrate", *migrate)
    counts: list[int] = []
    finished = threading.Event()

    def search(stop: threading.Event, _: object, __: object) -> None:
        with world.elasticsearch() as client:
            while not (stop.is_set() and finished.is_set()):
                counts.append(client.count(index=world.alias)["count"])
                stop.wait(0.05)

    with at_work(world, [search]):
        world.prints("apply", "--yes", "--take-over", "*")
        finished.set()
    assert set(counts) == {20}
    with world.elasticsearch() as client:
        assert len(client.indices.get(index=f"{world.alias}*")) == 1


@pytest.fixture
def blog(world: World) -> World:
    """The blog with twenty posts, in Postgres only."""
    add_posts(world, 20)
    return world


@pytest.fixture
def filled(blog: World) -> World:
    """The same, with all posts in the index."""
    blog.backfill()
    return blog


BROKEN = {
    "the outbox": ("DROP TABLE syncer.outbox CASCADE", "table syncer.outbox"),
    "the segment in use": ("DROP TABLE syncer.outbox_0", "table syncer.outbox_0"),
    "the sequence of segments": ("DROP SEQUENCE syncer.outbox_segment", "sequence syncer.outbox_segment"),
    "a function of the triggers": ("DROP FUNCTION syncer.text_of", "function syncer.text_of"),
    "the row of the installation": ("TRUNCATE syncer.installation", "the row of table syncer.installation"),
    "the last mark": ("DELETE FROM syncer.mark", "the row of table syncer.mark"),
    "the record of migrations": ("DROP TABLE syncer.migration", "table syncer.migration"),
    "its rows": ("TRUNCATE syncer.migration", "the rows of table syncer.migration"),
    "a view": ("DROP VIEW syncer.handled", "view syncer.handled"),
    "what a restore makes last": ("DROP MATERIALIZED VIEW syncer.restored", "materialized view syncer.restored"),
    "a column": ("ALTER TABLE syncer.job DROP COLUMN occasion", "column syncer.job.occasion"),
    "what a change is": ("ALTER TABLE syncer.outbox DROP COLUMN operation", "column syncer.outbox.operation"),
    "a renamed column": ("ALTER TABLE syncer.outbox RENAME untouched TO kept", "column syncer.outbox.untouched"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_broken_schema_stops_no_application_and_is_named(blog: World, damage: str) -> None:
    """Whatever is dropped of the schema under writers, no write fails; every command names what is missing."""
    statement, missing = BROKEN[damage]
    under_writers(blog, statement)
    assert f"broken: it lacks {missing}" in state(blog)
    for command in ("migrate", "status", "plan", "run"):
        ended = blog.syncer(command)
        assert ended.returncode == 1, command
        assert missing in ended.stdout + ended.stderr, command
        assert "syncer migrate --anew && syncer apply --take-over '*'" in " ".join(
            (ended.stdout + ended.stderr).split()
        ), command
    doctor = blog.syncer("doctor")
    assert missing in doctor.stdout


ALTERED = {
    "a column retyped": (
        "ALTER TABLE syncer.outbox ALTER relation TYPE varchar(3) USING left(relation, 3)",
        "ALTER TABLE syncer.outbox ALTER relation TYPE text",
        "lacks column syncer.outbox.relation text NOT NULL; it has column syncer.outbox.relation character varying(3)",
    ),
    "a default dropped": (
        "ALTER TABLE syncer.outbox ALTER xid DROP DEFAULT",
        "ALTER TABLE syncer.outbox ALTER xid SET DEFAULT pg_current_xact_id()",
        "it has column syncer.outbox.xid xid8 NOT NULL",
    ),
    "a column required": (
        "TRUNCATE syncer.outbox; ALTER TABLE syncer.outbox ADD tenant int NOT NULL",
        "ALTER TABLE syncer.outbox DROP tenant",
        "it has column syncer.outbox.tenant integer NOT NULL",
    ),
    "a value required": (
        "TRUNCATE syncer.outbox; ALTER TABLE syncer.outbox ADD CHECK (untouched IS NOT NULL)",
        "ALTER TABLE syncer.outbox DROP CONSTRAINT outbox_untouched_check",
        "it has constraint outbox_untouched_check of syncer.outbox",
    ),
    "a rule": (
        "CREATE RULE fan AS ON INSERT TO syncer.outbox DO INSTEAD SELECT new.id / 0",
        "DROP RULE fan ON syncer.outbox",
        "it has rule fan of syncer.outbox",
    ),
    "a unique index": (
        "TRUNCATE syncer.outbox; CREATE UNIQUE INDEX one ON syncer.outbox (relation, segment)",
        "DROP INDEX syncer.one",
        "it has unique index syncer.one",
    ),
    "a trigger": (
        (
            "CREATE FUNCTION deny() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'denied'; END $$;"
            "CREATE TRIGGER deny BEFORE INSERT ON syncer.outbox FOR EACH ROW EXECUTE FUNCTION deny()"
        ),
        "DROP FUNCTION deny CASCADE",
        "it has trigger deny of syncer.outbox",
    ),
}


@pytest.mark.parametrize("alteration", ALTERED)
def test_an_altered_outbox_stops_no_application_and_loses_nothing_in_silence(blog: World, alteration: str) -> None:
    """Whatever makes a trigger's INSERT fail, no write fails. The schema is broken, also after that is undone."""
    statement, undo, named = ALTERED[alteration]
    with psycopg.connect(blog.dsn) as repeatable:
        repeatable.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for number in range(2):
            repeatable.execute("UPDATE posts SET title = %s WHERE id = 9", (f"repeatable {number}",))
            repeatable.commit()
            if not number:
                under_writers(blog, statement)
    assert named in state(blog)
    blog.sql(undo)
    assert "broken: it has lost changes" in state(blog)


@pytest.mark.parametrize(
    ("statement", "undo"),
    [
        ("ALTER TABLE syncer.outbox ADD note text", "ALTER TABLE syncer.outbox DROP note"),
        (
            (
                "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$;"
                "CREATE TRIGGER audit BEFORE INSERT ON syncer.outbox FOR EACH ROW EXECUTE FUNCTION audit()"
            ),
            "DROP FUNCTION audit CASCADE",
        ),
        ("ALTER SEQUENCE syncer.outbox_id_seq MAXVALUE 99999999", "ALTER SEQUENCE syncer.outbox_id_seq NO MAXVALUE"),
    ],
)
def test_an_alteration_that_lets_changes_pass_loses_none(blog: World, statement: str, undo: str) -> None:
    """What a trigger can still write is written: once the alteration is undone, all is shown."""
    under_writers(blog, statement)
    assert "broken: it" in state(blog)
    blog.sql(undo)
    assert state(blog) == ""
    blog.daemon()
    require_holds(blog)


@pytest.mark.parametrize(
    "damage", ["DROP TABLE syncer.outbox CASCADE", ALTERED["a trigger"][0]], ids=["gone", "altered"]
)
def test_a_broken_schema_is_made_anew_without_a_gap(filled: World, damage: str) -> None:
    """Started over beside a daemon and writers, every document equals its SELECT again, and searches saw no gap."""
    daemon = filled.daemon()
    under_writers(filled, damage)
    daemon.exit_code()
    under_writers(filled, "DROP FUNCTION syncer.token")
    # A topic that is named keeps the records of the database's earlier id, which workers refuse.
    filled.worker_settings["SYNCER_KAFKA_TOPIC"] = f"{filled.name}.anew"
    start_over(filled, "--anew", "--yes")
    filled.daemon()
    add_posts(filled, 0)
    filled.sql("UPDATE posts SET title = 'after' WHERE id < 5")
    require_holds(filled)


def test_an_earlier_version_starts_over_from_the_schema_of_a_later_one(filled: World) -> None:
    """It refuses what it does not know, and replaces it: searches find every document throughout."""
    filled.sql("""
        INSERT INTO syncer.migration (name, checksum) VALUES ('0002.of-a-later-version', 'x');
        ALTER TABLE syncer.job ADD later int NOT NULL DEFAULT 0; CREATE TABLE syncer.later (); DROP VIEW syncer.handled
    """)
    refused = filled.syncer("migrate")
    assert (refused.returncode, "0002.of-a-later-version is unknown" in refused.stderr) == (1, True)
    start_over(filled, "--anew", "--yes")
    filled.daemon()
    filled.sql("UPDATE posts SET title = 'after' WHERE id < 5")
    require_holds(filled)


def test_a_schema_that_is_dropped_is_none(filled: World) -> None:
    """DROP SCHEMA: no write fails, though it may have to wait for a pause of the writers; the index is taken over."""
    under_writers(filled, "DROP SCHEMA syncer CASCADE")
    assert state(filled) == "The database has no syncer schema"
    filled.sql("UPDATE posts SET title = 'not captured' WHERE id = 7")
    start_over(filled)
    with filled.connect() as connection:
        assert migrations.migrate(connection) == []


@pytest.mark.parametrize("how", ["truncated", "dumped without rows"])
def test_an_emptied_schema_is_made_anew_by_migrate(filled: World, how: str) -> None:
    """Without any row, the schema is *emptied*: that is what every command says, and what `migrate` heals."""
    if how == "truncated":
        tables = filled.sql("SELECT format('syncer.%I', tablename) FROM pg_tables WHERE schemaname = 'syncer'")
        under_writers(filled, f"TRUNCATE {', '.join(table for (table,) in tables)} CASCADE")
    else:
        rows = filled.sql("SELECT id, user_id, title, body FROM posts")
        dump = filled.dump("--schema-only")
        filled.sql("DROP SCHEMA syncer CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        filled.restore(dump, stops=False)
        filled.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', '')")
        for row in rows:
            filled.sql("INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, %s, %s)", *row)
    assert "has no rows" in state(filled)
    for command in ("status", "apply", "run"):
        ended = filled.syncer(command)
        assert "has no rows" in ended.stdout + ended.stderr, command
    assert "has no rows" in filled.syncer("doctor").stdout
    start_over(filled)
    filled.daemon()
    filled.sql("UPDATE posts SET title = 'after' WHERE id < 5")
    require_holds(filled)


def test_definitions_and_data_are_restored_apart(filled: World) -> None:
    """Nothing in the two files tells their end: a daemon waits, every command says so, and `migrate` ends the wait."""
    definitions, data = filled.dump("--schema-only"), filled.dump("--data-only")
    restore(filled, definitions)
    filled.restore(data)
    daemon = filled.daemon(until="component.retried")
    wait_for_trouble(daemon, NOT_WHOLE)
    for command in ("status", "apply", "doctor"):
        ended = filled.syncer(command)
        assert NOT_WHOLE in ended.stdout + ended.stderr, command
    filled.prints("migrate")
    filled.sql("UPDATE posts SET title = 'after' WHERE id < 5")
    require_holds(filled)
    assert daemon.stop() == 0


def test_no_writer_waits_behind_a_migration_that_waits(blog: World) -> None:
    """Behind a transaction that wrote once, no writer waits for `migrate`, which names it and gives up in time."""
    with blog.application() as holder, blog.connect() as connection:
        holder.execute("UPDATE posts SET title = 'open' WHERE id = 20")
        pid = holder.info.backend_pid
        waiting: list[str] = []
        under_writers(blog, "SELECT 1")
        with pytest.raises(SourceError, match=rf"syncer schema is in use.*process {pid} "):
            migrations.migrate(connection, anew=True, timeout_seconds=0, waiting=waiting.append)
        holder.rollback()
        assert migrations.migrate(connection, anew=True, timeout_seconds=DEADLINE_SECONDS) != []


def test_data_that_is_restored_beside_a_schema_of_its_own_names_foreign_indices(filled: World) -> None:
    """The rows name indices of the database that was dumped: nothing is written to them, and apply replaces them."""
    rows_dump = filled.dump("--data-only", "--disable-triggers")
    filled.sql("DROP SCHEMA syncer CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    filled.sql(BLOG_SCHEMA.read_text())
    filled.migrate()
    filled.restore(rows_dump, stops=False)
    assert filled.sql("SELECT count(*) FROM syncer.document") == [(1,)]
    for command in (("apply", "--yes"), ("run",)):
        refused = filled.syncer(*command)
        assert refused.returncode == 1, command
        assert "not this database's" in refused.stdout + refused.stderr, command
    start_over(filled)
    filled.daemon()
    filled.sql("UPDATE posts SET title = 'after' WHERE id < 5")
    require_holds(filled)


@pytest.mark.parametrize("is_fenced", [False, True], ids=["before the other is fenced", "before the load"])
def test_a_take_over_that_dies_is_gone_on_with(
    filled: World, *, is_fenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches find the other index until the new one is complete, however often apply is run."""
    filled.sql("DROP SCHEMA syncer CASCADE")
    filled.migrate()
    indexed = filled.held()
    if not is_fenced:
        monkeypatch.setattr(Indices, "take_over", lambda *_: None)
    with filled.connect() as connection, filled.indices() as indices:
        active = plan.read_active(connection)
        definitions = [definition.load(folder) for folder in definition.folders(filled.config)]
        steps = [plan.step(connection, indices, desired, active, takes_over=True) for desired in definitions]
        activate.carry_out(connection, indices, plan.assemble(connection, steps, active))
    assert filled.held() == indexed
    filled.sql("UPDATE posts SET title = 'after' WHERE id < 5")
    if not is_fenced:
        assert "--take-over blogpost" in filled.syncer("apply", "--yes").stderr
    options = () if is_fenced else ("--take-over", "blogpost")
    filled.prints("apply", "--yes", *options)
    assert filled.differences() == []
    with filled.elasticsearch() as client:
        assert len(client.indices.get(index=f"{filled.alias}*")) == 1


@pytest.mark.parametrize("how", ["all schemas", "one schema, without the triggers"])
def test_a_dump_of_definitions_loads_as_the_docs_say(blog: World, how: str) -> None:
    """As Rails' structure.sql: of all schemas, it is emptied then; of one, without the lines of the triggers."""
    if how == "all schemas":
        dump = blog.dump("--schema-only")
    else:
        lines = blog.dump("--schema-only", "--schema=public").splitlines()
        pattern = re.compile(r"^CREATE TRIGGER syncer_|ENABLE ALWAYS TRIGGER syncer_")
        dump = "\n".join(line for line in lines if not pattern.search(line))
    blog.sql("DROP SCHEMA syncer CASCADE; DROP SCHEMA public CASCADE")
    blog.restore(dump if "CREATE SCHEMA public" in dump else f"CREATE SCHEMA public; {dump}")
    blog.prints("migrate")
    assert state(blog) == ""


@pytest.mark.parametrize("state", ["P0001", "55000"])
def test_a_statement_that_is_not_needed_ends_no_daemon(blog: World, state: str) -> None:
    """An event trigger forbids DDL with whatever error: enabling a trigger fails, is reported, and is tried again."""
    blog.sql(f"""
        ALTER TABLE posts DISABLE TRIGGER USER; ALTER TABLE posts ENABLE TRIGGER USER;
        CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql
        AS $$ BEGIN RAISE 'no DDL in working hours' USING ERRCODE = '{state}'; END $$;
        CREATE EVENT TRIGGER forbid ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION forbid()
    """)
    with closing(Watch(connect=blog.connect)) as watch, capture_logs() as logs:
        assert watch.run_once().suspended == ("blogpost",)
        watch.run_once()
        failed = [log["error"] for log in logs if log["event"] == "watch.trigger_not_enabled"]
        assert failed == ["no DDL in working hours"]
        blog.sql("DROP EVENT TRIGGER forbid")
        watch.run_once()
    assert is_installed(blog, "public.posts")


@pytest.mark.parametrize("objects", ["the tables", "syncer's schema too"])
def test_owners_change_under_writers_without_an_error(blog: World, objects: str) -> None:
    """REASSIGN OWNED, after the new owner was granted to the old one: no write fails, and all is captured."""
    old_owner, new_owner = (f"{name}_{blog.name}" for name in ("first", "second"))
    try:
        blog.sql(f"CREATE ROLE {old_owner}; CREATE ROLE {new_owner}; GRANT {new_owner} TO {old_owner}")
        owned = ["public"] if objects == "the tables" else ["public", "syncer"]
        for schema in owned:
            blog.sql(f"""
                ALTER SCHEMA {schema} OWNER TO {old_owner};
                DO $$ DECLARE name text; BEGIN
                    FOR name IN SELECT oid::regclass FROM pg_class
                                WHERE relnamespace = '{schema}'::regnamespace AND relkind IN ('r', 'p', 'v') LOOP
                        EXECUTE format('ALTER TABLE %s OWNER TO {old_owner}', name);
                    END LOOP;
                    FOR name IN SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace LOOP
                        EXECUTE format('ALTER FUNCTION %s OWNER TO {old_owner}', name);
                    END LOOP;
                END $$
            """)
        under_writers(blog, f"REASSIGN OWNED BY {old_owner} TO {new_owner}")
        blog.apply()
        blog.sql("UPDATE posts SET title = 'after' WHERE id < 5")
        blog.daemon()
        require_holds(blog)
    finally:
        blog.sql(f"REASSIGN OWNED BY {old_owner}, {new_owner} TO postgres; DROP OWNED BY {old_owner}, {new_owner}")
        blog.sql(f"DROP ROLE {old_owner}, {new_owner}")


def test_a_former_owner_may_not_execute_the_trigger_function(blog: World) -> None:
    """After a change of owner and apply, only the new one may, whichever roles had it before."""
    roles = [f"{name}_{blog.name}" for name in ("one", "two", "three")]
    may = "SELECT rolname::text FROM pg_roles WHERE rolname = ANY (%s) AND has_function_privilege(oid, %s, 'EXECUTE')"
    try:
        for role in roles:
            blog.sql(f"CREATE ROLE {role}; GRANT CREATE ON SCHEMA public TO {role}")
            blog.sql(f"ALTER TABLE posts OWNER TO {role}")
            blog.apply()
            assert blog.sql(may, roles, 'syncer."capture_public.posts"()') == [(role,)]
    finally:
        owned = ", ".join(roles)
        blog.sql(f"ALTER TABLE posts OWNER TO postgres; DROP OWNED BY {owned}; DROP ROLE {owned}")


MAY = "public.comments may have been rewritten or restored, or had another name, partitions or triggers for a while"
ANY_ROW = {
    "TRUNCATE comments": "public.comments was truncated",
    "ALTER TABLE comments ALTER name TYPE text USING lower(name)": MAY,
    "ALTER TABLE comments DISABLE TRIGGER USER; ALTER TABLE comments ENABLE TRIGGER USER": MAY,
}


@pytest.mark.parametrize("statement", ANY_ROW)
def test_a_refresh_says_no_cause_that_is_not_known(blog: World, statement: str) -> None:
    """Only a TRUNCATE is called one; what the catalogue shows is worded as a possibility."""
    blog.sql("INSERT INTO comments (id, post_id, name, comment) VALUES (1, 1, 'Alice', 'first')")
    with following(blog) as follower:
        follower.drain()
        with psycopg.connect(blog.dsn, autocommit=True) as connection:
            for command in statement.split(";"):
                connection.execute(command.encode())
        with closing(Watch(connect=blog.connect)) as watch:
            watch.run_once()
        follower.handle()
    assert blog.sql("SELECT occasion FROM syncer.job WHERE kind = 'refresh'") == [(ANY_ROW[statement],)]


TAGS = """
CREATE TABLE tags (id int PRIMARY KEY, name text, label text);
CREATE TABLE uses (id int PRIMARY KEY, name text)
"""
USES = "SELECT u.id AS _id, (SELECT max(t.label) FROM tags AS t WHERE t.name = u.name) AS label FROM uses AS u"


def test_a_key_that_is_too_large_is_given_as_the_reason(empty_world: World) -> None:
    """A change whose image exceeds 64 kB refreshes every document, and says so instead of a TRUNCATE."""
    empty_world.sql(TAGS)
    empty_world.use()
    empty_world.define("use", USES)
    empty_world.migrate()
    empty_world.apply()
    with following(empty_world) as follower:
        empty_world.sql(
            "INSERT INTO tags SELECT 1, string_agg(md5(g::text), ''), 'x' FROM generate_series(1, 5000) AS g"
        )
        follower.handle()
    [(occasion,)] = empty_world.sql("SELECT occasion FROM syncer.job WHERE kind = 'refresh'")
    assert occasion.startswith("public.tags had a row changed whose keys to documents exceed 64 kB")
