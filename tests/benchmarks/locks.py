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
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from elasticsearch import ConflictError, Elasticsearch
from elasticsearch.helpers import bulk, scan

from syncer.base.retry import Backoff
from syncer.demo.guide import schema
from syncer.locks import Edit, HeldLocks, Locks
from tests.benchmarks.contest import in_turns
from tests.benchmarks.edits import deadline
from tests.benchmarks.report import Figure, say
from tests.benchmarks.world import Bench
from tests.support.locking import EXAMPLES, FILES_INDEX
from tests.support.world import World, wait_until

_OWNERS = (1, 2, 8, 32)
_SECONDS = 3.0
_BARE = "a document, created and deleted"
_PATH = "/clinton/projects/elasticsearch/README.txt"
_Take = Callable[[Locks], AbstractContextManager[HeldLocks]]
_KINDS: dict[str, _Take] = {
    "global": lambda locks: locks.everything(timeout=None),
    "3 documents": lambda locks: locks.documents("files", ["1", "2", "3"], timeout=None),
    "tree, 5 levels": lambda locks: locks.tree(_PATH, timeout=None),
}
_FILES_MAX, _BYTES = 10_000, 1000
_WRITER_BEGINS_SECONDS, _GIVE_UP_SECONDS = 0.1, 180.0
_SHOWN, _WAITED = "until every file shows it", "who renames a file meanwhile waits, at most"
_ASKED = (_SHOWN, "who renames the directory waits", _WAITED)
_DATA = """
INSERT INTO directories (id, parent_id, name) VALUES (1, NULL, ''), (2, 1, 'before');
INSERT INTO directories (id, parent_id, name) SELECT 100 + n, 2, n::text FROM generate_series(0, 9) AS n;
INSERT INTO files (id, directory_id, name, contents)
    SELECT 100 + n, 100 + n % 10, n || '.txt', repeat('x', {bytes}) FROM generate_series(0, {files} - 1) AS n;
"""


def locks(bench: Bench) -> Iterator[Figure]:
    """Locks made of documents, and a rename under one."""
    url, seconds = bench.endpoints.elasticsearch_url, min(_SECONDS, bench.seconds)
    files = min(_FILES_MAX, bench.posts)
    rates: dict[str, dict[int, float]] = {}
    with Elasticsearch(url, request_timeout=60, connections_per_node=2 * max(_OWNERS)) as client:
        with _index(client, {"settings": {"number_of_shards": 1}}) as index:
            rates[_BARE] = {
                owners: _turns([partial(_bare_turn, client, index)] * owners, seconds) for owners in _OWNERS
            }
            for kind, take in _KINDS.items():
                say(f"taking locks: {kind}")
                rates[kind] = {owners: _turns_of(client, index, take, owners, seconds) for owners in _OWNERS}
        with _locked(client, files) as locked, _relational(bench, files) as relational:
            scans = [_scan_and_bulk(client, locked.alias) for _ in range(bench.passes)]
            takers = {way.name: partial(_renamed, client, way, files) for way in (locked, relational)}
            passes = in_turns(takers, bench.passes)
    bench.report.about = f"locks taken and given back for {seconds:.0f} s each; a directory of {files:,} files renamed"
    columns = ("turns a second, by how many want it", *map(str, _OWNERS))
    bench.report.table(columns, [[name, *(f"{rate:,.0f}" for rate in of.values())] for name, of in rates.items()])
    bench.report.record["runs"] = passes
    bench.report.remarks += [
        f"bare: {_BARE}, as the guide's global lock, which does not notice a dead holder",
        f"{files:,} files renamed by scan and bulk alone: {median(scans):.2f} s",
    ]
    for kind in _KINDS:
        single = rates[kind][1]
        yield Figure(f"{kind}: turns/s of one owner / bare", single / rates[_BARE][1])
        for owners in _OWNERS[1:]:
            yield Figure(f"{kind}: turns/s of {owners} who want it / of one", rates[kind][owners] / single)
    under, beside = (
        {asked: (max if asked == _WAITED else median)(run[asked] for run in passes[way.name]) for asked in _ASKED}
        for way in (locked, relational)
    )
    yield Figure(f"{files:,} files: {locked.name} / by scan and bulk alone", under[_SHOWN] / median(scans))
    for asked in _ASKED:
        yield Figure(f"{asked}: {locked.name}", under[asked], unit="s")
        yield Figure(f"{asked}: {relational.name}", beside[asked], unit="s")
        yield Figure(f"{asked}: {locked.name} / {relational.name}", under[asked] / beside[asked])


@contextmanager
def _index(client: Elasticsearch, body: dict[str, Any]) -> Iterator[str]:
    """An index, and a name for its locks; removed at the end."""
    name = f"files-{uuid.uuid4().hex}"
    client.indices.create(index=name, **body)
    try:
        yield name
    finally:
        client.indices.delete(index=[name, f"{name}-locks"], ignore_unavailable=True)


