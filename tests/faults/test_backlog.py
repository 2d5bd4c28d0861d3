"""The outbox outgrows its limit while a server is away: it is emptied, no change is lost, and no writer waits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pytest

from syncer.capture import progress
from tests.faults.harness import needs_kafka, require_holds
from tests.support.breakpoints import Plan, Point
from tests.support.network import line
from tests.support.world import Daemon, World, wait_until
from tests.support.writers import fill

_BYTES_MAX = 500_000
_LIMIT = {"SYNCER_RELAY_OUTBOX_BYTES_MAX": "500KB"}
_HASTY = Plan(
    constants={
        "syncer.capture.outbox:BACKLOG_CHANGES_MIN": 500,
        "syncer.capture.reader:TRIM_SECONDS": 0.2,
        "syncer.recovery.backlog:CHECK_SECONDS": 0.2,
    }
)
_SIZE = "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'syncer.outbox'::regclass"
_GIVEN_UP = "SELECT count(*) FROM syncer.event WHERE event = 'relay.backlog_given_up'"
_JOBS = "SELECT count(*) FROM syncer.job WHERE kind = 'refresh' AND occasion ~ 'outbox_bytes_max'"


def outgrow(world: World) -> None:
    """Every kind of change, in small transactions, until the outbox has grown far beyond the limit."""
    with psycopg.connect(world.dsn, autocommit=True, options="-c lock_timeout=2s") as application:
        application.execute("DELETE FROM comments WHERE post_id % 7 = 0")
        application.execute("DELETE FROM posts WHERE id % 7 = 0")
        application.execute(
            "INSERT INTO posts (id, user_id, title, body) SELECT g, 1, 'late', '' FROM generate_series(9001, 9020) g"
        )
        for number in range(150):
            application.execute("UPDATE posts SET title = 'title ' || %s || ' ' || id", (number,))
        application.execute("UPDATE users SET name = 'renamed ' || id")


def wait_until_given_up(world: World, daemon: Daemon) -> None:
    """The outbox is small, its jobs are there, and the timeline tells of it."""
    daemon.wait_for("relay.backlog_given_up")
    wait_until(lambda: world.sql(_SIZE)[0][0] < _BYTES_MAX, what="the outbox is small", detail=world.last_words)
    assert world.sql(_JOBS)[0][0] >= 1
    wait_until(lambda: world.sql(_GIVEN_UP)[0][0] >= 1, what="the timeline tells of it")


@contextmanager
def paused(pid: int | None) -> Iterator[None]:
    """A server of this test run answers nothing until the block ends."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("is_away_at_the_start", [False, True], ids=["while it works", "since it started"])
def test_a_backlog_is_given_up_while_elasticsearch_is_away(world: World, *, is_away_at_the_start: bool) -> None:
    """Without Kafka, the leader gives it up; so does a daemon whose Elasticsearch has never answered."""
    world.uses_kafka = False
    fill(world)
    port = urlsplit(world.endpoints.elasticsearch_url).port
    assert port is not None
    with line(port) as first_line:
        address = first_line.port
        away = {**_LIMIT, "SYNCER_ELASTICSEARCH_URL": f"http://127.0.0.1:{address}"}
        if not is_away_at_the_start:
            daemon = world.daemon(plan=_HASTY, environment=away)
            require_holds(world)
    if is_away_at_the_start:
        daemon = world.daemon(plan=_HASTY, environment=away, until="component.retried")
    outgrow(world)
    wait_until_given_up(world, daemon)
    world.sql("UPDATE posts SET body = 'after the backlog' WHERE id < 10")
    with line(port, port=address):
        require_holds(world)
    assert daemon.stop() == 0


@needs_kafka
@pytest.mark.parametrize("is_away_at_the_start", [False, True], ids=["while it works", "since it started"])
def test_a_backlog_is_given_up_while_kafka_is_away(world: World, *, is_away_at_the_start: bool) -> None:
    """With Kafka, changes wait in the outbox only while Kafka is away; no relay leads then."""
    fill(world)
    if not is_away_at_the_start:
        daemon = world.daemon(plan=_HASTY, environment=_LIMIT)
        require_holds(world)
    with paused(world.sandbox.kafka.pid):
        if is_away_at_the_start:
            daemon = world.daemon(plan=_HASTY, environment=_LIMIT, until="component.retried")
        outgrow(world)
        wait_until_given_up(world, daemon)
        world.sql("UPDATE posts SET body = 'after the backlog' WHERE id < 10")
    require_holds(world)
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    "point",
    [Point(at="syncer.jobs.queue:create"), Point(at="syncer.jobs.queue:create", when="after")],
    ids=["before", "after"],
)
def test_a_leader_that_dies_while_it_gives_up_the_backlog_loses_nothing(world: World, point: Point) -> None:
    """The cursor and the jobs are one transaction: the next leader finds both, or neither."""
    world.uses_kafka = False
    fill(world)
    outgrow(world)
    dies = replace(_HASTY, points=(point,))
    world.daemon(plan=dies, environment=_LIMIT, until="daemon.joined").exit_code()
    assert world.sql(_JOBS) == [(0,)]
    wait_until_given_up(world, world.daemon(plan=_HASTY, environment=_LIMIT))
    require_holds(world)


def test_what_an_open_transaction_has_written_is_no_backlog(world: World) -> None:
    """It cannot be read, and to give it up would free nothing: no document is written again for it."""
    world.uses_kafka = False
    fill(world)
    daemon = world.daemon(plan=_HASTY, environment=_LIMIT)
    with psycopg.connect(world.dsn) as application, world.connect() as connection:
        application.execute("UPDATE users SET email = email || '.'; UPDATE users SET name = name || '.';" * 1000)
        assert world.sql(_SIZE)[0][0] > _BYTES_MAX
        for _ in range(10):
            world.sql("UPDATE posts SET body = body || '.'")
            moment = progress.moment(connection)
            wait_until(partial(progress.is_handled, connection, moment), what="what is committed is handled")
        application.rollback()
    require_holds(world)
    assert world.sql(_JOBS) == [(0,)]
    assert daemon.stop() == 0
