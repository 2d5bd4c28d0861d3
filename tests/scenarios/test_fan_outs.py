"""A change of many documents becomes a job; until it is done they are busy, and no new index serves without them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from unittest.mock import patch

import pytest

from syncer.apply import reindex
from syncer.base.model import Change, Image, Operation, Role, WriteReport
from syncer.base.postgres import Connection
from syncer.documents import affected, registry
from syncer.documents.affected import AffectedReader
from syncer.elasticsearch.bulk import Index
from syncer.jobs import listing, queue
from syncer.jobs.model import FAN_OUTS_MAX, Job, JobKind, JobState, due, find, unfinished
from syncer.worker import job_loop
from tests.faults.harness import begin_rebuild, following, require_done, the_document
from tests.scenarios.test_jobs import list_
from tests.support.job_worker import hold
from tests.support.routing import verified
from tests.support.world import World, wait_until

# User 1 has posts 1 to 120, user 2 has 201 to 320, and users 3 to 42 have three each.
BLOG = """
INSERT INTO users (id, name, email) SELECT g, 'name ' || g, '' FROM generate_series(1, 42) AS g;
INSERT INTO posts (id, user_id, title, body)
SELECT g, CASE WHEN g <= 120 THEN 1 WHEN g BETWEEN 201 AND 320 THEN 2 ELSE 3 + g % 40 END, 'title', ''
FROM generate_series(1, 440) AS g WHERE g NOT BETWEEN 121 AND 200
"""
MANY = 50
CAUSE: dict[str, list[Image]] = {"public.users": [{"id": "1"}]}
OTHER: dict[str, list[Image]] = {"public.users": [{"id": "2"}]}


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """To a blog in which two users have many posts, and no job yet."""
    world.sql(f"{BLOG}; DELETE FROM syncer.job")
    with world.connect() as opened:
        yield opened


def fan_out(connection: Connection, cause: dict[str, list[Image]] = CAUSE) -> Job:
    """What a worker does about a change that touches many."""
    job = queue.create_fan_out(connection, the_document(connection), cause)
    assert job is not None
    return job


def posts_of(world: World, *users: int) -> set[str]:
    """The ids of what they have written."""
    return {str(row[0]) for row in world.sql("SELECT id FROM posts WHERE user_id = ANY (%s)", list(users))}


def listed(world: World, job: Job) -> list[str]:
    """The ids that the job has yet to write."""
    return [row[0] for row in world.sql("SELECT unnest(ids) FROM syncer.job_chunk WHERE job = %s", job.id)]


def add_affects(world: World, table: str, query: str) -> None:
    """Give the blogpost a query that says which documents a change of that table touches."""
    (world.document_folder / "affects").mkdir()
    (world.document_folder / "affects" / f"{table}.sql").write_text(query)


def follow(world: World, index: Index, *, many: int = MANY) -> None:
    """Let what was changed be handled; what is left is left to jobs."""
    with following(world, index=index, many=many) as follower:
        follower.handle()


def renamed(*users: int) -> list[Change]:
    """Return what the outbox has of users who were renamed."""
    return [
        Change(id=place, changed_at=0, relation="public.users", operation=Operation.UPDATE, images=({"id": str(id_)},))
        for place, id_ in enumerate(users)
    ]


def read(
    connection: Connection, changes: Sequence[Change], *, many: int = MANY
) -> tuple[set[str], Mapping[str, Sequence[Image]]]:
    """Return the ids that are found, and the cause of the fan-out: the images that led to it, by relation."""
    affected = AffectedReader(connection, page=many).read(the_document(connection), changes)
    assert len(set(affected.ids)) == len(affected.ids)
    return set(affected.ids), affected.cause


def ids_in(cause: Mapping[str, Sequence[Image]]) -> list[int]:
    """Return the users who caused a fan-out."""
    return sorted(int(image["id"] or "") for image in cause["public.users"])


def test_few_do_not_wait_for_many(world: World, connection: Connection) -> None:
    """In one batch, two users with many posts are renamed, and all who have few: only those two become a fan-out.

    A cause is there once, however often it came.
    """
    ids, cause = read(connection, renamed(*range(42, 0, -1), *[1] * 500), many=100)
    assert ids == posts_of(world, *range(3, 43))
    assert ids_in(cause) == [1, 2]


@pytest.mark.parametrize(("many", "most"), [(3, 0), (20, 80)])
def test_what_is_found_for_one_batch_is_bounded(world: World, connection: Connection, many: int, most: int) -> None:
    """However many rows lead to many documents: so many ids in all, and the rest is left to a job."""
    world.sql("UPDATE posts SET user_id = 1 + id % 40")
    ids, remaining = read(connection, renamed(*range(1, 41)), many=many)
    assert len(ids) <= most
    assert ids | posts_of(world, *ids_in(remaining)) == posts_of(world, *range(1, 41))


def test_what_is_not_found_out_soon_is_left_to_a_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that takes too long is ended by Postgres, and nothing more is asked for that batch."""
    monkeypatch.setattr(affected, "SECONDS_MAX", 0.2)
    query = "SELECT p.id AS _id FROM posts AS p JOIN %(rows)s AS u ON u.id = p.user_id, generate_series(1, 99999999)"
    add_affects(world, "users", query)
    world.sql(BLOG)
    world.apply()
    with world.connect() as connection:
        assert read(connection, renamed(3, 4)) == (set(), {"public.users": [{"id": "3"}, {"id": "4"}]})


