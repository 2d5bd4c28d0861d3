"""Postgres is set back, or the search server is: what was written since the last mark is written again, and no more."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from syncer.base.error_policy import Action, decide
from syncer.base.model import Composition, Target
from syncer.elasticsearch.record import STATE_INDEX, Recorded
from syncer.indexing import failover, marks
from syncer.jobs import model
from syncer.jobs.model import JobKind, JobState
from syncer.recovery.schema_watch import Watch
from syncer.sandbox import Endpoints, Sandbox
from tests.faults.harness import (
    OVERTAKEN,
    committed,
    following,
    needs_kafka,
    require_holds,
    the_document,
    wait_for_trouble,
)
from tests.support.breakpoints import Plan
from tests.support.in_process import assign, publish, refreshes
from tests.support.routing import put_routing, put_shards
from tests.support.standbys import Standbys, ask, clusters, commit_lazily, moved, restore, standbys, upgraded
from tests.support.world import BLOG_SCHEMA, USES_KAFKA, VERSIONS, World, made, wait_until

POSTS = 200
BLOG = f"""
INSERT INTO users (id, name, email) SELECT g, 'name', '' FROM generate_series(1, 20) AS g;
INSERT INTO posts (id, user_id, title, body) SELECT g, g % 10 + 1, '', '' FROM generate_series(1, {POSTS}) AS g
"""
CHANGES = """
UPDATE posts SET title = 'changed' WHERE id = 1;
UPDATE posts SET user_id = user_id + 1 WHERE id IN (21, 22, 23, 24, 25);
INSERT INTO posts (id, user_id, title, body) VALUES (1000, 1, 'new', '');
DELETE FROM posts WHERE id = 3;
UPDATE users SET email = 'changed' WHERE id = 18;
INSERT INTO users (id, name, email) VALUES (1000, 'new', '');
DELETE FROM users WHERE id = 19
"""
CHANGED = {"blogpost": 8, "user": 3}
"""How many documents that changes; those of some posts move to another shard, and no user has a post."""
LATER, CHANGED_LATER = "UPDATE posts SET title = 'later' WHERE id IN (4, 5)", {"blogpost": 2}
ASSIGN_TRANSACTION_NUMBERS = """
DO $$ BEGIN FOR number IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$
"""
OIDS = "SELECT oid, 'syncer.version'::regclass::oid FROM pg_database WHERE datname = current_database()"
LOSE_IDENTITY = "DELETE FROM syncer.cluster_identity"
"""What a crash does to the database beside taking back commits."""
IMPATIENT = Plan(constants={"syncer.indexing.failover:SILENT_SECONDS": 1})


@pytest.fixture(scope="module")
def servers(sandbox: Sandbox) -> Iterator[Standbys]:
    """A Postgres of these tests' own; nothing commits there beside them."""
    with standbys(sandbox, autovacuum="off") as servers:
        yield servers


@contextmanager
def blog_at(sandbox: Sandbox, endpoints: Endpoints, folder: Path, *, uses_kafka: bool = False) -> Iterator[World]:
    """The blog's posts, routed by their author to three shards, and its users; a mark was taken of all of them."""
    with made(World(sandbox=sandbox, endpoints=endpoints, folder=folder, uses_kafka=uses_kafka)) as world:
        world.use("blogpost", "user")
        put_shards(world, 3)
        put_routing(world, "p.user_id")
        world.set_up()
        world.sql(BLOG)
        settle(world)
        take_mark(world)
        yield world


@pytest.fixture(params=[USES_KAFKA])
def private_blog(
    request: pytest.FixtureRequest, sandbox: Sandbox, endpoints: Endpoints, servers: Standbys, tmp_path: Path
) -> Iterator[World]:
    """The blog on that Postgres."""
    endpoints_there = replace(endpoints, postgres_dsn=servers.primary.address)
    with blog_at(sandbox, endpoints_there, tmp_path, uses_kafka=request.param) as world:
        yield world


