"""Chunks of jobs on many job workers: each is counted once, despite crashes, stalls, pauses and cancellations."""

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

from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.jobs import chunks, listing, queue
from syncer.jobs.chunks import Chunk, Chunks
from syncer.jobs.model import Job, JobKind, JobState, find
from tests.support.job_worker import ChunkWorker, ChunkWorkerProcess, wait_until_gone, written
from tests.support.world import DEADLINE_SECONDS, World, wait_until

POSTS = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com') ON CONFLICT DO NOTHING;
INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, {}) AS g
"""
JOB_WORKERS = 6
_TURNS_BEFORE = 30
"""How many turns a job worker takes until what is to happen meanwhile has happened: a quick one would be through
before."""


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """For the test's own looks and steps; there is no job yet."""
    world.sql("DELETE FROM syncer.job")
    with world.connect() as made:
        yield made


def listed(world: World, connection: Connection, *, chunks: int = 300, rate: float | None = None) -> Job:
    """A backfill of so many chunks of ten posts, listed."""
    world.sql(POSTS.format(chunks * 10))
    return backfill(connection, rate=rate)


def backfill(connection: Connection, *, rate: float | None = None) -> Job:
    """A backfill of all posts in chunks of ten, listed."""
    [document] = registry.documents(connection)
    job = queue.create(connection, document, JobKind.BACKFILL, rate=rate)
    assert job is not None
    while not find(connection, job.id).is_listed:
        assert listing.list_ids(connection, job, document, chunk=10)
    return find(connection, job.id)


def rows(world: World, job: Job) -> tuple[int, int, int]:
    """What the job says of its chunks left and documents left, and the chunks that are there."""
    [(chunks, documents, there)] = world.sql(
        "SELECT j.chunks_left, j.documents_listed - j.documents_done, count(c) "
        "FROM syncer.job AS j LEFT JOIN syncer.job_chunk AS c ON c.job = j.id WHERE j.id = %s GROUP BY j.id",
        job.id,
    )
    return chunks, documents, there


@contextmanager
def job_workers(world: World, number: int = JOB_WORKERS) -> Iterator[list[ChunkWorker]]:
    """So many, with connections of their own."""
    connections = [world.connect(f"job_worker-{one}") for one in range(number)]
    try:
        yield [ChunkWorker(one) for one in connections]
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


def test_many_job_workers_take_each_chunk_once(world: World, connection: Connection) -> None:
    """Job workers in a crowd: no chunk in two hands, none forgotten, all counted, and what the job says is true."""
    job = listed(world, connection)
    with job_workers(world) as crowd:
        together([one.drain for one in crowd])
        taken = Counter(chunk.number for job_worker in crowd for chunk in job_worker.taken)
        ids = Counter(id_ for job_worker in crowd for chunk in job_worker.taken for id_ in chunk.ids)
        assert sum(job_worker.counted for job_worker in crowd) == 300
    assert taken == Counter(range(300))
    assert ids == Counter(str(one) for one in range(1, 3001))
    after = find(connection, job.id)
    assert (after.documents_total, after.documents_done, after.indexed) == (3000, 3000, 3000)
    assert rows(world, job) == (0, 0, 0)


def test_a_chunk_that_two_have_written_is_counted_once(world: World, connection: Connection) -> None:
    """Job workers that finish the same chunks at the same time, each several times: one of them counts."""
    job = listed(world, connection, chunks=50)
    with job_workers(world) as crowd:
        chunks = crowd[0].take(50)
        assert len(chunks) == 50

        def finish(job_worker: ChunkWorker) -> Callable[[], None]:
            def twice_each() -> None:
                for chunk in chunks * 2:
                    job_worker.finish([chunk])

            return twice_each

        together([finish(one) for one in crowd])
        assert sum(one.counted for one in crowd) == 50
    assert find(connection, job.id).indexed == 500
    assert rows(world, job) == (0, 0, 0)


def test_chunks_of_killed_job_workers_are_done_by_others(world: World, connection: Connection) -> None:
    """SIGKILL while chunks are in hand, again and again: what is left is given back at once, and counted once."""
    job = listed(world, connection, chunks=1000)
    for _ in range(2):
        processes = [ChunkWorkerProcess(world, "--holding"), ChunkWorkerProcess(world), ChunkWorkerProcess(world)]
        assert [one.line() for one in processes] == ["entered"] * 3
        for one in processes:
            one.tell()
            assert one.line()
        for one in processes:
            one.kill()
    wait_until_gone(connection, 0)
    with job_workers(world, 2) as crowd:
        together([one.drain for one in crowd])
    after = find(connection, job.id)
    assert (after.documents_done, after.indexed) == (10000, 10000)
    assert rows(world, job) == (0, 0, 0)


