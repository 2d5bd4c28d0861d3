"""Jobs beside crowds of job workers, late writers, crashes, pauses and cancellations: each document counts once."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from syncer.base.errors import IndexingError
from syncer.base.model import Composition, Target
from syncer.base.postgres import Connection
from syncer.base.settings import WorkerSettings
from syncer.documents import registry
from syncer.elasticsearch.bulk import BulkOutcome
from syncer.elasticsearch.reader import Holdings
from syncer.jobs import chunks, listing, queue, steps
from syncer.jobs.chunks import Chunk, Chunks
from syncer.jobs.model import Job, JobKind, JobState, find, unfinished
from syncer.worker.job_loop import JobWorker
from tests.faults import harness
from tests.faults.harness import Hold, Write, add_posts, create, require_holds, the_document
from tests.support.job_worker import ChunkWorker, written
from tests.support.world import DEADLINE_SECONDS, World, running, wait_until
from tests.support.writers import altering

JOB_WORKERS = 6
_TURNS_BEFORE = 30
"""How many turns a job worker takes until what is to happen meanwhile has happened: a quick one would be through."""


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """For the test's own looks and steps; there is no job yet."""
    world.sql("DELETE FROM syncer.job")
    with world.connect() as made:
        yield made


# Chunks, and a crowd that takes them


def listed(world: World, connection: Connection, *, chunks: int, rate: float | None = None) -> Job:
    """A backfill of so many chunks of ten posts, listed."""
    add_posts(world, chunks * 10)
    document = the_document(connection)
    job = queue.create(connection, document, JobKind.BACKFILL, rate=rate)
    assert job is not None
    while not find(connection, job.id).is_listed:
        assert listing.list_ids(connection, job, document, chunk=10)
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
        given_up = crowd[0].take(10)
        crowd[0].chunks.release(given_up)
        together([each.drain for each in crowd[1:]])
        assert left(world, job)[0] >= 20
        wait_until(lambda: not any(each.turn() for each in crowd[1:]) and left(world, job)[0] == 20, what="20 are left")

        def finish(job_worker: ChunkWorker) -> Callable[[], None]:
            def run() -> None:
                for chunk in kept * 2:
                    job_worker.finish([chunk])

            return run

        together([finish(each) for each in crowd])
        taken = Counter(id_ for each in crowd[1:] for chunk in each.taken for id_ in chunk.ids)
        assert sum(each.counted for each in crowd) == 150
        assert set(taken.values()) == {1}
    after = find(connection, job.id)
    assert (after.documents_total, after.documents_done, after.indexed) == (1500, 1500, 1500)
    assert left(world, job) == (0, 0, 0)


def test_what_a_job_worker_commits_is_consistent_whatever_is_lost(world: World, connection: Connection) -> None:
    """A chunk's end and its count are one transaction; one that was deleted while it was locked is not taken."""
    job = listed(world, connection, chunks=5)
    with crowd_of(world, 2) as (first, second):
        [chunk] = first.take()
        with first.connection.transaction(force_rollback=True):
            assert first.chunks.finish([written(chunk)]) == 1
        assert left(world, job) == (5, 50, 5)
        assert first.finish([chunk]) == 1
        assert left(world, job) == (4, 40, 4)
        held = first.take(4)
        read = Chunks._read

        def finish_first(self: Chunks, query: str, *parameters: object) -> Chunk | None:
            if query is chunks._READ:
                first.finish(held)
            return read(self, query, *parameters)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Chunks, "_read", finish_first)
            first.chunks.release(held[:1])
            assert second.take() == []
        assert second.chunks._in_hand == {}


END = {
    "paused": lambda connection, job: queue.pause(connection, job.id),
    "cancelled": lambda connection, job: queue.cancel(connection, job.id),
    "its index dropped": lambda connection, _: registry.drop_document(connection, the_document(connection)),
}


