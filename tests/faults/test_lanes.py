"""Pages of jobs in many hands at once: each is counted once, whoever dies, stalls, pauses or cancels meanwhile."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import ge

import pytest

from syncer import job_pages, jobs, listing, store
from syncer.job import Job, JobKind, JobState, find
from syncer.postgres import AdvisoryLock, Connection
from tests.faults.rules import COUNTED_ONCE, RECLAIMED, RENUMBERED
from tests.harness import DEADLINE_SECONDS, World, wait_until
from tests.lane import Lane, LaneProcess, wait_until_gone, written
from tests.proof import Rule, faces

POSTS = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com') ON CONFLICT DO NOTHING;
INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, {}) AS g
"""
LANES = 6
_TURNS_BEFORE = 150
"""How many turns a lane takes until what is to happen meanwhile has happened: a quick one would be through before."""


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """For the test's own looks and steps; there is no job yet."""
    world.sql("DELETE FROM syncer.job")
    with world.connect() as made:
        yield made


def listed(world: World, connection: Connection, *, pages: int = 300, rate: float | None = None) -> Job:
    """A backfill of so many pages of ten posts, listed."""
    world.sql(POSTS.format(pages * 10))
    return backfill(connection, rate=rate)


def backfill(connection: Connection, *, rate: float | None = None) -> Job:
    """A backfill of all posts in pages of ten, listed."""
    [document] = store.documents(connection)
    job = jobs.create(connection, document, JobKind.BACKFILL, rate=rate)
    assert job is not None
    assert listing.list_pages(connection, job, document, page=10)
    return find(connection, job.id)


def rows(world: World, job: Job) -> tuple[int, int, int]:
    """What the job says of its pages left and documents left, and the pages that are there."""
    [(pages, documents, there)] = world.sql(
        "SELECT pages_left, documents_total - documents_done, (SELECT count(*) FROM syncer.job_page WHERE job = id) "
        "FROM syncer.job WHERE id = %s",
        job.id,
    )
    return pages, documents, there


@contextmanager
def lanes(world: World, number: int = LANES, *, pages_max: int = 1) -> Iterator[list[Lane]]:
    """So many, with connections of their own."""
    connections = [world.connect(f"lane-{one}") for one in range(number)]
    try:
        yield [Lane(one, pages_max=pages_max) for one in connections]
    finally:
        for one in connections:
            one.close()


def together(work: list[Callable[[], None]]) -> None:
    """Do all of it at the same time; fail if any of it does."""
    begin = threading.Barrier(len(work))

    def start(one: Callable[[], None]) -> None:
        begin.wait(DEADLINE_SECONDS)
        one()

    with ThreadPoolExecutor(len(work)) as threads:
        for one in [threads.submit(start, one) for one in work]:
            one.result()


@faces(
    "six lanes take pages at once",
    promises=(4,),
    without=Rule(
        "whoever takes pages has locked the job",
        module="syncer.job_pages",
        text="LIMIT 1\n    FOR NO KEY UPDATE OF j",
        instead="LIMIT 1",
    ),
)
@pytest.mark.parametrize("pages_max", [1, 4])
def test_many_lanes_take_each_page_once(world: World, connection: Connection, pages_max: int) -> None:
    """Lanes in a crowd: no page in two hands, none forgotten, all counted, and what the job says is true."""
    job = listed(world, connection)
    with lanes(world, pages_max=pages_max) as crowd:
        together([one.drain for one in crowd])
        taken = Counter(page.number for lane in crowd for page in lane.taken)
        ids = Counter(id_ for lane in crowd for page in lane.taken for id_ in page.ids)
        assert sum(lane.counted for lane in crowd) == 300
    assert taken == Counter(range(300))
    assert ids == Counter(str(one) for one in range(1, 3001))
    after = find(connection, job.id)
    assert (after.documents_total, after.documents_done, after.indexed) == (3000, 3000, 3000)
    assert rows(world, job) == (0, 0, 0)


