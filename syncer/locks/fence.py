"""Fence: writes documents with a term as their external version, so that late writes have no effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from elasticsearch import Elasticsearch

from syncer.base.error_policy import Action, decide_item
from syncer.base.errors import LockError, UnavailableError
from syncer.elasticsearch.indices import GC_DELETES_SECONDS, seconds
from syncer.locks.intents import Edit

_NOT_FOUND = 404
_CONFLICT = 409
_AWAY = ("no_shard_available_action_exception", "illegal_index_shard_state_exception", "unavailable_shards_exception")


class Fence:
    """Writes documents under a term."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client

    def read(self, changes: Sequence[Edit]) -> list[Edit]:
        """Return the documents that are to be changed as they are now; realtime.

        Raises:
            LockError: A document cannot be read; or a deletion would be forgotten too soon.
            UnavailableError: Elasticsearch is busy; retry.
        """
        found = self._client.mget(docs=[_place(one) for one in changes]).body["docs"]
        before = []
        for change, document in zip(changes, found, strict=True):
            _require_read(change, document)
            before.append(replace(change, source=document.get("_source")))
        for index in {one.index for one in (*changes, *before) if one.source is None}:
            self._require_memory(index)
        return before

    def write(self, changes: Sequence[Edit], *, term: int) -> LockError | None:
        """Write documents in a term. Safe to repeat.

        Returns:
            The error of the first document that was refused; the others are written.

        Raises:
            UnavailableError: Elasticsearch is busy; retry. Some may have been written.
        """
        if not changes:
            return None
        answer = self._client.bulk(operations=list(_operations(changes, term)))
        items = [next(iter(item.values())) for item in answer.body["items"]]
        if any(_is_busy(item) for item in items):
            raise UnavailableError("Elasticsearch does not take all documents as yet")
        refusals = (_refusal(change, item) for change, item in zip(changes, items, strict=True))
        return next((one for one in refusals if one is not None), None)

    def _require_memory(self, index: str) -> None:
        """Refuse to delete from an index in which a late write could bring the document back.

        Raises:
            LockError: The hint has the setting to make.
        """
        found = self._client.indices.get_settings(index=index, flat_settings=True, include_defaults=True).body
        for name, settings in found.items():
            said = {**settings.get("defaults", {}), **settings["settings"]}.get("index.gc_deletes", "60s")
            if seconds(said) < GC_DELETES_SECONDS:
                raise LockError(
                    f"{name} forgets deleted documents after {said}, so that a late write could bring one back",
                    hint=f'Run: PUT {name}/_settings {{"index.gc_deletes": "1h"}}',
                )


def _require_read(change: Edit, document: Mapping[str, Any]) -> None:
    error = document.get("error")
    if document.get("found") and "_source" not in document:
        raise LockError(
            f"{change.index} does not keep what its documents are made of",
            hint="What is to be changed under a lock must be readable: an index with _source, as they are by default.",
        )
    if error is None:
        return
    if error["type"] in _AWAY:
        raise UnavailableError(f"Elasticsearch cannot read {change.index} as yet")
    raise LockError(f"{change.index}/{change.id} cannot be read: {error['reason']}")


def _is_busy(item: Mapping[str, Any]) -> bool:
    return (
        "error" in item
        and decide_item(item["status"], item["error"]["type"], item["error"].get("reason") or "") is Action.RETRY
    )


def _refusal(change: Edit, item: Mapping[str, Any]) -> LockError | None:
    """Return why a document was not written; None if it was, or if there is no index to delete it from."""
    error = item.get("error")
    if error is None or (change.source is None and item["status"] == _NOT_FOUND):
        return None
    if item["status"] == _CONFLICT:
        return LockError(
            f"{change.index}/{change.id} has a version that is later than any of this lock's holders",
            hint="A program writes it without a lock, or with versions of its own: all must use HeldLocks.write.",
        )
    return LockError(f"{change.index}/{change.id} is refused: {error['type']}: {error['reason']}")


def _place(change: Edit) -> dict[str, str]:
    place = {"_index": change.index, "_id": change.id}
    return place | ({"routing": change.routing} if change.routing is not None else {})


def _operations(changes: Iterable[Edit], term: int) -> Iterator[dict[str, Any]]:
    for one in changes:
        how = {**_place(one), "version": term, "version_type": "external_gte"}
        if one.source is None:
            yield {"delete": how}
        else:
            yield {"index": how}
            yield one.source
