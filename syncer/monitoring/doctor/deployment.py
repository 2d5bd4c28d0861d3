"""Deployment: the servers that the settings name, and what several checks ask of them.

Guarantees that nothing is changed: every transaction in Postgres is read-only and every statement bounded in time, and
Kafka and Elasticsearch are only read. All servers are connected to at once, and one that is down is tried once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
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
from syncer.elasticsearch.bulk import Index
from syncer.kafka import topic

ANSWER_SECONDS = 5
"""How long a server may take to be reached, and to answer."""


class Duty(StrEnum):
    """What a database role does; ``docs/roles.sql`` has the privileges of each."""

    RELAY = "relay"
    WORKER = "worker"
    READER = "reader"


DAEMON = frozenset({Duty.RELAY, Duty.WORKER})
"""What a daemon does that runs all components."""

_ERRORS = (psycopg.Error, KafkaException, ApiError, TransportError, SyncerError)
_READ_ONLY = f"SET default_transaction_read_only = on; SET statement_timeout = '{ANSWER_SECONDS}s'"
_HAS_SCHEMA = "SELECT to_regclass('syncer.document') IS NOT NULL"


class UnseenError(Exception):
    """A check cannot be made; the message says why."""


class Deployment:
    """The servers, connected while in a ``with`` statement.

    Args:
        settings: Where the servers are.
        config_folder: The definitions.
        duties: What the role of the settings is for.
    """

    def __init__(self, settings: Settings, config_folder: Path, duties: frozenset[Duty] = DAEMON) -> None:
        self.settings = settings
        self.config_folder = config_folder
        self.duties = duties
        self._servers: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Connect to all servers at once, so that three that are down take no longer than one."""
        connects: dict[str, Callable[[], Any]] = {"postgres": self._connect, "elasticsearch": self._client}
        if self.settings.kafka.is_used:
            connects["kafka"] = self._administer
        with ThreadPoolExecutor(thread_name_prefix="doctor") as threads:
            opened = {name: threads.submit(connect) for name, connect in connects.items()}
        for name, one in opened.items():
            try:
                self._servers[name] = one.result()
            except _ERRORS as error:
                self._servers[name] = explain(error) or SyncerError(str(error))
        if self.failure("postgres") is None:
            with suppress(psycopg.errors.InsufficientPrivilege):  # postgres.privileges names it
                if self._has_schema:
                    self.settings = self.settings.of(registry.installation(self.postgres))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        self._stack.close()

    def _connect(self) -> Connection:
        settings = self.settings.postgres
        bounded = {"connect_timeout_seconds": min(ANSWER_SECONDS, settings.connect_timeout_seconds)}
        connection = self._stack.enter_context(postgres.connect(settings.model_copy(update=bounded), name="doctor"))
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
        settings = self.settings.elasticsearch
        bounded = {"request_timeout_seconds": min(ANSWER_SECONDS, settings.request_timeout_seconds)}
        return self._stack.enter_context(elastic.connect(settings.model_copy(update=bounded)))

    def failure(self, server: str) -> SyncerError | None:
        """Why a server could not be reached; None if it was."""
        found = self._servers[server]
        return found if isinstance(found, SyncerError) else None

    def _server(self, name: str) -> Any:
        if self.failure(name) is not None:
            raise UnseenError(f"{name.title()} cannot be reached")
        return self._servers[name]

    # Postgres

    @property
    def postgres(self) -> Connection:
        """A session with the daemon's settings that cannot write."""
        found: Connection = self._server("postgres")
        return found

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows that a query of Postgres returns."""
        return self.postgres.execute(query, parameters).fetchall()

    def value(self, query: str, *parameters: object) -> Any:
        """The first column of the first row."""
        return postgres.value(self.postgres, query, parameters)

    @cached_property
    def _has_schema(self) -> bool:
        return bool(self.value(_HAS_SCHEMA))

    @property
    def schema(self) -> Connection:
        """`postgres`, if it has the syncer schema."""
        if not self._has_schema:
            raise UnseenError("the database has no syncer schema")
        return self.postgres

    @cached_property
    def documents(self) -> list[Document]:
        """The active definitions, with one entry for each index that they write to."""
        return registry.documents(self.schema)

    @cached_property
    def relations(self) -> list[str]:
        """The tables that documents read."""
        return sorted({relation for one in self.documents for relation in one.dependencies.tables})

    # Kafka

    @property
    def kafka(self) -> AdminClient:
        """A client that only asks."""
        found: AdminClient = self._server("kafka")
        return found

    # Elasticsearch

    @property
    def elasticsearch(self) -> Elasticsearch:
        """A client that only asks."""
        found: Elasticsearch = self._server("elasticsearch")
        return found

    @property
    def index(self) -> Index:
        """The record of the epoch."""
        return Index(self.elasticsearch, bulk_bytes_max=self.settings.worker.bulk_bytes_max)

    @cached_property
    def indices(self) -> dict[str, dict[str, Any]]:
        """Settings, mappings and aliases of each active index that exists, by name."""
        names = [one.index_name for one in self.documents]
        if not names:
            return {}
        found = self.elasticsearch.indices.get(
            index=names, flat_settings=True, ignore_unavailable=True, expand_wildcards="all"
        )
        return dict(found.body)

    def each_index(self) -> Iterator[tuple[Document, dict[str, Any]]]:
        """Each active definition whose index exists, with that index's settings, mappings and aliases."""
        return ((one, self.indices[one.index_name]) for one in self.documents if one.index_name in self.indices)


def reason(error: Exception) -> str | None:
    """Why a check could not be made; None for an error that is not expected."""
    if isinstance(error, UnseenError):
        return str(error)
    return (explain(error) or SyncerError(str(error))).message if isinstance(error, _ERRORS) else None
