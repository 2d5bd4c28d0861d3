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
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import elasticsearch
import psycopg

from tests.benchmarks import flink_setup, pgsync
from tests.benchmarks.flink import Flink, comparable
from tests.benchmarks.random_writers import OF_POST, WATCHED, Callbacks, callbacks
from tests.benchmarks.report import Figure, SkippedError, percentile, say
from tests.benchmarks.world import Bench, Blog, Peer

_POSTS = 2_000
_QUIET_SECONDS, _REST_SECONDS = 60.0, 30.0
_REVIVE_SECONDS = 1.0
_EDIT_SECONDS, _READ_SECONDS = 0.05, 0.01
_NUMBERS = itertools.count(1)
"""What the editor writes: never less than before, from one disturbance to the next."""
_UNANSWERED = (elasticsearch.ApiError, elasticsearch.TransportError, psycopg.OperationalError)


@dataclass
class Contestant:
    """What keeps an index: by default nothing that runs beside the application, and of which the application knows."""

    blog: Blog

    def start(self) -> None:
        """Start it with an index that equals the tables."""

    def revive(self) -> None:
        """Start it again, if it has ended."""

    def kill(self) -> None:
        """SIGKILL."""

    def end(self) -> None:
        """End it."""

    def application(self) -> list[str]:
        """More arguments of the random writers."""
        return []

    def saved(self, post: int) -> None:
        """Called by the application after it has saved a post."""


@dataclass
class Syncer(Contestant):
    """syncer, in one of its ways of running."""

    _starting: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start its daemon; the index was filled with the blog."""
        self.blog.start_idle()

    def revive(self) -> None:
        """Start it again, if it has ended."""
        with self._starting:
            if self.blog.running is not None and self.blog.running.process.poll() is not None:
                self.blog.running = None
                self.blog.start()

    def kill(self) -> None:
        """SIGKILL; `revive` starts it again."""
        with self._starting:
            assert self.blog.running is not None
            self.blog.running.kill()

    def end(self) -> None:
        """End it."""
        self.blog.stop(kill=True)


@dataclass
class Other(Contestant):
    """A peer that is a process of its own.

    Args:
        fill: Starts it the first time, and returns once its index is full.
        again: Starts it again, without waiting.
    """

    blog: Peer
    fill: Callable[[], object]
    again: Callable[[], object]

    def start(self) -> None:
        """Start it."""
        self.fill()

    def revive(self) -> None:
        """Start it again, if it has ended."""
        if self.blog.process is not None and self.blog.process.poll() is not None:
            with suppress(SkippedError, *_UNANSWERED):  # it has ended again, or a server is away: the next time, then
                self.again()

    def kill(self) -> None:
        """SIGKILL."""
        assert self.blog.process is not None
        self.blog.process.kill()
        self.blog.process.wait()

    def end(self) -> None:
        """End it."""
        self.blog.end()


@dataclass
class InApplication(Contestant):
    """Callbacks in the application: see `random_writers`."""

    writers: Writers | None = None

    def kill(self) -> None:
        """Kill the application: between a commit and its callback, or elsewhere."""
        assert self.writers is not None
        self.writers.kill()

    def application(self) -> list[str]:
        """Where the application indexes."""
        return [self.blog.endpoints.elasticsearch_url, self.blog.alias, str(self.blog.document_folder / "select.sql")]

    def saved(self, post: int) -> None:
        """Index it."""
        with suppress(psycopg.OperationalError):
            self._callbacks(OF_POST, {"post": post})

    @cached_property
    def _callbacks(self) -> Callbacks:
        return callbacks(self.blog.dsn, *self.application())


class Writers:
    """The random writers, started again when they were killed."""

    def __init__(self, blog: Blog, arguments: list[str]) -> None:
        self._blog, self._arguments, self._seed = blog, arguments, 0
        self._start()

    def _start(self) -> None:
        self._seed += 1
        command = [sys.executable, "-m", "tests.benchmarks.random_writers", self._blog.dsn, str(self._seed)]
        with (self._blog.folder / "writers.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *self._arguments], stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL, and start others."""
        self._process.kill()
        self._process.wait()
        self._start()

    def end(self) -> None:
        """SIGTERM; they finish what they do."""
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(30):
            raise RuntimeError(f"the writers failed: {(self._blog.folder / 'writers.log').read_text()[-1000:]}")


