"""An embedded Kafka, broker and controller in one Java process (KRaft)."""

from __future__ import annotations

import base64
import functools
import secrets
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from syncer.sandbox.process import run
from syncer.sandbox.server import BRIEF_JAVA, LOOPBACK, EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SETTINGS = {
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
JAVA_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


class KafkaServer(EmbeddedServer):
    """Kafka with one node that is its own controller; other nodes may `join` it."""

    name = "Kafka"
    default_version = "4.1"
    default_settings = SETTINGS
    ports_needed = 2  # one for clients, one for the controller
    ready_seconds = 180.0
    java_options: tuple[str, ...] = BRIEF_JAVA

    _controller: KafkaServer | None = None

    @functools.cached_property
    def cluster_id(self) -> str:
        """The id that a new cluster gets."""
        # The zero byte makes it begin with a letter: a leading hyphen would look like an option.
        return base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")

    @property
    def _settings_file(self) -> Path:
        return self.folder / "server.properties"

    @property
    def address(self) -> str:
        """The bootstrap servers."""
        return f"{LOOPBACK}:{self.port}"

    def _fetch(self) -> None:
        self._cache.java_folder()
        self._cache.kafka_jars(self.version)

    def _prepare(self) -> None:
        self._write_settings()
        self._account.own(self.data_folder)
        if not (self.data_folder / "meta.properties").exists():
            with self._report.step(f"creating the log of {self.name}"):
                self._format()

    def join(self, controller: KafkaServer, *, node: int) -> None:
        """Make this server, before its first start, another broker of a running controller, whose number is 1."""
        self.cluster_id = controller.cluster_id
        self.settings |= {"node.id": str(node), "process.roles": "broker"}
        self._controller = controller

    @property
    def _controller_port(self) -> int:
        return (self._controller or self)._ports[1]  # noqa: SLF001 - another one of the same class

    def _write_settings(self) -> None:
        listeners = f"PLAINTEXT://{LOOPBACK}:{self.port}"
        own = {
            "listeners": listeners if self._controller else f"{listeners},CONTROLLER://{LOOPBACK}:{self._ports[1]}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller_port}",
            "log.dirs": str(self.data_folder),
        }
        lines = [f"{name}={value}\n" for name, value in (self.settings | own).items()]
        self._account.write(self._settings_file, "".join(lines))

    def _format(self) -> None:
        command = [*self._java("kafka.tools.StorageTool"), "format", "--ignore-formatted"]
        command += ["--cluster-id", self.cluster_id, "--config", str(self._settings_file)]
        failure = f"{self.name} could not format its log"
        environment = self._environment()
        run(command, failure=failure, folder=self.folder, environment=environment, account=self._account)

    def _java(self, main_class: str) -> list[str]:
        java = self._cache.java_folder() / "bin" / "java"
        class_path = ":".join(map(str, self._cache.kafka_jars(self.version)))
        return [str(java), *JAVA_OPTIONS, *self.java_options, "-cp", class_path, main_class]

    def _command(self) -> Sequence[str]:
        return [*self._java("kafka.Kafka"), str(self._settings_file)]

    def _is_ready(self) -> bool:
        # log_level 0: otherwise the client prints every refused connection while the server starts.
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=2.0).brokers)  # empty until the node is registered
        except KafkaException:
            return False
