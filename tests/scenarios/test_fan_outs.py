"""A change that touches many documents becomes a job: found out quickly, listed once, and done with everything else."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from syncer import affected, job_pages, jobs, listing, rebuild, service, store, unwell
from syncer.affected import Affected, AffectedReader, FanOut
from syncer.errors import UnwellError
from syncer.index import Index
from syncer.job import Job, JobKind, JobState, due, find, recent, unfinished
from syncer.model import Change, Operation, Role, Target
from syncer.postgres import Connection
from syncer.refresher import Refresher
from syncer.settings import Settings
from syncer.store import Document
from syncer.worker import Worker
from tests.faults.rules import FOLLOWED, OWED_UNFILLED
from tests.harness import World, wait_until
from tests.lane import Lane
from tests.proof import Rule, faces
from tests.scenarios.test_jobs import altering, drain, new_generation

# User 1 has posts 1 to 120, user 2 has 201 to 320, and users 3 to 42 have three each.
BLOG = """
INSERT INTO users (id, name, email) SELECT g, 'name ' || g, '' FROM generate_series(1, 42) AS g;
INSERT INTO posts (id, user_id, title, body)
SELECT g, CASE WHEN g <= 120 THEN 1 WHEN g BETWEEN 201 AND 320 THEN 2 ELSE 3 + g % 40 END, 'title', ''
FROM generate_series(1, 440) AS g WHERE g NOT BETWEEN 121 AND 200
"""
MANY = 50
CAUSE = {"public.users": [{"id": 1}]}
OTHER = {"public.users": [{"id": 2}]}
ANOTHER = Target(index_name="another", write_alias="another-write")


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """To a blog in which two users have many posts, and no job yet."""
    world.sql(BLOG)
    world.sql("DELETE FROM syncer.job")
    with world.connect() as made:
        yield made


def the_document(connection: Connection, name: str = "blogpost") -> Document:
    """The definition whose index serves."""
    return store.served(connection)[name]


def fan_out(connection: Connection, cause: dict[str, list[dict[str, Any]]] = CAUSE) -> Job:
    """What a worker does about a change that touches many."""
    job = jobs.create_fan_out(connection, the_document(connection), cause)
    assert job is not None
    return job


def list_(connection: Connection, job: Job) -> Job:
    """The job, listed in pages of ten."""
    assert listing.list_pages(connection, job, the_document(connection), page=10)
    return find(connection, job.id)


def posts_of(world: World, *users: int) -> set[str]:
    """The ids of what they have written."""
    return {str(row[0]) for row in world.sql("SELECT id FROM posts WHERE user_id = ANY (%s)", list(users))}


def listed(world: World, job: Job) -> list[str]:
    """The ids that the job has yet to write."""
    return [row[0] for row in world.sql("SELECT unnest(ids) FROM syncer.job_page WHERE job = %s", job.id)]


def test_a_cause_may_hold_numbers_that_no_float_holds(world: World, connection: Connection) -> None:
    """Numerics come from the topic exact, and go into the job exact: 1.0 and 1.00 may be two keys."""
    job = fan_out(connection, {"public.users": [{"id": Decimal(1)}]})
    fan_out(connection, {"public.users": [{"id": Decimal(2)}]})
    assert set(listed(world, list_(connection, job))) == posts_of(world, 1, 2)


def settings(world: World, *, many: int = MANY, page: int = 10) -> Settings:
    """Of a daemon to whom few documents are many."""
    own = world.settings
    changed = {"fan_out_documents_max": many, "batch_documents_max": page}
    return own.model_copy(update={"worker": own.worker.model_copy(update=changed)})


@contextmanager
def worker(world: World, index: Index, *, many: int = MANY) -> Iterator[Worker]:
    """A worker that turns only when the test says so."""
    made = service.worker(settings(world, many=many, page=1000), index, name="worker-test")
    try:
        yield made
    finally:
        made.close()


@contextmanager
def refresher(world: World, index: Index) -> Iterator[Refresher]:
    """A lane of tiny pages that turns only when the test says so."""
    made = service.refresher(settings(world), index, name="refresher-test")
    try:
        yield made
    finally:
        made.close()


def follow(world: World, index: Index, *, many: int = MANY) -> None:
    """Turn a relay and a worker until nothing is on its way to them; what is left is left to jobs."""
    with world.relay() as relay, worker(world, index, many=many) as made:
        published = relay.run_once().published
        handled = 0

        def is_handled() -> bool:
            nonlocal handled
            handled += made.run_once().changes
            return handled >= published

        wait_until(is_handled, what="the worker has handled all that was published")
        wait_until(lambda: made.run_once().changes == 0, what="it has nothing more to do")


def renamed(*users: int) -> list[Change]:
    """What the outbox has of users who were renamed."""
    return [
        Change(id=place, changed_at=0, relation="public.users", operation=Operation.UPDATE, images=({"id": one},) * 2)
        for place, one in enumerate(users)
    ]


def read(connection: Connection, changes: Sequence[Change], *, many: int = MANY) -> tuple[set[str], list[FanOut]]:
    """The ids that are named, and the fan-outs."""
    found = list(
        AffectedReader(connection, page=10, fan_out_documents_max=many).read(the_document(connection), changes)
    )
    pages = [one.ids or () for one in found if isinstance(one, Affected)]
    assert all(0 < len(page) <= 10 for page in pages)
    ids = [id_ for page in pages for id_ in page]
    assert len(set(ids)) == len(ids)
    return set(ids), [one for one in found if isinstance(one, FanOut)]


# Finding out


def test_few_do_not_wait_for_many(world: World, connection: Connection) -> None:
    """In one batch are renamed: two with many posts, and all who have few. Those are named, and those two only left."""
    ids, [many] = read(connection, renamed(*range(42, 0, -1)), many=100)
    assert ids == posts_of(world, *range(3, 43))
    assert sorted(image["id"] for image in many.cause["public.users"]) == [1, 2]


def test_many_changes_of_one_user_are_one_fan_out(connection: Connection) -> None:
    """A cause is there once, however often it came."""
    ids, [many] = read(connection, renamed(*[1] * 500))
    assert (ids, many.cause) == (set(), CAUSE)


def test_ids_that_the_changes_name_are_never_many(connection: Connection) -> None:
    """A thousand posts that change at once are a thousand documents, and no fan-out."""
    images = [{"id": one, "user_id": 1} for one in range(1000)]
    changes = [
        Change(id=1, changed_at=0, relation="public.posts", operation=Operation.UPDATE, images=(one,)) for one in images
    ]
    assert read(connection, changes) == ({str(one) for one in range(1000)}, [])


def test_what_is_asked_for_one_batch_is_bounded(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many lead to many: so many questions, none with more rows than the threshold, and so many ids in all."""
    answers: list[int] = []
    few = AffectedReader._few

    def counted(*arguments: Any) -> list[str] | None:
        found = few(*arguments)
        answers.append(0 if found is None else len(found))
        return found

    monkeypatch.setattr(AffectedReader, "_few", counted)
    world.sql("UPDATE posts SET user_id = 1 + id % 40")
    ids, [many] = read(connection, renamed(*range(1, 41)), many=3)
    assert len(answers) <= affected.QUESTIONS_MAX
    assert (ids, len(many.cause["public.users"])) == (set(), 40)
    answers.clear()
    ids, [many] = read(connection, renamed(*range(1, 41)), many=20)
    assert len(ids) == sum(answers) <= 80
    assert ids | posts_of(world, *(image["id"] for image in many.cause["public.users"])) == posts_of(
        world, *range(1, 41)
    )


