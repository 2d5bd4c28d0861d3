"""Jobs and rebuilds beside late writers, other jobs, full disks and failures: nothing comes back, nothing waits."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from syncer.apply import activate, reindex
from syncer.base.errors import ConfigError, WaitTimeoutError
from syncer.base.model import Role, Target
from syncer.base.postgres import AdvisoryLock, Connection
from syncer.base.settings import WorkerSettings
from syncer.jobs import listing
from syncer.jobs.model import Job, JobKind, JobState, find
from syncer.verify import compare
from syncer.verify.compare import VerifyReport, verify
from syncer.verify.wait import wait
from syncer.worker.job_loop import JobWorker
from tests.faults import harness
from tests.faults.harness import (
    add_posts,
    begin_rebuild,
    committed,
    create,
    following,
    require_done,
    require_holds,
    the_document,
    wait_done,
)
from tests.scenarios.test_fan_outs import BLOG, MANY
from tests.support.job_worker import ChunkWorker
from tests.support.routing import put_routing, put_shards
from tests.support.world import DEADLINE_SECONDS, World, planned, running, wait_until
from tests.support.writers import QUICK_FAILOVER, SECONDS, altering, at_work, fill, writing


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """For the test's own looks and steps; there is no job yet."""
    world.sql("DELETE FROM syncer.job")
    with world.connect() as opened:
        yield opened


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


@pytest.mark.parametrize("remove", [truncate, leave_out])
def test_a_writer_that_is_late_does_not_bring_back_what_no_change_names(
    world: World, remove: Callable[[World], None]
) -> None:
    """What it read is gone by a job that had nothing to delete yet; it writes after the cleanup, and takes it back."""
    add_posts(world, 3)
    with world.index() as index:

        def remove_and_clean_up() -> None:
            remove(world)
            world.refresh(index)

        with harness.spoilt(world, harness.after(remove_and_clean_up)) as overtaken, world.writer(overtaken) as late:
            late.write(world.index_of(), ["2"])
    assert world.differences() == []


# Jobs beside one another


def test_a_small_job_does_not_wait_until_a_great_one_is_through(world: World, connection: Connection) -> None:
    """One job worker takes a job from listing to its end while another job of many chunks is written."""
    harness.two_documents(world)
    add_posts(world, 15_000)
    with world.index() as index:
        great = create(connection)
        settings = WorkerSettings(batch_documents_max=5, in_flight_max=1)
        with running(JobWorker(connect=world.connect, index=index, settings=settings)):
            wait_until(lambda: find(connection, great.id).documents_done > 0, what="the great one is at work")
            small = create(connection, JobKind.REFRESH, "user")
            wait_until(lambda: find(connection, small.id).state is JobState.DONE, what="the small one is done")
            assert find(connection, great.id).state is JobState.WRITING


# A refresh compares

SPOILT: dict[str, Callable[[World], object]] = {
    "a change that is not handled": lambda world: world.sql("UPDATE posts SET title = 'later' WHERE id = 2"),
    "a document of another client's": lambda world: overwrite(world, "2", {"title": "other"}),
    "a field that is missing": lambda world: overwrite(world, "2", {**world.held()["2"], "comments": None}),
    "no document": lambda world: remove(world, "2"),
}


def overwrite(world: World, id_: str, source: dict[str, Any]) -> None:
    """Another client replaces a document."""
    with world.elasticsearch() as client:
        client.index(index=world.index_of(), id=id_, document=source)


def remove(world: World, id_: str) -> None:
    """Another client deletes a document."""
    with world.elasticsearch() as client:
        client.delete(index=world.index_of(), id=id_)


def versions(world: World, ids: Sequence[str]) -> list[int]:
    """The versions of documents."""
    with world.index() as index:
        return [copy.version for copy in index.holdings.read(Target.of_index(world.index_of()), ids)]


def refreshed(world: World, connection: Connection, **settings: int) -> Job:
    """A refresh of the posts, once it is done."""
    job = create(connection, JobKind.REFRESH)
    with (
        world.index() as index,
        running(JobWorker(connect=world.connect, index=index, settings=WorkerSettings(**settings))),
    ):
        return wait_done(connection, job)


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_refresh_writes_what_differs(world: World, connection: Connection, spoil: Callable[[World], object]) -> None:
    """What the index has just as the SELECT returns it is left as it is, with its version."""
    add_posts(world, 5)
    world.backfill()
    connection.execute("DELETE FROM syncer.job")
    equal = ["1", "3", "4", "5"]
    before = versions(world, equal)
    spoil(world)
    job = refreshed(world, connection)
    assert (job.indexed, job.skipped) == (1, 4)
    assert versions(world, equal) == before
    assert world.differences() == []


