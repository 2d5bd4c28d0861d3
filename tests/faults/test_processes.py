"""Processes are killed, frozen, or told to end, at any point of their work: the next one finds nothing half done."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg.conninfo
import pytest

from syncer.apply import reindex
from syncer.base.model import Role
from syncer.documents import registry
from syncer.jobs.model import JobState, find
from tests.faults import harness
from tests.faults.harness import add_posts, needs_kafka, require_holds
from tests.support import preloaded
from tests.support.breakpoints import REACHED, Plan, Point
from tests.support.network import ask, line
from tests.support.routing import put_routing, put_shards
from tests.support.world import DEADLINE_SECONDS, Daemon, World, wait_until
from tests.support.writers import QUICK_FAILOVER, fill, writing

QUICK = {
    "SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER,
    "SYNCER_WORKER_THREADS": "1",
    "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "5",
}
MANY = {"SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "1000"}
ONLY_JOBS = {"SYNCER_WORKER_THREADS": "0", "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "10"}
WRITE = "syncer.elasticsearch.bulk:Index.write"


@pytest.fixture
def blog(world: World) -> World:
    """A blog for random writers, with an author of whom they know nothing."""
    world.worker_settings = dict(QUICK)
    fill(world)
    world.sql("INSERT INTO users (id, name, email) VALUES (100, 'witness', '')")
    return world


def witness(world: World, number: int = 20) -> None:
    """Posts that no later change would make good, if these were lost."""
    many_rows = "SELECT 1000 + g, 100, 'witness', '' FROM generate_series(1, %s) AS g"
    world.sql(f"INSERT INTO posts (id, user_id, title, body) {many_rows}", number)


def finish(world: World) -> None:
    """A daemon that is not killed does what is left."""
    world.daemon()
    require_holds(world, seconds=2 * DEADLINE_SECONDS)


# Daemons are killed


def die(world: World, *points: Point, environment: dict[str, str]) -> None:
    """A daemon for each point, until all are dead; their clocks are hours apart. Without Kafka, one at a time leads."""
    plans = [Plan(points=(point,), clock_hours=6 * hours) for hours, point in enumerate(points, -1)]
    for group in [plans] if world.uses_kafka else [[plan] for plan in plans]:
        daemons = [world.daemon("--only", "workers", environment=environment, plan=plan) for plan in group]
        assert {daemon.exit_code() for daemon in daemons} == {-signal.SIGKILL}, "each has come to its point"


def make_fan_out(world: World) -> None:
    """Rename the author of many posts."""
    witness(world)
    world.sql("UPDATE users SET name = 'renamed' WHERE id = 100")


def make_backfill(world: World) -> None:
    """A job of many chunks, with an orphan to remove; nothing else is left to do."""
    witness(world, 100)
    world.sql("DELETE FROM syncer.outbox")
    with world.elasticsearch() as client, world.connect() as connection:
        client.index(index=world.alias, id="5000", document={"title": "orphan"}, version=1, version_type="external")
        harness.create(connection)


def enter_epoch(world: World) -> None:
    """The server is another one now."""
    world.sql("TRUNCATE syncer.cluster_identity")


WORKER = (
    Point(at="syncer.worker.resolve:Resolver.resolve"),
    Point(at="syncer.indexing.compose:Composer.compose", when="after"),
    Point(at=WRITE, seconds=1),
    Point(at=WRITE, when="after"),
)
FAN_OUT = (
    Point(at="syncer.jobs.queue:create_fan_out"),
    Point(at="syncer.jobs.queue:create_fan_out", when="after"),
)
JOB_WORKER = (
    Point(at="syncer.jobs.listing:step", when="after"),
    Point(at=WRITE, seconds=1),
    Point(at="syncer.jobs.chunks:Chunks.finish"),
)
EPOCH = (
    Point(at="syncer.elasticsearch.record:Record.enter", when="after"),
    Point(at="syncer.elasticsearch.bulk:Index.fence", when="after"),
)
KILLED: dict[str, tuple[Callable[[World], None], tuple[Point, ...], dict[str, str]]] = {
    "workers": (witness, WORKER, MANY),
    "a worker that enters an epoch": (enter_epoch, EPOCH, QUICK),
    "workers over a fan-out": (make_fan_out, FAN_OUT, QUICK),
    "job workers": (make_backfill, JOB_WORKER, ONLY_JOBS),
}
"""What a daemon is given to do, at which steps of that it is killed, and its settings."""


@pytest.mark.parametrize(("begin", "points", "environment"), KILLED.values(), ids=KILLED)
def test_daemons_are_killed_at_each_step(
    blog: World, begin: Callable[[World], None], points: tuple[Point, ...], environment: dict[str, str]
) -> None:
    """Beside writers: the next owner does the work again, leaves nothing out, and counts each document once."""
    if blog.uses_kafka:
        blog.daemon("--only", "relay")
    with writing(blog, writers=3):
        begin(blog)
        die(blog, *points, environment=environment)
        blog.daemon()
        with blog.connect() as connection:
            for (job,) in blog.sql("SELECT id FROM syncer.job WHERE kind = 'backfill'"):
                harness.wait_done(connection, find(connection, job))
    require_holds(blog, seconds=2 * DEADLINE_SECONDS)


def test_daemons_are_killed_while_documents_move(empty_world: World) -> None:
    """Each document is on its own shard alone, also what could not be written on the way: seen three times or nine."""
    empty_world.edit_file("p.body,", "p.body, 1 / ((p.views - 3) * (p.views - 9)) AS ratio,")
    empty_world.edit_file('"strict"', "true", file="index.json")
    put_shards(empty_world, 3)
    put_routing(empty_world, "p.user_id")
    empty_world.worker_settings = dict(QUICK)
    empty_world.set_up()
    fill(empty_world)
    if empty_world.uses_kafka:
        empty_world.daemon("--only", "relay")
    with writing(empty_world, writers=3):
        die(empty_world, *WORKER, environment=MANY)
        empty_world.daemon()
    empty_world.sql("UPDATE posts SET views = 10")
    require_holds(empty_world, seconds=2 * DEADLINE_SECONDS)


# Commands are killed


def run_killed(world: World, *arguments: str, point: Point) -> None:
    """Run a command that dies at its point."""
    completed = world.syncer(*arguments, plan=Plan(points=(point,)))
    assert completed.returncode == -signal.SIGKILL, (point, completed)


def want_another_index(world: World, kind: str) -> None:
    """Change index.json in a way that no index takes in place."""
    world.edit_index(lambda body: body["mappings"]["properties"].update(tags={"type": kind}))


def physical(world: World) -> set[str]:
    """The indices of the world that are there."""
    with world.elasticsearch() as client:
        names = client.indices.get(index=f"{world.alias}-*", expand_wildcards="all").body
    return {name for name in names if "-syncer-plan-" not in name}  # a killed plan leaves its scratch index for a while


SWITCH = (
    Point(at="syncer.documents.registry:put_document"),
    Point(at="syncer.elasticsearch.indices:Indices.swap", when="after"),
    Point(at="syncer.documents.registry:make_current"),
)


def test_a_switch_to_another_index_is_killed_at_each_step(blog: World) -> None:
    """Searches see all documents all the while; the last apply lets the new index serve, and leaves no other."""
    blog.daemon()
    blog.wait_until_level()
    want_another_index(blog, "text")
    with writing(blog, writers=1):
        for point in SWITCH:
            run_killed(blog, "apply", "--yes", point=point)
            assert len(blog.held()) > 10  # whatever random writers do
        blog.prints("apply", "--yes")
        assert blog.index_of() not in ("", f"{blog.alias}-000001")
        want_another_index(blog, "keyword")
        run_killed(blog, "apply", "--yes", point=Point(at="syncer.elasticsearch.indices:Indices.drop"))
        assert len(physical(blog)) > 1
        blog.prints("apply", "--yes")
    require_holds(blog)
    assert physical(blog) == {blog.index_of()}


def test_a_rebuild_that_was_killed_is_given_up(blog: World) -> None:
    """What was searched before is searched still, and nothing else is left."""
    blog.backfill()
    index_before = blog.index_of()
    run_killed(blog, "index", "rebuild", "blogpost", point=SWITCH[-1])
    assert blog.syncer("index", "abort", "blogpost").returncode == 2
    blog.prints("index", "abort", "blogpost", "--yes")
    assert physical(blog) == {index_before} == {blog.index_of()}
    assert blog.differences() == []


# Daemons are told to end

HANGS = Point(at=WRITE, seconds=3600)


def test_a_move_that_a_failover_has_taken_back_is_recorded_by_the_next_apply(blog: World) -> None:
    """Postgres no longer knows that the new index serves, and the one before is gone."""
    blog.daemon()
    with blog.connect() as connection, blog.indices() as indices:
        new = reindex.begin(connection, indices, "blogpost", report=lambda _: None).document
        wait_until(lambda: registry.by_role(connection, "blogpost")[Role.BUILDING].is_loaded, what="it is loaded")
        indices.swap(blog.alias, new.target)
        indices.drop(registry.named(connection, "blogpost")[0].target)
    blog.sql("UPDATE posts SET title = 'changed' WHERE id = 1")
    wait_until(lambda: bool(blog.sql(harness.SUSPENDED)), what="the index that is gone is suspended")
    blog.prints("apply", "--yes")
    assert blog.sql("SELECT role, index_name FROM syncer.document") == [("current", new.index_name)]
    require_holds(blog)


def wait_until_reached(daemon: Daemon, point: Point) -> None:
    """It has come to its point, and stays there."""
    reached = f"{REACHED} {point.at}"
    wait_until(lambda: reached in daemon.log_file.read_text(), what=reached, detail=daemon.log_file.read_text)


def test_a_daemon_that_hangs_ends_when_it_is_told_to(blog: World) -> None:
    """It says which component did not end; told twice, it ends at once; the next one does what was in hand."""
    hasty = Plan(points=(HANGS,), constants={"syncer.daemon:STOP_SECONDS": 0.5})
    daemon = blog.daemon(plan=hasty)
    wait_until_reached(daemon, HANGS)
    assert daemon.stop() == 1
    # The first to write is one of these; in so short a time others may not end either.
    assert re.search(r"\b(worker-1|job_worker)\b.* did not end within", daemon.log_file.read_text())
    patient = blog.daemon(plan=Plan(points=(HANGS,)))
    wait_until_reached(patient, HANGS)

    def interrupt() -> bool:  # two signals that come at once are one
        patient.process.send_signal(signal.SIGINT)
        return patient.process.poll() is not None

    wait_until(interrupt, what="it ends")
    assert patient.process.returncode == 128 + signal.SIGINT
    finish(blog)


# The log cannot be written


@pytest.mark.parametrize("stream", ["closed pipe", "full pipe", "full disk"])
def test_a_daemon_goes_on_without_its_log(world: World, stream: str) -> None:
    """After `syncer run 2>&1 | head`, or with a log on a full disk, lines are lost, and no document; events tell."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    with open(os.devnull, "rb") as nothing, open("/dev/full", "wb") as full, open(writes, "wb") as pipe:  # noqa: PTH123
        log = full if stream == "full disk" else pipe
        environment = {**world.environment, "SYNCER_LOG_LEVEL": "debug"}
        daemon = preloaded.Command(["run"], environment=environment, streams=(nothing, log, log))
    with open(reads, "rb") as reader:  # noqa: PTH123
        if stream == "closed pipe":
            assert any(b"daemon.started" in line_read for line_read in reader)
            reader.close()
        goes_on(world, daemon)