def test_a_change_older_than_the_definition_names_no_document(connection: Connection) -> None:
    """A change that was captured before its table's key was is no error: the load of the new revision covers it."""
    old = Change(id=1, changed_at=0, relation="public.posts", operation=Operation.UPDATE, images=({"other": "1"},))
    assert read(connection, [old]) == (set(), {})


def test_a_fan_out_that_is_new_takes_up_the_next(world: World, connection: Connection) -> None:
    """Each cause once, of whatever table; what it writes in the end is what all of them lead to.

    Numbers that are equal and differ in their scale may be keys of two documents: both are in the cause.
    """
    job = fan_out(connection)
    more: list[dict[str, list[Image]]] = [
        {"public.users": [{"id": "1"}, {"id": "2"}]},
        {"public.posts": [{"id": "7", "user_id": "3"}]},
    ]
    assert {fan_out(connection, cause).id for cause in more} == {job.id}
    assert find(connection, job.id).cause == {"public.posts": 1, "public.users": 2}
    list_(connection, job)
    assert sorted(listed(world, job)) == sorted(posts_of(world, 1, 2))
    images: list[list[Image]] = [[{"id": "1.0"}], [{"id": "1.00"}, {"id": "1.0"}]]
    [next_id] = {fan_out(connection, {"public.users": users}).id for users in images}
    assert find(connection, next_id).cause == {"public.users": 2}


def test_a_cause_that_comes_just_before_the_listing_is_listed(world: World, connection: Connection) -> None:
    """The lister has read the job before causes were added, and begins after: he lists what is there then."""
    add_affects(world, "comments", "SELECT c.post_id AS _id FROM %(rows)s AS c")
    world.apply()
    fan_out_job = fan_out(connection)
    fan_out(connection, OTHER)
    fan_out(connection, {"public.comments": [{"id": "5", "post_id": "4711"}]})
    list_(connection, fan_out_job)
    assert set(listed(world, fan_out_job)) == {*posts_of(world, 1, 2), "4711"}


@pytest.mark.parametrize("text", ["'$1::jsonb'", "'it''s $1::jsonb'", r"E'a\\ ''$1::jsonb'", 'u."$1::jsonb"'])
def test_a_literal_that_looks_like_the_changed_rows_stays_one(world: World, connection: Connection, text: str) -> None:
    """What a query compares with is the same for a few changed rows as for a job."""
    changed = '(SELECT u.id, u.name AS "$1::jsonb" FROM %(rows)s AS u)'
    query = f"SELECT p.id AS _id FROM posts AS p JOIN {changed} AS u ON u.id = p.user_id AND p.title <> {text}"
    add_affects(world, "users", query)
    world.apply()
    cause: dict[str, list[Image]] = {"public.users": [{"id": "1", "name": "name 1"}]}
    fan_out_job = fan_out(connection, cause)
    list_(connection, fan_out_job)
    assert set(listed(world, fan_out_job)) == posts_of(world, 1)


def test_fan_outs_do_not_wait_for_one_another_and_do_not_pile_up(connection: Connection) -> None:
    """Each is listed at once; while many are being written, causes of any row join the next one."""
    refresh = queue.create(connection, the_document(connection), JobKind.REFRESH)
    jobs = []
    for _ in range(FAN_OUTS_MAX):
        jobs.append(fan_out(connection))
        assert due(connection)[0].id == jobs[-1].id  # before what takes longer
        list_(connection, jobs[-1])
    assert refresh is not None
    assert len({refresh.id, *(job.id for job in jobs)}) == FAN_OUTS_MAX + 1
    waiting = fan_out(connection)
    assert {fan_out(connection, cause).id for cause in (OTHER, CAUSE)} == {waiting.id}
    assert [job.id for job in due(connection)] == [refresh.id]
    queue.pause(connection, jobs[0].id)
    assert waiting.id in {job.id for job in due(connection)}


