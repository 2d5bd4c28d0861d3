"""A backfill beside live traffic: despite crashes, rejections and load, each document is written and counted once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import elasticsearch
import psycopg
import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import Elasticsearch

from syncer.base.model import Composition, Target
from syncer.base.postgres import Connection
from syncer.documents import registry
from syncer.elasticsearch.bulk import BulkOutcome, Index, Rejection
from syncer.jobs import queue
from syncer.jobs.model import Job, JobKind, JobState, find, unfinished
from syncer.worker.job_loop import JobWorker
from tests.faults.test_job_writes import create
from tests.support.routing import put_routing, put_shards
from tests.support.world import DEADLINE_SECONDS, World, running, wait_until
from tests.support.writers import SEED, fill, writing

POSTS = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com') ON CONFLICT DO NOTHING;
INSERT INTO posts (id, user_id, title, body) SELECT 1000000 + g, 1, 'title', 'body' FROM generate_series(1, {}) AS g
"""
IN_HAND = "SELECT FROM syncer.job_chunk AS c JOIN syncer.job AS j ON j.id = c.job WHERE c.number < j.chunks_next"


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    """For the test's own looks and steps."""
    with world.connect() as made:
        yield made


def done(connection: Connection, job: Job) -> int:
    """How many documents of it are done."""
    return find(connection, job.id).documents_done


def wait_done(connection: Connection, job: Job, *, seconds: float = DEADLINE_SECONDS) -> Job:
    """The job once it is done."""
    wait_until(lambda: find(connection, job.id).state.is_finished, what="the job is finished", seconds=seconds)
    after = find(connection, job.id)
    assert after.state is JobState.DONE, after
    return after


def require_counted(job: Job) -> None:
    """Each document that was listed counts once, as one thing."""
    assert job.documents_done == job.documents_total
    assert job.indexed + job.deleted + job.skipped + job.dead_lettered == job.documents_done


def versions(world: World) -> dict[str, int]:
    """With which version each document was written last."""
    with world.elasticsearch() as client:
        client.indices.refresh(index=world.alias)
        hits = elasticsearch.helpers.scan(client, index=world.alias, query={"version": True, "_source": False})
        return {hit["_id"]: hit["_version"] for hit in hits}


# Dying


def begin(world: World, *arguments: str) -> subprocess.Popen[bytes]:
    """``syncer backfill blogpost`` in a process of its own."""
    with (world.folder / "backfill.log").open("ab") as log:
        command = [sys.executable, "-m", "syncer", "backfill", "blogpost", *arguments]
        return subprocess.Popen(command, env=world.environment, stdout=log, stderr=log)


def kill_at_a_chunk(world: World, process: subprocess.Popen[bytes]) -> None:
    """SIGKILL while it has a chunk in hand: between two chunks, for which its rate lets it wait, none would be left."""
    with world.application() as altering:
        altering.execute("LOCK TABLE posts")
        wait_until(lambda: bool(world.sql(IN_HAND)), what="it has a chunk in hand, and cannot read for it")
        process.kill()
        process.wait()


def test_a_command_that_was_killed_goes_on_from_where_it_was(world: World, connection: Connection) -> None:
    """SIGKILL, twice, without a daemon: what is done stays done and is not written again; at the end all is counted."""
    world.sql(POSTS.format(6000))
    kept: list[tuple[int, dict[str, int]]] = []
    job: Job | None = None
    at_least = 0
    for _ in range(2):
        process = begin(world, "--rate", "300")
        wait_until(lambda: bool(unfinished(connection)), what="there is a job")
        [found] = unfinished(connection)
        assert job is None or found.id == job.id
        job = found

        def has_gone_on(one: Job = found, before: int = at_least) -> bool:
            now = done(connection, one)
            assert now >= before
            return now >= before + 300

        wait_until(has_gone_on, what="some of it is done")
        kill_at_a_chunk(world, process)
        at_least = done(connection, job)
        kept.append((at_least, versions(world)))
    assert begin(world, "--rate", "100000").wait(DEADLINE_SECONDS) == 0, (world.folder / "backfill.log").read_text()
    assert job is not None
    after = wait_done(connection, job)
    require_counted(after)
    assert after.indexed == 6000
    last = versions(world)
    for number, before in kept:
        assert sum(last[id_] == version for id_, version in before.items()) >= number
    assert world.differences() == []


