"""Rules of the consumer, taken out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition

from syncer.kafka.consumer import ChangeConsumer
from tests.mutations import Instead


def commits_what_was_lost(original: Instead, self: ChangeConsumer, partition: int, offset: int) -> bool:
    """A partition that was lost counts as one that is still assigned."""
    return offset > self._begun.get(partition, 0)


def commits_what_lies_before(original: Instead, self: ChangeConsumer, partition: int, offset: int) -> bool:
    """A partition that has come back counts from wherever it was left."""
    return partition in self._begun


def stays_and_forgets_failures(original: Instead, self: ChangeConsumer) -> None:
    """What fails while the consumer only stays in the group is not raised later."""
    with suppress(KafkaException):
        self._stay()


def fetches_while_it_stays(original: Instead, self: ChangeConsumer) -> None:
    """A record is fetched, and nobody receives it."""
    self._consumer.poll(0)
    original(self)


def forgets_what_failed(original: Instead, self: ChangeConsumer, *args: object) -> None:
    """Whatever failed is not raised by the next `receive`."""
    failure = self._failure
    original(self, *args)
    self._failure = failure


def leaves_however_long_it_takes(original: Instead, self: ChangeConsumer) -> None:
    """The group's coordinator is waited for until it answers."""
    self._is_closing = True
    self._consumer.close()


def begins_at_the_end(
    original: Instead, self: ChangeConsumer, consumer: Consumer, partitions: list[TopicPartition]
) -> list[TopicPartition]:
    """A partition that was never read is read from its end."""
    places: list[TopicPartition] = original(self, consumer, partitions)
    for place in places:
        if place.offset == OFFSET_BEGINNING:
            place.offset = OFFSET_END
    return places


def leaves_partitions_paused(
    original: Instead, self: ChangeConsumer, consumer: Consumer, partitions: list[TopicPartition]
) -> None:
    """A partition that goes is not resumed."""
    original(self, cast("Consumer", _NeverResuming(consumer)), partitions)


class _NeverResuming:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Do nothing."""


def takes_offsets_of_any_topic(original: Instead, self: ChangeConsumer, place: TopicPartition) -> TopicPartition:
    """An offset counts whatever topic it was committed for."""
    return place
