"""The syncer schema is brought up to date whole or not at all, by whoever comes first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from syncer.base import migrations as base_migrations, shipped
from syncer.base.error_policy import explain
from syncer.base.errors import SourceError
from syncer.base.postgres import AdvisoryLock
from syncer.capture.reader import OutboxReader
from syncer.capture.triggers import row_trigger, truncate_trigger
from syncer.documents import registry
from tests.support.capture import forget, install, triggers, written
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, World, wait_until

APPLIED = "SELECT name FROM syncer.migration ORDER BY 1"
SHIPPED = sorted(file.stem for file in shipped.folder("migrations").glob("*.sql"))


def objects(world: World) -> list[tuple[object, ...]]:
    """Everything that is in schema syncer, as the catalogue has it."""
    return world.sql(
        "SELECT c.oid, c.relname, c.relkind::text FROM pg_class AS c "
        "WHERE c.relnamespace = to_regnamespace('syncer') ORDER BY 1"
    )


def migrate(world: World) -> list[str]:
    """What ``syncer migrate`` does, on a connection of its own."""
    with world.connect() as connection:
        return base_migrations.migrate(connection)


def require_current(world: World) -> None:
    """What every other command does first."""
    with world.connect() as connection:
        base_migrations.require_current(connection)


def test_migrating_twice_changes_nothing(empty_world: World) -> None:
    """The first migrate applies all there are, the second none."""
    assert migrate(empty_world) == SHIPPED
    before = objects(empty_world)
    assert migrate(empty_world) == []
    assert objects(empty_world) == before
    require_current(empty_world)


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


def test_what_waits_in_an_earlier_schema_is_read_after_the_upgrade(
    empty_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox, its cursor and its triggers are those of 0005: none of its changes is lost, and apply renews them."""
    world, files = empty_world, base_migrations._files()
    world.sql(BLOG_SCHEMA.read_text())
    with monkeypatch.context() as earlier:
        earlier.setattr(base_migrations, "_files", lambda: {name: files[name] for name in files if name < "0006"})
        migrate(world)
    world.sql(EARLIER)
    world.sql(SAVE_CURSOR)
    world.sql("UPDATE posts SET title = 'waits'")
    assert migrate(world) == [name for name in SHIPPED if name > "0006"]
    world.sql("UPDATE posts SET title = 'after the upgrade'")
    with closing(OutboxReader(world.connect)) as reader:
        assert reader.lead()
        assert len(reader.read(rows_max=10).rows) == 2
    install(world)
    assert [name for name, _ in triggers(world, "posts")] == [
        row_trigger("public.posts"),
        truncate_trigger("public.posts"),
    ]
    forget(world)
    world.sql("UPDATE posts SET title = 'captured once'")
    assert written(world) == [("public.posts", "U", {"id": "2"}, {"id": "2"})]


def test_a_definition_of_an_earlier_version_is_read_and_derived_again(world: World) -> None:
    """Its columns had types, and its relations another form: apply writes every document once more."""
    stored = "jsonb_set(jsonb_set(definition, '{dependencies,fields}', %s), '{dependencies,shapes}', %s)"
    fields = '[{"name": "title", "type": "text"}, {"name": "body", "type": "text"}]'
    shapes = '{"public.posts": {"kind": "a table", "columns": {"id": "bigint"}, "values": [], "lists_values": false}}'
    world.sql(f"UPDATE syncer.document SET definition = {stored}", fields, shapes)
    world.sql(base_migrations._files()["0011.dependencies"].decode())
    with world.connect() as connection:
        (before,) = registry.documents(connection)
        assert before.dependencies.fields == ("title", "body")
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', '')")
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'a title', '')")
    applied = world.syncer("apply", "--yes")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert world.differences() == []
    with world.connect() as connection:
        (after,) = registry.documents(connection)
        assert after.revision > before.revision
        assert after.dependencies.shapes


def waiting_for_the_lock(world: World) -> int:
    """How many sessions wait to migrate."""
    (row,) = world.sql(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity AS a USING (pid) "
        "WHERE locktype = 'advisory' AND NOT granted AND a.datname = current_database()"
    )
    return int(row[0])


def test_two_that_migrate_at_once_both_succeed(empty_world: World) -> None:
    """One applies, the other waits and finds nothing to do."""
    with ThreadPoolExecutor(2) as threads, empty_world.connect() as holder:
        holder.execute("SELECT pg_advisory_lock($1)", (AdvisoryLock.SCHEMA,))
        both = [threads.submit(migrate, empty_world) for _ in range(2)]
        wait_until(lambda: waiting_for_the_lock(empty_world) == 2, what="both wait")
        holder.execute("SELECT pg_advisory_unlock($1)", (AdvisoryLock.SCHEMA,))
        assert sorted(one.result(timeout=DEADLINE_SECONDS) for one in both) == [[], SHIPPED]
    assert [row[0] for row in empty_world.sql(APPLIED)] == SHIPPED


