"""Consumer: receives changes from the topic and commits offsets.

Guarantees: an offset is committed only by `ChangeConsumer.commit`. Records that are gone before they were handled raise
a `LossError`; they are never skipped. A record that this database did not publish is refused and never committed.

Each committed offset carries the topic's id, so that it does not count for another topic of the same name. It also
carries the leader epoch, with which a running librdkafka detects that the log before the offset was overwritten.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from syncer.base import log
from syncer.base.errors import LossError
from syncer.base.lifecycle import join
from syncer.base.settings import KafkaSettings
from syncer.kafka.topic import ANSWER_SECONDS, Extent, Loss, Observer, common, foreign, installation_of, is_of, replaced

CLOSE_SECONDS = 2.0
"""How long to wait until the group knows that a member has left."""
_COMMIT_SECONDS = 0.1
"""How often offsets are committed at most. A commit for each single change takes a third of Kafka's processor time."""

_GONE = "Records are gone from the topic before they were handled"
# Causes of a loss.
_EXPIRED = "records expired from the topic before they were handled"
_TRUNCATED = "the partition was overwritten or truncated below what was handled"
_UNKNOWN = "the committed offset is gone, and records expired from the topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Records that were received together.

    Args:
        values: Their values, in order within each partition.
        next_offsets: By partition, the offset to commit once all of them are done.
        places: The partition and the offset of each.
        epochs: By partition, the leader epoch of its last record, if known.
    """

    values: tuple[bytes, ...]
    next_offsets: dict[int, int]
    epochs: dict[int, int] = field(default_factory=dict)
    places: tuple[tuple[int, int], ...] = ()

    @property
    def offsets(self) -> dict[int, list[int]]:
        """By partition, the first and last offset."""
        firsts = dict(reversed(self.places))
        return {one: [firsts[one], following - 1] for one, following in sorted(self.next_offsets.items())}


class ChangeConsumer:
    """A member of the workers' consumer group. Not for sharing between threads."""

    def __init__(self, settings: KafkaSettings, *, on_change: Callable[[str, list[int]], None]) -> None:
        """Join the group.

        Args:
            settings: The cluster, the topic and the group.
            on_change: Called with partitions that are assigned (``worker.partitions_assigned``) or revoked.
        """
        self.settings = settings
        self.observer = Observer(settings)
        self._installation = settings.installation
        self._on_change = on_change
        # By assigned partition, the offset from which it has been read since its assignment.
        self._begun: dict[int, int] = {}
        # Offsets that are done but not known to be committed: a commit may fail during a rebalance.
        self._done: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._id = ""
        self._committed_at = -math.inf
        self._failure: KafkaException | LossError | None = None
        self._is_closing = False
        self._logger = log.library_logger()
        self._consumer = Consumer(
            {
                "group.id": settings.group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "on_commit": self._committed,
                "partition.assignment.strategy": "cooperative-sticky",
                # An offset out of range is a loss and must be an error; so must an offset whose log was overwritten.
                # _assign sets the position of a partition that was never read.
                "auto.offset.reset": "error",
                # librdkafka's own thread sends heartbeats: only a dead process loses its session.
                "session.timeout.ms": 10_000,
                # How long a rebalance waits for a late member; the default is five minutes. A busy member is never
                # that late: see `keep_alive`.
                "max.poll.interval.ms": 120_000,
                # Members learn about a rebalance from the answer to a heartbeat.
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 4096,
                **common(settings),
            },
            logger=self._logger,
        )
        self._consumer.subscribe([settings.topic], on_assign=self._assign, on_revoke=self._revoke)

    def receive(self, *, records_max: int, wait_seconds: float) -> Received | None:
        """Wait for records and return those that have arrived; None if there are none.

        Raises:
            TopicError: This database did not publish a record. Neither it nor anything received with it is committed.
            LossError: Records are gone. Once their documents are covered, call `move`, then create a new consumer.
            KafkaException: The topic is gone, or an assignment failed. Records received since are lost to this
                consumer; a new one receives them again.
        """
        self._commit_if_due()
        messages = self._consumer.consume(1, wait_seconds)
        self._raise_failure()
        if not messages:
            return None
        messages += self._consumer.consume(records_max - 1, 0) if records_max > 1 else []
        self._raise_failure()
        values, places, next_offsets, epochs = [], [], {}, {}
        for message in messages:
            error = message.error()
            partition, offset, epoch = message.partition() or 0, message.offset() or 0, message.leader_epoch()
            if error is not None:
                raise self._lost(error, partition, offset)
            if (installation := self._foreign(message)) is not None:
                raise foreign(self.settings, installation)
            values.append(message.value() or b"")
            places.append((partition, offset))
            next_offsets[partition] = offset + 1
            if epoch is not None:
                epochs[partition] = epoch
        return Received(
            values=tuple(values),
            places=tuple(places),
            next_offsets=next_offsets,
            epochs=epochs,
        )

    def _foreign(self, message: Message) -> str | None:
        """Return the database that published this record, unless it was this one.

        Committing another database's record would take it from that one. A record that syncer did not publish may stand
        for a change of whatever row.
        """
        if not self._installation:
            return None
        installation = installation_of(message)
        return None if installation == self._installation else installation

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _lost(self, error: KafkaError, partition: int, position: int) -> LossError | KafkaException:
        """Return the error to raise for an error that arrived instead of records."""
        if error.code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - librdkafka's local codes are spelled so
            return KafkaException(error)
        extent = self.observer.extents([partition])[partition]
        cause = _TRUNCATED if position >= extent.begin else _EXPIRED
        return LossError(_GONE, losses=[_gone(partition, cause, position, extent)])

    def move(self, losses: Sequence[Loss]) -> None:
        """Commit offsets after the lost records, once their documents are covered.

        Raises:
            KafkaException: The partitions were revoked. Their next consumer will find the same loss.
        """
        offsets = {one.partition: one.next_offset for one in losses}
        self._epochs = {}
        self._consumer.commit(offsets=self._places(offsets), asynchronous=False)

    def commit(self, received: Received) -> None:
        """Commit these records and all before them, at once or in a later `receive` or `commit`.

        A failed commit is repeated while the partition is assigned. If it never succeeds, the partition's next
        consumer handles the records again, which is harmless. Nothing is committed for a partition that was revoked
        meanwhile, because its new consumer may be further. If it was revoked and assigned again, offsets before its
        new beginning are not committed either.
        """
        for partition, offset in received.next_offsets.items():
            if self._may_commit(partition, offset):
                self._done[partition] = offset
                self._epochs[partition] = received.epochs.get(partition, -1)
        self._commit_if_due()

    def _commit_if_due(self) -> None:
        if self._done and time.monotonic() - self._committed_at >= _COMMIT_SECONDS:
            self._committed_at = time.monotonic()
            self._consumer.commit(offsets=self._places(self._done), asynchronous=True)

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        for place in places:
            if error is None and place.error is None and self._done.get(place.partition) == place.offset:
                del self._done[place.partition]

    def _places(self, offsets: Mapping[int, int]) -> list[TopicPartition]:
        return [
            TopicPartition(self.settings.topic, one, offset, metadata=self._id, leader_epoch=self._epochs.get(one, -1))
            for one, offset in offsets.items()
        ]

    def _may_commit(self, partition: int, offset: int) -> bool:
        """Whether the partition is assigned, and was not assigned anew at or after this offset."""
        return partition in self._begun and offset > self._begun[partition]

    def keep_alive(self) -> None:
        """Stay in the group during a long batch, without fetching. The next `receive` raises any error."""
        try:
            self._stay()
        except KafkaException as error:
            self._failure = error

    def _stay(self) -> None:
        assigned = self._consumer.assignment()
        self._consumer.pause(assigned)
        message = self._consumer.poll(0)
        if message is not None:
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            if error is not None:
                self._failure = self._lost(error, partition, offset)
                return
            # The partition was assigned by this very poll: read the record again later.
            self._consumer.seek(TopicPartition(self.settings.topic, partition, offset))
        self._consumer.resume([one for one in self._consumer.assignment() if one in assigned])

    def close(self) -> None:
        """Wait a short time for commits in flight and leave the group.

        During a rebalance the coordinator handles a departure only after it has answered the joining members. Waiting
        longer gains nothing: the member's session expires.
        """
        self._is_closing = True
        closing = threading.Thread(target=self._leave_group, name="close", daemon=True)
        closing.start()
        if not join([closing], seconds=CLOSE_SECONDS):
            self._logger.disabled = True
        self.observer.close()

    def _leave_group(self) -> None:
        with suppress(KafkaException, RuntimeError):  # there is nothing left to close, or nothing to be done about it
            self._consumer.close()

    # Callbacks of librdkafka. An exception must not leave them: no except clause of the caller could catch it.

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            # A consumer that is closing reads nothing more, and librdkafka answers nothing more.
            places = partitions if self._is_closing else self._beginnings(consumer, partitions)
            consumer.incremental_assign(places)
            self._begun |= {place.partition: place.offset for place in places}
        except (KafkaException, LossError) as error:
            self._failure = error
        self._on_change("worker.partitions_assigned", [place.partition for place in partitions])

    def _beginnings(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return where to begin: at the committed offset if there is one, else at the partition's beginning.

        Raises:
            LossError: The records there are gone.
            KafkaException: Kafka does not answer, or the topic was replaced.
        """
        id_ = self.observer.id() or ""
        if self._id not in ("", id_):
            raise replaced()
        self._id = id_
        places = [self._valid(place) for place in consumer.committed(partitions, timeout=ANSWER_SECONDS)]
        extents = self.observer.extents([place.partition for place in places])
        losses = [loss for place in places if (loss := _loss(place, extents[place.partition])) is not None]
        if losses:
            raise LossError(_GONE, losses=losses)
        for place in places:
            if place.offset == OFFSET_INVALID:
                place.offset = OFFSET_BEGINNING
        return places

    def _valid(self, place: TopicPartition) -> TopicPartition:
        """Return the committed offset, without an offset of another topic of the same name.

        The records of that one are covered by the jobs that were created when this topic replaced it, see
        `syncer.recovery.lost_records`.
        """
        return place if is_of(place, self._id) else TopicPartition(place.topic, place.partition, OFFSET_INVALID)

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        leaving = {one.partition: self._done.pop(one.partition) for one in partitions if one.partition in self._done}
        for one in partitions:
            self._begun.pop(one.partition, None)
        if leaving:
            # The partition's next consumer handles again what is not committed.
            with suppress(KafkaException):
                consumer.commit(offsets=self._places(leaving), asynchronous=False)
        try:
            # If this member stays, librdkafka would remember that they are paused when they come back.
            consumer.resume(partitions)
            consumer.incremental_unassign(partitions)
        except KafkaException as error:
            self._failure = error
        self._on_change("worker.partitions_revoked", [place.partition for place in partitions])


def _loss(place: TopicPartition, extent: Extent) -> Loss | None:
    """Return the loss of a partition at its committed offset, if there is one."""
    position = None if place.offset == OFFSET_INVALID else place.offset
    if position is None:
        cause = _UNKNOWN if extent.begin > 0 else None
    elif position < extent.begin:
        cause = _EXPIRED
    else:
        cause = _TRUNCATED if position > extent.end else None
    return None if cause is None else _gone(place.partition, cause, position, extent)


def _gone(partition: int, cause: str, position: int | None, extent: Extent) -> Loss:
    """Return a loss: continue at the oldest record, or at the end if the position was past the oldest record."""
    next_offset = extent.end if position is not None and position > extent.begin else extent.begin
    return Loss(partition=partition, cause=cause, position=position, next_offset=next_offset)