def test_daemons_that_die_and_leave_in_the_middle_lose_nothing_and_count_once(
    world: World, connection: Connection
) -> None:
    """Two daemons write a job under random writers; one gets SIGKILL, one SIGTERM; the third does the rest."""
    fill(world)
    world.sql(POSTS.format(3000))
    first, second = world.daemon(), world.daemon()
    with writing(world, writers=3):
        job = queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL, rate=1000)
        assert job is not None
        wait_until(lambda: done(connection, job) > 300, what="some of it is done")
        first.kill()
        before = done(connection, job)
        wait_until(lambda: done(connection, job) > before + 300, what="the other goes on")
        began = time.monotonic()
        assert second.stop() == 0
        assert time.monotonic() - began < 30  # in the time that it gives its components
        third = world.daemon()
        queue.set_rate(connection, job.id, None)
        require_counted(wait_done(connection, job))
    world.wait_until_level()
    assert third.stop() == 0


# What only Elasticsearch has


def plant(world: World, client: Elasticsearch) -> None:
    """Copies that no SELECT returns: of no post, of posts on a shard that is not theirs, of posts that may come."""
    source = {"title": "planted", "comments": [{"name": "n", "comment": "c"}, {"name": "m", "comment": "d"}]}
    for number in range(40):
        client.index(index=world.alias, id=str(2_000_000 + number), document=source)
        client.index(index=world.alias, id=str(3_000_000 + number), routing=f"r{number}", document=source)
        client.index(index=world.alias, id=str(number), routing=f"r{number}", document=source)
        client.index(index=world.alias, id=f"x{number}", document=source)


def test_orphans_go_away_beside_live_traffic(empty_world: World) -> None:
    """On three shards, with nested documents: what is planted is gone, what writers do meanwhile ends right."""
    world = empty_world
    put_shards(world, 3)
    file = world.document_folder / "index.json"
    body = json.loads(file.read_text())
    body["mappings"]["properties"]["comments"]["type"] = "nested"
    file.write_text(json.dumps(body))
    put_routing(world, "p.user_id")
    world.set_up()
    fill(world)
    world.sql(POSTS.format(500))
    with world.elasticsearch() as client, world.connect() as connection:
        plant(world, client)
        world.daemon()
        with writing(world, writers=3):
            job = queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL, rate=300)
            assert job is not None
            after = wait_done(connection, job)
        require_counted(after)
        assert after.deleted >= 120
    world.wait_until_level()


# TRUNCATE


def test_truncates_in_a_row_are_one_job(world: World, connection: Connection) -> None:
    """As long as nobody has begun with the first one's; what it does covers both."""
    world.sql(POSTS.format(20))
    with world.index() as index, world.relay() as relay, world.worker(index) as worker:
        world.drain(relay, worker)
        for _ in range(2):
            world.sql("TRUNCATE comments")
            relay.run_once()
            wait_until(lambda: bool(worker.run_once()), what="the worker has it")
        [job] = unfinished(connection)
        assert (job.kind, job.state) == (JobKind.REFRESH, JobState.NEW)
        world.drain(relay, worker)


def test_tables_that_are_truncated_under_writers_end_equal(world: World, connection: Connection) -> None:
    """One that posts are joined to, then the posts themselves, while everybody writes and a backfill is listed."""
    fill(world)
    world.sql(POSTS.format(2000))
    world.daemon()
    with writing(world, writers=3):
        job = queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL, rate=1000)
        assert job is not None
        wait_until(lambda: find(connection, job.id).state is not JobState.NEW, what="the listing has begun")
        for table in ("comments", "posts, comments", "comments", "posts, comments"):
            with_retries(world, f"TRUNCATE {table}")
            time.sleep(random.Random(SEED).uniform(0.2, 0.8))
    wait_until(lambda: not unfinished(connection), what="all jobs are done")
    world.wait_until_level()


def with_retries(world: World, query: str) -> None:
    """An application that tries again when it was what a deadlock ended."""
    while True:
        try:
            world.sql(query)
        except psycopg.errors.DeadlockDetected:
            continue
        return


# Documents that are at fault