def _bare_turn(client: Elasticsearch, index: str) -> None:
    """The guide's global lock, which does not notice a dead holder."""
    backoff = Backoff(first_seconds=0.01, longest_seconds=0.5)
    while True:
        with suppress(ConflictError):
            client.create(index=index, id="lock", document={})
            break
        time.sleep(backoff.next_seconds())
    client.delete(index=index, id="lock")


def _turns_of(client: Elasticsearch, index: str, take: _Take, owners: int, seconds: float) -> float:
    """Turns per second of so many owners, of all together."""

    def turn(locks: Locks) -> None:
        with take(locks):
            pass

    named = (Locks(client, owner=str(number), index=f"{index}-locks") for number in range(owners))
    return _turns([partial(turn, owner) for owner in named], seconds)


def _turns(turns: list[Callable[[], None]], seconds: float) -> float:
    """Turns per second, if all take turns for so long, of all together."""
    began, is_over = time.monotonic(), deadline(seconds)

    def go_on(turn: Callable[[], None]) -> int:
        taken = 0
        while not is_over():
            turn()
            taken += 1
        return taken

    with ThreadPoolExecutor(len(turns)) as pool:
        return sum(pool.map(go_on, turns)) / (time.monotonic() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way to rename: a directory, from one path to another; and a file in it, to another name."""

    name: str
    alias: str
    rename: Callable[[str, str], object]
    rename_file: Callable[[str], object]


@contextmanager
def _locked(client: Elasticsearch, files: int) -> Iterator[_Way]:
    """Files in an index without a database, renamed under the tree lock by the functions of ``docs/locks.md``."""
    example: dict[str, Any] = {"Edit": Edit, "Elasticsearch": Elasticsearch, "Locks": Locks}
    for text in EXAMPLES[1:]:
        exec(text, example)  # noqa: S102 - the functions of docs/locks.md
    with _index(client, FILES_INDEX) as alias:
        actions = (
            {
                "_index": alias,
                "_id": str(number),
                "_source": {"contents": "x" * _BYTES, "name": f"{number}.txt", "path": f"/before/{number % 10}"},
                "version": 1,
                "version_type": "external",
            }
            for number in range(files)
        )
        bulk(client, actions, refresh=True)
        owners = [Locks(client, owner=owner, index=f"{alias}-locks") for owner in ("directory", "file")]
        yield _Way(
            name="under the tree lock",
            alias=alias,
            rename=partial(example["rename_directory"], owners[0], client, alias),
            rename_file=partial(example["rename_file"], owners[1], client, alias, "0"),
        )


@contextmanager
def _relational(bench: Bench, files: int) -> Iterator[_Way]:
    """Files in Postgres, with syncer behind it: to rename is to update one row."""
    with bench.world(World) as world:
        world.make()
        world.use("file")
        world.sql(schema("filesystem"))
        world.sql(_DATA.format(files=files, bytes=_BYTES))
        for command in (["migrate"], ["apply", "--yes"]):
            world.syncer(*command).check_returncode()
        world.daemon()
        rename = partial(world.sql, "UPDATE directories SET name = %s WHERE id = 2")
        yield _Way(
            name="with syncer",
            alias=world.alias_of("file"),
            rename=lambda _, destination: rename(destination.removeprefix("/")),
            rename_file=partial(world.sql, "UPDATE files SET name = %s WHERE id = 100"),
        )


def _scan_and_bulk(client: Elasticsearch, index: str) -> float:
    """Seconds of nothing but scan and bulk, as the guide does it; here each file becomes what it is."""
    began = time.monotonic()
    hits = scan(client, index=index, query={"query": {"prefix": {"path": "/"}}}, size=500)
    bulk(client, ({"_index": index, "_id": hit["_id"], "_source": hit["_source"]} for hit in hits), refresh=True)
    return time.monotonic() - began


def _renamed(client: Elasticsearch, way: _Way, files: int) -> dict[str, float]:
    """Rename, and rename back; seconds of all that is asked of the first."""
    waits: list[float] = []
    is_shown = threading.Event()

    def rename_a_file() -> None:
        """Again and again, until every file is in its new place."""
        time.sleep(_WRITER_BEGINS_SECONDS)
        while not (is_shown.is_set() and waits):
            began = time.monotonic()
            way.rename_file(uuid.uuid4().hex)
            waits.append(time.monotonic() - began)

    def wait_until_shown(path: str) -> None:
        """Return once searches find every file below a path."""

        def is_done() -> bool:
            client.indices.refresh(index=way.alias)
            return bool(client.count(index=way.alias, query={"term": {"path.tree": path}})["count"] == files)

        wait_until(is_done, what="the rename is done", seconds=_GIVE_UP_SECONDS)

    writer = threading.Thread(target=rename_a_file)
    began = time.monotonic()
    writer.start()
    way.rename("/before", "/after")
    blocked = time.monotonic() - began
    wait_until_shown("/after")
    seconds = time.monotonic() - began
    is_shown.set()
    writer.join()
    way.rename("/after", "/before")
    wait_until_shown("/before")
    return dict(zip(_ASKED, (seconds, blocked, max(waits)), strict=True))
