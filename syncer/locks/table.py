"""Table: the index of locks, the ids of its documents, and the requests that read and write them.

    kind "lock"    a lock, with an entry for each of its holders
    kind "holder"  a process that holds locks or waits for them
    kind "undo"    documents as they were before a holder changed them

An entry counts only while its holder's document exists; the next holder of the lock removes the others.

The index has one shard. So all writes to it, deletes included, have one order, and so have the operations of a bulk
request. A *term* is the sequence number of a write and, above it, the second in which the index was created. So the
terms of later writes are greater, even if the index is deleted and created again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, Self
from urllib.parse import quote, unquote

from elasticsearch import BadRequestError, Elasticsearch, NotFoundError
from elasticsearch.helpers import scan

from syncer.base.errors import LockError, UnavailableError
from syncer.locks import edits
from syncer.locks.edits import CONFLICT

INDEX = "syncer-locks"
"""The default index of locks."""
_SETTINGS = {"number_of_shards": 1, "auto_expand_replicas": "0-1", "hidden": True}
_PROPERTIES = {"kind": {"type": "keyword"}, "entries": {"type": "object", "enabled": False}}
_CREATE_SECONDS = 60
_SEQ_NO_BITS = 31
_ID_BYTES_MAX = 512


class Mode(StrEnum):
    """How a lock is held: together with other holders, or by one holder alone."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


Wanted = dict[str, Mode]
"""How each of some locks is to be held."""
Version = dict[str, int]
"""The version of a document, as a conditional write names it."""

_TAKE = """
ctx._source.entries.removeIf(entry -> params.gone.contains(entry.holder));
for (entry in ctx._source.entries) {
  if (entry.holder == params.entry.holder || entry.mode == 'exclusive' || params.entry.mode == 'exclusive') {
    ctx.op = 'none';
  }
}
if (ctx.op != 'none') { ctx._source.entries.add(params.entry); }
"""
_RELEASE = """
if (!ctx._source.entries.removeIf(entry -> entry.holder == params.holder)) { ctx.op = 'none'; }
else if (ctx._source.entries.isEmpty()) { ctx.op = 'delete'; }
"""


def lock_id(*parts: str) -> str:
    """Return the parts, URL-encoded, so that different parts never collide; the end of a long id becomes a digest."""
    if not all(parts):
        raise LockError("A lock without a name", hint="Give it a name that is not empty.")
    # In Python, file names that are not valid text contain lone surrogates.
    id_ = ":".join(quote(part, safe="", errors="surrogatepass") for part in parts)
    digest = sha256(id_.encode()).hexdigest()
    return id_ if len(id_) <= _ID_BYTES_MAX else f"{id_[: _ID_BYTES_MAX - len(digest) - 1]}~{digest}"


def readable(lock: str) -> str:
    """Return a lock's name for people."""
    kind, *parts = lock.split(":")
    return f"{kind} {' '.join(map(unquote, parts))}"