def test_what_is_not_found_out_soon_is_left_to_a_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that takes too long is ended by Postgres, and nothing more is asked for that batch."""
    monkeypatch.setattr(affected, "SECONDS_MAX", 0.2)
    (world.document_folder / "affects").mkdir()
    query = "SELECT p.id AS _id FROM posts AS p JOIN %(rows)s AS u ON u.id = p.user_id, generate_series(1, 99999999)"
    (world.document_folder / "affects" / "users.sql").write_text(query)
    world.sql(BLOG)
    world.apply()
    with world.connect() as connection:
        assert read(connection, renamed(3, 4)) == (set(), [FanOut(cause={"public.users": [{"id": 3}, {"id": 4}]})])


# The job


def test_a_fan_out_that_is_new_takes_up_the_next(world: World, connection: Connection) -> None:
    """Each cause once, of whatever table; what it writes in the end is what all of them lead to."""
    job = fan_out(connection)
    more = [{"public.users": [{"id": 1}, {"id": 2}]}, {"public.posts": [{"id": 7, "user_id": 3}]}]
    assert {fan_out(connection, one).id for one in more} == {job.id}
    assert find(connection, job.id).cause == {"public.posts": 1, "public.users": 2}
    list_(connection, job)
    assert sorted(listed(world, job)) == sorted(posts_of(world, 1, 2))


def test_while_an_index_is_unwell_few_jobs_take_up_everything(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One catch-up has each id once; a fan-out that is full is followed by one refresh, which takes up all the rest."""
    monkeypatch.setattr(jobs, "CAUSE_IMAGES_MAX", 2)
    error = UnwellError("It takes nothing", index_name=world.index_of())
    unwell.mark(connection, error)
    unwell.mark(connection, error)
    for ids in (["1", "2"], ["2", "3"], ["x" * 10_000, "1"]):
        unwell.leave(connection, the_document(connection), ids)
    assert len(unfinished(connection)) == 1
    for number in range(5):
        fan_out(connection, {"public.users": [{"id": number}]})
        unwell.leave(connection, the_document(connection), [str(number)])
    assert [one.kind for one in unfinished(connection)] == [JobKind.CATCH_UP, JobKind.FAN_OUT, JobKind.REFRESH]
    assert due(connection) == []
    assert store.mark_well(connection, world.index_of()) is not None
    catch_up = due(connection)[0]
    list_(connection, catch_up)
    assert sorted(listed(world, catch_up)) == ["0", "1", "2", "3", "4", "x" * 10_000]
    assert world.sql("SELECT id FROM syncer.postponed") == []


