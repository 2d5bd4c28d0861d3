"""A job from its creation to its end: which ids it lists, which job replaces which, and what its end means."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest

from syncer.base.model import Image
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.jobs import listing, model, queue
from syncer.jobs.model import Job, JobKind, JobState, due, find, unfinished
from syncer.recovery import lost_records, schema_watch
from tests.faults.harness import create, the_document
from tests.support.job_worker import ChunkWorker
from tests.support.world import World

RESET = """
DELETE FROM syncer.job;
UPDATE syncer.document SET suspended = NULL, loaded_at = now(), suspended_at = NULL, is_stale = false;
DELETE FROM posts;
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com') ON CONFLICT DO NOTHING;
INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, 25) AS g
"""
EVERY_ID = [str(number) for number in range(1, 26)]


@pytest.fixture
def world(shared_world: World) -> World:
    """A blog of 25 posts, and no job yet; one for all tests, which write nothing to Elasticsearch."""
    shared_world.sql(RESET)
    return shared_world


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """A connection to it."""
    with world.connect() as opened:
        yield opened


def create_part(connection: Connection) -> Job:
    """Create a job of some given ids."""
    job = listing.create_listed(connection, the_document(connection), ["1", "2", "3", "4"], chunk=10)
    assert job is not None
    return job


def list_(connection: Connection, job: Job) -> Job:
    """List a job in chunks of ten."""
    advanced = listing.step(connection, job, the_document(connection), chunk=10)
    assert advanced is not None
    return advanced


def drain(world: World) -> list[str]:
    """Take and finish every chunk; return the ids."""
    with world.connect() as connection:
        job_worker = ChunkWorker(connection)
        job_worker.drain()
    return [id_ for chunk in job_worker.taken for id_ in chunk.ids]


def finish(world: World, connection: Connection, job: Job) -> Job:
    """Do all of a whole job, without orphans."""
    if not find(connection, job.id).is_listed:
        list_(connection, job)
    drain(world)
    for _ in range(3):  # to cleaning up, cleaned up, done
        job = list_(connection, find(connection, job.id))
    return job


def new_revision(connection: Connection) -> Document:
    """Activate the next revision, and create the job that loads it, in one commit, as apply does."""
    former = the_document(connection)
    latest = dataclasses.replace(former, revision=former.revision + 1)
    with connection.transaction():
        registry.put_document(connection, latest)
        assert queue.create(connection, latest, JobKind.INITIAL_LOAD) is not None
    return latest


# One job for several reasons

COVERED_BY = {
    JobKind.BACKFILL: {JobKind.BACKFILL, JobKind.REFRESH, JobKind.INITIAL_LOAD},
    JobKind.REFRESH: {JobKind.REFRESH, JobKind.INITIAL_LOAD},
    JobKind.INITIAL_LOAD: {JobKind.INITIAL_LOAD},
}


@pytest.mark.parametrize("wanted", COVERED_BY)
def test_a_job_joins_a_new_one_that_does_as_much(connection: Connection, wanted: JobKind) -> None:
    """A load does all that a refresh does, and that all that a backfill does, which may be cancelled."""
    for kind in COVERED_BY:
        earlier = create(connection, kind)
        assert (create(connection, wanted).id == earlier.id) is (kind in COVERED_BY[wanted]), kind
        connection.execute("DELETE FROM syncer.job")


@pytest.mark.parametrize("hindrance", ["state = 'writing'", "is_paused = true", "completes_load = false"])
def test_a_job_joins_none_that_may_be_too_late(connection: Connection, hindrance: str) -> None:
    """None whose listing has begun, that is paused, or since whose creation changes were missed."""
    earlier = create(connection, JobKind.REFRESH)
    connection.execute(f"UPDATE syncer.job SET {hindrance}")
    assert create(connection, JobKind.REFRESH).id != earlier.id


def test_a_load_that_truncates_table_after_table_makes_two_refreshes(world: World, connection: Connection) -> None:
    """The second waits until the first is done, so that all others can join it; a paused job delays no other."""
    earlier = list_(connection, create(connection, JobKind.REFRESH))
    second = create(connection, JobKind.REFRESH)
    assert {create(connection, JobKind.REFRESH).id for _ in range(3)} == {second.id} != {earlier.id}
    assert second.id not in {waiting.id for waiting in due(connection)}
    queue.pause(connection, earlier.id)
    assert second.id in {waiting.id for waiting in due(connection)}
    queue.resume(connection, earlier.id)
    assert finish(world, connection, earlier).state is JobState.DONE
    assert [waiting.id for waiting in due(connection)] == [second.id]


def test_a_load_cancels_what_it_makes_needless(world: World, connection: Connection) -> None:
    """The whole jobs of its revision, and every job of an older one, of which no chunk is taken any more."""
    whole = [list_(connection, create(connection, kind)) for kind in (JobKind.REFRESH, JobKind.BACKFILL)]
    partial = create_part(connection)
    load = create(connection, JobKind.INITIAL_LOAD)
    assert [job.id for job in unfinished(connection)] == [partial.id, load.id]
    assert {find(connection, job.id).error for job in whole} == {f"Job {load.id} takes its place"}
    assert not the_document(connection).is_loaded
    latest = new_revision(connection)
    assert {find(connection, job.id).state for job in (*whole, partial, load)} == {JobState.CANCELLED}
    [newest] = unfinished(connection)
    assert (newest.kind, newest.revision) == (JobKind.INITIAL_LOAD, latest.revision)
    assert drain(world) == []
    assert finish(world, connection, newest).state is JobState.DONE
    assert the_document(connection).is_loaded


@pytest.mark.parametrize(("kind", "state"), [(JobKind.REFRESH, JobState.CANCELLED), (JobKind.FAN_OUT, JobState.FAILED)])
def test_a_pending_job_that_is_given_up_leaves_the_document_incomplete(
    world: World, connection: Connection, kind: JobKind, state: JobState
) -> None:
    """Documents may be stale without it: no backfill that was there already makes up for it, the next one does.

    That a backfill is given up changes nothing.
    """
    queue.cancel(connection, list_(connection, create(connection, JobKind.BACKFILL)).id, state=state)
    backfill = list_(connection, create(connection, JobKind.BACKFILL))
    document = the_document(connection)
    assert document.is_loaded
    if kind is JobKind.REFRESH:
        job: Job | None = create(connection, kind)
    else:
        job = queue.create_fan_out(connection, document, {"public.users": [{"id": "1"}]})
    assert job is not None
    queue.cancel(connection, job.id, state=state)
    assert not the_document(connection).is_loaded
    assert finish(world, connection, backfill).state is JobState.DONE
    assert not the_document(connection).is_loaded
    assert finish(world, connection, create(connection, JobKind.BACKFILL)).state is JobState.DONE
    assert the_document(connection).is_loaded


def test_a_suspended_document_is_not_loaded_by_a_job(world: World, connection: Connection) -> None:
    """A suspension that comes while the last chunk is written wins."""
    job = list_(connection, create(connection, JobKind.BACKFILL))
    drain(world)
    list_(connection, list_(connection, find(connection, job.id)))
    revision = the_document(connection).revision
    registry.suspend(connection, "blogpost", revision, reason="a test says so", ids=(), is_stale=True)
    assert due(connection) == []
    queue.advance(connection, job.id)
    assert not the_document(connection).is_loaded


def test_a_loss_is_made_up_for_in_a_suspended_document_too(connection: Connection) -> None:
    """What it missed waits in a fan-out that does not know of lost changes: the refresh waits with it."""
    document = the_document(connection)
    registry.suspend(connection, "blogpost", document.revision, reason="a test says so", ids=(), is_stale=False)
    lost_records.make_up(connection, "a test says so")
    assert [(job.kind, job.is_suspended) for job in unfinished(connection)] == [(JobKind.REFRESH, True)]
    assert due(connection) == []
    assert schema_watch.resume(connection, document.index_name)
    assert [job.kind for job in due(connection)] == [JobKind.REFRESH]


def test_finished_jobs_are_forgotten_in_the_end(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones of each kind are kept; unfinished ones as long as they last."""
    monkeypatch.setattr(queue, "FINISHED_KEPT_MAX", 3)
    old = create(connection, JobKind.REFRESH)
    queue.pause(connection, old.id)
    partial = create_part(connection)
    queue.cancel(connection, partial.id)
    finished = [queue.cancel(connection, create(connection, JobKind.BACKFILL).id).id for _ in range(5)]
    assert [job.id for job in unfinished(connection)] == [old.id]
    assert [job.id for job in model.finished(connection)] == [*finished[:1:-1], partial.id]
    assert [job.id for job in model.finished(connection, limit=2)] == finished[:2:-1]


