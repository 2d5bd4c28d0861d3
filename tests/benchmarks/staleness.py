"""How many documents are wrong for good, after concurrent changes and failures: syncer and its peers, one harness.

For each schema, contestant and disturbance, random writers (`random_writers`) change rows for some time, while the
disturbance takes place. A process that ends is started again within a second, as a service manager does. Then the
writers stop, and the contestant has at least a minute, and until it has been at rest for half a minute: it has not
written its index, and hardly used a processor. What differs from Postgres then is wrong for good: nothing will correct
it but another change of the same row. It is counted. Before the next disturbance those rows are changed once more; what
is still wrong then is not counted again. A contestant that is at work after ten minutes is behind, and not tried on.

Meanwhile an editor counts in the titles of fifty posts, and a reader asks for them by id: a read is wrong if it misses
such a post, or shows a smaller number than an earlier read.
"""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median

import elasticsearch
import psutil
import psycopg

from tests.benchmarks import flink_jars, job_queue
from tests.benchmarks.edits import Edits
from tests.benchmarks.gauges import cpu_seconds
from tests.benchmarks.job_queue import Callback
from tests.benchmarks.peers import PGSYNC_VERSION, Flink, Peer, PGSync, PGSyncDefault, logical
from tests.benchmarks.random_writers import OF_POST, WATCHED, callbacks
from tests.benchmarks.report import Figure, Run, SkippedError, percentile, say
from tests.benchmarks.world import SCHEMAS, WAYS, Bench, Blog, opensearch

_POSTS, _EDITS_PER_SECOND = 2_000, 20
_INTO_OPENSEARCH = " into OpenSearch"
_QUIET_SECONDS, _REST_SECONDS, _GIVE_UP_SECONDS = 60.0, 30.0, 600.0
_REST_CPU_SECONDS = 3.0
"""The processor time that a process may use in those seconds and still be at rest: it looks for work."""
_REVIVE_SECONDS = 1.0
_UNANSWERED = (
    elasticsearch.ApiError,
    elasticsearch.TransportError,
    psycopg.OperationalError,
    OSError,
    http.client.HTTPException,
    ValueError,  # no JSON
)


class Callbacks(Peer):
    """An application that keeps the index itself: what writes the index is what writes the rows."""

    def filled(self) -> Run:
        """Every document, as the SELECT has it."""
        return self.bare_loop(self.own_index())

    def start(self) -> None:
        """Nothing runs beside the application."""


class QueuedCallbacks(Callbacks):
    """The same with a queue of jobs and a worker beside the application."""

    @property
    def queue(self) -> str:
        """The file of the queue."""
        return str(self.folder / f"{self.name}.queue")

    def start(self) -> None:
        """Start the worker, unless it runs."""
        if not self.is_running:
            addresses = [self.dsn, self.endpoints.elasticsearch_url, self.alias, str(self.select_file), self.queue]
            self.launch([sys.executable, "-m", "tests.benchmarks.job_queue", *addresses], lambda: True)

    def is_settled(self) -> bool:
        """Whether no job waits, also for another try."""
        return job_queue.is_empty(self.queue)