@faces(
    "a rename joins a fan-out just when that is about to be listed",
    promises=(1,),
    without=Rule(
        "the cause of a job is read once its listing has begun",
        module="syncer.listing",
        text="job = find(connection, job.id)  #",
        instead="pass  #",
    ),
)
def test_a_cause_that_comes_just_before_the_listing_is_listed(world: World, connection: Connection) -> None:
    """The lister has read the job before causes were added, and begins after: he lists what is there then."""
    (world.document_folder / "affects").mkdir()
    (world.document_folder / "affects" / "comments.sql").write_text("SELECT c.post_id AS _id FROM %(rows)s AS c")
    world.apply()
    seen = fan_out(connection)
    fan_out(connection, OTHER)
    fan_out(connection, {"public.comments": [{"id": 5, "post_id": 4711}]})
    list_(connection, seen)
    assert set(listed(world, seen)) == {*posts_of(world, 1, 2), "4711"}


@pytest.mark.parametrize("hindrance", ["paused", "slower", "full", "listed", "older"])
def test_a_fan_out_does_not_join_every_other(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, hindrance: str
) -> None:
    """None that a person has paused or slowed down, that has enough causes, is listed, or of another generation."""
    first = fan_out(connection)
    if hindrance == "paused":
        jobs.pause(connection, first.id)
    elif hindrance == "slower":
        jobs.set_rate(connection, first.id, 5)
    elif hindrance == "full":
        monkeypatch.setattr(jobs, "CAUSE_IMAGES_MAX", 1)
    elif hindrance == "listed":
        list_(connection, first)
    else:
        new_generation(connection)
        assert find(connection, first.id).state is JobState.CANCELLED
        jobs.cancel(connection, unfinished(connection)[0].id)
    assert fan_out(connection, OTHER).id != first.id
    assert (find(connection, first.id).cause or {})["public.users"] == 1


@pytest.mark.parametrize(("kind", "covers"), [(JobKind.FILL, True), (JobKind.REFRESH, True), (JobKind.BACKFILL, False)])
def test_a_whole_job_that_is_owed_and_new_covers_a_fan_out(
    connection: Connection, kind: JobKind, *, covers: bool
) -> None:
    """What lists everything later does it too; but not what a person may cancel without harm."""
    whole = jobs.create(connection, the_document(connection), kind)
    assert whole is not None
    assert (fan_out(connection).id == whole.id) is covers


