"""Producer: publishes changes to the topic.

A record's key is the change's aggregate, so that changes of one document mostly share a partition and coalesce. Nothing
depends on their order: document versions take care of it.

Guarantees: `ChangeProducer.flush` returns only when all in-sync replicas have acknowledged every record. Once
`ChangeProducer.fill_up` returns, no later record takes the offset of a lost one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from syncer.base import log
from syncer.base.model import Change
from syncer.base.settings import KafkaSettings
from syncer.kafka.topic import INSTALLATION, OVERTAKEN, Loss, Observer, common

_DELIVERY_SECONDS = 30
_HEARTBEAT_SECONDS = 2.0
_POLL_EVERY = 1000
_ANY_PARTITION = -1
_UNACKNOWLEDGED_MAX = 20_000
"""How many records may be queued or sent and not acknowledged. Workers may have handled them."""


class ChangeProducer:
    """Publishes changes. Not for sharing between threads; after an error, create a new one.

    A record larger than Kafka accepts is replaced by a small one. It says only that the table has changed, so that
    every document that reads it is written again.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.observer = Observer(settings)
        self.ends: dict[int, int] = {}
        """By partition, the offset after the last acknowledged record; initially, the last known one."""
        self.sent: dict[int, list[int]] = {}
        """By partition, the first and last offset acknowledged since this was last emptied; for the log."""
        self.losses: list[Loss] = []
        """Records that were acknowledged and later overwritten, as new acknowledgements show."""
        self.heartbeat: Callable[[], object] = lambda: None
        """Called at least every few seconds while this waits for Kafka or fills a gap; what it raises ends that."""
        self._topic = settings.topic
        self._source: list[tuple[str, str | bytes | None]] = (
            [(INSTALLATION, settings.installation)] if settings.installation else []
        )
        self._error: KafkaError | None = None
        self._too_large: list[tuple[bytes, bytes]] = []
        self._producer = Producer(
            {
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 2,  # applies while records are queued; a flush does not linger
                "queue.buffering.max.messages": _UNACKNOWLEDGED_MAX,
                "socket.nagle.disable": True,
                "on_delivery": self._delivered,
                "message.timeout.ms": _DELIVERY_SECONDS * 1000,
                # How long a topic may be unknown; a re-created topic becomes known soon.
                "topic.metadata.propagation.max.ms": 5000,
                **common(settings),
            },
            logger=log.library_logger(),
        )

    def produce(self, records: Iterable[tuple[bytes, bytes]]) -> int:
        """Queue records, each a key and a value; waits while the queue is full.

        Returns:
            The number of records.

        Raises:
            KafkaException: A record was not accepted.
        """
        count = 0
        for count, (key, value) in enumerate(records, 1):
            try:
                self._producer.produce(self._topic, value, key, headers=self._source)
            except BufferError:
                self._produce_late(key, value)
            except KafkaException as error:
                self._refused(error.args[0], key, value)
            if not count % _POLL_EVERY:
                self._producer.poll(0)
                self._raise_error()
                if len(self._too_large) >= _POLL_EVERY:
                    self._publish_alone()
        return count

    def _produce_late(self, key: bytes, value: bytes, *, partition: int = _ANY_PARTITION) -> None:
        while True:
            self._producer.poll(0.1)
            self.heartbeat()
            self._raise_error()
            with suppress(BufferError):
                return self._producer.produce(self._topic, value, key, partition=partition, headers=self._source)

    def fill_up(self, losses: Sequence[Loss]) -> None:
        """Publish empty records where records were lost, and beyond, so that no change takes the offset of a lost one.

        A worker whose offset is behind the lost records would skip a change there. It ignores empty records.

        Raises:
            KafkaException: A record was not acknowledged.
        """
        # Rules: fill-the-offsets-of-lost-records, fill-what-was-not-acknowledged.
        for one in losses:
            self.ends[one.partition] = one.next_offset
            for count in range((one.position or 0) + _UNACKNOWLEDGED_MAX - one.next_offset):
                try:
                    self._producer.produce(self._topic, b"", partition=one.partition, headers=self._source)
                except BufferError:
                    self._produce_late(b"", b"", partition=one.partition)
                if not count % _POLL_EVERY:
                    self._producer.poll(0)
                    self._raise_error()
                    self.heartbeat()
        self.flush()

    def is_flushed(self, seconds: float) -> bool:
        """Whether Kafka answers for every queued record within this time; `flush` raises what it has refused."""
        return not self._producer.flush(seconds)

    def flush(self) -> None:
        """Return when every queued record is acknowledged.

        Raises:
            KafkaException: A record was not acknowledged.
        """
        self._wait_for_all()
        self._raise_error()
        if self._too_large:
            self._publish_alone()

    def _wait_for_all(self) -> None:
        """Wait until Kafka has answered for every queued record: each fails after _DELIVERY_SECONDS."""
        while self._producer.flush(_HEARTBEAT_SECONDS):
            self.heartbeat()

    def _publish_alone(self) -> None:
        """Publish records that were too large one by one: a batch may exceed the limit though no record does.

        Raises:
            KafkaException: A record was not acknowledged.
        """
        refused, self._too_large = self._too_large, []
        for key, value in refused:
            try:
                self._producer.produce(self._topic, value, key, headers=self._source)
            except KafkaException as error:
                self._refused(error.args[0], key, value)
            self._wait_for_all()
            self._raise_error()  # otherwise each remaining record would run into the same timeout
        if self._too_large:
            self._publish_short()

    def _publish_short(self) -> None:
        """Publish one short record per table in place of the records that are too large.

        Raises:
            KafkaException: Even a short record is too large.
        """
        refused, self._too_large = self._too_large, []
        short = {change.relation: change.without_images() for change in (Change.parse(value) for _, value in refused)}
        structlog.get_logger().warning(
            "relay.changes_shortened",
            changes=len(refused),
            bytes_largest=max(len(value) for _, value in refused),
            relations=sorted(short),
        )
        for value in short.values():
            self._producer.produce(self._topic, value, b"", headers=self._source)
        self._wait_for_all()
        if self._too_large:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._raise_error()

    def close(self) -> None:
        """Drop queued records and close."""
        self._producer.purge()
        self._producer.flush(1)
        self._producer.close()
        self.observer.close()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused(error, message.key() or b"", message.value() or b"")
            return
        offset, partition = message.offset(), message.partition()
        if offset is None or partition is None or offset < 0:  # unknown for a record that was sent twice
            return
        # Rule: an-offset-acknowledged-twice-is-a-loss.
        end = self.ends.get(partition, 0)
        if offset < end:
            lost = Loss(partition=partition, cause=OVERTAKEN, position=end, next_offset=offset)
            self.losses.append(lost)
        self.ends[partition] = offset + 1
        self.sent.setdefault(partition, [offset, offset])[1] = offset

    def _refused(self, error: KafkaError, key: bytes, value: bytes) -> None:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and value:
            self._too_large.append((key, value))
        elif self._error is None:
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise KafkaException(self._error)
