"""Postgres is set back to a time before a rebuild, or in its middle: what it no longer knows of does no harm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from syncer.base.model import Role
from syncer.jobs import queue
from syncer.jobs.model import unfinished
from syncer.sandbox import Endpoints, Sandbox
from tests.faults.test_rebuild import begin, is_half_built, physical, require_done, roles
from tests.faults.writers import fill
from tests.harness import DEADLINE_SECONDS, World, made, wait_until
from tests.standbys import Standbys, standbys


@pytest.fixture(scope="module")
def servers(sandbox: Sandbox) -> Iterator[Standbys]:
    """A Postgres of these tests' own."""
    with standbys(sandbox) as made:
        yield made


@pytest.fixture
def blog(sandbox: Sandbox, endpoints: Endpoints, servers: Standbys, tmp_path: Path) -> Iterator[World]:
    """A blog on that Postgres, and a daemon that keeps up."""
    there = replace(endpoints, postgres_dsn=servers.primary.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.set_up()
        fill(world)
        world.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 't', '' FROM generate_series(100, 340) g")
        world.daemon()
        world.wait_until_level()
        yield world


def let_go(world: World) -> None:
    """Let the job that was to be slow be as quick as it can."""
    with world.connect() as connection:
        for one in unfinished(connection):
            queue.set_rate(connection, one.id, None)


@pytest.mark.parametrize(
    "is_begun",
    [pytest.param(False, id="before_it_began"), pytest.param(True, id="in_its_middle")],
)
@pytest.mark.thorough
def test_a_rebuild_that_the_database_has_forgotten(blog: World, servers: Standbys, *, is_begun: bool) -> None:
    """Changes reach what is searched, the same command ends it; what Postgres does not know stays, and is not used."""
    before = blog.index_of()
    go_back = None if is_begun else servers.keep_backup()
    process = begin(blog, "--rate", "15")
    wait_until(lambda: is_half_built(blog), what="the new index has some of the documents")
    forgotten = {roles(blog)[Role.BUILDING]}
    if go_back is None:
        go_back, forgotten = servers.keep_backup(), set()
        let_go(blog)
        require_done(blog, process)
        blog.sql("UPDATE posts SET title = 'lost' WHERE id = 1")
        blog.wait_until_level()
    go_back()
    process.wait(2 * DEADLINE_SECONDS)
    blog.sql("UPDATE posts SET title = 'new' WHERE id = 2")
    blog.wait_until_level()
    require_done(blog, begin(blog, "--rate", "10000"))
    now = roles(blog)
    assert now[Role.CURRENT] != before
    assert physical(blog) == set(now.values()) | forgotten
    assert not forgotten & set(now.values())
    blog.wait_until_level()
