"""What the three servers have in common: a folder, ports, a process, a log, starting and stopping."""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import psutil

from syncer.base.errors import SandboxError
from syncer.sandbox.cache import Cache, locked, make_open_folder
from syncer.sandbox.process import ProcessMark, family, is_alive, kill, marks, pause, send, wait_until

LOOPBACK = "127.0.0.1"
BRIEF_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a Java server that runs for minutes: half of the processor time, also of its start."""
LASTING_JAVA = ("-XX:+UseG1GC",)
"""Options with which it is faster once it has run for long: for benchmarks."""
LOG_LINES_SHOWN = 15
STOP_SECONDS = 30.0

# Below the range of ephemeral ports. Otherwise a client that keeps dialling a stopped server would, sooner or later, be
# given that port as its own and connect to itself.
PORTS = range(20000, 32000)

# The shell prints the server's id and exits: the server is an orphan, which no process need wait for and which outlives
# the command that started it. It is in a session of its own, which the terminal's Ctrl-C does not reach. The id becomes
# the server's once a line is read, so that none runs whose id was not saved.
_START = 'log=$1; shift; exec 3<&0 2>>"$log"; { read -r _ <&3 && exec "$@" >>"$log" </dev/null 3<&-; } & echo $!'


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The state of a server that is kept between commands; the version is that of its data."""

    version: str | None = None
    ports: tuple[int, ...] = ()
    processes: tuple[ProcessMark, ...] = ()


