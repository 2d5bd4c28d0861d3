"""The world that is measured: servers, posts in Postgres and in an index, and a daemon; and how it is changed."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import psycopg
from elasticsearch import Elasticsearch

from syncer.elasticsearch.client import open_client
from syncer.elasticsearch.shortcomings import GC_DELETES_SECONDS
from syncer.monitoring import status
from syncer.sandbox import Endpoints, Sandbox, Versions
from syncer.sandbox.server import LASTING_JAVA
from syncer.sandbox.servers import ElasticsearchServer
from tests.benchmarks import gauges, references
from tests.benchmarks.report import PROCESS, Report, Run, say
from tests.support import preloaded
from tests.support.world import BLOG_SCHEMA, World, nodes_of_its_own, wait_until

WAYS = {"without Kafka": False, "with Kafka": True}
"""The ways to run syncer: whether its daemons and commands use Kafka."""
SCHEMAS = Path(__file__).parent / "schemas"
LARGE_AUTHOR, _MIDDLE_AUTHOR, _SMALL_AUTHOR = 1001, 1002, 1
EDITOR = "editor"
"""The name of sessions that edit: what they use is not the cost of keeping an index."""
ONE_TRANSACTION = "UPDATE posts SET title = 'Post ' || id || ' {token}' WHERE id <= {posts}"
_TRANSACTION_EACH = """
DO $$ BEGIN
    FOR n IN 1..{posts} LOOP
        UPDATE posts SET title = 'Post ' || id || ' {token}' WHERE id = n;
        COMMIT;
    END LOOP;
END $$
"""
RENAME = "UPDATE users SET name = '{token}' WHERE id = {author}"
_SCATTERED = "UPDATE posts SET title = 'Post ' || id || ' {token}' WHERE id = ANY ('{posts}')"
_MIDDLE, _OTHERS = 5_000, 20_000
_MERGE_SECONDS, _SETTLE_SECONDS, _END_SECONDS = 1800, 600.0, 120.0
QUIET = {"SYNCER_LOG_LEVEL": "info"}  # a daemon logs each batch in tests only
_SESSIONS = f"""
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type IN ('client backend', 'walsender')
    AND application_name NOT IN ('{EDITOR}', 'pgbench') AND pid <> pg_backend_pid()
