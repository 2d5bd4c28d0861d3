"""A job from its making to its end: which ids it lists, which job takes the place of which, and what its end says."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from structlog.testing import capture_logs

from syncer import condition, jobs, listing, refresher, store
from syncer.errors import DocumentError, JobError
from syncer.job import Job, JobKind, JobState, due, find, recent, unfinished
from syncer.postgres import Connection
from syncer.store import Document
from tests.faults.rules import OWED_UNFILLED, SHAPE_COMPARED
from tests.harness import DEADLINE_SECONDS, World, wait_until
from tests.lane import Lane, LaneProcess
from tests.proof import Rule, faces

POSTS = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com') ON CONFLICT DO NOTHING;
INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'title', 'body' FROM generate_series(1, 25) AS g
"""
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'syncer.job_page'::regclass"
EVERY_ID = [str(one) for one in range(1, 26)]


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """To a blog of 25 posts, and no job yet."""
    world.sql(POSTS)
    world.sql("DELETE FROM syncer.job")
    with world.connect() as made:
        yield made


def the_document(connection: Connection) -> Document:
    """The only one in force."""
    [document] = store.documents(connection)
    return document


def create(connection: Connection, kind: JobKind, **options: object) -> Job:
    """A job of the only document."""
    job = jobs.create(connection, the_document(connection), kind, **options)  # type: ignore[arg-type]
    assert job is not None
    return job


def list_(connection: Connection, job: Job) -> Job:
    """The job, listed in pages of ten."""
    assert listing.list_pages(connection, job, the_document(connection), page=10)
    return find(connection, job.id)


def drain(world: World) -> list[str]:
    """Write all there is to write; the ids."""
    with world.connect() as connection:
        lane = Lane(connection)
        lane.drain()
    return [id_ for page in lane.taken for id_ in page.ids]


def finish(world: World, connection: Connection, job: Job) -> Job:
    """Do all of a whole job, without strays."""
    if find(connection, job.id).state in (JobState.NEW, JobState.LISTING):
        list_(connection, job)
    drain(world)
    assert jobs.advance(connection, job.id).state is JobState.WRITTEN
    assert listing.sweep(connection, job, [], page=10)
    return jobs.advance(connection, job.id)


def new_generation(connection: Connection) -> Document:
    """What apply does: the next generation in force, and a job that fills it, in one commit."""
    before = the_document(connection)
    after = dataclasses.replace(before, generation=before.generation + 1)
    with connection.transaction():
        store.put_document(connection, after)
        assert jobs.create(connection, after, JobKind.FILL) is not None
    return after


@contextmanager
def altering(world: World) -> Iterator[None]:
    """Somebody alters the posts, and is not done."""
    with world.application() as migration:
        migration.execute("LOCK TABLE posts IN ACCESS EXCLUSIVE MODE")
        yield
        migration.rollback()


# From its making to its end


def test_a_whole_job_goes_through_all_its_states(world: World, connection: Connection) -> None:
    """Listed, written, swept, done; every id once; strays are deleted everywhere; then the document is filled."""
    jobs.mark_unfilled(connection, [the_document(connection).index_name])
    job = create(connection, JobKind.BACKFILL)
    assert (job.state, job.documents_total, job.eta_seconds) == (JobState.NEW, None, None)
    assert [one.id for one in due(connection)] == [job.id]
    assert listing.list_pages(
        connection, job, the_document(connection), page=10, sequence_numbers=lambda: {0: 41, 1: 7}
    )
    listed = find(connection, job.id)
    assert (listed.state, listed.documents_total) == (JobState.LISTED, 25)
    assert listed.sequence_numbers == {0: 41, 1: 7}
    assert due(connection) == []
    assert jobs.advance(connection, job.id).state is JobState.LISTED
    assert sorted(drain(world), key=int) == EVERY_ID
    assert [one.id for one in due(connection)] == [job.id]
    assert jobs.advance(connection, job.id).state is JobState.WRITTEN
    assert listing.sweep(connection, job, (f"stray-{one}" for one in range(15)), page=10)
    assert find(connection, job.id).documents_total == 40
    assert due(connection) == []
    with world.connect() as own:
        lane = Lane(own)
        lane.drain()
    assert [(page.everywhere, len(page.ids)) for page in lane.taken] == [(True, 10), (True, 5)]
    assert not the_document(connection).is_filled
    done = jobs.advance(connection, job.id)
    assert (done.state, done.documents_done, done.indexed) == (JobState.DONE, 40, 40)
    assert done.finished_at is not None
    assert the_document(connection).is_filled
    assert due(connection) == []


