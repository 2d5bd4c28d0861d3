"""A restore to before what Elasticsearch has been prepared for says what to do, and writes to no wrong index."""

from __future__ import annotations

import subprocess

import psycopg
import pytest

from syncer import schema
from syncer.errors import SourceError, SyncerError
from tests.doctoring import is_well, look, mend
from tests.faults.writers import fill
from tests.harness import BLOG_SCHEMA, DEADLINE_SECONDS, World
from tests.proof import faces


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


@pytest.mark.parametrize("is_migrated", [False, True], ids=["before_migrate", "before_apply"])
@faces("the database is restored to before `syncer migrate`, or `syncer apply`", promises=(2, 3))
def test_a_database_that_knows_of_no_document(empty_world: World, is_migrated: bool) -> None:
    """Its own index is told of, and taken up again with greater versions; that of another database is not touched."""
    world = empty_world
    world.sql(BLOG_SCHEMA.read_text())
    fill(world)
    if is_migrated:
        world.migrate()
    before = dump(world)
    world.migrate()
    world.apply()
    world.sql("SELECT count(nextval('syncer.version')) FROM generate_series(1, 300000)")
    world.sql("UPDATE users SET name = 'lost'; DELETE FROM posts WHERE id = 3")
    world.backfill()
    world.wait_until_level()
    held, index = world.held(), world.index_of()
    restore(world, before)
    if is_migrated:
        (forgotten,) = look(world, "elasticsearch.forgotten")
        assert f"Searches of {world.alias} find {index}, of blogpost" in forgotten.found
        mend(world, forgotten)
        world.wait_until_level()
        assert is_well(look(world, "elasticsearch.forgotten"))
        return
    with pytest.raises(SourceError, match="no syncer schema"), world.connect() as connection:
        schema.require_current(connection)
    world.migrate()
    with pytest.raises(SyncerError, match="not this database's"):
        world.apply()
    assert world.held() == held
