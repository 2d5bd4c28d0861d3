"""How many documents are wrong for good, after concurrent changes and failures: syncer and its peers, one harness.

For each contestant and each disturbance, random writers (`random_writers`) change a blog for some time, while the
disturbance takes place. A process that ends is started again within a second, as a service manager does. Then the
writers stop, and the contestant has at least a minute, and until its index was not written for half a minute. What
differs from Postgres then is wrong for good: nothing will mend it but another change of the same row. It is counted.
Before the next disturbance those rows are changed once more; what is still wrong then is not counted again.

Meanwhile an editor counts in the titles of fifty posts, and a reader asks for them by id: a read is wrong if it misses
such a post, or shows a smaller number than an earlier read.

A document counts as right whatever the order of its comments is, and whatever fields it has besides.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import elasticsearch
import psycopg

from syncer.sandbox import Sandbox
from tests.benchmarks import flink_setup, pgsync
from tests.benchmarks.flink import Flink
from tests.benchmarks.random_writers import OF_POST, WATCHED, Callbacks, callbacks
from tests.benchmarks.report import Figure, SkippedError, percentile, say
from tests.benchmarks.world import Bench, Blog, Peer

_POSTS = 2_000
_QUIET_SECONDS, _REST_SECONDS, _GIVE_UP_SECONDS = 60.0, 30.0, 600.0
_REVIVE_SECONDS = 1.0
_EDIT_SECONDS, _READ_SECONDS = 0.05, 0.01
_NUMBERS = itertools.count(1)
"""What the editor writes: never less than before, from one disturbance to the next."""
_UNANSWERED = (elasticsearch.ApiError, elasticsearch.TransportError, psycopg.OperationalError)


@dataclass
class Contestant:
    """A process that keeps an index: beside the application, or the application itself, by callbacks.

    Args:
        blog: Its tables and its index.
        start: Starts it the first time, and returns once its index equals the tables.
        again: Starts it again, without waiting.
        callbacks: Those of the application, if it keeps the index itself.
    """

    blog: Blog
    start: Callable[[], object] = lambda: None
    again: Callable[[], object] = lambda: None
    callbacks: Callbacks | None = None
    writers: subprocess.Popen[bytes] | None = None
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def start_writers(self) -> None:
        """Start the random writers."""
        command = [sys.executable, "-m", "tests.benchmarks.random_writers", self.blog.dsn, str(next(self._seeds))]
        if self.callbacks is not None:
            command += [self.blog.endpoints.elasticsearch_url, self.blog.alias]
            command += [str(self.blog.document_folder / "select.sql")]
        with (self.blog.folder / "writers.log").open("ab") as log:
            self.writers = subprocess.Popen(command, stdout=log, stderr=log)

    def end_writers(self) -> None:
        """They finish what they do."""
        with self._changing:
            assert self.writers is not None
            process, self.writers = self.writers, None
            process.terminate()
            if process.wait(30):
                raise RuntimeError(f"the writers failed: {(self.blog.folder / 'writers.log').read_text()[-1000:]}")

    def kill(self) -> None:
        """SIGKILL; `revive` starts it again."""
        process = self.blog.process if self.callbacks is None else self.writers
        assert process is not None
        process.kill()
        process.wait()

    def revive(self) -> None:
        """Start again what has ended."""
        with self._changing:
            if self.writers is not None and self.writers.poll() is not None:
                self.start_writers()
        with suppress(SkippedError, *_UNANSWERED):  # it has ended again, or a server is away: the next time, then
            if self.blog.process is not None and self.blog.process.poll() is not None:
                self.again()

    def saved(self, post: int) -> None:
        """Called by the application after it has saved a post."""
        if self.callbacks is not None:
            with suppress(psycopg.OperationalError):
                self.callbacks(OF_POST, {"post": post})


class Watch:
    """The editor and the reader of the watched posts.

    Attributes:
        milliseconds: From each commit of the editor until a read by id showed it or a later one.
        reads: How many reads there were.
        wrong_reads: How many of them missed a post, or went back.
    """

    def __init__(self, contestant: Contestant) -> None:
        self.milliseconds: list[float] = []
        self.reads = self.wrong_reads = 0
        self._blog = contestant.blog
        self._saved = contestant.saved
        self._stop = threading.Event()
        self._committed: dict[int, dict[int, float]] = {post: {} for post in range(1, WATCHED + 1)}
        """By post, when each number that no read has shown yet was committed."""
        self._shown = dict.fromkeys(self._committed, -1)
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._edit), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop both."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _edit(self) -> None:
        while not self._stop.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(self._blog.dsn, autocommit=True) as connection:
                while not self._stop.wait(_EDIT_SECONDS):
                    number = next(_NUMBERS)
                    post = 1 + number % WATCHED
                    connection.execute("UPDATE posts SET title = %s WHERE id = %s", [str(number), post])
                    with self._lock:
                        self._committed[post][number] = time.monotonic()
                    self._saved(post)

    def _read(self) -> None:
        with self._blog.elasticsearch() as client:
            while not self._stop.wait(_READ_SECONDS):
                with suppress(*_UNANSWERED):
                    found = client.mget(index=self._blog.alias, ids=[str(post) for post in self._shown], source="title")
                    now = time.monotonic()
                    for document in found.body["docs"]:
                        self._note(int(document["_id"]), document, now)

    def _note(self, post: int, document: dict[str, Any], now: float) -> None:
        if "error" in document:  # its shard is not there yet
            return
        self.reads += 1
        title = str(document["_source"]["title"]) if document.get("found") else ""
        number = int(title) if title.isdigit() else -1
        if not title or number < self._shown[post]:
            self.wrong_reads += 1
            return
        self._shown[post] = number
        with self._lock:
            waiting = self._committed[post]
            for shown in [other for other in waiting if other <= number]:
                self.milliseconds.append(1000 * (now - waiting.pop(shown)))


def staleness(bench: Bench) -> Iterator[Figure]:
    """Documents that are wrong for good after kills, restarts and concurrent changes: syncer, and its peers."""
    with ExitStack() as stack:
        try:
            folder = pgsync.system_bin_folder()
        except SkippedError as error:
            raise SkippedError(f"{error}; it is the one that all contestants share") from error
        logical = stack.enter_context(replace(bench, posts=_POSTS).logical(partial(pgsync.SystemPostgres, folder)))
        rows: dict[str, dict[str, Any]] = {}
        for name, make in _contestants(logical, stack).items():
            try:
                rows[name] = dict(_cells(name, make(), logical))
            except SkippedError as error:
                bench.report.remarks.append(f"{name} is left out: {error}")
    bench.report.about = (
        f"{_POSTS:,} posts, {bench.seconds:.0f} s of random writers for each, then quiet; "
        f"PGSync {pgsync.VERSION} (WAL mode), Flink {flink_setup.VERSION}"
    )
    bench.report.record["cells"] = rows
    for kind in ("wrong for good", "wrong reads", "p99 ms"):
        found = [[name, *(str(cell[kind]) for cell in cells.values())] for name, cells in rows.items()]
        bench.report.table((kind, *next(iter(rows.values()), {})), found)
    for name, cells in rows.items():
        wrong = sum(cell["wrong for good"] for cell in cells.values())
        yield Figure(f"{name}: wrong for good", wrong, at_most=0 if name.startswith("syncer") else None)
        yield Figure(f"{name}: wrong reads", sum(cell["wrong reads"] for cell in cells.values()))
        yield Figure(f"{name}: p99 without a disturbance", cells["none"]["p99 ms"], unit="ms")


def _contestants(bench: Bench, stack: ExitStack) -> dict[str, Callable[[], Contestant]]:
    """What makes each of them; the peers' databases are copies of one blog."""

    def syncer(way: str) -> Contestant:
        blog = stack.enter_context(replace(bench, way=way).blog(posts=bench.posts))
        return Contestant(blog, blog.start_idle, blog.restart)

    original = stack.enter_context(bench.blog(posts=bench.posts))

    def pg_sync() -> Contestant:
        peer = pgsync.PGSync.of(original)
        peer.program = pgsync.installed()

        def start() -> None:
            peer.fill()
            peer.listen()

        return Contestant(peer, start, peer.listen)

    def flink() -> Contestant:
        peer, java = Flink.of(original), flink_setup.java_command()
        return Contestant(peer, partial(peer.fill, java), partial(peer.recover, java))

    def application() -> Contestant:
        peer = Peer.of(original, name="callbacks")
        index = peer.loaded_like_it("callbacks")
        with peer.elasticsearch() as client:
            client.indices.put_alias(index=index, name=peer.alias)
        select = str(peer.document_folder / "select.sql")
        return Contestant(peer, callbacks=callbacks(peer.dsn, peer.endpoints.elasticsearch_url, peer.alias, select))

    return {
        "syncer without Kafka": partial(syncer, "without Kafka"),
        "syncer with Kafka": partial(syncer, "with Kafka"),
        "PGSync, WAL mode": pg_sync,
        "Flink SQL": flink,
        "callbacks": application,
    }


