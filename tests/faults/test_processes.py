"""A process that is killed at any point of its work loses nothing, and the next one finds nothing half done."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from syncer.base import migrations
from syncer.capture import leader
from syncer.documents import registry
from syncer.jobs import queue
from syncer.jobs.model import JobKind, JobState, find
from tests.support.breakpoints import REACHED, Plan, Point
from tests.support.world import DEADLINE_SECONDS, Daemon, World, wait_until
from tests.support.writers import QUICK_FAILOVER, fill, writing

QUICK = {
    "SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER,
    "SYNCER_WORKER_THREADS": "1",
    "SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "5",
}
_WITNESSES = 100
_FEWEST = 10


@pytest.fixture
def blog(world: World) -> World:
    """A blog for random writers, with an author of whom they know nothing."""
    world.worker_settings = QUICK
    fill(world)
    world.sql("INSERT INTO users (id, name, email) VALUES (100, 'witness', '')")
    return world


def witness(world: World, number: int) -> None:
    """A post that no later change would make good, if this one were lost."""
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (%s, 100, 'witness', '')", 1000 + number)


def killed(world: World, *arguments: str, point: Point) -> None:
    """Start a daemon, and wait until it is dead."""
    wait_until_dead(world.daemon(*arguments, program=Plan(points=(point,)).program), point)


def wait_until_dead(daemon: Daemon, point: Point) -> None:
    """It has come to its point."""
    wait_until(lambda: daemon.process.poll() is not None, what=f"it dies at {point}", detail=daemon.log_file.read_text)
    assert daemon.process.returncode == -signal.SIGKILL, daemon.log_file.read_text()


def finish(world: World) -> None:
    """A daemon that is not killed makes every document level, once writers rest."""
    world.daemon()
    world.wait_until_level(seconds=2 * DEADLINE_SECONDS)
    assert world.sql("SELECT * FROM syncer.dead_letter") == []
    assert world.sql("SELECT name FROM syncer.document WHERE suspended IS NOT NULL") == []


# The relay

RELAY = (
    Point(at="syncer.kafka.producer:ChangeProducer.flush"),
    Point(at="syncer.capture.reader:OutboxReader.save"),
    Point(at="syncer.capture.outbox:_truncate_seen"),
)


def test_a_relay_is_killed_at_each_step(blog: World) -> None:
    """What was not acknowledged is published by the next one, and what was is published again."""
    with writing(blog, writers=3):
        for number, point in enumerate(RELAY):
            witness(blog, number)
            killed(blog, "--only", "relay", point=point)
    finish(blog)


# A worker

WORKER = (
    Point(at="syncer.worker.resolve:Resolver.resolve"),
    Point(at="syncer.indexing.compose:Composer.compose", when="after"),
    Point(at="syncer.elasticsearch.bulk:Index.write", seconds=1),
    Point(at="syncer.elasticsearch.bulk:Index.write", when="after"),
)


def test_workers_are_killed_at_each_step(blog: World) -> None:
    """Up to four workers die at once, each at its own step; the next owner of a partition does the work again."""
    blog.daemon("--only", "relay")
    with writing(blog, writers=3):
        blog.sql("UPDATE syncer.cluster_identity SET timeline = 0")  # it is another one now
        killed(blog, "--only", "workers", point=Point(at="syncer.elasticsearch.bulk:Index.write_epoch", when="after"))
        for number in range(40):
            witness(blog, number)
        many = {"SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "1000"}
        die_together(blog, WORKER, environment=many)
    finish(blog)


def die_together(world: World, points: tuple[Point, ...], *, environment: Mapping[str, str]) -> None:
    """A daemon for each point, all at once, until all are dead; their clocks are hours apart."""
    plans = [Plan(points=(point,), clock_hours=6 * hours) for hours, point in enumerate(points, -1)]
    daemons = [world.daemon("--only", "workers", environment=environment, program=one.program) for one in plans]
    for daemon, point in zip(daemons, points, strict=True):
        wait_until_dead(daemon, point)


# A job worker, and what jobs are

JOB_WORKER = (
    Point(at="syncer.jobs.listing:_list_range", when="after"),
    Point(at="syncer.elasticsearch.bulk:Index.write", seconds=1),
    Point(at="syncer.jobs.chunks:Chunks.finish"),
)


def test_a_job_worker_is_killed_at_each_step(blog: World) -> None:
    """The job goes on where it was, with nothing left out, and ends once."""
    for number in range(_WITNESSES):
        witness(blog, number)
    blog.sql("DELETE FROM syncer.outbox")
    with blog.elasticsearch() as client:
        orphan = {"title": "orphan"}
        client.index(index=blog.alias, id="5000", document=orphan, version=1, version_type="external")
    with blog.connect() as connection:
        job = queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL)
        assert job is not None
        only_the_job_worker = {"SYNCER_WORKER_THREADS": "0", "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "10"}
        with writing(blog, writers=3):
            for point in JOB_WORKER:
                daemon = blog.daemon(
                    "--only", "workers", environment=only_the_job_worker, program=Plan(points=(point,)).program
                )
                wait_until_dead(daemon, point)
            blog.daemon()
            wait_until(lambda: find(connection, job.id).state is JobState.DONE, what="the job is done")
        assert find(connection, job.id).documents_done == find(connection, job.id).documents_total
    finish(blog)


# Commands

APPLY = (
    Point(at="syncer.elasticsearch.indices:Indices._create", when="after", turn=2),  # the first one is a trial
    Point(at="syncer.elasticsearch.indices:Indices.swap", when="after"),
)


def test_apply_is_killed_at_each_step(blog: World) -> None:
    """Searches see all documents all the while; the last apply lets the new index serve, and leaves no other behind."""
    blog.daemon()
    blog.wait_until_level()
    want_another_index(blog, "text")
    with writing(blog, writers=1):
        for point in APPLY:
            run_killed(blog, "apply", "--yes", point=point)
            assert len(blog.held()) > _FEWEST
        assert_done(blog.syncer("apply", "--yes"))
        assert blog.index_of().endswith("-000002")
        want_another_index(blog, "keyword")
        run_killed(blog, "apply", "--yes", point=Point(at="syncer.elasticsearch.indices:Indices.drop"))
        assert len(physical(blog)) > 1
        assert_done(blog.syncer("apply", "--yes"))
    blog.wait_until_level()
    assert physical(blog) == {blog.index_of()}


def want_another_index(world: World, kind: str) -> None:
    """Change index.json in a way that no index takes in place."""
    file = world.document_folder / "index.json"
    body = json.loads(file.read_text())
    body["mappings"]["properties"]["tags"] = {"type": kind}
    file.write_text(json.dumps(body))


def physical(world: World) -> set[str]:
    """The indices of the world that are there."""
    with world.elasticsearch() as client:
        names = client.indices.get(index=f"{world.alias}-*", expand_wildcards="all").body
    return {name for name in names if "-syncer-plan-" not in name}  # a killed plan leaves its scratch index for a while


def wait_until_reached(daemon: Daemon, point: Point) -> None:
    """It has come to its point, and stays there."""
    said = f"{REACHED} {point.at}"
    wait_until(lambda: said in daemon.log_file.read_text(), what=said, detail=daemon.log_file.read_text)


def run_killed(world: World, *arguments: str, point: Point) -> None:
    """Run a command that dies at its point."""
    done = world.syncer(*arguments, program=Plan(points=(point,)).program)
    assert done.returncode == -signal.SIGKILL, (point, done)


def assert_done(done: subprocess.CompletedProcess[str]) -> None:
    """The command has done what was asked for."""
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_repair_is_killed(blog: World) -> None:
    """The same command finds what is left, and repairs that."""
    blog.sql("DELETE FROM syncer.outbox")
    run_killed(blog, *REPAIR, point=Point(at="syncer.elasticsearch.bulk:Index.write", when="after"))
    assert_done(blog.syncer(*REPAIR))
    assert blog.differences() == []


REPAIR = ("verify", "--repair")


def test_migrate_is_killed(empty_world: World) -> None:
    """Nothing is applied by half; the same command applies all."""
    run_killed(empty_world, "migrate", point=Point(at="syncer.base.migrations:_checksum", turn=1))
    assert empty_world.sql("SELECT to_regclass('syncer.outbox'), to_regclass('syncer.job')") == [(None, None)]
    assert_done(empty_world.syncer("migrate"))
    with empty_world.connect() as connection:
        migrations.require_current(connection)


# Told to end

HANGS = Point(at="syncer.elasticsearch.bulk:Index.write", seconds=3600)


def test_a_daemon_that_hangs_ends_when_told_to(blog: World) -> None:
    """It says which component did not end; who is told twice ends at once; what was in hand is done by the next."""
    hasty = Plan(points=(HANGS,), constants={"syncer.daemon:STOP_SECONDS": 0.5})
    daemon = blog.daemon(program=hasty.program)
    wait_until_reached(daemon, HANGS)
    assert daemon.stop() == 1
    # The first to write is one of these; in so short a time others may not end either.
    assert re.search(r"\b(worker-1|job_worker)\b.* did not end within", daemon.log_file.read_text())
    patient = blog.daemon(program=Plan(points=(HANGS,)).program)
    wait_until_reached(patient, HANGS)
    with blog.connect() as connection:
        wait_until(lambda: leader.find(connection) is not None, what="its relay leads")
        patient.process.send_signal(signal.SIGINT)
        # Two signals that come at once are one.
        wait_until(lambda: leader.find(connection) is None, what="it ends what can be ended")
    patient.process.send_signal(signal.SIGINT)
    assert patient.process.wait(DEADLINE_SECONDS) == 128 + signal.SIGINT
    blog.daemon()
    blog.wait_until_level()


def test_a_process_that_does_not_exit_is_ended(blog: World) -> None:
    """If the process hangs while it stops, it ends all the same, and says where."""
    hangs_at_exit = Point(at="syncer.monitoring.daemons:Reporter.leave", seconds=3600)
    constants = {"syncer.daemon:STOP_SECONDS": 3, "syncer.cli.app:_EXIT_SECONDS": 1}
    daemon = blog.daemon(program=Plan(points=(hangs_at_exit,), constants=constants).program)
    assert daemon.stop() == 1
    assert "breakpoints.py" in daemon.log_file.read_text()


# Standing still

LEASES = {
    "syncer.capture.reader:LEASE_SECONDS": 2,
    "syncer.jobs.chunks:SILENT_SECONDS": 2,
    "syncer.daemon:IDLE_SECONDS": 2,
}


def stand_still(daemon: Daemon) -> None:
    """Return once it does."""

    def is_stopped() -> bool:
        return Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    wait_until(is_stopped, what="the daemon stands still", detail=daemon.log_file.read_text)


def go_on(daemon: Daemon) -> None:
    """Let it."""
    daemon.process.send_signal(signal.SIGCONT)


def test_a_daemon_stands_still_for_longer_than_every_lease(blog: World) -> None:
    """Others take over all it had; the document that it brings back, long forgotten, is gone again."""
    blog.daemon()
    blog.wait_until_level()
    blog.daemons[0].stop()
    sleeper = Plan(
        points=(Point(at="syncer.elasticsearch.bulk:Index.write", send="SIGSTOP"),),
        constants=LEASES,
    )
    sleeping = blog.daemon(program=sleeper.program)
    witness(blog, 1)
    stand_still(sleeping)
    blog.daemon(program=Plan(constants=LEASES).program)
    blog.wait_until_level()
    forget_deletes_at_once(blog)
    blog.sql("DELETE FROM posts WHERE id = 1001")
    with writing(blog, writers=3):
        wait_until(lambda: "1001" not in blog.held(), what="the post is gone")
        wait_until(lambda: is_forgotten(blog, "1001"), what="its tombstone is forgotten")
    go_on(sleeping)
    sleeping.wait_for("worker.batch_indexed")
    blog.wait_until_level()
    assert blog.daemons[0].process.returncode == 0
    assert sleeping.stop() == 0
    finish(blog)


def test_a_job_is_done_beside_a_job_worker_that_stands_still(blog: World) -> None:
    """Postgres ends the session of a process that is stopped: a command that follows the job takes its chunks."""
    stops = Plan(points=(Point(at="syncer.jobs.chunks:Chunks.take", when="after", send="SIGSTOP"),), constants=LEASES)
    sleeping = blog.daemon(program=stops.program, environment={"SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "1000"})
    with blog.connect() as connection:
        job = queue.create(connection, registry.current(connection)["blogpost"], JobKind.BACKFILL)
    stand_still(sleeping)
    assert_done(blog.syncer("backfill", "blogpost", program=Plan(constants=LEASES).program))
    with blog.connect() as connection:
        assert job is not None
        assert find(connection, job.id).state is JobState.DONE
    go_on(sleeping)
    assert blog.differences() == []
    assert sleeping.stop() == 0


def forget_deletes_at_once(world: World) -> None:
    """Elasticsearch remembers the version of a deleted document for no time."""
    with world.elasticsearch() as client:
        client.indices.put_settings(index=world.index_of(), settings={"index.gc_deletes": "0s"})


def is_forgotten(world: World, id_: str) -> bool:
    """Whether the least version could be written now; it is not."""
    with world.elasticsearch() as client:
        client.indices.refresh(index=world.index_of())
        answer = client.options(ignore_status=[404, 409]).delete(
            index=world.index_of(), id=id_, version=1, version_type="external"
        )
    return bool(answer.meta.status == 404)
