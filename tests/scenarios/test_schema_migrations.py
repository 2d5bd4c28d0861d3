"""The syncer schema is brought up to date whole or not at all, by whoever comes first."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import errors, sql

from syncer.base import migrations as base_migrations, settings
from syncer.base.error_policy import explain
from syncer.base.errors import SourceError
from syncer.base.postgres import AdvisoryLock
from syncer.capture.reader import OutboxReader
from syncer.documents import registry
from tests.support.capture import forget, install, is_installed, written
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, World, wait_until

FILES = sorted(settings.shipped("migrations").glob("*.sql"))
SHIPPED = [file.stem for file in FILES]


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
    """The first migrate applies all there are, the second none; without it, every command names the one that helps."""
    answer = empty_world.syncer("status")
    assert answer.returncode != 0
    assert "Run: syncer migrate" in answer.stdout + answer.stderr
    assert migrate(empty_world) == SHIPPED
    before = objects(empty_world)
    assert migrate(empty_world) == []
    assert objects(empty_world) == before
    require_current(empty_world)


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
    """The outbox, its cursor and its triggers are those of 0005: none of its changes is lost, and apply renews them."""
    world = empty_world
    later = [file for file in FILES if file.name > "0006"]
    for file in FILES[: -len(later)]:
        shutil.copy(file, migrations)
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
    with closing(OutboxReader(world.connect)) as reader:
        assert reader.lead()
        assert len(reader.read(rows_max=10).rows) == 2
    install(world)
    assert is_installed(world, "public.posts")
    forget(world)
    world.sql("UPDATE posts SET title = 'captured once'")
    assert written(world) == [("public.posts", "U", {"id": "2"}, {"id": "2"})]


def test_a_definition_of_an_earlier_version_is_read_and_derived_again(world: World) -> None:
    """Its columns had types, and its relations another form: apply writes every document once more."""
    stored = "jsonb_set(jsonb_set(definition, '{dependencies,fields}', %s), '{dependencies,shapes}', %s)"
    fields = '[{"name": "title", "type": "text"}, {"name": "body", "type": "text"}]'
    shapes = '{"public.posts": {"kind": "a table", "columns": {"id": "bigint"}, "values": [], "lists_values": false}}'
    world.sql(f"UPDATE syncer.document SET definition = {stored}", fields, shapes)
    world.sql((settings.shipped("migrations") / "0011.dependencies.sql").read_text())
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
    """What was applied before it in the same run is undone too; once it is fixed, all goes through."""
    (migrations / "0001.good.sql").write_text("CREATE TABLE syncer.good (id int);")
    broken = migrations / "0002.broken.sql"
    broken.write_text("CREATE TABLE syncer.half (id int); INSERT INTO syncer.good VALUES ('not a number');")
    with empty_world.connect() as connection:
        with pytest.raises(errors.InvalidTextRepresentation):
            base_migrations.migrate(connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert objects(empty_world) == []
        broken.write_text("CREATE TABLE syncer.half (id int);")
        assert base_migrations.migrate(connection) == ["0001.good", "0002.broken"]
    require_current(empty_world)


def test_a_schema_of_another_version_is_refused(empty_world: World, migrations: Path) -> None:
    """A migration that this program does not know, or has in another form: neither program may touch it."""
    file = migrations / "0001.first.sql"
    file.write_text("CREATE TABLE syncer.first (id int);")
    migrate(empty_world)
    before = objects(empty_world)
    file.write_text("CREATE TABLE syncer.first (id bigint);")
    empty_world.sql("INSERT INTO syncer.migration (name, checksum) VALUES ('9999.from-the-future', 'x')")
    for attempt in (migrate, require_current):
        with pytest.raises(SourceError, match=r"0001\.first, 9999\.from-the-future is unknown here or") as refused:
            attempt(empty_world)
        assert "Install the version" in refused.value.hint
    assert objects(empty_world) == before


def test_a_role_without_privilege_is_told_what_it_lacks(empty_world: World) -> None:
    """Whoever may not create schemas, or not read ours, gets an error in words, with the fix."""
    role = sql.Identifier(f"{empty_world.name}_nobody")
    with psycopg.connect(empty_world.dsn, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            for attempt in (base_migrations.migrate, base_migrations.require_current):
                with empty_world.connect() as connection:
                    connection.execute(sql.SQL("SET ROLE {}").format(role))
                    with pytest.raises(errors.InsufficientPrivilege) as refused:
                        attempt(connection)
                found = explain(refused.value)
                assert isinstance(found, SourceError)
                assert "permission denied" in found.message
                assert "lacks a privilege" in found.hint
                migrate(empty_world)
        finally:
            owner.execute(sql.SQL("DROP ROLE {}").format(role))
