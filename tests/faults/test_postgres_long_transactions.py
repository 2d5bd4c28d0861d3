"""Transactions that stay open keep nothing waiting, and nothing from being given back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from syncer.base import postgres
from syncer.capture import outbox
from tests.support.breakpoints import Plan
from tests.support.world import Daemon, World, wait_until
from tests.support.writers import fill

ROUNDS, POSTS = 250, 120
ROW_BYTES_MIN = 100
"""What a row of the outbox takes, at least."""
SAVES, PAGES_MAX = 1000, 20
"""As many versions of the cursor's row take some 40 pages."""
FIND_CURSOR = "SELECT snapshot FROM syncer.cursor ORDER BY id DESC LIMIT 1"


@contextmanager
def open_transactions(world: World) -> Iterator[psycopg.Connection[Any]]:
    """One that reads, one that has done nothing, and one that has written what is captured, which is yielded."""
    with ExitStack() as stack:
        reading, idle, wrote = (stack.enter_context(psycopg.connect(world.dsn)) for _ in range(3))
        reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reading.execute("SELECT count(*) FROM posts")
        idle.execute("SELECT 1")
        wrote.execute("INSERT INTO posts (id, user_id, title, body) VALUES (1000, 1, 'late', '')")
        yield wrote


def published(daemon: Daemon) -> int:
    """How many changes the daemon's relay has published."""
    return sum(one["changes"] for one in daemon.events() if one["event"] == "relay.batch_published")


def outbox_bytes(world: World) -> int:
    """How large the outbox is."""
    query = (
        "SELECT sum(pg_relation_size(inhrelid))::bigint FROM pg_inherits WHERE inhparent = 'syncer.outbox'::regclass"
    )
    found: int = world.sql(query)[0][0]
    return found


def test_what_is_open_for_long_keeps_nothing_waiting(world: World) -> None:
    """Each change is published once, and its room given back, while they are open; then theirs arrive as well."""
    fill(world)
    before = len(world.outbox())
    daemon = world.daemon(program=Plan(constants={"syncer.capture.reader:TRIM_SECONDS": 0.1}).program)
    world.wait_until_level()
    with open_transactions(world) as wrote:
        with world.application() as connection:
            more = "SELECT g, g %% 6, '', '' FROM generate_series(60, %s) AS g"
            connection.execute(f"INSERT INTO posts (id, user_id, title, body) {more}", (POSTS - 1,))
            for number in range(ROUNDS):
                connection.execute("UPDATE posts SET title = %s WHERE id < %s", (str(number), POSTS))
                connection.commit()
        changes = ROUNDS * POSTS + POSTS - 60
        wait_until(lambda: published(daemon) >= before + changes, what="all of them are published")
        world.wait_until_level()
        # The segment that the open transaction has written is kept, and whatever came into it.
        wait_until(lambda: outbox_bytes(world) < changes * ROW_BYTES_MIN // 2, what="their room is given back")
        assert published(daemon) == before + changes
        wrote.commit()
    world.wait_until_level()
    assert "1000" in world.held()
    assert daemon.stop() == 0


def pages_passed(world: World) -> int:
    """How many pages Postgres looks at to find the saved cursor by its key, as whoever saves it does."""
    with postgres.connect(world.settings.postgres, name="test") as connection:
        outbox.prepare(connection)
        ((said,),) = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {FIND_CURSOR}").fetchall()
    plan = json.loads(said)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_the_cursor_is_found_at_once_however_often_it_was_saved(world: World) -> None:
    """Whoever looks for the cursor passes few of the versions that cannot be vacuumed yet."""
    world.apply()
    with world.relay() as relay, world.application() as reading, world.application() as connection:
        relay.run_once()
        reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reading.execute("SELECT count(*) FROM posts")
        connection.autocommit = True
        for number in range(SAVES):
            connection.execute("INSERT INTO users (id, name, email) VALUES (%s, 'somebody', '')", (number,))
            assert relay.run_once().published == 1
        assert pages_passed(world) <= PAGES_MAX
