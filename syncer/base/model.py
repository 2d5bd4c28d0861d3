"""The records that components exchange: small and frozen; no method needs a server."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

EPOCH_SHIFT = 51
NUMBER_SHIFT = 8
"""A version is ``epoch << EPOCH_SHIFT | number << NUMBER_SHIFT``, where number is the next of a sequence.

12 bits of epoch are for 4,095 failovers and restores. 43 bits of number last for 270 years of 1,000 assignments a
second. The other 8 are gaps: a client that raises a document's version, as ``_update_by_query`` does by one, does not
reach the next.
"""

_SURROGATES = re.compile("[\ud800-\udfff]")
ID_BYTES_MAX = 512
"""The longest id that Elasticsearch accepts. It rejects an empty one, too."""


def is_utf8(text: str) -> bool:
    """Return whether a text of Postgres' is valid: one that is not has lone surrogates, see `syncer.base.postgres`."""
    return text.isascii() or not _SURROGATES.search(text)


def is_id(text: str) -> bool:
    """Return whether Elasticsearch accepts it as an id."""
    return is_utf8(text) and 1 <= len(text.encode()) <= ID_BYTES_MAX


class Operation(StrEnum):
    """The kind of a change, as the outbox stores it."""

    INSERT = "I"
    UPDATE = "U"
    DELETE = "D"
    TRUNCATE = "T"
    NOTED = "N"
    """The catalogue shows a change of the table that no trigger sees: see `syncer.capture.install.note`."""


Image = dict[str, str | None]
"""A row reduced to the columns that lead to documents. Each value is in its type's text format."""


class _Record(msgspec.Struct):
    id: int
    changed_at: float
    relation: str
    operation: Operation
    old: Image | None
    new: Image | None
    untouched: list[int] | None = None


_NUL = b"\\u0000"
_RECORD = msgspec.json.Decoder(_Record)


def dump_images(images: object) -> str:
    """Return images, in lists or objects, as JSON."""
    return msgspec.json.encode(images).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed row, or one truncated table.

    Args:
        id: Position in the outbox; unique, but not ordered.
        changed_at: When the statement ran, in seconds since the Unix epoch.
        relation: ``schema.table``.
        images: The old and new row image, as far as they exist. Empty means any row of the table may have changed.
        untouched: The sets of watched columns that an update has not changed, as far as that is known: see
            `watched_digest`.
        may_be_repeated: Whether another worker may have received it before, and written some of its documents.
    """

    id: int
    changed_at: float
    relation: str
    operation: Operation
    images: tuple[Image, ...]
    untouched: frozenset[int] = frozenset()
    may_be_repeated: bool = False

    @classmethod
    def parse(cls, record: bytes) -> Change:
        """Read the value of a record that the relay published.

        Raises:
            ValueError: The value is not a change.
        """
        try:
            is_valid = True
            try:
                decoded = _RECORD.decode(record)
            except UnicodeDecodeError:
                is_valid, decoded = False, _RECORD.decode(record.decode("utf-8", "replace"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"not a change: {error}") from error
        # Rule: both-images.
        images = tuple([image for image in (decoded.old, decoded.new) if image is not None])
        if _NUL in record and any("\0" in (text or "") for image in images for item in image.items() for text in item):
            raise ValueError("not a change: it has a zero byte, which no text of Postgres has")
        return cls(
            id=decoded.id,
            changed_at=decoded.changed_at,
            relation=decoded.relation,
            operation=decoded.operation,
            # If an image could not be built or is not UTF-8, the change counts as one of any row.
            images=() if not is_valid or (decoded.operation is Operation.UPDATE and len(images) == 1) else images,
            untouched=frozenset(decoded.untouched or ()),
        )

    def without_images(self) -> bytes:
        """Return a record of this change that stands for one of any row of the table."""
        return msgspec.json.encode(_Record(self.id, self.changed_at, self.relation, self.operation, None, None))


@lru_cache(maxsize=4096)
def watched_digest(columns: frozenset[str]) -> int:
    """Name the set of columns that a document watches in a table, in the triggers and in what they write.

    A digest needs no numbering that triggers, outbox and topic would have to agree on: a document whose set a change
    does not name is affected.
    """
    text = "\0".join(sorted(columns))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """One way from the changed rows of a table to documents: a query, or a column of them that has the ids.

    Args:
        watched: An UPDATE that leaves all of these columns as they were changes no document that this way leads to.
            As derived, those that it reads of the changed rows.
        query: Over the changed rows, ``$1::jsonb``; it may repeat ids. Empty if there is a column.
        id_column: The column whose value is the id of an affected document.
    """

    watched: frozenset[str]
    query: str = ""
    id_column: str = ""

    def follows(self, change: Change) -> bool:
        """Whether a change may have touched documents that this way leads to."""
        return watched_digest(self.watched) not in change.untouched


_ID = re.compile(rb'\{"id" ?: ?([0-9]+),')


def id_in(record: bytes) -> int:
    """Return the id of the change in a record without parsing the rest; 0 if the relay did not write the record."""
    id_match = _ID.match(record)
    return int(id_match[1]) if id_match else 0


WRITE_SUFFIX = "-syncer-write"
"""Follows the name of an index in its write alias. The number of the epoch comes after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A physical index that receives every write of its document.

    Writes use the alias, so that a late one cannot re-create a dropped index, and one of an earlier epoch is refused.
    """

    index_name: str
    write_alias: str

    @classmethod
    def of(cls, alias: str, revision: int) -> Target:
        """Return the physical index of a revision; ``alias`` is the document's search alias."""
        return cls.of_index(f"{alias}-{revision:06d}")

    @classmethod
    def of_index(cls, index_name: str, epoch: int = 0) -> Target:
        """Return the target with this physical index, to be written in this epoch."""
        return cls(index_name=index_name, write_alias=f"{index_name}{WRITE_SUFFIX}-{epoch}")


