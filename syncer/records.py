"""Records: what is in the topic, for who wants to know. Joins no group, commits nothing, takes nothing from anybody."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from syncer import telemetry
from syncer.settings import KafkaSettings
from syncer.topic import PartitionLag, common

_LOOK_RECORDS = 1000
_AHEAD_BYTES = 1024 * 1024
_FEW_BYTES = 16 * 1024


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


def first_waiting(settings: KafkaSettings, lags: Sequence[PartitionLag], *, seconds: float) -> list[Record]:
    """The first record of each partition that is not handled: what has waited longest is among them.

    Args:
        settings: Where, and which topic.
        lags: How far the workers are, as `lag` says it.
        seconds: How long it may take; what has not come then is left out.

    Raises:
        KafkaException: Kafka refuses.
    """
    begins = [(one.partition, max(one.begin, one.committed)) for one in lags if one.records]
    spans = [Span(partition=partition, begin=begin, end=begin + 1) for partition, begin in begins]
    return [record for page in look(settings, spans, seconds=seconds, ahead_bytes=_FEW_BYTES) for record in page]


def look(
    settings: KafkaSettings, spans: Sequence[Span], *, seconds: float, ahead_bytes: int = _AHEAD_BYTES
) -> Generator[list[Record]]:
    """Read these parts of the topic.

    Args:
        settings: Where, and which topic.
        spans: What to read; of what is no longer there, nothing comes.
        seconds: How long it may take; what has not come then is left out.
        ahead_bytes: How much of a partition is fetched at once.

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
            "fetch.message.max.bytes": ahead_bytes,
            **common(settings),
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
