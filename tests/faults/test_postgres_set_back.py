"""Postgres loses commits that documents show: failed over, recovered to an earlier time, restored, put back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from pathlib import Path

import pytest
from elasticsearch.helpers import scan

from syncer.sandbox import Endpoints, Sandbox
from tests.faults.writers import fill, writing
from tests.harness import World, made
from tests.proof import Rule, faces
from tests.standbys import Standbys, standbys

WAYS: dict[str, Callable[[Standbys], Callable[[], None]]] = {
    "failed over to a replica that had not received everything": Standbys.keep_standby,
    "recovered to an earlier point in time": Standbys.keep_backup,
    "dumped, and restored into a new cluster": Standbys.keep_dump,
}

REFRESH = Rule(
    "whoever enters a new life of the database has every document refreshed",
    module="syncer.incarnation",
    text=", if_changed=refresh_all)",
    instead=")",
)
EPOCH = Rule(
    "a new life of the database draws versions of a greater epoch",
    module="syncer.version",
    text="epoch = max(found.epoch, recorded) + 1",
    instead="epoch = max(found.epoch, 1)",
)
DOUBT = Rule(
    "a conflict with a version that was never drawn tells that the database was set back",
    module="syncer.writer",
    text="return found > 0 and incarnation.doubt(self._session.connection, self._index, found)",
    instead="return False",
)


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
    """The epoch that Postgres has in force."""
    found: int = world.sql("SELECT epoch FROM syncer.incarnation")[0][0]
    return found


def write_what_is_lost(world: World) -> None:
    """Commits of each kind that the database is going to lose; Elasticsearch shows them when this returns."""
    with writing(world):
        time.sleep(1)
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1000, 1, 'lost', '') ON CONFLICT DO NOTHING")
    world.sql("DELETE FROM posts WHERE id < 10")
    world.sql("UPDATE users SET name = 'lost' WHERE id = 3")
    world.wait_until_level()


@pytest.mark.parametrize("way", WAYS.values(), ids=[name.replace(" ", "_") for name in WAYS])
@faces(
    "the database is failed over to a replica that had not received everything, recovered to an earlier point in time, "
    "or restored from a dump, under a daemon",
    promises=(2, 3),
    without=(REFRESH, EPOCH),
)
def test_documents_follow_the_database_back(
    world: World, servers: Standbys, way: Callable[[Standbys], Callable[[], None]]
) -> None:
    """Documents that show lost commits are mended by themselves, though nobody writes, and no version goes back."""
    fill(world)
    daemon = world.daemon()
    with writing(world):
        time.sleep(0.5)
        go_back = way(servers)
    write_what_is_lost(world)
    before, epoch_before = versions(world), epoch(world)
    go_back()
    world.wait_until_level()
    assert epoch(world) > epoch_before
    with writing(world):
        time.sleep(0.5)
    world.wait_until_level()
    daemon.wait_for("job.finished")  # until then some may have the version that they had
    after = versions(world)
    assert all(after[id_] > before[id_] for id_ in before.keys() & after.keys())
    assert "1000" in before
    assert world.syncer("verify").returncode == 0
    assert len([one for one in daemon.events() if one["event"] == "incarnation.entered"]) == 1
    assert len([one for one in daemon.events() if one["event"] == "stage.retried"]) < 30
    assert daemon.stop() == 0


@faces(
    "a copy of the database's files is put in its place, so that it draws versions again that it has drawn before",
    promises=(2, 3),
    without=(DOUBT, REFRESH),
)
def test_files_that_are_put_back_do_not_freeze_documents(world: World, servers: Standbys) -> None:
    """The server knows of nothing; the first write that meets a version of the lost life mends all documents."""
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
    assert world.syncer("verify").returncode == 0
    assert daemon.stop() == 0


@faces(
    "the sequence of versions is set back by hand, under a daemon",
    promises=(2, 3),
    without=DOUBT,
)
def test_a_sequence_that_is_set_back_does_not_freeze_documents(world: World) -> None:
    """Versions that are drawn again are less than those that documents have; then a greater epoch is entered."""
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
