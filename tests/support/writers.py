"""Random writers: applications that change the blog all at once, with pauses, rollbacks and deadlocks."""

from __future__ import annotations

import faulthandler
import os
import random
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.support.world import DEADLINE_SECONDS, World

SEED = int(os.environ.get("SYNCER_TEST_SEED") or random.SystemRandom().randrange(10**6))
SECONDS = float(os.environ.get("SYNCER_TEST_SECONDS", "3"))
"""How long random writers write."""
QUICK_FAILOVER = '{"session.timeout.ms": 2000}'
"""Kafka's client settings with which a dead worker's partitions are soon taken over."""

_USERS, _POSTS, _COMMENTS = 6, 60, 200

# Small key spaces, so that writers meet on the same rows and documents.
_STATEMENTS: tuple[Callable[[random.Random], tuple[str, tuple[Any, ...]]], ...] = (
    lambda r: ("UPDATE users SET name = %s WHERE id = %s", (f"name {r.random()}", r.randrange(_USERS))),
    lambda r: ("UPDATE posts SET title = %s WHERE id = %s", (f"title {r.random()}", r.randrange(_POSTS))),
    lambda r: ("UPDATE posts SET views = views + 1 WHERE id = %s", (r.randrange(_POSTS),)),
    lambda r: ("UPDATE posts SET user_id = %s WHERE id = %s", (r.randrange(_USERS), r.randrange(_POSTS))),
    lambda r: ("UPDATE posts SET user_id = %s WHERE user_id = %s", (r.randrange(_USERS), r.randrange(_USERS))),
    lambda r: (
        "INSERT INTO posts (id, user_id, title, body) VALUES (%s, %s, %s, '') ON CONFLICT (id) DO NOTHING",
        (r.randrange(_POSTS), r.randrange(_USERS), f"title {r.random()}"),
    ),
    lambda r: ("DELETE FROM posts WHERE id = %s", (r.randrange(_POSTS),)),
    lambda r: ("UPDATE posts SET id = %s WHERE id = %s", (r.randrange(_POSTS), r.randrange(_POSTS))),
    lambda r: (
        """
        INSERT INTO comments (id, post_id, name, comment) VALUES (%s, %s, 'c', %s)
        ON CONFLICT (id) DO UPDATE SET comment = excluded.comment, post_id = excluded.post_id
        """,
        (r.randrange(_COMMENTS), r.randrange(_POSTS), f"comment {r.random()}"),
    ),
    lambda r: ("DELETE FROM comments WHERE id = %s", (r.randrange(_COMMENTS),)),
    lambda r: ("DELETE FROM comments WHERE post_id = %s", (r.randrange(_POSTS),)),
    lambda r: ("UPDATE comments SET post_id = %s WHERE post_id = %s", (r.randrange(_POSTS), r.randrange(_POSTS))),
)


def fill(world: World) -> None:
    """Users that stay, and posts to begin with."""
    world.sql("INSERT INTO users (id, name, email) SELECT g, 'name ' || g, '' FROM generate_series(0, 5) AS g")
    world.sql("INSERT INTO posts (id, user_id, title, body) SELECT g, g % 6, 't', '' FROM generate_series(0, 59) AS g")


@contextmanager
def writing(world: World, *, writers: int = 4) -> Iterator[None]:
    """Writers at work until the block ends; each has a connection of its own."""
    with at_work(world, [write_until] * writers):
        yield


Work = Callable[[threading.Event, psycopg.Connection[Any], random.Random], object]
"""What one thread does until it is told to stop: an application with a connection and dice of its own."""


@contextmanager
def at_work(world: World, works: Sequence[Work]) -> Iterator[None]:
    """All of them at work until the block ends; what one of them raises fails the test."""
    print(f"SYNCER_TEST_SEED={SEED}")  # noqa: T201 - pytest shows it when the test fails
    stop = threading.Event()

    def run(number: int, work: Work) -> None:
        with world.application() as connection:
            work(stop, connection, random.Random(SEED + number))

    pool = ThreadPoolExecutor(len(works))
    running = [pool.submit(run, number, work) for number, work in enumerate(works)]
    try:
        yield
    except BaseException:
        faulthandler.dump_traceback()  # where each of them is
        raise
    finally:
        stop.set()
        wait(running, DEADLINE_SECONDS)
        for writer in running:
            if writer.done() and (error := writer.exception()):
                traceback.print_exception(error)  # it may be why the test fails for another reason
    for writer in running:
        writer.result(0)


def write_until(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """Transactions, one after the other."""
    while not stop.is_set():
        try:
            transact(stop, connection, dice)
        except (psycopg.errors.IntegrityError, psycopg.errors.OperationalError) as error:
            if connection.closed:  # it may be gone by the time that it rolls back what was refused
                raise psycopg.OperationalError("the connection is gone") from error
            # A key that is taken, a row that is gone, a deadlock: an application goes on with the next thing.
            continue


def transact(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """A transaction of one to five statements, with pauses inside; a fifth of them roll back."""
    with connection.transaction(force_rollback=dice.random() < 0.2):
        for _ in range(dice.randint(1, 5)):
            connection.execute(*dice.choice(_STATEMENTS)(dice))
            stop.wait(dice.choice((0, 0, 0.002, 0.03)))


@contextmanager
def altering(world: World) -> Iterator[None]:
    """A migration has locked the posts until the block ends."""
    with world.application() as migration:
        migration.execute("LOCK TABLE posts IN ACCESS EXCLUSIVE MODE")
        yield
        migration.rollback()
