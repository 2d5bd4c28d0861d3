"""Whatever somebody does to an index by hand is noticed, and mended by a command that is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from elasticsearch import Elasticsearch

from tests.faults.writers import fill, writing
from tests.harness import World
from tests.proof import Rule, faces


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
    client.index(index=world.alias, id="stray", document={"title": "added by hand"}, refresh=True)


@pytest.fixture
def blog(world: World) -> World:
    """A world with users and posts, which Elasticsearch has too."""
    fill(world)
    world.backfill()
    return world


@faces(
    "the alias that searches use, or the one that writes name, is deleted by hand",
    promises=(1, 3),
    without=Rule(
        "apply looks for both aliases",
        module="syncer.steps",
        text="indices.exists(before.target, searched_as=before.index)",
        instead="True",
    ),
)
@pytest.mark.parametrize("by_hand", [delete_alias, delete_write_alias])
def test_an_alias_that_is_deleted_is_given_back(blog: World, by_hand: Callable[[Elasticsearch, World], None]) -> None:
    """What is written meanwhile is lost to nobody: `syncer apply` gives the alias back and writes what was missed."""
    daemon = blog.daemon()
    with blog.elasticsearch() as client, writing(blog, writers=2):
        by_hand(client, blog)
        blog.sql("UPDATE users SET name = 'while it is away' WHERE id = 3")
        if by_hand is delete_write_alias:
            daemon.wait_for("document.halted")
        applied = blog.syncer("apply", "--yes")
    assert applied.returncode == 0, applied.stderr
    assert "aliases" in applied.stdout + applied.stderr
    blog.wait_until_level()
    assert daemon.stop() == 0


@faces("an index is made by hand where the alias was", promises=(3,))
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


@faces("documents are deleted, edited and added by hand", promises=(3,))
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
    assert blog.syncer("verify").returncode == 0
