"""A fan-out beside renames, moves and crashes: a chunk taken later shows the later change, and none is lost."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from syncer.base.errors import JobError
from syncer.base.postgres import Connection
from syncer.indexing.writer import Slice
from syncer.jobs import listing, queue
from syncer.jobs.model import Job, JobKind, JobState, find, recent, unfinished
from tests.scenarios.test_fan_outs import (
    BLOG,
    OTHER,
    fan_out,
    follow,
    job_worker,
    list_,
    listed,
    posts_of,
    the_document,
    worker,
)
from tests.scenarios.test_jobs import altering
from tests.support.job_worker import ChunkWorker, ChunkWorkerProcess
from tests.support.world import DEADLINE_SECONDS, World, wait_until
from tests.support.writers import SECONDS, SEED, at_work


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """To a blog in which two users have many posts, all of which are written."""
    world.sql(BLOG)
    with world.index() as index:
        follow(world, index, many=1000)
    world.sql("DELETE FROM syncer.job")
    with world.connect() as made:
        yield made


def rename(world: World, user: int, name: str) -> None:
    """Somebody who is renamed."""
    world.sql("UPDATE users SET name = %s WHERE id = %s", name, user)


def finish(world: World) -> None:
    """Do all that is left of all jobs, and compare."""
    with world.index() as index:
        world.refresh(index)
    assert world.differences() == []


def test_a_chunk_that_is_given_back_is_composed_once_more(world: World, connection: Connection) -> None:
    """Whoever was held up with it writes what is older; whoever takes it then, what is newer."""
    rename(world, 1, "first")
    list_(connection, fan_out(connection))
    with world.index() as index, world.connect() as own, world.writer(index) as writer:
        job_worker = ChunkWorker(own)
        [chunk] = job_worker.take()
        writer.build(attempt := Slice(index_name=chunk.index_name, ids=chunk.ids))
        job_worker.chunks.release([chunk])
        rename(world, 1, "second")
        list_(connection, fan_out(connection))
        finish(world)
        writer.send(attempt)
        assert list(attempt.outcome.done.values()) == ["skipped"] * len(chunk.ids)
        assert job_worker.finish([chunk]) == 0
    assert world.differences() == []


# While it is listed


def test_a_rename_during_the_listing_is_a_job_of_its_own(world: World, connection: Connection) -> None:
    """What a lister has begun shows no later change: a cause that comes then must not be added to it."""
    rename(world, 1, "first")
    first = fan_out(connection)
    held = threading.Event()
    release = threading.Event()
    list_range = listing._list_range

    def hold(*arguments: Any) -> tuple[int, bool] | None:
        found = list_range(*arguments)
        held.set()
        assert release.wait(DEADLINE_SECONDS)
        return found

    with pytest.MonkeyPatch.context() as patch, world.connect() as own:
        patch.setattr(listing, "_list_range", hold)
        lister = threading.Thread(target=list_, args=(own, first))
        lister.start()
        assert held.wait(DEADLINE_SECONDS)
        rename(world, 2, "second")
        second = fan_out(connection, OTHER)
        release.set()
        lister.join()
    assert second.id != first.id
    finish(world)


def test_posts_that_move_while_a_fan_out_is_on_its_way_end_right(world: World, connection: Connection) -> None:
    """From the renamed author to another and back, before it is listed, after that, and while it is written."""
    with world.index() as index, job_worker(world, index) as jobs:
        rename(world, 1, "renamed")
        follow(world, index)
        [job] = unfinished(connection)
        world.sql("UPDATE posts SET user_id = 3 WHERE id <= 10; UPDATE posts SET user_id = 1 WHERE id > 400")
        follow(world, index)
        list_(connection, job)
        world.sql("UPDATE posts SET user_id = 2 WHERE id BETWEEN 11 AND 20; UPDATE posts SET user_id = 1 WHERE id <= 5")
        world.sql("DELETE FROM posts WHERE id = 30")
        jobs.run_once()
        world.sql("UPDATE posts SET user_id = 2 WHERE id BETWEEN 21 AND 30; UPDATE posts SET id = 7777 WHERE id = 40")
        follow(world, index)
    finish(world)


def test_a_lister_that_is_killed_leaves_the_fan_out_to_the_next(world: World, connection: Connection) -> None:
    """SIGKILL in the middle: no chunk is there, and whoever lists it then lists all of it."""
    rename(world, 1, "renamed")
    job = fan_out(connection)
    with altering(world):
        lister = ChunkWorkerProcess(world, "--listing")
        wait_until(lambda: find(connection, job.id).state is JobState.WRITING, what="the listing has begun")
        lister.kill()
    assert listed(world, job) == []
    wait_until(lambda: bool(list_when_alone(connection, job)), what="Postgres lets go of the dead")
    assert set(listed(world, job)) == posts_of(world, 1)
    finish(world)


def list_when_alone(connection: Connection, job: Job) -> bool:
    """Whether the job could be listed."""
    return listing.list_ids(connection, job, the_document(connection), chunk=10)


def test_the_lag_grows_once_a_fan_out_is_cancelled(world: World, connection: Connection) -> None:
    """The status does not call the document level: what the job would have written stays stale, until a backfill."""

    def lag_seconds() -> float:
        [document] = json.loads(world.syncer("status", "--json").stdout)["documents"]
        return float(document["lag_seconds"])

    rename(world, 1, "renamed")
    with world.index() as index:
        follow(world, index)
        [job] = unfinished(connection)
        queue.cancel(connection, job.id)
        first = lag_seconds()
        assert first > 0
        assert lag_seconds() > first
        assert queue.create(connection, the_document(connection), JobKind.BACKFILL) is not None
        world.refresh(index)
    assert lag_seconds() == 0
    assert world.differences() == []


# The worker


class Killed(BaseException):
    """Ends a worker in the middle, as SIGKILL would."""


@pytest.mark.parametrize("moment", ["before the job is there", "after the job is there"])
def test_a_worker_that_dies_over_a_fan_out_loses_none(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Offsets are committed only once the job is there: the successor makes it, or adds to it what it has already."""
    rename(world, 1, "renamed")
    create_fan_out = queue.create_fan_out

    def die(*arguments: Any) -> Job | None:
        if moment == "after the job is there":
            create_fan_out(*arguments)
        raise Killed

    with world.index() as index:
        monkeypatch.setattr(queue, "create_fan_out", die)
        with world.relay() as relay, worker(world, index) as made:
            relay.run_once()
            with pytest.raises(Killed):
                wait_until(lambda: bool(made.run_once() and False), what="the worker dies")
        monkeypatch.setattr(queue, "create_fan_out", create_fan_out)
        with worker(world, index) as successor:
            wait_until(lambda: successor.run_once() > 0, what="the successor has the partition")
    [job] = unfinished(connection)
    assert job.cause == {"public.users": 1}
    finish(world)