def test_a_job_of_nothing_is_done_at_once(world: World, connection: Connection) -> None:
    """A document without rows, and a part without ids, come to their end."""
    assert world.sql("DELETE FROM posts RETURNING 1")
    assert finish(world, connection, create(connection, JobKind.BACKFILL)).state is JobState.DONE
    part = listing.create_listed(connection, the_document(connection), JobKind.PART, [], page=10)
    assert part is not None
    assert jobs.advance(connection, part.id).state is JobState.DONE


def test_ids_that_are_given_are_there_all_or_none(world: World, connection: Connection) -> None:
    """A job of given ids comes to be with all of them, or, if reading them fails, not at all."""

    def failing() -> Iterator[str]:
        yield from EVERY_ID
        raise EOFError

    with pytest.raises(EOFError):
        listing.create_listed(connection, the_document(connection), JobKind.REPAIR, failing(), page=10)
    assert recent(connection) == []
    asked = [*EVERY_ID, "1", "1"]
    job = listing.create_listed(connection, the_document(connection), JobKind.REPAIR, asked, page=10)
    assert job is not None
    assert set(drain(world)) == set(EVERY_ID)
    done = jobs.advance(connection, job.id)
    assert done.state is JobState.DONE
    assert done.started_at is not None


def test_who_reads_ids_keeps_no_generation_from_coming(world: World, connection: Connection) -> None:
    """While ids are read from somewhere slow, a generation is put in force; the job is then one of that generation."""

    def slow() -> Iterator[str]:
        yield from EVERY_ID
        with world.connect() as applying:
            new_generation(applying)

    job = listing.create_listed(connection, the_document(connection), JobKind.PART, slow(), page=10)
    assert job is not None
    assert job.generation == the_document(connection).generation == 2
    assert len(drain(world)) == 25


def test_a_rate_makes_small_pages(world: World, connection: Connection) -> None:
    """A slow job is written evenly: no page has more than a second's documents."""
    job = list_(connection, create(connection, JobKind.BACKFILL, rate=3))
    [(largest,)] = world.sql("SELECT max(cardinality(ids)) FROM syncer.job_page")
    assert (job.documents_total, largest) == (25, 3)


def test_the_rate_and_what_is_left_are_told(world: World, connection: Connection) -> None:
    """While pages are written the job says how fast, and how long the rest takes; afterwards it does not."""
    job = list_(connection, create(connection, JobKind.BACKFILL))
    with world.connect() as own:
        lane = Lane(own)
        lane.turn()
        seen = find(connection, job.id)
        assert seen.documents_per_second is not None
        assert seen.eta_seconds is not None
        assert seen.documents_left == 15
        world.sql("UPDATE syncer.job SET measured_at = measured_at - interval '100 s'")
        lane.turn()
        assert 0.1 < float(world.sql("SELECT measured_rate FROM syncer.job")[0][0]) <= 0.2
    jobs.cancel(connection, job.id)
    assert find(connection, job.id).eta_seconds is None


# One job for several reasons


def test_two_truncates_cost_one_refresh(connection: Connection) -> None:
    """A refresh that nobody has begun to list stands for the next one too."""
    first = create(connection, JobKind.REFRESH)
    assert create(connection, JobKind.REFRESH).id == first.id
    assert create(connection, JobKind.BACKFILL).id == first.id
    list_(connection, first)
    assert create(connection, JobKind.REFRESH).id != first.id


