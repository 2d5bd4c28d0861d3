"""Producer: changes into the topic.

A record's key is the change's aggregate, so that changes of one document mostly share a partition and
coalesce. Nothing rests on their order: that is what versions are for. Guarantee: `ChangeProducer.flush` returns only
when every record is acknowledged by all in-sync replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from syncer import events, telemetry
from syncer.model import Change, id_in
from syncer.settings import KafkaSettings
from syncer.topic import OVERTAKEN, Loss, Observer, common
from syncer.traces import Headers

_DELIVERY_SECONDS = 30
_POLL_EVERY = 1000


class ChangeProducer:
    """Publishes changes. Not for sharing between threads; after an error, make a new one.

    A record that is larger than Kafka takes is replaced by a small one that says only that much: something has happened
    to that table, and every document that reads it is to be written again.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.observer = Observer(settings)
        self.ends: dict[int, int] = {}
        """By partition, the offset behind the last record that was acknowledged; to begin with, what is known of it."""
        self.lasts: dict[int, int] = {}
        """By partition, the id that this record's change has in the outbox, likewise; brought up to date by `flush`."""
        self.sent: dict[int, list[int]] = {}
        """By partition, the first and the last offset that were acknowledged since this was emptied; for the log."""
        self.losses: list[Loss] = []
        """Where records that had been acknowledged before are gone, as later acknowledgements show."""
        self._topic = settings.topic
        self._error: KafkaError | None = None
        self._too_large: list[tuple[bytes, bytes]] = []
        self._newest: dict[int, Message] = {}
        self._producer = Producer(
            {
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 2,  # while records are queued; a flush waits for no more of them
                "queue.buffering.max.messages": 20_000,
                "socket.nagle.disable": True,
                "on_delivery": self._delivered,
                "message.timeout.ms": _DELIVERY_SECONDS * 1000,
                # How long a topic may be unknown; a topic that is made again is soon known.
                "topic.metadata.propagation.max.ms": 5000,
                **common(settings),
            },
            logger=telemetry.library_logger(),
        )

    def produce(self, records: Iterable[tuple[bytes, bytes]], *, headers: Headers | None = None) -> int:
        """Queue records, each a key and a value, with the same headers; waits while the queue is full.

        Returns:
            How many they were.

        Raises:
            KafkaException: A record was not accepted.
        """
        count = 0
        for count, (key, value) in enumerate(records, 1):
            try:
                self._producer.produce(self._topic, value, key, headers=headers)
            except BufferError:
                self._produce_late(key, value, headers)
            except KafkaException as error:
                self._refused(error.args[0], key, value)
            if not count % _POLL_EVERY:
                self._producer.poll(0)
                self._raise_error()
                if len(self._too_large) >= _POLL_EVERY:
                    self._publish_alone()
        return count

    def _produce_late(self, key: bytes, value: bytes, headers: Headers | None) -> None:
        while True:
            self._producer.poll(0.1)
            self._raise_error()
            with suppress(BufferError):
                return self._producer.produce(self._topic, value, key, headers=headers)

    def flush(self) -> None:
        """Return when every queued record is acknowledged.

        Raises:
            KafkaException: One was not.
        """
        self._producer.flush()  # bounded: each record is given up after _DELIVERY_SECONDS
        self._raise_error()
        if self._too_large:
            self._publish_alone()
        for partition, message in self._newest.items():
            self.lasts[partition] = id_in(message.value() or b"")
        self._newest = {}

    def _publish_alone(self) -> None:
        """Publish one by one what was too large: a batch of records may be, though none of them is.

        Raises:
            KafkaException: One was not acknowledged.
        """
        refused, self._too_large = self._too_large, []
        for key, value in refused:
            try:
                self._producer.produce(self._topic, value, key)
            except KafkaException as error:
                self._refused(error.args[0], key, value)
            self._producer.flush()
            self._raise_error()  # each of the others would be waited for as long
        if self._too_large:
            self._publish_short()

    def _publish_short(self) -> None:
        """Publish what stands for records that are too large: one for each table.

        Raises:
            KafkaException: Not even that is taken.
        """
        refused, self._too_large = self._too_large, []
        short = {change.relation: change.without_images() for change in (Change.parse(value) for _, value in refused)}
        structlog.get_logger().warning(
            events.RELAY_SHORTENED,
            changes=len(refused),
            bytes_largest=max(len(value) for _, value in refused),
            relations=sorted(short),
        )
        for value in short.values():
            self._producer.produce(self._topic, value, b"")
        self._producer.flush()
        if self._too_large:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._raise_error()

    def close(self) -> None:
        """Drop what is queued and end."""
        self._producer.purge()
        self._producer.flush(1)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused(error, message.key() or b"", message.value() or b"")
            return
        offset, partition = message.offset(), message.partition()
        if offset is None or partition is None or offset < 0:  # of one that was sent twice it is not said
            return
        end = self.ends.get(partition, 0)
        if offset < end:
            lost = Loss(partition=partition, cause=OVERTAKEN, position=end, begin=offset, end=offset)
            self.losses.append(lost)
        self.ends[partition] = offset + 1
        self._newest[partition] = message
        self.sent.setdefault(partition, [offset, offset])[1] = offset

    def _refused(self, error: KafkaError, key: bytes, value: bytes) -> None:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._too_large.append((key, value))
        elif self._error is None:
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise KafkaException(self._error)
