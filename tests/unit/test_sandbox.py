"""What a sandbox refuses and chooses before it starts anything; how it finds, stops and kills processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from syncer.base.errors import SandboxError
from syncer.sandbox import Sandbox, Versions, server
from syncer.sandbox.cache import Account, Cache
from syncer.sandbox.process import ProcessMark
from syncer.sandbox.server import PORTS, EmbeddedServer, chosen_ports

EPHEMERAL_PORTS_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that every account can enter, as far as sandboxes are told."""
    monkeypatch.setattr(Account, "can_enter", lambda *_: True)
    return tmp_path


def test_folder_keeps_the_version_of_its_first_start(folder: Path) -> None:
    """Data of one version is never given to a server of another."""
    (folder / "postgres.json").write_text('{"version": "14"}')
    assert Sandbox(folder).postgres.version == "14"
    with pytest.raises(SandboxError, match="is version 14, not 15") as raised:
        Sandbox(folder, versions=Versions(postgres="15")).postgres.start()
    assert "--folder" in raised.value.hint


@pytest.mark.parametrize("name", ["postgres", "kafka", "elasticsearch", "opensearch"])
def test_unknown_version_is_refused_before_anything_is_made(folder: Path, name: str) -> None:
    """The error names the versions that there are, and the folder keeps none."""
    sandbox = Sandbox(folder, versions=Versions(**{name: "1.0"}))
    [chosen] = [server for server in sandbox.servers if server.name.lower() == name]
    with pytest.raises(SandboxError, match=rf"no {chosen.name} 1\.0") as raised:
        chosen.start()
    assert chosen.default_version in raised.value.hint
    assert not chosen.folder.exists()
    assert Sandbox(folder).postgres.version == "18"


@pytest.mark.parametrize(
    ("used", "versions"),
    [
        ("elasticsearch", Versions(opensearch="3")),
        ("opensearch", Versions(elasticsearch="8")),
        ("kafka", Versions(elasticsearch="9", opensearch="2")),
    ],
)
def test_sandbox_has_one_search_server(folder: Path, used: str, versions: Versions) -> None:
    """Both are in the same place of the settings; a folder keeps the one that it has data of."""
    (folder / used).mkdir()
    with pytest.raises(SandboxError, match="one search server") as raised:
        Sandbox(folder, versions=versions)
    assert "--folder" in raised.value.hint
    assert Sandbox(folder).elasticsearch.name.lower() == ("opensearch" if used == "opensearch" else "elasticsearch")


def test_missing_extra_is_explained() -> None:
    """Only the commands that start servers need the extra's packages; without them the error says how to get them."""
    program = "import sys; sys.modules['psutil'] = None; from syncer.cli.app import main; main()"
    for command, code in (["sandbox", "stop"], 1), (["demo"], 1), (["--help"], 0):
        completed = subprocess.run(
            [sys.executable, "-c", program, *command], check=False, capture_output=True, text=True
        )
        assert completed.returncode == code
        assert ("The sandbox needs a package that is not installed: psutil" in completed.stderr) == bool(code)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server as somebody else")
def test_folder_that_servers_cannot_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named folder is refused, not replaced; a default one gives way to a system folder."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(SandboxError, match="cannot enter") as raised:
        Sandbox(private / "not" / "yet" / "there")
    assert "/var/tmp" in raised.value.hint  # noqa: S108
    monkeypatch.setenv("XDG_CACHE_HOME", str(private))
    monkeypatch.setenv("SYNCER_CACHE_DIR", "")
    assert Cache().folder == Path("/var/cache/syncer")
    monkeypatch.setenv("SYNCER_CACHE_DIR", "/var/tmp/named")  # noqa: S108
    assert Cache().folder == Path("/var/tmp/named")  # noqa: S108


def test_ports_are_no_clients_and_kept_while_they_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who choose at once choose different ports, on which a server can listen; a taken port is not kept."""
    if EPHEMERAL_PORTS_FILE.exists():
        assert PORTS.stop <= int(EPHEMERAL_PORTS_FILE.read_text("utf-8").split()[0])
    with chosen_ports(2) as ports:
        monkeypatch.setattr(server, "PORTS", ports)
    with chosen_ports(1) as (one,), chosen_ports(1) as (other,):
        assert {one, other} == set(ports)
        with socket.create_server(("127.0.0.1", one)), chosen_ports(1, preferred=(one,)) as none:
            assert none == ()
    with chosen_ports(2, preferred=ports) as ports_kept:
        assert ports_kept == ports


def test_recycled_id_is_not_mistaken() -> None:
    """The same id, started at another moment, is another process."""
    process = psutil.Process()
    mark = ProcessMark.of(process)
    assert mark.find() == process
    assert replace(mark, started_ticks=mark.started_ticks - 1).find() is None


class Launcher(EmbeddedServer):
    """A server that starts its child as it is told to end, as if the signal came at the wrong moment."""

    name = "Launcher"
    default_version = "1"
    ready_seconds = 30.0
    address = ""

    def _command(self) -> Sequence[str]:
        return ["/bin/sh", "-c", 'trap "sleep 600 & exit" TERM; touch ready; while :; do sleep 0.05; done']

    def _is_ready(self) -> bool:
        return (self.folder / "ready").exists()

    def processes(self) -> list[psutil.Process]:
        """Those that the launcher's environment shows to be its own."""
        home = str(self.folder)
        return [one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get("HOME") == home]


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    """One in a folder that every account can enter."""
    with tempfile.TemporaryDirectory(prefix="syncer-launcher-") as folder:
        Path(folder).chmod(0o755)
        yield Launcher(Path(folder), Cache())


def test_server_that_is_starting_its_child_leaves_none(launcher: Launcher) -> None:
    """Elasticsearch's launcher starts the server a second later, and only the environment connects the two."""
    assert launcher.start()
    assert launcher.processes()
    launcher.stop()
    assert launcher.processes() == []


def test_server_whose_start_is_interrupted_leaves_no_process(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its process and the file that names it."""

    def interrupted(pid: int) -> tuple[ProcessMark, ...]:
        assert psutil.Process(pid).is_running()
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "marks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launcher.start()
    assert launcher.processes() == []
    assert not (launcher.folder / "ready").exists()