def test_chunks_of_job_workers_that_live_are_left_to_them(world: World, connection: Connection) -> None:
    """However long it has them; what it gives up is taken again, by one of the others."""
    job = listed(world, connection, chunks=60)
    with job_workers(world) as crowd:
        leaving, *others = crowd
        kept, given_up = leaving.take(20), leaving.take(20)
        together([one.drain for one in others])
        assert rows(world, job)[0] == 40
        leaving.chunks.release(given_up)

        def drain(job_worker: ChunkWorker) -> Callable[[], None]:
            return lambda: wait_until(lambda: not job_worker.turn() and rows(world, job)[0] == 20, what="20 are left")

        together([drain(one) for one in others])
        assert chunks.job_workers_alive(connection) == JOB_WORKERS
        assert leaving.finish(kept) == 20
        taken = Counter(chunk.number for one in others for chunk in one.taken)
    assert taken == Counter(range(20, 60))
    assert find(connection, job.id).indexed == 600


def test_a_chunk_of_a_stopped_job_worker_is_free_after_a_while(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP with a chunk in hand: Postgres ends the silent session, and another job worker takes the chunk."""
    monkeypatch.setattr(chunks, "SILENT_SECONDS", 1)
    job = listed(world, connection, chunks=2)
    stopped = ChunkWorkerProcess(world, "--holding", "--silent=1")
    try:
        assert stopped.line() == "entered"
        stopped.tell()
        assert stopped.line() == "0"
        stopped.process.send_signal(signal.SIGSTOP)
        wait_until_gone(connection, 0)
        with job_workers(world, 1) as [job_worker]:
            job_worker.drain()
            assert {id_ for chunk in job_worker.taken for id_ in chunk.ids} == {str(one) for one in range(1, 21)}
    finally:
        stopped.kill()
    assert find(connection, job.id).indexed == 20
    assert rows(world, job) == (0, 0, 0)


def test_a_chunk_that_was_deleted_while_it_was_locked_is_not_taken(world: World, connection: Connection) -> None:
    """A job worker sees it in its snapshot, and locks it once its holder has deleted it."""
    listed(world, connection, chunks=2)
    with job_workers(world, 2) as (first, second):
        held = first.take(2)
        with pytest.MonkeyPatch.context() as patch:
            read = Chunks._read

            def finish_first(self: Chunks, query: str, *parameters: object) -> Chunk | None:
                if query is chunks._READ:
                    first.finish(held)
                return read(self, query, *parameters)

            patch.setattr(Chunks, "_read", finish_first)
            first.chunks.release(held[:1])
            assert second.take() == []
        assert second.chunks._in_hand == {}


def test_a_pause_stops_all_job_workers_at_once(world: World, connection: Connection) -> None:
    """From the commit of the pause on no chunk is taken; what is in hand is finished; then it goes on."""
    job = listed(world, connection, chunks=400)
    turns = [0] * JOB_WORKERS
    stop, happened = threading.Event(), threading.Event()
    with job_workers(world) as crowd:

        def work(number: int) -> Callable[[], None]:
            def run() -> None:
                while not stop.is_set():
                    if turns[number] == _TURNS_BEFORE:
                        happened.wait(DEADLINE_SECONDS)
                    crowd[number].turn()
                    turns[number] += 1

            return run

        def chunks_next() -> int:
            [(number,)] = world.sql("SELECT chunks_next FROM syncer.job WHERE id = %s", job.id)
            return int(number)

        def watch() -> None:
            try:
                wait_until(lambda: find(connection, job.id).documents_done > 100, what="job workers are at work")
                queue.pause(connection, job.id)
                happened.set()
                at_pause = chunks_next()
                enough = [one + 20 for one in turns]
                wait_until(lambda: all(map(ge, turns, enough)), what="each job worker has asked twenty times more")
                assert chunks_next() == at_pause < 400
                assert rows(world, job)[0] == 400 - at_pause
            finally:
                stop.set()
                happened.set()

        together([watch, *(work(one) for one in range(JOB_WORKERS))])
        assert find(connection, job.id).documents_per_second is None
        queue.resume(connection, job.id)
        together([one.drain for one in crowd])
    assert find(connection, job.id).indexed == 4000


def test_a_cancelled_job_counts_nothing_more(world: World, connection: Connection) -> None:
    """Cancelled under job workers at work.

    None of them fails, no chunk is left, and what is written later does not count.
    """
    job = listed(world, connection, chunks=400)
    with job_workers(world) as crowd:
        held = crowd[0].take()
        happened = threading.Event()

        def cancel() -> None:
            try:
                wait_until(lambda: find(connection, job.id).documents_done > 100, what="job workers are at work")
                queue.cancel(connection, job.id)
            finally:
                happened.set()

        def work(job_worker: ChunkWorker) -> Callable[[], None]:
            def run() -> None:
                for turn in itertools.count():
                    if turn == _TURNS_BEFORE:
                        happened.wait(DEADLINE_SECONDS)
                    if not job_worker.turn():
                        return

            return run

        together([cancel, *(work(one) for one in crowd[1:])])
        after = find(connection, job.id)
        assert crowd[0].finish(held) == 0
        assert sum(one.counted for one in crowd) * 10 == after.documents_done < 4000
    assert after.state is JobState.CANCELLED
    assert find(connection, job.id).documents_done == after.documents_done
    assert rows(world, job)[2] == 0


def test_an_index_that_is_dropped_under_job_workers_takes_its_jobs_along(world: World, connection: Connection) -> None:
    """A document that is put out of force while its chunks are taken: job workers go on, with nothing to do."""
    listed(world, connection, chunks=1000)
    [document] = registry.documents(connection)
    with job_workers(world) as crowd:
        held = crowd[0].take()

        def drop() -> None:
            wait_until(lambda: sum(one.counted for one in crowd) > 10, what="job workers are at work")
            registry.drop_document(connection, document)

        together([drop, *(one.drain for one in crowd[1:])])
        assert crowd[0].finish(held) == 0
    assert world.sql("SELECT count(*) FROM syncer.job_chunk") == [(0,)]


def test_a_small_job_does_not_wait_for_a_great_one(world: World, connection: Connection) -> None:
    """Jobs are served one at a time: five chunks beside three hundred are through after ten."""
    listed(world, connection)
    [document] = registry.documents(connection)
    small = listing.create_listed(connection, document, (str(one) for one in range(1, 51)), chunk=10)
    assert small is not None
    with job_workers(world, 1) as [job_worker]:
        for _ in range(10):
            assert job_worker.turn()
        assert Counter(chunk.job == small.id for chunk in job_worker.taken) == {True: 5, False: 5}
        assert queue.advance(connection, small.id).state is JobState.DONE


def test_a_suspended_document_keeps_others_going(world: World, connection: Connection) -> None:
    """Chunks of a document that is suspended are left alone; its job says so."""
    job = listed(world, connection, chunks=5)
    registry.suspend(connection, "blogpost", job.revision, reason="a test says so", ids=(), is_stale=False)
    with job_workers(world, 1) as [job_worker]:
        assert not job_worker.turn()
    assert find(connection, job.id).is_suspended


def test_a_rate_holds_for_all_job_workers_together(world: World, connection: Connection) -> None:
    """However many job workers, no more is taken than the rate allows in the time that passed; and nearly as much.

    As much is taken in some stretch of time: a machine may stand still in between, and what it missed then is no debt.
    """
    rate = 300.0  # a machine that is busy manages that many too
    job = listed(world, connection, chunks=1000, rate=rate)
    stretch_seconds = 3
    at_once, stretch, enough = (int(rate * one) // 10 for one in (chunks.BURST_SECONDS, stretch_seconds, 30))
    taken_at: list[float] = []

    def is_over() -> bool:
        recent = sorted(taken_at)[-stretch - 1 :]
        is_quick = len(taken_at) > at_once + stretch and 0.8 * (recent[-1] - recent[0]) <= stretch_seconds
        return is_quick or len(taken_at) >= enough

    began = time.monotonic()
    with job_workers(world) as crowd:

        def work(job_worker: ChunkWorker) -> Callable[[], None]:
            def run() -> None:
                while not is_over():
                    if job_worker.turn():
                        taken_at.append(time.monotonic())

            return run

        together([work(one) for one in crowd])
        seconds = time.monotonic() - began
        taken = sum(len(chunk.ids) for job_worker in crowd for chunk in job_worker.taken)
    assert taken <= rate * (seconds + chunks.BURST_SECONDS) + 10
    assert taken < enough * 10, "in no stretch of time was nearly as much taken as the rate allows"
    assert find(connection, job.id).documents_done == taken


def test_a_rate_can_be_lifted(world: World, connection: Connection) -> None:
    """A job that waits for its rate goes on at once when it is taken away."""
    job = listed(world, connection, chunks=200, rate=0.001)
    with job_workers(world, 1) as [job_worker]:
        job_worker.drain()
        assert 0 < len(job_worker.taken) < 5
        queue.set_rate(connection, job.id, None)
        job_worker.drain()
    assert find(connection, job.id).indexed == 2000


def test_what_a_job_worker_commits_is_consistent_whatever_is_lost(world: World, connection: Connection) -> None:
    """A chunk's end and its count are one transaction: if it does not come to be, the chunk is still there."""
    job = listed(world, connection, chunks=5)
    with job_workers(world, 1) as [job_worker]:
        [chunk] = job_worker.take()
        with job_worker.connection.transaction(force_rollback=True):
            assert job_worker.chunks.finish([written(chunk)]) == 1
        assert rows(world, job) == (5, 50, 5)
        assert job_worker.finish([chunk]) == 1
        assert rows(world, job) == (4, 40, 4)
