"""Topic: creates the topic of changes, and says whether Kafka answers.

`syncer.kafka.producer` and `syncer.kafka.consumer` write and read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from syncer.base import log
from syncer.base.errors import TopicError
from syncer.base.settings import KafkaSettings

ANSWER_SECONDS = 10
"""How long Kafka may take to answer a request."""
INSTALLATION = "syncer-installation"
"""The record header with the id of the database, which ``syncer migrate`` created."""
NUMBER = "syncer-number"
"""The record header with its number, and the number of the record before it in its partition."""
UNKNOWN = "unknown"
"""Stands for the database of a record without that header: another client than syncer published it."""


def common(settings: KafkaSettings) -> dict[str, Any]:
    """Return the settings that all clients share."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "syncer",
        # How soon new partitions are noticed; the default is five minutes.
        "topic.metadata.refresh.interval.ms": 10_000,
        # How soon a broker that is back is noticed; the default is up to ten seconds.
        "reconnect.backoff.max.ms": 1000,
        **settings.properties,
    }


def ensure_topic(settings: KafkaSettings) -> bool:
    """Create the topic of changes if it is missing; return whether it was.

    Raises:
        TopicError: Kafka does not answer, or syncer is not allowed to create it.
        KafkaException: Kafka refuses.
    """
    if exists(settings):
        return False
    new = NewTopic(settings.topic, num_partitions=settings.partitions, replication_factor=settings.replication_factor)
    try:
        with _Admin(settings) as admin:
            answer(admin.create_topics([new], request_timeout=ANSWER_SECONDS)[settings.topic])
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        if error.args[0].code() not in _NOT_ALLOWED:
            raise
        raise TopicError(
            f"Kafka has no topic {settings.topic}, and syncer is not allowed to create it: {error.args[0].str()}",
            hint=f"Create it with {settings.partitions} partitions, or grant syncer CREATE on it.",
        ) from error
    return True


_NOT_ALLOWED = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION}
)


def exists(settings: KafkaSettings) -> bool:
    """Whether the topic exists.

    Raises:
        TopicError: Kafka does not answer.
    """
    with _Admin(settings) as admin:
        return settings.topic in _topics(admin)


def configuration(admin: AdminClient, name: str, *, seconds: float = ANSWER_SECONDS) -> dict[str, str]:
    """Return a topic's settings, with the broker's where the topic has none.

    Raises:
        KafkaException: Kafka does not answer, has no such topic, or does not allow to ask.
    """
    resource = ConfigResource(ResourceType.TOPIC, name)
    found = answer(admin.describe_configs([resource], request_timeout=seconds)[resource])
    return {entry.name: entry.value or "" for entry in found.values()}


def is_down(error: Exception) -> bool:
    """Whether an error says that Kafka does not answer, and not that it refuses the connection."""
    cause = error.__cause__ if isinstance(error, TopicError) else error
    return isinstance(cause, KafkaException) and cause.args[0].code() not in _NOT_LET_IN


def foreign(settings: KafkaSettings, installation: str) -> TopicError:
    """The error for a record that this database did not publish."""
    if installation == UNKNOWN:
        return TopicError(
            f"Topic {settings.topic} has a record that syncer did not publish",
            hint="Only syncer may write to the topic: restrict it with ACLs. Then delete the topic and start the\n"
            "daemons: they create it again and write every document again. See docs/security.md.",
        )
    return TopicError(
        f"Topic {settings.topic} has changes of another database, whose id is {installation}; ours is "
        f"{settings.installation}",
        hint="Each database needs a topic of its own: give kafka.topic different values, or remove the setting.\n"
        "Then run syncer apply and start the daemons: they write every document again. See docs/deploy.md.",
    )


def headers(message: Message) -> dict[str, str]:
    """Return the headers of a record."""
    found = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return {name: (value or b"").decode("ascii", "replace") for name, value in found}


class _Admin(AdminClient):
    """A client that records why it cannot connect: a timeout alone does not say."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.troubles: list[KafkaError] = []
        told: dict[str, Any] = {"error_cb": self.troubles.append}
        super().__init__({**common(settings), **told}, logger=log.library_logger())

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Turn a failed request into an error about authentication or TLS if that is the reason.

        Raises:
            TopicError: The broker rejects the client, or the client the broker.
        """
        try:
            yield
        except KafkaException as error:
            self.poll(0)
            for trouble in self.troubles:
                if trouble.code() in _NOT_LET_IN:
                    refusal = KafkaException(trouble)
                    refusal.__cause__ = error
                    raise TopicError(f"Kafka refuses the connection: {trouble.str()}", hint=_LET_IN_HINT) from refusal
            raise


_NOT_LET_IN = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})  # noqa: SLF001 - librdkafka's local codes
_LET_IN_HINT = (
    "Check kafka.properties (security.protocol, sasl.mechanisms, sasl.username, sasl.password,\n"
    "ssl.ca.location): see docs/security.md."
)


def _topics(admin: _Admin) -> dict[str, Any]:
    try:
        with admin.asking():
            return dict(admin.list_topics(timeout=ANSWER_SECONDS).topics)
    except KafkaException as error:
        raise TopicError(
            f"Kafka cannot be reached: {error.args[0].str()}",
            hint="Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up.",
        ) from error


def answer(asked: Future[Any], *, seconds: float = 2 * ANSWER_SECONDS) -> Any:
    """Return the result of an AdminClient request; waits no longer than ``seconds``, whatever the client does.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    try:
        return asked.result(timeout=seconds)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - librdkafka's local code
