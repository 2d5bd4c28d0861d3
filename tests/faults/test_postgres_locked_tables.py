"""A table of one document stays locked, as by an ALTER TABLE: others go on, and it is level by itself afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import pytest

from syncer.documents import locked_tables
from syncer.jobs.model import JobKind, JobState, find
from syncer.worker.job_loop import JobWorker
from tests.faults.test_elasticsearch_unavailable_index import AT_ONCE, JOBS, level
from tests.faults.test_job_writes import POSTS, create, the_document, two_documents
from tests.faults.test_version_rule import HeldIndex
from tests.scenarios.test_fan_outs import list_
from tests.scenarios.test_jobs import altering
from tests.support.breakpoints import Plan
from tests.support.world import Daemon, World, running, wait_until
from tests.support.writers import fill

_WAITING = "SELECT {} FROM pg_locks WHERE NOT granted AND relation = 'posts'::regclass AND mode = '{}Lock'"
_ATTEMPTS = _WAITING.format("waitstart", "AccessShare")
_HURRIED = {"syncer.documents.locked_tables:LOCKED_SECONDS_MAX": 1.0}


@contextmanager
def queued(world: World) -> Iterator[None]:
    """A long SELECT runs, and an ALTER TABLE waits for its end: all that come later wait behind that."""
    with world.application() as reader, ThreadPoolExecutor(1) as threads:
        reader.execute("SELECT count(*) FROM posts")
        altered = threads.submit(world.sql, "ALTER TABLE posts ADD COLUMN shelf text")
        wait_until(lambda: world.sql(_WAITING.format("count(*)", "AccessExclusive")) == [(1,)], what="it waits")
        yield
        reader.rollback()
        altered.result()


def daemon(world: World) -> Daemon:
    """One worker and one job worker, which wait for a lock a second only."""
    return world.daemon(environment=AT_ONCE, program=Plan(constants=_HURRIED).program)


Locked = Callable[[World], AbstractContextManager[None]]


def test_a_locked_table_keeps_no_other_document_waiting(world: World) -> None:
    """Documents that do not read it are followed; a refresh writes those that do."""
    two_documents(world)
    fill(world)
    world.sql("INSERT INTO comments (post_id, name, comment) VALUES (1, 'a', 'b')")
    process = daemon(world)
    world.wait_until_level()
    with altering(world):
        for number in range(2):
            world.sql("UPDATE comments SET comment = %s", f"comment {number}")
            world.sql("UPDATE users SET name = %s, email = %s", f"name {number}", f"email {number}")
            wait_until(lambda: level(world, "user"), what="users are followed", detail=process.log_file.read_text)
        status = world.syncer("status")
        assert status.returncode == 1
        assert "table public.posts has been locked" in " ".join(status.stdout.split())
    world.wait_until_level()
    wait_until(lambda: world.sql(JOBS) == [], what="all jobs are done", detail=process.log_file.read_text)
    assert process.wait_for("document.resumed")["outage_seconds"] > 0
    assert process.stop() == 0


def test_a_lock_of_a_moment_is_waited_for(world: World) -> None:
    """The worker asks again and again, and the changes cost no refresh."""
    attempts: set[object] = set()

    def is_asked_for_again() -> bool:
        attempts.update(began for (began,) in world.sql(_ATTEMPTS) if began is not None)
        return len(attempts) >= 3

    two_documents(world)
    fill(world)
    process = world.daemon(environment=AT_ONCE)
    world.wait_until_level()
    with altering(world):
        world.sql("UPDATE users SET name = 'renamed'")
        wait_until(is_asked_for_again, what="the worker has waited for the lock in vain")
    world.wait_until_level()
    kinds = {kind for (kind,) in world.sql("SELECT kind FROM syncer.job")}
    assert JobKind.REFRESH not in kinds
    assert "document.suspended" not in process.log_file.read_text()


def test_a_locked_table_keeps_no_other_job_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chunks are in every thread when the lock comes to stay; they are given back, and another job is done."""
    monkeypatch.setattr(locked_tables, "LOCKED_SECONDS_MAX", 1.0)
    two_documents(world)
    world.sql(POSTS.format(1000))
    with world.connect() as connection, world.index() as index:
        job = list_(connection, create(connection, JobKind.BACKFILL))
        with altering(world), running(JobWorker(connect=world.connect, index=index, batch_documents_max=5)):
            wait_until(lambda: the_document(connection).suspended is not None, what="it is no longer waited for")
            other = create(connection, JobKind.REFRESH, "user")
            wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the other one is done")
            assert find(connection, job.id).state is JobState.LISTED
        with running(JobWorker(connect=world.connect, index=index)):
            wait_until(lambda: find(connection, job.id).state is JobState.DONE, what="it is done after that")
        assert the_document(connection).suspended is None


def test_a_job_is_listed_while_a_chunk_of_another_one_is_held_up(world: World) -> None:
    """The chunk stays in hand meanwhile, and is finished afterwards."""
    two_documents(world)
    world.sql(POSTS.format(10))
    with world.connect() as connection, world.elasticsearch() as client:
        index = HeldIndex(client)
        job = list_(connection, create(connection, JobKind.BACKFILL))
        with running(JobWorker(connect=world.connect, index=index)):
            try:
                wait_until(index.is_held.is_set, what="a chunk is in hand")
                other = create(connection, JobKind.BACKFILL, "user")
                wait_until(lambda: find(connection, other.id).state is JobState.LISTED, what="the other one is listed")
                assert find(connection, job.id).documents_done == 0
            finally:
                index.release.set()
            wait_until(lambda: find(connection, job.id).state is JobState.DONE, what="both are done")
            wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="both are done")
