"""The disk of Postgres is full: applications fail, syncer waits, and continues by itself once there is room."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from pathlib import Path

import psycopg
import pytest

from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.account import server_account
from syncer.sandbox.postgres import PostgresServer
from tests.support.breakpoints import Plan
from tests.support.world import World, made, wait_until
from tests.support.writers import fill, writing

DISK_MB = 100
APART = ("unshare", "--user", "--map-current-user", "--mount", "--keep-caps", "/bin/sh", "-c")
"""Runs a command that may mount, and whose mounts nobody else sees."""
# The log is on another disk: without room for that Postgres ends, which is a crash as any other.
ON_A_SMALL_DISK = """
cp -a "$1/." "$1.seed" && mount -t tmpfs -o size="$3"m,mode=700 tmpfs "$1" && cp -a "$1.seed/." "$1" &&
rm -r "$1/pg_wal" && ln -s "$1.seed/pg_wal" "$1/pg_wal" && exec "$2" -D "$1"
"""


class SmallServer(PostgresServer):
    """A Postgres whose tables are on a small disk of their own, for one start."""

    def _command(self) -> Sequence[str]:
        program = str(self.bin_folder / "postgres")
        return [*APART, ON_A_SMALL_DISK, "sh", str(self.data_folder), program, str(DISK_MB)]


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[SmallServer]:
    """That server, where the kernel lets an ordinary user have a disk."""
    asked = subprocess.run(
        [*APART, "mount -t tmpfs tmpfs /tmp"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        **server_account().popen_arguments(),
    )
    if asked.returncode:
        pytest.skip(f"no user namespaces here: {asked.stderr.strip()}")
    with tempfile.TemporaryDirectory(prefix="syncer-tests-") as folder:
        Path(folder).chmod(0o755)  # for root's servers, which run as nobody
        started = SmallServer(Path(folder), sandbox._cache, sandbox.postgres._account, report=sandbox.postgres._report)
        started.start()
        try:
            yield started
        finally:
            started.stop("immediate")


@pytest.fixture
def world(sandbox: Sandbox, endpoints: Endpoints, server: SmallServer, tmp_path: Path) -> Iterator[World]:
    """The blog on that Postgres."""
    there = changed(endpoints, postgres_dsn=server.address)
    with made(World(sandbox=sandbox, endpoints=there, folder=tmp_path)) as world:
        world.set_up()
        yield world


def fill_the_disk(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Take all the room that there is, to the last page."""
    connection.execute("CREATE TABLE filler (content text STORAGE PLAIN)")
    for size in (1000, 100, 1):
        with suppress(psycopg.errors.DiskFull):
            while True:
                connection.execute("INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, %s)", (size,))


def test_a_full_disk_is_waited_for(world: World) -> None:
    """Nothing is skipped meanwhile, and it is said once, not each time that it is tried."""
    fill(world)
    daemon = world.daemon(program=Plan(constants={"syncer.capture.reader:TRIM_SECONDS": 0.1}).program)
    world.wait_until_level()

    def told() -> int:
        retried = [one for one in daemon.events() if one["event"] == "component.retried"]
        return len([one for one in retried if "No space left" in one["error"]])

    with psycopg.connect(world.endpoints.postgres_dsn, autocommit=True) as connection:
        with writing(world):
            fill_the_disk(connection)
            wait_until(lambda: told() > 0, what="the daemon meets the full disk")
        connection.execute("DROP TABLE filler")
    with writing(world):
        world.sql("UPDATE users SET name = 'room' WHERE id = 1")  # several rows might lead to a deadlock
    world.wait_until_level()
    assert world.syncer("verify").returncode == 0
    assert told() < 25
    assert daemon.stop() == 0