@faces("lanes finish the same pages at once", promises=(4,), without=COUNTED_ONCE)
def test_a_page_that_two_have_written_is_counted_once(world: World, connection: Connection) -> None:
    """Lanes that finish the same pages at the same time, each several times: one of them counts."""
    job = listed(world, connection, pages=50)
    with lanes(world, pages_max=50) as crowd:
        pages = crowd[0].take()
        assert len(pages) == 50

        def finish(lane: Lane) -> Callable[[], None]:
            def twice_each() -> None:
                for page in pages * 2:
                    lane.finish([page])

            return twice_each

        together([finish(one) for one in crowd])
        assert sum(one.counted for one in crowd) == 50
    assert find(connection, job.id).indexed == 500
    assert rows(world, job) == (0, 0, 0)


@faces("lanes are killed with pages in hand, again and again", promises=(1, 4), without=RECLAIMED)
def test_pages_of_killed_lanes_are_done_by_others(world: World, connection: Connection) -> None:
    """SIGKILL while pages are in hand, again and again: what is left is given back at once, and counted once."""
    job = listed(world, connection, pages=3000)
    for _ in range(3):
        processes = [LaneProcess(world, "--holding"), LaneProcess(world), LaneProcess(world)]
        assert [one.line() for one in processes] == ["entered"] * 3
        for one in processes:
            one.tell()
            assert one.line()
        for one in processes:
            one.kill()
    wait_until_gone(connection, 0)
    assert job_pages.reclaim(connection) >= 3
    assert job_pages.reclaim(connection) == 0
    with lanes(world, 2) as crowd:
        together([one.drain for one in crowd])
    after = find(connection, job.id)
    assert (after.documents_done, after.indexed) == (30000, 30000)
    assert rows(world, job) == (0, 0, 0)


@faces(
    "a lane looks for pages of the dead while others live",
    promises=(4,),
    without=Rule(
        "a page is taken from nobody who is alive and not stalled",
        module="syncer.job_pages",
        text="OR p.taken_by NOT IN ({alive})",
        instead="OR true",
    ),
)
def test_pages_of_lanes_that_live_are_left_to_them(world: World, connection: Connection) -> None:
    """Who reclaims takes nothing from a lane that is alive and has not had its page for long."""
    listed(world, connection, pages=3)
    with lanes(world, 2) as (first, second):
        held = first.take()
        assert job_pages.reclaim(connection) == 0
        second.drain()
        assert job_pages.lanes_alive(connection) == 2
        assert [page.number for page in held + second.taken] == [0, 1, 2]
        assert first.finish(held) == 1


@faces("a lane stands still with a page in hand, and goes on later", promises=(1, 4), without=(RENUMBERED, RECLAIMED))
def test_a_page_of_a_stalled_lane_is_given_to_another(world: World, connection: Connection) -> None:
    """SIGSTOP with a page in hand: after a while another lane does it; whoever wakes up late counts nothing."""
    job = listed(world, connection, pages=2)
    stalled = LaneProcess(world, "--holding")
    try:
        assert stalled.line() == "entered"
        stalled.tell()
        assert stalled.line() == "0"
        stalled.process.send_signal(signal.SIGSTOP)
        assert job_pages.reclaim(connection) == 0
        assert job_pages.reclaim(connection, stalled_seconds=0) == 1
        with lanes(world, 1) as [lane]:
            lane.drain()
            assert {id_ for page in lane.taken for id_ in page.ids} == {str(one) for one in range(1, 21)}
        stalled.process.send_signal(signal.SIGCONT)
        stalled.tell()
        assert stalled.line() == "0"
    finally:
        stalled.kill()
    assert find(connection, job.id).indexed == 20
    assert rows(world, job) == (0, 0, 0)


