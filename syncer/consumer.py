"""Consumer: changes out of the topic, and how far they are handled.

Guarantees: an offset is committed only when `ChangeConsumer.commit` is told so; records that are gone before they were
handled are an error (`LossError`), never skipped.

An offset is committed with the id of the topic that it is of, so that it is not taken for one of another topic of the
same name; with the mark of the last rewrite that was known, so that it counts no further than where a later one begins
(see `syncer.rewrites`); and with the leader's epoch, by which librdkafka finds out, as long as it runs, that what was
before it has been written anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from syncer import events, telemetry, traces
from syncer.errors import LossError
from syncer.rewrites import Rewrites
from syncer.settings import KafkaSettings
from syncer.threads import Threads
from syncer.topic import ANSWER_SECONDS, Extent, Loss, Observer, Question, common
from syncer.traces import HEADER

CLOSE_SECONDS = 2.0
"""How long to wait for the group to hear that a member leaves."""
_COMMIT_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 10.0

_GONE = "Records are gone from the topic before they were handled"
# What can happen to records.
_EXPIRED = "records went out of the topic before they were handled"
_TRUNCATED = "the partition was written anew, or cut, behind what was handled"
_UNKNOWN = "how far the workers were is forgotten, and records went out of the topic"
_OTHER = "what was handled is in another topic of the same name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Records that were received together.

    Args:
        values: Their values, in the order of each partition.
        next_offsets: By partition, the offset to commit once all of them are done.
        keys: Their keys.
        places: The partition and the offset of each.
        traces: What the relay's spans are, of the batches that they were published in; empty if nobody is told.
        epochs: By partition, the epoch of the leader that the last of them was written under, if that is known.
    """

    values: tuple[bytes, ...]
    next_offsets: dict[int, int]
    epochs: dict[int, int] = field(default_factory=dict)
    keys: tuple[bytes | None, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    traces: tuple[str, ...] = ()

    @property
    def offsets(self) -> dict[int, list[int]]:
        """By partition, the first and the last offset."""
        firsts = dict(reversed(self.places))
        return {one: [firsts[one], following - 1] for one, following in sorted(self.next_offsets.items())}


class ChangeConsumer:
    """A member of the workers' consumer group. Not for sharing between threads."""

    def __init__(self, settings: KafkaSettings, *, on_change: Callable[[str, list[int]], None]) -> None:
        """Join the group.

        Args:
            settings: Where, which topic, which group.
            on_change: Told of partitions that come (``worker.partitions_assigned``) and go.
        """
        self.settings = settings
        self.observer = Observer(settings)
        self.topic = self._topic = settings.topic
        self.rewrites = Rewrites()
        """Those that are heeded; to be told before the first `receive`."""
        self._on_change = on_change
        # By partition that is ours, from where on it has been read since it came.
        self._begun: dict[int, int] = {}
        # Offsets of what is done and not yet known to be committed: a commit may fail in a rebalance.
        self._done: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._id = ""
        self._question: Question | None = None
        self._asked_at = self._committed_at = time.monotonic()
        self._failure: KafkaException | LossError | None = None
        self._is_closing = False
        self._logger = telemetry.library_logger()
        self._consumer = Consumer(
            {
                "group.id": settings.group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "on_commit": self._committed,
                "partition.assignment.strategy": "cooperative-sticky",
                # Out of range is a loss, and a loss is an error, as is a position whose past was written anew. A
                # partition never read begins at its beginning, which on_assign sees to.
                "auto.offset.reset": "error",
                # librdkafka's own thread keeps the session alive: only a dead process lets it lapse.
                "session.timeout.ms": 10_000,
                # Nor does a rebalance wait longer for one that is late; five minutes, if nobody says so. Who is busy is
                # never so late: see `keep_alive`.
                "max.poll.interval.ms": 120_000,
                # At a heartbeat a member is told that others have come or gone.
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 4096,
                **common(settings),
            },
            logger=self._logger,
        )
        self._consumer.subscribe([self._topic], on_assign=self._assign, on_revoke=self._revoke)

    def receive(self, *, records_max: int, wait_seconds: float) -> Received | None:
        """Wait for records, and take what has come; None if nothing has.

        Raises:
            LossError: Records are gone. Once they are made up for, `move`; then only a new consumer goes on.
            KafkaException: The topic is gone, or partitions could not be taken. After that what was received is gone
                too: only a new consumer gets it again.
        """
        if self._done and time.monotonic() - self._committed_at > _COMMIT_AGAIN_SECONDS:
            self._commit()
        self._look_after_topic()
        messages = self._consumer.consume(1, wait_seconds)
        self._raise_failure()
        if not messages:
            return None
        messages += self._consumer.consume(records_max - 1, 0) if records_max > 1 else []
        self._raise_failure()
        values, keys, places, next_offsets, epochs = [], [], [], {}, {}
        for message in messages:
            error = message.error()
            partition, offset, epoch = message.partition() or 0, message.offset() or 0, message.leader_epoch()
            if error is not None:
                raise self._lost(error, partition, offset)
            values.append(message.value() or b"")
            keys.append(message.key())
            places.append((partition, offset))
            next_offsets[partition] = offset + 1
            if epoch is not None:
                epochs[partition] = epoch
        return Received(
            values=tuple(values),
            keys=tuple(keys),
            places=tuple(places),
            traces=_traces(messages) if traces.is_on() else (),
            next_offsets=next_offsets,
            epochs=epochs,
        )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _lost(self, error: KafkaError, partition: int, position: int) -> LossError | KafkaException:
        """What an error means that came instead of records."""
        if error.code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - librdkafka's local codes are spelled so
            return KafkaException(error)
        extent = self.observer.extents([partition])[partition]
        cause = _TRUNCATED if position >= extent.begin else _EXPIRED
        loss = Loss(partition=partition, cause=cause, position=position, begin=extent.begin, end=extent.end)
        return LossError(_GONE, losses=[loss])

    def _look_after_topic(self) -> None:
        """See from time to time whether this is still the topic that was joined; waits for no answer.

        Raises:
            KafkaException: It is another one: what was read, and is to be read, is in neither of them.
        """
        if self._question is None and time.monotonic() - self._asked_at > _LOOK_SECONDS:
            self._question, self._asked_at = self.observer.soon_id(), time.monotonic()
        if self._question is None or not self._question.is_over:
            return
        id_, self._question = self.observer.said(self._question), None
        if id_ is not None and self._id not in ("", id_):
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_ID))

    def move(self, losses: Sequence[Loss]) -> None:
        """Go on behind what is lost, now that it is made up for.

        Raises:
            KafkaException: The partitions are ours no more; whoever has them will notice the same.
        """
        offsets = {one.partition: one.next_offset for one in losses}
        self._epochs = {}
        self._consumer.commit(offsets=self._places(offsets), asynchronous=False)

    def commit(self, received: Received) -> None:
        """Say that these records, and all before them, are done.

        A commit that fails is tried again while the partition is ours. If it is lost all the same, whoever has
        the partition next does the records again, which is harmless. Of a partition that was lost meanwhile nothing is
        said: whoever has it now may be further; nor, if it has come back, of what lies before where it then began.
        """
        for partition, offset in received.next_offsets.items():
            if partition in self._begun and offset > self._begun[partition]:
                self._done[partition] = offset
                self._epochs[partition] = received.epochs.get(partition, -1)
        self._commit()

    def _commit(self) -> None:
        self._committed_at = time.monotonic()
        if not self._done:
            return
        self._consumer.commit(offsets=self._places(self._done), asynchronous=True)

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        for place in places:
            if error is None and place.error is None and self._done.get(place.partition) == place.offset:
                del self._done[place.partition]

    def _places(self, offsets: Mapping[int, int]) -> list[TopicPartition]:
        known = f"{self._id} {self.rewrites.mark}".strip()
        return [
            TopicPartition(self._topic, one, offset, metadata=known, leader_epoch=self._epochs.get(one, -1))
            for one, offset in offsets.items()
        ]

    def keep_alive(self) -> None:
        """Stay in the group while a batch takes long: fetches nothing. What fails is raised by the next `receive`."""
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
            # Of a partition that came with this very poll: it is to be received again.
            self._consumer.seek(TopicPartition(self._topic, partition, offset))
        self._consumer.resume([one for one in self._consumer.assignment() if one in assigned])

    def close(self) -> None:
        """Wait for commits in flight and leave the group; not for long.

        In the middle of a rebalance the group's coordinator hears that somebody leaves only when it has answered him
        who has joined. Until then nothing is gained by waiting: he is taken for gone once his session lapses.
        """
        self._is_closing = True
        closing = Threads(1, name="close")
        closing.submit(self._consumer.close)
        if not closing.end(seconds=CLOSE_SECONDS):
            self._logger.disabled = True

    # Callbacks of librdkafka. An error must not leave them: it would come out as one that no except clause catches.

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            # Who is closing reads nothing more, and librdkafka answers nothing more.
            places = partitions if self._is_closing else self._beginnings(consumer, partitions)
            consumer.incremental_assign(places)
            self._begun |= {place.partition: place.offset for place in places}
        except (KafkaException, LossError) as error:
            self._failure = error
        self._on_change(events.WORKER_ASSIGNED, [place.partition for place in partitions])

    def _beginnings(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where to begin: behind what is committed, as far as that is true; else at a partition's beginning.

        Raises:
            LossError: That is not there.
            KafkaException: Kafka does not say, or the topic is another one than it was.
        """
        id_ = self.observer.id() or ""
        if self._id not in ("", id_):
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_ID))
        self._id = id_
        places = [self._true(place) for place in consumer.committed(partitions, timeout=ANSWER_SECONDS)]
        extents = self.observer.extents([place.partition for place in places])
        losses = [loss for place in places if (loss := _loss(place, extents[place.partition], id_)) is not None]
        if losses:
            raise LossError(_GONE, losses=losses)
        for place in places:
            if place.offset == OFFSET_INVALID:
                place.offset = OFFSET_BEGINNING
        return places

    def _true(self, place: TopicPartition) -> TopicPartition:
        """A committed offset, or where a rewrite begins that was not known when it was committed."""
        _, _, mark = (place.metadata or "").partition(" ")
        offset = self.rewrites.true_until(place.partition, place.offset, mark)
        if offset == place.offset:
            return place
        return TopicPartition(place.topic, place.partition, offset, metadata=place.metadata)

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        leaving = {one.partition: self._done.pop(one.partition) for one in partitions if one.partition in self._done}
        for one in partitions:
            self._begun.pop(one.partition, None)
        if leaving:
            # What is not committed is done again by whoever has the partition next.
            with suppress(KafkaException):
                consumer.commit(offsets=self._places(leaving), asynchronous=False)
        try:
            # Whoever stays in the group has paused them, and that would be remembered until they come back.
            consumer.resume(partitions)
            consumer.incremental_unassign(partitions)
        except KafkaException as error:
            self._failure = error
        self._on_change(events.WORKER_REVOKED, [place.partition for place in partitions])


def _traces(messages: Iterable[Message]) -> tuple[str, ...]:
    """The distinct spans that records carry; one that is none leads nowhere."""
    headers = [cast("list[tuple[str, bytes | None]]", one.headers() or []) for one in messages]
    found = {value for some in headers for name, value in some if name == HEADER and value is not None}
    return tuple(sorted(value.decode("ascii", "replace") for value in found))


def _loss(place: TopicPartition, extent: Extent, id_: str) -> Loss | None:
    """What is lost in a partition before what is committed, if anything is."""
    position = None if place.offset == OFFSET_INVALID else place.offset
    if position is None:
        cause = _UNKNOWN if extent.begin > 0 else None
    elif (place.metadata or "").partition(" ")[0] not in ("", id_):
        cause, position = _OTHER, None
    elif position < extent.begin:
        cause = _EXPIRED
    else:
        cause = _TRUNCATED if position > extent.end else None
    if cause is None:
        return None
    return Loss(partition=place.partition, cause=cause, position=position, begin=extent.begin, end=extent.end)