def _disturbances(contestant: Contestant, servers: Sandbox) -> dict[str, Sequence[Callable[[], object]]]:
    """What is done after a third of the time, and after two thirds."""

    def restart_postgres() -> None:
        servers.postgres.stop()
        servers.postgres.start()

    return {
        "none": [],
        "killed twice": [contestant.kill, contestant.kill],
        "Elasticsearch away": [servers.elasticsearch.stop, servers.elasticsearch.start],
        "Postgres restarted": [restart_postgres],
    }


def _cells(name: str, contestant: Contestant, bench: Bench) -> Iterator[tuple[str, dict[str, Any]]]:
    blog = contestant.blog
    say(f"{name}: starting")
    contestant.start()
    try:
        for what, acts in _disturbances(contestant, bench.sandbox).items():
            wrong_before = _touched(contestant)
            with _written(contestant) as watch:
                for act in acts:
                    time.sleep(bench.seconds / 3)
                    act()
                time.sleep(bench.seconds * (3 - len(acts)) / 3)
            wrong = sorted(_wrong(blog) - wrong_before)
            expected, held = blog.expected(), blog.held()
            examples = [{"id": id_, "Postgres": expected.get(id_), "index": held.get(id_)} for id_ in wrong[:2]]
            yield (
                what,
                {
                    "wrong for good": len(wrong),
                    "wrong reads": watch.wrong_reads,
                    "reads": watch.reads,
                    "p99 ms": round(percentile(watch.milliseconds or [0.0], 99)),
                    "examples": examples,
                },
            )
            say(f"{name}, {what}: {len(wrong)} wrong for good, {watch.wrong_reads} wrong reads")
    finally:
        blog.end()