def test_a_refresh_that_finds_much_to_write_compares_no_more(world: World, connection: Connection) -> None:
    """To read documents that differ costs more than it saves."""
    add_posts(world, 500)
    world.backfill()
    connection.execute("DELETE FROM syncer.job")
    for id_ in range(1, 6):
        overwrite(world, str(id_), {"title": "other"})
    job = refreshed(world, connection, batch_documents_max=5, in_flight_max=1)
    assert job.indexed > 5
    assert world.differences() == []


def test_what_may_be_done_again_is_not_compared(world: World, connection: Connection) -> None:
    """The request of a job worker that has died may arrive after the comparison of the one that takes its chunk."""
    add_posts(world, 3)
    world.backfill()
    connection.execute("DELETE FROM syncer.job")
    job = create(connection, JobKind.REFRESH)
    assert listing.step(connection, job, the_document(connection), chunk=10)
    with world.connect() as dying:
        assert len(ChunkWorker(dying).take()) == 1
    with world.index() as index, running(JobWorker(connect=world.connect, index=index)):
        done = wait_done(connection, job)
    assert (done.indexed, done.skipped) == (3, 0)


def test_documents_with_a_routing_are_not_compared(world: World, connection: Connection) -> None:
    """An equal one does not tell that there is no copy on another shard."""
    put_shards(world, 3)
    put_routing(world, "p.user_id")
    world.apply()
    add_posts(world, 3)
    world.backfill()
    connection.execute("DELETE FROM syncer.job")
    assert refreshed(world, connection).indexed == 3


def test_a_refresh_deletes_a_copy_on_another_shard(world: World, connection: Connection) -> None:
    """The document is equal where it belongs; a search finds the other copy, too."""
    put_shards(world, 3)
    world.apply()
    add_posts(world, 3)
    world.backfill()
    connection.execute("DELETE FROM syncer.job")
    document = world.held()["2"]
    with world.elasticsearch() as client:
        for routing in ("a", "b", "c", "d", "e"):
            client.index(index=world.index_of(), id="2", routing=routing, document=document)
    assert len(world.held()) > 3
    refreshed(world, connection)
    assert world.differences() == []


# Steps that fail