@faces(
    "a lane says that it is still at a page, just when that is taken for stalled",
    promises=(4,),
    without=Rule(
        "a page that was kept since it was looked at stays",
        module="syncer.job_pages",
        text="AND p.taken_at <= $3",
        instead="AND $3::timestamptz IS NOT NULL",
    ),
)
def test_a_page_that_is_kept_is_not_given_away(world: World, connection: Connection) -> None:
    """A lane that says that it is still at work, however long, keeps its page; one that does not, loses it."""
    listed(world, connection, pages=2)
    with lanes(world, 1, pages_max=2) as [lane]:
        kept, lost = lane.take()
        world.sql("UPDATE syncer.job_page SET taken_at = taken_at - interval '5 min'")
        seen = connection.execute(job_pages._LOST, (AdvisoryLock.LANES, 60)).fetchall()
        assert len(seen) == 2
        job_pages.keep(lane.connection, [kept])
        for one in seen:  # as if it had been kept in the middle of reclaiming
            connection.execute(job_pages._GIVE_BACK, one)
        assert job_pages.reclaim(connection) == 0
        assert lane.finish([kept, lost]) == 1


@faces("all lanes take over from a dead one at once", promises=(1, 4), without=RENUMBERED)
def test_reclaiming_from_many_sides_gives_each_page_back_once(world: World, connection: Connection) -> None:
    """All lanes reclaim and take at once: what a dead lane had is taken once more, by one of them."""
    job = listed(world, connection, pages=60)
    with world.connect() as dying:
        assert len(Lane(dying, pages_max=40).take()) == 40
    wait_until_gone(connection, 0)
    with lanes(world) as crowd:

        def work(lane: Lane) -> Callable[[], None]:
            def turn() -> bool:
                job_pages.reclaim(lane.connection)
                lane.turn()
                return rows(world, job)[0] == 0

            return lambda: wait_until(turn, what="all pages are done")

        together([work(one) for one in crowd])
        ids = Counter(id_ for lane in crowd for page in lane.taken for id_ in page.ids)
    assert ids == Counter(str(one) for one in range(1, 601))
    assert find(connection, job.id).indexed == 600


@faces(
    "two pages are given back at once",
    promises=(1, 4),
    without=Rule(
        "whoever gives a page back has locked the job",
        module="syncer.job_pages",
        text="SELECT j.id, j.pages_end FROM syncer.job AS j WHERE j.id = $1 FOR NO KEY UPDATE",
        instead="SELECT j.id, j.pages_end FROM syncer.job AS j WHERE j.id = $1",
    ),
)
def test_two_pages_that_are_given_back_at_once_get_two_numbers(world: World, connection: Connection) -> None:
    """The second one waits until the first is committed, and goes behind it."""
    listed(world, connection, pages=2)
    waits = "application_name = 'syncer lane-1' AND wait_event_type = 'Lock' AND datname = current_database()"
    query = f"SELECT 1 FROM pg_stat_activity WHERE {waits}"
    with lanes(world, 2) as (first, second):
        one, other = first.take() + second.take()
        with ThreadPoolExecutor(1) as threads, first.connection.transaction():
            job_pages.release(first.connection, [one])
            releasing = threads.submit(job_pages.release, second.connection, [other])
            wait_until(lambda: bool(world.sql(query)), what="the second one waits")
        releasing.result()
        first.drain()
        assert [page.number for page in first.taken] == [0, 2, 3]


@faces("a lane leaves with a page in hand", promises=(1, 4), without=RENUMBERED)
def test_a_page_that_is_released_is_taken_again(world: World, connection: Connection) -> None:
    """A lane that leaves gives its page back, and can then no longer finish it."""
    job = listed(world, connection, pages=2)
    with lanes(world, 2) as (leaving, staying):
        [page] = leaving.take()
        job_pages.release(leaving.connection, [page])
        job_pages.release(leaving.connection, [page])
        assert leaving.finish([page]) == 0
        staying.drain()
        assert {id_ for one in staying.taken for id_ in one.ids} == {str(one) for one in range(1, 21)}
    assert find(connection, job.id).indexed == 20


