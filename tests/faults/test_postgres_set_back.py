"""Postgres loses commits that documents show: failed over, recovered to an earlier time, restored, put back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from pathlib import Path

import pytest
from elasticsearch.helpers import scan

from syncer.sandbox import Endpoints, Sandbox
from tests.support.standbys import Standbys, standbys
from tests.support.world import World, made, wait_until
from tests.support.writers import fill, writing

WAYS: dict[str, Callable[[Standbys], Callable[[], None]]] = {
    "failed over to a replica that had not received everything": Standbys.keep_standby,
    "recovered to an earlier point in time": Standbys.keep_backup,
    "dumped, and restored into a new cluster": Standbys.keep_dump,
}


@pytest.fixture(scope="module")
def servers(sandbox: Sandbox) -> Iterator[Standbys]:
    """A Postgres of these tests' own."""
    with standbys(sandbox) as made:
        yield made


@pytest.fixture
def world(sandbox: Sandbox, endpoints: Endpoints, servers: Standbys, tmp_path: Path) -> Iterator[World]:
    """The blog on that Postgres."""
    there = changed(endpoints, postgres_dsn=servers.primary.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.set_up()
        yield world


def versions(world: World) -> dict[str, int]:
    """The version of every document that Elasticsearch has."""
    with world.elasticsearch() as client:
        client.indices.refresh(index=world.alias)
        return {hit["_id"]: hit["_version"] for hit in scan(client, index=world.alias, version=True)}


def epoch(world: World) -> int:
    """The epoch that Postgres has active."""
    found: int = world.sql("SELECT epoch FROM syncer.cluster_identity")[0][0]
    return found


def write_what_is_lost(world: World) -> None:
    """Commits of each kind that the database is going to lose; Elasticsearch shows them when this returns."""
    with writing(world):
        time.sleep(1)
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1000, 1, 'lost', '') ON CONFLICT DO NOTHING")
    world.sql("DELETE FROM posts WHERE id < 10")
    world.sql("UPDATE users SET name = 'lost' WHERE id = 3")
    world.wait_until_level()


def test_files_that_are_put_back_do_not_freeze_documents(world: World, servers: Standbys) -> None:
    """The server knows of nothing; the first write that meets a version of the lost life fixes all documents."""
    fill(world)
    daemon = world.daemon()
    go_back = servers.keep_files()
    # Numbers that are skipped by whoever connects anew do not make up for these.
    world.sql("SELECT count(nextval('syncer.version')) FROM generate_series(1, 300000)")
    write_what_is_lost(world)
    epoch_before = epoch(world)
    go_back()
    world.sql("UPDATE users SET name = 'found' WHERE id = 3")
    world.wait_until_level()
    assert epoch(world) == epoch_before + 1
    assert daemon.stop() == 0


def test_a_sequence_that_is_set_back_does_not_freeze_documents(world: World) -> None:
    """Versions that are assigned again are less than those that documents have; then a greater epoch is entered."""
    fill(world)
    daemon = world.daemon()
    world.sql("SELECT count(nextval('syncer.version')) FROM generate_series(1, 300000)")
    world.sql("UPDATE users SET name = 'before'")
    world.wait_until_level()
    world.sql("SELECT setval('syncer.version', 1)")
    world.sql("UPDATE users SET name = 'after'")
    world.wait_until_level()
    assert epoch(world) == 2
    assert daemon.stop() == 0


def test_versions_that_are_made_up_cost_one_refresh(world: World) -> None:
    """The first is taken for one of a life that the database has lost; those of the next hour are told by verify."""
    fill(world)
    daemon = world.daemon()
    for number in range(2):
        world.sql("UPDATE posts SET title = 'ahead' WHERE id = 2")
        wait_until(lambda: world.held().get("2", {}).get("title") == "ahead", what="what came ahead is written")
        wait_until(lambda: is_noted(world), what="what was assigned is noted")
        with world.elasticsearch() as client:
            made_up = max(versions(world).values()) + 100_000_000
            client.index(index=world.alias, id="1", document={}, version=made_up, version_type="external", refresh=True)
        world.sql("UPDATE posts SET title = %s WHERE id = 1", f"title {number}")
        world.sql("UPDATE posts SET title = 'behind' WHERE id = 2")
        wait_until(lambda: world.held().get("2", {}).get("title") == "behind", what="what came behind is written")
        wait_until(world.is_handled, what="all is handled")
    assert epoch(world) == 2
    assert versions(world)["1"] == made_up
    world.sql("UPDATE syncer.version_time SET assigned_before = assigned_before - interval '2 hours'")
    world.sql("UPDATE posts SET title = 'found' WHERE id = 1")
    world.wait_until_level()
    assert epoch(world) == 3
    assert daemon.stop() == 0


def is_noted(world: World) -> bool:
    """Whether a version of the epoch active was noted."""
    return bool(
        world.sql("SELECT max(version) >> 51 = (SELECT epoch FROM syncer.cluster_identity) FROM syncer.version_time")[
            0
        ][0]
    )