def test_a_poisoned_row_and_a_refused_document_keep_no_other_waiting(empty_world: World) -> None:
    """Both are dead-lettered and counted, the rest is written; they are cleared once they are fixed."""
    world = empty_world
    folder = world.document_folder
    file = folder / "select.sql"
    file.write_text(file.read_text().replace("p.title,", "p.title || (1 / (p.views - 13))::text AS title,"))
    body = json.loads((folder / "index.json").read_text())
    body["mappings"]["properties"]["title"] = {"type": "keyword"}
    (folder / "index.json").write_text(json.dumps(body))
    world.set_up()
    world.sql(POSTS.format(1500))
    world.sql("UPDATE posts SET views = 13 WHERE id = 1000700")
    world.sql("UPDATE posts SET title = repeat('x', 40000) WHERE id = 1000900")
    with world.connect() as connection, world.index() as index:
        job = create(connection, JobKind.BACKFILL)
        world.refresh(index)
        after = wait_done(connection, job)
        require_counted(after)
        assert (after.indexed, after.dead_lettered) == (1498, 2)
        assert set(dead(world)) == {"1000700", "1000900"}
        world.sql("UPDATE posts SET views = 0, title = 'fixed' WHERE id IN (1000700, 1000900)")
        job = create(connection, JobKind.BACKFILL)
        world.refresh(index)
        assert wait_done(connection, job).dead_lettered == 0
    assert dead(world) == []
    assert world.differences() == []


def dead(world: World) -> list[str]:
    """The ids of the documents that are dead-lettered."""
    return [row[0] for row in world.sql("SELECT id FROM syncer.dead_letter ORDER BY id")]


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
    """1,200 documents of 200 kB, in chunks of 1,000: the command stays below 200 MB."""
    world = empty_world
    file = world.document_folder / "index.json"
    body = json.loads(file.read_text())
    body["mappings"]["properties"]["body"] = {"type": "keyword", "index": False, "doc_values": False}
    file.write_text(json.dumps(body))
    world.set_up()
    world.sql(POSTS.format(1200))
    world.sql("UPDATE posts SET body = repeat('lorem ipsum ', 17000)")
    ended = subprocess.run(
        [sys.executable, "-c", PEAK],
        env=world.environment,
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    [peak] = [int(line.split()[1]) for line in ended.stdout.splitlines() if line.startswith("peak")]
    assert peak < 200
    with world.connect() as connection:
        [job] = connection.execute("SELECT documents_done, indexed FROM syncer.job WHERE kind = 'backfill'").fetchall()
    assert job == (1200, 1200)


# An Elasticsearch that is busy


class BusyIndex(Index):
    """Says that it has too much to do: to whole requests, or to some documents, of which it writes the rest."""

    def __init__(self, client: Elasticsearch, *, refuse: Callable[[Target], bool], dice: random.Random) -> None:
        super().__init__(client, bulk_bytes_max=8_000_000)
        self._refuse = refuse
        self._dice = dice
        self.refused = 0

    def write(self, target: Target, compositions: Sequence[Composition]) -> BulkOutcome:
        """Refuse all, some, or nothing."""
        if not self._refuse(target):
            return super().write(target, compositions)
        self.refused += 1
        if self._dice.random() < 0.5:
            raise too_many_requests()
        refused = [one for one in compositions if self._dice.random() < 0.3]
        outcome = super().write(target, [one for one in compositions if one not in refused])
        kind, reason = "es_rejected_execution_exception", "rejected execution of coordinating operation"
        outcome.rejections += [Rejection(composition=one, status=429, kind=kind, reason=reason) for one in refused]
        return outcome


def too_many_requests() -> elasticsearch.ApiError:
    """As the client raises it."""
    node = NodeConfig("http", "127.0.0.1", 9200)
    meta = ApiResponseMeta(429, "1.1", HttpHeaders(), 0.1, node)
    return elasticsearch.ApiError("es_rejected_execution_exception", meta, {"error": {"reason": "rejected"}})


def test_what_a_busy_elasticsearch_refuses_is_tried_again(world: World, connection: Connection) -> None:
    """Whole requests and single documents are answered 429 half of the time: nothing is lost or counted twice."""
    world.sql(POSTS.format(2000))
    dice = random.Random(SEED)
    job = create(connection, JobKind.BACKFILL)
    with world.elasticsearch() as client:
        index = BusyIndex(client, refuse=lambda _: dice.random() < 0.5, dice=dice)
        with running(JobWorker(connect=world.connect, index=index, batch_documents_max=100)):
            after = wait_done(connection, job)
    assert index.refused > 5
    require_counted(after)
    assert (after.indexed + after.skipped, after.dead_lettered) == (2000, 0)
    assert world.differences() == []
