"""Kafka: the topic of changes, its producer, its consumer, its offsets.

A record's key is the change's aggregate, so that changes of one document mostly share a partition and
coalesce. Nothing rests on their order: that is what versions are for. Guarantees: a producer's `flush` returns
only when every record is acknowledged by all in-sync replicas; an offset is committed only when `commit` is told so;
offsets that are out of range are an error, never skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from syncer import telemetry
from syncer.errors import TopicError
from syncer.settings import KafkaSettings

_ADMIN_SECONDS = 10
_DELIVERY_SECONDS = 30
_POLL_EVERY = 1000
_COMMIT_AGAIN_SECONDS = 1.0
_COORDINATOR_SECONDS = 0.2
_NO_COORDINATOR = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)

_Result = TypeVar("_Result")
_LOOK_RECORDS = 1000


def _common(settings: KafkaSettings) -> dict[str, Any]:
    return {"bootstrap.servers": settings.bootstrap_servers, "client.id": "syncer", **settings.properties}


def ensure_topic(settings: KafkaSettings) -> bool:
    """Create the topic of changes if it is missing; True if it was.

    Raises:
        TopicError: Kafka does not answer.
        KafkaException: Kafka refuses.
    """
    admin = _admin(settings)
    if settings.topic in _topics(admin):
        return False
    new = NewTopic(settings.topic, num_partitions=settings.partitions, replication_factor=settings.replication_factor)
    try:
        admin.create_topics([new], request_timeout=_ADMIN_SECONDS)[settings.topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def exists(settings: KafkaSettings) -> bool:
    """Whether the topic is there.

    Raises:
        TopicError: Kafka does not answer.
    """
    return settings.topic in _topics(_admin(settings))


def require_topic(settings: KafkaSettings) -> None:
    """Refuse to begin without the topic.

    Raises:
        TopicError: Kafka does not answer, or has no such topic.
    """
    if not exists(settings):
        raise _missing(settings)


def _missing(settings: KafkaSettings) -> TopicError:
    return TopicError(f"Kafka has no topic {settings.topic}", hint="Run: syncer apply, which creates it.")


def _admin(settings: KafkaSettings) -> AdminClient:
    return AdminClient(_common(settings), logger=telemetry.library_logger())


def _topics(admin: AdminClient) -> dict[str, Any]:
    try:
        return dict(admin.list_topics(timeout=_ADMIN_SECONDS).topics)
    except KafkaException as error:
        raise TopicError(
            f"Kafka cannot be reached: {error.args[0].str()}",
            hint="Check SYNCER_KAFKA_BOOTSTRAP_SERVERS, and that the broker is up.",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far the workers are behind in one partition.

    Args:
        partition: Which.
        begin: The oldest offset that is still there.
        committed: The next offset to be handled.
        end: The next offset to be written.
    """

    partition: int
    begin: int
    committed: int
    end: int

    @property
    def records(self) -> int:
        """How many records wait."""
        return max(0, self.end - self.committed)


def lag(settings: KafkaSettings) -> list[PartitionLag]:
    """How far the consumer group is behind, by partition.

    Raises:
        TopicError: Kafka does not answer, or has no such topic.
    """
    admin = _admin(settings)
    found = _topics(admin).get(settings.topic)
    if found is None:
        raise _missing(settings)
    places = [TopicPartition(settings.topic, one) for one in sorted(found.partitions)]
    ends = _offsets(admin, places, OffsetSpec.latest())
    begins = _offsets(admin, places, OffsetSpec.earliest())
    committed = _committed(admin, settings.group, places)
    return [
        PartitionLag(partition=one, begin=begins[one], committed=committed.get(one, begins[one]), end=ends[one])
        for one in sorted(ends)
    ]


def members(settings: KafkaSettings) -> int:
    """How many workers are in the consumer group."""
    admin = _admin(settings)  # answers only as long as it lives

    def ask() -> int:
        asked = admin.describe_consumer_groups([settings.group], request_timeout=_ADMIN_SECONDS)
        return len(asked[settings.group].result(timeout=2 * _ADMIN_SECONDS).members)

    return _of_group(ask)


def _of_group(ask: Callable[[], _Result]) -> _Result:
    """Ask about the consumer group; one that was never joined has no coordinator until the broker has made one."""
    deadline = time.monotonic() + _ADMIN_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NO_COORDINATOR or time.monotonic() >= deadline:
                raise
        time.sleep(_COORDINATOR_SECONDS)


