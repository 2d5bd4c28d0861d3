"""An embedded Elasticsearch 8.16, complete but for its shell scripts."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING

from syncer.sandbox.server import LOOPBACK, Server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from syncer.sandbox.account import Account
    from syncer.sandbox.cache import Cache
    from syncer.sandbox.report import Reporter

SETTINGS = {
    "cluster.name": "syncer-sandbox",
    "node.name": "sandbox",
    "discovery.type": "single-node",
    "network.host": LOOPBACK,
    "cluster.routing.allocation.disk.threshold_enabled": "false",  # a full laptop disk is still good enough
    "xpack.security.enabled": "false",
    "xpack.security.autoconfiguration.enabled": "false",  # no certificates and passwords of its own making
}


class ElasticsearchServer(Server):
    """Elasticsearch with one node."""

    name = "Elasticsearch"
    ports_needed = 2  # one for clients, one for the transport between nodes, which cannot be turned off
    ready_seconds = 300.0

    def __init__(self, sandbox_folder: Path, cache: Cache, account: Account, *, report: Reporter) -> None:
        super().__init__(sandbox_folder, cache, account, report=report)
        self.settings |= SETTINGS
        self.config_folder = self.folder / "config"
        self._temporary_folder = self.folder / "tmp"

    @property
    def address(self) -> str:
        """The URL."""
        return f"http://{LOOPBACK}:{self.port}"

    def _prepare(self) -> None:
        for folder in (self.config_folder, self.data_folder, self._temporary_folder):
            self._account.own(folder)
        for file in (self._working_folder / "config").iterdir():
            if not (self.config_folder / file.name).exists():
                self._account.write(self.config_folder / file.name, file.read_text("utf-8"))
        self._write_settings()
        self._account.write(self.config_folder / "jvm.options", "\n".join(self._java_options()))

    def _write_settings(self) -> None:
        http_port, transport_port = self._ports
        own = {
            "http.port": str(http_port),
            "transport.port": str(transport_port),
            "path.data": str(self.data_folder),
            "path.logs": str(self.folder / "logs"),
        }
        # A JSON string is a YAML string.
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in (self.settings | own).items()]
        self._account.write(self.config_folder / "elasticsearch.yml", "".join(lines))

    def _java_options(self) -> list[str]:
        """Not the distribution's, which ask for a module that the runtime lacks and log into the home."""
        locales = ":".join(map(str, self._cache.locale_jars()))
        return [
            "-Xms512m",
            "-Xmx512m",
            "-XX:+UseG1GC",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Djava.io.tmpdir={self._temporary_folder}",
            f"-XX:ErrorFile={self.folder}/hs_err_pid%p.log",
            # The runtime's own locale data is trimmed; without this, no index can be created.
            f"-Xbootclasspath/a:{locales}",
            "-Djava.locale.providers=CLDR,SPI",
            "",
        ]

    @property
    def _working_folder(self) -> Path:
        """Elasticsearch's home, shared and read-only: the launcher looks for its libraries from there."""
        return self._cache.elasticsearch_folder()

    def _environment(self) -> dict[str, str]:
        return {
            **super()._environment(),
            "ES_JAVA_HOME": str(self._cache.java_folder()),
            "ES_TMPDIR": str(self._temporary_folder),
        }

    def _command(self) -> Sequence[str]:
        home = self._working_folder
        return [
            str(self._cache.java_folder() / "bin" / "java"),
            "-Xms16m",
            "-Xmx64m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dcli.name=server",
            "-Dcli.libs=lib/tools/server-cli",
            f"-Des.path.home={home}",
            f"-Des.path.conf={self.config_folder}",
            "-Des.distribution.type=tar",
            "-Des.java.type=system",
            "-cp",
            f"{home}/lib/*:{home}/lib/cli-launcher/*",
            "org.elasticsearch.launcher.CliToolLauncher",
        ]

    def _is_ready(self) -> bool:
        try:
            health = self._get("/_cluster/health")
        except (OSError, http.client.HTTPException):
            return False
        return health.get("status") in {"yellow", "green"}

    def _get(self, path: str) -> dict[str, object]:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("GET", path)
            response: dict[str, object] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return response