def goes_on(world: World, daemon: preloaded.Command) -> None:
    """It follows changes, says so, and ends when it is told to."""
    add_posts(world, 3)
    world.wait_until_level()
    # Each component has something to say now.
    world.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'syncer %' AND datname = current_database()"
    )
    world.sql("UPDATE users SET name = 'Jane'")
    require_holds(world)
    wait_until(lambda: "The log cannot be written" in world.prints("events"), what="events tell")
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(DEADLINE_SECONDS)  # to an exit code that says that Python's streams could not be flushed


# Daemons stand still

LEASES = {
    "syncer.capture.reader:LEASE_SECONDS": 2,
    "syncer.jobs.chunks:SILENT_SECONDS": 2,
    "syncer.daemon:IDLE_SECONDS": 2,
    "syncer.base.lifecycle:STOPPED_SECONDS": 2,
}


def wait_until_stopped(daemon: Daemon) -> None:
    """It has sent itself SIGSTOP."""

    def is_stopped() -> bool:
        return Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    wait_until(is_stopped, what="the daemon stands still", detail=daemon.log_file.read_text)


def test_a_daemon_stands_still_for_longer_than_every_lease(blog: World) -> None:
    """Others take over all it had; the document that it brings back, long forgotten, is gone again."""
    finish(blog)
    blog.daemons[0].stop()
    sleeper = Plan(points=(Point(at=WRITE, send="SIGSTOP"),), constants=LEASES)
    sleeping = blog.daemon(plan=sleeper)
    witness(blog, 1)
    wait_until_stopped(sleeping)
    blog.daemon(plan=Plan(constants=LEASES))
    blog.wait_until_level()
    with harness.index_settings(blog, {"index.gc_deletes": "0s"}):
        blog.sql("DELETE FROM posts WHERE id = 1001")
        with writing(blog, writers=3):
            wait_until(lambda: "1001" not in blog.held(), what="the post is gone")
            wait_until(lambda: harness.is_forgotten(blog, "1001"), what="its tombstone is forgotten")
        sleeping.process.send_signal(signal.SIGCONT)
        sleeping.wait_for("worker.batch_indexed" if blog.uses_kafka else "relay.stood_by")
        assert sleeping.stop() == 0
        require_holds(blog)


