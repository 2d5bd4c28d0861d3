"""What the stages hand to one another: small, frozen, without behaviour that needs a server.

Change        one outbox row, as it travels through the topic
Target        a physical index that a document is written to
Role          what that index is for
Composition   a document as one snapshot shows it, with the version drawn in turn with it
Place         where a copy of a document lies
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import chain
from typing import Any

import msgspec

EPOCH_SHIFT = 43
"""A version is ``epoch << EPOCH_SHIFT | sequence``: 20 bits of epoch, 43 bits of sequence."""


ID_BYTES_MAX = 512
"""How long an id can be; Elasticsearch takes none that is longer, and none that is empty."""


class Operation(StrEnum):
    """What happened to a row, as the outbox writes it."""

    INSERT = "I"
    UPDATE = "U"
    DELETE = "D"
    TRUNCATE = "T"


class _Record(msgspec.Struct):
    """A record's JSON."""

    id: int
    changed_at: float
    relation: str
    operation: Operation
    old: dict[str, Any] | None
    new: dict[str, Any] | None


_NUL = b"\\u0000"
_LEVELS_MAX = 900
"""How deep an image may be nested: what is nested deeper may be read, and then not be written."""


def _refused(record: bytes, images: Iterable[object]) -> str:
    """Why Postgres cannot be asked what these images touch; empty if it can. What is nested deep ends nobody."""
    has_nul = _NUL in record
    if not has_nul and record.count(b"[") + record.count(b"{") <= _LEVELS_MAX:
        return ""
    for number, level in enumerate(levels(list(images))):
        if number > _LEVELS_MAX:
            return "it is nested too deep"
        if has_nul and any("\0" in one for one in level if isinstance(one, str)):
            return "it has a zero byte, which no text of Postgres has"
    return ""


def levels(value: object) -> Iterator[list[object]]:
    """A JSON value, its keys and values, what is in these, and so on; it may be nested as deep as it likes."""
    level = [value]
    while level:
        yield level
        level = [inner for one in level for inner in _within(one)]


def _within(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return chain(value.keys(), value.values())
    return value if isinstance(value, list) else ()


# Decimal, since a key that passes through a float comes out as another key. And back as the number that it was: in a
# jsonb column 1.5 and "1.5" are two values.
_RECORD = msgspec.json.Decoder(_Record, float_hook=Decimal)
_IMAGES = msgspec.json.Encoder(decimal_format="number")


def dump_images(images: object) -> str:
    """Images, in lists or objects, as JSON in which every value is what the outbox had."""
    return _IMAGES.encode(images).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed row, or one truncated table.

    Args:
        id: Position in the outbox; unique, in no promised order.
        changed_at: When the statement ran, in seconds since the Unix epoch.
        relation: ``schema.table``.
        operation: What happened.
        images: The old and the new image that exist, each reduced to the routing columns.
    """

    id: int
    changed_at: float
    relation: str
    operation: Operation
    images: tuple[dict[str, Any], ...]

    @classmethod
    def parse(cls, record: bytes) -> Change:
        """Read the value of a record as the relay writes it.

        Raises:
            ValueError: The record is not such a value.
        """
        try:
            read = _RECORD.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"not a change: {error}") from error
        if refused := _refused(record, (read.relation, read.old, read.new)):
            raise ValueError(f"not a change: {refused}")
        images = tuple([image for image in (read.old, read.new) if image is not None])
        return cls(
            id=read.id,
            changed_at=read.changed_at,
            relation=read.relation,
            operation=read.operation,
            # An update of which one image could not be made is known by neither.
            images=() if read.operation is Operation.UPDATE and len(images) == 1 else images,
        )

    def without_images(self) -> bytes:
        """A record that says no more than that something has happened to the table: as if it had been truncated."""
        record = _Record(
            id=self.id,
            changed_at=self.changed_at,
            relation=self.relation,
            operation=Operation.TRUNCATE,
            old=None,
            new=None,
        )
        return msgspec.json.encode(record)

    @staticmethod
    def dump_images(changes: Iterable[Change]) -> str:
        """All images of these changes as a JSON array, as ``jsonb_populate_recordset`` takes it."""
        return dump_images([image for change in changes for image in change.images])


_ID = re.compile(rb'\{"id" ?: ?([0-9]+),')


def id_in(record: bytes) -> int:
    """Which change a record of the relay's is, without reading all of it; 0 if it is none of the relay's."""
    found = _ID.match(record)
    return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A physical index that gets every write of its document.

    Args:
        index_name: The physical index.
        write_alias: The alias that writes name, so that a late write never re-creates a dropped index.
    """

    index_name: str
    write_alias: str

    @classmethod
    def of(cls, alias: str, generation: int) -> Target:
        """The physical index that a generation makes, of a document that is searched by that alias."""
        return cls.of_index(f"{alias}-{generation:06d}")

    @classmethod
    def of_index(cls, index_name: str) -> Target:
        """The physical index of that name."""
        return cls(index_name=index_name, write_alias=f"{index_name}-syncer-write")


class Role(StrEnum):
    """What a physical index is for; a document has at most one of each."""

    SERVING = "serving"
    """Searches find it."""
    BUILDING = "building"
    """It is to serve, once it is filled."""
    STANDBY = "standby"
    """It has served, and is kept up to date for a rollback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What one snapshot says about one document.

    Args:
        id: The document's id.
        version: Drawn before the snapshot was taken.
        source: The whole document as JSON on one line; None if the SELECT does not return the id.
        routing: What the SELECT says in ``_routing``, empty if it leaves that to Elasticsearch; None if no shard
            but the one that the id leads to can hold a copy.
    """

    id: str
    version: int
    source: bytes | None
    routing: str | None = None

    @property
    def place(self) -> Place:
        """Where it belongs."""
        return Place.of(self.id, self.routing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a copy of a document lies.

    Args:
        id: The document's id.
        routing: What leads to the copy's shard: its ``_routing``, or else its id.
    """

    id: str
    routing: str

    @classmethod
    def of(cls, id_: str, routing: str | None) -> Place:
        """The place of a document with this ``_routing``, if any."""
        return cls(id=id_, routing=routing or id_)
