"""Locks made of documents: what they cost alone and contended; and a rename under one, beside the relational way."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from elasticsearch import ConflictError, Elasticsearch
from elasticsearch.helpers import bulk, scan

from syncer.locks import Held, Locks
from tests.benchmarks.blog import MIDDLE_AUTHOR, Blogs
from tests.benchmarks.fan_out import Renames
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome, percentile
from tests.locking.files import INDEX_BODY, rename_directory

_OWNERS = 4
_SECONDS = 5.0
_PATH = "/clinton/projects/elasticsearch/README.txt"
_KINDS: dict[str, Callable[[Locks], AbstractContextManager[Held]]] = {
    "global": lambda locks: locks.everything(timeout=None),
    "3 documents": lambda locks: locks.documents("files", ["1", "2", "3"], timeout=None),
    "tree, 5 deep": lambda locks: locks.tree(_PATH, timeout=None),
}


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Locks taken and given back, by one owner and by several; then renames."""
    seconds = min(_SECONDS, options.seconds)
    with Elasticsearch(blogs.endpoints.elasticsearch_url, request_timeout=60) as client, _scratch(client) as index:
        bare = _turns([partial(_bare_turn, client, index)], seconds)
        rows = [_row("a document created and deleted", bare)]
        figures = []
        for kind, take in _KINDS.items():
            alone, together = (_taken(client, index, take, owners, seconds) for owners in (1, _OWNERS))
            rows += [_row(f"{kind}, one owner", alone), _row(f"{kind}, {_OWNERS} owners who all want it", together)]
            figures.append(Figure(what=f"{kind}: turns of one owner / bare turns", value=len(alone) / len(bare)))
            figures.append(Figure(what=f"{kind}: turns of {_OWNERS} owners / of one", value=len(together) / len(alone)))
        renamed, remark = _renames(blogs, options, client, index)
    return Outcome(
        about=f"locks taken and given back for {seconds:.0f} s each, one after the other",
        columns=("lock", "turns/s", "p50 ms", "p99 ms"),
        rows=rows,
        figures=[*figures, *renamed],
        record={},
        remarks=[remark],
    )


@contextmanager
def _scratch(client: Elasticsearch) -> Iterator[str]:
    """The guide's index of files, gone afterwards as are its locks."""
    name = f"locks-{uuid.uuid4().hex}"
    client.indices.create(index=name, **INDEX_BODY)
    try:
        yield name
    finally:
        client.indices.delete(index=[name, f"{name}-locks", f"{name}-locks-intents"], ignore_unavailable=True)


def _bare_turn(client: Elasticsearch, index: str) -> None:
    """The guide's global lock, with nothing that knows of death."""
    with suppress(ConflictError):
        client.create(index=index, id="lock", document={})
        client.delete(index=index, id="lock")


def _taken(
    client: Elasticsearch,
    index: str,
    take: Callable[[Locks], AbstractContextManager[Held]],
    owners: int,
    seconds: float,
) -> list[float]:
    made = [Locks(client, owner=str(number), index=f"{index}-locks") for number in range(owners)]

    def turn(locks: Locks) -> None:
        with take(locks):
            pass

    try:
        return _turns([partial(turn, one) for one in made], seconds)
    finally:
        for one in made:
            one.close()


def _turns(turns: list[Callable[[], None]], seconds: float) -> list[float]:
    """How long each turn took, of all who take turns for so long."""
    deadline = time.monotonic() + seconds

    def go_on(turn: Callable[[], None]) -> list[float]:
        took = []
        while (began := time.monotonic()) < deadline:
            turn()
            took.append(time.monotonic() - began)
        return took

    with ThreadPoolExecutor(len(turns)) as pool:
        return [one for done in [pool.submit(go_on, turn) for turn in turns] for one in done.result()]


def _row(name: str, took: list[float]) -> tuple[str, ...]:
    per_second = len(took) * _turns_at_once(name) / sum(took)
    return (name, f"{per_second:,.0f}", *(f"{percentile(took, percent) * 1000:,.1f}" for percent in (50, 99)))


def _turns_at_once(name: str) -> int:
    return _OWNERS if f"{_OWNERS} owners" in name else 1


def _renames(blogs: Blogs, options: Options, client: Elasticsearch, index: str) -> tuple[list[Figure], str]:
    blog = blogs.crowded
    files = blog.middle
    body = "x" * 1000

    def document(number: int) -> dict[str, Any]:
        return {"name": f"{number}.txt", "path": f"/a/{number % 10}", "contents": body}

    actions = (
        {"_index": index, "_id": str(one), "_source": document(one), "version": 1, "version_type": "external"}
        for one in range(files)
    )
    bulk(client, actions, refresh=True)
    began = time.monotonic()
    bulk(client, _hits(client, index), refresh=True)
    bare = time.monotonic() - began
    with Locks(client, owner="renames", index=f"{index}-locks") as locks:
        began = time.monotonic()
        rename_directory(locks, client, index, "/a", "/b")
        locked = time.monotonic() - began
    live = Live(blog, is_profiled=options.is_profiled)
    renames = Renames(blog, live, MIDDLE_AUTHOR, blog.middle)
    renames.prepare()
    run = renames.run()
    live.stop()
    return [
        Figure(what=f"{files:,} files renamed under a lock / by scan and bulk alone, seconds", value=locked / bare),
        Figure(what=f"{files:,} files under a lock: who renames waits", value=locked, unit="s"),
        Figure(
            what=f"{blog.middle:,} posts of a renamed author, by syncer: until the last shows it",
            value=run.seconds,
            unit="s",
        ),
    ], "who renames in Postgres waits for one commit of one row"


def _hits(client: Elasticsearch, index: str) -> Iterator[dict[str, Any]]:
    for hit in scan(client, index=index, query={"query": {"term": {"path.tree": "/a"}}}, size=500):
        yield {"_index": index, "_id": hit["_id"], "_source": hit["_source"]}
