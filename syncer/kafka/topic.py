"""Topic: creates the topic of changes, and says whether Kafka answers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from syncer.base import log
from syncer.base.errors import TopicError
from syncer.base.retry import answered
from syncer.base.settings import KafkaSettings

ANSWER_SECONDS = 10
"""How long Kafka may take to answer a request."""
INSTALLATION = "syncer-installation"
"""The record header with the id of the database, which ``syncer migrate`` created."""
TERM = "syncer-term"
"""The record header with the name of the leader's term."""
NUMBER = "syncer-number"
"""The record header with its number, and the number of the record before it in its partition."""


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
        TopicError: Kafka refuses the connection, or syncer is not allowed to create the topic.
        KafkaException: Kafka does not answer, or refuses.
    """
    if exists(settings):
        return False
    new = NewTopic(settings.topic, num_partitions=settings.partitions, replication_factor=settings.replication_factor)
    try:
        with AdminClient(common(settings), logger=log.library_logger()) as admin:
            answer(admin.create_topics([new], request_timeout=ANSWER_SECONDS)[settings.topic])
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        if error.args[0].code() not in _NOT_ALLOWED:
            raise
        raise TopicError(
            f"Kafka has no topic {settings.topic}, and syncer is not allowed to create it: {error.args[0].str()}",
            hint=f"Create it with {settings.partitions} partitions. Or let syncer create it: grant it CREATE, or set\n"
            "kafka.partitions and kafka.replication_factor as the policy of the brokers asks.",
        ) from error
    return True


def delete(settings: KafkaSettings) -> bool:
    """Delete the topic of changes; return whether there was one.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    if not exists(settings):
        return False
    with AdminClient(common(settings), logger=log.library_logger()) as admin:
        answer(admin.delete_topics([settings.topic], request_timeout=ANSWER_SECONDS)[settings.topic])
    return True


_NOT_ALLOWED = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION}
)
_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})  # noqa: SLF001 - librdkafka's local codes


def exists(settings: KafkaSettings) -> bool:
    """Whether the topic exists.

    Raises:
        TopicError: The broker refuses the client, or the client the broker.
        KafkaException: Kafka does not answer.
    """
    troubles: list[KafkaError] = []  # why it cannot connect: a timeout alone does not say
    told: dict[str, Any] = {**common(settings), "error_cb": troubles.append}
    with AdminClient(told, logger=log.library_logger()) as admin:
        try:
            topics = admin.list_topics(timeout=ANSWER_SECONDS).topics
        except KafkaException:
            admin.poll(0)
            refusal = next((trouble for trouble in troubles if trouble.code() in _REFUSED), None)
            if refusal is None:
                raise
            raise TopicError(
                f"Kafka refuses the connection: {refusal.str()}",
                hint="Check kafka.properties (security.protocol, sasl.mechanisms, sasl.username, sasl.password,\n"
                "ssl.ca.location): see docs/security.md.",
            ) from KafkaException(refusal)
    answered("kafka")
    return settings.topic in topics


def configuration(admin: AdminClient, name: str, *, seconds: float = ANSWER_SECONDS) -> dict[str, str]:
    """Return a topic's settings, with the broker's where the topic has none.

    Raises:
        KafkaException: Kafka does not answer, has no such topic, or does not allow to ask.
    """
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = answer(admin.describe_configs([resource], request_timeout=seconds)[resource])
    return {entry.name: entry.value or "" for entry in entries.values()}


def answer(asked: Future[Any], *, seconds: float = 2 * ANSWER_SECONDS) -> Any:
    """Return the result of an AdminClient request; waits no longer than ``seconds``, whatever the client does.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    try:
        return asked.result(timeout=seconds)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - librdkafka's local code
