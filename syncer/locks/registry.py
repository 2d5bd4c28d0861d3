"""Registry: locks, holders and intents as documents, and the conditional writes that everything rests on.

The index has one shard. So the sequence numbers of all writes to it are in one order, which a deleted document does
not leave: the number of a later write is greater. With the time at which the index was made as its upper half it is
greater too after the index was deleted and made again.

A lock is a document with an entry for each holder. An entry is made and removed by a script, on the shard; there is no
count that could drift. Who waits for a lock alone leaves an entry too, which lets nobody else share it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from elasticsearch import BadRequestError, ConflictError, Elasticsearch, NotFoundError
from elasticsearch.helpers import scan

from syncer.errors import LockError
from syncer.locks.change import Change, Intent, Planned
from syncer.locks.names import Mode

WAITING = "waiting"
"""The entry of who waits to have the lock alone."""

_SETTINGS = {"number_of_shards": 1, "auto_expand_replicas": "0-1", "hidden": True}
_MAPPINGS = {
    "dynamic": False,
    "properties": {
        "kind": {"type": "keyword"},
        "holders": {"type": "keyword"},
        "entries": {"type": "object", "enabled": False},
    },
}
_INTENT_MAPPINGS = {"enabled": False}
_TAKE = """
if (ctx._source.entries == null) { ctx._source.kind = 'lock'; ctx._source.entries = [:]; ctx._source.holders = []; }
def mine = ctx._source.entries[params.holder];
boolean waits = false;
if (mine == null || mine.mode == 'waiting' || (mine.mode == 'shared' && params.mode == 'exclusive')) {
  for (entry in ctx._source.entries.entrySet()) {
    def mode = entry.getValue().mode;
    if (entry.getKey() == params.holder) { continue; }
    if (mode == 'exclusive' || (params.mode == 'shared' && mode == 'waiting')
        || (params.mode == 'exclusive' && mode == 'shared')) { waits = true; }
  }
  if (!waits) {
    ctx._source.entries[params.holder] = ['mode': params.mode, 'since': params.now];
  } else if (mine == null && params.mode == 'exclusive') {
    ctx._source.entries[params.holder] = ['mode': 'waiting', 'since': params.now];
  } else { ctx.op = 'none'; }
  if (ctx.op != 'none' && mine == null) { ctx._source.holders.add(params.holder); }
} else { ctx.op = 'none'; }
"""
_GIVE_BACK = """
if (ctx._source.entries.remove(params.holder) == null) { ctx.op = 'none'; }
else if (ctx._source.entries.isEmpty()) { ctx.op = 'delete'; }
else { ctx._source.holders.removeIf(one -> one == params.holder); }
"""
_RETRIES = 20
_PAGE = 1000
_TERM_BITS = 31
"""Of the sequence number, below the seconds at which the index was made."""
_NOT_FOUND = 404
_CONFLICT = 409


def now() -> str:
    """The time, for who reads it; nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A document of a holder at one moment: what a conditional write names."""

    seq_no: int
    primary_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds locks.

    Args:
        id: Which; never used again.
        owner: As a person calls it.
        host: Where it runs.
        process: Its process id there.
        lease_seconds: After how long without a renewal it may be taken for dead.
        since: When it began, by its own clock.
        renewals: How often it has renewed its lease.
        is_dead: Whether it was taken for dead.
        successor: Who finishes what it left behind, if it is dead.
        intent: The changes that it may be making.
    """

    id: str
    owner: str
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    lease_seconds: float
    since: str = field(default_factory=now)
    renewals: int = 0
    is_dead: bool = False
    successor: str | None = None
    intent: Intent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One holder's part in a lock.

    Args:
        lock: The lock's id.
        holder: Whose.
        mode: As `Mode`, or waiting.
        since: Since when, by the holder's clock.
    """

    lock: str
    holder: str
    mode: str
    since: str


def ensure(client: Elasticsearch, index: str) -> int:
    """Make the indices, if they are not there; returns at what second the one with the locks was made.

    Raises:
        LockError: There is one of that name, with more than one shard.
    """
    for name, mappings in ((index, _MAPPINGS), (_intents(index), _INTENT_MAPPINGS)):
        try:
            client.indices.create(index=name, settings=_SETTINGS, mappings=mappings)
        except BadRequestError as error:
            if error.error != "resource_already_exists_exception":
                raise
    found = client.indices.get_settings(index=index).body[index]["settings"]["index"]
    if found["number_of_shards"] != "1":
        raise LockError(
            f"The index {index} has {found['number_of_shards']} shards, and locks need one",
            hint="Name another index: the order of terms is that of the sequence numbers of one shard.",
        )
    return int(found["creation_date"]) // 1000


def _intents(index: str) -> str:
    return f"{index}-intents"


class Registry:
    """The documents that locks are made of.

    Args:
        client: Elasticsearch.
        index: Where they are.
        born: When it was made, as `ensure` says; needed for terms alone.
    """

    def __init__(self, client: Elasticsearch, *, index: str, born: int = 0) -> None:
        self._client = client
        self._index = index
        self._intents = _intents(index)
        self._born = born

    def exists(self) -> bool:
        """Whether anybody has ever locked anything here."""
        return bool(self._client.indices.exists(index=self._index))

    def term(self, seen: Seen) -> int:
        """The term of a write: greater than that of any before it."""
        return (self._born << _TERM_BITS) + seen.seq_no

    # Locks

    def take(self, holder: str, wanted: Sequence[tuple[str, Mode]]) -> dict[str, list[Entry]]:
        """Take locks, each by itself, in one request.

        Returns:
            For each lock that could not be had, the entries of others that are in the way.
        """
        operations: list[dict[str, Any]] = []
        for lock, mode in wanted:
            script = {"source": _TAKE, "params": {"holder": holder, "mode": mode, "now": now()}}
            operations += [_update(lock), {"scripted_upsert": True, "upsert": {}, "script": script, "_source": True}]
        blocked: dict[str, list[Entry]] = {}
        for (lock, mode), item in zip(wanted, self._bulk(operations), strict=True):
            if item["status"] == _CONFLICT:  # others were quicker each time: to be tried again
                blocked[lock] = []
                continue
            entries = _entries(lock, _accepted(item)["get"]["_source"])
            if not any(one.holder == holder and one.mode in (mode, Mode.EXCLUSIVE) for one in entries):
                blocked[lock] = [one for one in entries if one.holder != holder and _blocks(one, mode)]
        return blocked

    def give_back(self, holder: str, locks: Iterable[str]) -> list[str]:
        """Remove a holder's entries; returns the locks in which it had none."""
        left, missing = list(locks), []
        while left:
            operations: list[dict[str, Any]] = []
            for lock in left[:_PAGE]:
                script = {"source": _GIVE_BACK, "params": {"holder": holder}}
                operations += [_update(lock), {"script": script}]
            busy = []
            for lock, item in zip(left, self._bulk(operations), strict=False):
                if item["status"] == _CONFLICT:
                    busy.append(lock)
                elif item["status"] == _NOT_FOUND or _accepted(item)["result"] == "noop":
                    missing.append(lock)
            left = busy + left[_PAGE:]
        return missing

    def entries(self, *, holder: str | None = None) -> Iterator[Entry]:
        """All entries, or those of one holder, as of now."""
        self._client.indices.refresh(index=self._index)
        wanted = {"term": {"holders": holder}} if holder else {"term": {"kind": "lock"}}
        for hit in scan(self._client, index=self._index, query={"query": wanted}):
            for entry in _entries(hit["_id"], hit["_source"]):
                if holder in (None, entry.holder):
                    yield entry

    def _bulk(self, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answer = self._client.bulk(index=self._index, operations=operations, require_alias=False)
        return [item["update"] for item in answer.body["items"]]

    # Holders

    def holders(self) -> list[Holder]:
        """Everybody who holds locks, or did and has left something behind."""
        self._client.indices.refresh(index=self._index)
        found = scan(self._client, index=self._index, query={"query": {"term": {"kind": "holder"}}})
        return [_holder(hit["_source"]) for hit in found]

    def enter(self, holder: Holder) -> Seen:
        """Put a new holder down; harmless to do again."""
        answer = self._client.index(index=self._index, id=holder.id, document=_document(holder))
        return Seen(seq_no=answer["_seq_no"], primary_term=answer["_primary_term"])

    def look(self, holder: str) -> tuple[Holder, Seen] | None:
        """A holder as it is now; None if it has left."""
        try:
            found = self._client.get(index=self._index, id=holder)
        except NotFoundError:
            return None
        seen = Seen(seq_no=found["_seq_no"], primary_term=found["_primary_term"])
        return _holder(found["_source"]), seen

    def amend(self, holder: Holder, seen: Seen) -> Seen | None:
        """Write a holder, if it is as it was seen; None if it is not."""
        try:
            answer = self._client.index(
                index=self._index,
                id=holder.id,
                document=_document(holder),
                if_seq_no=seen.seq_no,
                if_primary_term=seen.primary_term,
            )
        except (ConflictError, NotFoundError):
            return None
        return Seen(seq_no=answer["_seq_no"], primary_term=answer["_primary_term"])

    def leave(self, holder: str, seen: Seen) -> bool:
        """Remove a holder, if it is as it was seen."""
        try:
            self._client.delete(index=self._index, id=holder, if_seq_no=seen.seq_no, if_primary_term=seen.primary_term)
        except (ConflictError, NotFoundError):
            return False
        return True

    # Intents

    def put_page(self, intent: str, number: int, planned: Sequence[Planned]) -> None:
        """Put down a part of an intent."""
        document = {"planned": [asdict(one) for one in planned]}
        self._client.index(index=self._intents, id=f"{intent}-{number}", document=document)

    def page(self, intent: Intent, number: int) -> list[Planned]:
        """A part of an intent; empty if it is gone, since somebody else has carried it out."""
        try:
            found = self._client.get(index=self._intents, id=f"{intent.id}-{number}")
        except NotFoundError:
            return []
        planned = found["_source"]["planned"]
        return [Planned(after=Change(**one["after"]), before=Change(**one["before"])) for one in planned]

    def drop_pages(self, intent: Intent) -> None:
        """Forget an intent that nobody refers to any more."""
        operations = [{"delete": {"_id": f"{intent.id}-{number}"}} for number in range(intent.pages)]
        if operations:
            self._client.bulk(index=self._intents, operations=operations)


def _update(lock: str) -> dict[str, Any]:
    return {"update": {"_id": lock, "retry_on_conflict": _RETRIES}}


def _accepted(item: Mapping[str, Any]) -> Mapping[str, Any]:
    if "error" in item:
        raise LockError(f"Elasticsearch does not write a lock: {item['error'].get('reason', item['error'])}")
    return item


def _blocks(entry: Entry, mode: Mode) -> bool:
    return entry.mode in (Mode.EXCLUSIVE, WAITING if mode is Mode.SHARED else Mode.SHARED)


def _entries(lock: str, source: Mapping[str, Any]) -> list[Entry]:
    return [
        Entry(lock=lock, holder=holder, mode=entry["mode"], since=entry["since"])
        for holder, entry in source.get("entries", {}).items()
    ]


def _document(holder: Holder) -> dict[str, Any]:
    return {"kind": "holder", "holder": asdict(holder)}


def _holder(source: Mapping[str, Any]) -> Holder:
    stored = source["holder"]
    return Holder(**{**stored, "intent": Intent(**stored["intent"]) if stored["intent"] else None})
