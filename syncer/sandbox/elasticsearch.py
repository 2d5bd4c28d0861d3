"""An embedded Elasticsearch, complete except for its shell scripts and its Java."""

from __future__ import annotations

import http.client
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from syncer.sandbox.downloads import LOCALES_VERSION
from syncer.sandbox.server import BRIEF_JAVA, LOOPBACK, EmbeddedServer, answers_ok

SERVER_LIBRARIES = "lib/tools/server-cli"
# Elasticsearch 9 requires two modules that the Java runtime lacks, and uses no class of them. So its module descriptor
# is made to name two others, which the runtime has; their names are as long, so that the class file stays valid.
REPLACED_MODULES = {b"jdk.jlink": b"jdk.zipfs", b"jdk.jdi": b"jdk.jfr"}


class ElasticsearchServer(EmbeddedServer):
    """Elasticsearch with one node."""

    name = "Elasticsearch"
    default_version = "8"
    ports_needed = 2  # for clients, and for the transport between nodes, which cannot be disabled
    ready_seconds = 300.0
    java_options: tuple[str, ...] = BRIEF_JAVA
    default_settings = {  # noqa: RUF012 - a ClassVar of the base class
        "cluster.name": "syncer-sandbox",
        "node.name": "sandbox",
        "discovery.type": "single-node",
        "network.host": LOOPBACK,
        "cluster.routing.allocation.disk.threshold_enabled": "false",  # a nearly full disk is good enough here
        # The serial collector frees memory late: a breaker that counts the heap in use would refuse small requests.
        "indices.breaker.total.use_real_memory": "false",
        "xpack.security.enabled": "false",
        "xpack.security.autoconfiguration.enabled": "false",  # do not generate certificates and passwords
    }

    @property
    def config_folder(self) -> Path:
        """The folder of its configuration."""
        return self.folder / "config"

    @property
    def _working_folder(self) -> Path:
        """Elasticsearch's home, shared and read-only; the launcher finds its libraries relative to it."""
        return self._cache.fetched("elasticsearch", self.version)

    @property
    def address(self) -> str:
        """The URL."""
        return f"http://{LOOPBACK}:{self.port}"

    def _prepare(self) -> None:
        for folder in (self.config_folder, self.data_folder, self.folder / "tmp"):
            self._account.own(folder)
        for file in (self._working_folder / "config").iterdir():
            if not (self.config_folder / file.name).exists():
                self._account.write(self.config_folder / file.name, file.read_text("utf-8"))
        http_port, transport_port = self._ports
        own = {
            "http.port": str(http_port),
            "transport.port": str(transport_port),
            "path.data": str(self.data_folder),
            "path.logs": str(self.folder / "logs"),
        }
        # JSON strings are valid YAML.
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in (self.settings | own).items()]
        self._account.write(self.config_folder / "elasticsearch.yml", "".join(lines))
        # The distribution's own options require a module that the runtime lacks, and log into its home.
        options = [
            "-Xms512m",
            "-Xmx512m",
            *self.java_options,
            "-XX:+ExitOnOutOfMemoryError",
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            f"-XX:ErrorFile={self.folder}/hs_err_pid%p.log",
            # The runtime's own locale data is trimmed; without these, no index can be created.
            f"-Xbootclasspath/a:{self._cache.class_path('icu4j', LOCALES_VERSION)}",
            "-Djava.locale.providers=CLDR,SPI",
            *([] if self.version == "8" else self._module_options()),
        ]
        self._account.write(self.config_folder / "jvm.options", "".join(f"{option}\n" for option in options))

    def _module_options(self) -> list[str]:
        """Let version 9 run on a Java runtime that lacks two modules and locale data."""
        libraries = self._working_folder / "lib"
        modules = self.folder / "modules"
        self._account.own(modules)
        [jar] = libraries.glob("elasticsearch-entitlement-*.jar")
        replace_modules(jar, modules / jar.name)
        return [
            f"--upgrade-module-path={modules}",
            # The launcher first runs Java without its module path, to ask for the values of options.
            f"--module-path={libraries}",
            # Later, Elasticsearch forbids code that is not its own to provide locale data. Java makes an object of this
            # class when logging begins, so the data for Thai is provided by then.
            "-Djava.util.logging.config.class=org.apache.lucene.analysis.th.ThaiTokenizer",
        ]

    def _environment(self) -> dict[str, str]:
        """Return what version 9 is told by the environment; version 8 is told most of it by options."""
        return {
            **super()._environment(),
            "ES_JAVA_HOME": str(self._cache.java().parents[1]),
            "ES_TMPDIR": str(self.folder / "tmp"),
            "ES_HOME": str(self._working_folder),
            "ES_PATH_CONF": str(self.config_folder),
            "ES_DISTRIBUTION_TYPE": "tar",
            "JAVA": str(self._cache.java()),
            "JAVA_TYPE": "system",
            "CLI_NAME": "server",
            "CLI_LIBS": SERVER_LIBRARIES,
            "LAUNCHER_CLASSPATH": f"{self._working_folder}/lib/*:{self._working_folder}/lib/cli-launcher/*",
        }

    def _command(self) -> Sequence[str]:
        told, home = self._environment(), self._working_folder
        java = [told["JAVA"], "-Xms16m", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        if self.version != "8":
            launcher = "org.elasticsearch.server.launcher.ServerLauncher"
            return [*java, "-cp", f"{home}/lib/tools/server-launcher/*", launcher]
        options = {
            "cli.name": "server",
            "cli.libs": SERVER_LIBRARIES,
            "es.path.home": home,
            "es.path.conf": self.config_folder,
            "es.distribution.type": "tar",
            "es.java.type": "system",
        }
        java += [f"-D{name}={value}" for name, value in options.items()]
        return [*java, "-cp", told["LAUNCHER_CLASSPATH"], "org.elasticsearch.launcher.CliToolLauncher"]

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)

    def _is_ready(self) -> bool:
        return answers_ok(self._connection(), "/_cluster/health?wait_for_status=yellow&timeout=0s")


def replace_modules(jar: Path, target: Path) -> None:
    """Copy a jar with a module descriptor that requires only modules that the Java runtime has."""
    with zipfile.ZipFile(jar) as original, zipfile.ZipFile(target, "w") as copy:
        for member in original.infolist():
            content = original.read(member)
            if member.filename == "module-info.class":
                for absent, present in REPLACED_MODULES.items():
                    content = content.replace(absent, present)
            copy.writestr(member, content)
