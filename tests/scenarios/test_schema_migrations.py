"""The syncer schema is brought up to date whole or not at all, and each role can do in it what its duty is."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from syncer.base import migrations as base_migrations, settings
from syncer.base.errors import SourceError
from syncer.base.postgres import AdvisoryLock
from tests.support.world import DEADLINE_SECONDS, REPOSITORY, World, wait_until
from tests.support.writers import at_work, write_until

FILES = sorted(settings.shipped("migrations").glob("*.sql"))
SHIPPED = [file.stem for file in FILES]


def migrate(world: World) -> list[str]:
    """What ``syncer migrate`` does, on a connection of its own."""
    with world.connect() as connection:
        return base_migrations.migrate(connection)


def require_current(world: World) -> None:
    """What every other command does first."""
    with world.connect() as connection:
        base_migrations.require_current(connection)


@pytest.fixture
def migrations(empty_world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of migrations of the test's own."""
    folder = empty_world.folder / "migrations"
    folder.mkdir()
    monkeypatch.setattr(settings, "shipped", lambda _: folder)
    monkeypatch.setattr(base_migrations, "files", base_migrations.files.__wrapped__)
    return folder


def shown(text: str) -> dict[str, list[str]]:
    """The tables that a person reads in a migration, and their columns."""
    tables = re.findall(r"^CREATE (?:UNLOGGED )?TABLE (syncer\.\w+) \($(.*?)^\)", text, re.DOTALL | re.MULTILINE)
    return {table: re.findall(r"^ {4}([a-z]\w*) ", body, re.MULTILINE) for table, body in tables}


def in_the_catalogue(world: World) -> dict[str, list[str]]:
    """The tables that there are, and their columns."""
    columns = world.sql(
        "SELECT c.oid::regclass::text, a.attname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid "
        "WHERE c.relnamespace = 'syncer'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition "
        "AND c.relname <> 'migration' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum"
    )
    tables: dict[str, list[str]] = {}
    for table, column in columns:
        tables.setdefault(table, []).append(column)
    return tables


def test_the_first_migration_shows_the_schema(empty_world: World, migrations: Path) -> None:
    """Rule: one file shows every table and column. A later migration that adds one does not go unnoticed."""
    for file in FILES:
        shutil.copy(file, migrations)
    migrate(empty_world)
    objects_read = shown(FILES[0].read_text("utf-8"))
    assert objects_read == in_the_catalogue(empty_world)
    (migrations / "9999.later.sql").write_text("ALTER TABLE syncer.job ADD COLUMN later int;")
    migrate(empty_world)
    assert objects_read != in_the_catalogue(empty_world)


def test_two_that_migrate_at_once_both_succeed(empty_world: World) -> None:
    """One applies, the other waits and finds nothing to do."""
    waiting = (
        "SELECT pid FROM pg_locks JOIN pg_stat_activity AS a USING (pid) "
        "WHERE locktype = 'advisory' AND NOT granted AND a.datname = current_database()"
    )
    with ThreadPoolExecutor(2) as threads, empty_world.connect() as holder:
        holder.execute("SELECT pg_advisory_lock($1)", (AdvisoryLock.SCHEMA,))
        both = [threads.submit(migrate, empty_world) for _ in range(2)]
        wait_until(lambda: len(empty_world.sql(waiting)) == 2, what="both wait")
        holder.execute("SELECT pg_advisory_unlock($1)", (AdvisoryLock.SCHEMA,))
        assert sorted(applied.result(timeout=DEADLINE_SECONDS) for applied in both) == [[], SHIPPED]
    require_current(empty_world)


