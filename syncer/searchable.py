"""Searchable: how long it takes until a search finds what was written, measured on one document now and then.

Elasticsearch shows to searches what was written before its last refresh: by default there is one each second, or, where
nobody has searched for 30 s, none until somebody does. So a worker leaves a document that it has just written, and
the survey searches for it by id, on its own shard, until it is found with that version or a greater one. What is
measured is what somebody sees who searches at that time.

What it costs: some twenty small searches each time, and that an index which nobody searches is refreshed as if somebody
did. Guarantees: one document is looked for at a time, and no longer than `GIVE_UP_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from elasticsearch import Elasticsearch

from syncer import metrics

GIVE_UP_SECONDS = 120.0
"""How long to look for a document: longer than refreshes are usually apart. It may have been deleted, too."""
_FIRST_SECONDS = 0.02
_SHARE = 20
"""Looks are apart by this part of the time that has passed: so exact is what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A document that was written.

    Args:
        index_name: In which index.
        id: Its id.
        routing: What leads to its shard.
        version: Its version.
        changed_at: When the oldest change of its batch was made, in Unix time.
        written_at: When Elasticsearch had answered, or some moments later.
    """

    index_name: str
    id: str
    routing: str
    version: int
    changed_at: float
    written_at: float


class Searchable:
    """Looks for one written document after the other. Workers may offer; one thread looks.

    Args:
        seconds: How much time is between two documents, at least; 0 for none at all.
        wake: Called when there is one to look for.
    """

    def __init__(self, *, seconds: float, wake: Callable[[], None] = lambda: None) -> None:
        self._seconds = seconds
        self._wake = wake
        self._next_at = time.monotonic()
        self._sought: Written | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a document is to be offered now; costs nothing to ask."""
        return self._sought is None and bool(self._seconds) and time.monotonic() >= self._next_at

    def offer(self, written: Written) -> None:
        """A document was written."""
        self._next_at = time.monotonic() + self._seconds
        self._sought = written
        self._wake()

    def look(self, client: Elasticsearch) -> float | None:
        """Look once for what is sought.

        Returns:
            How long to rest before the next look; None if nothing is sought any more.

        Raises:
            elasticsearch.ApiError, elasticsearch.TransportError: As to any search; it may be looked for again.
        """
        sought = self._sought
        if sought is None:
            return None
        if self._is_found(client, sought):
            now = time.time()
            metrics.COMMIT_TO_SEARCHABLE.note([now - sought.changed_at])
            metrics.INDEXED_TO_SEARCHABLE.note([now - sought.written_at])
        elif time.time() - sought.written_at < GIVE_UP_SECONDS:
            return max(_FIRST_SECONDS, (time.time() - sought.written_at) / _SHARE)
        self._sought = None
        return None

    def give_up(self) -> None:
        """Look no more for what is sought: it cannot be asked for."""
        self._sought = None

    @staticmethod
    def _is_found(client: Elasticsearch, sought: Written) -> bool:
        answer = client.search(
            index=sought.index_name,
            routing=sought.routing,
            query={"ids": {"values": [sought.id]}},
            version=True,
            source=False,
            size=1,
        )
        return any(hit["_version"] >= sought.version for hit in answer.body["hits"]["hits"])
