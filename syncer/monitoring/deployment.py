"""Deployment: the servers that the settings name, and what several checks of the doctor ask of them.

Guarantees that nothing is changed: every transaction in Postgres is read-only and every statement bounded in time, and
Kafka and Elasticsearch are only read. All servers are connected to at once, and one that is down is tried once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch

from syncer.base import postgres
from syncer.base.error_policy import explain
from syncer.base.errors import SyncerError, TopicError
from syncer.base.postgres import Connection
from syncer.base.settings import Settings
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.elasticsearch import client as elastic
from syncer.kafka import topic

ANSWER_SECONDS = 5
"""How long a server may take to be reached, and to answer."""
ERRORS = (psycopg.Error, KafkaException, ApiError, TransportError, SyncerError)
"""What keeps a check from being made."""
_READ_ONLY = f"SET default_transaction_read_only = on; SET statement_timeout = '{ANSWER_SECONDS}s'"


class UnseenError(Exception):
    """A check cannot be made; the message says why."""


class Deployment:
    """The servers, and the folder of definitions; connected while in a ``with`` statement."""

    def __init__(self, settings: Settings, config_folder: Path) -> None:
        self.settings = settings
        self.config_folder = config_folder
        self.servers: dict[str, Any] = {}
        """A client of each server that is used, or the `SyncerError` that kept it from being opened."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Connect to all servers at once, so that three that are down take no longer than one."""
        connects: dict[str, Callable[[], Any]] = {"postgres": self._connect}
        if self.settings.kafka.is_used:
            connects["kafka"] = self._administer
        connects["elasticsearch"] = self._client
        with ThreadPoolExecutor(thread_name_prefix="doctor") as threads:
            opened = {name: threads.submit(connect) for name, connect in connects.items()}
        for name, future in opened.items():
            try:
                self.servers[name] = future.result()
            except ERRORS as error:
                self.servers[name] = explain(error) or SyncerError(str(error))
        with suppress(UnseenError, psycopg.errors.InsufficientPrivilege):  # postgres.privileges names it
            self.settings = self.settings.of(registry.installation(self.schema))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        self._stack.close()

    def _connect(self) -> Connection:
        connection = self._stack.enter_context(postgres.connect(self.settings.postgres, name="doctor"))
        connection.execute(_READ_ONLY)
        return connection

    def _administer(self) -> AdminClient:
        admin = self._stack.enter_context(AdminClient(topic.common(self.settings.kafka) | {"log_level": 0}))
        try:
            admin.list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise TopicError(
                f"Kafka cannot be reached: {error.args[0].str()}",
                hint="Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up.",
            ) from error
        return admin

    def _client(self) -> Elasticsearch:
        client = elastic.connect(self.settings.elasticsearch, timeout_seconds=ANSWER_SECONDS)
        return self._stack.enter_context(client)

    def _server(self, name: str) -> Any:
        if isinstance(self.servers[name], SyncerError):
            raise UnseenError(f"{name.title()} cannot be reached")
        return self.servers[name]

    @property
    def postgres(self) -> Connection:
        """A session with the daemon's settings that cannot write."""
        return cast("Connection", self._server("postgres"))

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows that a query of Postgres returns."""
        return self.postgres.execute(query, parameters).fetchall()

    @property
    def schema(self) -> Connection:
        """`postgres`, if it has the syncer schema."""
        if self.rows("SELECT to_regclass('syncer.document') IS NOT NULL") != [(True,)]:
            raise UnseenError("the database has no syncer schema")
        return self.postgres

    @cached_property
    def documents(self) -> list[Document]:
        """The active definitions, with one entry for each index that they write to."""
        return registry.documents(self.schema)

    @property
    def kafka(self) -> AdminClient:
        """A client that only asks."""
        return cast("AdminClient", self._server("kafka"))

    @property
    def topic(self) -> TopicMetadata | None:
        """The topic of changes, if Kafka has it."""
        topics = self.kafka.list_topics(timeout=ANSWER_SECONDS).topics
        return topics.get(self.settings.kafka.topic)

    @property
    def topic_settings(self) -> dict[str, str]:
        """The topic's settings, with the broker's where the topic has none."""
        if self.topic is None:
            raise UnseenError(f"Kafka has no topic {self.settings.kafka.topic}".rstrip())
        return topic.configuration(self.kafka, self.settings.kafka.topic, seconds=ANSWER_SECONDS)

    @property
    def elasticsearch(self) -> Elasticsearch:
        """A client that only asks."""
        return cast("Elasticsearch", self._server("elasticsearch"))

    @cached_property
    def indices(self) -> list[tuple[Document, dict[str, Any]]]:
        """Each active definition whose index exists, with that index's settings."""
        names = [document.index_name for document in self.documents]
        if not names:
            return []
        found = self.elasticsearch.indices.get_settings(
            index=names, flat_settings=True, ignore_unavailable=True, expand_wildcards="all"
        ).body
        return [(each, found[each.index_name]["settings"]) for each in self.documents if each.index_name in found]
