"""Topic: creates and inspects the topic of changes: existence, size, consumer group, lag.

`syncer.kafka.producer` and `syncer.kafka.consumer` write and read it; `syncer.kafka.records` shows its records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from syncer.base import log
from syncer.base.errors import TopicError
from syncer.base.settings import KafkaSettings

ANSWER_SECONDS = 10
"""How long Kafka may take to answer a request."""
NO_SUCH_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID})  # noqa: SLF001
"""Kafka's and librdkafka's error codes for a missing topic."""
OVERTAKEN = "acknowledged records are gone, and others took their place"
"""The cause of a `Loss` that the relay detects."""
INSTALLATION = "syncer-installation"
"""The record header with the id of the database, which ``syncer migrate`` created."""
UNKNOWN = "unknown"
"""Stands for the database of a record without that header: another client than syncer published it."""
_NEVER_SECONDS = 3600
"""A request timeout that is never reached."""
_AS_IN_ADDRESSES = str.maketrans({"+": "-", "/": "_", "=": None})
_COORDINATOR_SECONDS = 0.2
_NO_COORDINATOR = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)

_Result = TypeVar("_Result")


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
        **({"sasl.password": settings.sasl_password.get_secret_value()} if settings.sasl_password else {}),
    }


def ensure_topic(settings: KafkaSettings) -> bool:
    """Create the topic of changes if it is missing; return whether it was.

    Raises:
        TopicError: Kafka does not answer.
        KafkaException: Kafka refuses.
    """
    return not exists(settings) and make(settings)


def make(settings: KafkaSettings) -> bool:
    """Create the topic of changes; return False if it exists."""
    new = NewTopic(settings.topic, num_partitions=settings.partitions, replication_factor=settings.replication_factor)
    try:
        with _Admin(settings) as admin:
            answer(admin.create_topics([new], request_timeout=ANSWER_SECONDS)[settings.topic])
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def exists(settings: KafkaSettings) -> bool:
    """Whether the topic exists.

    Raises:
        TopicError: Kafka does not answer.
    """
    with _Admin(settings) as admin:
        return settings.topic in _topics(admin)


def is_down(error: Exception) -> bool:
    """Whether an error says that Kafka does not answer, and not that it refuses the connection."""
    cause = error.__cause__ if isinstance(error, TopicError) else error
    return isinstance(cause, KafkaException) and cause.args[0].code() not in _NOT_LET_IN


def missing(settings: KafkaSettings) -> TopicError:
    """The error for a topic that was never created."""
    return TopicError(f"Kafka has no topic {settings.topic}", hint="Run: syncer apply, which creates it.")


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
        hint="Each database needs a topic and a consumer group of its own: for both databases, set kafka.topic and\n"
        "kafka.group to names of its own, or remove both settings. Then run syncer apply and start the\n"
        "daemons: they write every document again. See docs/deploy.md.",
    )


def replaced() -> KafkaException:
    """The error for a topic that another one of the same name has replaced; it is retried with the new one."""
    return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_ID))


def installation_of(message: Message) -> str:
    """Return the id of the database that published a record, from its header; `UNKNOWN` if it has none."""
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    found = next((value for name, value in headers if name == INSTALLATION), None)
    return (found or b"").decode("ascii", "replace") or UNKNOWN


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
    "Check kafka.properties (security.protocol, sasl.mechanisms, sasl.username, ssl.ca.location) and\n"
    "kafka.sasl_password: see docs/security.md."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The offsets of a partition: the oldest that still exists, and the next to be written."""

    begin: int
    end: int


_Client = TypeVar("_Client", _Admin, Consumer)


class _Clients(Generic[_Client]):
    """A pool of clients, one request at a time each. A client whose request fails is closed.

    After an outage some clients never get an answer again, while new ones do (seen with librdkafka 2.16).
    """

    def __init__(self, make: Callable[[], _Client]) -> None:
        self._make: Callable[[], _Client] = make
        self._idle: list[_Client] = []

    @contextmanager
    def asked(self) -> Iterator[_Client]:
        """Provide a client for one request; it returns to the pool if the request succeeds."""
        with ExitStack() as closing:
            client = closing.enter_context(self._take())
            yield client
            closing.pop_all()
        self._idle.append(client)

    def _take(self) -> _Client:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def close(self) -> None:
        """Close all idle clients."""
        while self._idle:
            self._idle.pop().__exit__(None, None, None)


