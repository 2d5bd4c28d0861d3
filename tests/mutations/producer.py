"""Rules of the producer, taken out."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, Message

from syncer.kafka.producer import ChangeProducer
from syncer.kafka.topic import Loss
from tests.mutations import Instead


def shortens_all(original: Instead, self: ChangeProducer) -> None:
    """What is too large together is not published one by one."""
    if self._too_large:
        self._publish_short()


def fills_no_gap(original: Instead, self: ChangeProducer, losses: Sequence[Loss]) -> None:
    """New changes take the offsets of lost records."""
    for one in losses:
        self.ends[one.partition] = one.next_offset


def overlooks_losses(original: Instead, self: ChangeProducer, error: KafkaError | None, message: Message) -> None:
    """That a place was acknowledged before is no loss."""
    known = len(self.losses)
    original(self, error, message)
    del self.losses[known:]


def fails_on_what_is_too_large(
    original: Instead, self: ChangeProducer, error: KafkaError, key: bytes, value: bytes
) -> None:
    """A record that is too large is an error like any other."""
    if self._error is None:
        self._error = error


def leaves_its_client_open(original: Instead, self: ChangeProducer) -> None:
    """The client of librdkafka is left to the garbage collector."""
    self._producer.purge()
    self._producer.flush(1)
    self.observer.close()
