"""The applications of a soak: two schemas of some thirty tables, and random writers that reconnect."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from syncer.demo import guide
from tests.support import random_tables, shapes
from tests.support.world import BLOG_SCHEMA, World
from tests.support.writers import fill, transact

SHIPPED = ("blogpost", "discussion", "post", "user", "file")
_MESH = {
    "node": """
SELECT r.id AS _id, r.v,
       (SELECT jsonb_agg(k.d ORDER BY k.d) FROM kept AS k WHERE k.c = r.id) AS kept,
       (SELECT jsonb_agg(b.d ORDER BY b.d) FROM both_kinds AS b WHERE b.c = r.id) AS kinds,
       (SELECT count(*) FROM "other.one"."Or""der ü" AS o WHERE o.r_id = r.id) AS orders
FROM r
""",
    "pair": """
SELECT b.p || '-' || b.q AS _id, b.v,
       (SELECT jsonb_agg(t.tags ORDER BY t.id) FROM t WHERE t.n = b.n) AS tags,
       (SELECT jsonb_agg(l.v ORDER BY l.a_id) FROM l WHERE l.r_id = b.r_id) AS links
FROM b
""",
}
"""Documents of the random tables: views over views, a key of two columns, names that need quotes."""
_RECONNECT_SECONDS = 0.2

Turn = Callable[[threading.Event, psycopg.Connection[Any], random.Random], object]
"""One transaction, and the pause after it; the event ends both early."""


def set_up(world: World) -> None:
    """The tables with rows, and every document applied."""
    world.use(*SHIPPED)
    world.documents = (*SHIPPED, *shapes.define(world.config, world.alias_of), *_MESH)
    for name, select in _MESH.items():
        world.define(name, select, {"dynamic": False})
    schemas = (BLOG_SCHEMA.read_text(), guide.schema("filesystem"), guide.models()["files"].rows, shapes.SCHEMA)
    for schema in (*schemas, random_tables.SCHEMA):
        world.sql(schema)
    world.sql("ALTER TABLE posts ADD COLUMN extra text DEFAULT 'extra'")
    fill(world)
    with world.application() as connection:
        shapes.fill(connection, random.Random(0))
    world.migrate()
    world.apply()


class Applications:
    """Random writers, each with a connection and dice of its own.

    Args:
        world: Their database.
        seed: Of their dice.
        find: Called with an error that no application should meet.

    Attributes:
        transactions: How many were done.
    """

    def __init__(self, world: World, *, seed: int, find: Callable[[str], object]) -> None:
        self._world = world
        self._find = find
        self._is_over = threading.Event()
        self._interrupt = threading.Event()
        self._may_write = threading.Event()
        self._at_work = [threading.Lock() for _ in TURNS]
        self._threads = [
            threading.Thread(target=self._work, args=(number, turn, random.Random(f"{seed} {number}")))
            for number, turn in enumerate(TURNS)
        ]
        self.transactions = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """They write while the block lasts."""
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
        """Nothing is written while the block lasts, and no transaction is open."""
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
                    self.transactions += 1
                except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
                    # The server is away, or not yet promoted; a deadlock, or a lock that was not granted in time.
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


def _mesh(interrupt: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """A few small tables whose rows meet often."""
    for statements in random_tables.transactions(dice, random_tables.COLUMNS):
        with connection.transaction(force_rollback=dice.random() < 0.2):
            connection.execute("SET LOCAL lock_timeout = '500ms'")
            for statement in statements:
                connection.execute(statement.encode())
        interrupt.wait(0.05)


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
            interrupt.wait(dice.uniform(0, 5))


def _files(interrupt: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
    """Directories and files are made, renamed, moved and deleted."""
    with connection.transaction():
        connection.execute(*dice.choice(_FILES)(dice))
    interrupt.wait(dice.uniform(0.02, 0.3))


_DIRECTORIES, _FILES_MAX = 40, 300
_FILES: Sequence[Callable[[random.Random], tuple[Any, ...]]] = (
    lambda r: (
        """
        INSERT INTO directories (id, parent_id, name)
        SELECT %s, (SELECT max(id) FROM directories WHERE id <= %s), %s
        ON CONFLICT (id) DO UPDATE SET name = excluded.name
        """,
        (r.randrange(10, _DIRECTORIES), r.randrange(_DIRECTORIES), f"d{r.random()}"),
    ),
    lambda r: (
        "UPDATE directories SET parent_id = (SELECT max(id) FROM directories WHERE id < %s) WHERE id = %s AND id > 9",
        2 * (r.randrange(10, _DIRECTORIES),),
    ),
    lambda r: ("UPDATE directories SET name = %s WHERE id = %s", (f"d{r.random()}", r.randrange(_DIRECTORIES))),
    lambda r: (
        """
        INSERT INTO files (id, directory_id, name, contents)
        SELECT %s, max(id), %s, 'c' FROM directories WHERE id <= %s
        ON CONFLICT (id) DO UPDATE SET directory_id = excluded.directory_id
        """,
        (r.randrange(10, _FILES_MAX), f"f{r.random()}", r.randrange(2, _DIRECTORIES)),
    ),
    lambda r: ("DELETE FROM files WHERE id = %s", (r.randrange(10, _FILES_MAX),)),
    lambda r: (
        "DELETE FROM directories WHERE id = %s AND id > 9",  # and all below it
        (r.randrange(_DIRECTORIES),),
    ),
)

TURNS: Sequence[Turn] = (transact, transact, _shop, _shop, _mesh, _slow, _upheaval, _files)