class Observer:
    """Asks Kafka about the topic over pooled connections. Safe to share between threads.

    Close it to release the connections. Its methods raise `KafkaException` if Kafka does not answer or refuses.

    A topic's *id* is assigned when it is created. Another topic of the same name, or of another cluster, has a
    different one. Brokers before Kafka 2.8 give all topics the same id.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admins = _Clients(lambda: _Admin(settings))
        self._outsiders = _Clients(lambda: _outsider(settings))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close idle connections. Later requests, and those of other threads, open new ones."""
        self._admins.close()
        self._outsiders.close()

    def id(self) -> str | None:
        """Return the topic's id as Kafka's own tools show it; None if there is no such topic."""
        with self._admins.asked() as admin:
            try:
                return str(answer(self._described(admin)).topic_id).translate(_AS_IN_ADDRESSES)
            except KafkaException as error:
                if error.args[0].code() in NO_SUCH_TOPIC:
                    return None
                raise

    def extents(self, partitions: Collection[int] | None = None) -> dict[int, Extent]:
        """Return the extents of these partitions, or of all; `KafkaException` if there is no such topic."""
        with self._admins.asked() as admin:
            if partitions is None:
                partitions = [one.id for one in answer(self._described(admin)).partitions]
            if not partitions:
                return {}
            return _extents(admin, [TopicPartition(self._settings.topic, one) for one in sorted(partitions)])

    def ends(self) -> dict[int, int]:
        """Return, by partition, the offset after the last record; `KafkaException` if there is no such topic."""
        return {partition: extent.end for partition, extent in self.extents().items()}

    def committed(self, id_: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the workers' committed offsets in the topic of that id, by partition, as far as there are any."""
        places = [TopicPartition(self._settings.topic, one) for one in sorted(partitions)]
        return {place.partition: place.offset for place in self._offsets(places) if is_of(place, id_)}

    def lag(self) -> list[PartitionLag]:
        """Return the consumer group's lag by partition; offsets of another topic of the same name do not count.

        Raises:
            TopicError: Kafka does not answer, or has no such topic.
        """
        with self._admins.asked() as admin:
            found = _topics(admin).get(self._settings.topic)
            if found is None:
                raise missing(self._settings)
            places = [TopicPartition(self._settings.topic, one) for one in sorted(found.partitions)]
            extents = _extents(admin, places)
        committed = self.committed(self.id() or "", extents)
        return [
            PartitionLag(partition=one, begin=has.begin, committed=committed.get(one, has.begin), end=has.end)
            for one, has in sorted(extents.items())
        ]

    def group(self) -> Any:
        """Return the consumer group as `confluent_kafka` describes it: members and authorized operations.

        The request itself never times out: if an answer comes after a timeout or a resend, an AdminClient aborts the
        process with a failed assertion (librdkafka issue 4605, seen with 2.16).

        Raises:
            TopicError: Authentication or TLS failed.
        """
        name = self._settings.group

        def ask(admin: _Admin) -> Any:
            asked = admin.describe_consumer_groups(
                [name], include_authorized_operations=True, request_timeout=_NEVER_SECONDS
            )
            return answer(asked[name], seconds=ANSWER_SECONDS)

        with self._admins.asked() as admin, admin.asking():
            return _of_group(partial(ask, admin))

    def members(self) -> int:
        """Return the number of workers in the consumer group; raises the errors of `group`."""
        return len(self.group().members)

    def _offsets(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Return the group's committed offsets of these partitions, without partitions that have none.

        Asked with a consumer that does not join the group. The AdminClient's request crashes the process (memory fault)
        if the broker is not the group's coordinator, or not yet (seen with librdkafka 2.16).
        """

        def ask(consumer: Consumer) -> list[TopicPartition]:
            found = consumer.committed(places, timeout=ANSWER_SECONDS)
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
            return [place for place in found if place.offset >= 0]

        with self._outsiders.asked() as consumer:
            return _of_group(partial(ask, consumer))

    def _described(self, admin: _Admin) -> Future[Any]:
        name = self._settings.topic
        asked: Future[Any] = admin.describe_topics(TopicCollection([name]), request_timeout=ANSWER_SECONDS)[name]
        return asked


def _outsider(settings: KafkaSettings) -> Consumer:
    """Create a consumer that does not join the group."""
    said = {"group.id": settings.group, "enable.auto.commit": False, **common(settings)}
    return Consumer(said, logger=log.library_logger())


def answer(asked: Future[Any], *, seconds: float = 2 * ANSWER_SECONDS) -> Any:
    """Return the result of an AdminClient request; waits no longer than ``seconds``, whatever the client does.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    try:
        return asked.result(timeout=seconds)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - librdkafka's local code


def is_of(place: TopicPartition, id_: str) -> bool:
    """Whether an offset was committed for the topic of that id, and not for another one of the same name."""
    return place.metadata in (None, "", id_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Records of one partition that are gone or unreadable, and may not have been handled.

    Args:
        partition: The partition.
        cause: What happened.
        position: The next offset to be handled, or written; None if unknown.
        next_offset: The offset to continue at.
    """

    partition: int
    cause: str
    position: int | None
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The lag of the workers in one partition.

    Args:
        partition: The partition.
        begin: The oldest offset that still exists.
        committed: The next offset to be handled.
        end: The next offset to be written.
    """

    partition: int
    begin: int
    committed: int
    end: int

    @property
    def extent(self) -> Extent:
        """The extent of the partition."""
        return Extent(begin=self.begin, end=self.end)

    @property
    def records(self) -> int:
        """The number of records that wait."""
        return max(0, self.end - self.committed)


def _of_group(ask: Callable[[], _Result]) -> _Result:
    """Repeat a request about the group until it has a coordinator: the broker elects one on first use."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NO_COORDINATOR or time.monotonic() >= deadline:
                raise
        time.sleep(_COORDINATOR_SECONDS)


def _extents(admin: AdminClient, places: list[TopicPartition]) -> dict[int, Extent]:
    """Return the extent of each partition; both ends are requested at once.

    Raises:
        KafkaException: A leader did not answer in time, or does not know.
    """
    begins, ends = (
        admin.list_offsets(dict.fromkeys(places, spec), request_timeout=ANSWER_SECONDS)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    return {place.partition: Extent(begin=_answered(begins[place]), end=_answered(ends[place])) for place in places}


def _answered(asked: Future[Any]) -> int:
    """Return an offset. If one leader is silent while others answer, librdkafka reports no error, but offset -1."""
    offset = int(answer(asked).offset)
    if offset < 0:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
    return offset
