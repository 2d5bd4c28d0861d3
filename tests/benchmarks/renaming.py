"""The guide's rename of a directory: in Elasticsearch alone, under the tree lock, and in Postgres, with syncer.

Both ways the same files, the same questions: how long until searches show every file in its new place, how long does
who changes one of the files wait meanwhile, and what does it cost if the process that does it is killed half way.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import psycopg
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk, scan

from syncer.demo.model import SCHEMAS
from syncer.locks import Locks
from tests.benchmarks.blog import Blogs
from tests.benchmarks.contest import say
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure
from tests.support.locking.files import INDEX_BODY, rename_directory, rename_file
from tests.support.world import REPOSITORY, Daemon, World

FILES = 10_000
_DIRECTORIES = 10
_BYTES = 1000
_WRITER_BEGINS_SECONDS = 0.1
_LOOK_SECONDS = 0.05
_GIVE_UP_SECONDS = 180.0
_DIRECTORY, _FIRST = 2, 100
"""The directory that is renamed; the first of the directories and of the files below it."""
_DATA = """
INSERT INTO directories (id, parent_id, name) VALUES (1, NULL, ''), (%(top)s, 1, 'before');
INSERT INTO directories (id, parent_id, name)
    SELECT %(first)s + n, %(top)s, n::text FROM generate_series(0, %(directories)s - 1) AS n;
INSERT INTO files (id, directory_id, name, contents)
    SELECT %(first)s + n, %(first)s + n %% %(directories)s, n || '.txt', repeat('x', %(bytes)s)
    FROM generate_series(0, %(files)s - 1) AS n;
