"""What the three servers have in common: a folder, ports, a process, a log, and how they start and stop."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from syncer.errors import SandboxError
from syncer.sandbox.account import make_open_folder
from syncer.sandbox.process import (
    ProcessMark,
    kill,
    lives,
    locked,
    mark,
    pause,
    resume,
    send,
    start_detached,
    tree,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from syncer.sandbox.account import Account
    from syncer.sandbox.cache import Cache
    from syncer.sandbox.report import Reporter

LOOPBACK = "127.0.0.1"
LOG_LINES_SHOWN = 15
STOP_SECONDS = 30.0

# Below the range from which systems take the ports of outgoing connections. A client that keeps dialling a
# server that is down would otherwise, sooner or later, be given that very port and connect to itself.
PORTS = range(20000, 32000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What is remembered of a server between commands."""

    ports: tuple[int, ...] = ()
    processes: tuple[ProcessMark, ...] = ()

    @classmethod
    def load(cls, file: Path) -> ServerState:
        """Read the state; a server that has none was never started."""
        if not file.exists():
            return cls()
        content = json.loads(file.read_text("utf-8"))
        processes = tuple(ProcessMark(**process) for process in content["processes"])
        return cls(ports=tuple(content["ports"]), processes=processes)

    def save(self, file: Path) -> None:
        """Write the state whole, or not at all."""
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.replace(file)


