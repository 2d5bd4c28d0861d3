"""Documents are read on a replica that lags, cancels, stands still, or is none: nothing stale is ever written."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from syncer import replica, topic, version
from syncer.compose import Composer
from syncer.errors import ReplicaError, SourceError
from syncer.index import BulkOutcome, Index
from syncer.model import Composition, Target
from syncer.replica import Replica
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.postgres import PostgresServer
from syncer.settings import PostgresSettings
from syncer.writer import Writer
from tests.faults.rules import REPLAYED, SAME_CLUSTER
from tests.faults.writers import SECONDS, at_work, fill, write_until
from tests.harness import Daemon, World, wait_until
from tests.proof import Rule, faces
from tests.standbys import Standbys, ask, standbys

LATE = "300ms"


@pytest.fixture
def servers(sandbox: Sandbox) -> Iterator[Standbys]:
    """A Postgres of the test's own."""
    with standbys(sandbox) as made:
        yield made


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
    """A replica, as a lane has it."""
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


@faces("the replica lags, and cancels queries that are in its way", promises=(1, 2, 3), without=REPLAYED)
def test_a_replica_that_lags_and_cancels(world: World, servers: Standbys) -> None:
    """Each commit comes late to the replica, and queries that are in its way are cancelled: it ends level."""
    fill(world)
    follower = servers.follow(recovery_min_apply_delay=LATE, max_standby_streaming_delay="0")
    world.worker_settings = {"SYNCER_POSTGRES_READ_DSN": dsn_on(world, follower)}
    daemon = world.daemon()
    with at_work(world, [write_until] * 3 + [alter]):
        time.sleep(SECONDS)
        reading = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ 'syncer (worker|refresher)'"
        wait_until(lambda: ask(follower, reading) >= 2, what="lanes read there")
    world.wait_until_level()
    assert world.syncer("verify").returncode == 0
    assert world.sql("SELECT * FROM syncer.dead_letter") == []
    assert daemon.stop() == 0


@faces("the replica's replay is paused", promises=(1, 2), without=REPLAYED)
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
    daemon.wait_for("stage.recovered")
    assert told(daemon) == 1
    ask(follower, "SELECT pg_wal_replay_pause()")
    world.sql("UPDATE posts SET title = 'newer'")
    wait_until(lambda: any(one.records for one in topic.lag(world.settings.kafka)), what="the changes are in the topic")
    assert daemon.stop() == 0
    ask(follower, "SELECT pg_wal_replay_resume()")
    world.daemon()
    world.wait_until_level()


def told(daemon: Daemon) -> int:
    """How often a daemon has told that its replica lags."""
    return len([one for one in daemon.events() if "behind the primary" in str(one.get("error"))])


@faces("a change is written before the replica has it", promises=(1, 2), without=REPLAYED)
def test_what_a_late_replica_shows_is_waited_for(world: World, servers: Standbys) -> None:
    """A new version is given to what the primary showed when it was drawn, and not to what the replica shows then."""
    fill(world)
    follower = servers.follow(recovery_min_apply_delay=LATE)
    with writing_with(world, follower, pause=_give_up) as writer:
        for title in ("new", "newer"):
            world.sql("UPDATE posts SET title = %s WHERE id = 1", title)
            writer.write(world.index_of(), ["1"])
            assert world.held()["1"]["title"] == title


@faces(
    "applications commit without waiting for the disk",
    promises=(1, 2),
    without=Rule(
        "a draw is marked in the WAL behind every commit that was visible",
        module="syncer.version",
        text="pg_logical_emit_message(true, 'syncer', '')::text",
        instead="pg_current_wal_flush_lsn()::text",
    ),
)
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


@faces(
    "the replica becomes a primary",
    promises=(1, 2),
    without=Rule(
        "a server that takes writes is not read",
        module="syncer.replica",
        text="if not is_standby:",
        instead="if False:",
    ),
)
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


