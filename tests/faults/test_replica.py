"""Documents are read on a replica that lags, cancels queries, hangs, or is not a replica: nothing stale is written."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from syncer.base.errors import ReplicaError, SourceError
from syncer.base.settings import PostgresSettings
from syncer.indexing import replica, version
from syncer.indexing.compose import Composer
from syncer.indexing.replica import Replica
from syncer.indexing.writer import Writer
from syncer.kafka import topic
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.postgres import PostgresServer
from tests.faults.writers import at_work, fill, short_and_long, write_until
from tests.harness import Daemon, World, wait_until
from tests.standbys import Standbys, ask, standbys

LATE = "300ms"


@pytest.fixture(scope="module")
def primary(sandbox: Sandbox) -> Iterator[Standbys]:
    """A Postgres of these tests' own."""
    with standbys(sandbox) as made:
        yield made


@pytest.fixture
def servers(primary: Standbys) -> Iterator[Standbys]:
    """The same, with no replica but those of the test."""
    yield primary
    primary.stop_replicas()


@pytest.fixture
def world(sandbox: Sandbox, endpoints: Endpoints, servers: Standbys, tmp_path: Path) -> Iterator[World]:
    """The blog on that Postgres."""
    made = World(sandbox=sandbox, endpoints=changed(endpoints, postgres_dsn=servers.primary.address), folder=tmp_path)
    made.make()
    try:
        made.set_up()
        yield made
    finally:
        made.unmake()


def dsn_on(world: World, server: PostgresServer) -> str:
    """The world's database, as that server has it."""
    return changed(world, endpoints=changed(world.endpoints, postgres_dsn=server.address)).dsn


def settings_of(world: World, read_dsn: str) -> PostgresSettings:
    """As a daemon has them that reads there."""
    return PostgresSettings(dsn=world.settings.postgres.dsn, read_dsn=SecretStr(read_dsn))


@contextmanager
def opened(world: World, server: PostgresServer) -> Iterator[Replica]:
    """A replica, as a job worker has it."""
    opener = replica.opener(settings_of(world, dsn_on(world, server)), name="test")
    assert opener is not None
    with closing(opener()) as made:
        yield made


@contextmanager
def writing_with(world: World, server: PostgresServer, *, pause: Callable[[float], None]) -> Iterator[Writer]:
    """A writer that reads there."""
    opener = replica.opener(settings_of(world, dsn_on(world, server)), name="test")
    with world.index() as index:
        made = Writer(connect=world.connect, connect_replica=opener, index=index, pause=pause, name="test")
        with closing(made):
            yield made


def alter(stop: threading.Event, connection: psycopg.Connection[Any], _: random.Random) -> None:
    """Migrations and vacuums, each of which a replica must cancel queries for."""
    connection.autocommit = True
    while not stop.wait(0.1):
        connection.execute("ALTER TABLE posts ADD COLUMN nobody_reads_it integer")
        connection.execute("ALTER TABLE posts DROP COLUMN nobody_reads_it")
        connection.execute("VACUUM posts, comments, users")


@short_and_long
def test_a_replica_that_lags_and_cancels(world: World, servers: Standbys, seconds: float) -> None:
    """Each commit comes late to the replica, and queries that are in its way are cancelled: it ends level."""
    fill(world)
    follower = servers.follow(recovery_min_apply_delay=LATE, max_standby_streaming_delay="0")
    world.worker_settings = {"SYNCER_POSTGRES_READ_DSN": dsn_on(world, follower)}
    daemon = world.daemon()
    with at_work(world, [write_until] * 3 + [alter]):
        time.sleep(seconds)
        reading = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ 'syncer (worker|job_worker)'"
        wait_until(lambda: ask(follower, reading) >= 2, what="job workers read there")
    world.wait_until_level()
    assert world.sql("SELECT * FROM syncer.dead_letter") == []
    assert daemon.stop() == 0


@pytest.mark.thorough
def test_a_replica_that_stands_still(world: World, servers: Standbys) -> None:
    """While its replay is paused nothing is written, which is said once; it goes on by itself, or leaves if told to."""
    fill(world)
    follower = servers.follow()
    world.worker_settings = {"SYNCER_POSTGRES_READ_DSN": dsn_on(world, follower), "SYNCER_WORKER_THREADS": "1"}
    daemon = world.daemon()
    world.wait_until_level()
    ask(follower, "SELECT pg_wal_replay_pause()")
    wait_until(lambda: ask(follower, "SELECT pg_get_wal_replay_pause_state()") == "paused", what="the replay is paused")
    before = world.held()
    world.sql("UPDATE posts SET title = 'new'")
    wait_until(lambda: told(daemon) > 0, what="the daemon says so", detail=daemon.log_file.read_text)
    assert world.held() == before
    ask(follower, "SELECT pg_wal_replay_resume()")
    world.wait_until_level()
    daemon.wait_for("component.recovered")
    assert told(daemon) == 1
    ask(follower, "SELECT pg_wal_replay_pause()")
    world.sql("UPDATE posts SET title = 'newer'")
    wait_until(
        lambda: any(one.records for one in topic.Observer(world.settings.kafka).lag()),
        what="the changes are in the topic",
    )
    assert daemon.stop() == 0
    ask(follower, "SELECT pg_wal_replay_resume()")
    world.daemon()
    world.wait_until_level()


