"""Whoever waits for a transaction is told that it is indexed once it is, and not before, whatever dies meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from syncer.errors import WaitTimeoutError
from syncer.passage import Waited
from syncer.transport import ChangeProducer
from syncer.waiting import Waiter
from tests.faults.writers import SECONDS, SEED, at_work
from tests.harness import World, wait_until
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
    text="        with self._timed(_WORKERS):\n            self._until_handled()",
    instead="",
)
WRITTEN = Rule(
    "nor of one whose jobs are not done",
    module="syncer.passage",
    text="        with self._timed(_JOBS):\n            self._until_written([one.name for one in self._concerned(relations)])",
    instead="",
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
        follow(world, index)
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
