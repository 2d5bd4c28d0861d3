"""The syncer schema is brought up to date whole or not at all, and each role can do in it what its duty is."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from syncer.base import migrations as base_migrations, settings
from syncer.base.errors import SourceError
from syncer.base.postgres import AdvisoryLock
from syncer.recovery import backlog
from tests.support.capture import forget, install, is_installed, written
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, REPOSITORY, World, wait_until

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
    return folder


EARLIER = """
INSERT INTO syncer.capture (relation, key, watched, routing, aggregate, aggregate_column)
VALUES ('public.posts', '{id}', '{title}', '{id}', 'public.posts', 'id');
CREATE FUNCTION syncer."capture_public.posts"() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog
AS $$ BEGIN
    INSERT INTO syncer.outbox (segment, relation, operation, old, new)
    SELECT 0, 'public.posts', 'U', jsonb_build_object('id', id::text), jsonb_build_object('id', id::text) FROM new_rows
    WHERE NOT syncer.is_gone(title);
    RETURN NULL;
END $$;
CREATE TRIGGER syncer_update AFTER UPDATE ON posts REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION syncer."capture_public.posts"();
INSERT INTO users (id, name, email) VALUES (1, 'John', '');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'old', '');
UPDATE posts SET title = 'read';
"""
SAVE_CURSOR = """
INSERT INTO syncer.relay_cursor (number, system_identifier, snapshot)
SELECT 1, system_identifier, pg_current_snapshot() FROM pg_control_system()
"""


def test_what_waits_in_an_earlier_schema_is_read_after_the_upgrade(empty_world: World, migrations: Path) -> None:
    """Outbox, cursor and triggers are those of 0.1.0: none of its changes is lost, and apply renews the triggers."""
    world, (first, *later) = empty_world, FILES
    shutil.copy(first, migrations)
    world.sql(BLOG_SCHEMA.read_text())
    migrate(world)
    world.sql(EARLIER)
    world.sql(SAVE_CURSOR)
    world.sql("UPDATE posts SET title = 'waits'")
    for file in later:
        shutil.copy(file, migrations)
    with pytest.raises(SourceError, match=f"{later[0].stem}, .* not applied"):
        require_current(world)
    assert migrate(world) == [file.stem for file in later]
    world.sql("UPDATE posts SET title = 'after the upgrade'")
    with closing(backlog.reader(world.connect, bytes_max=10**9)) as reader:
        assert reader.lead()
        assert len(reader.read(rows_max=10).rows) == 2
    install(world)
    assert is_installed(world, "public.posts")
    forget(world)
    world.sql("UPDATE posts SET title = 'captured once'")
    assert written(world) == [("public.posts", "U", {"id": "2"}, {"id": "2"})]


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
    (migrations / "0001.good.sql").write_text("CREATE TABLE syncer.good (id int);")
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
    "INSERT INTO syncer.orphan_index VALUES ('blogpost', 'blogpost')",
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
        "UPDATE syncer.cluster_identity SET epoch = 1",
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
