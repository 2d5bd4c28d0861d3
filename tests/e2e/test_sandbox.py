"""The embedded servers: they answer, keep what is committed, die and come back, and leave nothing behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from syncer.sandbox import Endpoints, Sandbox


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that the servers' account can look into; pytest's own is closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="syncer-sandbox-"))
    folder.chmod(0o755)
    yield folder / "servers"
    Sandbox(folder / "servers").stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def sandbox(folder: Path) -> Sandbox:
    """A sandbox in that folder; each test starts what it needs."""
    return Sandbox(folder)


@pytest.fixture
def endpoints(sandbox: Sandbox) -> Endpoints:
    """The sandbox, running."""
    return sandbox.start()


def syncer(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as people type it."""
    command = [sys.executable, "-m", "syncer", "sandbox", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def processes_below(folder: Path) -> list[str]:
    """The command lines that name a folder."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line]


def test_second_start_uses_what_runs(folder: Path, sandbox: Sandbox) -> None:
    """The command prints the settings of servers that outlive it; others on the same folder find the same servers."""
    started = syncer("start", "--folder", str(folder), "--json")
    assert started.returncode == 0, started.stderr
    pids = [server.pid for server in sandbox.servers]
    endpoints = sandbox.start()
    assert json.loads(started.stdout) == endpoints.environment()
    assert [server.pid for server in sandbox.servers] == pids
    assert [server.address for server in Sandbox(folder).servers] == [server.address for server in sandbox.servers]


def test_killed_server_comes_back_where_it_was_with_what_was_committed(sandbox: Sandbox, endpoints: Endpoints) -> None:
    """After a kill of its whole family, start recovers every commit on the same port, and leaves the others alone."""
    server = sandbox.postgres
    other_pids = [sandbox.kafka.pid, sandbox.elasticsearch.pid]
    pid = server.pid
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        connection.execute("CREATE TABLE committed (id int)")
    server.kill()
    assert not server.is_running()
    assert not processes_below(server.data_folder)
    assert sandbox.start() == endpoints
    assert server.pid not in {None, pid}
    assert [sandbox.kafka.pid, sandbox.elasticsearch.pid] == other_pids
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        connection.execute("INSERT INTO committed VALUES (1)")
    server.stop(mode="immediate")
    server.start()
    with psycopg.connect(endpoints.postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM committed").fetchone() == (1,)


STRANGERS = {
    "nobody's": {"password": ""},
    "another": {"password": "0" * 32},
    "the database's name": {"password": "postgres"},
    "another database's": {"password": "", "dbname": "template1"},
    "a replica's": {"password": "", "replication": "database"},
}


def test_postgres_asks_for_the_password_of_the_folder(sandbox: Sandbox, endpoints: Endpoints) -> None:
    """Rule: only a user that can read a file of mode 0600 may log in; the printed string has the password."""
    password = sandbox.postgres.password_file
    assert (password.stat().st_mode & 0o777, len(password.read_text())) == (0o600, 32)
    assert password.read_text() in endpoints.postgres_dsn
    for stranger in STRANGERS.values():
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(make_conninfo(endpoints.postgres_dsn, **stranger)).close()


@pytest.mark.usefixtures("endpoints")
def test_stop_leaves_no_process(folder: Path, sandbox: Sandbox) -> None:
    """After a stop, even of a paused server, nothing runs and data is still there; stopping again does no harm."""
    assert "psql" in {program.name for program in sandbox.postgres.bin_folder.iterdir()}
    sandbox.kafka.pause()
    assert "Stopped Postgres, Kafka, Elasticsearch" in syncer("stop", "--folder", str(folder)).stderr
    assert not processes_below(folder)
    assert not any(server.is_running() for server in sandbox.servers)
    stopped_again = syncer("stop", "--folder", str(folder))
    assert (stopped_again.returncode, stopped_again.stderr) == (0, f"No server is running in {folder}\n")
    assert sandbox.postgres.start()
    with psycopg.connect(sandbox.postgres.address) as connection:
        assert connection.execute("SELECT count(*) FROM committed").fetchone() == (1,)
