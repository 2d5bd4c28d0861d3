"""Whoever is late, slow or in trouble while pages of jobs are written costs time, never a document."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from elasticsearch import Elasticsearch

from syncer import job_pages, jobs, listing, pipeline, refresher as lane, store
from syncer.errors import IndexingError, UnavailableError
from syncer.holdings import Holdings, View
from syncer.index import BulkOutcome, Index
from syncer.job import Job, JobKind, JobState, find, unfinished
from syncer.model import Composition, Target
from syncer.postgres import Connection
from syncer.refresher import Refresher
from syncer.store import Document
from tests.faults.rules import LATE_READ_AGAIN, POSTPONED, SHORT_WAITS
from tests.faults.test_version_rule import HeldIndex
from tests.harness import DEADLINE_SECONDS, World, running, wait_until
from tests.proof import Rule, faces

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
    return store.served(connection)[name]


def create(connection: Connection, kind: JobKind, name: str = "blogpost") -> Job:
    """A job of all documents."""
    made = jobs.create(connection, the_document(connection, name), kind)
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


def halt_and_mend(world: World) -> None:
    """The document is deleted while its definition is halted: that change names it to nobody."""
    with world.connect() as connection:
        store.halt(connection, "blogpost", the_document(connection).generation, "a test says so")
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


# One who fails after a TRUNCATE fails under the generation that is in force, and halts it.
@faces(
    "a writer stalls while a TRUNCATE, a narrower definition or a mended halt removes the document",
    promises=(2, 3),
    without=LATE_READ_AGAIN,
)
@pytest.mark.parametrize(
    ("remove", "made"),
    [
        (truncate, HeldIndex),
        (narrow, HeldIndex),
        (narrow, CutShort),
        (halt_and_mend, HeldIndex),
        (halt_and_mend, CutShort),
    ],
)
def test_a_writer_who_is_late_does_not_bring_back_what_no_change_names(
    world: World, remove: Callable[[World], None], made: type[HeldIndex]
) -> None:
    """What it read is gone by a job that had nothing to delete yet; it writes after the sweep, and takes it back."""
    world.sql(POSTS.format(3))
    with world.elasticsearch() as client, world.index() as index:
        with late_writer(world, made(client)):
            remove(world)
            world.refresh(index)
        assert world.differences() == []


@faces("a writer stalls until just before the sweep", promises=(2, 3), without=LATE_READ_AGAIN)
@pytest.mark.parametrize("remove", [truncate, narrow])
def test_a_writer_who_writes_between_the_listing_and_the_sweep_does_not_either(
    world: World, connection: Connection, remove: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that came after the sequence numbers were read is not swept, but its writer sees that they were read."""
    world.sql(POSTS.format(3))
    with world.elasticsearch() as client, world.index() as index:
        held = HeldIndex(client)
        sweep = listing.sweep
        with late_writer(world, held) as writing:

            def release_first(*arguments: Any, **options: Any) -> bool:
                held.release.set()
                writing.join(DEADLINE_SECONDS)
                return sweep(*arguments, **options)

            monkeypatch.setattr(listing, "sweep", release_first)
            remove(world)
            world.refresh(index)
        assert world.differences() == []
    assert unfinished(connection) == []