# All at once


def test_renames_and_moves_under_job_workers_that_die_end_level(world: World) -> None:
    """Tiny chunks, two daemons one of them killed again and again, jobs paused and resumed: all equal in the end."""
    world.worker_settings = {
        "SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "5",
        "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "7",
        "SYNCER_KAFKA_PROPERTIES": '{"session.timeout.ms": 6000}',
    }
    world.sql(BLOG)
    world.daemon()
    world.daemon()
    dice = random.Random(SEED)
    deadline = time.monotonic() + SECONDS
    with at_work(world, [renaming, renaming, moving, pausing]):
        while time.monotonic() < deadline:
            time.sleep(dice.uniform(0.5, 2))
            dice.choice([one for one in world.daemons if one.process.poll() is None]).kill()
            world.daemon()
        with world.connect() as connection:  # who has just begun waits until whoever was killed is taken for gone
            wait_until(lambda: len(fan_outs(connection)) > 3, what="there were some fan-outs")
    with world.connect() as connection:
        for one in unfinished(connection):
            with suppress(JobError):  # it has just been done
                queue.resume(connection, one.id)
        wait_until(lambda: not unfinished(connection), what="all jobs are done", seconds=2 * DEADLINE_SECONDS)
    world.wait_until_level(seconds=2 * DEADLINE_SECONDS)


def fan_outs(connection: Connection) -> list[Job]:
    """Those that were."""
    return [one for one in recent(connection) if one.kind is JobKind.FAN_OUT]


def again(
    stop: threading.Event,
    connection: psycopg.Connection[Any],
    dice: random.Random,
    change: Callable[[], tuple[str, tuple[Any, ...]]],
) -> None:
    """One transaction after the other, with pauses; what a deadlock ends is given up."""
    while not stop.is_set():
        try:
            with connection.transaction():
                connection.execute(*change())
        except psycopg.errors.OperationalError:
            continue
        stop.wait(dice.choice((0, 0.01, 0.1)))


def renaming(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """The two with many posts are renamed all the time, others now and then."""

    def change() -> tuple[str, tuple[Any, ...]]:
        return "UPDATE users SET name = %s WHERE id = %s", (f"{dice.random()}", dice.choice((1, 1, 2, 3, 4)))

    again(stop, connection, dice, change)


def moving(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """Posts move between authors, go away and come back."""
    statements = (
        "UPDATE posts SET user_id = 3 - user_id WHERE id BETWEEN %s AND %s AND user_id < 3",
        "UPDATE posts SET user_id = 3 WHERE id BETWEEN %s AND %s AND user_id = 1",
        "DELETE FROM posts WHERE id BETWEEN %s AND %s AND user_id = 2",
        "INSERT INTO posts (id, user_id, title, body) "  # noqa: ISC004
        "SELECT g, 1, 't', '' FROM generate_series(%s::int, %s::int) AS g ON CONFLICT DO NOTHING",
    )

    def change() -> tuple[str, tuple[Any, ...]]:
        at = dice.randrange(440)
        return dice.choice(statements), (at, at + dice.randrange(30))

    again(stop, connection, dice, change)


def pausing(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """A person pauses and resumes fan-outs."""
    query = """
    UPDATE syncer.job SET is_paused = NOT is_paused
    WHERE state = ANY (%s) AND id = (SELECT id FROM syncer.job WHERE state = ANY (%s) ORDER BY random() LIMIT 1)
    """

    def change() -> tuple[str, tuple[Any, ...]]:
        return query, (["new", "writing"],) * 2

    again(stop, connection, dice, change)
