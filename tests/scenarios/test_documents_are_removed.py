"""A document is deactivated: what it had goes with it, and nothing else changes."""

from __future__ import annotations

import shutil

import pytest

from syncer.apply import activate
from tests.faults.harness import add_posts
from tests.support.world import World, planned, wait_until


def add_pages(world: World) -> None:
    """The folder of a second document, on a table of its own."""
    world.define("page", "SELECT id AS _id, text FROM pages", {"properties": {"text": {"type": "text"}}})


@pytest.fixture
def two(empty_world: World) -> World:
    """A world with posts and pages active."""
    empty_world.sql("CREATE TABLE pages (id bigint PRIMARY KEY, text text NOT NULL)")
    empty_world.sql("INSERT INTO pages SELECT g, 'page ' || g FROM generate_series(1, 10) AS g")
    add_pages(empty_world)
    empty_world.set_up()
    add_posts(empty_world, 10)
    return empty_world


def indices_of_pages(world: World) -> list[str]:
    """The physical indices of pages."""
    with world.elasticsearch() as client:
        return sorted(client.indices.get(index=f"{world.alias_of('page')}*", expand_wildcards="all").body)


def active(world: World) -> list[str]:
    """The documents active."""
    return [name for (name,) in world.sql("SELECT name FROM syncer.document ORDER BY 1")]


def test_a_document_goes_with_all_that_it_has(two: World) -> None:
    """Its index, its jobs and its tables' triggers are gone; the daemon goes on with the others, and takes it back."""
    daemon = two.daemon()
    two.wait_until_level()
    shutil.rmtree(two.config / "documents" / "page")
    applied = two.syncer("apply", "--yes")
    assert "syncer apply --remove page" in applied.stdout
    assert active(two) == ["blogpost", "page"]
    two.prints("apply", "--yes", "--remove", "page")
    assert active(two) == ["blogpost"]
    assert indices_of_pages(two) == []
    assert two.sql("SELECT FROM syncer.capture WHERE relation = 'public.pages'") == []
    assert two.sql("SELECT FROM syncer.orphan_index") == []
    two.sql("UPDATE pages SET text = 'nobody reads it'; UPDATE posts SET title = 'followed'")
    two.wait_until_level()
    assert "page" not in two.syncer("status").stdout
    two.prints("doctor")
    add_pages(two)
    two.prints("apply", "--yes")
    two.sql("UPDATE pages SET text = 'read again' WHERE id = 1")
    with two.elasticsearch() as client:
        wait_until(
            lambda: client.get(index=two.alias_of("page"), id="1")["_source"]["text"] == "read again",
            what="it is followed",
        )
    assert indices_of_pages(two) == [f"{two.alias_of('page')}-000002"]
    assert not [event for event in daemon.events() if event["level"] == "error"]
    assert daemon.stop() == 0


def test_what_cannot_be_removed_is_said(two: World) -> None:
    """What has a folder stays, and so does what is not known, or what another program searches; nothing is changed."""

    def refused(name: str) -> str:
        ended = two.syncer("apply", "--yes", "--remove", name)
        assert (ended.returncode, active(two)) == (1, ["blogpost", "page"])
        return ended.stderr

    assert "page has a folder, and stays active" in refused("page")
    shutil.rmtree(two.config / "documents" / "page")
    assert "No document pgae is active" in refused("pgae")
    with two.elasticsearch() as client:
        client.indices.put_alias(index=f"{two.alias_of('page')}-000001", name=f"{two.alias}-reports")
        assert f"is searched as {two.alias}-reports" in refused("page")
        assert client.indices.exists_alias(name=two.alias_of("page"))
        client.indices.delete_alias(index=f"{two.alias_of('page')}-000001", name=f"{two.alias}-reports")
    two.prints("apply", "--yes", "--remove", "page")


@pytest.mark.parametrize("step", ["hide", "drop"])
def test_a_removal_that_is_killed_is_ended_by_the_next(two: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Whoever applies next ends it: no index is left behind, and no alias."""
    shutil.rmtree(two.config / "documents" / "page")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with two.connect() as connection, two.indices() as indices:
        with monkeypatch.context() as patched:
            patched.setattr(indices, step, die)
            decided = planned(connection, indices, two.config, remove=["page"])
            with pytest.raises(KeyboardInterrupt):
                activate.carry_out(connection, indices, decided)
        active_again = {"page"}.intersection(active(two))
        activate.carry_out(connection, indices, planned(connection, indices, two.config, remove=active_again))
    assert active(two) == ["blogpost"]
    assert indices_of_pages(two) == []


@pytest.mark.parametrize("mappings", [{}, {"_meta": {"syncer": {}}}], ids=["none", "empty"])
def test_an_index_that_merely_has_the_name_is_kept(two: World, mappings: dict[str, object]) -> None:
    """Rule: only an index with syncer's mark is deleted. The document goes, and what somebody put there stays."""
    name = two.index_of("page")
    with two.elasticsearch() as client:
        client.indices.delete(index=name)
        client.indices.create(index=name, mappings=mappings)
        shutil.rmtree(two.config / "documents" / "page")
        two.prints("apply", "--yes", "--remove", "page")
        assert active(two) == ["blogpost"]
        assert client.indices.exists(index=name)
        client.indices.delete(index=name)