@faces(
    "the replica follows a primary that was lost in a failover",
    promises=(1, 2),
    without=Rule(
        "a snapshot must know of the draw",
        module="syncer.replica",
        text="if not version.knows(self.connection, drawn):",
        instead="if False:",
    ),
)
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
            reads._wait_for(version.draw_with_mark(connection)[1])
            with pytest.raises(ReplicaError, match="another primary"):
                Composer(connection, replica=reads).compose(world.index_of(), ["1"])
    finally:
        world.endpoints = lost


def _give_up(_: float) -> None:
    raise InterruptedError


@faces(
    "a document is put in force, and the replica that a worker reads on is behind that; another one is not",
    promises=(1, 3),
    without=Rule(
        "which documents are in force is asked of the primary",
        module="syncer.compose",
        text="self._catalogue.last(self._primary, index_name)",
        instead="self._catalogue.last(self._connection, index_name)",
    ),
)
def test_a_document_that_the_replica_does_not_know_yet(
    world: World, servers: Standbys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for: whoever fills the document may have read before the change that it would be skipped for."""
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


SLOW_CLOCK = """
CREATE SCHEMA slow;
CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz LANGUAGE sql
AS $$ SELECT pg_catalog.clock_timestamp() - interval '1 hour' $$;
CREATE ROLE slow SUPERUSER LOGIN;
ALTER ROLE slow SET search_path = slow, pg_catalog, public;
"""


@faces(
    "the clock of the replica is an hour slow",
    promises=(1, 2),
    without=Rule(
        "how long ago a document was read is told by the primary's clock alone",
        module="syncer.compose",
        text="if drawn_at is not None:",
        instead="if False:",
    ),
)
def test_a_replica_whose_clock_is_wrong(world: World, servers: Standbys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes what he has just read for so old that it must be read again, and again, for ever."""
    fill(world)
    world.sql(SLOW_CLOCK)
    follower = servers.follow()
    settings = settings_of(world, f"{dsn_on(world, follower)}?user=slow")
    written: list[int] = []
    write = Index.write

    def noted(index: Index, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        written.append(len(compositions))
        assert len(written) == 1, "it is written again"
        return write(index, target, compositions)

    monkeypatch.setattr(Index, "write", noted)
    with (
        world.index() as index,
        closing(
            Writer(
                connect=world.connect,
                connect_replica=replica.opener(settings, name="test"),
                index=index,
                pause=_give_up,
                name="test",
            )
        ) as writer,
    ):
        writer.write(world.index_of(), ["1"])
    assert world.held().keys() == {"1"}


@faces("the setting names a server of another cluster", promises=(1, 2), without=SAME_CLUSTER)
def test_a_server_of_another_cluster(world: World, sandbox: Sandbox) -> None:
    """A server that never followed the primary is refused at once, with words."""
    settings = settings_of(world, sandbox.postgres.address)
    with world.connect() as connection, pytest.raises(SourceError, match="not a replica"):
        replica.require(settings, connection)
    done = world.syncer("run", environment={"SYNCER_POSTGRES_READ_DSN": sandbox.postgres.address})
    assert done.returncode == 1
    assert "SYNCER_POSTGRES_READ_DSN" in done.stderr


@faces("the setting names another database of the cluster", promises=(1, 2), without=SAME_CLUSTER)
def test_another_database_of_the_cluster(world: World, servers: Standbys) -> None:
    """The replica has all databases of the primary: one that is not the documents' own is refused."""
    settings = settings_of(world, servers.follow().address)
    with world.connect() as connection, pytest.raises(SourceError, match="not a replica"):
        replica.require(settings, connection)


@faces(
    "the setting names the primary",
    promises=(1,),
    without=Rule(
        "a daemon begins only with a standby to read",
        module="syncer.replica",
        text="if value(self.connection, _IS_STANDBY) is not True:",
        instead="if False:",
    ),
)
def test_the_primary_itself(world: World) -> None:
    """A daemon that would wait for it for ever does not begin."""
    done = world.syncer("run", environment={"SYNCER_POSTGRES_READ_DSN": world.dsn})
    assert done.returncode == 1
    assert "not a standby" in done.stderr