def test_a_great_job_is_listed_in_ranges_and_some_chunks_ahead(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step lists no range beyond what is to be ahead; all ids are there once in the end."""
    monkeypatch.setattr(listing, "CHUNKS_AHEAD", 2)
    job, document = create(connection, JobKind.BACKFILL), the_document(connection)
    assert listing.step(connection, job, document, chunk=1)
    ids = drain(world)
    assert (find(connection, job.id).is_listed, 4 <= len(ids) < 25) == (False, True)
    assert listing.step(connection, find(connection, job.id), document, chunk=1)
    assert find(connection, job.id).is_listed
    assert sorted(ids + drain(world), key=int) == EVERY_ID
    assert find(connection, job.id).documents_total == 25


def test_the_commands_show_and_change_jobs(world: World, connection: Connection) -> None:
    """What a person reads, what a script reads; what caused a job is named by tables and numbers, never by values."""
    job = list_(connection, create(connection, JobKind.REFRESH))
    cause: dict[str, list[Image]] = {"public.users": [{"id": "1"}, {"id": "4711000815"}]}
    caused = queue.create_fan_out(connection, the_document(connection), cause)
    assert caused is not None
    with world.connect() as connection_of_holder:
        ChunkWorker(connection_of_holder).turn()
    shown, listed = world.syncer("jobs", "list").stdout, world.syncer("jobs", "list", "--json").stdout
    assert all(words in shown for words in ("refresh", "10 of 25 (40%)", "public.users, 2 rows"))
    rows = {row["id"]: row for row in json.loads(listed)}
    assert (rows[job.id]["state"], rows[job.id]["documents_left"], rows[job.id]["indexed"]) == ("writing", 15, 10)
    assert rows[caused.id]["cause"] == {"public.users": 2}
    assert "4711000815" not in shown + listed
    assert f"Job {job.id} is paused" in world.syncer("jobs", "pause", str(job.id)).stdout
    assert drain(world) == []
    unasked = world.syncer("jobs", "cancel", str(job.id))
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
    assert f"Job {job.id} continues" in world.syncer("jobs", "resume", str(job.id)).stdout
    cancelled = world.syncer("jobs", "cancel", str(job.id), "--yes").stdout
    assert "10 documents were written, 15 were not" in cancelled
    states = {row["id"]: row["state"] for row in json.loads(world.syncer("jobs", "list", "--json").stdout)}
    assert (states[job.id], states[caused.id]) == ("cancelled", "new")
    refused = world.syncer("jobs", "pause", str(job.id))
    assert (refused.returncode, "is cancelled already" in refused.stderr) == (1, True)
