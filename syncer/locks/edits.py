"""Edits: documents to be written whole, with a term as their external version.

Elasticsearch refuses a write in a lower term than that of the document's last write. So late writes have no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elasticsearch import Elasticsearch

from syncer.base.error_policy import OF_INDEX, Action, decide_item
from syncer.base.errors import LockError, UnavailableError
from syncer.elasticsearch import shortcomings

CONFLICT = 409
_NOT_FOUND = 404
_AWAY = ("no_shard_available_action_exception", "illegal_index_shard_state_exception", "unavailable_shards_exception")
_GC_DELETES = "index.gc_deletes"
_RESTORING = frozenset(
    {"", "index.mapping.source.mode", "index.mapping.exclude_source_vectors", "index.derived_source.enabled"}
)
"""The settings, or the mapping of ``_source``, that decide whether documents are returned as they were written."""
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
    copies = multi_get(client, map(_document_key, edits))
    originals = [replace(edit, source=copy.get("_source")) for edit, copy in zip(edits, copies, strict=True)]
    _require_restorable(
        client, {edit.index for edit in edits}, {e.index for e in (*originals, *edits) if e.source is None}
    )
    return originals


def write(client: Elasticsearch, edits: Sequence[Edit], *, term: int) -> LockError | None:
    """Write documents in a term; return the error of a document that is refused. Safe to repeat."""
    operations: list[dict[str, Any]] = []
    for edit in edits:
        how = {**_document_key(edit), "version": term, "version_type": "external_gte"}
        operations += [{"delete": how}] if edit.source is None else [{"index": how}, edit.source]
    for edit, item in zip(edits, send(client, operations), strict=True):
        document, error = f"{edit.index}/{edit.id}", item.get("error")
        if item["status"] == CONFLICT:
            return LockError(
                f"{document} has a later version than any holder of this lock has written",
                hint="A program writes it without a lock, or with its own versions. All must use HeldLocks.write.",
            )
        if error and not (edit.source is None and item["status"] == _NOT_FOUND):
            return LockError(f"{document} is refused: {error['type']}: {error['reason']}")
    return None


def multi_get(client: Elasticsearch, keys: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return documents as they are now, not as of the last refresh; or raise an error if one cannot be read."""
    documents: list[dict[str, Any]] = client.mget(docs=list(keys)).body["docs"]
    for document in documents:
        if error := document.get("error"):
            message = f"{document['_index']}/{document['_id']} cannot be read: {error['reason']}"
            raise (UnavailableError if error["type"] in _AWAY else LockError)(message)
    return documents


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
            raise UnavailableError(f"The document cannot be written at the moment: {error['reason']}")
    return items


def _document_key(edit: Edit) -> dict[str, str]:
    return {"_index": edit.index, "_id": edit.id} | ({} if edit.routing is None else {"routing": edit.routing})


def _require_restorable(client: Elasticsearch, indices: Collection[str], with_deletes: Collection[str]) -> None:
    """Refuse indices whose documents are not returned as they were written, or that soon forget a delete.

    A late write could then bring a deleted document back.
    """
    for index in indices:
        answer = client.indices.get(index=index, ignore_unavailable=True, flat_settings=True, include_defaults=True)
        for name, metadata in answer.body.items():
            for shortcoming in shortcomings.of_index(name, metadata):
                if shortcoming.setting in (_RESTORING if index not in with_deletes else _RESTORING | {_GC_DELETES}):
                    raise LockError(
                        f"{shortcoming.problem}, so a change could not be rolled back", hint=shortcoming.hint
                    )