@faces(
    "a definition comes into force while a fan-out is found",
    promises=(1,),
    without=Rule(
        "no job is made for a generation that is over",
        module="syncer.jobs",
        text="if lock_document(connection, document.index_name) != document.generation:",
        instead="if lock_document(connection, document.index_name) is None:",
    ),
)
def test_a_fan_out_of_an_older_generation_is_left_to_its_fill(connection: Connection) -> None:
    """Who has read the definition before the new one came makes no job: the fill of the new one is listed later."""
    document = the_document(connection)
    new_generation(connection)
    assert jobs.create_fan_out(connection, document, CAUSE) is None
    assert [one.kind for one in unfinished(connection)] == [JobKind.FILL]


@faces("a fan-out is cancelled, or fails", promises=(1, 3), without=OWED_UNFILLED)
@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_fan_out_that_is_given_up_leaves_the_document_unfilled(connection: Connection, end: str) -> None:
    """Some of it may be stale then: it counts as not filled, until all of it has been written again."""
    job = fan_out(connection)
    assert the_document(connection).is_filled
    if end == "cancelled":
        jobs.cancel(connection, job.id)
    else:
        jobs.fail(connection, job.id, "broken")
    assert not the_document(connection).is_filled


def test_the_history_keeps_other_jobs(connection: Connection) -> None:
    """Fan-outs come often: they push no backfill of yesterday out of what is remembered."""
    backfill = jobs.create(connection, the_document(connection), JobKind.BACKFILL)
    assert backfill is not None
    jobs.cancel(connection, backfill.id)
    for _ in range(jobs.FINISHED_KEPT_MAX + 5):
        jobs.cancel(connection, fan_out(connection).id)
    seen = recent(connection)
    assert seen[-1].id == backfill.id
    assert len(seen) == jobs.FINISHED_KEPT_MAX + 1


# Listing


def test_a_fan_out_is_listed_before_what_takes_longer(connection: Connection) -> None:
    """Of what waits for a step, fan-outs come first."""
    backfill = jobs.create(connection, the_document(connection), JobKind.BACKFILL)
    assert backfill is not None
    quick = fan_out(connection)
    assert [one.id for one in due(connection)] == [quick.id, backfill.id]


@pytest.mark.parametrize("kind", [JobKind.FAN_OUT, JobKind.PART])
def test_listing_some_leaves_writers_alone(world: World, connection: Connection, kind: JobKind) -> None:
    """Only a job that looks for strays makes those in flight do their work again: the document's row stays as it is."""
    query = "SELECT xmin::text, listings FROM syncer.document"
    before = world.sql(query)
    part = jobs.create(connection, the_document(connection), JobKind.PART, where="id < 5")
    job = fan_out(connection) if kind is JobKind.FAN_OUT else part
    assert job is not None
    list_(connection, job)
    assert world.sql(query) == before


def test_the_second_rename_leaves_out_what_waits_for_the_first(world: World, connection: Connection) -> None:
    """Only what somebody has taken already is listed again; how much is left out is told."""
    first = list_(connection, fan_out(connection))
    with world.connect() as own:
        lane = Lane(own, pages_max=3)
        taken = lane.take()
        second = list_(connection, fan_out(connection))
        assert sorted(listed(world, second)) == sorted(id_ for page in taken for id_ in page.ids)
        assert (second.documents_total, second.left_out) == (30, 90)
        lane.finish(taken)
        third = list_(connection, fan_out(connection))
        assert (third.documents_total, third.left_out) == (30 - len(listed(world, second)) + 30 - 30, 120)
    assert len(listed(world, first)) == 90


