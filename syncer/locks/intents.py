"""Intents: the changes that a holder is about to make, stored in pages before it makes the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from elasticsearch import Elasticsearch, NotFoundError


class Recovery(StrEnum):
    """What to do with the stored changes of a dead holder."""

    FINISH = "finish"
    """Make all of them; if Elasticsearch refuses one, restore the documents as they were."""
    ROLL_BACK = "roll-back"
    """Restore the documents as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A new state of a document: its fields, or None to delete it."""

    index: str
    id: str
    source: dict[str, Any] | None
    routing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A reference to a holder's stored changes, which are in ``pages`` pages."""

    id: str
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A change: the document after and before it."""

    after: Edit
    before: Edit

    def by(self, recovery: Recovery) -> Edit:
        """Return what to write."""
        return self.after if recovery is Recovery.FINISH else self.before

    def makes(self, recovery: Recovery) -> bool:
        """Whether writing that creates a document that would not exist otherwise."""
        otherwise = self.before if recovery is Recovery.FINISH else self.after
        return self.by(recovery).source is not None and otherwise.source is None


class Intents:
    """The pages of all intents in an index."""

    def __init__(self, client: Elasticsearch, *, index: str) -> None:
        self._client = client
        self._index = index

    def put(self, intent: str, number: int, planned: Sequence[Planned], *, holder: str) -> None:
        """Store a page. Safe to repeat."""
        document = {"holder": holder, "planned": [asdict(one) for one in planned]}
        self._client.index(index=self._index, id=_page_id(intent, number), document=document)

    def page(self, intent: Intent, number: int) -> list[Planned]:
        """Return a page; empty if it is gone because another process has settled the intent."""
        try:
            found = self._client.get(index=self._index, id=_page_id(intent.id, number))
        except NotFoundError:
            return []
        planned = found["_source"]["planned"]
        return [Planned(after=Edit(**one["after"]), before=Edit(**one["before"])) for one in planned]

    def drop(self, intent: Intent) -> None:
        """Delete an intent that no holder refers to any more."""
        operations = [{"delete": {"_id": _page_id(intent.id, number)}} for number in range(intent.pages)]
        if operations:
            self._client.bulk(index=self._index, operations=operations)

    def drop_all_of(self, holder: str) -> None:
        """Delete all pages of a holder, including those that it never referred to."""
        self._client.indices.refresh(index=self._index)
        self._client.delete_by_query(index=self._index, query={"term": {"holder": holder}}, conflicts="proceed")


def _page_id(intent: str, number: int) -> str:
    return f"{intent}-{number}"