def now() -> str:
    """Return the current time for display; no decision depends on it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds the ``wanted`` locks or waits for them. Its id is never reused.

    If its document is unchanged for ``lease_seconds``, another process may take it over as its ``writer``. ``undo``
    are the pages of documents as they were before an unfinished change.
    """

    id: str
    writer: str
    owner: str
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    lease_seconds: float
    renewed: str = field(default_factory=now)
    wanted: Wanted
    undo: tuple[str, ...] = ()

    @classmethod
    def of(cls, hit: Mapping[str, Any]) -> Self:
        """Return the holder in a document."""
        return cls(**{**hit["_source"]["holder"], "undo": tuple(hit["_source"]["holder"]["undo"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A holder's entry in a lock: how it is held and since when, by the holder's clock."""

    lock: str
    holder: str
    owner: str
    mode: Mode
    since: str


class Table:
    """The documents of the index of locks, which was created in the second ``born``."""

    def __init__(self, client: Elasticsearch, *, index: str, born: int) -> None:
        self._client = client
        self._index = index
        self._born = born

    @classmethod
    def find(cls, client: Elasticsearch, index: str) -> Table | None:
        """Return the table in an index; None if the index does not exist. Refuse one that was not created for locks."""
        try:
            found = client.indices.get(index=index).body.get(index)  # None: the name is an alias or a pattern
        except NotFoundError:
            return None
        settings = found["settings"]["index"] if found else {}
        if not found or settings["number_of_shards"] != "1" or found["mappings"].get("properties") != _PROPERTIES:
            raise LockError(
                f"{index} is not an index that was created for locks",
                hint="Name another index. If no running process holds a lock, delete this one: it is created again.",
            )
        return cls(client, index=index, born=int(settings["creation_date"]) // 1000)

    @classmethod
    def ensure(cls, client: Elasticsearch, index: str) -> Table:
        """Return the table in an index, which is created if it does not exist."""
        while (table := cls.find(client, index)) is None:
            indices = client.options(request_timeout=_CREATE_SECONDS).indices
            try:
                indices.create(index=index, settings=_SETTINGS, mappings={"dynamic": False, "properties": _PROPERTIES})
            except BadRequestError as error:
                if error.error != "resource_already_exists_exception":
                    raise
        return table

    def within(self, seconds: float) -> Table:
        """Return the same table, with this request timeout."""
        return Table(self._client.options(request_timeout=seconds), index=self._index, born=self._born)

    def term(self, answer: Mapping[str, Any]) -> int:
        """Return the term of a write from its answer: greater than that of any earlier write."""
        return (self._born << _SEQ_NO_BITS) + int(answer["_seq_no"])

    def send(self, operations: Sequence[dict[str, Any]], *, may_conflict: bool = False) -> list[dict[str, Any]]:
        """Send a bulk request; return the answers. If it ``may_conflict``, that of the last one may be a conflict."""
        items = edits.send(self._client, operations, index=self._index)
        for item in items[:-1] if may_conflict and items[-1]["status"] == CONFLICT else items:
            if item["status"] == CONFLICT:
                raise UnavailableError(f"Too many processes write {item['_id']} at the same time")
            if "error" in item and item["error"]["type"] != "document_missing_exception":
                raise LockError(f"Elasticsearch refuses to write {item['_id']}: {item['error']['reason']}")
        return items

    def get(self, ids: Iterable[str]) -> list[dict[str, Any]]:
        """Return those of the documents that exist."""
        found = edits.multi_get(self._client, [{"_index": self._index, "_id": id_} for id_ in ids])
        return [hit for hit in found if hit["found"]]

    def entries(self, locks: Iterable[str]) -> list[Entry]:
        """Return the entries of locks."""
        return [entry for hit in self.get(locks) for entry in entries_of(hit)]

    def holders(self, ids: Iterable[str]) -> list[tuple[Holder, Version]]:
        """Return those of the holders that exist."""
        return [(Holder.of(hit), version_of(hit)) for hit in self.get(ids)]

    def read_all(self) -> tuple[list[Holder], list[Entry]]:
        """Return all holders, and all entries that count."""
        self._client.indices.refresh(index=self._index)
        hits = [*scan(self._client, index=self._index, query={"query": {"terms": {"kind": ["holder", "lock"]}}})]
        holders = {hit["_id"]: Holder.of(hit) for hit in hits if hit["_source"]["kind"] == "holder"}
        entries = [entry for hit in hits for entry in entries_of(hit) if entry.holder in holders]
        return [*holders.values()], entries


def version_of(answer: Mapping[str, Any]) -> Version:
    """Return the version of a document that was read or written."""
    return {"if_seq_no": answer["_seq_no"], "if_primary_term": answer["_primary_term"]}


def entries_of(hit: Mapping[str, Any]) -> list[Entry]:
    """Return the entries in the document of a lock."""
    return [Entry(**entry) for entry in hit["_source"].get("entries", ())]


def take(lock: str, holder: Holder, *, gone: Collection[str]) -> list[dict[str, Any]]:
    """Return the operation that adds an entry unless another one conflicts; those of holders in ``gone`` do not."""
    entry = Entry(lock=lock, holder=holder.id, owner=holder.owner, mode=holder.wanted[lock], since=now())
    script = {"source": _TAKE, "params": {"entry": asdict(entry), "gone": [*gone]}}
    change = {"scripted_upsert": True, "upsert": {"kind": "lock", "entries": []}, "script": script, "_source": True}
    return [{"update": {"_id": lock, "retry_on_conflict": 20}}, change]


def release(lock: str, holder: Holder) -> list[dict[str, Any]]:
    """Return the operation that removes a holder's entry."""
    script = {"source": _RELEASE, "params": {"holder": holder.id}}
    return [{"update": {"_id": lock, "retry_on_conflict": 20}}, {"script": script}]
