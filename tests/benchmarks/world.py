"""The worlds that are measured: servers, a blog of N posts in Postgres and in an index, and its daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import psycopg
from elasticsearch import Elasticsearch

from syncer.elasticsearch.indices import GC_DELETES_SECONDS
from syncer.jobs import model
from syncer.monitoring import status
from syncer.sandbox import Endpoints, Sandbox
from syncer.sandbox.servers import PostgresServer
from tests.benchmarks import contest, references
from tests.benchmarks.contest import PROCESS, Contest, Run, in_turns, run_command
from tests.benchmarks.report import Report, SkippedError, say
from tests.benchmarks.writes import sampled
from tests.support import preloaded
from tests.support.world import BLOG_SCHEMA, Daemon, World

WAYS: Mapping[str, Mapping[str, str]] = {"with Kafka": {}, "without Kafka": {"SYNCER_KAFKA_BOOTSTRAP_SERVERS": ""}}
"""The ways to run syncer, and the environment of its commands and daemons in each."""
LARGE_AUTHOR, MIDDLE_AUTHOR = 1001, 1002
_MIDDLE, _OTHERS = 5_000, 20_000
_DATA = Path(__file__).with_name("data.sql")
_MERGE_SECONDS, _SETTLE_SECONDS = 1800, 600.0
_QUIET = {"SYNCER_LOG_LEVEL": "info"}  # a daemon logs each batch in tests only
_SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND application_name NOT IN ('', 'pgbench')
"""
_JOB_SECONDS = """
SELECT extract(epoch FROM finished_at - created_at)::float8 FROM syncer.job WHERE kind = %s ORDER BY id DESC LIMIT 1
"""
_World = TypeVar("_World", bound=World)


