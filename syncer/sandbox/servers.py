"""The three embedded servers: what each needs to start, and how it shows that it answers."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import shutil
import signal
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import psutil
import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from syncer.sandbox.downloads import LOCALES_VERSION, PACKAGED_POSTGRES
from syncer.sandbox.process import wait_until
from syncer.sandbox.server import BRIEF_JAVA, LOOPBACK, EmbeddedServer, answers_ok

BUILTIN_LOCALE_SINCE = 17
ORPHAN_SECONDS = 10.0  # backends soon notice that their server was killed
JAVA_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)
SERVER_LIBRARIES = "lib/tools/server-cli"
# Elasticsearch 9 requires two modules that the Java runtime lacks, and uses no class of them. So its module descriptor
# is made to name two others, which the runtime has; their names are as long, so that the class file stays valid.
REPLACED_MODULES = {b"jdk.jlink": b"jdk.zipfs", b"jdk.jdi": b"jdk.jfr"}


class PostgresServer(EmbeddedServer):
    """Postgres with one superuser, ``postgres``, whose random password is in a file that other users cannot read."""

    name = "Postgres"
    default_version = PACKAGED_POSTGRES
    ready_seconds = 120.0
    stop_signal = signal.SIGINT  # "fast": roll back open transactions, do not wait for clients
    default_settings = {  # noqa: RUF012 - a ClassVar of the base class
        "listen_addresses": LOOPBACK,
        "unix_socket_directories": "",  # a socket's path is limited to 107 characters: too few for deep folders
        "max_connections": "200",
        "wal_level": "replica",  # the default; syncer needs no more
        "fsync": "on",  # crash tests need a database that keeps what it has committed
        "log_timezone": "UTC",
        "timezone": "UTC",
        "log_line_prefix": "%m [%p] %q%a ",
    }

    @property
    def address(self) -> str:
        """The connection string of the database ``postgres``, with the password."""
        # A folder of an earlier version has no password.
        password = f":{file.read_text()}" if (file := self.password_file).exists() else ""
        return f"postgresql://postgres{password}@{LOOPBACK}:{self.port}/postgres"

    @property
    def password_file(self) -> Path:
        """The file that holds the password, of mode 0600."""
        return self.folder / "password"

    @property
    def bin_folder(self) -> Path:
        """The folder of ``psql``, ``pgbench``, ``pg_dump`` and so on; of the newest version, for servers of all."""
        return self._cache.postgres_folder() / "bin"

    @property
    def server_bin_folder(self) -> Path:
        """The folder of ``postgres`` and ``initdb`` of this version."""
        return self._cache.postgres_folder(self.version) / "bin"

    def _prepare(self) -> None:
        if not self.data_folder.exists():
            self._initialise()
        # Postgres removes the lock file of a dead server only if its process id is unused. After a reboot another
        # process may have that id; in a container whose first process does not reap zombies, the dead one still has it.
        mine = {"name": "postgres", "cwd": str(self.data_folder)}  # the working directory of every Postgres process
        is_over = lambda: all(process.info != mine for process in psutil.process_iter(list(mine)))  # noqa: E731
        if wait_until(is_over, seconds=ORPHAN_SECONDS):
            (self.data_folder / "postmaster.pid").unlink(missing_ok=True)
        quoted = {name: value.replace("'", "''") for name, value in self.settings.items()}
        lines = [f"{name} = '{value}'\n" for name, value in (quoted | {"port": str(self.port)}).items()]
        self._account.write(self.data_folder / "postgresql.conf", "".join(lines))

    def _initialise(self) -> None:
        """Run ``initdb`` in another folder first, so that an interrupted run leaves nothing like a database."""
        unfinished = self.folder / "data.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [str(self.server_bin_folder / "initdb"), "--pgdata", str(unfinished), "--username=postgres"]
        self._account.write(self.password_file, secrets.token_hex(16), mode=0o600)
        command += ["--auth=scram-sha-256", f"--pwfile={self.password_file}", "--encoding=UTF8", "--no-instructions"]
        command += ["--locale=C"]  # the same everywhere, whatever locales the system has
        if int(self.version) >= BUILTIN_LOCALE_SINCE:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self._run(command, failure="could not create its data folder")
        unfinished.rename(self.data_folder)

    def _command(self) -> Sequence[str]:
        return [str(self.server_bin_folder / "postgres"), "-D", str(self.data_folder)]

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.address, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class KafkaServer(EmbeddedServer):
    """Kafka with one node that is its own controller."""

    name = "Kafka"
    default_version = "4.1"
    ports_needed = 2  # one for clients, one for the controller
    ready_seconds = 180.0
    java_options: tuple[str, ...] = BRIEF_JAVA
    default_settings = {  # noqa: RUF012 - a ClassVar of the base class
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "auto.create.topics.enable": "false",  # a misspelt topic must be an error
        # A single node has one copy of everything.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # The default of fifty partitions only delays the first consumer on a single node.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        # After a crash the node cannot register until its former session has expired, by default after 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",  # waiting for more consumers would only delay tests
        "group.min.session.timeout.ms": "1000",  # by default 6 s: tests may replace a dead worker sooner
    }

    @property
    def _settings_file(self) -> Path:
        return self.folder / "server.properties"

    @property
    def address(self) -> str:
        """The bootstrap servers."""
        return f"{LOOPBACK}:{self.port}"

    def _prepare(self) -> None:
        lines = [f"{name}={value}\n" for name, value in (self.settings | self._own_settings()).items()]
        self._account.write(self._settings_file, "".join(lines))
        self._account.own(self.data_folder)
        if not (self.data_folder / "meta.properties").exists():
            # The zero byte makes the id begin with a letter: a leading hyphen would look like an option.
            cluster_id = base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
            command = [*self._java("kafka.tools.StorageTool"), "format", "--ignore-formatted"]
            command += ["--cluster-id", cluster_id, "--config", str(self._settings_file)]
            self._run(command, failure="could not format its log")

    def _own_settings(self) -> dict[str, str]:
        """The settings that follow from the ports and the folder."""
        controller = f"{LOOPBACK}:{self._ports[1]}"
        return {
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.data_folder),
        }

    def _java(self, main_class: str) -> list[str]:
        class_path = self._cache.class_path("kafka", self.version)
        return [str(self._cache.java()), *JAVA_OPTIONS, *self.java_options, "-cp", class_path, main_class]

    def _command(self) -> Sequence[str]:
        return [*self._java("kafka.Kafka"), str(self._settings_file)]

    def _is_ready(self) -> bool:
        # log_level 0: otherwise the client prints every refused connection while the server starts.
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=2.0).brokers)  # empty until the node is registered
        except KafkaException:
            return False


class ElasticsearchServer(EmbeddedServer):
    """Elasticsearch with one node."""

    name = "Elasticsearch"
    default_version = "8"
    settings_file: ClassVar[str] = "elasticsearch.yml"
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
        self._write_settings()
        for file in (self._working_folder / "config").iterdir():
            if not (self.config_folder / file.name).exists():
                self._account.write(self.config_folder / file.name, file.read_text("utf-8"))
        # A start that was ended while it wrote the keystore leaves this file, and the next one would die of it.
        (self.config_folder / "elasticsearch.keystore.tmp").unlink(missing_ok=True)
        # The distribution's own options require a module that the runtime lacks, and log into its home.
        options = [*self._options(), *([] if self.version == "8" else self._module_options())]
        self._account.write(self.config_folder / "jvm.options", "".join(f"{option}\n" for option in options))

    def _write_settings(self) -> None:
        """Make the folders, and write the settings with the ports and folders."""
        for folder in (self.config_folder, self.data_folder, self.folder / "tmp"):
            self._account.own(folder)
        http_port, transport_port = self._ports
        own = {
            "http.port": str(http_port),
            "transport.port": str(transport_port),
            "path.data": str(self.data_folder),
            "path.logs": str(self.folder / "logs"),
        }
        # JSON strings are valid YAML.
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in (self.settings | own).items()]
        self._account.write(self.config_folder / self.settings_file, "".join(lines))

    def _options(self) -> list[str]:
        """Return options of Java."""
        return [
            "-Xms512m",
            "-Xmx512m",
            *self.java_options,
            "-XX:+ExitOnOutOfMemoryError",
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            f"-XX:ErrorFile={self.folder}/hs_err_pid%p.log",
            # The runtime's own locale data is trimmed; without these, no index can be created.
            f"-Xbootclasspath/a:{self._cache.class_path('icu4j', LOCALES_VERSION)}",
            "-Djava.locale.providers=CLDR,SPI",
        ]

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