def test_without_the_lock_one_of_two_would_fail(empty_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is shown to matter: two processes that apply the same migration at the same time collide."""
    look = base_migrations._applied
    both_have_looked = threading.Barrier(2)

    def looked(*arguments: Any) -> dict[str, str]:
        found = look(*arguments)
        both_have_looked.wait(timeout=DEADLINE_SECONDS)
        return found

    monkeypatch.setattr(base_migrations, "_LOCK", "SELECT $1::bigint")
    monkeypatch.setattr(base_migrations, "_applied", looked)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(migrate, empty_world) for _ in range(2)]
        failures = [one.exception(timeout=DEADLINE_SECONDS) for one in both]
    assert sum(isinstance(failure, psycopg.Error) for failure in failures) == 1


def test_a_database_without_the_schema_says_what_to_run(empty_world: World) -> None:
    """Every command but migrate refuses such a database, and names the one that helps."""
    with pytest.raises(SourceError, match="no syncer schema") as refused:
        require_current(empty_world)
    assert refused.value.hint == "Run: syncer migrate"
    answer = empty_world.syncer("status")
    assert answer.returncode != 0
    assert "syncer migrate" in answer.stdout + answer.stderr


def test_a_database_that_is_newer_is_refused(empty_world: World) -> None:
    """A migration that this program does not know means that a newer one is at work: neither may touch it."""
    migrate(empty_world)
    before = objects(empty_world)
    empty_world.sql("INSERT INTO syncer.migration (name, checksum) VALUES ('9999.from-the-future', 'x')")
    for attempt in (migrate, require_current):
        with pytest.raises(SourceError, match=r"9999\.from-the-future is unknown here") as refused:
            attempt(empty_world)
        assert "Install the version" in refused.value.hint
    assert objects(empty_world) == before


@pytest.fixture
def migrations(empty_world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of migrations of the test's own."""
    folder = empty_world.folder / "migrations"
    folder.mkdir()
    monkeypatch.setattr(shipped, "folder", lambda _: folder)
    return folder


def test_a_migration_that_fails_leaves_nothing_behind(empty_world: World, migrations: Path) -> None:
    """What was applied before it in the same run is undone too, and once it is fixed all goes through."""
    (migrations / "0001.good.sql").write_text("CREATE TABLE syncer.good (id int);")
    broken = migrations / "0002.broken.sql"
    broken.write_text("CREATE TABLE syncer.half (id int); INSERT INTO syncer.good VALUES ('not a number');")
    for _ in range(2):
        with pytest.raises(errors.InvalidTextRepresentation):
            migrate(empty_world)
        assert objects(empty_world) == []
    broken.write_text("CREATE TABLE syncer.half (id int);")
    assert migrate(empty_world) == ["0001.good", "0002.broken"]
    require_current(empty_world)


def test_a_connection_is_whole_after_a_migration_that_failed(empty_world: World, migrations: Path) -> None:
    """Nothing of ours stays on the session: no transaction, no lock, no search_path."""
    (migrations / "0001.broken.sql").write_text("SELECT 1 / 0;")
    with empty_world.connect() as connection:
        before = connection.execute("SHOW search_path").fetchall()
        with pytest.raises(errors.DivisionByZero):
            base_migrations.migrate(connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert connection.execute("SHOW search_path").fetchall() == before
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert connection.execute(locks).fetchall() == [(0,)]


def test_later_migrations_are_added_to_the_earlier_ones(empty_world: World, migrations: Path) -> None:
    """A newer program applies what is missing, in order, and only that."""
    (migrations / "0001.first.sql").write_text("CREATE TABLE syncer.first (id int);")
    assert migrate(empty_world) == ["0001.first"]
    (migrations / "0002.second.sql").write_text("ALTER TABLE syncer.first ADD COLUMN name text;")
    (migrations / "0003.third.sql").write_text("INSERT INTO syncer.first VALUES (1, 'x');")
    with pytest.raises(SourceError, match=r"0002\.second, 0003\.third not applied"):
        require_current(empty_world)
    assert migrate(empty_world) == ["0002.second", "0003.third"]
    assert empty_world.sql("TABLE syncer.first") == [(1, "x")]


def test_a_migration_that_was_changed_after_it_was_applied_is_refused(empty_world: World, migrations: Path) -> None:
    """What the database has is then not what this program's files say, so neither side goes on."""
    file = migrations / "0001.first.sql"
    file.write_text("CREATE TABLE syncer.first (id int);")
    migrate(empty_world)
    file.write_text("CREATE TABLE syncer.first (id bigint);")
    for attempt in (migrate, require_current):
        with pytest.raises(SourceError, match=r"0001\.first is unknown here or differs"):
            attempt(empty_world)


def test_a_role_without_privilege_is_told_what_it_lacks(empty_world: World) -> None:
    """Whoever may not create schemas, or not read ours, gets an error in words, with the fix."""
    role = sql.Identifier(f"{empty_world.name}_nobody")
    migrated = (False, True)
    with psycopg.connect(empty_world.dsn, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            for is_migrated in migrated:
                if is_migrated:
                    migrate(empty_world)
                with empty_world.connect() as connection:
                    connection.execute(sql.SQL("SET ROLE {}").format(role))
                    with pytest.raises(errors.InsufficientPrivilege) as refused:
                        base_migrations.migrate(connection)
                    said = explain(refused.value)
                assert isinstance(said, SourceError)
                assert "permission denied" in said.message
                assert "lacks a privilege" in said.hint
            with empty_world.connect() as connection:
                connection.execute(sql.SQL("SET ROLE {}").format(role))
                with pytest.raises(errors.InsufficientPrivilege) as refused:
                    base_migrations.require_current(connection)
            assert isinstance(explain(refused.value), SourceError)
        finally:
            owner.execute(sql.SQL("DROP ROLE {}").format(role))
