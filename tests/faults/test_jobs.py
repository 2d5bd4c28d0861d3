"""Jobs beside crowds of job workers, late writers, other jobs and failures: each document counts once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from syncer.base.postgres import Connection
from syncer.base.settings import WorkerSettings
from syncer.jobs import listing, queue
from syncer.jobs.model import Job, JobKind, JobState, find
from syncer.worker.job_loop import JobWorker
from tests.faults import harness
from tests.faults.harness import Hold, add_posts, create, the_document
from tests.support.job_worker import ChunkWorker
from tests.support.world import DEADLINE_SECONDS, World, running, wait_until

JOB_WORKERS = 6


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """For the test's own looks and steps; there is no job yet."""
    world.sql("DELETE FROM syncer.job")
    with world.connect() as made:
        yield made


# Chunks, and a crowd that takes them


def listed(world: World, connection: Connection, *, chunks: int) -> Job:
    """A backfill of so many chunks of ten posts, listed."""
    add_posts(world, chunks * 10)
    document = the_document(connection)
    job = queue.create(connection, document, JobKind.BACKFILL)
    assert job is not None
    while not find(connection, job.id).is_listed:
        assert listing.step(connection, find(connection, job.id), document, chunk=10)
    return find(connection, job.id)


def left(world: World, job: Job) -> tuple[int, int, int]:
    """What the job says of its chunks left and documents left, and the chunks that are there."""
    [(chunks, documents, there)] = world.sql(
        "SELECT j.chunks_left, j.documents_listed - j.documents_done, count(c) "
        "FROM syncer.job AS j LEFT JOIN syncer.job_chunk AS c ON c.job = j.id WHERE j.id = %s GROUP BY j.id",
        job.id,
    )
    return chunks, documents, there


@contextmanager
def crowd_of(world: World, number: int = JOB_WORKERS) -> Iterator[list[ChunkWorker]]:
    """So many job workers, with connections of their own."""
    connections = [world.connect(f"job_worker-{each}") for each in range(number)]
    try:
        yield [ChunkWorker(each) for each in connections]
    finally:
        for each in connections:
            each.close()


def together(work: list[Callable[[], None]]) -> None:
    """Do all of it at the same time; fail if any of it does."""
    begin = threading.Barrier(len(work))

    def start(act: Callable[[], None]) -> None:
        begin.wait(DEADLINE_SECONDS)
        act()

    with ThreadPoolExecutor(len(work)) as threads:
        for future in [threads.submit(start, act) for act in work]:
            future.result()


def test_a_crowd_takes_each_chunk_once(world: World, connection: Connection) -> None:
    """No chunk in two hands, none forgotten, all counted once, though each is finished by two; others' are left."""
    job = listed(world, connection, chunks=150)
    with crowd_of(world) as crowd:
        kept = crowd[0].take(20)
        crowd[0].chunks.finish([(chunk, None) for chunk in crowd[0].take(10)])  # they are given up
        together([each.drain for each in crowd[1:]])
        assert left(world, job)[0] >= 20
        wait_until(lambda: not any(each.turn() for each in crowd[1:]) and left(world, job)[0] == 20, what="20 are left")

        def finish(job_worker: ChunkWorker) -> None:
            for chunk in kept * 2:
                job_worker.finish([chunk])

        together([partial(finish, each) for each in crowd])
        taken = Counter(id_ for each in crowd[1:] for chunk in each.taken for id_ in chunk.ids)
        assert sum(each.counted for each in crowd) == 150
        assert set(taken.values()) == {1}
    after = find(connection, job.id)
    assert (after.documents_total, after.documents_done, after.indexed) == (1500, 1500, 1500)
    assert left(world, job) == (0, 0, 0)


# Late writers, whose documents no change names


def truncate(world: World) -> None:
    """The whole table is emptied; what the worker makes of it is a job."""
    world.sql("TRUNCATE posts CASCADE")
    with world.connect() as connection:
        create(connection, JobKind.REFRESH)


