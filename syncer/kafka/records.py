"""Records: read-only inspection of the topic. Joins no group, commits nothing, affects no other consumer."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from syncer.base import log
from syncer.base.settings import KafkaSettings
from syncer.kafka.topic import Extent, PartitionLag, common, installation_of

_LOOK_RECORDS = 1000
_RECENT_RECORDS = 1000
"""How many of each partition's last records are read: records of another database may lie between ours."""
_AHEAD_BYTES = 1024 * 1024
_FEW_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range of offsets of one partition: from ``begin`` up to, but not including, ``end``."""

    partition: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record and its place."""

    partition: int
    offset: int
    value: bytes
    installation: str
    """The id of the database that published it, from its header; `topic.UNKNOWN` if it has none."""


def first_waiting(settings: KafkaSettings, lags: Sequence[PartitionLag], *, seconds: float) -> list[Record]:
    """Return the first unhandled record of each partition; the one that has waited longest is among them.

    Records that do not arrive within ``seconds`` are left out.

    Raises:
        KafkaException: Kafka refuses.
    """
    begins = [(one.partition, max(one.begin, one.committed)) for one in lags if one.records]
    spans = [Span(partition=partition, begin=begin, end=begin + 1) for partition, begin in begins]
    return [record for page in look(settings, spans, seconds=seconds, ahead_bytes=_FEW_BYTES) for record in page]


def other_installation(settings: KafkaSettings, extents: Mapping[int, Extent], *, seconds: float) -> str:
    """Return the id of another database that wrote to the topic recently; empty if none is found.

    It is `topic.UNKNOWN` if another client than syncer wrote. Records that do not arrive within ``seconds`` are not
    checked.

    Raises:
        KafkaException: Kafka refuses.
    """
    spans = [
        Span(partition=one, begin=max(has.begin, has.end - _RECENT_RECORDS), end=has.end)
        for one, has in extents.items()
    ]
    seen = {one.installation for page in look(settings, spans, seconds=seconds) for one in page}
    return min(seen - {settings.installation}, default="") if settings.installation else ""


def look(
    settings: KafkaSettings, spans: Sequence[Span], *, seconds: float, ahead_bytes: int = _AHEAD_BYTES
) -> Generator[list[Record]]:
    """Read ranges of the topic; yields records, in order within each partition.

    Records that no longer exist, or do not arrive within ``seconds``, are left out. ``ahead_bytes`` is how much of a
    partition to fetch at once.

    Raises:
        KafkaException: Kafka refuses.
    """
    ends = {one.partition: one.end for one in spans if one.begin < one.end}
    if not ends:
        return
    deadline = time.monotonic() + seconds
    consumer = Consumer(
        {
            "group.id": settings.group,  # the group that ACLs allow; it is not joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 16384,
            "fetch.message.max.bytes": ahead_bytes,
            **common(settings),
        },
        logger=log.library_logger(),
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
    """Return a record inside its partition's range; remove a partition from ``ends`` once its end is reached."""
    partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's local codes are spelled so
        raise KafkaException(error)
    end = ends.get(partition, 0)
    if error is not None or offset >= end - 1:
        ends.pop(partition, None)
    return (
        Record(partition=partition, offset=offset, value=message.value() or b"", installation=installation_of(message))
        if error is None and offset < end
        else None
    )