@dataclass(kw_only=True)
class Blog(World):
    """Posts in the tables of ``syncer/demo/blog.sql``, the document ``config/documents/blogpost``, and its daemon.

    Of so many posts, the first `large` ones are of `LARGE_AUTHOR`, and the next `middle` ones of `MIDDLE_AUTHOR`. The
    others are dealt out among a thousand authors.
    """

    posts: int = 0
    large: int = 0
    middle: int = 0
    is_preloaded: bool = False
    edit: str = "UPDATE posts SET title = %s WHERE id = %s"
    running: Daemon | None = None

    @property
    def others(self) -> range:
        """The posts of the thousand authors."""
        return range(self.large + self.middle + 1, self.posts + 1)

    @property
    def bodies(self) -> Path:
        """What the ceiling sends."""
        return self.folder / "bodies"

    def load(self) -> None:
        """Fill the tables, put the document active, and write every document once."""
        say(f"making a blog of {self.posts:,} posts")
        self.make()
        self.sql(BLOG_SCHEMA.read_text())
        data = _DATA.read_text()
        for name in ("posts", "large", "middle"):
            data = data.replace(f":{name}", str(getattr(self, name)))
        self.sql(data)
        references.prebuild(self.dsn, (self.document_folder / "select.sql").read_text(), self.posts, self.bodies)
        self.command("migrate")
        self.command("apply", "--yes")

    @contextmanager
    def elasticsearch(self) -> Iterator[Elasticsearch]:
        """A client that has time."""
        with Elasticsearch(self.endpoints.elasticsearch_url, request_timeout=_MERGE_SECONDS) as client:
            yield client

    # Runs, each in a process of its own

    def command(self, *arguments: str) -> Run:
        """A command of syncer, with no daemon beside it."""
        command = [sys.executable, "-m", "syncer", *arguments]
        return run_command(command, self.posts, sandbox=self.sandbox, environment=self.environment)

    def job_seconds(self, kind: str) -> float:
        """From when the last job of that kind was created until its last chunk was done."""
        return float(self.sql(_JOB_SECONDS, kind)[0][0])

    def bare_loop(self, index: str, *, first: int = 1, last: int | None = None) -> Run:
        """The bare loop over these posts, by default over all, into a settled index."""
        self.settle(index)
        last = last or self.posts
        where = (self.dsn, self.endpoints.elasticsearch_url, index, self.document_folder / "select.sql")
        command = references.command("bare_loop", *where, f"{first}-{last}")
        return run_command(command, last - first + 1, sandbox=self.sandbox)

    def ceiling(self, index: str, *, in_flight: int = 4) -> Run:
        """The ceiling, into a settled index."""
        self.settle(index)
        command = references.command("ceiling", self.endpoints.elasticsearch_url, index, self.bodies, in_flight)
        return run_command(command, self.posts, sandbox=self.sandbox)

    # Its daemon

    @property
    def process(self) -> subprocess.Popen[bytes] | preloaded.Command | None:
        """What writes its index, if it was started."""
        return self.running.process if self.running else None

    @property
    def pid(self) -> int | None:
        """Its number."""
        return self.process.pid if self.process else None

    def start(self, *, program: tuple[str, ...] = ("syncer",), environment: Mapping[str, str] | None = None) -> None:
        """Start a daemon, unless one runs; another program may run it in its own way."""
        if self.running is None:
            self.running = self.daemon(program=program, environment={**_QUIET, **(environment or {})})

    def restart(self) -> None:
        """Start another daemon in place of one that has ended."""
        self.running = self.daemon(environment=_QUIET)

    def start_idle(self, *, environment: Mapping[str, str] | None = None) -> None:
        """Start a daemon, let it write something, and wait until nothing is on its way."""
        self.start(environment=environment)
        self.sql("UPDATE posts SET title = title || ' ' WHERE id = %s", self.posts)
        self.wait_settled()

    def stop(self, *, kill: bool = False) -> int:
        """Stop the daemon, if one runs, or kill it; the most memory that it had."""
        if self.running is None:
            return 0
        peak, daemon, self.running = contest.peak_bytes(self.pid), self.running, None
        if kill:
            daemon.kill()
        elif daemon.stop() != 0:
            raise RuntimeError(f"The daemon failed: {daemon.log_file.read_text()[-2000:]}")
        return peak

    def end(self) -> None:
        """Kill the daemon, if one runs."""
        self.stop(kill=True)

    def cpu_seconds(self) -> dict[str, float]:
        """What the process has used so far, and the servers for it: of Postgres, its sessions only."""
        sessions = 0.0
        for (pid,) in self.sql(_SESSIONS):
            with suppress(psutil.NoSuchProcess):
                sessions += contest.cpu_seconds(pid)
        servers = contest.server_seconds(self.sandbox)
        return {PROCESS: contest.cpu_seconds(self.pid), **servers, "Postgres": sessions}

    def measured(
        self,
        work: Callable[[], object],
        documents: int,
        *,
        then: Callable[[], object] = lambda: None,
        settled: Callable[[], bool] | None = None,
    ) -> Run:
        """Do something that makes the process write so many documents, and measure until the last is written.

        Args:
            work: Time counts from its end, the commit; if it starts the process, from its beginning.
            documents: The least number of writes.
            then: What else to do once time counts.
            settled: Whether nothing is on its way; by default as the daemon says.
        """
        is_running, before = self.pid is not None, contest.cpu_seconds(self.pid)
        with (
            contest.servers_measured(self.sandbox) as used,
            sampled(self.endpoints.elasticsearch_url, self.alias) as writes,
        ):
            began = time.monotonic()
            work()
            began = time.monotonic() if is_running else began
            then()
            span = writes.wait(documents, settled=settled or self.is_settled)
        assert self.pid is not None
        return Run(
            documents=documents,
            seconds=span.last_at - began,
            cpu_seconds={PROCESS: contest.cpu_seconds(self.pid) - before, **used},
            peak_bytes=contest.peak_bytes(self.pid),
            writes=span.writes,
            first_seconds=span.first_at - began,
        )

    def has_no_job(self) -> bool:
        """Whether no job is left to be done."""
        with self.connect() as connection:
            return not model.unfinished(connection)

    def is_settled(self) -> bool:
        """Whether every change is done: nothing waits in the outbox, in the topic, or in a job."""
        with self.connect() as connection:
            stored = status.ask_postgres(connection)
        return not (stored.outbox_waiting or stored.topic_waiting or stored.jobs)

    def wait_settled(self) -> None:
        """Return once every change is done."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not self.is_settled():
            if time.monotonic() > deadline:
                raise TimeoutError("The daemon does not come to the end of its work")
            time.sleep(0.1)

    # Indices

    def index_like_it(self, name: str) -> str:
        """An empty index with the settings and the mapping of syncer's own."""
        index = f"{self.alias}-{name}"
        body = json.loads((self.document_folder / "index.json").read_text())
        settings = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s", **body["settings"]}
        with self.elasticsearch() as client:
            client.indices.delete(index=index, ignore_unavailable=True)
            client.indices.create(index=index, settings=settings, mappings=body["mappings"])
        return index

    def loaded_like_it(self, name: str) -> str:
        """Such an index with every document, for a reference that overwrites."""
        index = self.index_like_it(name)
        self.ceiling(index)
        return index

    def settle(self, index: str | None = None) -> None:
        """Bring an index, by default syncer's own, and the tables into the state in which each run begins.

        The index: one segment without deleted documents, on disk, and used by a search. The tables: no dead rows, no
        dirty pages.
        """
        index = index or self.alias
        with self.elasticsearch() as client:
            # Otherwise Elasticsearch keeps what was overwritten for hours, and an index that was written more often
            # merges more. It looks at this setting every 30 s.
            client.indices.put_settings(index=index, settings={"index.soft_deletes.retention_lease.period": "0s"})
            client.indices.forcemerge(index=index, max_num_segments=1)
            while client.indices.stats(index=index, metric="docs").body["_all"]["primaries"]["docs"]["deleted"]:
                time.sleep(1)
                client.indices.flush(index=index, force=True)  # this makes it notice what it may drop
                client.indices.forcemerge(index=index, max_num_segments=1)
            client.indices.flush(index=index)
            found = client.search(index=index, size=0, track_total_hits=True).body["hits"]["total"]["value"]
        if found not in (0, self.posts):
            raise RuntimeError(f"{index} has {found:,} documents, not {self.posts:,}")
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE users, posts, comments")
            connection.execute("CHECKPOINT")

    def count(self, **query: Any) -> int:
        """How many documents a search finds once everything that is written can be found."""
        with self.elasticsearch() as client:
            client.indices.refresh(index=self.alias)
            return int(client.count(index=self.alias, query=query).body["count"])

    def check(self, documents: int, **query: Any) -> None:
        """Fail unless a search finds so many documents."""
        if (found := self.count(**query)) != documents:
            raise RuntimeError(f"{found:,} documents show the change, not {documents:,}")


