"""Postgres crashes: what it had on disk arrives, and what it had not is not shown for long."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace as changed
from pathlib import Path

import psutil
import psycopg
import pytest
from elasticsearch import Elasticsearch

from syncer.base.model import Composition, Target
from syncer.elasticsearch.bulk import BulkOutcome, Index
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.postgres import PostgresServer
from tests.support.world import DEADLINE_SECONDS, World, made, postgres_server, running, wait_until
from tests.support.writers import fill

SETTINGS = {"max_prepared_transactions": "10", "autovacuum": "off"}
"""Transactions can be prepared, and nobody commits beside us."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A Postgres of these tests' own."""
    with postgres_server(SETTINGS) as found:
        yield found


@pytest.fixture
def world(sandbox: Sandbox, endpoints: Endpoints, server: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """The blog on that Postgres."""
    server.start()
    there = changed(endpoints, postgres_dsn=server.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.set_up()
        yield world


def crash(server: PostgresServer) -> None:
    """SIGKILL to all of it, as if the power had failed; and back again."""
    server.kill()
    server.start()


def stop_walwriter(world: World) -> bool:
    """SIGSTOP to it; False, and it goes on, if it was at work: it holds a lock then that every commit needs."""
    query = "SELECT pid, wait_event = 'WalWriterMain' FROM pg_stat_activity WHERE backend_type = 'walwriter'"
    ((pid, _),) = world.sql(query)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, what="it stands")
    ((_, is_at_rest),) = world.sql(query)
    if not is_at_rest:
        os.kill(pid, signal.SIGCONT)
    return bool(is_at_rest)


def lazily(world: World, query: str) -> None:
    """A commit that does not wait for the disk, nor gets there until somebody waits for another one."""
    wait_until(lambda: stop_walwriter(world), what="the walwriter stands still while it rests")
    while world.sql("SELECT log_cnt < 8 FROM syncer.version") == [(True,)]:
        world.sql("SELECT nextval('syncer.version')")  # an assign that is logged would wait for all before it
    world.sql(f"SET LOCAL synchronous_commit = off; {query}")


def backends(world: World) -> list[int]:
    """The processes of Postgres that serve the daemon."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'syncer %%' AND datname = %s"
    return [pid for (pid,) in world.sql(query, world.name)]


def test_a_commit_that_a_crash_takes_back_is_not_shown_for_long(world: World, server: PostgresServer) -> None:
    """What a document shows is on disk before the change that led to it is let go of."""
    fill(world)
    with world.relay() as relay, world.index() as index:
        with world.worker(index) as worker:
            world.drain(relay, worker)
            lazily(world, "UPDATE posts SET title = 'on no disk' WHERE id = 1")
            relay.run_once()
            wait_until(lambda: worker.run_once() > 0, what="the change is done")
            assert world.held()["1"]["title"] == "on no disk"
        crash(server)
    with world.relay() as relay, world.index() as index, world.worker(index) as worker:
        world.sql("UPDATE posts SET title = 'another' WHERE id = 2")
        world.drain(relay, worker)


class CrashIndex(Index):
    """Elasticsearch that answers for one document only after Postgres has crashed.

    Args:
        client: A client.
        server: What is to crash.
        id_: Which document.
    """

    def __init__(self, client: Elasticsearch, server: PostgresServer, id_: str) -> None:
        super().__init__(client, bulk_bytes_max=1_000_000)
        self._server = server
        self._id = id_
        self.is_next = False
        self.is_time = threading.Event()

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write; if it is that document, crash before the answer."""
        outcome = super().write(target, compositions)
        if self.is_next and compositions[0].id == self._id:
            self.is_next = False
            assert self.is_time.wait(DEADLINE_SECONDS)
            crash(self._server)
        return outcome


def test_what_was_composed_before_a_crash_is_composed_again(world: World, server: PostgresServer) -> None:
    """A batch that waits for another one, which waits for Postgres, is read again in the life that has begun."""
    fill(world)
    with world.relay() as relay, world.elasticsearch() as client:
        index = CrashIndex(client, server, "1")
        with world.worker(index) as worker:
            world.drain(relay, worker)
            index.is_next = True
            with running(worker):
                world.sql("UPDATE posts SET title = 'slow' WHERE id = 1")
                relay.run_once()
                wait_until(lambda: world.held()["1"]["title"] == "slow", what="the first is written")
                lazily(world, "UPDATE posts SET title = 'on no disk' WHERE id = 2")
                relay.run_once()
                wait_until(
                    lambda: [one.is_done for one in list(worker._batches)] == [False, True], what="both are in hand"
                )
                assert world.held()["2"]["title"] == "on no disk"
                index.is_time.set()
                wait_until(lambda: not worker._batches, what="both are done")
    assert not world.differences()


def test_a_prepared_transaction_outlives_a_crash(world: World, server: PostgresServer) -> None:
    """Its changes are new when they are committed, however far the cursor has come meanwhile."""
    fill(world)
    daemon = world.daemon()
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("UPDATE posts SET title = 'prepared' WHERE id = 1")
        connection.execute(f"PREPARE TRANSACTION '{world.name}'")
    world.sql("UPDATE posts SET title = 'before' WHERE id = 2")
    world.wait_until_level()
    crash(server)
    world.sql("UPDATE posts SET title = 'after' WHERE id = 3")
    world.wait_until_level()
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        connection.execute(f"COMMIT PREPARED '{world.name}'")
    world.wait_until_level()
    assert world.held()["1"]["title"] == "prepared"
    assert daemon.stop() == 0
