"""Intents: all that a holder is going to change, put down page by page before it changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from elasticsearch import Elasticsearch, NotFoundError

from syncer.locks.change import Change, Intent, Planned


class Intents:
    """The pages of all intents.

    Args:
        client: Elasticsearch.
        index: Where they are.
    """

    def __init__(self, client: Elasticsearch, *, index: str) -> None:
        self._client = client
        self._index = index

    def put(self, intent: str, number: int, planned: Sequence[Planned], *, holder: str) -> None:
        """Put down a page; harmless to do again."""
        document = {"holder": holder, "planned": [asdict(one) for one in planned]}
        self._client.index(index=self._index, id=_page_id(intent, number), document=document)

    def page(self, intent: Intent, number: int) -> list[Planned]:
        """A page; empty if it is gone, since somebody else has carried it out."""
        try:
            found = self._client.get(index=self._index, id=_page_id(intent.id, number))
        except NotFoundError:
            return []
        planned = found["_source"]["planned"]
        return [Planned(after=Change(**one["after"]), before=Change(**one["before"])) for one in planned]

    def drop(self, intent: Intent) -> None:
        """Forget an intent that nobody refers to any more."""
        operations = [{"delete": {"_id": _page_id(intent.id, number)}} for number in range(intent.pages)]
        if operations:
            self._client.bulk(index=self._index, operations=operations)

    def drop_all_of(self, holder: str) -> None:
        """Forget all that a holder has put down, also what it never came to refer to."""
        self._client.indices.refresh(index=self._index)
        self._client.delete_by_query(index=self._index, query={"term": {"holder": holder}}, conflicts="proceed")


def _page_id(intent: str, number: int) -> str:
    return f"{intent}-{number}"
