"""A fan-out beside renames, moves and deaths: whoever takes a page later shows the later change, and none is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from syncer import job_pages, jobs, listing
from syncer.errors import JobError
from syncer.job import Job, JobKind, JobState, find, recent, unfinished
from syncer.postgres import Connection
from tests.faults.rules import COMMITTED_LAST, KEY_CHANGES, OWED_UNFILLED, RECLAIMED, WRITTEN_WITH_THE_DRAW
from tests.faults.writers import SECONDS, SEED, at_work
from tests.harness import DEADLINE_SECONDS, World, wait_until
from tests.lane import Lane, LaneProcess
from tests.proof import Rule, faces
from tests.scenarios.test_fan_outs import (
    BLOG,
    CAUSE,
    OTHER,
    fan_out,
    follow,
    list_,
    listed,
    posts_of,
    refresher,
    the_document,
    worker,
)
from tests.scenarios.test_jobs import altering


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


# What is left out


@faces(
    "a second rename comes while a page of the first is being written",
    promises=(1, 3),
    without=Rule(
        "nothing is left to a page that a lane has in hand",
        module="syncer.listing",
        text="WHERE own.id = $1 AND j.id <> own.id AND p.taken_by IS NULL",
        instead="WHERE own.id = $1 AND j.id <> own.id",
    ),
)
def test_a_page_in_hand_does_not_show_what_comes_later(world: World, connection: Connection) -> None:
    """A lane has composed a page when the second rename comes, and writes it after: the page is listed once more."""
    rename(world, 1, "first")
    list_(connection, fan_out(connection))
    with world.index() as index, world.connect() as own, world.writer(index) as writer:
        lane = Lane(own)
        [page] = lane.take()
        attempt = writer.compose(page.index_name, page.ids)
        rename(world, 1, "second")
        second = list_(connection, fan_out(connection))
        assert set(listed(world, second)) == set(page.ids)
        writer.send(attempt)
        writer.settle(attempt)
        lane.finish([page])
    finish(world)


@faces(
    "a lane that was held up writes a page after the one that took it over",
    promises=(2, 3),
    without=WRITTEN_WITH_THE_DRAW,
)
def test_a_page_that_is_given_back_is_composed_once_more(world: World, connection: Connection) -> None:
    """Whoever was held up with it writes what is older; whoever takes it then, what is newer."""
    rename(world, 1, "first")
    list_(connection, fan_out(connection))
    with world.index() as index, world.connect() as own, world.writer(index) as writer:
        lane = Lane(own)
        [page] = lane.take()
        attempt = writer.compose(page.index_name, page.ids)
        job_pages.reclaim(connection, stalled_seconds=0)
        rename(world, 1, "second")
        assert list_(connection, fan_out(connection)).left_out == 120
        finish(world)
        writer.send(attempt)
        assert attempt.report.superseded == len(page.ids)
        assert lane.finish([page]) == 0
    assert world.differences() == []


@faces(
    "a backfill that has the documents of a rename is cancelled",
    promises=(1, 3),
    without=Rule(
        "what may be cancelled without harm excuses no fan-out",
        module="syncer.listing",
        text="AND j.kind = ANY ({owed}) AND NOT j.is_paused",
        instead="AND NOT j.is_paused",
    ),
)
def test_nothing_is_left_to_what_is_not_owed(world: World, connection: Connection) -> None:
    """A backfill has the page, and is cancelled, which tells nobody: the fan-out writes all of it."""
    backfill = jobs.create(connection, the_document(connection), JobKind.PART, where="user_id = 1")
    assert backfill is not None
    list_(connection, backfill)
    rename(world, 1, "renamed")
    list_(connection, fan_out(connection))
    jobs.cancel(connection, backfill.id)
    assert the_document(connection).is_filled
    finish(world)


@faces(
    "a fan-out that has the documents of the next rename is paused",
    promises=(1, 3),
    without=Rule(
        "nothing is left to a job that is paused",
        module="syncer.listing",
        text="NOT j.is_paused AND j.rate IS NULL",
        instead="j.rate IS NULL",
    ),
)
def test_nothing_is_left_to_what_is_paused(world: World, connection: Connection) -> None:
    """A fan-out has the page, and was paused before: the next one writes all of it, and does not wait."""
    rename(world, 1, "first")
    first = list_(connection, fan_out(connection))
    jobs.pause(connection, first.id)
    rename(world, 1, "second")
    second = list_(connection, fan_out(connection))
    with world.index() as index, refresher(world, index) as lane:
        wait_until(lambda: bool(lane.run_once() and find(connection, second.id).state.is_finished), what="it is done")
    assert world.differences() == []
    jobs.resume(connection, first.id)
    finish(world)


@faces(
    "a fan-out to which another one has left documents is cancelled, or paused",
    promises=(1, 3),
    without=OWED_UNFILLED,
)
@pytest.mark.parametrize("end", ["cancelled", "paused for a while"])
def test_what_was_left_to_a_job_shares_its_fate(world: World, connection: Connection, end: str) -> None:
    """Cancelled later: the document counts as not filled, until a backfill. Paused later: it is done afterwards."""
    rename(world, 1, "first")
    first = list_(connection, fan_out(connection))
    rename(world, 1, "second")
    second = list_(connection, fan_out(connection))
    assert second.left_out == 120
    if end == "cancelled":
        jobs.cancel(connection, first.id)
        assert not the_document(connection).is_filled
        world.backfill()
        assert the_document(connection).is_filled
    else:
        jobs.pause(connection, first.id)
        assert jobs.advance(connection, second.id).state is JobState.DONE
        jobs.resume(connection, first.id)
    finish(world)


# While it is listed


@faces(
    "a second rename comes while the first is being listed",
    promises=(1, 3),
    without=Rule(
        "only a job that nobody has begun to list takes up another cause",
        module="syncer.jobs",
        text="new = _still_new(standing, JobKind.FAN_OUT, None)",
        instead="new = next(iter(locked_unfinished(connection, document.index_name)), None)",
    ),
)
@pytest.mark.parametrize("who", ["the same user", "another user"])
def test_a_rename_during_the_listing_is_a_job_of_its_own(world: World, connection: Connection, who: str) -> None:
    """What a lister has begun shows no later change: a cause that comes then must not be added to it."""
    rename(world, 1, "first")
    first = fan_out(connection)
    held = threading.Event()
    release = threading.Event()
    put_all = listing._put_all

    def hold(*arguments: Any) -> tuple[int, int, int]:
        counts = put_all(*arguments)
        held.set()
        assert release.wait(DEADLINE_SECONDS)
        return counts

    with pytest.MonkeyPatch.context() as patch, world.connect() as own:
        patch.setattr(listing, "_put_all", hold)
        lister = threading.Thread(target=list_, args=(own, first))
        lister.start()
        assert held.wait(DEADLINE_SECONDS)
        user = 1 if who == "the same user" else 2
        rename(world, user, "second")
        second = fan_out(connection, CAUSE if user == 1 else OTHER)
        release.set()
        lister.join()
    assert second.id != first.id
    finish(world)


@faces(
    "posts move, go away and get other keys while their author's rename is on its way",
    promises=(1, 2, 3),
    without=KEY_CHANGES,
)
def test_posts_that_move_while_a_fan_out_is_on_its_way_end_right(world: World, connection: Connection) -> None:
    """From the renamed author to another and back, before it is listed, after that, and while it is written."""
    with world.index() as index, refresher(world, index) as lane:
        rename(world, 1, "renamed")
        follow(world, index)
        [job] = unfinished(connection)
        world.sql("UPDATE posts SET user_id = 3 WHERE id <= 10; UPDATE posts SET user_id = 1 WHERE id > 400")
        follow(world, index)
        list_(connection, job)
        world.sql("UPDATE posts SET user_id = 2 WHERE id BETWEEN 11 AND 20; UPDATE posts SET user_id = 1 WHERE id <= 5")
        world.sql("DELETE FROM posts WHERE id = 30")
        lane.run_once()
        world.sql("UPDATE posts SET user_id = 2 WHERE id BETWEEN 21 AND 30; UPDATE posts SET id = 7777 WHERE id = 40")
        follow(world, index)
    finish(world)


@faces(
    "whoever lists a fan-out is killed",
    promises=(1,),
    without=Rule(
        "a listing that was begun is begun anew by whoever comes next",
        module="syncer.listing",
        text="WHERE id = $1 AND state IN ('new', 'listing')\n\"\"\"",
        instead='WHERE id = $1 AND state = \'new\'\n"""',
    ),
)
def test_a_lister_that_is_killed_leaves_the_fan_out_to_the_next(world: World, connection: Connection) -> None:
    """SIGKILL in the middle: no page is there, and whoever lists it then lists all of it."""
    rename(world, 1, "renamed")
    job = fan_out(connection)
    with altering(world):
        lister = LaneProcess(world, "--listing")
        wait_until(lambda: find(connection, job.id).state is JobState.LISTING, what="the listing has begun")
        lister.kill()
    assert listed(world, job) == []
    wait_until(lambda: bool(list_when_alone(connection, job)), what="Postgres lets go of the dead")
    assert set(listed(world, job)) == posts_of(world, 1)
    finish(world)


