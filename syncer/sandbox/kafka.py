"""An embedded Kafka, broker and controller in one Java process (KRaft)."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from syncer.sandbox.server import BRIEF_JAVA, LOOPBACK, EmbeddedServer

JAVA_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


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