class Server(ABC):
    """One embedded server.

    Its methods may be called from any process; a lock keeps starts and stops of the same server apart.
    ``settings`` is what is written to the server's configuration at each start, and may be changed before.
    """

    name: ClassVar[str]
    ports_needed: ClassVar[int] = 1
    ready_seconds: ClassVar[float]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, sandbox_folder: Path, cache: Cache, account: Account, *, report: Reporter) -> None:
        self.folder = sandbox_folder / self.name.lower()
        self.data_folder = self.folder / "data"
        self.log_file = self.folder / "server.log"
        self.settings: dict[str, str] = {}
        self._cache = cache
        self._account = account
        self._report = report
        self._state_file = sandbox_folder / f"{self.name.lower()}.json"
        self._lock_file = sandbox_folder / f"{self.name.lower()}.lock"

    @property
    @abstractmethod
    def address(self) -> str:
        """What clients connect to."""

    @abstractmethod
    def _prepare(self) -> None:
        """Fetch what is missing, make the data folder, write the configuration."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """The command that runs the server."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the server answers."""

    @property
    def port(self) -> int:
        """The port that clients connect to; it stays the same from start to start."""
        return self._ports[0]

    @property
    def pid(self) -> int | None:
        """The id of the server's main process, or None if it does not run."""
        processes = self._state.processes
        return processes[0].pid if processes and lives(processes[0]) else None

    def is_running(self) -> bool:
        """Whether the main process lives; it may be paused, or too busy to answer."""
        return self.pid is not None

    def start(self) -> bool:
        """Start the server and wait until it answers; returns False if it was running and answers.

        What is alive of an earlier run and does not answer is killed first.
        """
        make_open_folder(self._lock_file.parent)
        with locked(self._lock_file):
            self.resume()
            if self.is_running() and self._becomes_ready():
                return False
            self.kill()
            self._account.own(self.folder)
            with self._ports_chosen():
                self._prepare()
                with self._report.step(f"starting {self.name}"):
                    self._launch()
            return True

    def stop(self) -> None:
        """Stop the server, gracefully if it can in time. Nothing of it is left."""
        self._stop(self.stop_signal)

    def kill(self) -> None:
        """SIGKILL to all its processes, as in a crash of the machine."""
        kill(self._state.processes)

    def pause(self) -> None:
        """SIGSTOP to all its processes: connections stay open and nothing answers."""
        pause(self._state.processes)

    def resume(self) -> None:
        """SIGCONT to all its processes."""
        resume(self._state.processes)

    def forget_taken_ports(self) -> None:
        """Let the next start choose other ports, if something else listens on one of the remembered."""
        state = self._state
        if not all(map(port_is_free, state.ports)):
            ServerState(processes=state.processes).save(self._state_file)

    @property
    def _state(self) -> ServerState:
        return ServerState.load(self._state_file)

    @property
    def _ports(self) -> tuple[int, ...]:
        if ports := self._state.ports:
            return ports
        raise SandboxError(f"{self.name} has no address before its first start", hint="syncer sandbox start")

    @property
    def _working_folder(self) -> Path:
        return self.folder

    def _environment(self) -> dict[str, str]:
        """Nothing of the caller's environment, which could change what the server does."""
        return {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}

    @contextmanager
    def _ports_chosen(self) -> Iterator[None]:
        """Have the ports of before, or new ones, which nobody else chooses until the server listens there."""
        known = self._state.ports
        for port in known:
            if not port_is_free(port):
                raise SandboxError(
                    f"{self.name} cannot have its port {port} back: something else listens there",
                    hint="Stop the whole sandbox and start it again: it then chooses other ports.",
                )
        with chosen_ports(0 if known else self.ports_needed) as new:
            ServerState(ports=known or new).save(self._state_file)
            yield

    def _launch(self) -> None:
        if self.log_file.exists():
            self.log_file.rename(self.log_file.with_name("server.previous.log"))
        pid = start_detached(
            self._command(),
            folder=self._working_folder,
            log_file=self.log_file,
            environment=self._environment(),
            account=self._account,
        )
        self._remember(pid)
        if not self._becomes_ready():
            outcome = f"did not answer in {self.ready_seconds:.0f} s" if self.is_running() else "died at start"
            self._end(self.stop_signal)
            raise SandboxError(f"{self.name} {outcome}", hint=self._log_excerpt())
        self._remember(pid)  # again, now with the processes that it has started itself

    def _becomes_ready(self) -> bool:
        # One answer is enough: a server that has just begun may be slow to give the next.
        is_over = wait_until(lambda: not self.is_running() or self._is_ready(), seconds=self.ready_seconds)
        return is_over and self.is_running()

    def _remember(self, pid: int) -> None:
        root = mark(pid)
        ServerState(ports=self._ports, processes=tree([root] if root else [])).save(self._state_file)

    def _stop(self, graceful: signal.Signals) -> None:
        if self._state_file.exists():
            with locked(self._lock_file):
                self._end(graceful)

    def _end(self, graceful: signal.Signals) -> None:
        processes = tree(self._state.processes)
        resume(processes)  # a paused process would not hear the signal
        for root in processes[:1]:
            send(root, graceful)
            wait_until(lambda: not tree(processes), seconds=STOP_SECONDS)
        kill(processes)
        ServerState(ports=self._state.ports).save(self._state_file)

    def _log_excerpt(self) -> str:
        lines = self.log_file.read_text("utf-8", errors="replace").splitlines()
        return "\n".join([f"The end of {self.log_file}:", *lines[-LOG_LINES_SHOWN:]])


@contextmanager
def chosen_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Different ports that nothing listens on, and that nobody else chooses as long as the block lasts.

    Between the choice and a server that listens there are seconds, in which others choose for theirs.
    """
    with ExitStack() as held:
        kept = (held.enter_context(probe) for port in random.sample(PORTS, k=len(PORTS)) if (probe := _kept(port)))
        yield tuple(probe.getsockname()[1] for probe in itertools.islice(kept, count))


def _kept(port: int) -> socket.socket | None:
    """A port that nobody listens on or keeps, kept from others who choose; a server can listen there all the same."""
    alone = _bound(port, beside=False)
    if alone is None:
        return None
    alone.close()
    return _bound(port, beside=True)


def port_is_free(port: int) -> bool:
    """Whether a server could listen on a port of the loopback address."""
    probe = _bound(port, beside=True)
    if probe is None:
        return False
    probe.close()
    return True


def _bound(port: int, *, beside: bool) -> socket.socket | None:
    """A socket of that port, or None; if need be beside others that do not listen there, as those of the servers."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(beside))
    try:
        probe.bind((LOOPBACK, port))
    except OSError:
        probe.close()
        return None
    return probe