def list_when_alone(connection: Connection, job: Job) -> bool:
    """Whether the job could be listed."""
    return listing.list_pages(connection, job, the_document(connection), page=10)


# The worker


class Killed(BaseException):
    """Ends a worker in the middle, as SIGKILL would."""


@faces("a worker dies before or after it has made the job of a fan-out", promises=(1,), without=COMMITTED_LAST)
@pytest.mark.parametrize("moment", ["before the job is there", "after the job is there"])
def test_a_worker_that_dies_over_a_fan_out_loses_none(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Offsets are committed only once the job is there: the successor makes it, or adds to it what it has already."""
    rename(world, 1, "renamed")
    create_fan_out = jobs.create_fan_out

    def die(*arguments: Any) -> Job | None:
        if moment == "after the job is there":
            create_fan_out(*arguments)
        raise Killed

    with world.index() as index:
        monkeypatch.setattr(jobs, "create_fan_out", die)
        with world.relay() as relay, worker(world, index) as made:
            relay.run_once()
            with pytest.raises(Killed):
                wait_until(lambda: bool(made.run_once() and False), what="the worker dies")
        monkeypatch.setattr(jobs, "create_fan_out", create_fan_out)
        with worker(world, index) as successor:
            wait_until(lambda: successor.run_once().changes > 0, what="the successor has the partition")
    [job] = unfinished(connection)
    assert job.cause == {"public.users": 1}
    finish(world)


# All at once


@faces(
    "authors of many posts are renamed, posts move, jobs are paused, daemons are killed",
    promises=(1, 2, 3),
    without=RECLAIMED,
)
def test_renames_and_moves_under_lanes_that_die_end_level(world: World) -> None:
    """Tiny pages, two daemons of which one is killed again and again, jobs paused and resumed: all equal in the end."""
    world.worker_settings = {
        "SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "5",
        "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "7",
        "SYNCER_REFRESHER_IDLE_SECONDS": "0.05",
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
                jobs.resume(connection, one.id)
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
        return query, (["new", "listing", "listed"],) * 2

    again(stop, connection, dice, change)
