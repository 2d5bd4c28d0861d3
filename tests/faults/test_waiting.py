"""A wait for a transaction ends once it is indexed, and not before, even if processes are killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import WaitTimeoutError
from syncer.capture import progress
from syncer.verify.wait import Waiter
from tests.scenarios.test_fan_outs import BLOG, follow, worker
from tests.scenarios.test_jobs import new_revision
from tests.support.world import DEADLINE_SECONDS, World, wait_until
from tests.support.writers import QUICK_FAILOVER, at_work

_SOON = 0.01


@pytest.fixture
def waiter(world: World) -> Iterator[Waiter]:
    """Waits for transactions in a blog in which two users have many posts, all of which are written."""
    world.sql(BLOG)
    with world.index() as index:
        follow(world, index, many=1000)
    world.sql("DELETE FROM syncer.job")
    with Waiter(world.settings) as made:
        yield made


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


def component(waiter: Waiter, token: str) -> str:
    """Where a transaction is; empty if it is there."""
    try:
        waiter.wait(token, timeout_seconds=_SOON)
    except WaitTimeoutError as error:
        return error.component
    return ""


def names(world: World, user: int) -> set[str]:
    """What reads by id show as the name of the author of a user's posts."""
    ids = [str(one) for (one,) in world.sql("SELECT id FROM posts WHERE user_id = %s", user)]
    with world.elasticsearch() as client:
        found = client.mget(index=world.alias, ids=ids)["docs"]
    return {one["_source"]["user"]["name"] for one in found}


def test_each_component_is_waited_for(world: World, waiter: Waiter) -> None:
    """The relay, the workers and the job are named as what it waits for, one after the other; then all is there."""
    token = renamed(world, 1, "renamed")
    assert component(waiter, token) == "relay"
    with world.relay() as relay:
        assert relay.run_once().published == 1
    assert component(waiter, token) == "workers"
    with world.index() as index:
        with worker(world, index) as made:
            wait_until(lambda: made.run_once() == 1, what="the worker has handled it")
        assert component(waiter, token) == "jobs"
        assert names(world, 1) == {"name 1"}
        world.refresh(index)
    assert waiter.wait(token).is_complete
    assert names(world, 1) == {"renamed"}


def test_a_fan_out_that_takes_up_another_change_is_waited_for(world: World, waiter: Waiter) -> None:
    """Nobody has begun to list it, so it is one job for both."""
    renamed(world, 1, "first")
    with world.index() as index:
        follow(world, index)
        token = renamed(world, 2, "second")
        follow(world, index)
        assert len(world.sql("SELECT id FROM syncer.job")) == 1
        assert component(waiter, token) == "jobs"
        world.refresh(index)
    assert waiter.wait(token).is_complete
    assert names(world, 2) == {"second"}


def test_what_was_adopted_is_waited_for(world: World) -> None:
    """Rows of the outbox belong to another transaction since, and the saved cursor sees the one that wrote them."""
    world.sql(BLOG)
    token = renamed(world, 1, "renamed")
    with Waiter(world.settings) as waiter:
        with world.connect() as connection:
            progress.adopt(connection)
        assert component(waiter, token) == "relay"
        with world.index() as index:
            follow(world, index)
            world.refresh(index)
        assert waiter.wait(token).is_complete
    assert names(world, 1) == {"renamed"}


def test_what_is_left_to_a_initial_load_is_waited_for(world: World, waiter: Waiter) -> None:
    """Whoever makes the load has not seen the change; the worker who has finds the next revision, and leaves it."""
    with world.index() as index, world.connect() as connection, ThreadPoolExecutor(1) as pool:
        with connection.transaction():
            new_revision(connection)
            token = renamed(world, 1, "renamed")
            following = pool.submit(follow, world, index)
            wait_until(lambda: _waits_for_a_lock(world), what="the worker would make a fan-out")
        following.result()
        assert world.sql("SELECT kind FROM syncer.job") == [("initial_load",)]
        assert component(waiter, token) == "jobs"
        world.refresh(index)
    assert waiter.wait(token).is_complete
    assert names(world, 1) == {"renamed"}


def _waits_for_a_lock(world: World) -> bool:
    return bool(
        world.sql("SELECT pid FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", world.name)
    )


def test_what_is_truncated_is_waited_for(world: World, waiter: Waiter) -> None:
    """The refresh that a TRUNCATE becomes is waited for; then searches find no post any more."""
    with world.elasticsearch() as client, world.index() as index:
        client.indices.put_settings(index=world.alias, settings={"index.refresh_interval": -1})
        client.indices.refresh(index=world.alias)
        token = committed(world, "TRUNCATE posts CASCADE")
        follow(world, index)
        assert component(waiter, token) == "jobs"
        world.refresh(index)
        assert waiter.wait(token, searchable=True).is_complete
        assert client.count(index=world.alias)["count"] == 0


def test_random_writers_read_what_they_wrote(world: World) -> None:
    """After each wait a read by id, or a search, shows the writer's own last commit, fan-outs included."""
    world.worker_settings = {
        "SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "5",
        "SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER,
    }
    world.sql(
        "INSERT INTO users (id, name, email) SELECT g, '0', '' FROM generate_series(0, 3) AS g;"
        "INSERT INTO posts (id, user_id, title, body) SELECT g, g % 4, '0', '' FROM generate_series(1, 60) AS g"
    )
    relay, workers = world.daemon("--only", "relay"), world.daemon("--only", "workers")
    with Waiter(world.settings) as waiter, world.elasticsearch() as client:
        authors = [_Author(user=user, alias=world.alias, waiter=waiter, client=client) for user in range(4)]

        def read_on() -> None:
            before = sum(one.turns for one in authors)
            wait_until(lambda: sum(one.turns for one in authors) > before + 4, what="they have read on")

        with at_work(world, [one.work for one in authors]):
            read_on()
            relay.kill()
            world.daemon("--only", "relay")
            read_on()
            workers.kill()
            world.daemon("--only", "workers")
            read_on()


@dataclass
class _Author:
    """Renames itself, writes, waits and reads, again and again."""

    user: int
    alias: str
    waiter: Waiter
    client: Elasticsearch
    turns: int = 0

    def work(self, stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        while not stop.is_set():
            self._turn(connection, dice)
            self.turns += 1

    def _turn(self, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        word, own = f"{self.user}-{self.turns}", 1000 + self.user
        connection.execute("UPDATE users SET name = %s WHERE id = %s", (word, self.user))
        connection.execute(
            "INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, %s, '')", (own, self.user, word)
        )
        is_searchable = dice.random() < 0.3
        self._wait(connection, "SELECT syncer.token()", searchable=is_searchable)
        posts = [str(one) for one in (own, *range(1, 61)) if one == own or one % 4 == self.user]
        found = self.client.mget(index=self.alias, ids=posts)["docs"]
        if is_searchable:
            query = {"term": {"user.id": self.user}}
            found += self.client.search(index=self.alias, query=query, size=100)["hits"]["hits"]
            assert len(found) == 2 * len(posts)
        assert {one["_source"]["user"]["name"] for one in found} == {word}
        connection.execute("DELETE FROM posts WHERE id = %s", (own,))
        self._wait(connection, "SELECT pg_current_xact_id()::text", searchable=False)
        assert not self.client.exists(index=self.alias, id=str(own))

    def _wait(self, connection: psycopg.Connection[Any], token: str, *, searchable: bool) -> None:
        row = connection.execute(token).fetchone()
        connection.commit()
        assert row is not None
        assert self.waiter.wait(row[0], timeout_seconds=DEADLINE_SECONDS, searchable=searchable).is_complete
