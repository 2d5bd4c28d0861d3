"""Record: what syncer keeps in the search server, where neither a failover nor a restore of Postgres takes it back.

The index ``syncer-state`` has a document for each installation, with its epoch and its last mark, and a log of deletes:
before a request deletes documents, it has their ids. A deleted document has no sequence number by which it is found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

import elasticsearch
from elasticsearch import Elasticsearch

from syncer.base.error_policy import is_by_another
from syncer.base.errors import UnavailableError
from syncer.elasticsearch.client import product
from syncer.elasticsearch.indices import create_own

STATE_INDEX = "syncer-state"
LOG_DAYS = 7
"""How long an id stays in the log of deletes. A mark that is older cannot tell what was deleted since."""
_MARK_BITS = 40
_PROPERTIES = {"epoch": {"type": "long"}, "index": {"type": "keyword"}, "at": {"type": "date"}}
_PRUNED_ID = "log"


class Recorded(NamedTuple):
    """The last epoch and its last mark, as recorded; 0 if there are none.

    Args:
        entered_by: The server that is to enter the epoch; None once a database has it.
        silent_seconds: For how long this process knows that it was not renewed.
    """

    epoch: int = 0
    mark: int = 0
    entered_by: str | None = None
    silent_seconds: float = 0.0


def version(epoch: int, mark: int) -> int:
    """Return the version of a record: a later epoch is greater, and a later mark of the same one."""
    return epoch << _MARK_BITS | mark


class Record:
    """Reads and writes ``syncer-state``. Safe to share between threads, as the client is."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client
        self._renewals: dict[UUID, tuple[int, float]] = {}
        """By installation, the sequence number of its record when it was read, and when that was first read."""
        self._preference = product(client).preference

    def read(self, installation: UUID) -> Recorded:
        """Return what is recorded of an installation."""
        answer = self._get(_id(installation))
        if answer is None:
            return Recorded()
        source, number, moment = answer["_source"], int(answer["_seq_no"]), time.monotonic()
        last_number, since = self._renewals.get(installation, (None, moment))
        if number != last_number:
            since = moment
            self._renewals[installation] = (number, since)
        return Recorded(int(source["epoch"]), int(source["mark"]), source["entered_by"], moment - since)

    def enter(self, installation: UUID, epoch: int, server: str) -> None:
        """Record that a server is to enter an epoch; an `UnavailableError` if it, or a later one, is recorded."""
        try:
            # Rule: an-epoch-is-recorded-once. It has no mark yet, so that it cannot seem to be a later one.
            self._put(installation, epoch, 0, "external", entered_by=server)
        except elasticsearch.ConflictError as error:
            problem = f"Another daemon has entered epoch {epoch}, or a later one"
            raise UnavailableError(problem, hint="The daemon retries by itself.") from error

    def renew(self, installation: UUID, epoch: int, mark: int) -> None:
        """Record a mark, and that the epoch is in use; do nothing if a later epoch or mark is recorded."""
        with suppress(elasticsearch.ConflictError):
            self._put(installation, epoch, mark, "external_gte", entered_by=None)

    def forget(self, installation: UUID | str) -> None:
        """Delete what is recorded of an installation, and the whole index if no other one is in it."""
        tolerant = self._client.options(ignore_status=404)
        tolerant.delete(index=STATE_INDEX, id=_id(installation), refresh=True)
        with suppress(elasticsearch.NotFoundError):
            installations = {"exists": {"field": "epoch"}}
            if self._client.count(index=STATE_INDEX, query=installations, preference=self._preference)["count"] == 0:
                self._client.indices.delete(index=STATE_INDEX)

    # The log of deletes

    def log(self, index_name: str, ids: Sequence[str]) -> None:
        """Add ids to the log of an index, before any of these documents is deleted on some shard."""
        # Rules: deletes-are-logged, moves-are-logged, logged-before-it-is-sent.
        create_own(self._client, STATE_INDEX, _PROPERTIES)
        entry = {"index": index_name, "ids": list(ids), "at": int(time.time() * 1000)}
        self._client.index(index=STATE_INDEX, document=entry, op_type="create")

    def logged_since(self, index_name: str, number: int, *, page: int) -> Iterator[list[str]]:
        """Yield the ids that were logged for an index with greater sequence numbers than this one."""
        self._client.indices.refresh(index=STATE_INDEX)
        while True:
            filters = [{"term": {"index": index_name}}, {"range": {"_seq_no": {"gt": number}}}]
            hits = self._search({"bool": {"filter": filters}}, order="asc", size=page)
            if not hits:
                return
            for hit in hits:
                yield hit["_source"]["ids"]
            number = hits[-1]["sort"][0]

    def prune(self) -> None:
        """Delete the oldest part of the log, after recording how far."""
        if not self._client.indices.exists(index=STATE_INDEX):
            return
        old: dict[str, Any] = {"range": {"at": {"lt": f"now-{LOG_DAYS}d"}}}
        if hits := self._search(old, order="desc", size=1):
            number = hits[0]["sort"][0]
            put: dict[str, Any] = {"version": number, "version_type": "external_gte", "document": {"pruned": number}}
            with suppress(elasticsearch.ConflictError):
                self._client.index(index=STATE_INDEX, id=_PRUNED_ID, **put)
            through = {"bool": {"filter": [old, {"range": {"_seq_no": {"lte": number}}}]}}
            self._client.delete_by_query(index=STATE_INDEX, query=through, conflicts="proceed")

    def pruned(self) -> int:
        """Return the sequence number up to which the log may have been deleted; -1 if none was."""
        answer = self._get(_PRUNED_ID)
        return -1 if answer is None else int(answer["_source"]["pruned"])

    def _search(self, query: Mapping[str, Any], *, order: str, size: int) -> list[dict[str, Any]]:
        """Return documents in the order of their sequence numbers."""
        request: dict[str, Any] = {"query": query, "sort": [{"_seq_no": order}], "size": size}
        request |= {"allow_partial_search_results": False, "preference": self._preference}
        answer = self._client.search(index=STATE_INDEX, **request)
        return list(answer["hits"]["hits"])

    def _get(self, id_: str) -> dict[str, Any] | None:
        try:
            return dict(self._client.get(index=STATE_INDEX, id=id_).body)
        except elasticsearch.NotFoundError as error:
            if is_by_another(error):  # a proxy's 404 says nothing about the record
                raise
            return None

    def _put(self, installation: UUID, epoch: int, mark: int, version_type: str, *, entered_by: str | None) -> None:
        create_own(self._client, STATE_INDEX, _PROPERTIES)
        versioned: dict[str, Any] = {"version": version(epoch, mark), "version_type": version_type}
        document = {"epoch": epoch, "mark": mark, "entered_by": entered_by}
        self._client.index(index=STATE_INDEX, id=_id(installation), document=document, **versioned)


def _id(installation: UUID | str) -> str:
    return f"epoch-{installation}"
