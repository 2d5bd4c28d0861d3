"""An index with two documents that are always to be equal, and what is done to them under a lock."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from elasticsearch import Elasticsearch

from syncer.locks import Edit, HeldLocks
from tests.support.locking import PAIR


@contextmanager
def pair_index(url: str, *, pairs: Sequence[Sequence[str]] = (PAIR,)) -> Iterator[str]:
    """An index with such documents, all 0; gone afterwards, as are its locks."""
    name = f"pair-{uuid.uuid4().hex[:12]}"
    with Elasticsearch(url, request_timeout=60) as client:
        client.indices.create(index=name, settings={"number_of_shards": 1, "index.gc_deletes": "1h"})
        operations = [
            line
            for pair in pairs
            for one in pair
            for line in ({"index": {"_id": one, "version": 1, "version_type": "external"}}, {"value": 0})
        ]
        client.bulk(index=name, operations=operations)
        try:
            yield name
        finally:
            client.indices.delete(index=[name, f"{name}-locks", f"{name}-locks-intents"], ignore_unavailable=True)


def set_pair(held: HeldLocks, index: str, value: int, *, pair: Sequence[str] = PAIR) -> None:
    """Change both documents."""
    held.write([Edit(index=index, id=one, source={"value": value}) for one in pair])


def values(client: Elasticsearch, index: str, *, pair: Sequence[str] = PAIR) -> tuple[int, ...]:
    """What the documents say."""
    found = client.mget(index=index, ids=list(pair)).body["docs"]
    return tuple(one["_source"]["value"] for one in found)