def test_a_job_is_done_beside_a_job_worker_that_stands_still(blog: World) -> None:
    """Postgres ends the session of a process that is stopped: a command that follows the job takes its chunks."""
    stops = Plan(points=(Point(at="syncer.jobs.chunks:Chunks.take", when="after", send="SIGSTOP"),), constants=LEASES)
    sleeping = blog.daemon(plan=stops)
    with blog.connect() as connection:
        job = harness.create(connection)
        wait_until_stopped(sleeping)
        blog.prints("backfill", "blogpost", plan=Plan(constants=LEASES))
        assert find(connection, job.id).state is JobState.DONE
    sleeping.process.send_signal(signal.SIGCONT)
    assert sleeping.stop() == 0
    assert blog.differences() == []


def test_a_leader_that_stands_still_is_replaced(blog: World) -> None:
    """Once Postgres has ended its session; it saves nothing when it continues, stands by, and leads after the other."""
    blog.uses_kafka = False
    frozen, heir = (blog.daemon(plan=Plan(constants=LEASES)) for _ in range(2))
    frozen.wait_for("relay.led")
    heir.wait_for("relay.stood_by")
    require_holds(blog)
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        heir.wait_for("relay.led")
        blog.sql("UPDATE posts SET title = 'of the heir' WHERE id < 10")
        require_holds(blog)
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    frozen.wait_for("relay.stood_by")
    assert heir.stop() == 0
    wait_until(lambda: len(frozen.events("relay.led")) == 2, what="it leads again")
    blog.sql("UPDATE posts SET title = 'of both' WHERE id < 20")
    require_holds(blog)
    assert blog.sql("SELECT message FROM syncer.event WHERE message ~ 'held up|did not answer'") == []


