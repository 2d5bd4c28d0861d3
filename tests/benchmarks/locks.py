"""Locks made of documents: what each costs alone and when many want it; and the guide's rename of a directory.

The directory is renamed in Elasticsearch alone, under the tree lock, and in Postgres, with syncer. Both ways have the
same files and the same questions. How long until searches show every file in its new place? How long does an
application that changes one of the files wait meanwhile?
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from elasticsearch import ConflictError, Elasticsearch

from syncer.base.retry import Backoff
from syncer.demo.guide import schema
from syncer.locks import Edit, HeldLocks, Locks
from tests.benchmarks.edits import deadline
from tests.benchmarks.report import Figure, Run
from tests.benchmarks.world import Bench, Blog
from tests.support.locking import EXAMPLES, FILES_INDEX
from tests.support.world import wait_until

_OWNERS = (1, 2, 8, 32)
_SECONDS = 3.0
_PATH = "/clinton/projects/elasticsearch/README.txt"
_KINDS: dict[str, Callable[[Locks], AbstractContextManager[HeldLocks]]] = {
    "global": lambda locks: locks.everything(timeout=None),
    "3 documents": lambda locks: locks.documents("files", ["1", "2", "3"], timeout=None),
    "tree, 5 levels": lambda locks: locks.tree(_PATH, timeout=None),
}
_BARE = "a document, created and deleted"
_FILES_MAX, _BYTES = 10_000, 1000
_WRITER_BEGINS_SECONDS, _GIVE_UP_SECONDS = 0.1, 180.0
_LOCKED, _SYNCER = "under the tree lock", "with syncer"
_DATA = """
INSERT INTO directories (id, parent_id, name) VALUES (1, NULL, ''), (2, 1, 'before');
INSERT INTO directories (id, parent_id, name) SELECT 100 + n, 2, n::text FROM generate_series(0, 9) AS n;
INSERT INTO files (id, directory_id, name, contents)
    SELECT 100 + n, 100 + n % 10, n || '.txt', repeat('x', {bytes}) FROM generate_series(0, {files} - 1) AS n;
"""


def locks(bench: Bench) -> Iterator[Figure]:
    """Locks made of documents, and a rename under one."""
    duration, files = min(_SECONDS, bench.seconds), min(_FILES_MAX, bench.posts)
    about = f"turns of locks taken and given back for {duration:.0f} s each; a directory of {files:,} files renamed"
    url, connections = bench.endpoints.elasticsearch_url, 2 * max(_OWNERS)
    with Elasticsearch(url, request_timeout=60, connections_per_node=connections) as client:
        with _index(client, {"settings": {"number_of_shards": 1}}) as index:
            turns = {
                f"{kind}, {owners}": partial(_turns, client, index, kind, owners, duration)
                for kind in (_BARE, *_KINDS)
                for owners in _OWNERS
            }
            bench.contest(about, turns, passes=1)
        with bench.blog(posts=0) as world, _index(client, FILES_INDEX) as copy:
            alias = _with_files(world, files)
            client.reindex(source={"index": alias}, dest={"index": copy}, refresh=True)
            holders = [Locks(client, owner=owner, index=f"{copy}-locks") for owner in ("directory", "file")]
            example: dict[str, Any] = {"Edit": Edit, "Elasticsearch": Elasticsearch, "Locks": Locks}
            for text in EXAMPLES[1:]:
                exec(text, example)  # noqa: S102 - the functions of docs/locks.md
            under_lock = (
                partial(example["rename_directory"], holders[0], client, copy),
                partial(example["rename_file"], holders[1], client, copy, "100"),
            )
            by_update = (
                lambda _, path: world.sql("UPDATE directories SET name = %s WHERE id = 2", path[1:]),
                partial(world.sql, "UPDATE files SET name = %s WHERE id = 100"),
            )
            contestants: dict[str, Callable[[], Run]] = {
                _LOCKED: partial(_renamed, client, copy, files, *under_lock),
                _SYNCER: partial(_renamed, client, alias, files, *by_update),
            }
            report = bench.contest(about, contestants)
    report.remarks.append(f"{_BARE}: as the guide's global lock, which does not notice a dead holder")
    for kind in _KINDS:
        yield report.ratio(f"{kind}, 1", f"{_BARE}, 1", called=f"{kind}: turns/s of one owner / bare")
        for owners in _OWNERS[1:]:
            called = f"{kind}: turns/s of {owners} who want it / of one"
            yield report.ratio(f"{kind}, {owners}", f"{kind}, 1", called=called)
    asked_of = {
        "until every file shows it": "seconds",
        "who renames the directory waits": "first_seconds",
        "who renames a file meanwhile waits, at most": "longest_seconds",
    }
    for asked, by in asked_of.items():
        for way in (_LOCKED, _SYNCER):
            yield Figure(f"{asked}: {way}", report.of(way, by), unit="s")
        yield report.ratio(_LOCKED, _SYNCER, by=by, called=f"{asked}: {_LOCKED} / {_SYNCER}")


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
        owner, taken = Locks(client, owner=str(number), index=f"{index}-locks"), 0
        while not is_over():
            if kind == _BARE:
                _create_and_delete(client, index)
            else:
                with _KINDS[kind](owner):
                    pass
            taken += 1
        return taken

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


def _with_files(world: Blog, files: int) -> str:
    """Put files in Postgres, with syncer behind them; where searches find them."""
    world.make()
    world.use("file")
    world.sql(schema("filesystem"))
    world.sql(_DATA.format(files=files, bytes=_BYTES))
    for command in (["migrate"], ["apply", "--yes"]):
        world.syncer(*command).check_returncode()
    world.start()
    return world.alias_of("file")


def _renamed(
    client: Elasticsearch,
    index: str,
    files: int,
    rename: Callable[[str, str], object],
    rename_file: Callable[[str], object],
) -> Run:
    """Rename, and rename back; the times are of the first, and of who renames a file again and again meanwhile."""
    waits: list[float] = []
    is_shown = threading.Event()

    def rename_a_file() -> None:
        time.sleep(_WRITER_BEGINS_SECONDS)
        while not (is_shown.is_set() and waits):
            began = time.monotonic()
            rename_file(uuid.uuid4().hex)
            waits.append((time.monotonic() - began) * 1000)

    def wait_until_shown(path: str) -> None:
        """Return once searches find every file below a path."""

        def is_done() -> bool:
            client.indices.refresh(index=index)
            return bool(client.count(index=index, query={"term": {"path.tree": path}})["count"] == files)

        wait_until(is_done, what="the rename is done", seconds=_GIVE_UP_SECONDS)

    writer = threading.Thread(target=rename_a_file)
    began = time.monotonic()
    writer.start()
    rename("/before", "/after")
    blocked = time.monotonic() - began
    wait_until_shown("/after")
    took = time.monotonic() - began
    is_shown.set()
    writer.join()
    rename("/after", "/before")
    wait_until_shown("/before")
    return Run(documents=files, seconds=took, first_seconds=blocked, milliseconds=waits)