@contextmanager
def _written(contestant: Contestant) -> Iterator[Watch]:
    """Write and watch meanwhile; whatever ends is started again until the contestant has come to rest."""
    contestant.start_writers()
    watch, is_over = Watch(contestant), threading.Event()

    def revive() -> None:
        while not is_over.wait(_REVIVE_SECONDS):
            contestant.revive()

    reviving = threading.Thread(target=revive)
    reviving.start()
    try:
        try:
            yield watch
        finally:
            contestant.end_writers()
            watch.end()
        _wait_until_right(contestant.blog)
    finally:
        is_over.set()
        reviving.join()


def _wrong(blog: Blog) -> set[str]:
    """The ids of documents that are missing, wrong, or too many."""
    try:
        expected, held = blog.expected(), blog.held()
    except _UNANSWERED:
        return {"a server does not answer"}
    return {id_ for id_ in expected.keys() | held.keys() if not _is_right(expected.get(id_), held.get(id_))}


def _is_right(expected: dict[str, Any] | None, held: dict[str, Any] | None) -> bool:
    if expected is None or held is None:
        return expected is held
    return _comparable({name: held.get(name) for name in expected}) == _comparable(expected)


def _comparable(document: dict[str, Any]) -> dict[str, Any]:
    """A document without what a job of Flink cannot say: the order of an array, an empty array."""
    comments = sorted(json.dumps(comment, sort_keys=True) for comment in document["comments"] or [])
    return {**document, "comments": comments, "created": datetime.fromisoformat(document["created"])}


def _wait_until_right(blog: Blog) -> None:
    """Return once nothing is wrong, or the contestant has come to rest; one that begins anew for ever never does."""
    began = last = time.monotonic()
    written = -1
    while _wrong(blog):
        now = time.monotonic()
        with suppress(*_UNANSWERED), blog.elasticsearch() as client:
            found = client.indices.stats(index=blog.alias, metric="indexing").body["_all"]["primaries"]["indexing"]
            if (total := found["index_total"] + found["delete_total"]) != written:
                written, last = total, now
        if now - began > _QUIET_SECONDS and (now - last > _REST_SECONDS or now - began > _GIVE_UP_SECONDS):
            return
        time.sleep(1)


def _touched(contestant: Contestant) -> set[str]:
    """Change the rows of what is wrong, so that the contestant mends it itself; what is wrong nevertheless."""
    blog = contestant.blog
    if wrong := _wrong(blog):
        found = blog.sql("UPDATE posts SET body = body || '.' WHERE id = ANY(%s::bigint[]) RETURNING id", list(wrong))
        for (post,) in found:
            contestant.saved(post)
        _wait_until_right(blog)
    return _wrong(blog)