"""


class Way(Protocol):
    """A way to rename a directory with files in it."""

    @property
    def name(self) -> str:
        """What it is called in the table."""

    @property
    def alias(self) -> str:
        """What searches use."""

    def rename(self, source: str, destination: str) -> None:
        """Rename it, as an application does; returns when the application may go on."""

    def rename_file(self, name: str) -> None:
        """Give one file below it another name, as an application does."""

    def crash(self, source: str, destination: str, *, is_half_done: Callable[[], bool]) -> None:
        """Rename it, kill the process that does it half way, and let another one see to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """What one way took, in seconds.

    Args:
        shown: Until searches showed every file in its new place.
        blocked: Until the application could go on.
        waits: How long each who renamed one of the files meanwhile had to wait.
        crashed: Until searches showed every file in its new place, though whoever did it was killed half way; counted
            from his death.
    """

    shown: float
    blocked: float
    waits: list[float]
    crashed: float

    def row(self, name: str) -> tuple[str, ...]:
        """A row of the table."""
        waits = sorted(self.waits)
        return (name, f"{FILES / self.shown:,.0f}", f"{median(waits) * 1000:,.0f}", f"{waits[-1] * 1000:,.0f}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found of all ways."""

    rows: list[tuple[str, ...]]
    figures: list[Figure]
    record: dict[str, Any]


@dataclass(slots=True)
class Locked:
    """Under the tree lock, in an index that no database is behind."""

    client: Elasticsearch
    url: str
    name: str = "under the tree lock"
    alias: str = field(default_factory=lambda: f"files-{uuid.uuid4().hex}")

    def fill(self) -> None:
        """Make the index and write every file."""
        self.client.indices.create(index=self.alias, **INDEX_BODY)
        document = {"contents": "x" * _BYTES}
        actions = (
            {
                "_index": self.alias,
                "_id": str(number),
                "_source": {**document, "name": f"{number}.txt", "path": f"/before/{number % _DIRECTORIES}"},
                "version": 1,
                "version_type": "external",
            }
            for number in range(FILES)
        )
        bulk(self.client, actions, refresh=True)

    def locks(self, owner: str) -> Locks:
        """An owner, with the lease that one has who does not say otherwise."""
        return Locks(self.client, owner=owner, index=f"{self.alias}-locks")

    def rename(self, source: str, destination: str) -> None:
        """By the function of ``docs/locks.md``."""
        with self.locks("directory") as locks:
            rename_directory(locks, self.client, self.alias, source, destination)

    def rename_file(self, name: str) -> None:
        """Likewise."""
        with self.locks("file") as locks:
            rename_file(locks, self.client, self.alias, "0", name)

    def crash(self, source: str, destination: str, *, is_half_done: Callable[[], bool]) -> None:
        """Kill the process that renames; the next one waits until that is rolled back, and renames again."""
        command = [sys.executable, "-m", "tests.benchmarks.renaming", self.url, self.alias, source, destination]
        with subprocess.Popen(command, cwd=REPOSITORY) as process:
            _wait_until(is_half_done)
            process.kill()
        threading.Thread(target=self.rename, args=(source, destination)).start()

    def drop(self) -> None:
        """Leave nothing."""
        names = [self.alias, f"{self.alias}-locks", f"{self.alias}-locks-intents"]
        self.client.indices.delete(index=names, ignore_unavailable=True)


@dataclass(slots=True)
class Relational:
    """In Postgres, with syncer behind it."""

    world: World
    name: str = "in Postgres, with syncer"
    _daemon: Daemon | None = None

    @property
    def alias(self) -> str:
        """What searches use."""
        return self.world.alias_of("file")

    def fill(self) -> None:
        """Make the tables, put the document active, and start a daemon."""
        self.world.make()
        self.world.use("file")
        self.world.sql(SCHEMAS["filesystem"].creation)
        numbers = {"top": _DIRECTORY, "first": _FIRST, "directories": _DIRECTORIES, "files": FILES, "bytes": _BYTES}
        with psycopg.ClientCursor(psycopg.connect(self.world.dsn, autocommit=True)) as cursor:
            cursor.execute(_DATA, numbers)
            cursor.connection.close()
        for command in (["migrate"], ["apply", "--yes"]):
            self.world.syncer(*command).check_returncode()
        self._daemon = self.world.daemon()

    def rename(self, source: str, destination: str) -> None:  # noqa: ARG002 - the directory has a key
        """One row."""
        self.world.sql("UPDATE directories SET name = %s WHERE id = %s", destination.removeprefix("/"), _DIRECTORY)

    def rename_file(self, name: str) -> None:
        """One row."""
        self.world.sql("UPDATE files SET name = %s WHERE id = %s", name, _FIRST)

    def crash(self, source: str, destination: str, *, is_half_done: Callable[[], bool]) -> None:
        """Kill the daemon, and start another."""
        assert self._daemon is not None
        self.rename(source, destination)
        _wait_until(is_half_done)
        self._daemon.kill()
        threading.Thread(target=self._start).start()

    def _start(self) -> None:
        self._daemon = self.world.daemon()

    def drop(self) -> None:
        """Leave nothing."""
        self.world.unmake()


def measure(blogs: Blogs, options: Options) -> Found:
    """Rename there and back in both ways, and by scan and bulk alone."""
    url = blogs.endpoints.elasticsearch_url
    found: dict[str, list[Renamed]] = {}
    with Elasticsearch(url, request_timeout=60) as client, _ways(blogs, client) as (locked, relational):
        bare = median(_bare(client, locked.alias) for _ in range(options.passes))
        for number in range(options.passes):
            for way in (locked, relational):
                source, destination = (f"/{'before' if number == 0 else f'after-{number - 1}'}", f"/after-{number}")
                say(f"renaming {way.name}, pass {number + 1} of {options.passes}")
                found.setdefault(way.name, []).append(_renamed(client, way, source, destination))
    one, other = (_middle(runs) for runs in found.values())
    return Found(
        rows=[
            (f"{FILES:,} files renamed by scan and bulk alone", f"{FILES / bare:,.0f}", "", ""),
            *(runs.row(f"{FILES:,} files renamed {name}") for name, runs in zip(found, (one, other), strict=True)),
        ],
        figures=_figures(one, other, bare),
        record={name: [_described(run) for run in runs] for name, runs in found.items()},
    )


def _figures(locked: Renamed, relational: Renamed, bare: float) -> list[Figure]:
    def both(what: str, value: Callable[[Renamed], float]) -> Iterator[Figure]:
        """The figure of each way, and how much more the lock takes."""
        yield Figure(what=f"{what}: under the tree lock", value=value(locked), unit="s")
        yield Figure(what=f"{what}: with syncer", value=value(relational), unit="s")
        yield Figure(what=f"{what}: under the tree lock / with syncer", value=value(locked) / value(relational))

    return [
        Figure(what=f"{FILES:,} files: under the tree lock / by scan and bulk alone", value=locked.shown / bare),
        *both("until every file shows it", lambda run: run.shown),
        *both("who renames the directory waits", lambda run: run.blocked),
        *both("who renames a file meanwhile waits, at most", lambda run: max(run.waits)),
        *both("killed half way: until every file shows it", lambda run: run.crashed),
    ]


def _middle(runs: list[Renamed]) -> Renamed:
    return Renamed(
        shown=median(run.shown for run in runs),
        blocked=median(run.blocked for run in runs),
        waits=[one for run in runs for one in run.waits],
        crashed=median(run.crashed for run in runs),
    )


def _described(run: Renamed) -> dict[str, float]:
    return {
        "shown_seconds": round(run.shown, 3),
        "blocked_seconds": round(run.blocked, 3),
        "longest_wait_seconds": round(max(run.waits), 3),
        "crashed_seconds": round(run.crashed, 3),
    }


@contextmanager
def _ways(blogs: Blogs, client: Elasticsearch) -> Iterator[tuple[Locked, Relational]]:
    with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
        world = World(sandbox=blogs.sandbox, endpoints=blogs.endpoints, folder=Path(folder), is_preloaded=False)
        locked = Locked(client=client, url=blogs.endpoints.elasticsearch_url)
        relational = Relational(world=world)
        try:
            say(f"making {FILES:,} files twice")
            locked.fill()
            relational.fill()
            yield locked, relational
        finally:
            locked.drop()
            relational.drop()


def _bare(client: Elasticsearch, index: str) -> float:
    """As the guide does it: nothing but scan and bulk; here each file becomes what it is."""
    began = time.monotonic()
    hits = scan(client, index=index, query={"query": {"prefix": {"path": "/"}}}, size=500)
    bulk(client, ({"_index": index, "_id": hit["_id"], "_source": hit["_source"]} for hit in hits), refresh=True)
    return time.monotonic() - began


def _renamed(client: Elasticsearch, way: Way, source: str, destination: str) -> Renamed:
    """Rename there, then further with a crash half way."""
    waits: list[float] = []
    shown = threading.Event()

    def rename_a_file() -> None:
        """Again and again, until every file is in its new place."""
        time.sleep(_WRITER_BEGINS_SECONDS)
        while not (shown.is_set() and waits):
            began = time.monotonic()
            way.rename_file(uuid.uuid4().hex)
            waits.append(time.monotonic() - began)

    writer = threading.Thread(target=rename_a_file)
    began = time.monotonic()
    writer.start()
    way.rename(source, f"{destination}-once")
    blocked = time.monotonic() - began
    _wait_until(lambda: _shown(client, way, f"{destination}-once") == FILES)
    seconds = time.monotonic() - began
    shown.set()
    writer.join()
    way.crash(f"{destination}-once", destination, is_half_done=lambda: _shown(client, way, destination) > FILES / 2)
    died_at = time.monotonic()
    _wait_until(lambda: _shown(client, way, destination) == FILES)
    return Renamed(shown=seconds, blocked=blocked, waits=waits, crashed=time.monotonic() - died_at)


def _shown(client: Elasticsearch, way: Way, path: str) -> int:
    """How many files searches find below a path, now."""
    client.indices.refresh(index=way.alias)
    return int(client.count(index=way.alias, query={"term": {"path.tree": path}})["count"])


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("The rename does not come to its end")
        time.sleep(_LOOK_SECONDS)


def main(url: str, index: str, source: str, destination: str) -> None:
    """Rename a directory, in a process that is killed meanwhile."""
    with Elasticsearch(url) as client, Locks(client, owner="killed", index=f"{index}-locks") as locks:
        rename_directory(locks, client, index, source, destination)


if __name__ == "__main__":
    main(*sys.argv[1:])
