"""Postgres refuses, ends and limits connections: the daemon waits, logs it once, and continues by itself."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from syncer.base import postgres
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.postgres import PostgresServer
from tests.support.world import DEADLINE_SECONDS, Daemon, World, made, postgres_server, wait_until
from tests.support.writers import Work, at_work, fill

ROLE = "syncer_worker"
PASSWORD = "one"  # noqa: S105 - of a server that ends with the test
GRANTS = """
GRANT USAGE ON SCHEMA syncer TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA syncer TO {role};
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA syncer TO {role};
GRANT SELECT ON users, posts, comments TO {role};
"""
OURS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'syncer %%' AND datname = %s"
REFUSALS = (
    ("ALTER ROLE {role} CONNECTION LIMIT 2", "too many connections", "ALTER ROLE {role} CONNECTION LIMIT -1"),
    (
        "ALTER DATABASE {database} SET default_transaction_read_only = on",
        "read-only transaction",
        "ALTER DATABASE {database} RESET default_transaction_read_only",
    ),
)
"""What is refused, how the server says that, and how it is allowed again."""
TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)
"""What an operator may set for a role that should do nothing for long."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A Postgres of these tests' own, in which that role needs its password."""
    with postgres_server({}) as started:
        with psycopg.connect(started.address, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
            rules = started.data_folder / "pg_hba.conf"
            rules.write_text(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
            connection.execute("SELECT pg_reload_conf()")
        yield started


@pytest.fixture
def world(sandbox: Sandbox, endpoints: Endpoints, server: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """The blog on that Postgres."""
    there = changed(endpoints, postgres_dsn=server.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.set_up()
        world.sql(GRANTS.format(role=ROLE))
        fill(world)
        yield world
        admin(world, f"ALTER ROLE {ROLE} PASSWORD '{PASSWORD}'")


def admin(world: World, statement: str) -> None:
    """What the operator does."""
    with psycopg.connect(world.endpoints.postgres_dsn, autocommit=True) as connection:
        connection.execute(statement)


def end_all(world: World) -> None:
    """End every connection of the daemon."""
    for (pid,) in world.sql(OURS, world.name):
        world.sql("SELECT pg_terminate_backend(%s)", pid)


def passfile(world: World, password: str) -> Path:
    """A file with the role's password, which libpq reads at each connection."""
    file = world.folder / "passwords"
    file.write_text(f"*:*:*:{ROLE}:{password}\n")
    file.chmod(0o600)
    return file


def of_role(world: World) -> dict[str, str]:
    """What a daemon of that role has in its environment."""
    return {
        "SYNCER_POSTGRES_DSN": world.dsn.replace("postgres@", f"{ROLE}@"),
        "PGPASSFILE": str(passfile(world, PASSWORD)),
    }


def told(daemon: Daemon, said: str) -> int:
    """How often the daemon has said so."""
    return len([one for one in daemon.events() if one["event"] == "component.retried" and said in one["error"]])


def test_a_database_that_refuses_is_waited_for(world: World) -> None:
    """The daemon says what the server says, once for each component, and goes on when it is allowed to."""
    daemon = world.daemon(environment=of_role(world))
    names = {"role": ROLE, "database": f'"{world.name}"'}
    for number, (refuse, said, allow) in enumerate(REFUSALS):
        world.wait_until_level()
        admin(world, refuse.format(**names))
        end_all(world)
        wait_until(lambda said=said: told(daemon, said) > 0, what=f"the daemon meets: {said}")  # type: ignore[misc]
        world.sql(f"SET TRANSACTION READ WRITE; UPDATE posts SET title = 'refused {number}' WHERE id < 5")
        admin(world, allow.format(**names))
        world.wait_until_level()
        assert told(daemon, said) < 25
    admin(world, f"ALTER ROLE {ROLE} PASSWORD 'another'")
    end_all(world)
    wait_until(lambda: told(daemon, "password authentication failed") > 0, what="the daemon meets another password")
    world.sql("UPDATE posts SET title = 'another' WHERE id < 5")
    passfile(world, "another")
    world.wait_until_level()
    assert daemon.stop() == 0


def test_timeouts_of_the_role_are_not_ours(world: World) -> None:
    """Whatever is set for the role or the database, our sessions have none."""
    for one in TIMEOUTS:
        admin(world, f"ALTER ROLE postgres SET {one} = '2s'")
    try:
        with world.connect() as connection:
            assert [connection.execute(f"SHOW {one}").fetchone() for one in TIMEOUTS] == [("0",)] * len(TIMEOUTS)
    finally:
        admin(world, "ALTER ROLE postgres RESET ALL")


def test_a_question_that_arrives_nowhere_is_given_up(world: World) -> None:
    """It is not sent again and again for a quarter of an hour, while a new primary waits."""
    with world.connect() as connection, socket.socket(fileno=os.dup(connection.fileno())) as wire:
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


IS_CONNECTED = "SELECT FROM pg_stat_activity WHERE pid = %s"


def test_who_takes_nothing_of_an_answer_holds_no_locks(world: World) -> None:
    """A relay that is stopped amid a great many changes does not stay the leader for as long as it is stopped."""
    everything = sql.SQL("SELECT repeat('x', 1000) FROM generate_series(1, 1000000)")
    with (
        postgres.connect(world.settings.postgres, name="test", idle_seconds_max=1) as connection,
        closing(postgres.copied(connection, everything)) as rows,
    ):
        next(rows)
        pid = connection.info.backend_pid
        wait_until(lambda: not world.sql(IS_CONNECTED, pid), what="its session is over")
        with suppress(psycopg.Error):  # what had been sent by then may be the rest of a message, or end with one
            deque(rows, maxlen=0)


def _again(connection: psycopg.Connection[Any], level: str, dice: random.Random) -> None:
    """One transaction as an application does it that begins again when it has met another one."""
    with suppress(psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected), connection.transaction():
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        for _ in range(3):
            post = dice.randrange(20)
            connection.execute("SELECT count(*) FROM posts WHERE user_id = %s", (dice.randrange(6),))
            connection.execute("UPDATE posts SET title = %s WHERE id = %s", (f"{level} {dice.random()}", post))
            with connection.transaction(force_rollback=dice.random() < 0.5):  # a savepoint
                connection.execute("UPDATE users SET name = %s WHERE id = %s", (str(dice.random()), post % 6))


def test_transactions_that_fail_leave_nothing(world: World) -> None:
    """What is rolled back is not published; what is tried again arrives; no trigger is bypassed."""
    daemon = world.daemon()

    def work(level: str, *, replica: bool = False) -> Work:
        def run(stop: threading.Event, connection: psycopg.Connection[Any], dice: random.Random) -> None:
            if replica:
                connection.execute("SET session_replication_role = replica")
                connection.commit()
            while not stop.is_set():
                _again(connection, level, dice)

        return run

    works = [work("SERIALIZABLE"), work("SERIALIZABLE"), work("REPEATABLE READ"), work("READ COMMITTED", replica=True)]
    with at_work(world, works):
        time.sleep(2)
    world.wait_until_level()
    assert daemon.stop() == 0


def test_a_database_that_is_being_restored_is_waited_for(world: World, server: PostgresServer) -> None:
    """The daemon meets it half full, and keeps out of the way until all of it is there."""
    daemon = world.daemon()
    world.wait_until_level()
    dump = subprocess.run(
        [server.bin_folder / "pg_dump", world.dsn], capture_output=True, check=True, timeout=DEADLINE_SECONDS
    ).stdout.decode()
    world.sql("INSERT INTO posts (id, user_id, title, body) VALUES (1000, 1, 'lost', '')")
    world.wait_until_level()
    admin(world, f'DROP DATABASE "{world.name}" WITH (FORCE)')
    admin(world, f'CREATE DATABASE "{world.name}"')
    half = dump.index("COPY syncer.cursor")
    restrict = "".join(line for line in dump.splitlines(keepends=True) if line.startswith("\\restrict"))
    psql = [str(server.bin_folder / "psql"), "--quiet", "--set=ON_ERROR_STOP=1", world.dsn]
    subprocess.run(psql, input=dump[:half].encode(), capture_output=True, check=True, timeout=DEADLINE_SECONDS)
    before = sessions(world)
    wait_until(lambda: sessions(world) > before + 8, what="each component looks at what is there")
    rest = (restrict + dump[half:]).encode()
    subprocess.run(psql, input=rest, capture_output=True, check=True, timeout=DEADLINE_SECONDS)
    world.wait_until_level()
    assert told(daemon, "no syncer schema") <= 6
    assert daemon.stop() == 0


def sessions(world: World) -> int:
    """How many sessions the database has had."""
    with psycopg.connect(world.endpoints.postgres_dsn, autocommit=True) as connection:
        row = connection.execute("SELECT sessions FROM pg_stat_database WHERE datname = %s", (world.name,)).fetchone()
        assert row is not None
        return int(row[0])
