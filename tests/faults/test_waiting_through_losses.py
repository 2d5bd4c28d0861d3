"""Kafka or Postgres loses a change that a client waits for: the client gets an error, or waits for the refresh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from syncer.base.errors import TokenError
from syncer.base.lifecycle import Stop
from syncer.sandbox import Endpoints, Sandbox
from syncer.verify.wait import Waited, Waiter
from tests.faults.test_kafka_loses_records import let_expire, make_anew
from tests.faults.test_waiting import component, names, renamed
from tests.scenarios.test_fan_outs import BLOG, follow
from tests.support.in_process import refreshes
from tests.support.standbys import Standbys, standbys
from tests.support.world import DEADLINE_SECONDS, World, made, running, wait_until


class HeldUp:
    """A client that waits for transactions: it has checked once, and checks again when released.

    Args:
        world: Where they were committed.
    """

    def __init__(self, world: World) -> None:
        self._rests = threading.Semaphore(0)
        self._goes, self._stop = threading.Event(), Stop()
        self._waiter = Waiter(world.settings, pause=self._pause)
        self._pool = ThreadPoolExecutor()

    def _pause(self, seconds: float) -> None:
        self._rests.release()
        self._goes.wait()
        self._stop.pause(seconds)

    def wait(self, *tokens: str) -> list[Future[Waited]]:
        """Begin to wait for each of these; none is there yet."""
        begun = [self._pool.submit(self._waiter.wait, one, timeout_seconds=2 * DEADLINE_SECONDS) for one in tokens]
        for _ in begun:
            assert self._rests.acquire(timeout=DEADLINE_SECONDS), [one for one in begun if one.done()]
        return begun

    def go(self) -> None:
        """Look again."""
        self._goes.set()

    def close(self) -> None:
        """Wait no longer, whatever has come of it."""
        self._stop.request()
        self.go()
        self._pool.shutdown()
        self._waiter.close()


@contextmanager
def held_up(world: World) -> Iterator[HeldUp]:
    """A waiting client, until the block ends."""
    held = HeldUp(world)
    try:
        yield held
    finally:
        held.close()


@pytest.fixture
def blog(world: World) -> World:
    """A blog, all of which is written."""
    world.sql(BLOG)
    with world.index() as index:
        follow(world, index, many=1000)
    world.sql("DELETE FROM syncer.job")
    return world


@pytest.mark.parametrize("lose", [let_expire, make_anew])
def test_what_kafka_has_lost_is_not_said_to_be_indexed(blog: World, lose: Callable[[World], None]) -> None:
    """He waits for the job that makes up for it, and reads his own write after that."""
    with held_up(blog) as somebody, blog.index() as index, Waiter(blog.settings) as waiter:
        token = renamed(blog, 3, "renamed")
        with blog.relay() as relay:
            assert relay.run_once().published == 1
        (waiting,) = somebody.wait(token)
        lose(blog)
        somebody.go()
        with blog.relay() as relay, blog.worker(index) as worker, running(relay), running(worker):
            wait_until(lambda: component(waiter, token) == "jobs", what="he waits for the job")
        assert (refreshes(blog), names(blog, 3), waiting.done()) == (1, {"name 3"}, False)
        blog.refresh(index)
        assert waiting.result(DEADLINE_SECONDS).is_complete
    assert names(blog, 3) == {"renamed"}


@pytest.fixture(scope="module")
def servers(sandbox: Sandbox) -> Iterator[Standbys]:
    """A Postgres of these tests' own."""
    with standbys(sandbox) as made:
        yield made


@pytest.fixture
def frail_blog(sandbox: Sandbox, endpoints: Endpoints, servers: Standbys, tmp_path: Path) -> Iterator[World]:
    """The blog on that Postgres, to which nobody writes but the test."""
    there = replace(endpoints, postgres_dsn=servers.primary.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.set_up()
        world.sql(BLOG)
        yield world


def test_what_a_failover_has_lost_is_not_said_to_be_indexed(frail_blog: World, servers: Standbys) -> None:
    """Whoever waits for its token is told that nobody knows, and so is he who has but its id."""
    fail_over = servers.keep_standby()
    token = renamed(frail_blog, 3, "lost")
    xid = token.partition(".")[0]
    with held_up(frail_blog) as somebody:
        waiting = somebody.wait(token, xid)
        fail_over()
        with psycopg.connect(frail_blog.dsn, autocommit=True) as connection:
            while int(str(connection.execute("SELECT pg_current_xact_id()::text").fetchall()[0][0])) <= int(xid):
                pass
        somebody.go()
        for one in waiting:
            with pytest.raises(TokenError, match="before a failover"):
                one.result(DEADLINE_SECONDS)


def test_what_survives_a_crash_is_waited_for(frail_blog: World, servers: Standbys) -> None:
    """He is not told of the crash, and reads his own write in the end."""
    token = renamed(frail_blog, 3, "renamed")
    with held_up(frail_blog) as somebody:
        (waiting,) = somebody.wait(token)
        servers.primary.kill()
        servers.primary.start()
        somebody.go()
        with frail_blog.index() as index:
            follow(frail_blog, index, many=1000)
            frail_blog.refresh(index)
        assert waiting.result(DEADLINE_SECONDS).is_complete
    assert names(frail_blog, 3) == {"renamed"}