@faces(
    "a TRUNCATE joins a job just when that is about to be listed",
    promises=(1, 3),
    without=Rule(
        "what was there before is asked for once the listing has begun",
        module="syncer.listing",
        text="if connection.execute(_BEGIN_WHOLE if",
        instead="asked = sequence_numbers and sequence_numbers()\n"
        "        sequence_numbers = lambda: asked\n"
        "        if connection.execute(_BEGIN_WHOLE if",
    ),
)
def test_a_job_that_is_taken_for_another_one_reads_the_sequence_numbers_after_that(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TRUNCATE finds a job that is still new, whose lane stalls: what was written until then is swept."""
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


@faces(
    "a small job is made while a great one is written",
    promises=(4,),
    without=Rule(
        "a lane looks for jobs to be listed while it writes",
        module="syncer.refresher",
        text="return bool(self._due())",
        instead="return False",
    ),
)
def test_a_small_job_does_not_wait_until_a_great_one_is_through(world: World, connection: Connection) -> None:
    """One lane: a job that is made while another one of many pages is written is listed, written, swept, ended."""
    two_documents(world)
    world.sql(POSTS.format(30_000))
    with world.elasticsearch() as client:
        index = Index(client, bulk_bytes_max=8_000_000)
        great = create(connection, JobKind.BACKFILL)
        with running(Refresher(connect=world.connect, index=index, batch_documents_max=20, in_flight_max=1)):
            wait_until(lambda: find(connection, great.id).documents_done > 0, what="the great one is at work")
            small = create(connection, JobKind.REFRESH, "user")
            wait_until(lambda: find(connection, small.id).state is JobState.DONE, what="the small one is done")
            assert find(connection, great.id).state is JobState.LISTED


@faces("a node is away when a job is to be listed", promises=(1, 4), without=POSTPONED)
def test_an_index_without_its_primary_keeps_its_job_waiting_and_no_other(world: World, connection: Connection) -> None:
    """A node is away when a job is to be listed: nothing halts, others go on, and so does this one afterwards."""
    two_documents(world)
    world.sql(POSTS.format(10))
    name = world.index_of()
    require = "index.routing.allocation.require._name"
    with world.index() as index, world.elasticsearch() as client:
        waiting = create(connection, JobKind.BACKFILL)
        other = create(connection, JobKind.BACKFILL, "user")
        (made,) = client.indices.get(index=name, expand_wildcards="all").body.values()
        client.indices.delete(
            index=name
        )  # a shard that was there before would be put where it was, whatever is required
        nowhere = {"index.number_of_replicas": 0, require: "nobody"}
        client.indices.create(
            index=name,
            settings=nowhere,
            mappings=made["mappings"],
            aliases=made["aliases"],
            wait_for_active_shards=0,
        )
        with running(Refresher(connect=world.connect, index=index)):
            wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the other one is done")
            assert find(connection, waiting.id).state is JobState.LISTING
            assert not find(connection, waiting.id).is_halted
            client.indices.put_settings(index=name, settings={require: None})
            wait_until(lambda: find(connection, waiting.id).state is JobState.DONE, what="the job is done")
    assert world.differences() == []


@faces("an index cannot be asked for a while", promises=(4,), without=POSTPONED)
def test_a_job_in_trouble_keeps_no_other_waiting(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the older one's index cannot be asked: the younger one is done, and then the older one too."""
    two_documents(world)
    world.sql(POSTS.format(10))
    name, asked, is_well = world.index_of(), Holdings.sequence_numbers, threading.Event()

    def ask(self: Holdings, target: Target) -> dict[int, int]:
        if target.index_name == name and not is_well.is_set():
            raise UnavailableError("a shard is away")
        return asked(self, target)

    monkeypatch.setattr(Holdings, "sequence_numbers", ask)
    waiting = create(connection, JobKind.BACKFILL)
    other = create(connection, JobKind.BACKFILL, "user")
    with world.index() as index, running(Refresher(connect=world.connect, index=index)):
        wait_until(lambda: find(connection, other.id).state is JobState.DONE, what="the other one is done")
        assert find(connection, waiting.id).state is JobState.LISTING
        is_well.set()
        wait_until(lambda: find(connection, waiting.id).state is JobState.DONE, what="the job is done")


@faces(
    "Elasticsearch forgets a view in the middle of a sweep",
    promises=(3, 4),
    without=Rule(
        "a view that is lost is opened again",
        module="syncer.holdings",
        text="if _LOST not in str(error.body):",
        instead="if True:",
    ),
)
def test_a_view_that_is_lost_while_strays_are_looked_for_is_opened_again(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a node forgets when it restarts halts nothing: the sweep begins anew."""
    with world.elasticsearch() as client, world.index() as index:
        client.index(index=world.alias, id="7", document={"title": "a stray"})
        walk = View.walk
        lost: list[str] = []

        def lose_first(self: View, *, page: int, until: int | None = None) -> Iterator[object]:
            if not lost:
                lost.append(self._point)
                client.close_point_in_time(id=self._point)
            return walk(self, page=page, until=until)

        monkeypatch.setattr(View, "walk", lose_first)
        job = create(connection, JobKind.BACKFILL)
        with running(Refresher(connect=world.connect, index=index)):
            wait_until(lambda: find(connection, job.id).state is JobState.DONE, what="the job is done")
    assert lost
    assert world.differences() == []


@faces(
    "an index is put out of force while a lane takes its job further",
    promises=(4,),
    without=Rule(
        "a job that is gone is passed over",
        module="syncer.refresher",
        text="except JobError:  # it went away",
        instead="except ZeroDivisionError:  # it went away",
    ),
)
def test_a_job_that_goes_away_before_its_step_ends_no_lane(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index is put out of force with its jobs, just when a lane has found that one of them is through."""
    advance = jobs.advance

    def drop_first(asking: Connection, job_id: int) -> Job:
        if find(asking, job_id).state is JobState.SWEPT:
            store.drop_document(connection, the_document(connection))
        return advance(asking, job_id)

    monkeypatch.setattr(jobs, "advance", drop_first)
    create(connection, JobKind.BACKFILL)
    with world.index() as index, running(Refresher(connect=world.connect, index=index)):
        wait_until(lambda: not store.documents(connection), what="the document is put out of force")
        wait_until(lambda: not unfinished(connection), what="its job is gone")


# Waiting


@faces("a table is altered while a job is to be listed", promises=(4,), without=SHORT_WAITS)
def test_a_lane_that_waits_for_a_table_stops_when_it_is_told_to(world: World, connection: Connection) -> None:
    """Somebody alters a table for as long as he likes, while a job is to be listed."""
    world.sql(POSTS.format(3))
    create(connection, JobKind.BACKFILL)
    with psycopg.connect(world.dsn) as altering, world.index() as index:
        altering.execute("LOCK TABLE posts IN ACCESS EXCLUSIVE MODE")
        blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'public.posts'::regclass"
        with running(Refresher(connect=world.connect, index=index)) as stop:
            wait_until(lambda: connection.execute(blocked).fetchone() == (1,), what="the lane waits")
            began = time.monotonic()
            stop.request()
        assert time.monotonic() - began < 30
        altering.rollback()
        world.refresh(index)
    assert world.differences() == []


SLOWLY = """
CREATE FUNCTION slowly(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
'BEGIN PERFORM pg_sleep(1); RETURN $1; END'
"""


@faces(
    "Postgres takes longer for a page than a lane may stall",
    promises=(4,),
    without=Rule(
        "a lane says that it is still at its pages",
        module="syncer.refresher",
        text="job_pages.keep(self._connected(), [hand.page for hand in self._hands])",
        instead="[]",
    ),
)
def test_a_page_stays_in_hand_however_long_postgres_takes_for_it(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside another lane that looks for stalled ones: else each would take it from the other, and none count it."""
    world.sql(POSTS.format(6))
    file = world.document_folder / "select.sql"
    file.write_text(file.read_text().replace("p.title,", "slowly(p.title) AS title,"))
    world.sql(SLOWLY)
    world.apply()
    monkeypatch.setattr(lane, "_KEEP_SECONDS", 0.2)
    monkeypatch.setattr(pipeline, "KEEP_SECONDS", 0.2)
    job = create(connection, JobKind.BACKFILL)
    reclaimed = 0
    with world.index() as index, running(Refresher(connect=world.connect, index=index)):

        def is_done() -> bool:
            nonlocal reclaimed
            reclaimed += job_pages.reclaim(connection, stalled_seconds=5)
            return find(connection, job.id).state is JobState.DONE

        wait_until(is_done, what="the job is done")
    assert reclaimed == 0
    assert find(connection, job.id).indexed == 6


@faces(
    "a lane is stopped in the middle of a page",
    promises=(4,),
    without=Rule(
        "who stops gives back what is in hand",
        module="syncer.refresher",
        text="job_pages.release(self._connection, [hand.page for hand in self._hands])",
        instead="pass",
    ),
)
def test_a_page_is_given_back_at_once_when_a_lane_is_told_to_stop(world: World, connection: Connection) -> None:
    """Its slices that fly are finished, no other is begun; the page is there for the next one, and counted once."""
    world.sql(POSTS.format(400))
    job = create(connection, JobKind.BACKFILL)
    with world.elasticsearch() as client:
        held = HeldIndex(client)
        with running(Refresher(connect=world.connect, index=held, batch_bytes_max=10_000)) as stop:
            assert held.is_held.wait(DEADLINE_SECONDS)
            stop.request()
            held.release.set()
        assert world.sql("SELECT count(*), count(taken_by) FROM syncer.job_page") == [(1, 0)]
        assert 0 < len(world.held()) < 400
    with world.index() as index:
        world.refresh(index)
    after = find(connection, job.id)
    assert (after.documents_done, after.indexed) == (400, 400)
    assert world.differences() == []


@faces("a job's condition ends the session, each time", promises=(4,), without=POSTPONED)
def test_a_job_whose_step_breaks_the_connection_keeps_no_other_waiting(world: World) -> None:
    """What the older one asks for ends the session each time; the other one goes first then."""
    world.sql(POSTS.format(3))
    suicide = "(SELECT count(*) FROM pg_terminate_backend(pg_backend_pid())) = 1"
    with world.connect() as connection, world.index() as index:
        first = jobs.create(connection, the_document(connection), JobKind.PART, where=suicide)
        second = create(connection, JobKind.BACKFILL)
        assert first is not None
        with world.refresher(index) as refresher, running(refresher):
            wait_until(lambda: find(connection, second.id).state is JobState.DONE, what="the other one is done")
        assert not find(connection, first.id).state.is_finished


@faces(
    "a step of a job fails for a reason that nobody foresaw",
    promises=(4,),
    without=Rule(
        "an error that nobody foresaw fails its job only",
        module="syncer.refresher",
        text="elif explain(error) is None:",
        instead="elif False:",
    ),
)
def test_an_error_that_nobody_foresaw_in_a_step_fails_the_job_and_no_lane(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what happened; the next job is done."""

    def fail(*_: Any, **__: Any) -> bool:
        raise OverflowError("nobody foresaw it")

    with world.connect() as connection, world.index() as index, world.refresher(index) as refresher:
        first = create(connection, JobKind.BACKFILL)
        with monkeypatch.context() as patch:
            patch.setattr(listing, "list_pages", fail)
            refresher.run_once()
        failed = find(connection, first.id)
        assert failed.state is JobState.FAILED
        assert "nobody foresaw it" in (failed.error or "")
        second = create(connection, JobKind.BACKFILL)
        with running(refresher):
            wait_until(lambda: find(connection, second.id).state is JobState.DONE, what="the next one is done")