@dataclass(kw_only=True)
class Seen:
    """What the reader saw.

    Args:
        milliseconds: From each commit of the editor until a read by id showed it or a later one.
        wrong_reads: How many reads missed a post, or went back.
        reads: How many reads there were.
    """

    milliseconds: list[float] = field(default_factory=list)
    wrong_reads: int = 0
    reads: int = 0


class Watch:
    """The editor and the reader of the watched posts."""

    def __init__(self, contestant: Contestant) -> None:
        self.seen = Seen()
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

    def end(self) -> Seen:
        """Stop both; what was seen."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.seen

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
        self.seen.reads += 1
        title = str(document["_source"]["title"]) if document.get("found") else ""
        number = int(title) if title.isdigit() else -1
        if not title or number < self._shown[post]:
            self.seen.wrong_reads += 1
            return
        self._shown[post] = number
        with self._lock:
            waiting = self._committed[post]
            for shown in [other for other in waiting if other <= number]:
                self.seen.milliseconds.append(1000 * (now - waiting.pop(shown)))


def staleness(bench: Bench) -> Iterator[Figure]:
    """Documents that are wrong for good after kills, restarts and concurrent changes: syncer, and its peers."""
    with ExitStack() as stack:
        plain = replace(bench, posts=_POSTS)
        try:
            folder = pgsync.system_bin_folder()
        except SkippedError as error:
            raise SkippedError(f"{error}; it is the one that all contestants share") from error
        logical = stack.enter_context(plain.logical(partial(pgsync.SystemPostgres, folder)))
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
        bench.report.table((kind, *DISTURBANCES), found)
    for name, cells in rows.items():
        wrong = sum(cell["wrong for good"] for cell in cells.values())
        yield Figure(f"{name}: wrong for good", wrong, at_most=0 if name.startswith("syncer") else None)
        yield Figure(f"{name}: wrong reads", sum(cell["wrong reads"] for cell in cells.values()))
        yield Figure(f"{name}: p99 without a disturbance", cells["none"]["p99 ms"], unit="ms")


def _contestants(bench: Bench, stack: ExitStack) -> dict[str, Callable[[], Contestant]]:
    """What makes each of them; the peers' databases are copies of one blog."""

    def syncer(way: str) -> Contestant:
        return Syncer(stack.enter_context(replace(bench, way=way).blog(posts=bench.posts)))

    original = stack.enter_context(bench.blog(posts=bench.posts))

    def pg_sync(kind: type[pgsync.PGSync]) -> Contestant:
        peer = kind.of(original)
        peer.program = pgsync.installed()
        return Other(peer, fill=partial(_filled, peer), again=peer._start)

    def flink() -> Contestant:
        peer, java = Flink.of(original), flink_setup.java_command()
        return Other(peer, fill=partial(peer.fill, java), again=partial(peer.recover, java))

    return {
        "syncer without Kafka": partial(syncer, "without Kafka"),
        "syncer with Kafka": partial(syncer, "with Kafka"),
        "PGSync, WAL mode": partial(pg_sync, pgsync.PGSync),
        "PGSync, with Redis": partial(pg_sync, pgsync.PGSyncWithRedis),
        "Flink SQL": flink,
        "callbacks": lambda: InApplication(Application.of(original)),
    }


class Application(Peer):
    """A blog whose application keeps the index."""

    @classmethod
    def of(cls, blog: Blog) -> Application:
        """A copy, with an index that is full."""
        made = super().of(blog)
        index = made.loaded_like_it("callbacks")
        with made.elasticsearch() as client:
            client.indices.put_alias(index=index, name=made.alias)
        return made


def _filled(peer: pgsync.PGSync) -> None:
    peer.fill()
    peer._start()