@pytest.mark.parametrize("hindrance", ["paused", "slower", "not owed", "cancelled", "much larger", "another index"])
def test_what_waits_in_other_jobs_is_listed(world: World, connection: Connection, hindrance: str) -> None:
    """None is left to a job that may not write it, or not for long."""
    if hindrance == "not owed":
        made = jobs.create(connection, the_document(connection), JobKind.PART, where="user_id = 1")
    elif hindrance == "much larger":
        made = jobs.create(connection, the_document(connection), JobKind.REFRESH)
    else:
        made = fan_out(connection)
    assert made is not None
    first = list_(connection, made)
    if hindrance == "paused":
        jobs.pause(connection, first.id)
    elif hindrance == "slower":
        jobs.set_rate(connection, first.id, 5)
    elif hindrance == "cancelled":
        jobs.cancel(connection, first.id)
    elif hindrance == "another index":
        with connection.transaction():
            building = dataclasses.replace(the_document(connection), generation=2, role=Role.BUILDING, target=ANOTHER)
            store.put_document(connection, building)
            connection.execute("UPDATE syncer.job SET index_name = $1, generation = 2", (ANOTHER.index_name,))
    second = list_(connection, fan_out(connection))
    assert set(listed(world, second)) == posts_of(world, 1)
    assert second.left_out == 0


def test_a_refresh_that_is_nearly_through_takes_the_rest(world: World, connection: Connection) -> None:
    """What is left to a job is bounded by what the fan-out would have to write itself, whatever the job's kind."""
    refresh = jobs.create(connection, the_document(connection), JobKind.REFRESH)
    assert refresh is not None
    list_(connection, refresh)
    with world.connect() as own:
        lane = Lane(own, pages_max=14)
        lane.turn()
        second = list_(connection, fan_out(connection, OTHER))
    assert (second.documents_total, second.left_out) == (20, 100)
    assert set(listed(world, second)) | set(listed(world, refresh)) >= posts_of(world, 2)


def test_a_fan_out_of_nothing_is_done_at_once(world: World, connection: Connection) -> None:
    """Who was renamed may have no posts any more when they are listed."""
    job = fan_out(connection)
    world.sql("DELETE FROM posts WHERE user_id = 1")
    list_(connection, job)
    assert jobs.advance(connection, job.id).state is JobState.DONE


# All of it


def test_a_rename_of_thousands_becomes_a_job_and_one_of_few_is_done_at_once(world: World) -> None:
    """The guide's rename, of an author of 5,000 posts, in one transaction with an edit and the rename of John."""
    world.sql(BLOG)
    world.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 't', '' FROM generate_series(1001, 6000) AS g")
    with world.index() as index:
        follow(world, index, many=10_000)
        assert world.differences() == []
        world.sql("UPDATE users SET name = 'renamed' WHERE id IN (1, 3); UPDATE posts SET title = 'new' WHERE id = 205")
        follow(world, index, many=1000)
        held, expected = world.held(), world.expected()
        behind = {id_ for id_ in expected if held[id_] != expected[id_]}
        assert behind == posts_of(world, 1)
        with world.connect() as connection:
            [job] = unfinished(connection)
            assert (job.kind, job.state, job.cause) == (JobKind.FAN_OUT, JobState.NEW, {"public.users": 1})
            world.refresh(index)
            assert find(connection, job.id).documents_done == 5120
    assert world.differences() == []


def test_five_renames_cost_hardly_more_than_one(world: World) -> None:
    """While the first is being written come four more: each document is written once more than once at the most."""
    world.sql(BLOG)
    world.sql("UPDATE posts SET user_id = 1")
    with world.index() as index, world.connect() as connection, world.connect() as own:
        follow(world, index, many=1000)
        lane = Lane(own)
        with world.writer(index) as writer, refresher(world, index) as idle:
            for number in range(5):
                world.sql("UPDATE users SET name = %s WHERE id = 1", f"name {number}")
                follow(world, index)
                [new] = [one for one in unfinished(connection) if one.state is JobState.NEW]
                list_(connection, new)
                for _ in range(2):
                    pages = lane.take()
                    for page in pages:
                        writer.write(page.index_name, page.ids)
                    lane.finish(pages)
            while unfinished(connection):
                idle.run_once()
        fan_outs = [one for one in recent(connection) if one.kind is JobKind.FAN_OUT]
        assert len(fan_outs) == 5
        assert sum(one.documents_done for one in fan_outs) <= 360 + 4 * 20
    assert world.differences() == []