@pytest.fixture
def blog(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> Iterator[World]:
    """The blog on the Postgres of all tests."""
    with blog_at(sandbox, endpoints, tmp_path) as world:
        yield world


def show(world: World) -> None:
    """Let documents show what is committed; no mark is taken."""
    with following(world) as follower:
        follower.handle()


def settle(world: World) -> None:
    """Let a daemon's components connect and finish their work; every document equals its SELECT then."""
    with following(world) as follower, world.job_worker(follower.index) as job_worker:
        job_worker.run_once()
        follower.drain()


def take_mark(world: World) -> None:
    """Take a mark, whatever was written."""
    with world.connect() as connection, world.index() as index:
        assert marks.take(connection, index, always=True)


def recorded(world: World) -> Recorded:
    """What the search server keeps of the epoch and its last mark."""
    with world.connect() as connection, world.index() as index:
        return index.record.read(marks.last(connection).installation)


def number_of_mark(world: World) -> int:
    """The number of the last mark."""
    with world.connect() as connection:
        return marks.last(connection).number


def written_again(world: World, kind: JobKind = JobKind.RECOVERY) -> dict[str, int]:
    """How many documents of each definition were written by jobs of this kind; none of another kind was written so."""
    with world.connect() as connection:
        jobs = {job.id: job for job in (*model.unfinished(connection), *model.finished(connection))}.values()
    documents: Counter[str] = Counter()
    for job in jobs:
        if job.kind in (JobKind.RECOVERY, JobKind.REFRESH) and job.state is JobState.DONE:
            assert job.kind is kind, job
            documents[job.document] += job.documents_done
    return dict(+documents)


def sequence_numbers(world: World) -> list[dict[str, int]]:
    """How many writes each shard of each index has had."""
    with world.index() as index:
        return [index.holdings.sequence_numbers(Target.of_index(world.index_of(name))) for name in world.documents]


# Postgres is set back


def keep_dump(world: World) -> Callable[[], None]:
    """A dump, which is restored into the same server under the same name."""
    dumped = world.dump()
    return lambda: restore(world, dumped)


SETBACKS: dict[str, tuple[Callable[[Standbys, World], Callable[[], None]], bool]] = {
    "a planned switchover": (lambda servers, _: servers.keep_follower(), False),
    "the primary dies, and its standby lags": (lambda servers, _: servers.keep_standby(), False),
    "files are put back": (lambda servers, _: servers.keep_files(), False),
    "a recovery to a base backup": (lambda servers, _: servers.keep_backup(), True),
    "a dump is restored": (lambda _, world: keep_dump(world), True),
}
"""What remembers the server as it is; whether a mark is taken of what is lost."""


@pytest.mark.parametrize(("keep", "is_marked"), SETBACKS.values(), ids=SETBACKS)
def test_what_was_written_since_the_mark_is_written_again(
    private_blog: World, servers: Standbys, keep: Callable[[Standbys, World], Callable[[], None]], *, is_marked: bool
) -> None:
    """The last mark that the database still has counts: lost updates, inserts, deletes and moves are undone."""
    epoch = recorded(private_blog).epoch
    go_back = keep(servers, private_blog)
    private_blog.sql(CHANGES)
    show(private_blog)
    expected = Counter(CHANGED)
    if is_marked:
        take_mark(private_blog)
        private_blog.sql(LATER)
        show(private_blog)
        expected += Counter(CHANGED_LATER)
    go_back()
    settle(private_blog)
    assert written_again(private_blog) == expected
    assert recorded(private_blog).epoch == epoch + 1


def test_a_dump_is_restored_that_has_the_same_oids(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> None:
    """As from one new server to the next. What the former one wrote after its dump is undone, without a mark."""
    with clusters() as new, blog_at(sandbox, replace(endpoints, postgres_dsn=new().address), tmp_path) as first:
        second = moved(first, new(), first.dump())
        settle(second)
        take_mark(second)
        epoch, oids, dumped = recorded(second).epoch, second.sql(OIDS), second.dump()
        second.sql(CHANGES)
        show(second)
        third = moved(second, new(), dumped)
        assert third.sql(OIDS) == oids
        settle(third)
        assert (written_again(third), recorded(third).epoch) == (CHANGED, epoch + 1)


def test_a_restore_that_ends_no_session_is_noticed(private_blog: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction drops and restores everything beside a daemon: versions go back, and marks must not hide it."""
    epoch, dumped = recorded(private_blog).epoch, private_blog.dump("--clean", "--if-exists")
    with following(private_blog) as follower, private_blog.job_worker(follower.index) as job_worker:
        job_worker.run_once()
        for number in range(50):  # of versions, more than what comes after the restore
            private_blog.sql(f"UPDATE users SET email = '{number}' WHERE id = 20")
            follower.handle()
        private_blog.sql(CHANGES)
        follower.handle()
        private_blog.restore(f"BEGIN;\n{dumped}\nCOMMIT;")
        monkeypatch.setattr("syncer.worker.job_loop._MARK_SECONDS", 0)
        job_worker.run_once()
        private_blog.sql("UPDATE posts SET title = 'later' WHERE id = 1")
        follower.drain()
    assert written_again(private_blog) == Counter(CHANGED) + Counter(user=1)
    assert recorded(private_blog).epoch == epoch + 1


def test_no_mark_is_taken_of_a_database_that_was_restored(private_blog: World) -> None:
    """It would hide what has to be undone, if the restore is committed just before."""
    dumped = private_blog.dump("--clean", "--if-exists")
    with private_blog.connect() as connection, private_blog.index() as index:
        assert marks.take(connection, index, always=True)
        private_blog.restore(f"BEGIN;\n{dumped}\nCOMMIT;")
        assert not marks.take(connection, index, always=True)


def test_one_backend_is_killed(private_blog: World, servers: Standbys) -> None:
    """A commit that did not wait for the disk is lost, though the server has not been started again."""
    epoch, started = recorded(private_blog).epoch, "SELECT pg_postmaster_start_time()"
    with private_blog.index() as index, private_blog.writer(index) as writer:
        writer.write(private_blog.index_of(), ["2"])
        commit_lazily(private_blog, "UPDATE posts SET title = 'on no disk' WHERE id = 1")
        writer.write(private_blog.index_of(), ["1"])
    assert private_blog.held()["1"]["title"] == "on no disk"
    started_at = ask(servers.primary, started)
    victim = private_blog.application()
    os.kill(victim.info.backend_pid, signal.SIGKILL)
    victim.close()

    def has_crashed() -> bool:
        with suppress(psycopg.OperationalError):
            return private_blog.sql("SELECT count(*) FROM syncer.cluster_identity") == [(0,)]
        return False

    wait_until(has_crashed, what="all of its processes have ended, and it answers again")
    assert private_blog.expected()["1"]["title"] == ""
    settle(private_blog)
    assert ask(servers.primary, started) == started_at
    assert written_again(private_blog) == {"blogpost": 2}
    assert recorded(private_blog).epoch == epoch + 1


def test_a_clean_restart_costs_nothing(private_blog: World, servers: Standbys) -> None:
    """Nothing is written again, and the epoch is the same; a mark is taken, since files may have been copied."""
    earlier, numbers, mark = recorded(private_blog), sequence_numbers(private_blog), number_of_mark(private_blog)
    servers.primary.stop()
    servers.primary.start()
    settle(private_blog)
    assert (written_again(private_blog), sequence_numbers(private_blog)) == ({}, numbers)
    later = recorded(private_blog)
    assert (later.epoch, later.mark, number_of_mark(private_blog)) == (earlier.epoch, mark + 1, mark + 1)


def test_pg_upgrade_loses_nothing(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> None:
    """What waited is handled by the newer server; a refresh, since triggers are new, finds nothing else to write."""
    with (
        upgraded() as (old, upgrade),
        blog_at(sandbox, replace(endpoints, postgres_dsn=old.address), tmp_path) as world,
    ):
        earlier, numbers = recorded(world), sequence_numbers(world)
        world.sql(CHANGES)
        new = upgrade()
        assert ask(new, "SHOW server_version").startswith("18.")
        world.endpoints = replace(endpoints, postgres_dsn=new.address)
        settle(world)
        assert world.differences() == []
        assert written_again(world) == {}
        writes_of_users = [sum(numbers_of[1].values()) for numbers_of in (numbers, sequence_numbers(world))]
        assert writes_of_users[1] - writes_of_users[0] == CHANGED["user"]
        numbers = sequence_numbers(world)
        with closing(Watch(connect=world.connect)) as watch:
            assert watch.run_once().noted == ("public.posts", "public.users")  # of an empty table, nothing differs
        settle(world)  # of posts, which have a routing, nothing is compared
        assert (sequence_numbers(world)[1], recorded(world).epoch) == (numbers[1], earlier.epoch)


@pytest.mark.skipif(int(VERSIONS.postgres or 18) < 17, reason="has no pg_createsubscriber")
def test_a_subscriber_takes_over(sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path) -> None:
    """It has what the publisher's triggers wrote, and what its own did; its transaction numbers are behind."""
    with (
        standbys(sandbox, wal_level="logical") as servers,
        blog_at(sandbox, replace(endpoints, postgres_dsn=servers.primary.address), tmp_path) as blue,
    ):
        green_server = servers.subscribe(blue.name)
        green = replace(blue, endpoints=replace(blue.endpoints, postgres_dsn=green_server.address))
        with psycopg.connect(servers.primary.address, autocommit=True) as connection:
            connection.execute(ASSIGN_TRANSACTION_NUMBERS)
        blue.sql(CHANGES)
        settle(blue)
        blue.sql("UPDATE posts SET title = 'not yet written' WHERE id < 10; DELETE FROM posts WHERE id = 10")
        rows = "SELECT array(SELECT u FROM users u ORDER BY 1)::text, array(SELECT p FROM posts p ORDER BY 1)::text"
        wait_until(lambda: green.sql(rows) == blue.sql(rows), what="the subscriber follows")
        green.sql("ALTER SUBSCRIPTION green DISABLE")
        epoch = recorded(green).epoch
        settle(green)
        assert green.differences() == []
        green.sql("UPDATE users SET name = 'green' WHERE id = 1; DELETE FROM posts WHERE id = 11")
        show(green)
        assert (green.differences(), recorded(green).epoch) == ([], epoch + 1)
        green_server.stop("immediate")


def test_a_standby_that_answers_is_tried_again(
    private_blog: World, servers: Standbys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be promoted soon, or while it answers; what connects does not end since it has no unlogged tables."""
    standby = servers.follow()
    world_on_standby = replace(private_blog, endpoints=replace(private_blog.endpoints, postgres_dsn=standby.address))
    with world_on_standby.connect() as connection, world_on_standby.index() as index:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as refused:
            failover.enter(connection, index)
        assert decide(refused.value) is Action.RETRY
    monkeypatch.setattr(failover, "_IS_PRIMARY", "SELECT pg_promote(true, 120)")
    with world_on_standby.connect() as connection, world_on_standby.index() as index:
        assert failover.enter(connection, index).has_changed
    standby.stop("immediate")


@pytest.mark.parametrize("private_blog", [False, True], indirect=True, ids=["without Kafka", "with Kafka"])
def test_two_primaries_do_not_take_turns(private_blog: World, servers: Standbys) -> None:
    """The promoted one is followed; the daemon of the other says so, and takes over once that one's has ended."""
    world, epoch = private_blog, recorded(private_blog).epoch
    daemon = world.daemon()
    standby = servers.follow()
    ask(standby, "SELECT pg_promote(true, 120)")
    successor = replace(world, endpoints=replace(world.endpoints, postgres_dsn=standby.address))
    successor_daemon = successor.daemon(until="failover.detected")
    # With Kafka, workers of both have joined the group. Those of the former primary have nothing of their own to do.
    successor.sql("UPDATE posts SET title = 'first' WHERE id < 100")
    require_holds(successor)
    world.sql("UPDATE posts SET title = 'of the former primary' WHERE id < 10; DELETE FROM posts WHERE id = 10")
    wait_for_trouble(daemon, OVERTAKEN)
    wait_until(lambda: OVERTAKEN in world.syncer("status").stdout, what="status says so")
    successor.sql("UPDATE posts SET title = 'of the promoted one' WHERE id < 20; DELETE FROM posts WHERE id = 20")
    require_holds(successor)
    assert recorded(successor).epoch == epoch + 1
    assert daemon.events("failover.detected") == []
    assert (successor_daemon.stop(), daemon.stop()) == (0, 0)
    standby.stop("immediate")
    world.daemon(plan=IMPATIENT, until="failover.detected")
    require_holds(world)
    assert recorded(world).epoch == epoch + 2


@contextmanager
def promoted(servers: Standbys, world: World) -> Iterator[tuple[World, World]]:
    """A standby is promoted while the primary lives on: the database in use, and the other one."""
    standby = servers.follow()
    ask(standby, "SELECT pg_promote(true, 120)")
    yield replace(world, endpoints=replace(world.endpoints, postgres_dsn=standby.address)), world
    standby.stop("immediate")


@contextmanager
def copied(_: Standbys, world: World) -> Iterator[tuple[World, World]]:
    """A dump is restored on another server, as for tests, and that copy uses production's topic."""
    there = world.sandbox.postgres.address
    with psycopg.connect(there, autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{world.name}"')
        copy = replace(world, endpoints=replace(world.endpoints, postgres_dsn=there))
        copy.restore(world.dump())
        yield world, copy
        server.execute(f'DROP DATABASE "{world.name}" WITH (FORCE)')


BESIDE = {
    "the former primary, then Kafka is turned off": (promoted, True),
    "the former primary": (promoted, False),
    "a copy": (copied, False),
}
"""The other database that publishes, and whether Kafka is turned off before what follows is handled."""


@needs_kafka
@pytest.mark.parametrize("private_blog", [True], indirect=True, ids=[""])
@pytest.mark.parametrize(("beside", "is_turned_off"), BESIDE.values(), ids=BESIDE)
def test_what_another_database_publishes_does_not_count(
    private_blog: World,
    servers: Standbys,
    beside: Callable[[Standbys, World], AbstractContextManager[tuple[World, World]]],
    *,
    is_turned_off: bool,
) -> None:
    """Only records of a database's own terms count, also if the numbers of others in the same topic are greater."""
    with beside(servers, private_blog) as (world, other):
        settle(world)
        before = refreshes(world)
        with capture_logs() as logs, world.relay() as relay:
            world.sql(LATER)
            assert relay.run_once().published
            for number in range(3):  # each relay leads in a term of its own
                publish(other, f"UPDATE posts SET title = 'elsewhere {number}' WHERE id IN (4, 5)")

            def are_passed_over() -> bool:
                terms = {event["term"] for event in logs if event["event"] == "worker.records_passed_over"}
                return worker.run_once() == 0 and len(terms) == 3 and world.is_handled()

            with world.index() as index, world.worker(index) as worker:  # which saves its progress at the end
                wait_until(are_passed_over, what="what the other one has published is passed over")
            world.sql("DELETE FROM posts WHERE id IN (4, 5)")
            assert relay.run_once().published
            assert not world.is_handled()
        world.uses_kafka = not is_turned_off
        settle(world)
        assert is_turned_off or refreshes(world) == before


# Requests of an earlier epoch


def lost(world: World, id_: str, source: bytes | None) -> Composition:
    """A user's document as a commit would have it that is lost later."""
    with world.connect() as connection:
        return Composition(id_, assign(connection), source)


def users(world: World) -> Target:
    """The index of the users."""
    with world.connect() as connection:
        return the_document(connection, "user").target


WRITTEN = b'{"name": "lost"}'


def test_a_request_that_arrives_after_the_fence_is_refused(blog: World) -> None:
    """It names the write alias of an earlier epoch, which is gone: no item of it changes anything."""
    target, epoch = users(blog), recorded(blog).epoch
    requests: list[dict[str, bytes | None]] = [
        {"7": WRITTEN},
        {"7": None},
        {"7": None, "8": None},
        {"1000": WRITTEN, "7": None},
    ]
    with blog.index() as index:
        index.fence([target.index_name], epoch + 1)
        for request in requests:
            outcome = index.write(target, [lost(blog, id_, source) for id_, source in request.items()])
            assert (outcome.done, {rejection.status for rejection in outcome.rejections}) == ({}, {404}), request
    assert blog.differences() == []


def test_a_request_that_arrived_before_the_fence_is_waited_for(blog: World) -> None:
    """Its node has found the index, and writes to it after the fence; only then what is in doubt is listed."""
    target, epoch = users(blog), recorded(blog).epoch
    document = lost(blog, "1000", WRITTEN)
    meta = {"_id": document.id, "version": document.version, "version_type": "external"}
    operations: list[dict[str, Any]] = [{"index": meta}, {"name": "lost"}]
    with blog.elasticsearch() as client, blog.index() as index, ThreadPoolExecutor(1) as pool:
        client.indices.put_settings(index=target.index_name, settings={"index.number_of_replicas": 1})
        late = client.options(request_timeout=600)
        held_up: dict[str, Any] = {"wait_for_active_shards": "all", "timeout": "10m"}
        answer = pool.submit(partial(late.bulk, index=target.write_alias, operations=operations, **held_up))
        try:
            wait_until(lambda: not index.is_drained(target.index_name, epoch + 1), what="the request has arrived")
            blog.sql(LOSE_IDENTITY)
            with blog.job_worker(index) as job_worker, blog.connect() as connection:
                job_worker.run_once()
                assert recorded(blog).epoch == epoch + 1
                assert index.is_drained(target.index_name, epoch)
                [job] = [job for job in model.unfinished(connection) if job.document == "user"]
                assert job.state is JobState.NEW
        finally:
            client.indices.put_settings(index=target.index_name, settings={"index.number_of_replicas": 0})
        assert [item["index"]["status"] for item in answer.result()["items"]] == [201]
        wait_until(lambda: index.is_drained(target.index_name, epoch + 1), what="the request is done")
    assert len(blog.differences("user")) == 1
    settle(blog)
    assert written_again(blog) == {"user": 1}


# The log of deletes


def test_a_mark_that_is_older_than_the_log_of_deletes_does_not_count(blog: World) -> None:
    """What was deleted since can no longer be told: every document is written again."""
    target = users(blog)
    with blog.elasticsearch() as client, blog.index() as index:
        index.write(target, [lost(blog, "15", None)])
        script = {"source": "ctx._source.at = 0"}
        client.indices.refresh(index=STATE_INDEX)
        of_the_index = {"term": {"index": target.index_name}}
        client.update_by_query(index=STATE_INDEX, query=of_the_index, script=script, refresh=True)
        index.record.prune()
    assert [difference.split(":")[0] for difference in blog.differences()] == ["15"]
    blog.sql(LOSE_IDENTITY)
    settle(blog)
    assert written_again(blog, JobKind.REFRESH) == {"blogpost": POSTS, "user": 20}


# The search server is set back


@pytest.mark.parametrize("make_way", ["close", "delete"])
def test_an_index_that_was_restored_is_refreshed(blog: World, make_way: str) -> None:
    """The next mark notices that acknowledged writes are missing, and says so; no other document is written again."""
    name = blog.index_of("user")
    snapshot: dict[str, Any] = {"repository": blog.name, "snapshot": "older", "indices": name}
    with blog.elasticsearch() as client:
        client.snapshot.create_repository(
            name=blog.name, repository={"type": "fs", "settings": {"location": blog.name}}
        )
        client.snapshot.create(**snapshot, include_global_state=False, wait_for_completion=True)
        blog.sql(CHANGES)
        settle(blog)
        take_mark(blog)
        getattr(client.indices, make_way)(index=name)
        client.snapshot.restore(**snapshot, include_global_state=False, wait_for_completion=True)
        client.snapshot.delete_repository(name=blog.name)
    assert len(blog.differences()) == CHANGED["user"]
    with capture_logs() as logs:
        take_mark(blog)
    assert [log["index"] for log in logs if log["event"] == "index.lost_writes"] == [name]
    settle(blog)
    assert written_again(blog, JobKind.REFRESH) == {"user": 20 + 1}  # that which is only in the snapshot goes


@pytest.mark.parametrize("epochs", [0, 1], ids=["none", "an earlier epoch"])
@pytest.mark.parametrize("is_running", [False, True], ids=["when a daemon starts", "while it runs"])
def test_another_cluster_has_what_was_written_once(blog: World, *, epochs: int, is_running: bool) -> None:
    """As from a snapshot: the index, and a record or none. Another epoch is entered, and no difference stays."""
    name, epoch = blog.index_of("user"), recorded(blog).epoch
    snapshot: dict[str, Any] = {"repository": blog.name, "snapshot": "older", "indices": name}
    with blog.elasticsearch() as client:
        client.snapshot.create_repository(
            name=blog.name, repository={"type": "fs", "settings": {"location": blog.name}}
        )
        client.snapshot.create(**snapshot, include_global_state=False, wait_for_completion=True)
        for _ in range(epochs):
            blog.sql(LOSE_IDENTITY)
            settle(blog)
        blog.sql(CHANGES)
        settle(blog)
        take_mark(blog)
        daemon = blog.daemon() if is_running else None
        client.indices.delete(index=name)
        client.snapshot.restore(**snapshot, include_global_state=False, wait_for_completion=True)
        client.snapshot.delete_repository(name=blog.name)
        [(installation,)] = blog.sql("SELECT installation::text FROM syncer.installation")
        if epochs:
            record = {"epoch": epoch, "mark": 1, "entered_by": None}
            client.index(index=STATE_INDEX, id=f"epoch-{installation}", document=record)
        else:
            client.delete(index=STATE_INDEX, id=f"epoch-{installation}")
    daemon = daemon or blog.daemon()
    daemon.wait_for("failover.detected")
    require_holds(blog)
    assert recorded(blog).epoch == epoch + epochs + 1
    assert daemon.stop() == 0


def test_maintenance_of_an_index_refreshes_nothing(blog: World) -> None:
    """Its numbers and its history are the same: marks tell as before what was written since."""
    with blog.elasticsearch() as client, capture_logs() as logs:
        for name in map(blog.index_of, blog.documents):
            client.indices.forcemerge(index=name, max_num_segments=1)
            client.indices.flush(index=name, force=True)
            client.indices.close(index=name)
            client.indices.open(index=name, wait_for_active_shards="all")
        take_mark(blog)
    assert [log for log in logs if log["event"] == "index.lost_writes"] == []
    blog.sql(CHANGES)
    show(blog)
    blog.sql(LOSE_IDENTITY)
    settle(blog)
    assert written_again(blog) == CHANGED


# No privileged function

PRIVILEGED = (
    *("pg_current_wal_insert_lsn()", "pg_current_wal_flush_lsn()", "pg_current_wal_lsn()"),
    *("pg_walfile_name(pg_lsn)", "pg_control_system()", "pg_control_checkpoint()", "pg_control_recovery()"),
)


@pytest.fixture
def roles(empty_world: World) -> Iterator[tuple[str, str]]:
    """The role of daemons and commands, which owns the tables, and an application's; neither may call those."""
    world, owner, application = empty_world, f"{empty_world.name}_owner", f"{empty_world.name}_application"
    world.uses_kafka = False
    for role in (owner, application):
        world.sql(f"CREATE ROLE {role} LOGIN")
    for function in PRIVILEGED:
        world.sql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC, {owner}, {application}")
    world.sql(f"GRANT CREATE ON DATABASE {world.name} TO {owner}; GRANT ALL ON SCHEMA public TO {owner}")
    world.sql(f"SET ROLE {owner}; {BLOG_SCHEMA.read_text()}")
    yield owner, application
    world.sql(f"DROP OWNED BY {owner}, {application} CASCADE; DROP ROLE {owner}, {application}")


def test_no_privileged_function_is_called(empty_world: World, roles: tuple[str, str]) -> None:
    """By a command, by a daemon that finds a failover, or for a token; not even those that any role may call."""
    world, (owner, application) = empty_world, roles
    world.worker_settings["SYNCER_POSTGRES_DSN"] = world.dsn_of(owner)

    def run(*arguments: str) -> None:
        ended = world.syncer(*arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    run("migrate")
    run("plan")
    run("apply", "--yes")
    world.sql(f"GRANT USAGE ON SCHEMA syncer TO {application}; GRANT ALL ON posts, users TO {application}")
    world.sql(f"SET ROLE {application}; {BLOG}")
    world.sql(LOSE_IDENTITY)
    daemon = world.daemon(until="failover.detected")
    as_application = replace(world, endpoints=replace(world.endpoints, postgres_dsn=world.dsn_of(application)))
    run("wait", committed(as_application, CHANGES))
    run("index", "rebuild", "blogpost")
    run("verify")
    run("status")
    require_holds(world)
    assert daemon.stop() == 0