def test_a_fan_out_is_not_begun_at_once_while_chunks_are_written(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of renames that follow each other soon, one pass over their documents serves all but the first."""
    monkeypatch.setattr(job_loop, "_LOOK_SECONDS", math.inf)
    write: Future[WriteReport] = Future()
    with world.index() as index, world.job_worker(index) as job_worker:
        first = fan_out(connection).id
        wait_until(lambda: job_worker.run_once() >= 0 and find(connection, first).is_listed, what="it is listed")
        second = fan_out(connection, OTHER)
        with patch.object(job_worker._writers, "submit", return_value=write):
            wait_until(lambda: job_worker.run_once() >= 0 and bool(job_worker._writes), what="it is being written")
        for cause in (CAUSE, OTHER):
            job_worker.run_once()
            assert fan_out(connection, cause).id == second.id
        write.set_result(WriteReport())
        wait_until(lambda: job_worker.run_once() >= 0 and not unfinished(connection), what="both are written")
        assert find(connection, second.id).indexed == len(posts_of(world, 1, 2))


def test_a_cause_joins_only_a_fan_out_that_goes_on(connection: Connection) -> None:
    """None that is paused or full, and none whose listing has begun."""
    for hindrance in ("is_paused = true", "state = 'writing'"):
        job = fan_out(connection)
        connection.execute(f"UPDATE syncer.job SET {hindrance}")
        assert fan_out(connection, OTHER).id != job.id
        connection.execute("DELETE FROM syncer.job")
    full = fan_out(connection, {"public.users": [{"id": str(number)} for number in range(queue.CAUSE_IMAGES_MAX)]})
    assert fan_out(connection).id != full.id


# Beside verify and a new index


@pytest.fixture
def database(world: World, connection: Connection) -> Connection:
    """To the same blog, all of which is written."""
    world.backfill()
    with world.index() as index:
        follow(world, index, many=1000)
    world.sql("DELETE FROM syncer.job")
    return connection


def rename(world: World, database: Connection, index_name: str) -> Job:
    """Rename the user with the posts 1 to 120; what is to be done about it in one of the indices."""
    world.sql("UPDATE users SET name = 'renamed' WHERE id = 1")
    with world.index() as index:
        follow(world, index)
    (job,) = unfinished(database, index_name)
    assert job.kind is JobKind.FAN_OUT
    return job


def summary(world: World) -> tuple[list[str], int, list[int]]:
    """What has drifted, how much is busy, and by which jobs."""
    report = verified(world)
    return [drift.id for drift in report.drifts], len(report.busy), report.jobs


def test_what_a_fan_out_has_yet_to_write_is_no_drift(world: World, database: Connection) -> None:
    """Before it is listed it holds every document; then its own, and what drifted beside them is found."""
    late = rename(world, database, the_document(database).index_name)
    with world.elasticsearch() as client:
        client.delete(index=world.alias, id="300")
    assert summary(world) == ([], 121, [late.id])
    list_(database, late)
    assert summary(world) == (["300"], 120, [late.id])


def test_what_a_refresh_has_yet_to_clean_up_is_no_drift(world: World, database: Connection) -> None:
    """After a TRUNCATE all documents are too many, until they are cleaned up."""
    world.sql("TRUNCATE posts CASCADE")
    with world.index() as index:
        follow(world, index)
        (job,) = unfinished(database)
        assert job.kind is JobKind.REFRESH
        assert summary(world) == ([], 360, [job.id])
        document = the_document(database)
        numbers = index.holdings.sequence_numbers(document.target)
        assert listing.step(database, job, document, chunk=10, sequence_numbers=lambda: numbers)
        assert queue.advance(database, job.id).state is JobState.CLEANING_UP
        assert summary(world) == ([], 360, [job.id])
        world.refresh(index)
    assert summary(world) == ([], 0, [])


def test_a_search_never_goes_back_to_an_older_name(world: World, database: Connection) -> None:
    """A new index does not serve before its own part of a rename that searches find; the command says what it awaits.

    If that job is paused, it says what to do, and goes on once it is resumed.
    """
    index_before = world.index_of()
    with world.indices() as indices, world.index() as index:
        reindex.begin(database, indices, "blogpost", report=lambda _: None)
        world.refresh(index)
    building = registry.by_role(database, "blogpost")[Role.BUILDING]
    late = rename(world, database, building.index_name)
    queue.pause(database, late.id)
    with world.index() as index, world.job_worker(index) as job_worker:
        while unfinished(database, the_document(database).index_name):
            job_worker.run_once()
    assert world.held() == world.expected()
    queue.resume(database, late.id)
    log = world.folder / "rebuild.log"
    with world.connect() as lister:
        hold(lister, late.id)
        process = begin_rebuild(world)
        wait_until(lambda: f"waits for job {late.id}" in log.read_text(), what="it waits")
        queue.pause(database, late.id)
    wait_until(lambda: f"syncer jobs resume {late.id}" in log.read_text(), what="it says how to go on")
    assert world.index_of() == index_before
    queue.resume(database, late.id)
    require_done(world, process)
    assert world.index_of() == building.index_name
    assert world.held() == world.expected()
