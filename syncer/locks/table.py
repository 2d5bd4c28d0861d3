"""Table: the document with all holders, in an index of its own; beside it, documents as they were before a change.

A *holder* is a request of locks that was granted. Its entry names the locks; it exists until they are released. The
table is read and written as a whole, and only if no other process has written it since it was read. So all that is
decided from it (which request is granted, which holder is taken over) has one order.

The index has one shard. So the operations of a bulk request have one order, and all writes have: a *term* is the
sequence number of a write of the table and, above it, the second in which the index was created. So the terms of later
writes are greater, even if the index is deleted and created again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

from elasticsearch import Elasticsearch, NotFoundError

from syncer.base.errors import LockError
from syncer.base.retry import Backoff
from syncer.elasticsearch.indices import create_own
from syncer.locks import edits
from syncer.locks.edits import CONFLICT, Edit

INDEX = "syncer-locks"
"""The default index of locks."""
_TABLE = "holders"
"""The id of the table's document."""
_PROPERTIES = {"holders": {"type": "object", "enabled": False}}
_CREATE_SECONDS = 60
_SEQ_NO_BITS = 31
_ID_BYTES_MAX = 512


class Mode(StrEnum):
    """How a lock is held: together with other holders, or by one holder alone."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


def lock_id(*names: str) -> str:
    """Return the parts, URL-encoded, so that different parts never collide; the end of a long id becomes a digest."""
    if not all(names):
        raise LockError("A lock without a name", hint="Give it a name that is not empty.")
    # In Python, file names that are not valid text contain lone surrogates.
    id_ = ":".join(quote(name, safe="", errors="surrogatepass") for name in names)
    digest = sha256(id_.encode()).hexdigest()
    return id_ if len(id_) <= _ID_BYTES_MAX else f"{id_[: _ID_BYTES_MAX - len(digest) - 1]}~{digest}"


def readable(lock: str) -> str:
    """Return a lock's name for people."""
    kind, *names = lock.split(":")
    return f"{kind} {' '.join(map(unquote, names))}"


def now() -> str:
    """Return the current time for display; no decision depends on it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A request of locks that was granted. Its id is never reused.

    Args:
        writer: The process that may write this entry: who requested the locks, or has taken them over.
        beat: Differs after each write of this entry. If it stays the same for ``lease_seconds``, another process may
            take the holder over.
        locks: How each lock is held.
        undo: The ids of documents with the documents as they were before an unfinished change.
    """

    id: str
    writer: str
    beat: str
    owner: str
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    lease_seconds: float
    since: str = field(default_factory=now)
    renewed: str = field(default_factory=now)
    locks: dict[str, Mode]
    undo: Sequence[str] = ()

    def conflicts(self, holder: Holder) -> list[str]:
        """Return the locks that the two hold in ways that exclude each other."""
        common = self.locks.keys() & holder.locks.keys()
        return sorted(lock for lock in common if Mode.EXCLUSIVE in (self.locks[lock], holder.locks[lock]))


Holders = dict[str, Holder]
"""By id."""


class Table:
    """The index of locks, which was created in the second ``born``."""

    def __init__(self, client: Elasticsearch, *, index: str, born: int) -> None:
        self._client = client
        self._index = index
        self._born = born

    @classmethod
    def find(cls, client: Elasticsearch, index: str) -> Table | None:
        """Return the table in an index; None if the index does not exist. Refuse one that was not created for locks."""
        try:
            metadata = client.indices.get(index=index).body.get(index)  # None: the name is an alias or a pattern
        except NotFoundError:
            return None
        settings = metadata["settings"]["index"] if metadata else {}
        if not metadata or settings["number_of_shards"] != "1" or metadata["mappings"].get("properties") != _PROPERTIES:
            raise LockError(
                f"{index} is not an index that was created for locks",
                hint="Name another index. If no running process holds a lock, delete this one: it is created again.",
            )
        return cls(client, index=index, born=int(settings["creation_date"]) // 1000)

    @classmethod
    def ensure(cls, client: Elasticsearch, index: str) -> Table:
        """Return the table in an index, which is created if it does not exist."""
        while (table := cls.find(client, index)) is None:
            create_own(client.options(request_timeout=_CREATE_SECONDS), index, _PROPERTIES)
        return table

    def within(self, seconds: float) -> Table:
        """Return the same table, with this request timeout."""
        return Table(self._client.options(request_timeout=seconds), index=self._index, born=self._born)

    def holders(self) -> Holders:
        """Return all holders."""
        return self._read()[0]

    def update(self, change: Callable[[Holders], bool], *, page: str = "", originals: Sequence[Edit] = ()) -> int:
        """Have a function change the holders, and write them if it returns True; return the term of that write, or 0.

        Safe to repeat, if the function is. If another process writes meanwhile, the function is called again. With a
        page, these documents are stored first, under that id.
        """
        backoff = Backoff(first_seconds=0.005, longest_seconds=0.2)
        while True:
            holders, version = self._read()
            if not change(holders):
                return 0
            operations: list[dict[str, Any]] = []
            if page:
                operations += [{"index": {"_id": page}}, {"before": [asdict(edit) for edit in originals]}]
            operations += [{"index": {"_id": _TABLE, **version}} if version else {"create": {"_id": _TABLE}}]
            operations += [{"holders": {id_: asdict(holder) for id_, holder in holders.items()}}]
            *page_items, table_item = edits.send(self._client, operations, index=self._index)
            for item in page_items if table_item["status"] == CONFLICT else (*page_items, table_item):
                if "error" in item:
                    raise LockError(f"{item['_id']} was not written: {item['error']['reason']}")
            if table_item["status"] != CONFLICT:
                return (self._born << _SEQ_NO_BITS) + int(table_item["_seq_no"])
            time.sleep(backoff.next_seconds())

    def _read(self) -> tuple[Holders, dict[str, int]]:
        [document] = edits.multi_get(self._client, [{"_index": self._index, "_id": _TABLE}])
        if not document["found"]:
            return {}, {}
        version = {"if_seq_no": document["_seq_no"], "if_primary_term": document["_primary_term"]}
        return {id_: Holder(**holder) for id_, holder in document["_source"]["holders"].items()}, version

    def page(self, id_: str) -> list[Edit]:
        """Return the documents that were stored under this id; none if it was not stored."""
        [document] = edits.multi_get(self._client, [{"_index": self._index, "_id": id_}])
        return [Edit(**edit) for edit in document["_source"]["before"]] if document["found"] else []

    def forget(self, pages: Iterable[str]) -> None:
        """Delete what was stored under these ids."""
        edits.send(self._client, [{"delete": {"_id": page}} for page in pages], index=self._index)