def told(daemon: Daemon) -> int:
    """How often a daemon has told that its replica lags."""
    retried = [one for one in daemon.events() if one["event"] == "component.retried"]
    return len([one for one in retried if "behind the primary" in one["error"]])


def test_what_a_late_replica_shows_is_waited_for(world: World, servers: Standbys) -> None:
    """A version goes with what the primary showed when it was assigned, not with what a late replica shows."""
    fill(world)
    follower = servers.follow(recovery_min_apply_delay=LATE)
    with writing_with(world, follower, pause=_give_up) as writer:
        for title in ("new", "newer"):
            world.sql("UPDATE posts SET title = %s WHERE id = 1", title)
            writer.write(world.index_of(), ["1"])
            assert world.held()["1"]["title"] == title


def test_a_commit_that_is_not_flushed_is_waited_for(world: World, servers: Standbys) -> None:
    """What an application commits asynchronously is visible before it is on disk; the replica is asked for it too."""
    fill(world)
    follower = servers.follow()
    with opened(world, follower) as reads, world.connect() as connection, world.application() as application:
        application.execute("SET synchronous_commit = off")
        composer = Composer(connection, replica=reads)
        for number in range(50):
            application.execute("UPDATE posts SET title = %s WHERE id = 1", (str(number),))
            application.commit()
            source = composer.compose(world.index_of(), ["1"]).compositions[0].source
            assert source is not None
            assert f'"title":"{number}"'.encode() in source


def test_a_replica_that_is_promoted(world: World, servers: Standbys) -> None:
    """A server that is a primary itself is not read, however far it has come."""
    fill(world)
    follower = servers.follow()
    with opened(world, follower) as reads, world.connect() as connection:
        composer = Composer(connection, replica=reads)
        assert composer.compose(world.index_of(), ["1"]).document is not None
        assert ask(follower, "SELECT pg_promote()")
        with pytest.raises(ReplicaError, match="not a standby"):
            composer.compose(world.index_of(), ["1"])


def test_a_replica_that_a_failover_left_behind(world: World, servers: Standbys) -> None:
    """It has come further than the new primary, in a history that is no longer true: it is not read."""
    fill(world)
    follower, left_behind = servers.follow(), servers.follow()
    assert ask(follower, "SELECT pg_promote()")
    world.sql("CREATE TABLE noise AS SELECT g FROM generate_series(1, 100000) AS g")
    lost = world.endpoints
    world.endpoints = changed(world.endpoints, postgres_dsn=follower.address)
    try:
        with writing_with(world, left_behind, pause=_give_up) as writer, pytest.raises(InterruptedError):
            writer.write(world.index_of(), ["1"])
        assert world.held() == {}
        with opened(world, left_behind) as reads, world.connect() as connection:
            reads._wait_for(version.assign_with_mark(connection)[1])
            with pytest.raises(ReplicaError, match="another primary"):
                Composer(connection, replica=reads).compose(world.index_of(), ["1"])
    finally:
        world.endpoints = lost


def _give_up(_: float) -> None:
    raise InterruptedError


def test_a_document_that_the_replica_does_not_know_yet(
    world: World, servers: Standbys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for: whoever loads the document may have read before the change that it would be skipped for."""
    monkeypatch.setattr(replica, "REPLAY_SECONDS_MAX", 0.2)
    fill(world)
    follower = servers.follow()
    with opened(world, follower) as reads, world.connect() as connection:
        composer = Composer(connection, replica=reads)
        ask(follower, "SELECT pg_wal_replay_pause()")
        world.use("blogpost", "user")
        world.apply()
        with pytest.raises(ReplicaError):
            composer.compose(world.index_of("user"), ["1"])
        ask(follower, "SELECT pg_wal_replay_resume()")
        monkeypatch.undo()
        assert composer.compose(world.index_of("user"), ["1"]).document is not None


def test_a_server_of_another_cluster(world: World, sandbox: Sandbox) -> None:
    """A server that never followed the primary is refused at once, with words."""
    settings = settings_of(world, sandbox.postgres.address)
    with world.connect() as connection, pytest.raises(SourceError, match="not a replica"):
        replica.require(settings, connection)
    done = world.syncer("run", environment={"SYNCER_POSTGRES_READ_DSN": sandbox.postgres.address})
    assert done.returncode == 1
    assert "SYNCER_POSTGRES_READ_DSN" in done.stderr


def test_another_database_of_the_cluster(world: World, servers: Standbys) -> None:
    """The replica has all databases of the primary: one that is not the documents' own is refused."""
    settings = settings_of(world, servers.follow().address)
    with world.connect() as connection, pytest.raises(SourceError, match="not a replica"):
        replica.require(settings, connection)


def test_the_primary_itself(world: World) -> None:
    """A daemon that would wait for it for ever does not begin."""
    done = world.syncer("run", environment={"SYNCER_POSTGRES_READ_DSN": world.dsn})
    assert done.returncode == 1
    assert "not a standby" in done.stderr