@pytest.mark.parametrize("end", END.values(), ids=END)
def test_a_job_that_is_ended_under_job_workers_counts_nothing_more(
    world: World, connection: Connection, end: Callable[[Connection, Job], object]
) -> None:
    """No chunk is taken from then on; what is in hand counts only if the job was paused, and resumes."""
    job = listed(world, connection, chunks=400)
    with crowd_of(world) as crowd:
        held = crowd[0].take()
        happened = threading.Event()

        def act() -> None:
            try:
                wait_until(lambda: find(connection, job.id).documents_done > 100, what="job workers are at work")
                end(connection, job)
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

        together([act, *(work(each) for each in crowd[1:])])
        done = sum(each.counted for each in crowd) * 10
        assert done < 4000
        if end is END["paused"]:
            assert left(world, job)[:2] == (400 - done // 10, 4000 - done)
            queue.resume(connection, job.id)
            together([each.drain for each in crowd[1:]])
            assert crowd[0].finish(held) == 1
            assert find(connection, job.id).indexed == 4000
            return
        assert crowd[0].finish(held) == 0
    assert world.sql("SELECT count(*) FROM syncer.job_chunk") == [(0,)]
    assert world.sql("SELECT documents_done FROM syncer.job WHERE id = %s", job.id) in ([(done,)], [])


def test_a_rate_holds_for_all_job_workers_together(world: World, connection: Connection) -> None:
    """However many there are, no more is taken than the rate allows in the time that passed; and it can be lifted."""
    rate = 200.0
    job = listed(world, connection, chunks=200, rate=rate)
    began = time.monotonic()
    with crowd_of(world) as crowd:

        def work(job_worker: ChunkWorker) -> Callable[[], None]:
            def run() -> None:
                while time.monotonic() < began + 2:
                    job_worker.turn()

            return run

        together([work(each) for each in crowd])
        seconds = time.monotonic() - began
        taken = sum(len(chunk.ids) for each in crowd for chunk in each.taken)
        assert 0 < taken <= rate * (seconds + chunks.BURST_SECONDS) + 10
        queue.set_rate(connection, job.id, None)
        together([each.drain for each in crowd])
    assert find(connection, job.id).indexed == 2000


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


def suspend_and_fix(world: World) -> None:
    """The document is deleted while its definition is suspended: that change names it to nobody."""
    with world.connect() as connection:
        revision = the_document(connection).revision
        registry.suspend(connection, "blogpost", revision, reason="a test says so", ids=(), is_stale=False)
    world.sql("DELETE FROM posts WHERE id = 2")
    world.apply()


class CutShort(Hold):
    """The first answer is not whole, though everything was written."""

    is_cut = False

    def __call__(self, write: Write, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write once released; the first time, fail."""
        outcome = super().__call__(write, target, compositions)
        if not self.is_cut:
            self.is_cut = True
            raise IndexingError("Elasticsearch answered 0 items")
        return outcome


# A writer that fails after a TRUNCATE fails under the revision that is active, and suspends it.
@pytest.mark.parametrize(("remove", "hold"), [(truncate, Hold), (leave_out, CutShort), (suspend_and_fix, Hold)])
def test_a_writer_that_is_late_does_not_bring_back_what_no_change_names(
    world: World, remove: Callable[[World], None], hold: type[Hold]
) -> None:
    """What it read is gone by a job that had nothing to delete yet; it writes after the cleanup, and takes it back."""
    add_posts(world, 3)
    with world.index() as index, harness.stalled_writer(world, hold()) as resume:
        remove(world)
        world.refresh(index)
        resume()
        assert world.differences() == []


def test_a_writer_that_writes_between_the_listing_and_the_cleanup_does_not_either(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy written after the sequence numbers were read stays, but its writer sees that they were read."""
    add_posts(world, 3)
    clean_up = listing.clean_up
    with world.index() as index, world.writer(index) as writer:
        writer.write(world.index_of(), ["1", "2", "3"])  # else the late copies are creations, which are checked anyway
        with harness.stalled_writer(world, Hold()) as resume:

            def release_first(*arguments: Any, **options: Any) -> bool:
                resume()
                return clean_up(*arguments, **options)

            monkeypatch.setattr(listing, "clean_up", release_first)
            truncate(world)
            world.refresh(index)
        require_holds(world)


def test_a_job_that_is_joined_reads_the_sequence_numbers_after_that(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TRUNCATE joins a job that is still new, whose job worker stalls: what was written until then is cleaned up."""
    add_posts(world, 3)
    create(connection, JobKind.REFRESH)
    asked = Holdings.sequence_numbers
    stalls = [True]

    def stall_after(self: Holdings, target: Target) -> dict[int, int]:
        found = asked(self, target)
        if stalls:
            stalls.pop()
            with world.index() as index, world.writer(index) as writer:
                writer.write(world.index_of(), ["2"])
            truncate(world)
        return found

    monkeypatch.setattr(Holdings, "sequence_numbers", stall_after)
    with world.index() as index:
        world.refresh(index)
    assert not stalls
    assert world.differences() == []


# Jobs beside one another


def test_a_small_job_does_not_wait_until_a_great_one_is_through(world: World, connection: Connection) -> None:
    """One job worker takes a job from listing to its end while another job of many chunks is written."""
    harness.two_documents(world)
    add_posts(world, 5000)
    with world.index() as index:
        great = create(connection)
        settings = WorkerSettings(batch_documents_max=5, in_flight_max=1)
        with running(JobWorker(connect=world.connect, index=index, settings=settings)):
            wait_until(lambda: find(connection, great.id).documents_done > 0, what="the great one is at work")
            small = create(connection, JobKind.REFRESH, "user")
            wait_until(lambda: find(connection, small.id).state is JobState.DONE, what="the small one is done")
            assert find(connection, great.id).state is JobState.WRITING


@contextmanager
def without_primary(world: World) -> Iterator[None]:
    """The only node that may have the index's shard is away. Enter it while the index is empty: it is made anew."""
    name = world.index_of()
    with world.elasticsearch() as client:
        harness.make_anew(client, name, {"routing.allocation.require._name": "away"})
        wait_until(lambda: bool(client.cluster.health(index=name).body["status"] == "red"), what="the index is red")
        yield
        client.indices.put_settings(index=name, settings={"index.routing.allocation.require._name": None})


def test_an_index_without_its_primary_keeps_its_job_waiting_and_no_other(world: World, connection: Connection) -> None:
    """A node is away when a job is to be listed: nothing suspends, others go on, and so does this one afterwards."""
    harness.two_documents(world)
    add_posts(world, 10)
    with world.index() as index, running(JobWorker(connect=world.connect, index=index)):
        with without_primary(world):
            waiting = create(connection)
            other = create(connection, JobKind.BACKFILL, "user")
            wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the other one is done")
            assert not find(connection, waiting.id).is_listed
            assert not find(connection, waiting.id).is_suspended
        harness.wait_done(connection, waiting)
    require_holds(world)


def test_a_locked_table_keeps_no_other_job_waiting(world: World, connection: Connection) -> None:
    """Its chunks are in every thread when the lock comes to stay; they are given back, and another job is done."""
    harness.two_documents(world)
    job = listed(world, connection, chunks=50)
    with world.index() as index:
        settings = WorkerSettings(batch_documents_max=5)
        with altering(world), running(JobWorker(connect=world.connect, index=index, settings=settings)):
            wait_until(lambda: the_document(connection).suspended is not None, what="it is no longer waited for")
            other = create(connection, JobKind.REFRESH, "user")
            wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the other one is done")
            assert find(connection, job.id).state is JobState.WRITING
        with running(JobWorker(connect=world.connect, index=index)):
            harness.wait_done(connection, job)
    assert the_document(connection).suspended is None


# Job workers are told to stop


def test_a_job_worker_that_waits_for_a_table_stops_when_it_is_told_to(world: World, connection: Connection) -> None:
    """A table is altered for hours, while a job is to be listed."""
    add_posts(world, 3)
    create(connection)
    with altering(world), world.index() as index:
        blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'public.posts'::regclass"
        with running(JobWorker(connect=world.connect, index=index)) as stop:
            wait_until(lambda: connection.execute(blocked).fetchone() == (1,), what="the job worker waits")
            began = time.monotonic()
            stop.request()
        assert time.monotonic() - began < 30


# Steps that fail


def break_the_session(_: World, connection: Connection, __: pytest.MonkeyPatch) -> Job:
    """What it asks for ends the session each time."""
    suicide = "(SELECT count(*) FROM pg_terminate_backend(pg_backend_pid())) = 1"
    job = queue.create(connection, the_document(connection), JobKind.PARTIAL, where=suicide)
    assert job is not None
    return job


def fail_on_the_data(world: World, connection: Connection, patch: pytest.MonkeyPatch) -> Job:
    """A document of another client, whose id Postgres cannot hold."""
    with world.elasticsearch() as client:
        action = {"index": {"_index": world.alias, "_id": "a\0b"}}
        client.bulk(operations=[action, {"title": "not syncer's"}], refresh=True)
    patch.setattr(steps, "_is_storable", lambda _: True)
    return create(connection)


def fail_otherwise(_: World, connection: Connection, patch: pytest.MonkeyPatch) -> Job:
    """An error that nobody foresaw."""

    def fail(*arguments: Any, **options: Any) -> bool:
        patch.undo()
        raise OverflowError(arguments, options, "nobody foresaw it")

    job = create(connection)
    patch.setattr(listing, "list_ids", fail)
    return job


def drop_its_index(_: World, connection: Connection, patch: pytest.MonkeyPatch) -> Job:
    """The index is put out of force with its jobs, when a job worker has found that one of them is through."""
    advance, job = queue.advance, create(connection)

    def drop_first(asking: Connection, job_id: int) -> Job:
        if job_id == job.id and find(asking, job_id).state is JobState.CLEANING_UP:
            registry.drop_document(connection, the_document(connection))
        return advance(asking, job_id)

    patch.setattr(queue, "advance", drop_first)
    return job


FAILURES = {
    break_the_session: None,
    fail_on_the_data: "Unexpected error: DataError",
    fail_otherwise: "nobody foresaw it",
    drop_its_index: None,
}


@pytest.mark.parametrize(("fail", "error"), FAILURES.items())
def test_a_step_that_fails_ends_no_job_worker(
    world: World, connection: Connection, fail: Callable[..., Job], error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job is done; the failed one gives the reason, which quotes no value."""
    harness.two_documents(world)
    add_posts(world, 3)
    first = fail(world, connection, monkeypatch)
    with world.index() as index, running(JobWorker(connect=world.connect, index=index)):
        other = create(connection, JobKind.BACKFILL, "user")
        wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the next one is done")
        if error is not None:
            wait_until(lambda: find(connection, first.id).state is JobState.FAILED, what="the first one has failed")
            assert error in (find(connection, first.id).error or "")
        if fail is drop_its_index:
            wait_until(lambda: not unfinished(connection), what="its job is gone")


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
