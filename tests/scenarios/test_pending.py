"""Documents that a job has yet to write are busy, and a new index is not searched without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from syncer.apply import reindex
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.jobs import listing, queue
from syncer.jobs.model import Job, JobKind, JobState, find, unfinished
from syncer.verify.compare import VerifyReport, verify
from syncer.verify.diff import Cause
from tests.faults.test_rebuild import begin, require_done
from tests.scenarios.test_fan_outs import BLOG, follow, list_, the_document
from tests.support.world import DEADLINE_SECONDS, World, wait_until

FAR_AHEAD = 1 << 62


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """To a blog in which two users have many posts, all of which are written."""
    world.sql(BLOG)
    with world.connect() as made:
        world.backfill()
        with world.index() as index:
            follow(world, index, many=1000)
        world.sql("DELETE FROM syncer.job")
        yield made


@pytest.fixture
def late(world: World, connection: Connection) -> Job:
    """A rename of the user with the posts 1 to 120, as far as the job that nobody has begun."""
    return rename(world, connection, the_document(connection).index_name)


def rename(world: World, connection: Connection, index_name: str) -> Job:
    """Rename the user with the posts 1 to 120; what is to be done about it in one of the indices."""
    world.sql("UPDATE users SET name = 'renamed' WHERE id = 1")
    with world.index() as index:
        follow(world, index)
    (job,) = unfinished(connection, index_name)
    assert job.kind is JobKind.FAN_OUT
    return job


def run(world: World, *, repair: bool = False) -> VerifyReport:
    """Verify without patience."""
    with ExitStack() as stack:
        index = stack.enter_context(world.index())
        writer = stack.enter_context(world.writer(index))
        connection = stack.enter_context(world.connect())
        document = the_document(connection)
        return verify(
            world.connect,
            document,
            index=index,
            settle_seconds=0,
            repair=(lambda ids: writer.write(document.index_name, ids, everywhere=True)) if repair else None,
        )


def summary(report: VerifyReport) -> tuple[list[str], int, list[int]]:
    """What has drifted, how much is busy, and by which jobs."""
    return [drift.id for drift in report.drifts], len(report.busy), report.jobs


# Verify


def test_what_a_fan_out_has_yet_to_write_is_no_drift(world: World, connection: Connection, late: Job) -> None:
    """Before it is listed it holds every document; then its own, and what drifted beside them is found."""
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="300")
    assert summary(run(world)) == ([], 121, [late.id])
    list_(connection, late)
    assert summary(run(world)) == (["300"], 120, [late.id])
    report = run(world, repair=True)
    assert (report.holds, len(report.repaired)) == (True, 121)
    with world.index() as index:
        world.refresh(index)
    assert summary(run(world)) == ([], 0, [])
    assert world.differences() == []


def test_what_a_refresh_has_yet_to_clean_up_is_no_drift(world: World, connection: Connection) -> None:
    """After a TRUNCATE all documents are too many, until they are cleaned up."""
    world.sql("TRUNCATE posts CASCADE")
    with world.index() as index:
        follow(world, index)
        (job,) = unfinished(connection)
        assert job.kind is JobKind.REFRESH
        assert summary(run(world)) == ([], 360, [job.id])
        document = the_document(connection)
        numbers = index.holdings.sequence_numbers(document.target)
        assert listing.list_ids(connection, job, document, chunk=10, sequence_numbers=lambda: numbers)
        assert queue.advance(connection, job.id).state is JobState.CLEANING_UP
        assert summary(run(world)) == ([], 360, [job.id])
        world.refresh(index)
    assert summary(run(world)) == ([], 0, [])


def test_what_no_job_can_replace_is_drift(world: World, late: Job) -> None:
    """A version of another client that none of syncer's surpasses stays, whatever will be written."""
    with world.elasticsearch() as client:
        client.index(index=world.alias, id="7", document={}, version=FAR_AHEAD, version_type="external")
    report = run(world)
    assert [(drift.id, drift.cause) for drift in report.drifts] == [("7", Cause.FOREIGN_AHEAD)]
    assert (len(report.busy), report.jobs) == (119, [late.id])


# A new index


@pytest.fixture
def building(world: World, connection: Connection) -> Document:
    """A new index that is loaded, and does not serve yet."""
    with world.indices() as indices, world.index() as index:
        reindex.begin(connection, indices, "blogpost", report=lambda _: None)
        world.refresh(index)
    return registry.by_role(connection, "blogpost")[Role.BUILDING]


def done_where_it_serves(world: World, connection: Connection, building: Document) -> Job:
    """A rename that searches find already; the job by which it will be in the new index."""
    late = rename(world, connection, building.index_name)
    queue.pause(connection, late.id)
    with world.index() as index, world.job_worker(index) as job_worker:
        while unfinished(connection, the_document(connection).index_name):
            job_worker.run_once()
    assert world.held() == world.expected()
    return queue.resume(connection, late.id)


def test_a_search_never_goes_back_to_an_older_name(world: World, connection: Connection, building: Document) -> None:
    """The new index waits, visibly, for its own part of the rename, which the command does where no daemon is."""
    late = done_where_it_serves(world, connection, building)
    ended = world.syncer("index", "rebuild", "blogpost")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{building.index_name} waits for job {late.id} (fan_out: public.users, 1 row)" in ended.stdout
    assert world.index_of() == building.index_name
    assert find(connection, late.id).state is JobState.DONE
    assert world.held() == world.expected()


def test_no_new_index_waits_for_what_is_paused(world: World, connection: Connection, building: Document) -> None:
    """It says which job, and what to do; searches stay where they are, and the same command goes on afterwards."""
    before = world.index_of()
    late = done_where_it_serves(world, connection, building)
    queue.set_rate(connection, late.id, 0.1)
    log = world.folder / "rebuild.log"
    process = begin(world)
    wait_until(lambda: f"waits for job {late.id}" in log.read_text(), what="it waits")
    queue.pause(connection, late.id)
    assert process.wait(DEADLINE_SECONDS) == 1
    assert f"syncer jobs resume {late.id}" in log.read_text()
    assert world.index_of() == before
    queue.resume(connection, late.id)
    queue.set_rate(connection, late.id, None)
    require_done(world, begin(world))
    assert world.index_of() == building.index_name
    assert world.held() == world.expected()