def leave_out(world: World) -> None:
    """The definition leaves the document out from now on, and is applied in place."""
    file = world.document_folder / "select.sql"
    file.write_text(file.read_text().strip() + " WHERE p.id <> 2\n")
    world.apply()


@pytest.mark.parametrize("remove", [truncate, leave_out])
def test_a_writer_that_is_late_does_not_bring_back_what_no_change_names(
    world: World, remove: Callable[[World], None]
) -> None:
    """What it read is gone by a job that had nothing to delete yet; it writes after the cleanup, and takes it back."""
    add_posts(world, 3)
    with world.index() as index, harness.stalled_writer(world, Hold()) as resume:
        remove(world)
        world.refresh(index)
        resume()
        assert world.differences() == []


# Jobs beside one another


def test_a_small_job_does_not_wait_until_a_great_one_is_through(world: World, connection: Connection) -> None:
    """One job worker takes a job from listing to its end while another job of many chunks is written."""
    harness.two_documents(world)
    add_posts(world, 15_000)
    with world.index() as index:
        great = create(connection)
        settings = WorkerSettings(batch_documents_max=5, in_flight_max=1)
        with running(JobWorker(connect=world.connect, index=index, settings=settings)):
            wait_until(lambda: find(connection, great.id).documents_done > 0, what="the great one is at work")
            small = create(connection, JobKind.REFRESH, "user")
            wait_until(lambda: find(connection, small.id).state is JobState.DONE, what="the small one is done")
            assert find(connection, great.id).state is JobState.WRITING


# Steps that fail


def break_the_session(connection: Connection, patch: pytest.MonkeyPatch) -> Job:
    """Its listing ends the session each time."""
    step, job = listing.step, create(connection)

    def end_session(asking: Connection, listed: Job, *arguments: Any, **options: Any) -> Job | None:
        if listed.id == job.id:
            asking.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return step(asking, listed, *arguments, **options)

    patch.setattr(listing, "step", end_session)
    return job


def fail_otherwise(connection: Connection, patch: pytest.MonkeyPatch) -> Job:
    """An error that nobody foresaw."""

    def fail(*arguments: Any, **options: Any) -> Job | None:
        patch.undo()
        raise OverflowError(arguments, options, "nobody foresaw it")

    job = create(connection)
    patch.setattr(listing, "step", fail)
    return job


@pytest.mark.parametrize("fail", [break_the_session, fail_otherwise])
def test_a_step_that_fails_ends_no_job_worker(
    world: World, connection: Connection, fail: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job is done; the failed one gives the reason."""
    harness.two_documents(world)
    add_posts(world, 3)
    first = fail(connection, monkeypatch)
    with world.index() as index, running(JobWorker(connect=world.connect, index=index)):
        other = create(connection, JobKind.BACKFILL, "user")
        wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the next one is done")
        if fail is fail_otherwise:
            wait_until(lambda: find(connection, first.id).state is JobState.FAILED, what="the first one has failed")
            assert "nobody foresaw it" in (find(connection, first.id).error or "")


# Memory

PEAK = """
import sys
from syncer.cli.app import main
sys.argv[1:] = ["backfill", "blogpost"]
try:
    main()
finally:
    [peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print("peak", int(peak) // 1024)
"""


def test_memory_does_not_grow_with_the_size_of_documents(empty_world: World) -> None:
    """1,200 documents of 200 kB, in chunks of 1,000: the command stays below 200 MB."""
    world = empty_world
    file = world.document_folder / "index.json"
    file.write_text(
        file.read_text().replace('"body": { "type": "text" }', '"body": { "type": "object", "enabled": false }')
    )
    world.set_up()
    add_posts(world, 1200)
    world.sql("UPDATE posts SET body = repeat('lorem ipsum ', 17000)")
    command = [sys.executable, "-c", PEAK]
    ended = subprocess.run(command, env=world.environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    [peak] = [int(row.split()[1]) for row in ended.stdout.splitlines() if row.startswith("peak")]
    assert peak < 200
    assert world.sql("SELECT documents_done, indexed FROM syncer.job WHERE kind = 'backfill'") == [(1200, 1200)]