def test_a_migration_that_fails_leaves_nothing_behind(empty_world: World, migrations: Path) -> None:
    """What was applied before it in the same run is undone too; once it is fixed, all goes through.

    What was applied in another form is refused.
    """
    whole = "CREATE MATERIALIZED VIEW syncer.restored AS SELECT true AS is_whole;"  # else a dump is being restored
    (migrations / "0001.good.sql").write_text(f"CREATE TABLE syncer.good (id int); {whole}")
    broken = migrations / "0002.broken.sql"
    broken.write_text("CREATE TABLE syncer.half (id int); INSERT INTO syncer.good VALUES ('not a number');")
    with empty_world.connect() as connection:
        with pytest.raises(errors.InvalidTextRepresentation):
            base_migrations.migrate(connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert empty_world.sql("SELECT FROM pg_class WHERE relnamespace = to_regnamespace('syncer')") == []
        broken.write_text("CREATE TABLE syncer.half (id int);")
        assert base_migrations.migrate(connection) == ["0001.good", "0002.broken"]
    require_current(empty_world)
    broken.write_text("CREATE TABLE syncer.half (id bigint);")
    with pytest.raises(SourceError, match=r"0002\.broken is unknown here or"):
        require_current(empty_world)


@pytest.fixture
def later(world: World) -> dict[str, str]:
    """The environment of a later version of this program, which has two migrations more."""
    tree = world.folder / "later"
    shutil.copytree(REPOSITORY / "syncer", tree / "syncer", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "migrations", tree / "migrations")
    (tree / "migrations" / "0002.pre.later.sql").write_text("ALTER TABLE syncer.job ADD later int NOT NULL DEFAULT 0;")
    (tree / "migrations" / "0003.post.later.sql").write_text("ALTER TABLE syncer.job DROP COLUMN later;")
    (tree / "syncer_cdc-99.0.dist-info").mkdir()
    (tree / "syncer_cdc-99.0.dist-info" / "METADATA").write_text("Name: syncer-cdc\nVersion: 99.0\n")
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def test_an_upgrade_makes_no_pause(world: World, later: dict[str, str]) -> None:
    """Rule: beside *pre*, daemons of the version before go on; *post* waits for their end, and keeps them out then.

    Writes go on all the time, and reach the index while either version runs.
    """
    upgraded, earlier = replace(world, is_preloaded=False), world.daemon()

    def migrate_later() -> str:
        return upgraded.syncer("migrate", environment=later).stdout

    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', '')")
    with at_work(world, [write_until] * 2):
        assert migrate_later().splitlines() == [
            "applied 0002.pre.later",
            "0003.post.later waits until no daemon of another version runs: then run `syncer migrate` again",
        ]
        require_current(world)
        world.daemon().stop()  # another of the earlier version starts, too
        successor = upgraded.daemon(environment=later)
        assert migrate_later().startswith("0003.post.later waits")
        earlier.stop()
        assert "0003.post.later is not applied" in upgraded.syncer("doctor", environment=later).stdout
        assert migrate_later() == "applied 0003.post.later\n"
    refused = world.syncer("run")
    assert (refused.returncode, "another version of syncer" in refused.stderr) == (1, True)
    assert migrate_later() == "The syncer schema is current.\n"
    world.wait_until_level()
    assert world.differences() == []
    assert successor.stop() == 0


def test_a_daemon_ends_that_an_upgrade_has_left_behind(world: World) -> None:
    """One that did not report while *post* was applied does not go on with a schema that it does not know."""
    daemon = world.daemon()
    world.sql("INSERT INTO syncer.migration (name, checksum) VALUES ('0002.pre.later', 'x'), ('0003.post.later', 'x')")
    assert daemon.exit_code() == 1
    assert "0003.post.later is unknown here" in daemon.log_file.read_text()


DUTIES = ("relay", "worker", "operator", "reader")


def grant(world: World, *duties: str) -> None:
    """Run docs/roles.sql with group roles of this world, and make a login role a member of each."""
    script = (REPOSITORY / "docs" / "roles.sql").read_text()
    examples = "\n".join(re.findall(r"^--     (GRANT .* TO .*syncer_documents;)", script, re.MULTILINE))
    assert examples.count("GRANT") == 2
    world.sql(re.sub(rf"\bsyncer_(?=documents|{'|'.join(DUTIES)})", f"{world.name}_", f"{script}\n{examples}"))
    for duty in duties:
        role = f"{duty}_{world.name}"
        if not world.sql(f"SELECT FROM pg_roles WHERE rolname = '{role}'"):
            world.sql(f"CREATE ROLE {role} LOGIN")
        world.sql(f"GRANT {world.name}_{duty} TO {role}")


MAKE_OTHERS_EXECUTE = [
    "UPDATE syncer.document SET definition = definition",
    "UPDATE syncer.document SET index_name = index_name",
    "UPDATE syncer.document SET role = role",
    "INSERT INTO syncer.document SELECT * FROM syncer.document",
    "UPDATE syncer.capture SET relation = relation",
    "UPDATE syncer.job SET index_name = index_name",
    "INSERT INTO syncer.revision VALUES ('blogpost', 1000)",
    "INSERT INTO syncer.orphan_index VALUES ('blogpost')",
    "ALTER TABLE syncer.document ADD COLUMN mine text",
    "CREATE FUNCTION syncer.mine() RETURNS text LANGUAGE sql AS 'SELECT 1::text'",
    'CREATE OR REPLACE FUNCTION syncer."capture_public.posts"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN END $$',
]
"""What would have another role run the SQL of this one, or write to another index."""

FORBIDDEN = {
    "relay": [
        *MAKE_OTHERS_EXECUTE,
        "UPDATE syncer.outbox SET relation = relation",
        "SELECT FROM posts",
        "SELECT nextval('syncer.version')",
        "UPDATE syncer.installation SET epoch = 1",
        "DELETE FROM syncer.dead_letter",
        "UPDATE syncer.event SET message = message",
    ],
    "worker": [
        *MAKE_OTHERS_EXECUTE,
        "TRUNCATE syncer.outbox_0",
        "DELETE FROM syncer.outbox",
        "UPDATE syncer.outbox SET xid = '1'",
        "UPDATE syncer.cursor SET snapshot = snapshot",
        "SELECT setval('syncer.outbox_segment', 1)",
        "INSERT INTO syncer.term VALUES (1)",
        "SELECT setval('syncer.version', 1)",
        "DELETE FROM syncer.document",
        "UPDATE syncer.event SET message = message",
        "UPDATE posts SET title = 'x'",
    ],
    "operator": [
        "TRUNCATE syncer.outbox_0",
        "UPDATE syncer.cursor SET snapshot = snapshot",
        "DELETE FROM syncer.event",
        "DELETE FROM posts",
    ],
    "reader": [
        *MAKE_OTHERS_EXECUTE,
        "DELETE FROM syncer.job",
        "UPDATE syncer.document SET suspended = 'x'",
        "DELETE FROM syncer.dead_letter",
        "DELETE FROM syncer.event",
        "SELECT nextval('syncer.version')",
        "UPDATE posts SET title = 'x'",
    ],
}


def is_refused(connection: psycopg.Connection[Any], statement: str) -> bool:
    """Whether a role lacks the privilege for a statement."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def test_no_duty_can_do_what_is_another_s(world: World) -> None:
    """What each role lacks, Postgres refuses; nobody but the migrator creates anything."""
    grant(world, *DUTIES)
    try:
        # A role that had more before has no more after the script runs again.
        world.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA syncer TO {world.name}_worker")
        grant(world, *DUTIES)
        for duty, statements in FORBIDDEN.items():
            with psycopg.connect(world.dsn_of(f"{duty}_{world.name}"), autocommit=True) as connection:
                tried = (*statements, "CREATE TABLE syncer.mine ()", "CREATE SCHEMA mine")
                assert [statement for statement in tried if not is_refused(connection, statement)] == [], duty
        reader = {"SYNCER_POSTGRES_DSN": world.dsn_of(f"reader_{world.name}")}
        ended = world.syncer("backfill", "blogpost", environment=reader)
        assert ended.returncode == 1
        assert "Postgres refuses" in ended.stdout + ended.stderr
    finally:
        groups = [f"{world.name}_{name}" for name in ("documents", *DUTIES)]
        for role in (*groups, *(f"{duty}_{world.name}" for duty in DUTIES)):
            world.sql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