@dataclass(kw_only=True)
class Peer(Blog):
    """A program that does syncer's work, on a copy of a blog's tables in a database without syncer."""

    launched: subprocess.Popen[bytes] | None = None

    @classmethod
    def of(cls, blog: Blog, *, name: str = "") -> Self:
        """The copy; its database ends with the server, and its index with the blog."""
        name = f"{blog.name}_{name or cls.__name__.lower()}"
        peer = cls(sandbox=blog.sandbox, endpoints=blog.endpoints, folder=blog.folder, name=name)
        peer.posts, peer.large = blog.posts, blog.large
        with psycopg.connect(blog.endpoints.postgres_dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{blog.name}"')
        peer.sql("DROP SCHEMA syncer CASCADE")
        return peer

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """What writes its index, if it was started."""
        return self.launched

    def launch(
        self,
        command: list[str],
        environment: Mapping[str, str],
        *,
        cwd: Path | None = None,
        is_ready: Callable[[], bool],
        seconds: float,
    ) -> None:
        """Start it, and return once it is ready."""
        log_file, deadline = self.folder / f"{self.name}.log", time.monotonic() + seconds
        with log_file.open("ab") as log:
            self.launched = process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=cwd or self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SkippedError(f"{type(self).__name__} does not start: {log_file.read_text()[-1500:]}")
            time.sleep(0.05)

    def end(self) -> None:
        """End it, if it runs."""
        if self.launched is not None:
            self.launched.terminate()
            self.launched.wait()
            self.launched = None


@dataclass
class Bench:
    """What a benchmark works with: the servers, how much to measure, and the report."""

    sandbox: Sandbox
    endpoints: Endpoints
    posts: int = 100_000
    passes: int = 3
    seconds: float = 30
    way: str = "with Kafka"
    report: Report = field(default_factory=Report)
    _made: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def even(self) -> Blog:
        """So many posts, a thousand authors."""
        return self._made.enter_context(self.blog(posts=self.posts))

    @cached_property
    def crowded(self) -> Blog:
        """One author has so many posts, another 5,000, and others share 20,000."""
        posts = self.posts + _MIDDLE + _OTHERS
        return self._made.enter_context(self.blog(posts=posts, large=self.posts, middle=_MIDDLE))

    @contextmanager
    def blog(self, *, posts: int, large: int = 0, middle: int = 0) -> Iterator[Blog]:
        """A blog that is dropped at the end."""
        with self.world(Blog, posts=posts, large=large, middle=middle) as blog:
            blog.load()
            yield blog

    @contextmanager
    def world(self, kind: type[_World], **arguments: Any) -> Iterator[_World]:
        """A world with nothing in it, which is dropped at the end."""
        with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
            world = kind(self.sandbox, self.endpoints, Path(folder), is_preloaded=False, **arguments)
            world.worker_settings |= WAYS[self.way]
            try:
                yield world
            finally:
                world.unmake()

    @contextmanager
    def logical(self, postgres_of: Callable[[Path], PostgresServer]) -> Iterator[Bench]:
        """The same with a Postgres of its own, with ``wal_level = logical``, made for the folder of a sandbox."""
        with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
            Path(folder).chmod(0o755)  # for root's servers, which run as nobody
            sandbox = Sandbox(Path(folder))
            sandbox.postgres = postgres = postgres_of(sandbox.folder)
            sandbox.kafka, sandbox.elasticsearch = self.sandbox.kafka, self.sandbox.elasticsearch
            postgres.settings |= {"wal_level": "logical", "max_wal_size": "2GB"}
            postgres.start()
            try:
                endpoints = replace(self.endpoints, postgres_dsn=postgres.address)
                yield replace(self, sandbox=sandbox, endpoints=endpoints, _made=ExitStack())
            finally:
                postgres.stop()

    def contest(self, contestants: Mapping[str, Callable[[], Run]], about: str = "") -> Contest:
        """Let all contestants run in turns, and report the runs if told what this is about.

        What a contestant does before its run is not timed.
        """
        runs: dict[str, list[Run]] = {}
        for name, found in in_turns(contestants, self.passes).items():
            runs[name] = found
            for part in found[0].parts:  # the processor time is known of the whole only
                runs[f"{name}, {part}"] = [replace(run, seconds=run.parts[part], cpu_seconds={}) for run in found]
        if about:
            Contest(runs).enter(self.report, f"{about}; median of {self.passes}")
        return Contest(runs)

    def close(self) -> None:
        """Drop the blogs that were made."""
        self._made.close()
