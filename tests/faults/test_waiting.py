"""Whoever waits for a transaction is told that it is indexed once it is, and not before, whatever dies meanwhile."""

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

from syncer.errors import WaitTimeoutError
from syncer.waiting import Waiter
from tests.faults.writers import at_work
from tests.harness import DEADLINE_SECONDS, World, wait_until
from tests.proof import Rule, faces
from tests.scenarios.test_fan_outs import BLOG, follow, refresher, worker
from tests.scenarios.test_jobs import new_generation

PUBLISHED = Rule(
    "whoever waits is told of no transaction that the saved cursor does not see",
    module="syncer.passage",
    text="            is_captured = self._until_published()",
    instead="            is_captured = True",
)
HANDLED = Rule(
    "nor of one that lies before offsets which are not committed",
    module="syncer.passage",
    text="            self._until_handled()",
    instead="            pass",
)
WRITTEN = Rule(
    "nor of one whose jobs are not done",
    module="syncer.passage",
    text="            self._until_written([one.name for one in self._concerned(relations)])",
    instead="            pass",
)
REFRESHED = Rule(
    "nor, if it is to be searchable, before the index was refreshed",
    module="syncer.passage",
    text="            refresh(self._going(relations))",
    instead="            pass",
)
LEFT_TO = Rule(
    "a fan-out that leaves documents to other jobs makes them its own, for who waits",
    module="syncer.listing",
    text="        if row[2]:\n",
    instead="        if row[2] < 0:\n",
)
JOINED = Rule(
    "a fan-out that takes up another change is that one's too, for who waits",
    module="syncer.jobs",
    text="), caused_before = pg_snapshot_xmax(pg_current_snapshot()) WHERE id = $1",
    instead=") WHERE id = $1",
)
ADOPTED = Rule(
    "who waits for a change that a relay has adopted waits for what it was adopted in",
    module="syncer.relay",
    text="            connection.execute(_ADOPTED)\n",
    instead="",
)
SEEN_BEFORE = Rule(
    "a fill that nobody has begun to list may have taken up anything",
    module="syncer.job",
    text="OR j.kind = 'fill' AND j.state = 'new'",
    instead="",
)
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


def stage(waiter: Waiter, token: str) -> str:
    """Where a transaction is; empty if it is there."""
    try:
        waiter.wait(token, timeout_seconds=_SOON)
    except WaitTimeoutError as error:
        return error.stage
    return ""


def names(world: World, user: int) -> set[str]:
    """What reads by id show as the name of the author of a user's posts."""
    ids = [str(one) for (one,) in world.sql("SELECT id FROM posts WHERE user_id = %s", user)]
    with world.elasticsearch() as client:
        found = client.mget(index=world.alias, ids=ids)["docs"]
    return {one["_source"]["user"]["name"] for one in found}


@faces(
    "somebody waits while no relay, then no worker, then no lane is at work",
    promises=(),
    without=(PUBLISHED, HANDLED, WRITTEN),
)
def test_each_stage_is_waited_for(world: World, waiter: Waiter) -> None:
    """The relay, the workers and the job are named as what it waits for, one after the other; then all is there."""
    token = renamed(world, 1, "renamed")
    assert stage(waiter, token) == "relay"
    with world.relay() as relay:
        assert relay.run_once().published == 1
    assert stage(waiter, token) == "workers"
    with world.index() as index:
        with worker(world, index) as made:
            wait_until(lambda: made.run_once().changes == 1, what="the worker has handled it")
        assert stage(waiter, token) == "jobs"
        assert names(world, 1) == {"name 1"}
        world.refresh(index)
    assert waiter.wait(token).is_complete
    assert names(world, 1) == {"renamed"}