def test_a_load_that_truncates_table_after_table_makes_two_refreshes(world: World, connection: Connection) -> None:
    """The second waits until the first is through, so that all the others can join it; a paused one holds up nobody."""
    first = list_(connection, create(connection, JobKind.REFRESH))
    second = create(connection, JobKind.REFRESH)
    assert second.id != first.id
    assert {create(connection, JobKind.REFRESH).id for _ in range(3)} == {second.id}
    assert second.id not in {one.id for one in due(connection)}
    jobs.pause(connection, first.id)
    assert second.id in {one.id for one in due(connection)}
    jobs.resume(connection, first.id)
    assert finish(world, connection, first).state is JobState.DONE
    assert [one.id for one in due(connection)] == [second.id]


@faces(
    "a TRUNCATE comes while a refresh is being listed",
    promises=(1, 3),
    without=Rule(
        "a job takes up others until somebody has begun to list it",
        module="syncer.jobs",
        text="if one.state is JobState.NEW",
        instead="if True",
    ),
)
def test_a_refresh_does_not_join_a_listing_that_has_begun(world: World, connection: Connection) -> None:
    """What a truncate brings back is not in a listing whose snapshot is older: another refresh is made."""
    first = create(connection, JobKind.REFRESH)
    with world.connect() as own, ThreadPoolExecutor(1) as threads:
        with altering(world):
            lister = threads.submit(list_, own, first)
            wait_until(lambda: find(connection, first.id).state is JobState.LISTING, what="the listing has begun")
            assert create(connection, JobKind.REFRESH).id != first.id
        lister.result()
    assert find(connection, first.id).state is JobState.LISTED


@pytest.mark.parametrize("hindrance", ["paused", "slower", "less"])
def test_a_refresh_does_not_join_what_may_never_be_done(connection: Connection, hindrance: str) -> None:
    """What is owed does not wait for a job that a person has paused, slowed down or may cancel without harm."""
    kind = JobKind.BACKFILL if hindrance == "less" else JobKind.REFRESH
    first = create(connection, kind, rate=1 if hindrance == "slower" else None)
    if hindrance == "paused":
        jobs.pause(connection, first.id)
    assert create(connection, JobKind.REFRESH).id != first.id


def test_a_fill_takes_the_place_of_all_other_whole_jobs(connection: Connection) -> None:
    """It does what they would, later: they are cancelled, a part is not."""
    refresh = list_(connection, create(connection, JobKind.REFRESH))
    backfill = list_(connection, create(connection, JobKind.BACKFILL))
    part = create(connection, JobKind.PART, where="id < 5")
    fill = create(connection, JobKind.FILL)
    assert [one.id for one in unfinished(connection)] == [part.id, fill.id]
    assert find(connection, refresh.id).state is JobState.CANCELLED
    assert find(connection, backfill.id).error == f"Job {fill.id} takes its place"
    assert create(connection, JobKind.REFRESH).id == fill.id
    assert not the_document(connection).is_filled


def test_a_new_generation_cancels_all_jobs_of_the_old_one(world: World, connection: Connection) -> None:
    """Its fill writes everything anew; no page of an older generation is taken any more, not even before."""
    part = create(connection, JobKind.PART, where="id < 5")
    backfill = list_(connection, create(connection, JobKind.BACKFILL))
    new_generation(connection)
    assert {find(connection, one.id).state for one in (part, backfill)} == {JobState.CANCELLED}
    [fill] = unfinished(connection)
    assert (fill.kind, fill.generation) == (JobKind.FILL, 2)
    assert drain(world) == []
    assert finish(world, connection, fill).state is JobState.DONE
    assert the_document(connection).is_filled


def test_a_backfill_that_is_asked_for_again_goes_on(connection: Connection) -> None:
    """The same job, from where it was, no longer paused, with its rate or the one given; or it is another condition."""
    backfill = list_(connection, create(connection, JobKind.BACKFILL, rate=5, resumes=True))
    part = create(connection, JobKind.PART, where="id < 5", resumes=True)
    jobs.pause(connection, backfill.id)
    again = create(connection, JobKind.BACKFILL, resumes=True)
    assert (again.id, again.is_paused, again.rate, again.documents_total) == (backfill.id, False, 5, 25)
    assert create(connection, JobKind.BACKFILL, rate=7, resumes=True).rate == 7
    assert create(connection, JobKind.PART, where="id < 5", resumes=True).id == part.id
    assert create(connection, JobKind.PART, where="id < 6", resumes=True).id != part.id
    assert create(connection, JobKind.BACKFILL).id != backfill.id


