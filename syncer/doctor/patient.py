"""Patient: the servers as the settings name them, and what several checks want to know of them.

Guarantees that nothing is changed: in Postgres every transaction is read-only, and no statement runs for long; of
Kafka and Elasticsearch it is only asked. A server that is away is asked once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import PartitionMetadata
from confluent_kafka.admin._resource import ResourceType
from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch

from syncer import capture, index as elastic, postgres, store, topic
from syncer.doctor.symptom import Group, Limits, Mend, shell
from syncer.errors import SyncerError, TopicError
from syncer.grants import Duty
from syncer.index import Index
from syncer.policy import explain
from syncer.postgres import Connection
from syncer.settings import Settings
from syncer.store import Document
from syncer.topic import PartitionLag
from syncer.trigger import Capture

ANSWER_SECONDS = 5
"""How long a server may take to be reached, and to answer."""

OF_DAEMON = frozenset({Duty.RELAY, Duty.WORKER})
"""What a daemon does that does everything."""

_ERRORS = (psycopg.Error, KafkaException, ApiError, TransportError, SyncerError)
_Server = TypeVar("_Server")

# Postgres keeps us from changing anything, and from asking for long.
_HANDS_OFF = f"SET default_transaction_read_only = on; SET statement_timeout = '{ANSWER_SECONDS}s'"
_PLAIN = "SELECT name, setting, coalesce(unit, ''), source FROM pg_settings"
_INSTALLED = "SELECT to_regclass('syncer.document') IS NOT NULL"


class UnseenError(Exception):
    """Something cannot be looked at; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of Postgres as a session of the daemon's role finds it.

    Args:
        value: As ``pg_settings`` has it.
        unit: Of a number.
        source: Who has set it.
    """

    value: str
    unit: str
    source: str


class Patient:
    """What is examined. To be used in a with statement.

    Args:
        settings: Where the servers are.
        config_folder: The definitions as they are written.
        limits: From where on a number is worth a word.
        duties: What the role of the settings is for.
    """

    def __init__(
        self,
        settings: Settings,
        config_folder: Path,
        limits: Limits | None = None,
        duties: frozenset[Duty] = OF_DAEMON,
    ) -> None:
        self.settings = settings
        self.config_folder = config_folder
        self.limits = limits or Limits()
        self.duties = duties
        self._reached: dict[Group, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Reach for all servers at once, so that three that are away take no longer than one."""
        doors: dict[Group, Callable[[], object]] = {
            Group.POSTGRES: self._connect,
            Group.KAFKA: self._administrate,
            Group.ELASTICSEARCH: self._client,
        }
        with ThreadPoolExecutor(thread_name_prefix="doctor") as threads:
            asked = {group: threads.submit(_attempt, door) for group, door in doors.items()}
        self._reached = {group: one.result() for group, one in asked.items()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of them."""
        self._stack.close()

    def _connect(self) -> Connection:
        bounded = min(ANSWER_SECONDS, self.settings.postgres.connect_timeout_seconds)
        settings = self.settings.postgres.model_copy(update={"connect_timeout_seconds": bounded})
        connection = self._stack.enter_context(postgres.connect(settings, name="doctor"))
        connection.execute(_HANDS_OFF)
        return connection

    def _administrate(self) -> AdminClient:
        admin = AdminClient(topic.common(self.settings.kafka) | {"log_level": 0})
        try:
            admin.list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise TopicError(
                f"Kafka cannot be reached: {error.args[0].str()}",
                hint="Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up.",
            ) from error
        return admin

    def _client(self) -> Elasticsearch:
        bounded = min(ANSWER_SECONDS, self.settings.elasticsearch.request_timeout_seconds)
        settings = self.settings.elasticsearch.model_copy(update={"request_timeout_seconds": bounded})
        return self._stack.enter_context(elastic.connect(settings))

    def failure(self, group: Group) -> SyncerError | None:
        """Why a server could not be reached; None if it was."""
        found = self._reached[group]
        return found if isinstance(found, SyncerError) else None

    def _server(self, group: Group) -> Any:
        if self.failure(group) is not None:
            raise UnseenError(f"{group.title()} cannot be reached")
        return self._reached[group]

    # Postgres

    @property
    def postgres(self) -> Connection:
        """A session as the daemon has them, but one that can change nothing."""
        found: Connection = self._server(Group.POSTGRES)
        return found

    @cached_property
    def plain(self) -> dict[str, Setting]:
        """The settings of Postgres as a session finds them that asks for nothing, such as an application's."""
        assert self.postgres  # noqa: S101 - or it has raised
        there = self.settings.postgres.conninfo
        with psycopg.connect(there, autocommit=True, connect_timeout=ANSWER_SECONDS) as connection:
            return {
                name: Setting(value=value, unit=unit, source=source)
                for name, value, unit, source in connection.execute(_PLAIN)
            }

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What Postgres answers."""
        return self.postgres.execute(query, parameters).fetchall()

    def value(self, query: str, *parameters: object) -> Any:
        """The first column of the first row; None if there is no row."""
        row = self.postgres.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    @cached_property
    def is_installed(self) -> bool:
        """Whether the syncer schema is there."""
        return bool(self.value(_INSTALLED))

    @property
    def installed(self) -> Connection:
        """The same as `postgres`, of a database that has the syncer schema."""
        if not self.is_installed:
            raise UnseenError("the database has no syncer schema")
        return self.postgres

    @cached_property
    def documents(self) -> list[Document]:
        """The definitions in force."""
        return store.documents(self.installed)

    @cached_property
    def captures(self) -> dict[str, Capture]:
        """The tables that are captured."""
        return capture.captured(self.installed)

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """The tables that documents read."""
        return tuple(sorted({relation for one in self.documents for relation in one.dependencies.tables}))

    # Kafka

    @property
    def kafka(self) -> AdminClient:
        """For questions."""
        found: AdminClient = self._server(Group.KAFKA)
        return found

    @cached_property
    def partitions(self) -> dict[int, PartitionMetadata]:
        """The partitions of the topic of changes."""
        found = self.kafka.list_topics(timeout=ANSWER_SECONDS).topics.get(self.settings.kafka.topic)
        if found is None:
            raise UnseenError(f"Kafka has no topic {self.settings.kafka.topic}")
        return dict(found.partitions)

    @cached_property
    def topic_config(self) -> dict[str, str]:
        """How the topic is set up, with what the broker says where the topic says nothing."""
        assert self.partitions  # noqa: S101 - or it has raised
        return self._config(ResourceType.TOPIC, self.settings.kafka.topic)

    @cached_property
    def broker_config(self) -> dict[str, str]:
        """How one of the brokers is set up."""
        brokers = self.kafka.list_topics(timeout=ANSWER_SECONDS).brokers
        return self._config(ResourceType.BROKER, str(min(brokers)))

    def _config(self, kind: ResourceType, name: str) -> dict[str, str]:
        resource = ConfigResource(kind, name)
        asked = self.kafka.describe_configs([resource], request_timeout=ANSWER_SECONDS)
        return {one.name: one.value or "" for one in topic.answer(asked[resource]).values()}

    @cached_property
    def lags(self) -> list[PartitionLag]:
        """How far the workers are behind."""
        assert self.partitions  # noqa: S101 - or it has raised
        return topic.lag(self.settings.kafka)

    # Elasticsearch

    @property
    def elasticsearch(self) -> Elasticsearch:
        """For questions."""
        found: Elasticsearch = self._server(Group.ELASTICSEARCH)
        return found

    @property
    def index(self) -> Index:
        """The epoch's record, and the documents."""
        return Index(self.elasticsearch, bulk_bytes_max=self.settings.worker.bulk_bytes_max)

    @cached_property
    def held(self) -> dict[str, dict[str, Any]]:
        """Settings, mappings and aliases of the indices in force that are there, by name."""
        names = [one.index_name for one in self.documents]
        if not names:
            return {}
        found = self.elasticsearch.indices.get(
            index=names, flat_settings=True, ignore_unavailable=True, expand_wildcards="all"
        )
        return dict(found.body)

    def each_index(self) -> Iterator[tuple[Document, dict[str, Any]]]:
        """The documents in force whose index is there, with its settings, mappings and aliases."""
        return ((one, self.held[one.index_name]) for one in self.documents if one.index_name in self.held)

    def request(self, method: str, path: str, body: str = "", *, note: str = "") -> Mend:
        """A request to Elasticsearch as a mend, with the credentials named and not said."""
        settings = self.settings.elasticsearch
        words = ["curl -sS --fail-with-body -X", method]
        if settings.api_key:
            words.append('-H "Authorization: ApiKey $SYNCER_ELASTICSEARCH_API_KEY"')
        elif settings.username:
            words.append('-u "$SYNCER_ELASTICSEARCH_USERNAME:$SYNCER_ELASTICSEARCH_PASSWORD"')
        if settings.ca_certs:
            words.append(f"--cacert {settings.ca_certs}")
        words.append(f'"$SYNCER_ELASTICSEARCH_URL{path}"')
        if body:
            words.append(f"-H 'Content-Type: application/json' -d '{body}'")
        return shell(" ".join(words), note)

    def kafka_tool(self, tool: str, arguments: str, note: str = "") -> Mend:
        """One of Kafka's own commands as a mend, with the credentials named and not said."""
        settings = self.settings.kafka
        credentials = " --command-config client.properties" if settings.properties else ""
        said = "client.properties is to hold the credentials, as Java's clients take them."
        return shell(
            f"{tool} --bootstrap-server {settings.bootstrap_servers}{credentials} {arguments}",
            note or (said if credentials else ""),
        )

    def topic_mend(self, setting: str, note: str = "") -> Mend:
        """What gives the topic another setting."""
        what = f"--alter --entity-type topics --entity-name {self.settings.kafka.topic} --add-config {setting}"
        return self.kafka_tool("kafka-configs.sh", what, note)


def _attempt(door: Callable[[], _Server]) -> _Server | SyncerError:
    """What a door opens to; or why it does not."""
    try:
        return door()
    except _ERRORS as error:
        return _said(error)


def _said(error: BaseException) -> SyncerError:
    return explain(error) or SyncerError(str(error))


def reason(error: BaseException) -> str | None:
    """Why something cannot be seen, if that is what an error means; None if it is one that nobody foresaw."""
    if isinstance(error, UnseenError):
        return str(error)
    if isinstance(error, _ERRORS):
        return _said(error).message
    return None