@faces("a rename touches two definitions, and an index that is being built", promises=(1, 4), without=FOLLOWED)
def test_a_rename_reaches_every_document_that_reads_the_table(world: World) -> None:
    """Two definitions, and an index that is being built: each has a fan-out of its own, and ends equal."""
    folder = shutil.copytree(world.document_folder, world.config / "documents" / "essay")
    (folder / "document.yaml").write_text(f"index: {world.alias_of('essay')}\n")
    world.documents = ("blogpost", "essay")
    world.apply()
    world.sql(BLOG)
    with world.index() as index, world.indices() as indices, world.connect() as connection:
        follow(world, index, many=1000)
        new = rebuild.begin(connection, indices, "blogpost", tell=lambda _: None).document
        world.refresh(index)
        world.sql("UPDATE users SET name = 'renamed' WHERE id = 1")
        follow(world, index)
        seen = unfinished(connection)
        assert [one.kind for one in seen] == [JobKind.FAN_OUT] * 3
        assert {one.index_name for one in seen} == {one.index_name for one in store.documents(connection)}
        world.refresh(index)
        assert world.differences() == []
        assert world.held_in(new.index_name) == world.expected()


# What people see


def test_commands_say_what_caused_a_job_and_no_value(world: World, connection: Connection) -> None:
    """The list names tables and numbers of rows; cancelling says what that means."""
    job = fan_out(connection, {"public.users": [{"id": 1}, {"id": 4711_000_815}]})
    shown = [world.syncer("jobs", "list").stdout, world.syncer("jobs", "show", str(job.id)).stdout]
    assert all("fan-out" in one and "public.users, 2 rows" in one for one in shown)
    said = world.syncer("jobs", "list", "--json").stdout
    assert '"public.users": 2' in said
    assert not any("4711000815" in one for one in (*shown, said))
    cancelled = world.syncer("jobs", "cancel", str(job.id)).stdout
    assert "it does not show the change that caused the job" in cancelled
    assert "counts as not filled. To fill it: syncer apply, or syncer backfill blogpost" in cancelled


def test_one_lister_waits_with_the_cause_for_a_migration(world: World, connection: Connection) -> None:
    """While a table is altered a fan-out that is being listed takes up no more: the next one is a job of its own."""

    def list_once(own: Connection, job: Job) -> None:
        with suppress(psycopg.errors.LockNotAvailable):
            listing.list_pages(own, job, the_document(own), page=10)

    first = fan_out(connection)
    with world.connect() as own:
        with altering(world):
            lister = threading.Thread(target=list_once, args=(own, first))
            lister.start()
            wait_until(lambda: find(connection, first.id).state is JobState.LISTING, what="the listing has begun")
            second = fan_out(connection, OTHER)
            assert second.id != first.id
        lister.join()
    wait_until(lambda: find(connection, first.id).state in (JobState.LISTING, JobState.LISTED), what="it goes on")
    if find(connection, first.id).state is JobState.LISTING:
        list_(connection, first)
    list_(connection, second)
    assert set(drain(world)) == posts_of(world, 1, 2)


def test_a_small_fan_out_does_not_wait_for_a_great_backfill(world: World, connection: Connection) -> None:
    """It is served first, and then the two take turns."""
    backfill = jobs.create(connection, the_document(connection), JobKind.BACKFILL)
    assert backfill is not None
    list_(connection, backfill)
    with world.connect() as own:
        lane = Lane(own)
        for _ in range(5):
            lane.turn()
        small = list_(connection, fan_out(connection))
        turns = 0
        while find(connection, small.id).documents_left:
            lane.turn()
            turns += 1
        assert turns <= 2 * 12
        assert job_pages.lanes_alive(connection) == 1


def test_verify_says_which_job_has_yet_to_write_what_differs(world: World, connection: Connection) -> None:
    """And the command that lets it go on, if it is paused."""
    world.backfill()
    world.sql("UPDATE users SET name = 'other' WHERE id = 1")
    job = list_(connection, fan_out(connection))
    jobs.pause(connection, job.id)
    done = world.syncer("verify", "--settle", "0")
    assert done.returncode == 0
    assert f"Job {job.id} (fan-out: public.users, " in done.stdout
    assert f"syncer jobs resume {job.id}" in done.stdout
    assert not json.loads(world.syncer("status", "--json").stdout)["is_well"]
