"""Who writes in a soak: applications on connections of their own, which come back when Postgres does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.support import shapes
from tests.support.world import World
from tests.support.writers import transact

Turn = Callable[[threading.Event, psycopg.Connection[Any], random.Random], object]
"""A transaction or a few, of somebody who has a connection and dice of its own; the event ends it early."""

_RECONNECT_SECONDS = 0.2


class Crowd:
    """Writers at work, unless they rest.

    Args:
        world: Whose database.
        seed: Of their dice.
        find: Told of what no application should meet.
    """

    def __init__(self, world: World, *, seed: int, find: Callable[[str], object]) -> None:
        self._world = world
        self._find = find
        self._is_over = threading.Event()
        self._interrupt = threading.Event()
        self._may_write = threading.Event()
        self._at_work: list[threading.Lock] = []
        self._turns = [0] * len(TURNS)
        self._threads = [
            threading.Thread(target=self._work, args=(number, turn, random.Random(f"{seed} {number}")))
            for number, turn in enumerate(TURNS)
        ]

    @property
    def transactions(self) -> int:
        """How many turns were committed."""
        return sum(self._turns)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """All of them, until the block ends."""
        self._at_work = [threading.Lock() for _ in self._threads]
        for thread in self._threads:
            thread.start()
        self._may_write.set()
        try:
            yield
        finally:
            self._is_over.set()
            self._interrupt.set()
            self._may_write.set()
            for thread in self._threads:
                thread.join()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Nothing is written meanwhile, and no transaction is open."""
        self._may_write.clear()
        self._interrupt.set()
        for lock in self._at_work:
            lock.acquire()
        try:
            yield
        finally:
            self._interrupt.clear()
            for lock in self._at_work:
                lock.release()
            self._may_write.set()

    def _work(self, number: int, turn: Turn, dice: random.Random) -> None:
        connection: psycopg.Connection[Any] | None = None
        while not self._is_over.is_set():
            self._may_write.wait()
            with self._at_work[number]:
                if not self._may_write.is_set() or self._is_over.is_set():
                    continue
                try:
                    if connection is None or connection.closed:
                        connection = psycopg.connect(self._world.dsn, connect_timeout=5)
                    turn(self._interrupt, connection, dice)
                    self._turns[number] += 1
                except psycopg.OperationalError:
                    # The server is away, or a deadlock, or a lock that did not come.
                    self._is_over.wait(_RECONNECT_SECONDS)
                except psycopg.IntegrityError:
                    continue  # a key that is taken, a row that is gone
                except psycopg.Error as error:
                    self._find(f"an application met {error!r}")
        if connection is not None:
            connection.close()


def _shop(interrupt: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """Documents of every shape."""
    with connection.transaction(force_rollback=dice.random() < 0.2):
        for _ in range(dice.randint(1, 5)):
            shapes.write(connection, dice)
            interrupt.wait(dice.choice((0, 0.002, 0.03)))
    interrupt.wait(0.02)


def _upheaval(interrupt: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """Partitions come and go, tables are emptied."""
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '500ms'")
        shapes.upheave(connection, dice)
    interrupt.wait(dice.uniform(2, 10))


def _slow(interrupt: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """A transaction that is open for long, and commits or not."""
    with connection.transaction(force_rollback=dice.random() < 0.3):
        for _ in range(dice.randint(1, 5)):
            shapes.write(connection, dice)
            interrupt.wait(dice.uniform(0, 8))


def _files(interrupt: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """Directories and files are made, renamed, moved and deleted."""
    with connection.transaction():
        connection.execute(*dice.choice(_FILES)(dice))
    interrupt.wait(dice.uniform(0.02, 0.3))


_DIRECTORY, _FILE = 40, 300
_FILES: Sequence[Callable[[random.Random], tuple[Any, ...]]] = (
    lambda r: (
        """
        INSERT INTO directories (id, parent_id, name)
        SELECT %s, (SELECT max(id) FROM directories WHERE id <= %s), %s
        ON CONFLICT (id) DO UPDATE SET name = excluded.name
        """,
        (r.randrange(10, _DIRECTORY), r.randrange(_DIRECTORY), f"d{r.random()}"),
    ),
    lambda r: (
        "UPDATE directories SET parent_id = (SELECT max(id) FROM directories WHERE id < %s) WHERE id = %s AND id > 9",
        (one := r.randrange(10, _DIRECTORY), one),
    ),
    lambda r: ("UPDATE directories SET name = %s WHERE id = %s", (f"d{r.random()}", r.randrange(_DIRECTORY))),
    lambda r: (
        """
        INSERT INTO files (id, directory_id, name, contents)
        SELECT %s, max(id), %s, 'c' FROM directories WHERE id <= %s
        ON CONFLICT (id) DO UPDATE SET directory_id = excluded.directory_id
        """,
        (r.randrange(10, _FILE), f"f{r.random()}", r.randrange(2, _DIRECTORY)),
    ),
    lambda r: ("DELETE FROM files WHERE id = %s", (r.randrange(10, _FILE),)),
    lambda r: (
        "DELETE FROM directories WHERE id = %s AND id > 9",  # and all below it
        (r.randrange(_DIRECTORY),),
    ),
)

TURNS: Sequence[Turn] = (transact, transact, transact, _shop, _shop, _shop, _slow, _upheaval, _files)