def test_a_job_that_is_made_in_a_transaction_comes_and_goes_with_it(connection: Connection) -> None:
    """Apply puts a generation in force and makes its job in one commit, or neither."""
    with connection.transaction(force_rollback=True):
        create(connection, JobKind.FILL)
    assert recent(connection) == []
    assert the_document(connection).is_filled


@faces(
    "many workers meet a TRUNCATE at once",
    promises=(4,),
    without=Rule(
        "whoever makes a job has locked the document",
        module="syncer.jobs",
        text="WHERE index_name = $1 FOR NO KEY UPDATE",
        instead="WHERE index_name = $1",
    ),
)
def test_many_that_ask_at_once_get_one_refresh(world: World, connection: Connection) -> None:
    """Workers that meet the same truncate at the same moment make one job."""
    document, workers, rounds = the_document(connection), 6, 20
    begin = threading.Barrier(workers)

    def ask(own: Connection) -> list[int]:
        made = []
        for _ in range(rounds):
            begin.wait(DEADLINE_SECONDS)
            job = jobs.create(own, document, JobKind.REFRESH)
            assert job is not None
            made.append(job.id)
            if begin.wait(DEADLINE_SECONDS) == 0:
                jobs.cancel(own, job.id)
        return made

    with ExitStack() as stack, ThreadPoolExecutor(workers) as threads:
        connections = [stack.enter_context(world.connect()) for _ in range(workers)]
        made = [one.result() for one in [threads.submit(ask, own) for own in connections]]
    assert [len(set(each)) for each in zip(*made, strict=True)] == [1] * rounds


# What an end says of the document


@faces("a refresh is cancelled", promises=(3,), without=OWED_UNFILLED)
def test_a_refresh_that_is_cancelled_leaves_the_document_unfilled(world: World, connection: Connection) -> None:
    """Documents may be stale without it: no backfill that was there already makes up for it, the next one does."""
    backfill = list_(connection, create(connection, JobKind.BACKFILL))
    refresh = create(connection, JobKind.REFRESH)
    assert the_document(connection).is_filled
    jobs.cancel(connection, refresh.id)
    assert not the_document(connection).is_filled
    assert finish(world, connection, backfill).state is JobState.DONE
    assert not the_document(connection).is_filled
    assert finish(world, connection, create(connection, JobKind.BACKFILL)).state is JobState.DONE
    assert the_document(connection).is_filled


def test_a_backfill_that_is_cancelled_changes_nothing(connection: Connection) -> None:
    """Nobody relied on it: the document is as filled as before."""
    jobs.cancel(connection, list_(connection, create(connection, JobKind.BACKFILL)).id)
    assert the_document(connection).is_filled


@faces(
    "a document halts while the last page of its fill is written",
    promises=(3,),
    without=Rule(
        "who is halted is not filled",
        module="syncer.store",
        text="SET filled_at = now() WHERE name = $1 AND generation = $2 AND halted IS NULL",
        instead="SET filled_at = now() WHERE name = $1 AND generation = $2",
    ),
)
def test_a_halted_document_is_not_filled_by_a_job(world: World, connection: Connection) -> None:
    """A halt that comes while the last page is written wins."""
    job = list_(connection, create(connection, JobKind.BACKFILL))
    drain(world)
    jobs.advance(connection, job.id)
    assert listing.sweep(connection, job, [], page=10)
    store.halt(connection, "blogpost", 1, "a test says so")
    assert due(connection) == []
    jobs.advance(connection, job.id)
    assert not the_document(connection).is_filled


def test_what_is_finished_cannot_be_changed(connection: Connection) -> None:
    """Pausing, resuming, slowing or cancelling it says that it is finished, and unknown ids that they are unknown."""
    job = create(connection, JobKind.BACKFILL)
    jobs.cancel(connection, job.id)
    for change in (jobs.pause, jobs.resume, jobs.cancel):
        with pytest.raises(JobError, match="is cancelled already"):
            change(connection, job.id)
        with pytest.raises(JobError, match="There is no job 999"):
            change(connection, 999)
    with pytest.raises(JobError, match="is cancelled already"):
        jobs.set_rate(connection, job.id, 5)


