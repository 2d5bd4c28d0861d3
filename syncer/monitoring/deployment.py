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
from typing import Any, Self

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from elastic_transport import TransportError
from elasticsearch import ApiError

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
        """Connect."""
        connects: dict[str, Callable[[], Any]] = {"postgres": self._connect}
        if self.settings.kafka.is_used:
            connects["kafka"] = self._administer
        connects["elasticsearch"] = lambda: self._stack.enter_context(
            elastic.connect(self.settings.elasticsearch, timeout_seconds=ANSWER_SECONDS)
        )
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

    def __exit__(self, *_: object) -> None:
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

    def server(self, name: str) -> Any:
        """A client of a server."""
        if isinstance(self.servers[name], SyncerError):
            raise UnseenError(f"{name.title()} cannot be reached")
        return self.servers[name]

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows that a query of Postgres returns."""
        connection: Connection = self.server("postgres")
        return connection.execute(query, parameters).fetchall()

    @property
    def schema(self) -> Connection:
        """A session with the daemon's settings that cannot write, if Postgres has the syncer schema."""
        if self.rows("SELECT to_regclass('syncer.document') IS NOT NULL") != [(True,)]:
            raise UnseenError("the database has no syncer schema")
        connection: Connection = self.server("postgres")
        return connection

    @cached_property
    def documents(self) -> list[Document]:
        """The active definitions, with one entry for each index that they write to."""
        return registry.documents(self.schema)

    @property
    def topics(self) -> dict[str, TopicMetadata]:
        """The topics that Kafka has."""
        found: dict[str, TopicMetadata] = self.server("kafka").list_topics(timeout=ANSWER_SECONDS).topics
        return found

    @property
    def topic(self) -> TopicMetadata:
        """The topic of changes."""
        name = self.settings.kafka.topic
        if name not in self.topics:
            raise UnseenError(f"Kafka has no topic {name}".rstrip())
        return self.topics[name]

    @cached_property
    def indices(self) -> list[tuple[Document, dict[str, Any]]]:
        """Each active definition whose index exists, with that index's settings."""
        names = [document.index_name for document in self.documents]
        if not names:
            return []
        found = self.server("elasticsearch").indices.get_settings(
            index=names, flat_settings=True, ignore_unavailable=True, expand_wildcards="all"
        )
        return [(each, found[each.index_name]["settings"]) for each in self.documents if each.index_name in found]
