"""A filesystem in Elasticsearch alone: the guide's renames, of a file and of a directory, under the tree lock.

Each file is a document with its name, its directory as ``path``, and, from that, ``path.tree``. To rename a directory
is to write every document below it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan

from syncer.locks import Change, Locks

INDEX_BODY: dict[str, Any] = {
    "settings": {
        "number_of_shards": 1,
        "index.gc_deletes": "1h",
        "analysis": {"analyzer": {"paths": {"tokenizer": "path_hierarchy"}}},
    },
    "mappings": {
        "properties": {
            "name": {"type": "keyword"},
            "path": {"type": "keyword", "fields": {"tree": {"type": "text", "analyzer": "paths"}}},
            "contents": {"type": "text"},
        }
    },
}


def rename_file(locks: Locks, client: Elasticsearch, index: str, id_: str, name: str) -> None:
    """Give a file another name, wherever it is.

    The directory is read before it can be locked, so it is read again under the lock.
    """
    path = _read(client, index, id_)["path"]
    while True:
        with locks.tree(f"{path}/{id_}") as held:
            found = _read(client, index, id_)
            if found["path"] == path:
                held.write([Change(index=index, id=id_, source=found | {"name": name})])
                return
        path = found["path"]


def rename_directory(locks: Locks, client: Elasticsearch, index: str, source: str, destination: str) -> int:
    """Move a directory with all that is below it; how many files that are."""
    with locks.tree(source, destination) as held:
        client.indices.refresh(index=index)  # who had the lock before may have written a moment ago
        return held.write(_moved(client, index, source, destination))


def _moved(client: Elasticsearch, index: str, source: str, destination: str) -> Iterator[Change]:
    for hit in scan(client, index=index, query={"query": {"term": {"path.tree": source}}}, size=500):
        path = posixpath.normpath(destination + hit["_source"]["path"].removeprefix(source))
        yield Change(index=index, id=hit["_id"], source=hit["_source"] | {"path": path})


def _read(client: Elasticsearch, index: str, id_: str) -> dict[str, Any]:
    return dict(client.get(index=index, id=id_)["_source"])