def test_a_step_that_fails_ends_no_job_worker(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unforeseen error: the failed job gives the reason, and the next one is done."""

    def fail(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        raise OverflowError(arguments, options, "nobody foresaw it")

    harness.two_documents(world)
    add_posts(world, 3)
    earlier = create(connection)
    monkeypatch.setattr(listing, "step", fail)
    with world.index() as index, running(JobWorker(connect=world.connect, index=index)):
        other_document = create(connection, JobKind.BACKFILL, "user")
        wait_until(lambda: find(connection, other_document.id).state is JobState.DONE, what="the next one is done")
        wait_until(lambda: find(connection, earlier.id).state is JobState.FAILED, what="the first one has failed")
    assert "nobody foresaw it" in (find(connection, earlier.id).error or "")


# A rebuild: searches never see half an index

KEPT = 300
"""So many posts exist throughout."""
DISK_FULL = "index.blocks.read_only_allow_delete"


@pytest.fixture
def blog(world: World) -> World:
    """A blog with some posts that stay."""
    add_posts(world, KEPT)
    return world


def roles(world: World) -> dict[str, str]:
    """What each of the document's indices is for."""
    return dict(world.sql("SELECT role, index_name FROM syncer.document WHERE name = 'blogpost'"))


def search(world: World, stop: threading.Event) -> None:
    """Search through the alias all the while: what was there throughout is found once, each time."""
    query = {"match": {"title": "title"}}
    with world.elasticsearch() as client:
        while not stop.wait(0.02):
            answer = client.search(index=world.alias, query=query, size=0, track_total_hits=True)
            assert answer["hits"]["total"]["value"] == KEPT


def test_a_rebuild_of_a_suspended_document_begins_only_if_it_can_end(blog: World) -> None:
    """If its tables are at fault, nothing is created; if its index is, a new one is the way out."""
    blog.backfill()
    with blog.elasticsearch() as client:
        client.indices.put_settings(index=blog.index_of(), settings={DISK_FULL: True})
    blog.sql("TRUNCATE syncer.outbox")  # as if all were handled
    blog.sql("UPDATE syncer.document SET suspended = 'its disk is full', suspended_at = now()")
    blog.prints("index", "rebuild", "blogpost")
    events = blog.syncer("events").stdout
    assert "Applied blogpost" in events
    assert "resumed" not in events, "the index before stayed suspended until the new one was searched"
    earlier_roles = roles(blog)
    blog.sql("ALTER TABLE posts RENAME title TO heading")
    refused = blog.syncer("index", "rebuild", "blogpost")
    assert (refused.returncode, "public.posts.title" in refused.stderr) == (1, True), refused.stderr
    assert roles(blog) == earlier_roles
    with blog.elasticsearch() as client:
        assert list(client.indices.get(index=f"{blog.alias}*").body) == [earlier_roles[Role.CURRENT]]


def test_a_full_disk_amid_a_rebuild_leaves_the_old_index_live(blog: World) -> None:
    """The rebuild suspends and says so; changes go on reaching what is searched; later it is done by one command."""
    blog.daemon()
    require_holds(blog)
    index_before = blog.index_of()
    with at_work(blog, [lambda stop, *_: search(blog, stop)]):
        with altering(blog):  # nothing is written before the disk is full
            process = begin_rebuild(blog)
            wait_until(lambda: Role.BUILDING in roles(blog), what="a new index is active")
            new = roles(blog)[Role.BUILDING]
            with blog.elasticsearch() as client:
                client.indices.put_settings(index=new, settings={DISK_FULL: True})
        assert process.wait(DEADLINE_SECONDS) == 1
        output = (blog.folder / "rebuild.log").read_text()
        assert f"{new} is suspended" in output
        assert "syncer index rebuild blogpost" in output
        blog.sql("UPDATE posts SET body = 'written while the rebuild is suspended'")
        blog.wait_until_level()
        assert blog.index_of() == index_before
        require_done(blog, begin_rebuild(blog))
    require_holds(blog)
    assert roles(blog).keys() == {Role.CURRENT}
    assert blog.index_of() not in (index_before, new)
    with blog.elasticsearch() as client:
        assert not client.indices.exists(index=new)


def test_a_new_mapping_that_refuses_some_documents_does_not_serve(blog: World) -> None:
    """The command says how many, and why; with --allow-failed-documents the new index serves without them."""
    blog.edit_index(lambda body: body["mappings"]["properties"].update(title={"type": "date"}))
    blog.sql("UPDATE posts SET title = '2020-01-01'")
    blog.apply()
    index_before = blog.index_of()
    blog.sql("UPDATE posts SET title = 'no date' WHERE id IN (1, 2); DELETE FROM syncer.outbox")
    rebuilt = blog.syncer("index", "rebuild", "blogpost")
    assert rebuilt.returncode == 1
    assert "2 documents of blogpost could not be written" in rebuilt.stderr
    assert "parsing" in rebuilt.stderr
    assert blog.index_of() == index_before
    message = f"{roles(blog)[Role.BUILDING]} is being built, but no command goes on with it"
    assert message in blog.syncer("status").stdout
    with blog.connect() as connection:
        connection.execute("SELECT pg_advisory_lock_shared($1)", (AdvisoryLock.REBUILD,))
        assert message not in blog.syncer("status").stdout
    blog.prints("index", "rebuild", "blogpost", "--allow-failed-documents")
    assert blog.index_of() != index_before


def test_a_plan_that_is_out_of_date_is_not_carried_out(blog: World) -> None:
    """The index that was being built serves by now: it stays, and nothing is changed."""
    with blog.connect() as connection, blog.indices() as indices:
        reindex.begin(connection, indices, "blogpost", report=lambda _: None)
        blog.edit_file("p.title,", "upper(p.title) AS title,")
        decided = planned(connection, indices, blog.config)
        blog.sql("DELETE FROM syncer.outbox")
        require_done(blog, begin_rebuild(blog))
        roles_now = roles(blog)
        with pytest.raises(ConfigError, match="changed the active definitions"):
            activate.carry_out(connection, indices, decided)
    assert roles(blog) == roles_now


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
    """800 documents of 200 kB, which are one chunk: the command stays below 200 MB."""
    world = empty_world
    as_stored = '"body": { "type": "object", "enabled": false }'
    world.edit_file('"body": { "type": "text" }', as_stored, file="index.json")
    world.set_up()
    add_posts(world, 800)
    world.sql("UPDATE posts SET body = repeat('lorem ipsum ', 17000)")
    command = [sys.executable, "-c", PEAK]
    ended = subprocess.run(command, env=world.environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    [peak] = [int(row.split()[1]) for row in ended.stdout.splitlines() if row.startswith("peak")]
    assert peak < 200
    assert world.sql("SELECT documents_done, indexed FROM syncer.job WHERE kind = 'backfill'") == [(800, 800)]


# Beside them, `wait` ends once a transaction is indexed, and `verify` finds no drift


def test_a_wait_lasts_until_the_job_is_done(world: World) -> None:
    """That of a change which makes a fan-out, and of one that joins it."""
    world.sql(BLOG)
    world.backfill()
    with following(world, many=MANY) as follower:
        follower.drain()
        world.sql("DELETE FROM syncer.job")
        tokens = []
        for user in (1, 2):
            tokens.append(committed(world, "UPDATE users SET name = 'renamed' WHERE id = %s", user))
            follower.handle()
        for token in tokens:
            with pytest.raises(WaitTimeoutError) as late:
                wait(world.settings, token, timeout_seconds=0.01)
            assert late.value.component == "jobs"
        assert len(world.sql("SELECT id FROM syncer.job")) == 1
        world.refresh(follower.index)
        assert [wait(world.settings, token).is_complete for token in tokens] == [True, True]
    assert world.differences() == []


def test_random_writers_read_what_they_wrote(world: World) -> None:
    """After each wait a read by id, or a search, shows the writer's own last commit, while daemons die."""
    world.worker_settings = {"SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "5", "SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER}
    world.sql(
        "INSERT INTO users (id, name, email) SELECT g, '0', '' FROM generate_series(0, 3) AS g;"
        "INSERT INTO posts (id, user_id, title, body) SELECT g, g % 4, '0', '' FROM generate_series(1, 60) AS g"
    )
    post = "INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, %s, '')"
    users, words = iter(range(4)), iter(range(10**9))
    finished: list[str] = []

    def write_and_read(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        user = next(users)
        own_post, posts = 1000 + user, [str(id_) for id_ in range(1, 61) if id_ % 4 == user]
        while not stop.is_set():
            word, is_searchable = str(next(words)), dice.random() < 0.3
            connection.execute("UPDATE users SET name = %s WHERE id = %s", (word, user))
            connection.execute(post, (own_post, user, word))
            commit_and_wait(connection, "SELECT syncer.token()", searchable=is_searchable)
            hits = client.mget(index=world.alias, ids=[*posts, str(own_post)])["docs"]
            if is_searchable:
                query = {"term": {"user.id": user}}
                hits += client.search(index=world.alias, query=query, size=100)["hits"]["hits"]
                assert len(hits) == 2 * len(posts) + 2
            assert {hit["_source"]["user"]["name"] for hit in hits} == {word}
            connection.execute("DELETE FROM posts WHERE id = %s", (own_post,))
            commit_and_wait(connection, "SELECT pg_current_xact_id()::text")
            assert not client.exists(index=world.alias, id=str(own_post))
            finished.append(word)

    def commit_and_wait(connection: psycopg.Connection[Any], token: str, *, searchable: bool = False) -> None:
        [(transaction,)] = connection.execute(token).fetchall()
        connection.commit()
        seconds = DEADLINE_SECONDS
        assert wait(world.settings, transaction, timeout_seconds=seconds, searchable=searchable).is_complete

    def read_on() -> None:
        finished_before = len(finished)
        wait_until(lambda: len(finished) > finished_before + 4, what="they have read on")

    daemons = [world.daemon(), world.daemon()]
    with world.elasticsearch() as client, at_work(world, [write_and_read] * 4):
        read_on()
        for daemon in daemons:
            daemon.kill()
            world.daemon()
            read_on()


def test_verify_takes_nothing_that_is_in_flight_for_drift(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, while everything changes on both sides; a busy machine may hold a change up for long."""
    monkeypatch.setattr(compare, "PAGE", 7)
    monkeypatch.setattr(compare, "FIRST_ROWS", 7)  # so that much happens between small ranges
    fill(world)
    world.daemon()
    deadline = time.monotonic() + SECONDS
    with world.index() as index, world.connect() as connection:
        blogpost = the_document(connection)

        def verified() -> VerifyReport:
            return verify(world.connect, blogpost, index=index, settle_seconds=30)

        with writing(world):
            while time.monotonic() < deadline:
                report = verified()
                assert not report.has_drifted, report
        require_holds(world)
        assert verified().holds