def test_finished_jobs_are_forgotten_in_the_end(world: World, connection: Connection) -> None:
    """The last hundred are remembered, none for longer than a month; unfinished ones as long as they last."""
    old = create(connection, JobKind.REFRESH)
    jobs.pause(connection, old.id)
    for _ in range(jobs.FINISHED_KEPT_MAX + 5):
        jobs.cancel(connection, create(connection, JobKind.BACKFILL).id)
    assert len(recent(connection)) == jobs.FINISHED_KEPT_MAX + 1
    world.sql("UPDATE syncer.job SET finished_at = finished_at - interval '31 days'")
    jobs.cancel(connection, create(connection, JobKind.BACKFILL).id)
    assert len(recent(connection)) == 2
    assert [one.id for one in unfinished(connection)] == [old.id]


# Listing


@faces(
    "two lanes list a job at once",
    promises=(4,),
    without=Rule(
        "one lists at a time",
        module="syncer.listing",
        text="if not value(connection, _TRY_LOCK, which):",
        instead="if False:",
    ),
)
def test_one_lister_at_a_time(world: World, connection: Connection) -> None:
    """Of two that list the same job at once one does, and every id is there once."""
    job = create(connection, JobKind.BACKFILL)
    document = the_document(connection)
    listed: list[bool] = []

    def list_once() -> None:
        with world.connect() as own:
            listed.append(listing.list_pages(own, job, document, page=10))

    with ThreadPoolExecutor(4) as threads:
        with altering(world):
            listers = [threads.submit(list_once) for _ in range(4)]
            wait_until(lambda: len(listed) == 3, what="three have seen that they are not alone")
            assert listed == [False] * 3
        for one in listers:
            one.result()
    assert sorted(listed) == [False, False, False, True]
    assert not listing.list_pages(connection, job, document, page=10)
    assert sorted(drain(world), key=int) == EVERY_ID


def test_a_killed_lister_leaves_it_to_the_next(world: World, connection: Connection) -> None:
    """SIGKILL in the middle of a listing: no page is there, and somebody else begins again."""
    job = create(connection, JobKind.BACKFILL)
    with altering(world):
        lister = LaneProcess(world, "--listing")
        wait_until(lambda: find(connection, job.id).state is JobState.LISTING, what="the listing has begun")
        lister.kill()
    assert world.sql("SELECT count(*) FROM syncer.job_page") == [(0,)]
    assert [one.id for one in due(connection)] == [job.id]
    document = the_document(connection)
    wait_until(lambda: listing.list_pages(connection, job, document, page=10), what="Postgres lets go of the dead")
    assert sorted(drain(world), key=int) == EVERY_ID


