"""Consumer: receives changes from the topic, as a member of the workers' group.

The group only shares the partitions among its members. Where to begin in a partition, and up to which number its
records are handled, is read from Postgres: see `syncer.capture.progress`.

Guarantees: records that are gone before they were handled raise a `LossError`; they are never skipped. A record of
another installation is refused. One of another history of this database, such as a former primary's, is passed over.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from syncer.base import log
from syncer.base.errors import LossError, TopicError
from syncer.base.lifecycle import join
from syncer.base.retry import answered
from syncer.base.settings import KafkaSettings
from syncer.capture.progress import PartitionPlace
from syncer.kafka.topic import INSTALLATION, NUMBER, TERM, common

CLOSE_SECONDS = 2.0
"""How long to wait until the group knows that a member has left."""
_FOLLOWING_SECONDS = 0.005
"""How long to wait, after a record has arrived, for those that were published together with it."""
_COMMIT_SECONDS = 5.0
"""How often offsets are committed to Kafka, for its own tools alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Records that were received together, and how far each partition is handled once all of them are.

    Records that were ``passed_over``, since they are of another history, count as empty.
    """

    values: tuple[bytes, ...]
    positions: tuple[tuple[int, int], ...]
    """The partition and the offset of each."""
    reached: dict[int, PartitionPlace]
    passed_over: int


class ChangeConsumer:
    """A member of the workers' consumer group. Not for sharing between threads."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        begin: Callable[[], Mapping[int, PartitionPlace]],
        has_term: Callable[[str], bool],
        name: str,
    ) -> None:
        self._settings = settings
        self._begin = begin
        """Reads how far partitions are handled. Called while one of them is assigned."""
        self._has_term = has_term
        self._terms: dict[str, bool] = {}
        """By name, whether the term is of this database: its row is committed before its first record."""
        self._log = structlog.get_logger().bind(worker=name)
        self.numbers: dict[int, int] = {}
        """By assigned partition, the greatest number received or handled."""
        self._committed_at = -math.inf
        self._failure: Exception | None = None
        self._is_closing = False
        self._logger = log.library_logger()
        self._consumer = Consumer(
            {
                "group.id": settings.topic,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "partition.assignment.strategy": "cooperative-sticky",
                # If an offset is gone, since records expired or the topic was truncated, it begins with the oldest
                # record there is. The chain of numbers tells whether anything is lost.
                "auto.offset.reset": "earliest",
                # librdkafka's own thread sends heartbeats: only a dead process loses its session.
                "session.timeout.ms": 10_000,
                # How long a rebalance waits for a late member, and for one that ended while it joined; the default is
                # five minutes. A busy member is never that late: see `keep_alive`.
                "max.poll.interval.ms": 60_000,
                # Members learn about a rebalance from the answer to a heartbeat.
                "heartbeat.interval.ms": 500,
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 4096,
                # Of each partition, in one answer. A full megabyte, the default, is up to a hundred thousand records
                # once it is decompressed: too much memory, and other partitions wait for long.
                "fetch.message.max.bytes": 64 * 1024,
                **common(settings),
            },
            logger=self._logger,
        )
        self._consumer.subscribe([settings.topic], on_assign=self._assign, on_revoke=self._revoke)

    def receive(self, *, records_max: int, wait_seconds: float) -> Received | None:
        """Wait for records and return those that have arrived; None if there are none.

        Raises:
            TopicError: This database did not publish a record.
            LossError: Records are gone. Once their documents are covered, create a new consumer.
            KafkaException: The topic is gone, or an assignment failed; a new consumer receives the records again.
        """
        messages = self._consumer.consume(1, wait_seconds)
        if messages:
            messages += self._consumer.consume(records_max - 1, _FOLLOWING_SECONDS)
        if self._failure is not None:
            raise self._failure
        values, positions, reached, passed_over = [], [], {}, 0
        for message in messages:
            partition, offset = message.partition() or 0, message.offset() or 0
            if partition not in self.numbers and message.error() is None:
                continue  # it was revoked while these were fetched
            counts = self._check(message, partition)
            passed_over += not counts
            values.append((message.value() or b"") if counts else b"")
            positions.append((partition, offset))
            reached[partition] = PartitionPlace(next_offset=offset + 1, number=self.numbers[partition])
        if not values:
            return None
        answered("kafka")
        return Received(values=tuple(values), positions=tuple(positions), reached=reached, passed_over=passed_over)

    def _check(self, message: Message, partition: int) -> bool:
        """Note the number of a record; return False if it does not count, since it is of another history.

        Raises:
            TopicError, LossError, KafkaException: As `receive`.
        """
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        pairs = cast("list[tuple[str, bytes | None]]", message.headers() or [])
        headers = {name: (value or b"").decode("ascii", "replace") for name, value in pairs}
        # Taking another database's record would take it from that one. One that syncer did not publish may stand for
        # a change of whatever row.
        installation = headers.get(INSTALLATION)
        if self._settings.installation and installation != self._settings.installation:
            raise self._foreign(installation)
        # Rule: a-record-of-another-history-does-not-count. No cursor of this database waits for its number.
        if (term := headers.get(TERM)) is not None:
            if term not in self._terms:
                self._terms[term] = self._has_term(term)
                if not self._terms[term]:
                    self._log.warning("worker.records_passed_over", term=term, partition=partition)
            if not self._terms[term]:
                return False
        number, previous = map(int, headers.get(NUMBER, "0 0").split())
        # Rule: a-record-names-the-one-before.
        if previous > self.numbers.get(partition, 0):
            raise LossError(
                "Records are gone from the topic before they were handled", partition=partition, number=previous
            )
        self.numbers[partition] = max(number, self.numbers.get(partition, 0))
        return True

    def _foreign(self, installation: str | None) -> TopicError:
        name = self._settings.topic
        if installation is None:
            return TopicError(
                f"Topic {name} has a record that syncer did not publish",
                hint="Only syncer may write to the topic: restrict it with ACLs. Then delete the topic and start the\n"
                "daemons: they create it again and write every document again. See docs/security.md.",
            )
        return TopicError(
            f"Topic {name} has changes of another database, whose id is {installation}; ours is "
            f"{self._settings.installation}",
            hint="Each database needs a topic of its own: give kafka.topic different values, or remove the setting.\n"
            "Then run syncer apply and start the daemons: they write every document again. See docs/deploy.md.",
        )

    def commit(self, reached: Mapping[int, PartitionPlace]) -> None:
        """Tell Kafka's own tools now and then how far partitions are handled. Nothing here relies on it."""
        now = time.monotonic()
        if now - self._committed_at < _COMMIT_SECONDS:
            return
        self._committed_at = now
        offsets = [
            TopicPartition(self._settings.topic, partition, position.next_offset)
            for partition, position in reached.items()
            if partition in self.numbers and position.next_offset is not None
        ]
        if offsets:
            with suppress(KafkaException):
                self._consumer.commit(offsets=offsets, asynchronous=True)

    def keep_alive(self) -> None:
        """Stay in the group during a long batch, without fetching. The next `receive` raises any error."""
        try:
            assigned = self._consumer.assignment()
            self._consumer.pause(assigned)
            message = self._consumer.poll(0)
            if message is not None:
                partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
                if error is not None:
                    self._failure = KafkaException(error)
                    return
                # The partition was assigned by this very poll: read the record again later.
                self._consumer.seek(TopicPartition(self._settings.topic, partition, offset))
            self._consumer.resume([tp for tp in self._consumer.assignment() if tp in assigned])
        except KafkaException as error:
            self._failure = error

    def close(self) -> None:
        """Wait a short time for the departure from the group."""
        self._is_closing = True
        closing = threading.Thread(target=self._leave_group, name="close", daemon=True)
        closing.start()
        # During a rebalance, the coordinator handles a departure only after it has answered the joining members.
        if not join([closing], seconds=CLOSE_SECONDS):
            self._logger.disabled = True

    def _leave_group(self) -> None:
        with suppress(KafkaException, RuntimeError):  # there is nothing left to close, or nothing to be done about it
            self._consumer.close()

    # Callbacks of librdkafka. An exception must not leave them: no except clause of the caller could catch it.

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            if not self._is_closing:  # then it reads nothing more, and librdkafka answers nothing more
                handled = self._begin()
                for partition in partitions:
                    position = handled.get(partition.partition, PartitionPlace(next_offset=None, number=0))
                    partition.offset = OFFSET_BEGINNING if position.next_offset is None else position.next_offset
                    self.numbers[partition.partition] = position.number
            consumer.incremental_assign(partitions)
        except Exception as error:  # noqa: BLE001 - raised by the next `receive`
            self._failure = error
        if partitions:  # a member that joins a full group is assigned none, and is notified of that
            self._log.info("worker.partitions_assigned", partitions=sorted(tp.partition for tp in partitions))

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.numbers.pop(partition.partition, None)
        try:
            # If this member stays, librdkafka would remember that they are paused when they come back.
            consumer.resume(partitions)
            consumer.incremental_unassign(partitions)
        except KafkaException as error:
            self._failure = error
        if partitions:
            self._log.info("worker.partitions_revoked", partitions=sorted(tp.partition for tp in partitions))
