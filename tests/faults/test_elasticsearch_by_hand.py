"""Any manual change of an index is detected, and the named command fixes it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from elasticsearch import Elasticsearch

from syncer.documents import registry
from syncer.monitoring import problems
from syncer.monitoring.status import Reader
from tests.support.capture import define
from tests.support.world import World
from tests.support.writers import fill, writing


def delete_alias(client: Elasticsearch, world: World) -> None:
    """Searches find nothing any more."""
    client.indices.delete_alias(index=world.index_of(), name=world.alias)


def delete_write_alias(client: Elasticsearch, world: World) -> None:
    """Nothing can be written any more."""
    client.indices.delete_alias(index=world.index_of(), name=f"{world.index_of()}-syncer-write")


def replace_alias(client: Elasticsearch, world: World) -> None:
    """A script that knows nothing of aliases has made an index of that name."""
    delete_alias(client, world)
    client.index(index=world.alias, document={"title": "somebody else's"})


def edit(client: Elasticsearch, world: World) -> None:
    """Documents are edited, deleted and added."""
    client.update(index=world.alias, id="1", doc={"title": "edited by hand"})
    client.delete(index=world.alias, id="2")
    client.index(index=world.alias, id="orphan", document={"title": "added by hand"}, refresh=True)


@pytest.fixture
def blog(world: World) -> World:
    """A world with users and posts, which Elasticsearch has too."""
    fill(world)
    world.backfill()
    return world


@pytest.mark.parametrize("by_hand", [delete_alias, delete_write_alias])
def test_an_alias_that_is_deleted_is_given_back(blog: World, by_hand: Callable[[Elasticsearch, World], None]) -> None:
    """What is written meanwhile is lost to nobody: `syncer apply` gives the alias back and writes what was missed."""
    daemon = blog.daemon()
    with blog.elasticsearch() as client, writing(blog, writers=2):
        by_hand(client, blog)
        blog.sql("UPDATE users SET name = 'while it is away' WHERE id = 3")
        if by_hand is delete_write_alias:
            daemon.wait_for("document.suspended")
        applied = blog.syncer("apply", "--yes")
    assert applied.returncode == 0, applied.stderr
    assert "aliases" in applied.stdout + applied.stderr
    blog.wait_until_level()
    assert daemon.stop() == 0


def test_an_alias_that_leads_to_two_indices_is_told_and_fixed(blog: World) -> None:
    """Every hit comes twice, though all documents equal their SELECT: status and verify say so, and apply fixes it."""

    def troubles() -> list[str]:
        reader = Reader(blog.settings)
        try:
            return [problem.action for problem in problems.problems(reader.read())]
        finally:
            reader.close()

    with blog.connect() as connection, blog.indices() as indices:
        installation = registry.installation(connection)
        second = indices.create(
            document="blogpost", alias=blog.alias, body={}, revision=9, installation=installation
        ).index_name
    assert blog.syncer("verify").returncode == 0
    assert "Run: syncer apply" not in troubles()
    with blog.elasticsearch() as client:
        client.indices.put_alias(index=second, name=blog.alias)
        verified = blog.syncer("verify")
        assert verified.returncode == 1
        assert f"Searches find {blog.index_of()} and {second} instead of {blog.index_of()} alone" in verified.stdout
        assert "Run: syncer apply" in troubles()
        blog.apply()
        assert list(client.indices.get_alias(name=blog.alias).body) == [blog.index_of()]
    assert blog.syncer("verify").returncode == 0


def test_an_index_where_the_alias_was_is_said_and_left(blog: World) -> None:
    """Apply does not delete what is not its own; once somebody has, it gives the alias back."""
    with blog.elasticsearch() as client:
        replace_alias(client, blog)
        refused = blog.syncer("apply", "--yes")
        assert refused.returncode == 1
        assert f"{blog.alias} is an index" in refused.stderr
        client.indices.delete(index=blog.alias)
    blog.apply()
    blog.wait_until_level()


def test_what_is_changed_by_hand_is_found_and_repaired(blog: World) -> None:
    """Verify finds all of it, and with --repair makes it good, also where a version was made up."""
    with blog.relay() as relay, blog.index() as index, blog.worker(index) as worker:
        blog.drain(relay, worker)
        blog.handle(worker)  # of what differs from here on, nothing is on its way
    with blog.elasticsearch() as client:
        edit(client, blog)
    assert blog.syncer("verify").returncode == 1
    blog.daemon()
    blog.syncer("verify", "--repair")
    blog.wait_until_level()


KINDS = "CREATE TYPE kind AS ENUM ('one', 'two'); CREATE DOMAIN small AS int CHECK (value < 100)"
IDS = {
    "numeric": ("1.50", "NaN"),
    "small": ("1", "99"),
}


@pytest.mark.parametrize("type_", IDS)
def test_an_id_that_no_row_can_have_is_an_orphan(empty_world: World, type_: str) -> None:
    """Verify calls it extra, a cleanup removes it, and no document is suspended."""
    shutil.rmtree(empty_world.document_folder)
    define(empty_world, "thing", "SELECT id AS _id, name FROM things")
    empty_world.documents = ("thing",)
    empty_world.sql(KINDS)
    empty_world.sql(f"CREATE TABLE things (id {type_} PRIMARY KEY, name text)")
    empty_world.migrate()
    empty_world.apply()
    for one in IDS[type_]:
        empty_world.sql(f"INSERT INTO things VALUES ('{one}', 'a row')")
    orphans = ["orphan", "1e5", "100", "2026-02-30", *IDS[type_]]
    with empty_world.elasticsearch() as client:
        for orphan in orphans:
            client.index(
                index=empty_world.alias_of("thing"), id=orphan, document={"name": "added by hand"}, refresh=True
            )
        verified = empty_world.syncer("verify")
        assert "suspended" not in verified.stdout + verified.stderr
        assert verified.stdout.count("extra") >= 3
    empty_world.backfill("thing")
    assert empty_world.sql("SELECT suspended FROM syncer.document") == [(None,)]
    assert empty_world.differences() == []
    assert set(empty_world.held("thing")) == set(IDS[type_])
