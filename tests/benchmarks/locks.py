"""Locks made of documents: what each costs alone, and when many want it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from elasticsearch import ConflictError, Elasticsearch

from syncer.base.retry import Backoff
from syncer.locks import HeldLocks, Locks
from tests.benchmarks.edits import deadline
from tests.benchmarks.report import Figure, Run
from tests.benchmarks.world import Bench

_OWNERS = (1, 2, 8, 32)
_SECONDS = 3.0
_PATH = "/clinton/projects/elasticsearch/README.txt"
_KINDS: dict[str, Callable[[Locks], AbstractContextManager[HeldLocks]]] = {
    "global": lambda locks: locks.everything(timeout=None),
    "3 documents": lambda locks: locks.documents("files", ["1", "2", "3"], timeout=None),
    "tree, 5 levels": lambda locks: locks.tree(_PATH, timeout=None),
}
_BARE = "a document, created and deleted"


def locks(bench: Bench) -> Iterator[Figure]:
    """Locks made of documents."""
    duration = min(_SECONDS, bench.seconds)
    about = f"turns of locks taken and given back, for {duration:.0f} s each"
    url, connections = bench.endpoints.elasticsearch_url, 2 * max(_OWNERS)
    with (
        Elasticsearch(url, request_timeout=60, connections_per_node=connections) as client,
        _index(client, {"settings": {"number_of_shards": 1}}) as index,
    ):
        turns = {
            f"{kind}, {owners}": partial(_turns, client, index, kind, owners, duration)
            for kind in (_BARE, *_KINDS)
            for owners in _OWNERS
        }
        report = bench.contest(about, turns, passes=1)
    report.remarks.append(f"{_BARE}: as the guide's global lock, which does not notice a dead holder")
    for kind in _KINDS:
        yield report.ratio(f"{kind}, 1", f"{_BARE}, 1", called=f"{kind}: turns/s of one owner / bare")
        for owners in _OWNERS[1:]:
            called = f"{kind}: turns/s of {owners} who want it / of one"
            yield report.ratio(f"{kind}, {owners}", f"{kind}, 1", called=called)


@contextmanager
def _index(client: Elasticsearch, body: dict[str, Any]) -> Iterator[str]:
    """An index, and a name for its locks; removed at the end."""
    name = f"files-{uuid.uuid4().hex}"
    client.indices.create(index=name, **body)
    try:
        yield name
    finally:
        client.indices.delete(index=[name, f"{name}-locks"], ignore_unavailable=True)


def _turns(client: Elasticsearch, index: str, kind: str, owners: int, duration: float) -> Run:
    """So many owners take a lock and give it back for so long; turns of all together."""

    def take_turns(number: int) -> int:
        owner, locks_taken = Locks(client, owner=str(number), index=f"{index}-locks"), 0
        while not is_over():
            if kind == _BARE:
                _create_and_delete(client, index)
            else:
                with _KINDS[kind](owner):
                    pass
            locks_taken += 1
        return locks_taken

    began, is_over = time.monotonic(), deadline(duration)
    with ThreadPoolExecutor(owners) as pool:
        turns = sum(pool.map(take_turns, range(owners)))
    return Run(documents=turns, seconds=time.monotonic() - began)


def _create_and_delete(client: Elasticsearch, index: str) -> None:
    """The guide's global lock, which does not notice a dead holder."""
    backoff = Backoff(first_seconds=0.01, longest_seconds=0.5)
    while True:
        with suppress(ConflictError):
            client.create(index=index, id="lock", document={})
            break
        time.sleep(backoff.next_seconds())
    client.delete(index=index, id="lock")
