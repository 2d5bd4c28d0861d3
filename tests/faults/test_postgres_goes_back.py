"""Postgres is set back to an earlier state, and loses commits that documents show: no document stays at what is lost.

The soak fails over and restores backups. These are the ways back of which the server itself knows nothing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest

from syncer.base import migrations
from syncer.base.errors import SourceError, SyncerError
from syncer.sandbox import Endpoints, Sandbox
from tests.faults.harness import require_holds
from tests.support.doctor import fix, is_well, look
from tests.support.standbys import standbys
from tests.support.world import BLOG_SCHEMA, DEADLINE_SECONDS, World, elsewhere
from tests.support.writers import fill

MANY_NUMBERS = "SELECT count(nextval('syncer.version')) FROM generate_series(1, 300000)"
"""More than a new writer skips."""


def test_files_that_are_put_back_do_not_freeze_documents(
    sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path
) -> None:
    """The first write that meets a version of the lost life fixes all documents, in a greater epoch."""
    epoch = "SELECT epoch FROM syncer.cluster_identity"
    with (
        standbys(sandbox) as servers,
        elsewhere(sandbox, endpoints, tmp_path, postgres_dsn=servers.primary.address) as world,
    ):
        fill(world)
        world.daemon()
        go_back = servers.keep_files()
        world.sql(MANY_NUMBERS)
        world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1000, 1, 'lost', '')")
        world.sql("DELETE FROM posts WHERE id < 10; UPDATE users SET name = 'lost' WHERE id = 3")
        world.wait_until_level()
        [(before,)] = world.sql(epoch)
        go_back()
        world.sql("UPDATE users SET name = 'found' WHERE id = 3")
        require_holds(world)
        assert world.sql(epoch) == [(before + 1,)]


# Restored to before what Elasticsearch has been prepared for


def dump(world: World) -> bytes:
    """The database as it is."""
    program = world.sandbox.postgres.bin_folder / "pg_dump"
    return subprocess.run([str(program), world.dsn], capture_output=True, check=True, timeout=DEADLINE_SECONDS).stdout


def restore(world: World, dumped: bytes) -> None:
    """The database as it was."""
    with psycopg.connect(world.endpoints.postgres_dsn, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{world.name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{world.name}"')
    psql = [str(world.sandbox.postgres.bin_folder / "psql"), "--quiet", "--set=ON_ERROR_STOP=1", world.dsn]
    subprocess.run(psql, input=dumped, capture_output=True, check=True, timeout=DEADLINE_SECONDS)


@pytest.mark.parametrize("is_migrated", [False, True], ids=["before migrate", "before apply"])
def test_a_database_that_knows_of_no_document(empty_world: World, *, is_migrated: bool) -> None:
    """Its own index is reported, and taken up again with greater versions; another database's is not touched."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text())
    fill(world)
    if is_migrated:
        world.migrate()
    before = dump(world)
    world.migrate()
    world.apply()
    world.sql(MANY_NUMBERS)
    world.sql("UPDATE users SET name = 'lost'; DELETE FROM posts WHERE id = 3")
    world.backfill()
    held, index = world.held(), world.index_of()
    restore(world, before)
    if is_migrated:
        (forgotten,) = look(world, "elasticsearch.orphans")
        assert f"Searches of {world.alias} find {index}, made for blogpost" in forgotten.found
        fix(world, forgotten)
        world.wait_until_level()
        assert is_well(look(world, "elasticsearch.orphans"))
        return
    with pytest.raises(SourceError, match="no syncer schema"), world.connect() as connection:
        migrations.require_current(connection)
    world.migrate()
    with pytest.raises(SyncerError, match="not this database's"):
        world.apply()
    assert world.held() == held


def test_the_alias_leads_to_one_index_after_a_restore(world: World) -> None:
    """The index that the restored database knows nothing of is searched no more once its own is made again."""
    fill(world)
    world.backfill()
    before, index = dump(world), world.index_of()
    with world.elasticsearch() as client:
        for _ in range(2):
            client.indices.delete(index=world.index_of())
            world.apply()
        assert world.index_of() != index
        restore(world, before)
        assert world.index_of() == index
        world.apply()
        assert list(client.indices.get_alias(name=world.alias).body) == [world.index_of()]
    assert world.differences() == []
