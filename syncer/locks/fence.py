"""Fence: writes documents with a term as their external version, so that late writes have no effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from elasticsearch import ApiError, AuthorizationException, Elasticsearch, NotFoundError, TransportError

from syncer.base.error_policy import Action, decide_item
from syncer.base.errors import LockError, UnavailableError
from syncer.elasticsearch.indices import GC_DELETES_SECONDS, seconds
from syncer.locks.intents import Edit, Planned

_NOT_FOUND = 404
_CONFLICT = 409
_NO_INDEX = "index_not_found_exception"
_AWAY = ("no_shard_available_action_exception", "illegal_index_shard_state_exception", "unavailable_shards_exception")
_ATTEMPTS = 3


class Fence:
    """Writes documents under a term."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client

    def plan(self, changes: Sequence[Edit]) -> list[Planned]:
        """Return the changes together with the documents as they are now; the read is realtime.

        Raises:
            LockError: A document cannot be read; or a deletion would be forgotten too soon.
            UnavailableError: Elasticsearch is busy; retry.
        """
        try:
            found = self._client.mget(docs=[_place(one) for one in changes]).body["docs"]
        except AuthorizationException as error:
            raise LockError(f"What is to be changed cannot be read: {error}") from error
        planned = []
        for change, document in zip(changes, found, strict=True):
            _require_read(change, document)
            planned.append(Planned(after=change, before=replace(change, source=document.get("_source"))))
        for index in {one.after.index for one in planned if None in (one.after.source, one.before.source)}:
            self._require_memory(index)
        return planned

    def write(self, changes: Sequence[Edit], *, term: int) -> LockError | None:
        """Write documents in a term. Safe to repeat.

        Returns:
            The error of the first document that was refused; the others are written.

        Raises:
            UnavailableError: Elasticsearch is busy; retry. Some may have been written.
        """
        items = self._bulk(changes, version=term, version_type="external_gte")
        if any(_is_busy(item) for item in items):
            raise UnavailableError("Elasticsearch does not take all documents as yet")
        refusals = (_refusal(change, item) for change, item in zip(changes, items, strict=True))
        return next((one for one in refusals if one is not None), None)

    def take_back(self, made: Sequence[Edit], *, term: int) -> None:
        """Delete documents that may have been created in a term, unless they were written in a later one since.

        The delete has the next version, so that a late request of this term is still refused.
        """
        gone = [replace(one, source=None) for one in made]
        for _ in range(_ATTEMPTS):
            with suppress(ApiError, TransportError):
                if not any(map(_is_busy, self._bulk(gone, version=term + 1, version_type="external"))):
                    return

    def _bulk(self, changes: Sequence[Edit], **version: Any) -> list[dict[str, Any]]:
        if not changes:
            return []
        answer = self._client.bulk(operations=list(_operations(changes, version)))
        return [next(iter(item.values())) for item in answer.body["items"]]

    def _require_memory(self, index: str) -> None:
        """Refuse to delete from an index in which a late write could bring the document back.

        Raises:
            LockError: The hint has the setting to make.
        """
        try:
            found = self._client.indices.get_settings(index=index, flat_settings=True, include_defaults=True).body
        except NotFoundError:
            raise LockError(
                f"There is no index {index}",
                hint=f'Make it, so that it remembers deletes: PUT {index} {{"settings": {{"index.gc_deletes": "1h"}}}}',
            ) from None
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
    if error is None or error["type"] == _NO_INDEX:
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


def _operations(changes: Iterable[Edit], version: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for one in changes:
        how = {**_place(one), **version}
        if one.source is None:
            yield {"delete": how}
        else:
            yield {"index": how}
            yield one.source