# Daemons start while a server is away


def free_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        return int(occupied.getsockname()[1])


@pytest.mark.parametrize("server", ["Postgres", "Elasticsearch", pytest.param("Kafka", marks=needs_kafka)])
def test_a_daemon_starts_while_a_server_is_away(world: World, server: str) -> None:
    """It lives, is not ready, says once what it waits for, and goes on when the server answers, or when told to end."""
    fill(world)
    port, page_port = free_port(), free_port()
    page = f"http://127.0.0.1:{page_port}"
    dsn = psycopg.conninfo.conninfo_to_dict(world.dsn)
    real = {
        "Postgres": int(dsn["port"] or 5432),
        "Elasticsearch": urlsplit(world.endpoints.elasticsearch_url).port or 9200,
        "Kafka": int(world.endpoints.kafka_bootstrap_servers.rpartition(":")[2]),
    }
    away = {
        "Postgres": {"SYNCER_POSTGRES_DSN": psycopg.conninfo.make_conninfo(world.dsn, host="127.0.0.1", port=port)},
        "Elasticsearch": {"SYNCER_ELASTICSEARCH_URL": f"http://127.0.0.1:{port}"},
        "Kafka": {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}"},
    }
    if server == "Elasticsearch":
        assert world.daemon(environment=away[server], until="component.retried").stop() == 0
    daemon = world.daemon(environment={**away[server], "SYNCER_WEB_PORT": str(page_port)}, until="component.retried")
    assert ask(page, "/healthz")[0] == 200
    status, text = ask(page, "/readyz")
    assert (status, f"{server} cannot be reached" in text) == (503, True)
    with line(real[server], port=port):
        daemon.wait_for("daemon.started")
        require_holds(world)
        assert ask(page, "/healthz")[0] == 200
        assert [event["server"] for event in daemon.events("server.recovered")] == [server.lower()]
        assert daemon.stop() == 0
