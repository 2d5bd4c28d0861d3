"""`wait` ends once a transaction is indexed, and `verify` finds drift and nothing else, beside random writers."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import WaitTimeoutError
from syncer.base.settings import Settings
from syncer.verify import compare
from syncer.verify.compare import VerifyReport, verify
from syncer.verify.wait import wait
from tests.faults.harness import require_holds
from tests.scenarios.test_fan_outs import BLOG, MANY, follow
from tests.scenarios.test_jobs import new_revision
from tests.support.routing import document
from tests.support.world import DEADLINE_SECONDS, World, wait_until
from tests.support.writers import QUICK_FAILOVER, SECONDS, at_work, fill, writing

_SOON = 0.01


@pytest.fixture
def blog(world: World) -> World:
    """A blog in which two users have many posts, all of which are written."""
    world.sql(BLOG)
    with world.index() as index:
        follow(world, index, many=1000)
    world.sql("DELETE FROM syncer.job")
    return world


def committed(world: World, query: str, *parameters: object) -> str:
    """Commit a transaction; its token."""
    with psycopg.connect(world.dsn) as connection:
        connection.execute(query, parameters or None)
        row = connection.execute("SELECT syncer.token()").fetchone()
    assert row is not None
    return str(row[0])


def renamed(world: World, user: int, name: str) -> str:
    """Rename somebody; the transaction's token."""
    return committed(world, "UPDATE users SET name = %s WHERE id = %s", name, user)


def component(world: World, token: str) -> str:
    """Where a transaction is; empty if it is indexed."""
    try:
        wait(world.settings, token, timeout_seconds=_SOON)
    except WaitTimeoutError as error:
        return error.component
    return ""


def names(world: World, user: int) -> set[str]:
    """What reads by id show as the name of the author of a user's posts."""
    ids = [str(id_) for (id_,) in world.sql("SELECT id FROM posts WHERE user_id = %s", user)]
    with world.elasticsearch() as client:
        found = client.mget(index=world.alias, ids=ids)["docs"]
    return {each["_source"]["user"]["name"] for each in found}


# A wait goes through relay, workers and jobs


def test_each_component_is_waited_for(blog: World) -> None:
    """The relay, the workers and the job, one after the other; also if the change joins a job that was there."""
    token = renamed(blog, 1, "renamed")
    assert component(blog, token) == "relay"
    with blog.relay() as relay:
        assert relay.run_once().published == 1
    assert component(blog, token) == "workers"
    with blog.index() as index:
        with blog.worker(index, many=MANY) as made:
            wait_until(lambda: made.run_once() == 1, what="the worker has handled it")
        second = renamed(blog, 2, "second")
        follow(blog, index)
        assert [component(blog, each) for each in (token, second)] == ["jobs", "jobs"]
        assert len(blog.sql("SELECT id FROM syncer.job")) == 1
        assert names(blog, 1) == {"name 1"}
        blog.refresh(index)
    assert wait(blog.settings, token).is_complete
    assert wait(blog.settings, second).is_complete
    assert (names(blog, 1), names(blog, 2)) == ({"renamed"}, {"second"})


def test_what_is_left_to_an_initial_load_is_waited_for(blog: World) -> None:
    """The apply that makes the load has not seen the change; the worker that has finds the next revision."""
    locks = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    with blog.index() as index, blog.connect() as connection, ThreadPoolExecutor(1) as pool:
        with connection.transaction():
            new_revision(connection)
            token = renamed(blog, 1, "renamed")
            following = pool.submit(follow, blog, index)
            wait_until(lambda: bool(blog.sql(locks, blog.name)), what="the worker would make a fan-out")
        following.result()
        assert blog.sql("SELECT kind FROM syncer.job") == [("initial_load",)]
        assert component(blog, token) == "jobs"
        blog.refresh(index)
    assert wait(blog.settings, token).is_complete
    assert names(blog, 1) == {"renamed"}


# Random writers


@dataclass
class _Author:
    """Renames itself, writes, waits and reads, again and again."""

    user: int
    alias: str
    settings: Settings
    client: Elasticsearch
    turns: int = 0

    def work(self, stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        while not stop.is_set():
            self._turn(connection, dice)
            self.turns += 1

    def _turn(self, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        word, own = f"{self.user}-{self.turns}", 1000 + self.user
        post = "INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, %s, '')"
        connection.execute("UPDATE users SET name = %s WHERE id = %s", (word, self.user))
        connection.execute(post, (own, self.user, word))
        is_searchable = dice.random() < 0.3
        self._wait(connection, "SELECT syncer.token()", searchable=is_searchable)
        posts = [str(id_) for id_ in (own, *range(1, 61)) if id_ == own or id_ % 4 == self.user]
        found = self.client.mget(index=self.alias, ids=posts)["docs"]
        if is_searchable:
            query = {"term": {"user.id": self.user}}
            found += self.client.search(index=self.alias, query=query, size=100)["hits"]["hits"]
            assert len(found) == 2 * len(posts)
        assert {each["_source"]["user"]["name"] for each in found} == {word}
        connection.execute("DELETE FROM posts WHERE id = %s", (own,))
        self._wait(connection, "SELECT pg_current_xact_id()::text", searchable=False)
        assert not self.client.exists(index=self.alias, id=str(own))

    def _wait(self, connection: psycopg.Connection[Any], token: str, *, searchable: bool) -> None:
        row = connection.execute(token).fetchone()
        connection.commit()
        assert row is not None
        assert wait(self.settings, row[0], timeout_seconds=DEADLINE_SECONDS, searchable=searchable).is_complete


def test_random_writers_read_what_they_wrote(world: World) -> None:
    """After each wait a read by id, or a search, shows the writer's own last commit, while a relay and workers die."""
    world.worker_settings = {"SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "5", "SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER}
    world.sql(
        "INSERT INTO users (id, name, email) SELECT g, '0', '' FROM generate_series(0, 3) AS g;"
        "INSERT INTO posts (id, user_id, title, body) SELECT g, g % 4, '0', '' FROM generate_series(1, 60) AS g"
    )
    daemons = [world.daemon("--only", only) for only in ("relay", "workers")]
    with world.elasticsearch() as client:
        authors = [_Author(user=user, alias=world.alias, settings=world.settings, client=client) for user in range(4)]

        def read_on() -> None:
            before = sum(each.turns for each in authors)
            wait_until(lambda: sum(each.turns for each in authors) > before + 4, what="they have read on")

        with at_work(world, [each.work for each in authors]):
            read_on()
            for daemon, only in zip(daemons, ("relay", "workers"), strict=True):
                daemon.kill()
                world.daemon("--only", only)
                read_on()


def test_verify_takes_nothing_that_is_in_flight_for_drift(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, while everything changes on both sides; a busy machine may hold a change up for long."""
    monkeypatch.setattr(compare, "PAGE", 7)
    monkeypatch.setattr(compare, "FIRST_ROWS", 7)  # so that much happens between small ranges
    fill(world)
    world.daemon()
    deadline = time.monotonic() + SECONDS
    with world.index() as index:

        def verified() -> VerifyReport:
            return verify(world.connect, document(world), index=index, settle_seconds=30)

        with writing(world):
            while time.monotonic() < deadline:
                report = verified()
                assert not report.has_drifted, report
        require_holds(world)
        assert verified().holds
