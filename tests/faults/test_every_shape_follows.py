"""Every shape at once: documents of all kinds follow random writers while daemons are killed."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psycopg

from tests.support.shapes import SCHEMA, define, fill, move_partition, upheave, write
from tests.support.world import DEADLINE_SECONDS, World
from tests.support.writers import QUICK_FAILOVER, SECONDS, SEED, Work, at_work

ENVIRONMENT = {
    "SYNCER_KAFKA_PROPERTIES": QUICK_FAILOVER,
    "SYNCER_WATCH_SECONDS": "0.5",
}


def test_documents_of_every_shape_follow_random_writers(empty_world: World) -> None:
    """Whatever is written, in whatever shape it is shown, and whoever is killed: all ends as the SELECTs say."""
    world = empty_world
    world.worker_settings = ENVIRONMENT
    set_up(world)
    for _ in range(2):
        world.daemon()
    dice = random.Random(SEED)
    with at_work(world, [*[again_and_again(some_writes)] * 4, again_and_again(some_upheavals)]):
        kill_now_and_then(world, dice)
    world.wait_until_level(seconds=2 * DEADLINE_SECONDS)
    # Who is behind composes what has long changed again, and makes good what it missed. Now nobody is.
    with at_work(world, [again_and_again(some_quiet_writes)]):
        time.sleep(SECONDS / 2)
    with world.application() as connection:
        move_partition(connection, dice)
    world.wait_until_level()
    assert world.sql("SELECT * FROM syncer.dead_letter") == []
    assert world.sql("SELECT name, suspended FROM syncer.document WHERE suspended IS NOT NULL") == []


def set_up(world: World) -> None:
    """Tables with rows, and all documents active."""
    world.use()
    world.documents = define(world.config, world.alias_of)
    world.sql(SCHEMA)
    with world.application() as connection:
        fill(connection, random.Random(SEED))
    world.migrate()
    world.apply()


def kill_now_and_then(world: World, dice: random.Random) -> None:
    """SIGKILL for one of the daemons, again and again, each time with another one in its place."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(dice.uniform(1, 3))
        victim = dice.choice([one for one in world.daemons if one.process.poll() is None])
        victim.kill()
        world.daemon()


def again_and_again(turn: Work) -> Work:
    """Work that is turns, one after the other."""

    def work(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        while not stop.is_set():
            try:
                turn(stop, connection, dice)
            except (psycopg.IntegrityError, psycopg.OperationalError):
                # A key that is taken, a row or a partition that is gone, a deadlock: on with the next thing.
                continue

    return work


def some_writes(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """A transaction of one to five things, with pauses inside; a fifth of them roll back."""
    with connection.transaction(force_rollback=dice.random() < 0.2):
        for _ in range(dice.randint(1, 5)):
            write(connection, dice)
            stop.wait(dice.choice((0, 0.002, 0.002, 0.03)))
    stop.wait(0.01)


def some_quiet_writes(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """A transaction of one or two things, and time for the daemons to follow it."""
    with connection.transaction():
        for _ in range(dice.randint(1, 2)):
            write(connection, dice)
    stop.wait(0.03)


def some_upheavals(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """What touches all documents that read a table."""
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '500ms'")
        upheave(connection, dice)
    stop.wait(dice.uniform(0.3, 1.5))