@faces(
    "a job is paused under six lanes",
    promises=(4,),
    without=Rule(
        "no page of a job that is paused is taken",
        module="syncer.job_pages",
        text="AND NOT j.is_paused AND d.halted IS NULL",
        instead="AND d.halted IS NULL",
    ),
)
def test_a_pause_stops_all_lanes_at_once(world: World, connection: Connection) -> None:
    """From the commit of the pause on no page is taken; what is in hand is finished; then it goes on."""
    job = listed(world, connection, pages=3000)
    turns = [0] * LANES
    stop, happened = threading.Event(), threading.Event()
    with lanes(world) as crowd:

        def work(number: int) -> Callable[[], None]:
            def run() -> None:
                while not stop.is_set():
                    if turns[number] == _TURNS_BEFORE:
                        happened.wait(DEADLINE_SECONDS)
                    crowd[number].turn()
                    turns[number] += 1

            return run

        def pages_next() -> int:
            [(number,)] = world.sql("SELECT pages_next FROM syncer.job WHERE id = %s", job.id)
            return int(number)

        def watch() -> None:
            try:
                wait_until(lambda: find(connection, job.id).documents_done > 100, what="lanes are at work")
                jobs.pause(connection, job.id)
                happened.set()
                at_pause = pages_next()
                enough = [one + 20 for one in turns]
                wait_until(lambda: all(map(ge, turns, enough)), what="each lane has asked twenty times more")
                assert pages_next() == at_pause < 3000
                assert rows(world, job)[0] == 3000 - at_pause
            finally:
                stop.set()
                happened.set()

        together([watch, *(work(one) for one in range(LANES))])
        assert find(connection, job.id).documents_per_second is None
        jobs.resume(connection, job.id)
        together([one.drain for one in crowd])
    assert find(connection, job.id).indexed == 30000


@faces(
    "a job is cancelled under six lanes",
    promises=(4,),
    without=Rule(
        "the pages of a job go away with it",
        module="syncer.jobs",
        text="connection.execute(_DROP_PAGES, (job_id,))",
        instead="pass",
    ),
)
def test_a_cancelled_job_counts_nothing_more(world: World, connection: Connection) -> None:
    """Cancelled under lanes at work: none of them fails, no page is left, and what is written later does not count."""
    job = listed(world, connection, pages=1000)
    with lanes(world) as crowd:
        held = crowd[0].take()
        happened = threading.Event()

        def cancel() -> None:
            try:
                wait_until(lambda: find(connection, job.id).documents_done > 100, what="lanes are at work")
                jobs.cancel(connection, job.id)
            finally:
                happened.set()

        def work(lane: Lane) -> Callable[[], None]:
            def run() -> None:
                for turn in itertools.count():
                    if turn == _TURNS_BEFORE:
                        happened.wait(DEADLINE_SECONDS)
                    if not lane.turn():
                        return

            return run

        together([cancel, *(work(one) for one in crowd[1:])])
        after = find(connection, job.id)
        assert crowd[0].finish(held) == 0
        assert sum(one.counted for one in crowd) * 10 == after.documents_done < 10000
    assert after.state is JobState.CANCELLED
    assert find(connection, job.id).documents_done == after.documents_done
    assert rows(world, job)[2] == 0


@faces("an index is put out of force under six lanes", promises=(4,))
def test_an_index_that_is_dropped_under_lanes_takes_its_jobs_along(world: World, connection: Connection) -> None:
    """A document that is put out of force while its pages are taken: lanes go on, with nothing to do."""
    listed(world, connection, pages=1000)
    [document] = store.documents(connection)
    with lanes(world) as crowd:
        held = crowd[0].take()

        def drop() -> None:
            wait_until(lambda: sum(one.counted for one in crowd) > 10, what="lanes are at work")
            store.drop_document(connection, document)

        together([drop, *(one.drain for one in crowd[1:])])
        assert crowd[0].finish(held) == 0
    assert world.sql("SELECT count(*) FROM syncer.job_page") == [(0,)]


@faces(
    "a small job comes while a great one is written",
    promises=(4,),
    without=Rule(
        "jobs are served in turn", module="syncer.job_pages", text="ORDER BY j.served_at, j.id", instead="ORDER BY j.id"
    ),
)
def test_a_small_job_does_not_wait_for_a_great_one(world: World, connection: Connection) -> None:
    """Jobs are served in turn: five pages beside three hundred are through after ten."""
    listed(world, connection)
    [document] = store.documents(connection)
    small = listing.create_listed(connection, document, JobKind.REPAIR, (str(one) for one in range(1, 51)), page=10)
    assert small is not None
    with lanes(world, 1) as [lane]:
        for _ in range(10):
            assert lane.turn()
        assert Counter(page.job == small.id for page in lane.taken) == {True: 5, False: 5}
        assert jobs.advance(connection, small.id).state is JobState.DONE


