"""Entries: which holders have a lock, share it, or wait to have it exclusively.

A lock is a document with an entry for each holder. A script on the shard adds and removes entries, so there is no
read-modify-write by clients and no count that could drift. A holder that waits for an exclusive lock also leaves an
entry, which prevents others from starting to share the lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan

from syncer.base.error_policy import Action, decide_item
from syncer.base.errors import LockError, UnavailableError
from syncer.locks.holders import now
from syncer.locks.names import Mode

WAITING = "waiting"
"""The mode of a holder that waits for the exclusive lock."""

_TAKE = """
if (ctx._source.entries == null) { ctx._source.kind = 'lock'; ctx._source.entries = [:]; ctx._source.holders = []; }
def mine = ctx._source.entries[params.holder];
boolean waits = false;
if (mine == null || mine.mode == 'waiting') {
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
def mine = ctx._source.entries[params.holder];
if (mine == null) { ctx.op = 'none'; }
else if (ctx._source.entries.size() == 1) { ctx.op = 'delete'; }
else {
  ctx._source.entries.remove(params.holder);
  ctx._source.holders.removeIf(one -> one == params.holder);
}
"""
_RETRIES = 20
_PAGE = 1000
_NOT_FOUND = 404
_CONFLICT = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One holder's entry in a lock: its `Mode`, or `WAITING`, and since when, by the holder's clock."""

    lock: str
    holder: str
    mode: str
    since: str


class Entries:
    """The entries of all locks in an index."""

    def __init__(self, client: Elasticsearch, *, index: str) -> None:
        self._client = client
        self._index = index

    def take(self, holder: str, wanted: Sequence[tuple[str, Mode]]) -> dict[str, list[Entry]]:
        """Acquire locks, each independently, in one request.

        Returns:
            For each lock that is not available, the entries of other holders that block it.

        Raises:
            UnavailableError: Elasticsearch is busy; retry. Some locks may have been acquired.
        """
        operations: list[dict[str, Any]] = []
        for lock, mode in wanted:
            script = {"source": _TAKE, "params": {"holder": holder, "mode": mode, "now": now()}}
            operations += [_update(lock), {"scripted_upsert": True, "upsert": {}, "script": script, "_source": True}]
        blocked: dict[str, list[Entry]] = {}
        for (lock, mode), item in zip(wanted, self._bulk(operations), strict=True):
            if item["status"] == _CONFLICT:  # too many concurrent updates: try again
                blocked[lock] = []
                continue
            entries = _entries(lock, _accepted(item)["get"]["_source"])
            if not any(one.holder == holder and one.mode in (mode, Mode.EXCLUSIVE) for one in entries):
                blocked[lock] = [one for one in entries if one.holder != holder and _blocks(one, mode)]
        return blocked

    def give_back(self, holder: str, locks: Iterable[str]) -> list[str]:
        """Remove a holder's entry from each lock. Safe to repeat.

        Returns:
            The locks in which the holder had no entry.

        Raises:
            UnavailableError: Elasticsearch is busy; retry. Some locks may have been released.
        """
        left, missing = dict.fromkeys(locks), []
        script = {"source": _GIVE_BACK, "params": {"holder": holder}}
        while left:
            page = list(islice(left, _PAGE))
            operations = [line for lock in page for line in (_update(lock), {"script": script})]
            for lock, item in zip(page, self._bulk(operations), strict=True):
                if item["status"] == _CONFLICT:
                    continue
                if item["status"] == _NOT_FOUND or _accepted(item)["result"] == "noop":
                    missing.append(lock)
                del left[lock]
        return missing

    def of(self, holder: str | None = None) -> Iterator[Entry]:
        """Yield all current entries, or those of one holder."""
        self._client.indices.refresh(index=self._index)
        wanted = {"term": {"holders": holder}} if holder else {"term": {"kind": "lock"}}
        for hit in scan(self._client, index=self._index, query={"query": wanted}):
            for entry in _entries(hit["_id"], hit["_source"]):
                if holder in (None, entry.holder):
                    yield entry

    def _bulk(self, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answer = self._client.bulk(index=self._index, operations=operations, require_alias=False)
        return [item["update"] for item in answer.body["items"]]


def _update(lock: str) -> dict[str, Any]:
    return {"update": {"_id": lock, "retry_on_conflict": _RETRIES}}


def _accepted(item: Mapping[str, Any]) -> Mapping[str, Any]:
    error = item.get("error")
    if error is None:
        return item
    if decide_item(item["status"], error["type"], error.get("reason") or "") is Action.RETRY:
        raise UnavailableError("Elasticsearch does not write locks as yet")
    raise LockError(f"Elasticsearch does not write a lock: {error.get('reason', error)}")


def _blocks(entry: Entry, mode: Mode) -> bool:
    return entry.mode in (Mode.EXCLUSIVE, WAITING if mode is Mode.SHARED else Mode.SHARED)


def _entries(lock: str, source: Mapping[str, Any]) -> list[Entry]:
    return [
        Entry(lock=lock, holder=holder, mode=entry["mode"], since=entry["since"])
        for holder, entry in source.get("entries", {}).items()
    ]