def test_trouble_of_a_job_that_lasts_is_told_of_again(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and then each minute: it is in the last lines of the log, and not only among the first."""
    job = create(connection, JobKind.BACKFILL)
    with capture_logs() as said, altering(world), world.index() as index, world.refresher(index) as lane:

        def attempts() -> int:
            lane.run_once()
            return lane._postponed[job.id].backoff._attempts

        def told() -> int:
            return [(one["event"], one.get("job")) for one in said].count(("stage.retried", job.id))

        wait_until(lambda: attempts() >= 3, what="it was tried again")
        assert told() == 1
        monkeypatch.setattr(refresher, "TELL_SECONDS", 0)
        wait_until(lambda: attempts() >= 5, what="it was tried again")
        assert told() == 3


@faces(
    "a job is cancelled while it is listed",
    promises=(4,),
    without=Rule(
        "whoever lists finds out that the job was cancelled",
        module="syncer.listing",
        text="if not is_listed:",
        instead="if False:",
    ),
)
def test_a_job_that_is_cancelled_while_it_is_listed_has_no_pages(world: World, connection: Connection) -> None:
    """The lister finds out when it is done, and takes its pages back."""
    job = create(connection, JobKind.BACKFILL)
    document = the_document(connection)
    listed: list[bool] = []
    with world.connect() as own:

        def list_once() -> None:
            listed.append(listing.list_pages(own, job, document, page=10))

        with altering(world):
            lister = threading.Thread(target=list_once)
            lister.start()
            wait_until(lambda: find(connection, job.id).state is JobState.LISTING, what="the listing has begun")
            jobs.cancel(connection, job.id)
        lister.join()
    assert listed == [False]
    assert find(connection, job.id).state is JobState.CANCELLED
    assert world.sql("SELECT count(*) FROM syncer.job_page") == [(0,)]


@faces(
    "a job is paused while it is listed",
    promises=(4,),
    without=Rule(
        "each statement of a listing sees its own snapshot",
        module="syncer.postgres",
        text="LEVEL READ COMMITTED",
        instead="LEVEL REPEATABLE READ",
    ),
)
def test_a_job_that_is_paused_while_it_is_listed_is_listed(world: World, connection: Connection) -> None:
    """A change of the job's row in the middle of the listing is no conflict for the lister."""
    job = create(connection, JobKind.BACKFILL)
    with world.connect() as own, ThreadPoolExecutor(1) as threads:
        with world.application() as somebody:
            somebody.execute("LOCK TABLE syncer.job_page IN SHARE MODE")
            lister = threads.submit(list_, own, job)
            wait_until(lambda: world.sql(_WAITING) == [(1,)], what="the lister has read the shape, and waits")
            jobs.pause(connection, job.id)
        lister.result()
    seen = find(connection, job.id)
    assert (seen.state, seen.is_paused, seen.documents_total) == (JobState.LISTED, True, 25)


@faces("a column goes away before a job is listed", promises=(3,), without=SHAPE_COMPARED)
def test_a_table_that_has_changed_is_not_listed(world: World, connection: Connection) -> None:
    """What the definition was applied to must still be there: else the document is to halt, and the job waits."""
    job = create(connection, JobKind.BACKFILL)
    world.sql("ALTER TABLE posts RENAME COLUMN title TO headline")
    with pytest.raises(DocumentError, match=r"posts\.title is gone"):
        listing.list_pages(connection, job, the_document(connection), page=10)
    assert find(connection, job.id).state is JobState.LISTING


def test_a_sweep_that_fails_leaves_nothing_behind(world: World, connection: Connection) -> None:
    """Elasticsearch goes away in the middle: no stray is there, and the next sweeper begins again."""
    job = list_(connection, create(connection, JobKind.BACKFILL))
    drain(world)
    jobs.advance(connection, job.id)

    def failing() -> Iterator[str]:
        yield from EVERY_ID
        raise EOFError

    with pytest.raises(EOFError):
        listing.sweep(connection, job, failing(), page=10)
    assert drain(world) == []
    assert find(connection, job.id).state is JobState.WRITTEN

    def meeting() -> Iterator[str]:
        with world.connect() as other:
            assert not listing.sweep(other, job, iter(()), page=10)
        yield "stray"

    assert listing.sweep(connection, job, meeting(), page=10)
    assert not listing.sweep(connection, job, ["again"], page=10)
    assert drain(world) == ["stray"]


# Conditions


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("id <= 3", ["1", "2", "3"]),
        ("posts.id = 7 -- a comment", ["7"]),
        ("id > 24 OR id = (SELECT min(id) FROM posts)", ["1", "25"]),
        ("title = '100% ''quoted'' {braces} %s'", []),
    ],
)
def test_a_condition_selects_a_part(world: World, connection: Connection, where: str, ids: list[str]) -> None:
    """Any condition on the root's columns, however it is written."""
    job = list_(connection, create(connection, JobKind.PART, where=where))
    assert sorted(drain(world), key=int) == ids
    assert jobs.advance(connection, job.id).state is JobState.DONE


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("heading = 'x'", 'column "heading" does not exist'),
        ("id < ", "syntax error"),
        ("id", "must be type boolean"),
        ("true); DELETE FROM posts; SELECT (true", "syntax error at or near"),
        ("id = $1", "has a parameter"),
        ("count(*) > 1", "aggregate functions are not allowed"),
    ],
)
def test_a_condition_that_postgres_does_not_take_is_refused(
    world: World, connection: Connection, where: str, said: str
) -> None:
    """With Postgres's words, before there is a job, and before anything else happens."""
    with pytest.raises(JobError, match=said) as refused:
        create(connection, JobKind.PART, where=where)
    assert "the root of blogpost" in refused.value.hint
    assert recent(connection) == []
    assert world.sql("SELECT count(*) FROM posts") == [(25,)]


