"""A document that cannot be written for a while: the others continue, and afterwards it is level by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from syncer.jobs.model import JobKind, JobState, find
from syncer.worker.job_loop import JobWorker
from tests.faults.test_job_writes import POSTS, create, the_document, two_documents
from tests.faults.test_processes import wait_until_dead
from tests.faults.test_version_rule import HeldIndex
from tests.scenarios.test_fan_outs import list_
from tests.scenarios.test_jobs import altering
from tests.support.breakpoints import Plan, Point
from tests.support.world import Daemon, World, running, wait_until
from tests.support.writers import fill

AT_ONCE = {"SYNCER_WORKER_THREADS": "1"}
_JOBS = "SELECT kind, state FROM syncer.job WHERE state NOT IN ('done', 'cancelled', 'failed') ORDER BY 1"
_WAITING = "SELECT {} FROM pg_locks WHERE NOT granted AND relation = 'posts'::regclass AND mode = '{}Lock'"
_SHORT = {"syncer.elasticsearch.bulk:_WAIT_FOR_SHARD": "1s", "syncer.worker.job_loop:_ATTEMPT_SECONDS": 1.0}


@contextmanager
def blocked(world: World) -> Iterator[None]:
    """As on a full disk; but Elasticsearch lifts that block by itself, within half a minute if there is room."""
    block = "index.blocks.write"
    with world.elasticsearch() as client:
        client.indices.put_settings(index=world.index_of(), settings={block: True})
        yield
        client.indices.put_settings(index=world.index_of(), settings={block: None})


@contextmanager
def closed(world: World) -> Iterator[None]:
    """The index is closed, and opened again."""
    with world.elasticsearch() as client:
        client.indices.close(index=world.index_of())
        yield
        client.indices.open(index=world.index_of())


Hazard = Callable[[World], AbstractContextManager[None]]
HAZARDS: dict[str, tuple[Hazard, str]] = {
    "index blocked": (blocked, "is gone or refuses"),
    "index closed": (closed, "is closed"),
    "table locked": (altering, "The table public.posts, which blogpost reads, is locked"),
}


def daemon(world: World, *points: Point, **constants: object) -> Daemon:
    """One worker and one job worker, which try a suspended document every second."""
    return world.daemon(environment=AT_ONCE, program=Plan(points=points, constants=_SHORT | constants).program)


def _is_level(world: World, document: str) -> bool:
    return not world._differences(document)


def _follow_users(world: World, process: Daemon) -> None:
    """Change what both documents show, and wait until the other one shows it."""
    for number in range(3):
        world.sql("UPDATE users SET name = %s, email = %s", f"name {number}", f"email {number}")
        world.sql("UPDATE comments SET comment = %s", f"comment {number}")
        wait_until(lambda: _is_level(world, "user"), what="users are followed", detail=process.log_file.read_text)


def _is_over(world: World, process: Daemon) -> None:
    """All is as it should be, without help."""
    world.wait_until_level()
    wait_until(lambda: world.sql(_JOBS) == [], what="all jobs are done", detail=process.log_file.read_text)
    assert world.sql("SELECT count(*) FROM syncer.document WHERE suspended IS NOT NULL") == [(0,)]
    assert world.sql("SELECT id FROM syncer.dead_letter") == []
    assert process.wait_for("document.resumed")["outage_seconds"] > 0
    assert world.syncer("verify").returncode == 0


def _kinds(world: World) -> set[str]:
    return {kind for (kind,) in world.sql("SELECT kind FROM syncer.job")}


@pytest.mark.parametrize(("hazard", "reason"), HAZARDS.values(), ids=HAZARDS)
def test_a_suspended_document_keeps_no_other_waiting(world: World, hazard: Hazard, reason: str) -> None:
    """Its changes wait in a fan-out, also of a worker that is killed; what did not change is not written again."""
    two_documents(world)
    fill(world)
    world.sql("INSERT INTO comments (post_id, name, comment) VALUES (1, 'a', 'b')")
    world.sql("DELETE FROM posts WHERE id > 60")
    first = daemon(world)
    world.wait_until_level()
    assert first.stop() == 0
    with hazard(world):
        world.sql("UPDATE users SET name = 'before'")
        point = Point(at="syncer.documents.registry:suspend", when="after")
        wait_until_dead(daemon(world, point), point)
        second = daemon(world)
        _follow_users(world, second)
        if hazard is not altering:
            world.sql("DELETE FROM posts WHERE id = 1")
        status = world.syncer("status")
        assert status.returncode == 1
        assert reason in " ".join(status.stdout.split())
    _is_over(world, second)
    assert JobKind.REFRESH not in _kinds(world)
    assert second.stop() == 0


def test_a_document_with_too_many_changes_is_refreshed(world: World) -> None:
    """Beyond what its fan-outs take up, its changes are left to a refresh."""
    two_documents(world)
    fill(world)
    limits = {"syncer.jobs.queue:CAUSE_IMAGES_MAX": 1, "syncer.jobs.queue:WAITING_FAN_OUTS_MAX": 2}
    process = daemon(world, **limits)
    world.wait_until_level()
    with blocked(world):
        for number in range(1, 9):
            world.sql("UPDATE posts SET views = views + 1 WHERE id = %s", number)
            _follow_users(world, process)
        waiting = "SELECT is_stale, (SELECT count(*) FROM syncer.job WHERE state = 'new') FROM syncer.document"
        wait_until(lambda: (True, 0) in world.sql(waiting), what="it is stale", detail=process.log_file.read_text)
    _is_over(world, process)
    assert JobKind.REFRESH in _kinds(world)


def test_a_lock_of_a_moment_is_waited_for(world: World) -> None:
    """The worker asks again and again, and the document is not suspended."""
    attempts: set[object] = set()

    def is_asked_for_again() -> bool:
        began = world.sql(_WAITING.format("waitstart", "AccessShare"))
        attempts.update(each for (each,) in began if each is not None)
        return len(attempts) >= 2

    two_documents(world)
    fill(world)
    process = world.daemon(environment=AT_ONCE)
    world.wait_until_level()
    with altering(world):
        world.sql("UPDATE users SET name = 'renamed'")
        wait_until(is_asked_for_again, what="the worker has waited for the lock in vain")
    world.wait_until_level()
    assert "document.suspended" not in process.log_file.read_text()


def test_a_locked_table_keeps_no_other_job_waiting(world: World) -> None:
    """Its chunks are in every thread when the lock comes to stay; they are given back, and another job is done."""
    two_documents(world)
    world.sql(POSTS.format(1000))
    with world.connect() as connection, world.index() as index:
        job = list_(connection, create(connection, JobKind.BACKFILL))
        with altering(world), running(JobWorker(connect=world.connect, index=index, batch_documents_max=5)):
            wait_until(lambda: the_document(connection).suspended is not None, what="it is no longer waited for")
            other = create(connection, JobKind.REFRESH, "user")
            wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the other one is done")
            assert find(connection, job.id).state is JobState.WRITING
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
                wait_until(lambda: find(connection, other.id).state is JobState.WRITING, what="the other one is listed")
                assert find(connection, job.id).documents_done == 0
            finally:
                index.release.set()
            wait_until(lambda: find(connection, job.id).state is JobState.DONE, what="both are done")
            wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="both are done")
