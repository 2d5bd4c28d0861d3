"""Edits: documents to be written whole, with a term as their external version.

Elasticsearch refuses a write in a lower term than that of the document's last write. So late writes have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elasticsearch import Elasticsearch

from syncer.base.error_policy import OF_INDEX, Action, decide_item
from syncer.base.errors import LockError, UnavailableError
from syncer.elasticsearch.shortcomings import GC_DELETES_SECONDS, seconds

CONFLICT = 409
_NOT_FOUND = 404
_AWAY = ("no_shard_available_action_exception", "illegal_index_shard_state_exception", "unavailable_shards_exception")
PAGE_EDITS_MAX = 200
"""The number of documents in one request; if they have 500 kB each, it is as large as Elasticsearch accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A state of a document: its fields, or None if it does not exist."""

    index: str
    id: str
    source: dict[str, Any] | None
    routing: str | None = None


def read(client: Elasticsearch, edits: Sequence[Edit]) -> list[Edit]:
    """Return the documents that are to be changed as they are now; refuse what could not be rolled back."""
    before = []
    for edit, found in zip(edits, multi_get(client, map(_place, edits)), strict=True):
        if found["found"] and "_source" not in found:
            raise LockError(
                f"{edit.index} does not store the source of its documents, so a change could not be rolled back",
                hint="Use an index with _source enabled, which is the default.",
            )
        before.append(replace(edit, source=found.get("_source")))
    for index in {edit.index for edit in (*before, *edits) if edit.source is None}:
        _require_memory(client, index)
    return before


def write(client: Elasticsearch, edits: Sequence[Edit], *, term: int) -> LockError | None:
    """Write documents in a term; return the error of a document that is refused. Safe to repeat."""
    operations: list[dict[str, Any]] = []
    for edit in edits:
        how = {**_place(edit), "version": term, "version_type": "external_gte"}
        operations += [{"delete": how}] if edit.source is None else [{"index": how}, edit.source]
    for edit, item in zip(edits, send(client, operations), strict=True):
        where, error = f"{edit.index}/{edit.id}", item.get("error")
        if item["status"] == CONFLICT:
            return LockError(
                f"{where} has a later version than any holder of this lock has written",
                hint="A program writes it without a lock, or with its own versions. All must use HeldLocks.write.",
            )
        if error and not (edit.source is None and item["status"] == _NOT_FOUND):
            return LockError(f"{where} is refused: {error['type']}: {error['reason']}")
    return None


def multi_get(client: Elasticsearch, places: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return documents as they are now, not as of the last refresh; or raise an error if one cannot be read."""
    found: list[dict[str, Any]] = client.mget(docs=list(places)).body["docs"]
    for document in found:
        if error := document.get("error"):
            message = f"{document['_index']}/{document['_id']} cannot be read: {error['reason']}"
            raise (UnavailableError if error["type"] in _AWAY else LockError)(message)
    return found


def send(
    client: Elasticsearch, operations: Sequence[dict[str, Any]], *, index: str | None = None
) -> list[dict[str, Any]]:
    """Send a bulk request; return the answers. If one calls for a retry, or an index is blocked, it is unavailable.

    Raises:
        UnavailableError: Try again.
    """
    if not operations:
        return []
    items = [next(iter(item.values())) for item in client.bulk(index=index, operations=operations).body["items"]]
    for item in items:
        error = item.get("error")
        if error is None:
            continue
        action = decide_item(item["status"], error["type"], error.get("reason") or "")
        if action is Action.RETRY or error["type"] in OF_INDEX:
            raise UnavailableError(f"Elasticsearch cannot write at the moment: {error['reason']}")
    return items


def _place(edit: Edit) -> dict[str, str]:
    return {"_index": edit.index, "_id": edit.id} | ({} if edit.routing is None else {"routing": edit.routing})


def _require_memory(client: Elasticsearch, index: str) -> None:
    """Refuse an index that forgets deleted documents so soon that a late write could bring one back."""
    found = client.indices.get_settings(index=index, flat_settings=True, include_defaults=True).body
    for name, settings in found.items():
        memory = {**settings.get("defaults", {}), **settings["settings"]}.get("index.gc_deletes", "60s")
        if seconds(memory) < GC_DELETES_SECONDS:
            raise LockError(
                f"{name} forgets deleted documents after {memory}, so that a late write could bring one back",
                hint=f'Run: PUT {name}/_settings {{"index.gc_deletes": "1h"}}',
            )
