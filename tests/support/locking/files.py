"""A filesystem in Elasticsearch alone: the guide's renames, of a file and of a directory, under the tree lock.

Each file is a document with its name, its directory as ``path``, and, from that, ``path.tree``. To rename a directory
is to write every document below it. The functions are those of ``docs/locks.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan

from syncer.locks import Edit, Locks

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


def rename_directory(locks: Locks, client: Elasticsearch, index: str, source: str, destination: str) -> int:
    """Move a directory with all that is below it; how many files that are."""
    if PurePosixPath(destination).is_relative_to(source):
        raise ValueError(f"{source} cannot become a part of itself")
    with locks.tree(source, destination) as held:
        client.indices.refresh(index=index)  # who had the lock before may have written a moment ago
        require_free(client, index, PurePosixPath(destination))
        return held.write(moved(client, index, source, destination))


def moved(client: Elasticsearch, index: str, source: str, destination: str) -> Iterator[Edit]:
    """Every file below a directory, with its new path."""
    for hit in scan(client, index=index, query={"query": {"term": {"path.tree": source}}}, size=500):
        path = destination + hit["_source"]["path"].removeprefix(source)
        yield Edit(index=index, id=hit["_id"], source=hit["_source"] | {"path": path})


def rename_file(locks: Locks, client: Elasticsearch, index: str, id_: str, name: str) -> None:
    """Give a file another name, wherever it is."""
    file = client.get(index=index, id=id_)["_source"]
    while True:
        directory = PurePosixPath(file["path"])
        with locks.tree(str(directory / file["name"]), str(directory / name)) as held:
            found = client.get(index=index, id=id_)["_source"]
            if found == file:
                client.indices.refresh(index=index)
                require_free(client, index, directory / name)
                held.write([Edit(index=index, id=id_, source=file | {"name": name})])
                return
        file = found  # it was moved, or renamed, before it could be locked


def require_free(client: Elasticsearch, index: str, path: PurePosixPath) -> None:
    """Refuse a path that a file or a directory has already; to be asked under a lock on it."""
    is_file = {"bool": {"filter": [{"term": {"path": str(path.parent)}}, {"term": {"name": path.name}}]}}
    is_directory = {"term": {"path.tree": str(path)}}
    if client.count(index=index, query={"bool": {"should": [is_file, is_directory]}})["count"]:
        raise FileExistsError(str(path))