def _offsets(admin: AdminClient, places: list[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
    asked = admin.list_offsets(dict.fromkeys(places, spec), request_timeout=_ADMIN_SECONDS)
    return {place.partition: answer.result().offset for place, answer in asked.items()}


def _committed(admin: AdminClient, group: str, places: list[TopicPartition]) -> dict[int, int]:
    def ask() -> dict[int, int]:
        asked = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=_ADMIN_SECONDS
        )
        found = asked[group].result().topic_partitions or []
        return {place.partition: place.offset for place in found if place.offset >= 0}

    return _of_group(ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Records of one partition that lie together: from ``begin`` to before ``end``."""

    partition: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, and where it is."""

    partition: int
    offset: int
    value: bytes


def look(settings: KafkaSettings, spans: Sequence[Span], *, seconds: float) -> Generator[list[Record]]:
    """What is in the topic, for who wants to know: joins no group, commits nothing, and takes nothing from anybody.

    Args:
        settings: Where, and which topic.
        spans: What to read; of what is no longer there, nothing comes.
        seconds: How long it may take; what has not come then is left out.

    Yields:
        Records in the order of each partition.

    Raises:
        KafkaException: Kafka refuses.
    """
    ends = {one.partition: one.end for one in spans if one.begin < one.end}
    if not ends:
        return
    deadline = time.monotonic() + seconds
    consumer = Consumer(
        {
            "group.id": settings.group,  # the one that we may name; it is not joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 16384,
            **_common(settings),
        },
        logger=telemetry.library_logger(),
    )
    try:
        consumer.assign(
            [TopicPartition(settings.topic, one.partition, one.begin) for one in spans if one.begin < one.end]
        )
        while ends and (left := deadline - time.monotonic()) > 0:
            messages = consumer.consume(1, left)
            messages += consumer.consume(_LOOK_RECORDS - 1, 0)
            yield [one for message in messages if (one := _looked_at(message, ends)) is not None]
    finally:
        consumer.close()


def _looked_at(message: Message, ends: dict[int, int]) -> Record | None:
    """A record before the end of its partition's span; a partition that has come to it is taken out of ``ends``."""
    partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's local codes are spelled so
        raise KafkaException(error)
    end = ends.get(partition, 0)
    if error is not None or offset >= end - 1:
        ends.pop(partition, None)
    return (
        Record(partition=partition, offset=offset, value=message.value() or b"")
        if error is None and offset < end
        else None
    )


class ChangeProducer:
    """Publishes changes. Not for sharing between threads; after an error, make a new one."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._topic = settings.topic
        self._error: KafkaError | None = None
        self._unpolled = 0
        self._producer = Producer(
            {
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 2,
                "message.timeout.ms": _DELIVERY_SECONDS * 1000,
                **_common(settings),
            },
            logger=telemetry.library_logger(),
        )

    def produce(self, key: bytes, value: bytes) -> None:
        """Queue one record; waits while the queue is full.

        Raises:
            KafkaException: A record before this one was not accepted.
        """
        while True:
            try:
                self._producer.produce(self._topic, value=value, key=key, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)
                self._raise_error()
            else:
                break
        self._unpolled += 1
        if self._unpolled >= _POLL_EVERY:
            self._unpolled = 0
            self._producer.poll(0)
            self._raise_error()

    def flush(self) -> None:
        """Return when every queued record is acknowledged.

        Raises:
            KafkaException: One was not.
        """
        self._producer.flush()  # bounded: each record is given up after _DELIVERY_SECONDS
        self._raise_error()

    def close(self) -> None:
        """Drop what is queued and end."""
        self._producer.purge()
        self._producer.flush(1)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and self._error is None:
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise KafkaException(self._error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Records that were received together.

    Args:
        values: Their values, in the order of each partition.
        next_offsets: By partition, the offset to commit once all of them are done.
    """

    values: tuple[bytes, ...]
    next_offsets: dict[int, int]


class ChangeConsumer:
    """A member of the workers' consumer group. Not for sharing between threads."""

    def __init__(self, settings: KafkaSettings, *, on_change: Callable[[str, list[int]], None]) -> None:
        """Join the group.

        Args:
            settings: Where, which topic, which group.
            on_change: Told of partitions that come (``worker.partitions_assigned``) and go.
        """
        self._topic = settings.topic
        self._on_change = on_change
        # Offsets of what is done and not yet known to be committed: a commit may fail in a rebalance.
        self._done: dict[int, int] = {}
        self._committed_at = time.monotonic()
        self._failure: KafkaException | None = None
        self._is_closing = False
        self._consumer = Consumer(
            {
                "group.id": settings.group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "on_commit": self._committed,
                "partition.assignment.strategy": "cooperative-sticky",
                # Out of range is a loss, and a loss is an error. A partition never read begins at its beginning,
                # which on_assign sees to.
                "auto.offset.reset": "error",
                # librdkafka's own thread keeps the session alive: only a dead process lets it lapse.
                "session.timeout.ms": 10_000,
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 16384,
                **_common(settings),
            },
            logger=telemetry.library_logger(),
        )
        self._consumer.subscribe([self._topic], on_assign=self._assign, on_revoke=self._revoke)

    def receive(self, *, records_max: int, wait_seconds: float) -> Received | None:
        """Wait for records, and take what has come; None if nothing has.

        Raises:
            KafkaException: The topic is gone, or the offsets are, or partitions could not be taken. After that
                what was received is gone too: only a new consumer gets it again.
        """
        if self._done and time.monotonic() - self._committed_at > _COMMIT_AGAIN_SECONDS:
            self._commit()
        messages = self._consumer.consume(1, wait_seconds)
        self._raise_failure()
        if not messages:
            return None
        messages += self._consumer.consume(records_max - 1, 0) if records_max > 1 else []
        self._raise_failure()
        values, next_offsets = [], {}
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            values.append(message.value() or b"")
            next_offsets[message.partition() or 0] = (message.offset() or 0) + 1
        return Received(values=tuple(values), next_offsets=next_offsets)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def commit(self, received: Received) -> None:
        """Say that these records, and all before them, are done.

        A commit that fails is tried again while the partition is ours. If it is lost all the same, whoever has
        the partition next does the records again, which is harmless.
        """
        self._done |= received.next_offsets
        self._commit()

    def _commit(self) -> None:
        self._committed_at = time.monotonic()
        self._consumer.commit(offsets=self._places(self._done), asynchronous=True)

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        for place in places:
            if error is None and place.error is None and self._done.get(place.partition) == place.offset:
                del self._done[place.partition]

    def _places(self, offsets: Mapping[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]

    def keep_alive(self) -> None:
        """Stay in the group while a batch takes long: fetches nothing."""
        assigned = self._consumer.assignment()
        self._consumer.pause(assigned)
        message = self._consumer.poll(0)
        if message is not None:
            # Of a partition that came with this very poll: it is to be received again.
            self._consumer.seek(TopicPartition(self._topic, message.partition() or 0, message.offset() or 0))
        self._consumer.resume([one for one in self._consumer.assignment() if one in assigned])

    def close(self) -> None:
        """Wait for commits in flight and leave the group."""
        self._is_closing = True
        self._consumer.close()

    # Callbacks of librdkafka. An error must not leave them: it would come out as one that no except clause catches.

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            # Who is closing reads nothing more, and librdkafka answers nothing more.
            places = partitions if self._is_closing else self._beginnings(consumer, partitions)
            consumer.incremental_assign(places)
        except KafkaException as error:
            self._failure = error
        self._on_change(telemetry.WORKER_ASSIGNED, [place.partition for place in partitions])

    def _beginnings(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where to begin: behind what is committed, or at the beginning of a partition that was never read."""
        places = consumer.committed(partitions, timeout=_ADMIN_SECONDS)
        for place in places:
            if place.offset == OFFSET_INVALID:
                place.offset = OFFSET_BEGINNING
        return places

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        leaving = {one.partition: self._done.pop(one.partition) for one in partitions if one.partition in self._done}
        if leaving:
            # What is not committed is done again by whoever has the partition next.
            with suppress(KafkaException):
                consumer.commit(offsets=self._places(leaving), asynchronous=False)
        try:
            consumer.incremental_unassign(partitions)
        except KafkaException as error:
            self._failure = error
        self._on_change(telemetry.WORKER_REVOKED, [place.partition for place in partitions])