@faces("a fan-out that is waited for leaves its documents to one before it", promises=(), without=LEFT_TO)
def test_what_a_fan_out_leaves_to_another_is_waited_for(world: World, waiter: Waiter) -> None:
    """The second rename's own job is done when its documents wait in pages of the first one's."""
    first = renamed(world, 1, "first")
    with world.index() as index, refresher(world, index) as lane:
        follow(world, index)
        lane.run_once()  # lists it, and writes nothing as yet
        second = renamed(world, 1, "second")
        follow(world, index)
        assert stage(waiter, first) == stage(waiter, second) == "jobs"

        def is_done() -> bool:
            lane.run_once()
            return ("done",) in world.sql("SELECT state FROM syncer.job WHERE left_out > 0")

        world.sql("UPDATE syncer.job SET next_at = 'infinity' WHERE state = 'listed'")
        wait_until(is_done, what="the second fan-out has left all to the first")
        assert stage(waiter, second) == "jobs"
        world.sql("UPDATE syncer.job SET next_at = '-infinity'")
        world.refresh(index)
    assert waiter.wait(second).is_complete
    assert names(world, 1) == {"second"}


@faces("a change becomes part of a fan-out that was there before it", promises=(), without=JOINED)
def test_a_fan_out_that_takes_up_another_change_is_waited_for(world: World, waiter: Waiter) -> None:
    """Nobody has begun to list it, so it is one job for both."""
    renamed(world, 1, "first")
    with world.index() as index:
        follow(world, index)
        token = renamed(world, 2, "second")
        follow(world, index)
        assert len(world.sql("SELECT id FROM syncer.job")) == 1
        assert stage(waiter, token) == "jobs"
        world.refresh(index)
    assert waiter.wait(token).is_complete
    assert names(world, 2) == {"second"}


@faces("a relay dies once it has adopted what nobody had published", promises=(), without=ADOPTED)
def test_what_was_adopted_is_waited_for(world: World) -> None:
    """Rows of the outbox belong to another transaction since, and the saved cursor sees the one that wrote them."""
    world.sql(BLOG)
    token = renamed(world, 1, "renamed")
    with Waiter(world.settings) as waiter:
        with world.relay() as relay:
            relay._lead()
        assert stage(waiter, token) == "relay"
        with world.index() as index:
            follow(world, index)
            world.refresh(index)
        assert waiter.wait(token).is_complete
    assert names(world, 1) == {"renamed"}


@faces("a change is left to the fill of a definition that is put in force just then", promises=(), without=SEEN_BEFORE)
def test_what_is_left_to_a_fill_is_waited_for(world: World, waiter: Waiter) -> None:
    """Whoever makes the fill has not seen the change; the worker who has finds the next generation, and leaves it."""
    with world.index() as index, world.connect() as connection, ThreadPoolExecutor(1) as pool:
        with connection.transaction():
            new_generation(connection)
            token = renamed(world, 1, "renamed")
            following = pool.submit(follow, world, index)
            wait_until(lambda: _waits_for_a_lock(world), what="the worker would make a fan-out")
        following.result()
        assert world.sql("SELECT kind FROM syncer.job") == [("fill",)]
        assert stage(waiter, token) == "jobs"
        world.refresh(index)
    assert waiter.wait(token).is_complete
    assert names(world, 1) == {"renamed"}


def _waits_for_a_lock(world: World) -> bool:
    return bool(
        world.sql("SELECT pid FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", world.name)
    )


@faces("a table is truncated, and searched", promises=(), without=(WRITTEN, REFRESHED))
def test_what_is_truncated_is_waited_for(world: World, waiter: Waiter) -> None:
    """The refresh that a TRUNCATE becomes is waited for; then searches find no post any more."""
    with world.elasticsearch() as client, world.index() as index:
        client.indices.put_settings(index=world.alias, settings={"index.refresh_interval": -1})
        client.indices.refresh(index=world.alias)
        token = committed(world, "TRUNCATE posts CASCADE")
        follow(world, index)
        assert stage(waiter, token) == "jobs"
        world.refresh(index)
        assert waiter.wait(token, searchable=True).is_complete
        assert client.count(index=world.alias)["count"] == 0


@faces(
    "daemons are killed, the relay too, while applications wait for what they have written",
    promises=(),
    without=(HANDLED, WRITTEN),
)
def test_random_writers_read_what_they_wrote(world: World) -> None:
    """After each wait a read by id, or a search, shows the writer's own last commit, fan-outs included."""
    world.worker_settings = {
        "SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "5",
        "SYNCER_KAFKA_PROPERTIES": '{"session.timeout.ms": 6000}',
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
