"""Intents: the documents that a holder is about to change, stored in pages as they were before it changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elasticsearch import Elasticsearch, NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A state of a document: its fields, or None if it does not exist."""

    index: str
    id: str
    source: dict[str, Any] | None
    routing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A reference to what a holder stored: the first ``pages`` pages."""

    id: str
    pages: int


class Intents:
    """The pages of all intents in an index."""

    def __init__(self, client: Elasticsearch, *, index: str) -> None:
        self._client = client
        self._index = index

    def put(self, intent: Intent, before: Sequence[Edit], *, holder: str) -> None:
        """Store one more page. Safe to repeat."""
        document = {"holder": holder, "before": [asdict(one) for one in before]}
        self._client.index(index=self._index, id=_page_id(intent, intent.pages), document=document)

    def page(self, intent: Intent, number: int) -> list[Edit]:
        """Return a page; empty if it is gone because another process has settled the intent."""
        try:
            found = self._client.get(index=self._index, id=_page_id(intent, number))
        except NotFoundError:
            return []
        return [Edit(**one) for one in found["_source"]["before"]]

    def drop(self, intent: Intent) -> None:
        """Delete an intent that no holder refers to any more, and one page beyond it, which may be stored too."""
        operations = [{"delete": {"_id": _page_id(intent, number)}} for number in range(intent.pages + 1)]
        self._client.bulk(index=self._index, operations=operations)

    def drop_all_of(self, holder: str) -> None:
        """Delete all pages of a holder, including those that it never referred to."""
        self._client.indices.refresh(index=self._index)
        self._client.delete_by_query(index=self._index, query={"term": {"holder": holder}}, conflicts="proceed")


def _page_id(intent: Intent, number: int) -> str:
    return f"{intent.id}-{number}"