def _cells(name: str, contestant: Contestant, bench: Bench) -> Iterator[tuple[str, dict[str, Any]]]:
    blog = contestant.blog
    say(f"{name}: starting")
    contestant.start()
    try:
        for what, disturb in DISTURBANCES.items():
            wrong_before = _touched(contestant)
            with _written(contestant) as seen:
                disturb(contestant, bench)
            wrong = sorted(_wrong(blog) - wrong_before)
            examples = _examples(blog, wrong[:2])
            yield (
                what,
                {
                    "wrong for good": len(wrong),
                    "wrong reads": seen.wrong_reads,
                    "reads": seen.reads,
                    "p99 ms": round(percentile(seen.milliseconds or [0.0], 99)),
                    "examples": examples,
                },
            )
            say(f"{name}, {what}: {len(wrong)} wrong for good, {seen.wrong_reads} wrong reads")
    finally:
        contestant.end()


@contextmanager
def _written(contestant: Contestant) -> Iterator[Seen]:
    """Write and watch meanwhile; whatever ends is started again."""
    writers = Writers(contestant.blog, contestant.application())
    if isinstance(contestant, InApplication):
        contestant.writers = writers
    watch, is_over = Watch(contestant), threading.Event()

    def revive() -> None:
        while not is_over.wait(_REVIVE_SECONDS):
            contestant.revive()

    reviving = threading.Thread(target=revive)
    reviving.start()
    try:
        try:
            yield watch.seen
        finally:
            writers.end()
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


def _examples(blog: Blog, ids: list[str]) -> list[dict[str, Any]]:
    expected, held = blog.expected(), blog.held()
    return [{"id": id_, "Postgres": expected.get(id_), "index": held.get(id_)} for id_ in ids]


def _is_right(expected: dict[str, Any] | None, held: dict[str, Any] | None) -> bool:
    if expected is None or held is None:
        return expected is held
    shown = {name: held.get(name) for name in expected}
    return comparable(shown) == comparable(expected)


def _wait_until_right(blog: Blog) -> None:
    """Return once nothing is wrong, or the contestant has come to rest."""
    began = last = time.monotonic()
    written = -1
    while _wrong(blog):
        now = time.monotonic()
        if (found := _written_documents(blog)) != written:
            written, last = found, now
        if now - began > _QUIET_SECONDS and now - last > _REST_SECONDS:
            return
        time.sleep(1)


def _written_documents(blog: Blog) -> int:
    """How often its index was written, ever."""
    with suppress(*_UNANSWERED), blog.elasticsearch() as client:
        total = client.indices.stats(index=blog.alias, metric="indexing").body["_all"]["primaries"]["indexing"]
        return int(total["index_total"] + total["delete_total"])
    return -1


def _touched(contestant: Contestant) -> set[str]:
    """Change the rows of what is wrong, so that the contestant mends it itself; what is wrong nevertheless."""
    blog = contestant.blog
    if wrong := _wrong(blog):
        found = blog.sql("UPDATE posts SET body = body || '.' WHERE id = ANY(%s::bigint[]) RETURNING id", list(wrong))
        for (post,) in found:
            contestant.saved(post)
        _wait_until_right(blog)
    return _wrong(blog)


# Disturbances


def _thirds(bench: Bench, *acts: Callable[[], object]) -> None:
    """Wait a third of the time before each of these acts, and for what is left after them."""
    for act in acts:
        time.sleep(bench.seconds / 3)
        act()
    time.sleep(bench.seconds * (3 - len(acts)) / 3)


def _none(_: Contestant, bench: Bench) -> None:
    _thirds(bench)


def _killed_twice(contestant: Contestant, bench: Bench) -> None:
    _thirds(bench, contestant.kill, contestant.kill)


def _elasticsearch_restarted(_: Contestant, bench: Bench) -> None:
    server = bench.sandbox.elasticsearch
    _thirds(bench, server.stop, server.start)


def _postgres_restarted(_: Contestant, bench: Bench) -> None:
    server = bench.sandbox.postgres

    def restart() -> None:
        server.stop()
        server.start()

    _thirds(bench, restart)


DISTURBANCES: dict[str, Callable[[Contestant, Bench], None]] = {
    "none": _none,
    "killed twice": _killed_twice,
    "Elasticsearch away": _elasticsearch_restarted,
    "Postgres restarted": _postgres_restarted,
}