@faces(
    "a document halts with pages left",
    promises=(4,),
    without=Rule(
        "no page of a document that is halted is taken",
        module="syncer.job_pages",
        text="AND NOT j.is_paused AND d.halted IS NULL",
        instead="AND NOT j.is_paused",
    ),
)
def test_a_halted_document_keeps_others_going(world: World, connection: Connection) -> None:
    """Pages of a document that is halted are left alone; its job says so."""
    job = listed(world, connection, pages=5)
    store.halt(connection, "blogpost", job.generation, "a test says so")
    with lanes(world, 1) as [lane]:
        assert not lane.turn()
    assert find(connection, job.id).is_halted


@faces(
    "six lanes write a job that has a rate",
    promises=(4,),
    without=Rule(
        "a rate is the job's, not the lane's",
        module="syncer.job_pages",
        text="AND j.pages_next < j.pages_end AND j.next_at <= clock_timestamp()",
        instead="AND j.pages_next < j.pages_end",
    ),
)
def test_a_rate_holds_for_all_lanes_together(world: World, connection: Connection) -> None:
    """However many lanes, no more is taken than the rate allows in the time that passed; and nearly as much.

    As much is taken in some stretch of time: a machine may stand still in between, and what it missed then is no debt.
    """
    rate = 300.0  # a machine that is busy manages that many too
    job = listed(world, connection, pages=1000, rate=rate)
    stretch_seconds = 3
    at_once, stretch, enough = (int(rate * one) // 10 for one in (job_pages.BURST_SECONDS, stretch_seconds, 30))
    taken_at: list[float] = []

    def is_over() -> bool:
        recent = sorted(taken_at)[-stretch - 1 :]
        is_quick = len(taken_at) > at_once + stretch and 0.8 * (recent[-1] - recent[0]) <= stretch_seconds
        return is_quick or len(taken_at) >= enough

    began = time.monotonic()
    with lanes(world) as crowd:

        def work(lane: Lane) -> Callable[[], None]:
            def run() -> None:
                while not is_over():
                    if lane.turn():
                        taken_at.append(time.monotonic())

            return run

        together([work(one) for one in crowd])
        seconds = time.monotonic() - began
        taken = sum(len(page.ids) for lane in crowd for page in lane.taken)
    assert taken <= rate * (seconds + job_pages.BURST_SECONDS) + 10
    assert taken < enough * 10, "in no stretch of time was nearly as much taken as the rate allows"
    assert find(connection, job.id).documents_done == taken


@faces(
    "a job that waits for its rate is let go",
    promises=(4,),
    without=Rule(
        "who changes a rate lets go of what it has used up",
        module="syncer.jobs",
        text="\"rate = $2, next_at = '-infinity'\"",
        instead='"rate = $2"',
    ),
)
def test_a_rate_can_be_lifted(world: World, connection: Connection) -> None:
    """A job that waits for its rate goes on at once when it is taken away."""
    job = listed(world, connection, pages=200, rate=0.001)
    with lanes(world, 1) as [lane]:
        lane.drain()
        assert 0 < len(lane.taken) < 5
        jobs.set_rate(connection, job.id, None)
        lane.drain()
    assert find(connection, job.id).indexed == 2000


@faces("the last commits of a lane are lost in a crash of Postgres", promises=(1, 4), without=COUNTED_ONCE)
def test_what_a_lane_commits_is_consistent_whatever_is_lost(world: World, connection: Connection) -> None:
    """A page's end and its count are one transaction: if it does not come to be, the page is still there."""
    job = listed(world, connection, pages=5)
    with lanes(world, 1) as [lane]:
        [page] = lane.take()
        with lane.connection.transaction(force_rollback=True):
            assert job_pages.finish(lane.connection, [written(page)]) == 1
        assert rows(world, job) == (5, 50, 5)
        assert lane.finish([page]) == 1
        assert rows(world, job) == (4, 40, 4)