def is_raised(version: int) -> bool:
    """Return whether a version lies in a gap: another client has raised the one that syncer assigned."""
    return version & ((1 << NUMBER_SHIFT) - 1) > 0


class Role(StrEnum):
    """The purpose of a physical index. A document has at most one index of each role."""

    CURRENT = "current"
    """Serves searches."""
    BUILDING = "building"
    """Being loaded; becomes current when the load is complete."""


class Composition(NamedTuple):
    """One document as one snapshot shows it. A tuple because there is one per document.

    Args:
        version: Assigned together with the snapshot.
        source: The whole document as JSON on one line; None if the SELECT does not return the id.
        routing: The value of ``_routing`` in the SELECT, empty if the SELECT leaves routing to Elasticsearch. None
            if only the shard of the id can hold a copy.
        is_unmoved: Whether it is written for changes of which none has moved it to another shard.
    """

    id: str
    version: int
    source: bytes | None
    routing: str | None = None
    is_unmoved: bool = False

    @property
    def place(self) -> Place:
        """Where the document belongs."""
        return Place.of(self.id, self.routing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The location of a copy of a document. ``routing`` selects its shard: ``_routing`` if set, otherwise the id."""

    id: str
    routing: str

    @classmethod
    def of(cls, id_: str, routing: str | None) -> Place:
        """Return the place of a document with this ``_routing``, if any."""
        return cls(id=id_, routing=routing or id_)


OUTCOMES: Final = ("indexed", "deleted", "skipped", "dead_lettered")
"""What may become of a document."""


@dataclass(slots=True)
class WriteReport:
    """The outcome of writing documents; each document counts once, however often it was tried.

    What was ``deleted`` may have been absent. What was ``skipped`` is there in a version at least as new. Composing
    takes time in Postgres, indexing in Elasticsearch.
    """

    indexed: int = 0
    deleted: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    compose_seconds: float = 0.0
    index_seconds: float = 0.0

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of documents by outcome."""
        return {name: getattr(self, name) for name in OUTCOMES}

    def add(self, report: WriteReport) -> None:
        """Add another report to this one."""
        for counter in fields(self):
            setattr(self, counter.name, getattr(self, counter.name) + getattr(report, counter.name))
