"""A process that is killed at any point of its work loses nothing, and the next one finds nothing half done."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from syncer import jobs, overview, schema, store
from syncer.job import JobKind, JobState, find
from tests.faults.stopping_at import REACHED, Plan, Point
from tests.faults.writers import fill, writing
from tests.harness import DEADLINE_SECONDS, Daemon, World, wait_until
from tests.proof import Rule, faces

QUICK = {
    "SYNCER_KAFKA_PROPERTIES": '{"session.timeout.ms": 6000}',
    "SYNCER_RELAY_TRIM_SECONDS": "0.1",
    "SYNCER_WATCH_SECONDS": "0.5",
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
    """What a daemon that nobody kills makes of it, once writers rest."""
    world.daemon()
    world.wait_until_level(seconds=2 * DEADLINE_SECONDS)
    assert world.sql("SELECT * FROM syncer.dead_letter") == []
    assert world.sql("SELECT name FROM syncer.document WHERE halted IS NOT NULL") == []
    verified = world.syncer("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def some_and_all(some: tuple[Point, ...], others: tuple[Point, ...]) -> pytest.MarkDecorator:
    """Run a test at the points at which most can go wrong; at all of them behind the marker ``soak``."""
    return pytest.mark.parametrize(
        "points", [pytest.param(some, id="some"), pytest.param(some + others, id="all", marks=pytest.mark.soak)]
    )


# The relay

RELAY = (
    Point(at="syncer.producer:ChangeProducer.flush"),
    Point(at="syncer.relay:Relay._save"),
    Point(at="syncer.outbox:_truncate_seen"),
)
RELAY_TOO = (
    Point(at="syncer.relay:Relay._begin", when="after"),
    Point(at="syncer.relay:Relay._save", when="after"),
    Point(at="syncer.producer:ChangeProducer.flush", turn=3),
    Point(at="syncer.relay:Relay._save", turn=3),
    Point(at="syncer.outbox:trim", when="after", turn=2),
)


@faces(
    "a relay is killed before, between and after publishing, saving its cursor, and giving rows back",
    promises=(1, 3),
    without=Rule(
        "the cursor is saved only once every record is acknowledged",
        module="syncer.relay",
        text="            producer.flush()\n            if producer.losses:",
        instead="            self._save(connection, seen, producer)\n"
        "            producer.flush()\n            if producer.losses:",
    ),
)
@some_and_all(RELAY, RELAY_TOO)
def test_a_relay_is_killed_at_each_step(blog: World, points: tuple[Point, ...]) -> None:
    """What was not acknowledged is published by the next one, and what was is published again."""
    with writing(blog, writers=3):
        for number, point in enumerate(points):
            witness(blog, number)
            killed(blog, "--only", "relay", point=point)
    finish(blog)


# A worker

WORKER = (
    Point(at="syncer.follower:Follower.hand_over"),
    Point(at="syncer.version:draw", when="after"),
    Point(at="syncer.index:Index.write", seconds=1),
    Point(at="syncer.index:Index.write", when="after"),
)
LATER = (
    Point(at="syncer.consumer:ChangeConsumer.commit"),
    Point(at="syncer.jobs:create_fan_out", when="after"),
    Point(at="syncer.dead_letters:park", when="after"),
    Point(at="syncer.dead_letters:clear", when="after"),
)


@faces(
    "workers whose clocks are hours off are killed before and after draw, write, offsets, parking, a job, an epoch",
    promises=(1, 2, 3),
    without=Rule(
        "an offset is committed only for what is done",
        module="syncer.worker",
        text="done = list(takewhile(lambda one: one.is_done, self._batches))",
        instead="done = list(self._batches)",
    ),
)
def test_workers_are_killed_at_each_step(blog: World) -> None:
    """Four at once, each at its own step: who has the partitions then does it again."""
    blog.daemon("--only", "relay")
    with writing(blog, writers=3):
        blog.sql("UPDATE syncer.incarnation SET timeline = 0")  # it is another one now
        killed(blog, "--only", "workers", point=Point(at="syncer.index:Index.write_epoch", when="after"))
        for number in range(40):
            witness(blog, number)
        many = {"SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "1000"}
        die_together(blog, WORKER, environment=many)
        blog.sql(
            "INSERT INTO users (id, name, email) VALUES (101, repeat('x', 40000), '')"
        )  # more than a keyword takes
        blog.sql("INSERT INTO posts (id, user_id, title, body) VALUES (2000, 101, 'refused', '')")
        die_together(blog, LATER, environment={})
        blog.sql("UPDATE users SET name = 'short' WHERE id = 101")
    finish(blog)


def die_together(world: World, points: tuple[Point, ...], *, environment: Mapping[str, str]) -> None:
    """A daemon for each point, all at once, until all are dead; their clocks are hours apart."""
    plans = [Plan(points=(point,), clock_hours=6 * hours) for hours, point in enumerate(points, -1)]
    daemons = [world.daemon("--only", "workers", environment=environment, program=one.program) for one in plans]
    for daemon, point in zip(daemons, points, strict=True):
        wait_until_dead(daemon, point)


# A lane, and what jobs are

LANE = (
    Point(at="syncer.listing:_put_all", when="after"),
    Point(at="syncer.index:Index.write", seconds=1),
    Point(at="syncer.job_pages:finish"),
    Point(at="syncer.listing:_put_pages", when="after"),
    Point(at="syncer.store:mark_filled", when="after"),
)
LANE_TOO = (
    Point(at="syncer.listing:_list"),
    Point(at="syncer.listing:list_pages", when="after"),
    Point(at="syncer.job_pages:take", when="after"),
    Point(at="syncer.index:Index.write", when="after"),
    Point(at="syncer.job_pages:finish", when="after"),
    Point(at="syncer.jobs:advance"),
    Point(at="syncer.listing:sweep", when="after"),
)
ORDER = (
    LANE_TOO[0],
    LANE[0],
    *LANE_TOO[1:3],
    LANE[1],
    LANE_TOO[3],
    LANE[2],
    *LANE_TOO[4:6],
    LANE[3],
    LANE_TOO[6],
    LANE[4],
)


@faces(
    "a lane is killed while it lists, takes, writes, counts, sweeps and ends a backfill",
    promises=(1, 3, 4),
    without=Rule(
        "a page is counted as done only when all of it is written",
        module="syncer.refresher",
        text="done = [hand for hand in self._hands if hand.is_done]",
        instead="done = list(self._hands)",
    ),
)
@some_and_all(LANE, LANE_TOO)
def test_a_lane_is_killed_at_each_step(blog: World, points: tuple[Point, ...]) -> None:
    """The job goes on where it was, with nothing left out, and ends once."""
    for number in range(_WITNESSES):
        witness(blog, number)
    blog.sql("DELETE FROM syncer.outbox")
    with blog.elasticsearch() as client:
        stray = {"title": "stray"}
        client.index(index=blog.alias, id="5000", document=stray, version=1, version_type="external")
    with blog.connect() as connection:
        job = jobs.create(connection, store.served(connection)["blogpost"], JobKind.BACKFILL)
        assert job is not None
        only_the_lane = {"SYNCER_WORKER_THREADS": "0", "SYNCER_WORKER_BATCH_DOCUMENTS_MAX": "10"}
        with writing(blog, writers=3):
            for point in sorted(points, key=ORDER.index):
                daemon = blog.daemon(
                    "--only", "workers", environment=only_the_lane, program=Plan(points=(point,)).program
                )
                wait_until_dead(daemon, point)
            blog.daemon()
            wait_until(lambda: find(connection, job.id).state is JobState.DONE, what="the job is done")
        assert find(connection, job.id).documents_done == find(connection, job.id).documents_total
    finish(blog)


# Commands

APPLY = (
    Point(at="syncer.indices:Indices._create", when="after", turn=2),  # the first one is a trial
    Point(at="syncer.apply:carry_out", when="after"),
    Point(at="syncer.indices:Indices.swap", when="after"),
)
APPLY_TOO = (
    Point(at="syncer.rebuild:serve"),
    Point(at="syncer.store:assign", when="after"),
    Point(at="syncer.store:assign", when="after", turn=2),
)


@faces(
    "apply is killed once it made an index, put it in force, moved the alias; so is the command that drops the old one",
    promises=(1, 3, 4),
    without=Rule(
        "an index is noted before it is made, and in the commit that puts it out of force",
        module="syncer.leftover",
        text="    connection.execute(_NOTE, (target.index_name, target.write_alias))",
        instead="    return",
    ),
)
@some_and_all(APPLY, APPLY_TOO)
def test_apply_is_killed_at_each_step(blog: World, points: tuple[Point, ...]) -> None:
    """Searches see all documents all the while; the last apply lets the new index serve, and leaves no other behind."""
    blog.daemon()
    blog.wait_until_level()
    want_another_index(blog, "text")
    with writing(blog, writers=1):
        for point in points:
            run_killed(blog, "apply", "--yes", point=point)
            assert len(blog.held()) > _FEWEST
        assert_done(blog.syncer("apply", "--yes"))
        assert blog.index_of().endswith("-000002")
        run_killed(blog, "backfill", "blogpost", "--drop-old", point=Point(at="syncer.indices:Indices.drop"))
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
        return set(client.indices.get(index=f"{world.alias}-*", expand_wildcards="all").body)


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


@faces("verify is killed in the middle of a repair", promises=(3, 4))
def test_a_repair_is_killed(blog: World) -> None:
    """The same command finds what is left, and repairs that."""
    blog.sql("DELETE FROM syncer.outbox")
    run_killed(blog, *REPAIR, point=Point(at="syncer.index:Index.write", when="after"))
    assert_done(blog.syncer(*REPAIR))
    assert blog.differences() == []


REPAIR = ("verify", "--repair", "--settle", "0.1")


@faces("migrate is killed between two migrations", promises=(5,))
def test_migrate_is_killed(empty_world: World) -> None:
    """Nothing is applied by half; the same command applies all."""
    run_killed(empty_world, "migrate", point=Point(at="syncer.schema:_Backend.mark_one", turn=5))
    assert empty_world.sql("SELECT to_regclass('syncer.outbox'), to_regclass('syncer.job')") == [(None, None)]
    assert_done(empty_world.syncer("migrate"))
    with empty_world.connect() as connection:
        schema.require_current(connection)


# Told to end

HANGS = Point(at="syncer.index:Index.write", seconds=3600)


@faces(
    "a daemon is told to end while a server that hangs keeps a stage waiting",
    promises=(1,),
    without=Rule(
        "a stage that does not end is not waited for",
        module="syncer.service",
        text="thread.join(max(0.0, deadline - time.monotonic()))",
        instead="thread.join()",
    ),
)
def test_a_daemon_that_hangs_ends_when_told_to(blog: World) -> None:
    """It says which stage did not end; who is told twice ends at once; what was in hand is done by the next."""
    hasty = Plan(points=(HANGS,), constants={"syncer.service:STOP_SECONDS": 0.5})
    daemon = blog.daemon(program=hasty.program)
    wait_until_reached(daemon, HANGS)
    assert daemon.stop() == 1
    # In so short a time others may not end either.
    assert re.search(r"\bworker-1\b.* did not end within", daemon.log_file.read_text())
    patient = blog.daemon(program=Plan(points=(HANGS,)).program)
    wait_until_reached(patient, HANGS)
    with blog.connect() as connection:
        wait_until(lambda: overview.leader(connection) is not None, what="its relay leads")
        patient.process.send_signal(signal.SIGINT)
        # Two signals that come at once are one.
        wait_until(lambda: overview.leader(connection) is None, what="it ends what can be ended")
    patient.process.send_signal(signal.SIGINT)
    assert patient.process.wait(DEADLINE_SECONDS) == 128 + signal.SIGINT
    blog.daemon()
    blog.wait_until_level()


# Standing still

LEASES = {
    "syncer.relay:LEASE_SECONDS": 2,
    "syncer.job_pages:STALLED_SECONDS": 2,
    "syncer.service:IDLE_SECONDS": 2,
}


def stand_still(daemon: Daemon) -> None:
    """Return once it does."""

    def is_stopped() -> bool:
        return Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    wait_until(is_stopped, what="the daemon stands still", detail=daemon.log_file.read_text)


def go_on(daemon: Daemon) -> None:
    """Let it."""
    daemon.process.send_signal(signal.SIGCONT)


@faces(
    "a daemon stands still between reading and writing for longer than every lease, then writes a deleted document",
    promises=(1, 2, 3),
    without=(
        Rule(
            "a leader that does nothing for long is deposed",
            module="syncer.relay",
            text="if self._connection.execute(_DEPOSE, (LEASE_SECONDS,)).fetchall():",
            instead="if not LEASE_SECONDS:",
        ),
        Rule(
            "what was written long after it was read is written again, by a clock that has not stood still",
            module="syncer.writer",
            text="or state.server_seconds - batch.read_at > DRAW_AGE_SECONDS_MAX",
            instead="",
        ),
    ),
)
def test_a_daemon_stands_still_for_longer_than_every_lease(blog: World) -> None:
    """Others take over all it had; the document that it brings back, long forgotten, is gone again."""
    blog.daemon()
    blog.wait_until_level()
    blog.daemons[0].stop()
    sleeper = Plan(
        points=(Point(at="syncer.index:Index.write", send="SIGSTOP"),),
        constants={"syncer.writer:DRAW_AGE_SECONDS_MAX": 2},
        boot_clock_stands=True,
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


@faces(
    "the only daemon stands still with pages of a job in hand, while somebody waits for the job",
    promises=(4,),
    without=Rule(
        "who waits for a job that nobody moves does it himself",
        module="syncer.backfill",
        text="            return True\n        if now - self._asked_at",
        instead="            return False\n        if now - self._asked_at",
    ),
)
def test_a_job_is_done_beside_a_lane_that_stands_still(blog: World) -> None:
    """A process that is stopped looks alive to Postgres: its pages are taken by who follows the job."""
    stops = Plan(points=(Point(at="syncer.job_pages:take", when="after", send="SIGSTOP"),))
    sleeping = blog.daemon(program=stops.program, environment={"SYNCER_WORKER_FAN_OUT_DOCUMENTS_MAX": "1000"})
    with blog.connect() as connection:
        job = jobs.create(connection, store.served(connection)["blogpost"], JobKind.BACKFILL)
    stand_still(sleeping)
    following = Plan(constants={"syncer.job_pages:STALLED_SECONDS": 1})
    assert_done(blog.syncer("backfill", "blogpost", program=following.program))
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
