"""Late, slow or failing processes cost time while chunks of jobs are written, never a document."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from elasticsearch import Elasticsearch

from syncer.base.errors import IndexingError
from syncer.base.model import Composition, Target
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.elasticsearch.bulk import BulkOutcome, Index
from syncer.elasticsearch.reader import Holdings
from syncer.jobs import listing, queue, steps
from syncer.jobs.model import Job, JobKind, JobState, find, unfinished
from syncer.worker.job_loop import JobWorker
from tests.faults.test_version_rule import HeldIndex
from tests.support.world import DEADLINE_SECONDS, World, running, wait_until

POSTS = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com') ON CONFLICT DO NOTHING;
INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, {}) AS g
"""


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """For the test's own looks and steps."""
    with world.connect() as made:
        yield made


def the_document(connection: Connection, name: str = "blogpost") -> Document:
    """The definition whose index serves."""
    return registry.current(connection)[name]


def create(connection: Connection, kind: JobKind, name: str = "blogpost") -> Job:
    """A job of all documents."""
    made = queue.create(connection, the_document(connection, name), kind)
    assert made is not None
    return made


# Late writers, and jobs that cannot know of what they write


@contextmanager
def late_writer(world: World, index: HeldIndex) -> Iterator[threading.Thread]:
    """Somebody has read post 2 when the block begins, and writes it when it ends."""

    def write() -> None:
        with world.writer(index) as writer:
            writer.write(world.index_of(), ["2"])

    thread = threading.Thread(target=write)
    thread.start()
    assert index.is_held.wait(DEADLINE_SECONDS)
    yield thread
    index.release.set()
    thread.join(DEADLINE_SECONDS)


def truncate(world: World) -> None:
    """The whole table is emptied; what the worker makes of it is a job."""
    world.sql("TRUNCATE posts CASCADE")
    with world.connect() as connection:
        create(connection, JobKind.REFRESH)


def narrow(world: World) -> None:
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


class CutShort(HeldIndex):
    """One whose first answer is not whole, though everything was written."""

    def __init__(self, client: Elasticsearch) -> None:
        super().__init__(client)
        self.is_cut = False

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Write once released; the first time, fail."""
        outcome = super().write(target, compositions)
        if not self.is_cut:
            self.is_cut = True
            raise IndexingError("Elasticsearch answered 0 items")
        return outcome


# One who fails after a TRUNCATE fails under the revision that is active, and suspends it.
@pytest.mark.parametrize(
    ("remove", "made"),
    [
        (truncate, HeldIndex),
        (narrow, CutShort),
        (suspend_and_fix, HeldIndex),
    ],
)
def test_a_writer_who_is_late_does_not_bring_back_what_no_change_names(
    world: World, remove: Callable[[World], None], made: type[HeldIndex]
) -> None:
    """What it read is gone by a job that had nothing to delete yet; it writes after the cleanup, and takes it back."""
    world.sql(POSTS.format(3))
    with world.elasticsearch() as client, world.index() as index:
        with late_writer(world, made(client)):
            remove(world)
            world.refresh(index)
        assert world.differences() == []


def test_a_writer_who_writes_between_the_listing_and_the_cleanup_does_not_either(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy written after the sequence numbers were read stays, but its writer sees that they were read."""
    world.sql(POSTS.format(3))
    with world.elasticsearch() as client, world.index() as index:
        with world.writer(index) as writer:  # or the late copies were creations, which are looked for in any case
            writer.write(world.index_of(), ["1", "2", "3"])
        held = HeldIndex(client)
        clean_up = listing.clean_up
        with late_writer(world, held) as writing:

            def release_first(*arguments: Any, **options: Any) -> bool:
                held.release.set()
                writing.join(DEADLINE_SECONDS)
                return clean_up(*arguments, **options)

            monkeypatch.setattr(listing, "clean_up", release_first)
            truncate(world)
            world.refresh(index)
        assert world.differences() == []
    assert unfinished(connection) == []


