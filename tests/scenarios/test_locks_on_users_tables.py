"""The locks that docs/your-postgres.md promises: one table at a time, and none stronger than the page says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from syncer.base.postgres import Connection
from syncer.capture import install as capture_install
from syncer.capture.triggers import Capture
from tests.support.capture import capture_only, plan
from tests.support.world import World

TABLES = """
CREATE TABLE shelves (id int PRIMARY KEY, name text);
CREATE TABLE books (id int PRIMARY KEY, shelf_id int, title text, pages int) PARTITION BY RANGE (id);
CREATE TABLE books_1 PARTITION OF books FOR VALUES FROM (0) TO (1000);
CREATE TABLE books_2 PARTITION OF books DEFAULT;
"""
SELECT = "SELECT b.id AS _id, b.title, s.name AS shelf FROM books AS b LEFT JOIN shelves AS s ON s.id = b.shelf_id"
BOOKS = ["books", "books_1", "books_2"]
LOCKS = """
SELECT c.relname::text, array_agg(DISTINCT l.mode ORDER BY l.mode)
FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
WHERE l.pid = pg_backend_pid() AND l.granted AND c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
  AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
GROUP BY 1
"""


@pytest.fixture
def connection(empty_world: World) -> Iterator[Connection]:
    """A session that keeps every lock until the test ends."""
    capture_only(empty_world, TABLES, SELECT)
    with empty_world.connect() as connection:
        yield connection


def captures(world: World) -> dict[str, Capture]:
    """What apply would install, by table."""
    return {capture.relation: capture for capture in plan(world).captures}


def locks(connection: Connection) -> dict[str, list[str]]:
    """The tables that this session has locked so that writers wait, with the modes."""
    return dict(connection.execute(LOCKS).fetchall())


@pytest.mark.parametrize(
    ("relation", "tables"), [("public.books", BOOKS), ("public.shelves", ["shelves"])], ids=["partitioned", "plain"]
)
def test_one_table_with_its_partitions_is_locked(
    empty_world: World, connection: Connection, relation: str, tables: list[str]
) -> None:
    """Removing triggers takes the strongest lock for a moment; creating them lets reads go on."""
    with connection.transaction():
        capture_install.remove(connection, relation)
        assert locks(connection) == {table: ["AccessExclusiveLock"] for table in tables}
    with connection.transaction():
        capture_install.install(connection, captures(empty_world)[relation])
        assert locks(connection) == {table: ["ShareRowExclusiveLock"] for table in tables}


def test_triggers_that_are_as_wanted_lock_no_table(empty_world: World, connection: Connection) -> None:
    """An apply that changes nothing makes no writer wait."""
    with connection.transaction():
        for capture in captures(empty_world).values():
            capture_install.install(connection, capture)
        assert locks(connection) == {}