"""
_OWN_SESSIONS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'syncer %%'"
_JOB_SECONDS = """
SELECT extract(epoch FROM finished_at - created_at)::float8 FROM syncer.job WHERE kind = %s ORDER BY id DESC LIMIT 1
"""


def token() -> str:
    """A word that no document has yet."""
    return f"t{uuid.uuid4().hex}"


@dataclass(kw_only=True)
class Blog(World):
    """Posts in tables, the document ``blogpost``, and the process that keeps its index: a daemon, once it is started.

    Of so many posts, the first `large` ones are of one author, and the next `middle` ones of another. The others are
    dealt out among a thousand authors.

    Args:
        schema: A folder of `SCHEMAS`: data, and how applications change them. The blog's tables and its document are
            those that are shipped.
        sentences: In the body of each post, some 100 bytes each.
        replicas: Of its index.
        is_merged: Whether a run begins with one segment without deleted documents, or with those that there are.
    """

    schema: str = "blog"
    posts: int = 0
    large: int = 0
    middle: int = 0
    sentences: int = 10
    replicas: int = 0
    is_merged: bool = True
    first_fill: Run | None = None
    is_preloaded: bool = False
    edit: str = "UPDATE posts SET title = %s WHERE id = %s"
    process: subprocess.Popen[bytes] | preloaded.Command | None = None
    title: str = "syncer"

    @property
    def others(self) -> list[int]:
        """The posts of the thousand authors, in any order."""
        posts = range(self.large + self.middle + 1, self.posts + 1)
        return random.sample(posts, len(posts))

    @property
    def select_file(self) -> Path:
        """The document's SELECT."""
        return self.document_folder / "select.sql"

    @property
    def index_file(self) -> Path:
        """Settings and mapping of its index."""
        return self.document_folder / "index.json"

    def load(self) -> None:
        """Fill the tables, put the document active, and write every document once."""
        say(f"making {self.posts:,} posts: {self.schema}")
        folder = SCHEMAS / self.schema
        self.make()
        for name in ("select.sql", "index.json"):
            if (folder / name).exists():
                shutil.copy(folder / name, self.document_folder / name)
        body = json.loads(self.index_file.read_text())
        body["settings"]["number_of_replicas"] = self.replicas
        self.index_file.write_text(json.dumps(body))
        schema = folder / "schema.sql"
        self.sql((schema if schema.exists() else BLOG_SCHEMA).read_text())
        statements = (folder / "data.sql").read_text()
        for name in ("posts", "large", "middle", "sentences"):
            statements = statements.replace(f":{name}", str(getattr(self, name)))
        self.sql(statements)
        self.command("migrate")
        self.first_fill = self.command("apply", "--yes", part="filling")

    def elasticsearch(self) -> Elasticsearch:
        """A client that has time."""
        return open_client(self.endpoints.elasticsearch_url, request_timeout=_MERGE_SECONDS)

    # The process that keeps the index

    @property
    def pid(self) -> int | None:
        """Its number, if it was started."""
        return self.process.pid if self.process else None

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, unless it runs."""
        if not self.is_running:
            self.process = self.daemon(environment=QUIET).process

    def start_idle(self) -> None:
        """Start it, let it write something, and wait until nothing is in flight."""
        self.start()
        self.sql("UPDATE posts SET title = title || ' ' WHERE id = %s", self.posts)
        self.wait_settled()

    def stop(self, *, kill: bool = False) -> None:
        """Stop it, or kill it, if it was started."""
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        if process.wait(_END_SECONDS) and not kill:
            raise RuntimeError(f"It failed: {self.last_words()}")

    def cpu_seconds(self) -> dict[str, float]:
        """What it has used so far, and the servers for it: of Postgres, its sessions; Kafka, if it uses Kafka."""
        sessions = 0.0
        for (pid,) in self.sql(_SESSIONS):
            with suppress(psutil.NoSuchProcess):
                sessions += gauges.cpu_seconds(pid)
        servers = gauges.server_seconds(self.sandbox)
        used = {PROCESS: gauges.cpu_seconds(self.pid), **servers, "Postgres": sessions}
        return {name: seconds for name, seconds in used.items() if name != "Kafka" or self.uses_kafka}

    def is_settled(self) -> bool:
        """Whether every change is done: nothing waits in the outbox, in the topic, or in a job."""
        with self.connect() as connection:
            stored = status.ask_postgres(connection)
        return not (stored.outbox_waiting or stored.topic_waiting or stored.jobs)

    def wait_settled(self) -> None:
        """Return once every change is done."""
        wait_until(self.is_settled, what="every change is done", seconds=_SETTLE_SECONDS)

    # Runs

    def command(self, *arguments: str, part: str = "", kind: str = "initial_load") -> Run:
        """A command of syncer, with no daemon beside it; a part of it is what its job takes."""
        self.stop()
        command = [sys.executable, "-m", "syncer", *arguments]
        run = gauges.run_command(command, self.posts, sandbox=self.sandbox, environment=self.environment)
        return replace(run, parts={part: float(self.sql(_JOB_SECONDS, kind)[0][0])}) if part else run

    def bare_loop(self, index: str, *, first: int = 1, last: int | None = None) -> Run:
        """The bare loop over these posts, by default over all, into a settled index, with no daemon beside it."""
        self.stop()
        self.settle(index)
        last = last or self.posts
        where = (self.dsn, self.endpoints.elasticsearch_url, index, self.select_file)
        command = references.command("bare_loop", *where, f"{first}-{last}")
        return gauges.run_command(command, last - first + 1, sandbox=self.sandbox)

    def filled(self) -> Run:
        """Fill a new index."""
        return self.command("index", "rebuild", "blogpost", part="filling")

    def measured(self, work: Callable[[], float], documents: int, is_done: Callable[[], bool]) -> Run:
        """Do something that makes the process write so many documents, and measure until the last is written.

        `work` returns since when time counts; what must hold in the end is asked once writes have ceased.
        """
        earlier_seconds, pid, own = gauges.server_seconds(self.sandbox), self.pid, gauges.cpu_seconds(self.pid)
        writes = gauges.Writes(self.endpoints.elasticsearch_url, self.alias)
        began = work()
        writes.wait(documents, settled=lambda: self.is_settled() and is_done())
        used = gauges.difference(gauges.server_seconds(self.sandbox), earlier_seconds)
        return Run(
            documents=documents,
            seconds=writes.last_at - began,
            cpu_seconds={PROCESS: gauges.cpu_seconds(self.pid) - (own if self.pid == pid else 0), **used},
            peak_bytes=gauges.peak_bytes(self.pid),
            writes=writes.made,
            first_seconds=writes.first_at - began,
        )

    def started(self) -> float:
        """Start the process; when it began to."""
        began = time.monotonic()
        self.start()
        return began

    def changed(
        self,
        *changes: str,
        documents: int,
        shown: Mapping[str, str],
        waiting: bool = False,
        then: Callable[[], object] = lambda: None,
    ) -> Run:
        """Make changes, one transaction right after the other; from the first commit to the last document.

        So many documents must be written, and match `shown` in the end. Changes that are `waiting` are made while the
        process does not run; then time counts from its start. What is done `then` is done after the commits.
        """
        if waiting:
            self.stop()
        else:
            self.start_idle()
        self.settle()
        with psycopg.connect(self.dsn, autocommit=True) as connection:

            def make() -> float:
                connection.execute(changes[0].encode())
                began = time.monotonic()
                for change in changes[1:]:
                    connection.execute(change.encode())
                then()
                return began

            if waiting:
                connection.execute("SET synchronous_commit = off")  # how long this takes is not measured
                make()
                connection.execute("VACUUM ANALYZE posts")
                connection.execute("CHECKPOINT")
            work = self.started if waiting else make
            return self.measured(work, documents, lambda: not shown or self.count(match=shown) == documents)

    def drained(self, *, each: bool = False) -> Run:
        """Change the large author's posts while the process does not run, in one transaction or in one each."""
        word = token()
        change = (_TRANSACTION_EACH if each else ONE_TRANSACTION).format(token=word, posts=self.large)
        run = self.changed(change, documents=self.large, shown={"title": word}, waiting=True)
        return replace(run, parts={"once it writes": run.seconds - run.first_seconds})

    @property
    def authors(self) -> dict[int, int]:
        """An author of many posts, one of some, and one of few, with how many these are."""
        return {LARGE_AUTHOR: self.large, _MIDDLE_AUTHOR: self.middle, _SMALL_AUTHOR: _OTHERS // 1000}

    def renamed(self, author: int = LARGE_AUTHOR, *, times: int = 1, then: Callable[[], object] = lambda: None) -> Run:
        """Rename an author so many times; what is done `then` is done after the commits."""
        names = [token() for _ in range(times)]
        renames = (RENAME.format(token=name, author=author) for name in names)
        return self.changed(*renames, documents=self.authors[author], shown={"user.name": names[-1]}, then=then)

    def renamed_through_a_kill(self) -> Run:
        """Rename the large author, kill the daemon once half of his posts are written, and start it again."""
        half_done = f"SELECT FROM syncer.job WHERE documents_done > {self.large // 2}"
        half_done_before = len(self.sql(half_done))

        def kill() -> None:
            what = "half of the documents are written"
            wait_until(lambda: len(self.sql(half_done)) > half_done_before, what=what, seconds=_SETTLE_SECONDS)
            self.stop(kill=True)
            self.start()

        return self.renamed(then=kill)

    def verified_after_a_kill(self, seconds: float) -> Run:
        """Kill a verification after so many seconds, wait until none of its sessions is left, and verify again."""
        self.stop()
        command = [sys.executable, "-m", "syncer", "verify", "blogpost"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL) as process:
            time.sleep(seconds)
            process.kill()
        wait_until(lambda: not self.sql(_OWN_SESSIONS), what="its sessions are gone")
        return self.command("verify", "blogpost")

    def filled_by_the_bare_loop(self) -> Run:
        """Fill an index like syncer's by the bare loop, and drop it."""
        index = self.index_like_it("bare")
        run = self.bare_loop(index)
        with self.elasticsearch() as client:
            client.indices.delete(index=index)
        return run

    def scattered(self, changes: int) -> Run:
        """Change so many posts that are spread over all, in one transaction."""
        word, posts = token(), set(random.sample(range(1, self.posts + 1), changes))
        return self.changed(_SCATTERED.format(token=word, posts=posts), documents=changes, shown={"title": word})

    # Indices

    def index_like_it(self, name: str, **others: Any) -> str:
        """An empty index with the settings and the mapping of syncer's own, but for these settings."""
        index = f"{self.alias}-{name}"
        body = json.loads(self.index_file.read_text())
        settings = {"index.gc_deletes": f"{GC_DELETES_SECONDS}s", **body["settings"], **others}
        with self.elasticsearch() as client:
            client.indices.delete(index=index, ignore_unavailable=True)
            client.indices.create(index=index, settings=settings, mappings=body["mappings"])
        return index

    def loaded_like_it(self, name: str) -> str:
        """Such an index with every document, for a reference that overwrites."""
        index = self.index_like_it(name)
        self.bare_loop(index)
        return index

    def settle(self, index: str | None = None) -> None:
        """Bring an index, by default syncer's own, and the tables into the state in which each run begins.

        The index: one segment without deleted documents if `is_merged`, on disk, and used by a search. The tables: no
        dead rows, no dirty pages.
        """
        index = index or self.alias
        with self.elasticsearch() as client:
            # Otherwise Elasticsearch keeps what was overwritten for hours, and an index that was written more often
            # merges more. It looks at this setting every 30 s.
            client.indices.put_settings(index=index, settings={"index.soft_deletes.retention_lease.period": "0s"})
            if self.is_merged:
                _merge(client, index)
            client.indices.flush(index=index)
            client.indices.refresh(index=index)
            documents = client.search(index=index, size=0, track_total_hits=True).body["hits"]["total"]["value"]
        if documents not in (0, self.posts):
            raise RuntimeError(f"{index} has {documents:,} documents, not {self.posts:,}")
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def count(self, **query: Any) -> int:
        """How many documents a search finds once everything that is written can be found."""
        with self.elasticsearch() as client:
            client.indices.refresh(index=self.alias)
            return int(client.count(index=self.alias, query=query or {"match_all": {}}).body["count"])

    def wrong(self) -> set[str]:
        """The ids of documents that are missing, wrong, or too many.

        A document is right whatever the order of its arrays is, and whatever fields it has besides. None of something
        may be NULL or an empty array.
        """
        expected, held = self.expected(), self.held()
        return {
            id_
            for id_ in expected.keys() | held.keys()
            if id_ not in expected
            or id_ not in held
            or any(
                _comparable(name, held[id_].get(name)) != _comparable(name, value)
                for name, value in expected[id_].items()
            )
        }


def _merge(client: Elasticsearch, index: str) -> None:
    client.indices.forcemerge(index=index, max_num_segments=1)
    while client.indices.stats(index=index, metric="docs").body["_all"]["primaries"]["docs"]["deleted"]:
        time.sleep(1)
        client.indices.flush(index=index, force=True)  # this makes it notice what it may drop
        client.indices.forcemerge(index=index, max_num_segments=1)


def _comparable(name: str, value: Any) -> Any:
    if name == "created":
        return datetime.fromisoformat(value)
    return sorted(json.dumps(part, sort_keys=True) for part in value) if isinstance(value, list) else value or []


@contextmanager
def two_nodes(bench: Bench) -> Iterator[Bench]:
    """The same with an Elasticsearch of two nodes; each takes half a gigabyte of memory."""
    with nodes_of_its_own(Versions(), java_options=LASTING_JAVA) as (first_node, _):
        yield _writing_to(first_node, bench)


@contextmanager
def servers_folder() -> Iterator[Path]:
    """A temporary folder that the servers of root, which run as another user, may enter."""
    with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "servers"


@contextmanager
def opensearch(bench: Bench) -> Iterator[Bench]:
    """The same with OpenSearch; its documents are made from the same Postgres."""
    with servers_folder() as folder:
        server = Sandbox(folder, versions=Versions(opensearch="3")).elasticsearch
        server.java_options = LASTING_JAVA
        try:
            server.start()
            yield _writing_to(server, bench)
        finally:
            server.stop()


def _writing_to(server: ElasticsearchServer, bench: Bench) -> Bench:
    sandbox = copy(bench.sandbox)
    sandbox.elasticsearch = server
    return replace(bench, sandbox=sandbox, endpoints=replace(bench.endpoints, elasticsearch_url=server.address))


@dataclass
class Bench:
    """What a benchmark works with: the servers, how much to measure, what it made, and the report."""

    sandbox: Sandbox
    endpoints: Endpoints
    posts: int
    passes: int
    seconds: float
    to: int
    made: ExitStack
    report: Report = field(default_factory=Report)
    tables: int = 0
    beside: str = ""
    contestants: Sequence[str] = ()

    @cached_property
    def even(self) -> Blog:
        """So many posts, a thousand authors."""
        return self.made.enter_context(self.blog(posts=self.posts))

    @cached_property
    def crowded(self) -> Blog:
        """One author has so many posts, another 5,000, and a thousand share 20,000."""
        posts = self.posts + _MIDDLE + _OTHERS
        return self.made.enter_context(self.blog(posts=posts, large=self.posts, middle=_MIDDLE))

    @contextmanager
    def blog(self, *, posts: int, **more: Any) -> Iterator[Blog]:
        """A blog that is dropped at the end; without posts, there is nothing in it."""
        with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
            blog = Blog(sandbox=self.sandbox, endpoints=self.endpoints, folder=Path(folder), posts=posts, **more)
            try:
                if posts:
                    blog.load()
                yield blog
            finally:
                blog.unmake()

    def contest(self, about: str, contestants: Mapping[str, Callable[[], Run]], *, passes: int | None = None) -> Report:
        """Let all contestants run once in a pass; the order turns round from pass to pass.

        What a contestant does before its run is not timed.
        """
        passes, order = passes or self.passes, list(contestants.items())
        for number in range(passes):
            for name, run in order:
                measured_run = run()
                self.report.add(name, measured_run)
                say(f"pass {number + 1} of {passes}: {name} {measured_run.rate:,.0f}/s, {measured_run.seconds:.2f} s")
            order.reverse()
        self.report.about = f"{about}; median of {passes}"
        return self.report