def test_a_job_that_is_taken_for_another_one_reads_the_sequence_numbers_after_that(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TRUNCATE finds a job that is still new, whose job worker stalls: what was written until then is cleaned up."""
    world.sql(POSTS.format(3))
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


def two_documents(world: World) -> World:
    """The blog's posts, and its users as documents of their own."""
    world.use("blogpost", "user")
    world.apply()
    return world


def test_a_small_job_does_not_wait_until_a_great_one_is_through(world: World, connection: Connection) -> None:
    """One job worker takes a job from listing to its end while another job of many chunks is written."""
    two_documents(world)
    world.sql(POSTS.format(10_000))
    with world.elasticsearch() as client:
        index = Index(client, bulk_bytes_max=8_000_000)
        great = create(connection, JobKind.BACKFILL)
        with running(JobWorker(connect=world.connect, index=index, batch_documents_max=5, in_flight_max=1)):
            wait_until(lambda: find(connection, great.id).documents_done > 0, what="the great one is at work")
            small = create(connection, JobKind.REFRESH, "user")
            wait_until(lambda: find(connection, small.id).state is JobState.DONE, what="the small one is done")
            assert find(connection, great.id).state is JobState.WRITING


@contextmanager
def without_primary(client: Elasticsearch, name: str) -> Iterator[None]:
    """The only node that may have the index's shard is away. Enter it while the index is empty: it is made anew."""
    require = "index.routing.allocation.require._name"
    (made,) = client.indices.get(index=name, expand_wildcards="all").body.values()
    client.indices.delete(index=name)  # a shard that was there before would be put where it was, whatever is required
    client.indices.create(
        index=name,
        settings={"index.number_of_replicas": 0, require: "away"},
        mappings=made["mappings"],
        aliases=made["aliases"],
        wait_for_active_shards=0,
    )
    wait_until(lambda: client.cluster.health(index=name).body["status"] == "red", what="the index is red")
    yield
    client.indices.put_settings(index=name, settings={require: None})


def test_an_index_without_its_primary_keeps_its_job_waiting_and_no_other(world: World, connection: Connection) -> None:
    """A node is away when a job is to be listed: nothing suspends, others go on, and so does this one afterwards."""
    two_documents(world)
    world.sql(POSTS.format(10))
    with (
        world.index() as index,
        world.elasticsearch() as client,
        running(JobWorker(connect=world.connect, index=index)),
    ):
        with without_primary(client, world.index_of()):
            waiting = create(connection, JobKind.BACKFILL)
            other = create(connection, JobKind.BACKFILL, "user")
            wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the other one is done")
            assert not find(connection, waiting.id).is_listed
            assert not find(connection, waiting.id).is_suspended
        wait_until(lambda: find(connection, waiting.id).state is JobState.DONE, what="the job is done")
    assert world.differences() == []


def test_a_job_that_goes_away_before_its_step_ends_no_job_worker(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index is put out of force with its jobs, just when a job worker has found that one of them is through."""
    advance = queue.advance

    def drop_first(asking: Connection, job_id: int) -> Job:
        if find(asking, job_id).state is JobState.CLEANING_UP:
            registry.drop_document(connection, the_document(connection))
        return advance(asking, job_id)

    monkeypatch.setattr(queue, "advance", drop_first)
    create(connection, JobKind.BACKFILL)
    with world.index() as index, running(JobWorker(connect=world.connect, index=index)):
        wait_until(lambda: not registry.documents(connection), what="the document is put out of force")
        wait_until(lambda: not unfinished(connection), what="its job is gone")


# Waiting


def test_a_job_worker_that_waits_for_a_table_stops_when_it_is_told_to(world: World, connection: Connection) -> None:
    """Somebody alters a table for as long as he likes, while a job is to be listed."""
    world.sql(POSTS.format(3))
    create(connection, JobKind.BACKFILL)
    with psycopg.connect(world.dsn) as altering, world.index() as index:
        altering.execute("LOCK TABLE posts IN ACCESS EXCLUSIVE MODE")
        blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'public.posts'::regclass"
        with running(JobWorker(connect=world.connect, index=index)) as stop:
            wait_until(lambda: connection.execute(blocked).fetchone() == (1,), what="the job worker waits")
            began = time.monotonic()
            stop.request()
        assert time.monotonic() - began < 30
        altering.rollback()
        world.refresh(index)
    assert world.differences() == []


def test_a_chunk_is_given_back_at_once_when_a_job_worker_is_told_to_stop(world: World, connection: Connection) -> None:
    """Its slices that fly are finished, no other is begun; the chunk is there for the next one, and counted once."""
    world.sql(POSTS.format(400))
    job = create(connection, JobKind.BACKFILL)
    with world.elasticsearch() as client:
        held = HeldIndex(client)
        with running(JobWorker(connect=world.connect, index=held, batch_bytes_max=10_000)) as stop:
            assert held.is_held.wait(DEADLINE_SECONDS)
            stop.request()
            held.release.set()
        assert world.sql("SELECT count(*) FROM syncer.job_chunk") == [(1,)]
        assert 0 < len(world.held()) < 400
    with world.index() as index:
        world.refresh(index)
    after = find(connection, job.id)
    assert (after.documents_done, after.indexed) == (400, 400)
    assert world.differences() == []


def test_a_job_whose_step_breaks_the_connection_keeps_no_other_waiting(world: World) -> None:
    """What the older one asks for ends the session each time; the other one goes first then."""
    world.sql(POSTS.format(3))
    suicide = "(SELECT count(*) FROM pg_terminate_backend(pg_backend_pid())) = 1"
    with world.connect() as connection, world.index() as index:
        first = queue.create(connection, the_document(connection), JobKind.PARTIAL, where=suicide)
        second = create(connection, JobKind.BACKFILL)
        assert first is not None
        with world.job_worker(index) as job_worker, running(job_worker):
            wait_until(lambda: find(connection, second.id).state is JobState.DONE, what="the other one is done")
        assert not find(connection, first.id).state.is_finished


def written_by_another(world: World) -> None:
    """Documents of another client: one whose id Postgres cannot hold, and one whose id it can."""
    with world.elasticsearch() as client:
        for id_ in ("4711", "a\0b"):
            action = {"index": {"_index": world.alias, "_id": id_}}
            client.bulk(operations=[action, {"title": "not syncer's"}], refresh=True)
    assert {"4711", "a\0b"} <= world.held().keys()


def test_an_error_of_the_data_in_a_step_fails_the_job_and_no_job_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the kind of error and quotes no value."""
    written_by_another(world)
    monkeypatch.setattr(steps, "_is_storable", lambda _: True)
    with world.connect() as connection:
        job = create(connection, JobKind.BACKFILL)
        with world.index() as index:
            world.refresh(index)
        failed = find(connection, job.id)
    assert failed.state is JobState.FAILED
    assert (failed.error or "").startswith("Unexpected error: DataError")


def test_an_error_that_nobody_foresaw_in_a_step_fails_the_job_and_no_job_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what happened; the next job is done."""

    def fail(*_: Any, **__: Any) -> bool:
        raise OverflowError("nobody foresaw it")

    with world.connect() as connection, world.index() as index, world.job_worker(index) as job_worker:
        first = create(connection, JobKind.BACKFILL)
        with monkeypatch.context() as patch:
            patch.setattr(listing, "list_ids", fail)
            job_worker.run_once()
        failed = find(connection, first.id)
        assert failed.state is JobState.FAILED
        assert "nobody foresaw it" in (failed.error or "")
        second = create(connection, JobKind.BACKFILL)
        with running(job_worker):
            wait_until(lambda: find(connection, second.id).state is JobState.DONE, what="the next one is done")