class EmbeddedServer(ABC):
    """One embedded server.

    Its methods may be called from any process; a lock serialises starts and stops of the same server. ``settings`` is
    written to the server's configuration at each start, and may be changed before.
    """

    name: ClassVar[str]
    default_version: ClassVar[str]
    default_settings: ClassVar[Mapping[str, str]] = {}
    ports_needed: ClassVar[int] = 1
    ready_seconds: ClassVar[float]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, sandbox_folder: Path, cache: Cache, *, version: str | None = None) -> None:
        self.folder = sandbox_folder / self.name.lower()
        self.data_folder = self.folder / "data"
        self.log_file = self.folder / "server.log"
        self.settings = dict(self.default_settings)
        self._cache = cache
        self._account = cache.account
        self._wanted_version = version
        self._state_file = sandbox_folder / f"{self.name.lower()}.json"
        self._lock_file = sandbox_folder / f"{self.name.lower()}.lock"

    @property
    @abstractmethod
    def address(self) -> str:
        """The address for clients."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Fetch what is missing of the server's files, and return the command that runs it."""

    def _prepare(self) -> None:  # noqa: B027 - a server may need nothing
        """Create the data folder, write the configuration."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the server answers."""

    @property
    def version(self) -> str:
        """The version of its data; before the first start, the wanted version."""
        return self._state.version or self._wanted_version or self.default_version

    @property
    def port(self) -> int:
        """The port for clients; it stays the same from start to start."""
        return self._ports[0]

    @property
    def pid(self) -> int | None:
        """The id of the server's main process; None if it is not running."""
        process = next((marked.find() for marked in self._state.processes), None)
        return process.pid if process else None

    def is_running(self) -> bool:
        """Whether the main process is alive; it may be paused, or too busy to answer."""
        return self.pid is not None

    def start(self) -> bool:
        """Start the server and wait until it answers; return False if it was running."""
        return bool(start([self]))

    def stop(self, mode: Literal["graceful", "immediate"] = "graceful") -> None:
        """Stop the server, gracefully if possible in time. No process is left.

        "immediate" is for Postgres: without a checkpoint, so that the next start recovers as from a crash.
        """
        if self._state_file.exists():
            with self.locked():
                self.end(signal.SIGQUIT if mode == "immediate" else self.stop_signal)

    def kill(self) -> None:
        """Send SIGKILL to all its processes, as in a crash of the machine."""
        kill(self._processes())

    def pause(self) -> None:
        """Send SIGSTOP to all its processes: connections stay open, but nothing answers."""
        pause(self._processes())

    def resume(self) -> None:
        """Send SIGCONT to all its processes."""
        send(self._processes(), signal.SIGCONT)

    def log_excerpt(self) -> str:
        """Return the end of the log, for an error."""
        lines = self.log_file.read_text("utf-8", errors="replace").splitlines()
        return "\n".join([f"The end of {self.log_file}:", *lines[-LOG_LINES_SHOWN:]])

    @property
    def _state(self) -> ServerState:
        saved = self._state_file.read_bytes() if self._state_file.exists() else b"{}"
        return msgspec.json.decode(saved, type=ServerState)

    def _save(self, **changes: Any) -> None:
        """Write the state atomically."""
        partial = self._state_file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(replace(self._state, **changes)))
        partial.replace(self._state_file)

    def _processes(self) -> list[psutil.Process]:
        """Return those saved and their descendants, and what a launcher has left that was ended as it started it."""
        home = str(self.folder)
        orphans = [
            process
            for process in psutil.process_iter(["environ"])
            if (process.info["environ"] or {}).get("HOME") == home
        ]
        return family([*filter(None, (marked.find() for marked in self._state.processes)), *orphans])

    @property
    def _ports(self) -> tuple[int, ...]:
        if ports := self._state.ports:
            return ports
        raise SandboxError(f"{self.name} has no address before its first start", hint="syncer sandbox start")

    @property
    def _working_folder(self) -> Path:
        return self.folder

    def _environment(self) -> dict[str, str]:
        """Return a minimal environment: the caller's could change how the server behaves."""
        return {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}

    def _run(self, command: Sequence[str], *, failure: str) -> None:
        """Run a command of the server to its end; if it fails, raise an error with its output as the hint."""
        completed = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self._environment(),
            text=True,
            **self._account.popen_arguments(),
        )
        if completed.returncode:
            raise SandboxError(f"{self.name} {failure}", hint=completed.stdout.strip())

    # What `start` does with all servers at the same time

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock of starts and stops of this server."""
        make_open_folder(self._lock_file.parent)
        return locked(self._lock_file)

    def fetch(self) -> Sequence[str]:
        """Fetch what is missing of the server's files, in the version of its data; return the command that runs it."""
        if self._wanted_version not in {None, self.version}:
            raise SandboxError(
                f"{self.name} in {self.folder} is version {self.version}, not {self._wanted_version}",
                hint="Name another folder for another version: syncer sandbox start --folder FOLDER",
            )
        return self._command()

    def launch(self, command: Sequence[str], reserved: ExitStack) -> None:
        """Kill what an earlier run has left, write the configuration, and start the process; reserve its ports."""
        self.kill()
        self._account.own(self.folder)
        ports = reserved.enter_context(chosen_ports(self.ports_needed, preferred=self._state.ports))
        self._save(version=self.version, ports=ports)
        with self._cache.step(f"preparing {self.name} {self.version}"):
            self._prepare()
        if self.log_file.exists():
            self.log_file.rename(self.log_file.with_name("server.previous.log"))
        with subprocess.Popen(
            ["/bin/sh", "-c", _START, "sh", str(self.log_file), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._working_folder,
            env=self._environment(),
            start_new_session=True,
            text=True,
            **self._account.popen_arguments(),
        ) as shell:
            assert shell.stdin
            assert shell.stdout
            self._save(processes=marks(int(shell.stdout.readline())))
            shell.stdin.write("\n")

    def wait_until_ready(self) -> None:
        """Return once the server answers.

        Raises:
            SandboxError: It has died, or does not answer in time.
        """
        with self._cache.step(f"waiting for {self.name} {self.version}"):
            # One answer suffices: a server that has just started may be slow to give the next.
            answers = wait_until(lambda: not self.is_running() or self._is_ready(), seconds=self.ready_seconds)
            pid = self.pid
            if pid is None or not answers:
                outcome = "died at start" if pid is None else f"did not answer in {self.ready_seconds:.0f} s"
                raise SandboxError(f"{self.name} {outcome}", hint=self.log_excerpt())
            self._save(processes=marks(pid))  # again, with its child processes

    def end(self, graceful: signal.Signals) -> None:
        """Send this signal, and kill what is still running after a while."""
        processes = self._processes()
        send(processes, signal.SIGCONT)  # a paused process would not handle the signal
        send(processes[:1], graceful)
        wait_until(lambda: not any(map(is_alive, processes)), seconds=STOP_SECONDS)
        kill([*processes, *self._processes()])
        self._save(processes=())


def start(servers: Sequence[EmbeddedServer]) -> list[EmbeddedServer]:
    """Start those servers that are not running, and wait until all answer; return those that were started.

    What is missing of their files is fetched before the first one starts. If one of them fails, or on Ctrl-C, the
    servers started by this call are stopped again.
    """
    started: list[EmbeddedServer] = []
    with ExitStack() as resources:
        for server in servers:
            resources.enter_context(server.locked())
        commands = [server.fetch() for server in servers]
        try:
            for server, command in zip(servers, commands, strict=True):
                server.resume()
                if not server.is_running():
                    started.append(server)
                    server.launch(command, resources)
            for server in servers:
                server.wait_until_ready()
        except BaseException:
            for server in started:
                server.end(server.stop_signal)
            raise
    return started


def answers_ok(connection: http.client.HTTPConnection, path: str) -> bool:
    """Whether a server answers GET with success."""
    with closing(connection), suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    return False


@contextmanager
def chosen_ports(count: int, *, preferred: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the preferred ports that are free, else reserve others that no other call chooses during the block.

    A server takes seconds from the choice of its ports until it listens, and other servers choose theirs meanwhile.
    """
    ports: list[int] = []
    with ExitStack() as probes:
        for port in [*preferred, *random.sample(PORTS, k=len(PORTS))]:
            if len(ports) == count:
                break
            probe = probes.enter_context(socket.socket())
            with suppress(OSError):  # in use, or reserved
                # Without this option a port is in use for a minute after the server's last connection.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, port in preferred)
                probe.bind((LOOPBACK, port))
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that the server can listen on it
                ports.append(port)
        yield tuple(ports)
