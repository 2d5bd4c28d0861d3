"""Unreadable: records of the topic that are no changes, as far as this version can read.

Somebody else's producer writes to the topic, or a newer version of syncer does, or bytes were lost. Nobody can say from
such a record whether it was a change, and of what: so it is kept, until a person decides.

Guarantees: a record is in Postgres before its offset is committed; received twice, it is there once; no more than
`KEPT_MAX` of a topic are kept, each with no more than `VALUE_BYTES_MAX` of its value, and those beyond that are only
counted (one that is received twice then counts twice), so that a foreign producer does not fill the database.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from syncer.postgres import Connection, value

KEPT_MAX = 10_000
"""How many records of a topic are kept."""
VALUE_BYTES_MAX = 16 * 1024
"""How much of a record's value is kept; a change is shorter, since it has only the columns that lead to documents."""
_KEY_BYTES_MAX = 1024
_ERROR_CHARACTERS_MAX = 500

# Whoever keeps records of a topic does so alone: the bound is one for all.
_LOCK = """
INSERT INTO syncer.unreadable_topic AS t (topic, kept, last_at) VALUES ($1, 0, clock_timestamp())
ON CONFLICT (topic) DO UPDATE SET last_at = excluded.last_at RETURNING t.kept, t.only_counted
"""
_KNOWN = """
SELECT r.partition, r.record_offset, r.digest FROM syncer.unreadable_record AS r
JOIN unnest($2::integer[], $3::bigint[], $4::bytea[]) AS p (partition, record_offset, digest)
     USING (partition, record_offset, digest)
WHERE r.topic = $1
"""
_PARK = """
INSERT INTO syncer.unreadable_record (topic, partition, record_offset, key, value, value_bytes, digest, error)
SELECT $1, * FROM unnest($2::integer[], $3::bigint[], $4::bytea[], $5::bytea[], $6::integer[], $7::bytea[], $8::text[])
"""
_COUNT = "UPDATE syncer.unreadable_topic SET kept = kept + $2, only_counted = only_counted + $3 WHERE topic = $1"
_TOPICS = (
    "SELECT topic, kept, only_counted, last_at FROM syncer.unreadable_topic WHERE kept + only_counted > 0 ORDER BY 1"
)
_TOTAL = "SELECT coalesce(sum(kept + only_counted), 0)::bigint FROM syncer.unreadable_topic"
_PAGE = """
SELECT id, topic, partition, record_offset, key, value, value_bytes, error, received_at
FROM syncer.unreadable_record
WHERE ($1::bigint[] IS NULL OR id = ANY ($1)) AND id > $2 ORDER BY id LIMIT $3
"""
_DISCARD = """
WITH gone AS (
    DELETE FROM syncer.unreadable_record WHERE $1::bigint[] IS NULL OR id = ANY ($1) RETURNING topic
), counted AS (
    UPDATE syncer.unreadable_topic AS t
    SET kept = t.kept - coalesce((SELECT count(*) FROM gone WHERE gone.topic = t.topic), 0),
        only_counted = CASE WHEN $1::bigint[] IS NULL THEN 0 ELSE t.only_counted END
    RETURNING t.topic
)
SELECT count(*) FROM gone
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record that is no change, as it was received.

    Args:
        partition: Where it was.
        offset: Where it was.
        key: Its key, if it has one.
        value: Its value.
        error: Why it is none.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A record that is no change, as it is kept.

    Args:
        id: Its number here.
        topic: Where it was.
        partition: Where it was.
        offset: Where it was.
        key: The beginning of its key, if it has one.
        value: The beginning of its value.
        value_bytes: How long the value was.
        error: Why it is no change.
        received_at: When.
    """

    id: int
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    value_bytes: int
    error: str
    received_at: datetime

    @property
    def is_whole(self) -> bool:
        """Whether all of its value is here."""
        return len(self.value) == self.value_bytes

    def as_json(self) -> dict[str, Any]:
        """Plain data; the bytes as base64."""
        key = None if self.key is None else base64.b64encode(self.key).decode()
        value_ = base64.b64encode(self.value).decode()
        return {**asdict(self), "key": key, "value": value_, "received_at": self.received_at.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCount:
    """How many there are of one topic.

    Args:
        topic: Which.
        kept: How many are kept.
        only_counted: How many came when the bound was reached.
        last_at: When the last one came.
    """

    topic: str
    kept: int
    only_counted: int
    last_at: datetime

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "last_at": self.last_at.isoformat()}


def park(connection: Connection, topic: str, records: Sequence[Record]) -> int:
    """Keep records of a topic, up to the bound; how many are only counted from now on."""
    if not records:
        return 0
    with connection.transaction():
        row = connection.execute(_LOCK, (topic,)).fetchone()
        assert row is not None  # noqa: S101 - it returns the row that it locks
        room = max(0, KEPT_MAX - row[0])
        new = _unknown(connection, topic, records)
        kept, rest = new[:room], new[room:]
        if kept:
            columns = [
                (
                    one.partition,
                    one.offset,
                    None if one.key is None else one.key[:_KEY_BYTES_MAX],
                    one.value[:VALUE_BYTES_MAX],
                    len(one.value),
                    _digest(one),
                    one.error[:_ERROR_CHARACTERS_MAX].replace("\0", ""),
                )
                for one in kept
            ]
            connection.execute(_PARK, (topic, *map(list, zip(*columns, strict=True))))
        connection.execute(_COUNT, (topic, len(kept), len(rest)))
    return len(rest)


def _unknown(connection: Connection, topic: str, records: Sequence[Record]) -> list[Record]:
    """Those that are not kept already, each once."""
    places = {(one.partition, one.offset, _digest(one)): one for one in records}
    known = connection.execute(_KNOWN, (topic, *map(list, zip(*places, strict=True)))).fetchall()
    for partition, offset, digest in known:
        places.pop((partition, offset, bytes(digest)), None)
    return list(places.values())


def _digest(one: Record) -> bytes:
    return sha256(one.value).digest()


def total(connection: Connection) -> int:
    """How many have come and are not decided on."""
    return int(str(value(connection, _TOTAL)))


def topics(connection: Connection) -> list[TopicCount]:
    """How many there are, by topic."""
    rows = connection.execute(_TOPICS)
    return [
        TopicCount(topic=topic, kept=kept, only_counted=only_counted, last_at=last_at)
        for topic, kept, only_counted, last_at in rows
    ]


def page(connection: Connection, ids: Sequence[int] = (), *, limit: int, after: int = 0) -> list[Kept]:
    """Some of them, by number: of these, or of all."""
    return [
        Kept(
            id=id_,
            topic=topic,
            partition=partition,
            offset=offset,
            key=None if key is None else bytes(key),
            value=bytes(value_),
            value_bytes=value_bytes,
            error=error,
            received_at=received_at,
        )
        for id_, topic, partition, offset, key, value_, value_bytes, error, received_at in connection.execute(
            _PAGE, (list(ids) or None, after, limit)
        )
    ]


def discard(connection: Connection, ids: Sequence[int] = ()) -> int:
    """Forget these, or all; how many were kept."""
    return int(str(value(connection, _DISCARD, (list(ids) or None,))))
