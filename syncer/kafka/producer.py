"""Producer: publishes changes to the topic, as records with numbers.

Changes of a table that lead to the same documents have the same key, so that they mostly share a partition and
coalesce. Nothing depends on their order: document versions take care of it.

Guarantees: `ChangeProducer.flush` returns only when all in-sync replicas have acknowledged every record. Each record
names the one before it in its partition, so that a loss is noticed: see `syncer.capture.progress`.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from syncer.base import log
from syncer.base.model import Change
from syncer.base.retry import answered
from syncer.base.settings import KafkaSettings
from syncer.capture.outbox import OutboxRow
from syncer.capture.progress import Term
from syncer.kafka.topic import ANSWER_SECONDS, INSTALLATION, NUMBER, TERM, common, configuration

QUIET_SECONDS = 10.0
"""After so long without a change a partition gets an empty record, which shows the loss of those before it."""
_DELIVERY_SECONDS = 30
_BEAT_SECONDS = 1.0
_QUEUED_MAX = 20_000
_LOOK_SECONDS = 10.0
"""How often the number of partitions is looked up."""
_OVERHEAD_BYTES = 500
"""At most, of a record beside its key and value."""
_BATCH_BYTES_MAX = 1_000_000
"""The largest batch that a topic takes by default."""


class ChangeProducer:
    """Publishes changes of one leader. Not for sharing between threads; after an error, create a new one.

    A record larger than the topic accepts is replaced by a small one. It says only that the table has changed, so that
    every document that reads it is written again.

    Args:
        term: The leader's, which is committed.
        saved: By partition, the last number that was saved.
        while_waiting: Called at least every few seconds while this waits for Kafka; what it raises ends that.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        term: Term,
        saved: Mapping[int, int],
        while_waiting: Callable[[float], object],
    ) -> None:
        self.numbers = dict(saved)
        """By partition, the number of the last record."""
        self._settings = settings
        self._last_number, self._term = term
        self._while_waiting = while_waiting
        self._error: KafkaError | None = None
        self._bytes_max = _accepted_bytes(settings)
        self._partitions = 0
        self._looked_at = 0.0
        self._sent_at: dict[int, float] = {}
        self._producer = Producer(
            {
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 2,  # applies while records are queued; a flush does not linger
                "queue.buffering.max.messages": _QUEUED_MAX,
                "message.max.bytes": self._bytes_max,  # also of a batch: so none is refused for its size
                "socket.nagle.disable": True,
                "on_delivery": self._delivered,
                "message.timeout.ms": _DELIVERY_SECONDS * 1000,
                # How long a topic may be unknown; a re-created topic becomes known soon.
                "topic.metadata.propagation.max.ms": 5000,
                **common(settings),
            },
            logger=log.library_logger(),
        )

    def produce(self, rows: Iterable[OutboxRow]) -> None:
        """Queue changes; waits while the queue is full.

        Raises:
            KafkaException: Kafka does not say how many partitions the topic has.
        """
        self.look_up_partitions()
        shortened: dict[str, int] = {}
        for row in rows:
            value = row.value
            if len(value) + len(row.key) + _OVERHEAD_BYTES > self._bytes_max:
                change = Change.parse(value)
                shortened[change.relation] = max(shortened.get(change.relation, 0), len(value))
                value = change.without_images()
            self._send(zlib.crc32(row.key) % self._partitions, row.key, value)
        if shortened:
            structlog.get_logger().warning(
                "relay.changes_shortened", bytes_largest=max(shortened.values()), relations=sorted(shortened)
            )

    def produce_empty(self) -> bool:
        """Queue an empty record for each partition that was quiet for a while; return whether there is one."""
        # Rule: a-quiet-partition-gets-an-empty-record.
        now = time.monotonic()
        quiet = [
            partition for partition in self.numbers if now - self._sent_at.setdefault(partition, now) >= QUIET_SECONDS
        ]
        for partition in quiet:
            self._send(partition, b"", b"")
        return bool(quiet)

    def flush(self) -> None:
        """Return when every queued record is acknowledged.

        Raises:
            KafkaException: A record was not.
        """
        began = time.monotonic()
        while self._producer.flush(_BEAT_SECONDS):  # each record fails after _DELIVERY_SECONDS
            self._while_waiting(time.monotonic() - began)
        if self._error is not None:
            raise KafkaException(self._error)
        answered("kafka", seconds=time.monotonic() - began)

    def close(self) -> None:
        """Drop queued records and close."""
        self._producer.purge()
        self._producer.flush(1)
        self._producer.close()

    def _send(self, partition: int, key: bytes, value: bytes) -> None:
        previous = self.numbers.get(partition, 0)
        self._last_number += 1
        self.numbers[partition] = self._last_number
        self._sent_at[partition] = time.monotonic()
        headers: list[tuple[str, str | bytes | None]] = [
            (INSTALLATION, self._settings.installation),
            (TERM, self._term),
            (NUMBER, f"{self._last_number} {previous}"),
        ]
        began = time.monotonic()
        while True:
            with suppress(BufferError):  # the queue is full of large records
                self._producer.produce(self._settings.topic, value, key, partition=partition, headers=headers)
                return
            self._producer.poll(0.1)
            self._while_waiting(time.monotonic() - began)

    def look_up_partitions(self) -> int:
        """Return how many partitions the topic has, as of the last seconds.

        Raises:
            KafkaException: Kafka does not say.
        """
        now = time.monotonic()
        if self._partitions and now - self._looked_at < _LOOK_SECONDS:
            return self._partitions
        topic = self._producer.list_topics(self._settings.topic, timeout=ANSWER_SECONDS).topics[self._settings.topic]
        if topic.error is not None or not topic.partitions:
            raise KafkaException(topic.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        self._partitions, self._looked_at = len(topic.partitions), now
        return self._partitions

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._error = self._error or error


def _accepted_bytes(settings: KafkaSettings) -> int:
    """How large a batch of records, and so a record, may be. The default, or less if the topic says so."""
    with AdminClient(common(settings), logger=log.library_logger()) as admin:
        try:
            return min(_BATCH_BYTES_MAX, int(configuration(admin, settings.topic)["max.message.bytes"]))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            return _BATCH_BYTES_MAX
