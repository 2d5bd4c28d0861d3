"""What the three servers have in common: a folder, ports, a process, a log, starting and stopping."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import psutil
from pydantic import TypeAdapter

from syncer.base.errors import SandboxError
from syncer.sandbox.account import Account, make_open_folder
from syncer.sandbox.cache import Cache
from syncer.sandbox.process import (
    ProcessMark,
    family,
    is_alive,
    kill,
    locked,
    marks,
    pause,
    send,
    start_detached,
    wait_until,
)
from syncer.sandbox.report import Reporter

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The state of a server that is kept between commands; the version is that of its data."""

    version: str | None = None
    ports: tuple[int, ...] = ()
    processes: tuple[ProcessMark, ...] = ()

    @classmethod
    def load(cls, file: Path) -> ServerState:
        """Read the state; empty if the server was never started."""
        return TypeAdapter(cls).validate_json(file.read_bytes()) if file.exists() else cls()

    def save(self, file: Path) -> None:
        """Write the state atomically."""
        partial = file.with_suffix(".partial")
        partial.write_bytes(TypeAdapter(type(self)).dump_json(self))
        partial.replace(file)


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

    def __init__(
        self, sandbox_folder: Path, cache: Cache, account: Account, *, report: Reporter, version: str | None = None
    ) -> None:
        self.folder = sandbox_folder / self.name.lower()
        self.data_folder = self.folder / "data"
        self.log_file = self.folder / "server.log"
        self.settings = dict(self.default_settings)
        self._cache = cache
        self._account = account
        self._report = report
        self._wanted_version = version
        self._state_file = sandbox_folder / f"{self.name.lower()}.json"
        self._lock_file = sandbox_folder / f"{self.name.lower()}.lock"

    @property
    @abstractmethod
    def address(self) -> str:
        """The address for clients."""

    @abstractmethod
    def _fetch(self) -> None:
        """Download or copy what is missing of the server's files."""

    @abstractmethod
    def _prepare(self) -> None:
        """Create the data folder, write the configuration."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """The command that runs the server."""

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

    def fetch(self) -> None:
        """Download or copy what is missing of the server's files, in the version of its data."""
        if self._wanted_version not in {None, self.version}:
            raise SandboxError(
                f"{self.name} in {self.folder} is version {self.version}, not {self._wanted_version}",
                hint="Name another folder for another version: syncer sandbox start --folder FOLDER",
            )
        self._fetch()

    def start(self, give_up: Event | None = None) -> bool:
        """Start the server and wait until it answers; return False if it was running and answers.

        Processes of an earlier run that do not answer are killed first.

        Args:
            give_up: If another thread sets it, the start fails instead of waiting.
        """
        give_up = give_up or Event()
        make_open_folder(self._lock_file.parent)
        with locked(self._lock_file):
            self.fetch()
            self.resume()
            if self.is_running() and self._becomes_ready(give_up):
                return False
            self.kill()
            self._account.own(self.folder)
            with chosen_ports(self.ports_needed, known=self._state.ports) as ports:
                self._save(version=self.version, ports=ports)
                self._prepare()
                with self._report.step(f"starting {self.name} {self.version}"):
                    self._launch(give_up)
            return True

    def stop(self) -> None:
        """Stop the server, gracefully if possible in time. No process is left."""
        self._stop(self.stop_signal)

    def kill(self) -> None:
        """Send SIGKILL to all its processes, as in a crash of the machine."""
        kill(self._processes())

    def pause(self) -> None:
        """Send SIGSTOP to all its processes: connections stay open, but nothing answers."""
        pause(self._processes())

    def resume(self) -> None:
        """Send SIGCONT to all its processes."""
        send(self._processes(), signal.SIGCONT)

    @property
    def _state(self) -> ServerState:
        return ServerState.load(self._state_file)

    def _save(self, **changes: Any) -> None:
        replace(self._state, **changes).save(self._state_file)

    def _processes(self) -> list[psutil.Process]:
        return family(filter(None, (marked.find() for marked in self._state.processes)))

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
        done = subprocess.run(
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
        if done.returncode:
            raise SandboxError(f"{self.name} {failure}", hint=done.stdout.strip())

    def _launch(self, give_up: Event) -> None:
        if self.log_file.exists():
            self.log_file.rename(self.log_file.with_name("server.previous.log"))
        pid = start_detached(
            self._command(),
            folder=self._working_folder,
            log_file=self.log_file,
            environment=self._environment(),
            account=self._account,
        )
        self._save(processes=marks(pid))
        if not self._becomes_ready(give_up):
            outcome = f"did not answer in {self.ready_seconds:.0f} s" if self.is_running() else "died at start"
            self._end(self.stop_signal)
            raise SandboxError(f"{self.name} {outcome}", hint=self.log_excerpt())
        self._save(processes=marks(pid))  # again, with its child processes

    def _becomes_ready(self, give_up: Event) -> bool:
        # One answer suffices: a server that has just started may be slow to give the next.
        def is_over() -> bool:
            return give_up.is_set() or not self.is_running() or self._is_ready()

        return wait_until(is_over, seconds=self.ready_seconds) and self.is_running() and not give_up.is_set()

    def _stop(self, graceful: signal.Signals) -> None:
        if self._state_file.exists():
            with locked(self._lock_file):
                self._end(graceful)

    def _end(self, graceful: signal.Signals) -> None:
        processes = self._processes()
        send(processes, signal.SIGCONT)  # a paused process would not handle the signal
        send(processes[:1], graceful)
        wait_until(lambda: not any(map(is_alive, processes)), seconds=STOP_SECONDS)
        kill(processes)
        self._save(processes=())

    def log_excerpt(self) -> str:
        """Return the end of the log, for an error."""
        lines = self.log_file.read_text("utf-8", errors="replace").splitlines()
        return "\n".join([f"The end of {self.log_file}:", *lines[-LOG_LINES_SHOWN:]])


@contextmanager
def chosen_ports(count: int, *, known: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the known ports if they are free, else reserve others that no other call chooses during the block.

    A server takes seconds from the choice of its ports until it listens, and other servers choose theirs meanwhile.
    """
    if known and all(map(port_is_free, known)):
        yield known
        return
    ports: list[int] = []
    with ExitStack() as held:
        for port in random.sample(PORTS, k=len(PORTS)):
            if len(ports) == count:
                break
            probe = held.enter_context(socket.socket())
            with suppress(OSError):  # in use, or reserved
                probe.bind((LOOPBACK, port))
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that the server can listen on it
                ports.append(port)
        yield tuple(ports)


def port_is_free(port: int) -> bool:
    """Whether a server could listen on a port of the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
