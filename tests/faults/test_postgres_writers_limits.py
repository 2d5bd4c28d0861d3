"""A writer's own limits: what captures its changes does not fail, or wait, where the same write would not."""

from __future__ import annotations

from pathlib import Path

import psycopg

from syncer.sandbox import Endpoints, Sandbox
from tests.support.breakpoints import Plan
from tests.support.world import World, made, postgres_with

FILL = """
INSERT INTO users (id, name, email) VALUES (1, 'John', '');
INSERT INTO posts (id, user_id, title, body) SELECT n, 1, repeat('t', 200), '' FROM generate_series(1, 20000) AS n
"""
DEBUG = {"SYNCER_LOG_LEVEL": "debug"}
TRIMS = Plan(constants={"syncer.capture.reader:TRIM_SECONDS": 0.05})
REWRITE = "UPDATE posts SET title = title || '!'"


def test_a_writer_without_temporary_files_is_captured(world: World) -> None:
    """The trigger needs none, however many rows a statement changes."""
    world.sql(FILL)
    with world.application() as connection:
        connection.execute("SET temp_file_limit = 0; SET work_mem = '64kB'")
        connection.execute(REWRITE)
        connection.commit()


def test_a_lock_timeout_of_a_moment_is_not_exceeded_while_the_relay_trims(world: World) -> None:
    """The relay truncates no segment that a writer is using, so no writer waits for it."""
    world.daemon("--only", "relay", environment=DEBUG, program=TRIMS.program).wait_for("relay.led")
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', '')")
    with world.application() as connection:
        connection.execute("SET lock_timeout = '1ms'")
        connection.commit()
        for number in range(1000):
            connection.execute("UPDATE users SET name = %s WHERE id = 1", (str(number),))
            connection.commit()
    world.daemons[0].wait_for("relay.outbox_trimmed")


def test_a_writer_that_waits_for_no_standby_waits_for_none_of_syncers_commits(
    sandbox: Sandbox, endpoints: Endpoints, tmp_path: Path
) -> None:
    """While a synchronous standby is away, the relay that trims holds no lock until it comes back."""
    with (
        postgres_with(endpoints, {}) as others,
        made(World(sandbox=sandbox, endpoints=others, folder=tmp_path)) as world,
    ):
        world.set_up()
        relay = world.daemon("--only", "relay", environment=DEBUG, program=TRIMS.program)
        relay.wait_for("relay.led")
        world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', '')")
        with psycopg.connect(others.postgres_dsn, autocommit=True) as operator, world.application() as connection:
            operator.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
            operator.execute("SELECT pg_reload_conf()")
            connection.execute("SET synchronous_commit = 'local'; SET lock_timeout = '1ms'")
            connection.commit()
            for number in range(1000):
                connection.execute("UPDATE users SET name = %s WHERE id = 1", (str(number),))
                connection.commit()
            operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            operator.execute("SELECT pg_reload_conf()")
        relay.wait_for("relay.outbox_trimmed")