@dataclass
class Contestant:
    """A process that keeps an index, beside the application or as a part of it; and the application, random writers."""

    blog: Blog
    writers: subprocess.Popen[bytes] | None = None
    is_behind: bool = False
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Connect the application to the index, if it keeps that by itself."""
        addresses = [self.blog.endpoints.elasticsearch_url, self.blog.alias, str(self.blog.select_file)]
        addresses += [self.blog.queue] if isinstance(self.blog, QueuedCallbacks) else []
        self.index = addresses if isinstance(self.blog, Callbacks) else []
        """Where the application keeps an index by itself, if it does."""
        self.saved: Callback = callbacks(self.blog.dsn, *self.index) if self.index else lambda *_: None

    def start_writers(self) -> None:
        """Start the random writers."""
        changes = SCHEMAS / self.blog.schema / "changes.yaml"
        command = [sys.executable, "-m", "tests.benchmarks.random_writers", self.blog.dsn, str(changes)]
        command += [str(next(self._seeds)), *self.index]
        with (self.blog.folder / "writers.log").open("ab") as log:
            self.writers = subprocess.Popen(command, stdout=log, stderr=log)

    def end_writers(self) -> None:
        """They finish what they do."""
        with self._changing:
            assert self.writers is not None
            process, self.writers = self.writers, None
            process.terminate()
            if process.wait(30) not in {0, -signal.SIGTERM}:  # a signal ends it before it has begun to write
                raise RuntimeError(f"the writers failed: {(self.blog.folder / 'writers.log').read_text()[-1000:]}")

    def kill(self) -> None:
        """SIGKILL; `revive` starts it again. An application is killed with the worker of its queue."""
        for process in (self.writers if self.index else None, self.blog.process):
            if process is not None:
                process.kill()
                process.wait()

    def revive(self, is_over: threading.Event) -> None:
        """Start again what has ended, until told to stop."""
        while not is_over.wait(_REVIVE_SECONDS):
            with self._changing:
                if self.writers is not None and self.writers.poll() is not None:
                    self.start_writers()
            # It has ended again, or a server is away: the next time, then.
            with suppress(SkippedError, AssertionError, *_UNANSWERED):
                self.blog.start()

    @contextmanager
    def written(self) -> Iterator[Edits]:
        """Write and watch meanwhile; whatever ends is started again until the contestant has come to rest."""
        edits = Edits(
            self.blog,
            range(1, WATCHED + 1),
            _EDITS_PER_SECOND,
            reads_all=True,
            survives=_UNANSWERED,
            saved=lambda post: self.saved(OF_POST, {"post": post}),
        )
        is_over = threading.Event()
        reviving = threading.Thread(target=self.revive, args=(is_over,))
        self.start_writers()
        reviving.start()
        try:
            with edits.beside():
                try:
                    yield edits
                finally:
                    self.end_writers()
            self.wait_until_right()
        finally:
            is_over.set()
            reviving.join()

    def wrong(self) -> set[str]:
        """The ids of documents that are missing, wrong, or too many."""
        try:
            return self.blog.wrong()
        except _UNANSWERED:
            return {"a server does not answer"}

    def wait_until_right(self) -> None:
        """Return once nothing is wrong, or the contestant has come to rest; or is behind."""
        began = changed_at = time.monotonic()
        known_total, used, self.is_behind = -1, 0.0, False
        while self.wrong():
            now = time.monotonic()
            with suppress(psutil.NoSuchProcess, *_UNANSWERED), self.blog.elasticsearch() as client:
                statistics = client.indices.stats(index=self.blog.alias, metric="indexing").body["_all"]["primaries"]
                total = statistics["indexing"]["index_total"] + statistics["indexing"]["delete_total"]
                spent = cpu_seconds(self.blog.pid)
                waits = isinstance(self.blog, QueuedCallbacks) and not self.blog.is_settled()
                if total != known_total or spent < used or spent > used + _REST_CPU_SECONDS or waits:
                    known_total, used, changed_at = total, spent, now
            self.is_behind = now - began > _GIVE_UP_SECONDS
            if self.is_behind or (now - began > _QUIET_SECONDS and now - changed_at > _REST_SECONDS):
                return
            time.sleep(1)

    def touch_wrong(self) -> set[str]:
        """Change the rows of what is wrong, so that the contestant corrects it itself; return what stays wrong."""
        if wrong := self.wrong():
            touch = "UPDATE posts SET body = body || '.' WHERE id = ANY(%s::bigint[]) RETURNING id"
            for (post,) in self.blog.sql(touch, list(wrong)):
                self.saved(OF_POST, {"post": post})
            self.wait_until_right()
        return self.wrong()


def staleness(bench: Bench) -> Iterator[Figure]:
    """Documents that are wrong for good after kills, restarts and concurrent changes: syncer, and its peers."""
    return _staleness(bench, "blog")


def staleness_links(bench: Bench) -> Iterator[Figure]:
    """The same for posts with two link tables."""
    return _staleness(bench, "links")


def _staleness(bench: Bench, schema: str) -> Iterator[Figure]:
    report = bench.report
    ways = {f"syncer {way}": uses_kafka for way, uses_kafka in WAYS.items()}
    ways_into_opensearch = {f"{name}{_INTO_OPENSEARCH}": uses_kafka for name, uses_kafka in ways.items()}
    kinds: dict[str, type[Peer]] = {
        "PGSync": PGSyncDefault,
        "PGSync, WAL mode": PGSync,
        "Flink SQL": Flink,
        "callbacks with a queue": QueuedCallbacks,
        "callbacks": Callbacks,
    }
    syncers = ways | ways_into_opensearch
    names = [name for name in (*syncers, *kinds) if not bench.contestants or name in bench.contestants]
    with ExitStack() as stack:
        servers = stack.enter_context(logical(bench))
        original = stack.enter_context(servers.blog(posts=_POSTS, schema=schema))
        has_opensearch = any(name in ways_into_opensearch for name in names)
        second = stack.enter_context(opensearch(servers)) if has_opensearch else servers
        for number, name in itertools.product(range(bench.passes), names):
            say(f"{name}, run {number + 1} of {bench.passes}")
            target = second if name in ways_into_opensearch else servers
            try:
                if name in syncers:
                    _try(name, target.blog(posts=_POSTS, schema=schema, uses_kafka=syncers[name]), target)
                else:
                    _try(name, kinds[name].of(original), target)
            except SkippedError as error:
                report.remarks.append(f"{name}, run {number + 1} is left out: {error}")
                say(report.remarks[-1])
    report.about = (
        f"{_POSTS:,} posts, {bench.seconds:.0f} s of random writers for each, then quiet; "
        f"medians of {bench.passes} runs; PGSync {PGSYNC_VERSION}, Flink {flink_jars.VERSION}"
    )
    for name in names:
        cells = [row for what, row in report.rows.items() if what.startswith(f"{name}: ")]
        if not cells:
            continue  # it was behind at once, as a remark says
        wrong = sum(median(cell["wrong for good"]) for cell in cells)
        yield Figure(f"{name}: wrong for good", wrong, at_most=0 if name.startswith("syncer") else None)
        yield Figure(f"{name}: wrong reads", sum(median(cell["wrong reads"]) for cell in cells))
        yield Figure(f"{name}: p99 without a disturbance", median(cells[0]["p99 ms"]), unit="ms")


def _try(name: str, opening: AbstractContextManager[Blog], bench: Bench) -> None:
    """All disturbances, one after the other: what is done after a third of the time, and after two thirds."""
    servers = bench.sandbox
    with opening as blog:
        contestant = Contestant(blog)
        if isinstance(blog, Peer):
            blog.filled()
        blog.start_idle()

        def restart_postgres() -> None:
            servers.postgres.stop()
            servers.postgres.start()

        disturbances: dict[str, list[Callable[[], object]]] = {
            "none": [],
            "killed twice": [contestant.kill, contestant.kill],
            f"{servers.elasticsearch.name} away": [servers.elasticsearch.stop, servers.elasticsearch.start],
            "Postgres restarted": [restart_postgres],
        }
        for what, acts in disturbances.items():
            wrong_before = contestant.touch_wrong()
            with contestant.written() as edits:
                for act in acts:
                    time.sleep(bench.seconds / 3)
                    act()
                time.sleep(bench.seconds * (3 - len(acts)) / 3)
            wrong = sorted(contestant.wrong() - wrong_before)
            if contestant.is_behind:
                remark = f"{name}, {what}: {len(wrong)} wrong after ten minutes, and still at work; not tried further"
                bench.report.remarks.append(remark)
                say(remark)
                return
            row = bench.report.rows.setdefault(f"{name}: {what}", {})
            for column, value in {
                "wrong for good": len(wrong),
                "wrong reads": edits.wrong_reads,
                "reads": edits.reads,
                "p99 ms": round(percentile([milliseconds for _, milliseconds in edits.seen] or [0.0], 99)),
            }.items():
                row.setdefault(column, []).append(value)
            if wrong:
                expected, indexed = blog.expected().get(wrong[0]) or {}, blog.held().get(wrong[0]) or {}
                example = {key: [expected.get(key), indexed.get(key)] for key in {**expected, **indexed}}
                differing = json.dumps({key: sides for key, sides in example.items() if sides[0] != sides[1]})[:500]
                bench.report.remarks.append(
                    f"{name}, {what}: {wrong[0]} differs, in Postgres and the index: {differing}"
                )
            say(f"{name}, {what}: {len(wrong)} wrong for good, {edits.wrong_reads} wrong reads")