def test_a_condition_that_fails_on_the_data_fails_the_job(world: World, connection: Connection) -> None:
    """Not the document: the job ends with Postgres's words, and nothing of it is left."""
    job = create(connection, JobKind.PART, where="100 / (id - 20) > 0")
    assert not listing.list_pages(connection, job, the_document(connection), page=10)
    failed = find(connection, job.id)
    assert failed.state is JobState.FAILED
    assert "division by zero" in (failed.error or "")
    assert the_document(connection).halted is None
    assert drain(world) == []


def test_a_document_without_a_root_takes_no_condition(empty_world: World) -> None:
    """Where _id is no column of a table, a condition is refused with what to do instead."""
    select = empty_world.document_folder / "select.sql"
    select.write_text(select.read_text().replace("p.id AS _id", "p.id || '' AS _id"))
    empty_world.set_up()
    with empty_world.connect() as connection, pytest.raises(JobError, match="has none") as refused:
        condition.require_valid(connection, the_document(connection), "id < 5")
    assert "standard input" in refused.value.hint


# The commands


def test_the_commands_show_and_change_jobs(world: World, connection: Connection) -> None:
    """list, show, pause, resume, cancel: what a person reads, what a script reads, and what is said of mistakes."""
    assert "There are no jobs" in world.syncer("jobs", "list").stdout
    job = list_(connection, create(connection, JobKind.REFRESH, rate=1000))
    with world.connect() as own:
        Lane(own).turn()
    said = world.syncer("jobs", "list").stdout
    assert "refresh" in said
    assert "10 of 25 (40%)" in said
    assert "started (UTC)" in said
    assert "at most 1,000/s" in said
    assert "is `syncer run` running" in said
    [listed] = json.loads(world.syncer("jobs", "list", "--json").stdout)
    assert (listed["id"], listed["state"], listed["documents_left"]) == (job.id, "listed", 15)
    assert json.loads(world.syncer("jobs", "show", str(job.id), "--json").stdout)["indexed"] == 10
    assert "refresh of blogpost" in world.syncer("jobs", "show", str(job.id)).stdout

    assert f"Job {job.id} is paused" in world.syncer("jobs", "pause", str(job.id)).stdout
    assert "paused" in world.syncer("jobs", "list").stdout
    assert drain(world) == []
    assert f"Job {job.id} goes on" in world.syncer("jobs", "resume", str(job.id)).stdout
    world.sql("UPDATE syncer.document SET unwell = 'a disk is full'")
    resumed = world.syncer("jobs", "resume", str(job.id)).stdout
    assert f"Job {job.id} is resumed, and waits: the index takes no documents." in resumed
    cancelled = world.syncer("jobs", "cancel", str(job.id)).stdout
    assert "10 documents were written, 15 were left out" in cancelled
    assert "counts as not filled" in cancelled
    assert "cancelled" in world.syncer("jobs", "list").stdout

    again = world.syncer("jobs", "pause", str(job.id))
    assert (again.returncode, "is cancelled already" in again.stderr) == (1, True)
    unknown = world.syncer("jobs", "show", "999")
    assert (unknown.returncode, "There is no job 999" in unknown.stderr) == (1, True)


def test_the_keeper_of_a_locked_row_is_not_waited_for_by_readers(world: World, connection: Connection) -> None:
    """The list is shown while a job's row is locked, as it is by whoever takes a page."""
    job = create(connection, JobKind.BACKFILL)
    with psycopg.connect(world.dsn) as other:
        other.execute("SELECT FROM syncer.job FOR UPDATE")
        assert [one.id for one in recent(connection)] == [job.id]
        other.rollback()
