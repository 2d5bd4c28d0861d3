"""PGSync, the closest peer, on the same schema and the same work, on the same machine.

In its WAL mode, since its default mode needs Redis, a server more. (With Redis it is faster where every change is a
transaction of its own, and slower to show a single change.) Both run on a Postgres with ``wal_level = logical``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg

from tests.benchmarks import pgsync_setup, processes
from tests.benchmarks.blog import LARGE_AUTHOR, Blog, Blogs
from tests.benchmarks.contest import PROCESS, Contestant, Run, hold, say
from tests.benchmarks.drain import ONE_TRANSACTION, Drain
from tests.benchmarks.fan_out import Renames
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome, SkippedError
from tests.benchmarks.writes import Writes

_POSTS_MAX = 20_000
_LISTENS_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_NODES = {
    "table": "posts",
    "columns": ["title", "body", "tags", "created"],
    "children": [
        {
            "table": "users",
            "label": "user",
            "columns": ["id", "name"],
            "relationship": {"variant": "object", "type": "one_to_one"},
        },
        {
            "table": "comments",
            "label": "comments",
            "columns": ["name", "comment", "age", "stars", "date"],
            "relationship": {"variant": "object", "type": "one_to_many"},
        },
    ],
}
_LISTENS = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
_FORGET = "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())"
_SYNCER_DRAIN, _PEER_DRAIN, _BARE = "syncer drain", "PGSync drain", "bare loop"
_SYNCER_RENAME, _PEER_RENAME = "syncer, one rename", "PGSync, one rename"


@dataclass(slots=True)
class _Peer:
    """PGSync on a copy of the blog's tables.

    Args:
        blog: Whose tables.
        program: Its command.
    """

    blog: Blog
    program: Path
    _process: subprocess.Popen[bytes] | None = None
    _token: str = ""

    # What it works on

    @property
    def _database(self) -> str:
        return f"{self.blog.world.name}_pgsync"

    @property
    def _dsn(self) -> str:
        return self.blog.world.endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{self._database}"

    @property
    def _index(self) -> str:
        return f"{self.blog.world.alias}-pgsync"

    @property
    def _slot(self) -> str:
        return re.sub(r"\W+", "", f"{self._database}_{self._index}", flags=re.ASCII)

    @contextmanager
    def made(self) -> Iterator[None]:
        """With a database that has never heard of syncer, a slot, and an index that PGSync has loaded."""
        with psycopg.connect(self.blog.world.endpoints.postgres_dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{self._database}" TEMPLATE "{self.blog.world.name}"')
            try:
                self._execute("DROP SCHEMA syncer CASCADE")
                self._start("--bootstrap")
                self._fill()
                yield
            finally:
                self.stop()
                connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
                connection.execute(f'DROP DATABASE "{self._database}" WITH (FORCE)')

    def _fill(self) -> None:
        """By way of changes: its WAL mode writes what changes, and nothing else."""
        with self._writes() as writes:
            self._execute("UPDATE posts SET views = views + 1")
            writes.wait(self.blog.posts, settled=lambda: True)
        self.stop()

    # What is measured

    def prepare_drain(self) -> None:
        """Change the posts while it does not run."""
        self._settle()
        self._token = f"t{uuid.uuid4().hex[:8]}"
        self._execute(ONE_TRANSACTION.format(token=self._token, posts=self.blog.large))
        self._execute("CHECKPOINT")

    def drain(self) -> Run:
        """From its start to the last document; then it is stopped."""
        run = self._measured(starts=True)
        self.stop()
        self._check({"match": {"title": self._token}})
        return run

    def prepare_rename(self) -> None:
        """Have one that is idle."""
        self._settle()
        self._start()

    def rename(self) -> Run:
        """From the commit to the last document."""
        name = f"t{uuid.uuid4().hex}"
        run = self._measured(f"UPDATE users SET name = '{name}' WHERE id = {LARGE_AUTHOR}")
        self._check({"match": {"user.name": name}})
        return run

    def _measured(self, change: str | None = None, *, starts: bool = False) -> Run:
        before = 0.0 if starts else self._seconds()
        with self.blog.servers.measured() as used, self._writes() as writes:
            began = time.monotonic()
            if starts:
                self._start()
            if change is not None:
                self._execute(change)
                began = time.monotonic()
            span = writes.wait(self.blog.large, settled=lambda: True)
        process = self._running()
        return Run(
            documents=self.blog.large,
            seconds=span.last_at - began,
            cpu_seconds={PROCESS: self._seconds() - before, **used},
            peak_bytes=processes.peak_bytes(process.pid),
            writes=span.writes,
        )

    def _check(self, query: dict[str, dict[str, str]]) -> None:
        with self.blog.elasticsearch() as client:
            client.indices.refresh(index=self._index)
            found = int(client.count(index=self._index, query=query).body["count"])
        if found != self.blog.large:
            say(f"PGSync: {found:,} documents show the change, not {self.blog.large:,}")

    # Its process

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _start(self, *arguments: str) -> None:
        folder = self.blog.world.folder
        file = folder / "pgsync.json"
        file.write_text(json.dumps([{"database": self._database, "index": self._index, "nodes": _NODES}]))
        postgres, elasticsearch = urlsplit(self._dsn), urlsplit(self.blog.world.endpoints.elasticsearch_url)
        environment = {
            **os.environ,
            "PG_HOST": str(postgres.hostname),
            "PG_PORT": str(postgres.port),
            "PG_USER": str(postgres.username),
            "ELASTICSEARCH_HOST": str(elasticsearch.hostname),
            "ELASTICSEARCH_PORT": str(elasticsearch.port),
            "CHECKPOINT_PATH": str(folder),
        }
        with (folder / "pgsync.log").open("ab") as log:
            command = [str(self.program), "--config", str(file), "--wal", *arguments]
            self._process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
        deadline = time.monotonic() + _LISTENS_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SkippedError(f"PGSync does not start: {(folder / 'pgsync.log').read_text()[-1000:]}")
            time.sleep(_LOOK_SECONDS)

    def _listens(self) -> bool:
        """Whether it has its slot and its index. A slot that is just being made counts as in use, too."""
        with self.blog.elasticsearch() as client:
            is_made = bool(client.indices.exists(index=self._index))
        return is_made and self._ask(_LISTENS, self._slot) == [(True,)]

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _seconds(self) -> float:
        root = psutil.Process(self._running().pid)
        return sum(processes.cpu_seconds(one.pid) for one in (root, *root.children(recursive=True)))

    # Its servers

    def _settle(self) -> None:
        self._ask(_FORGET, self._slot)
        with self.blog.elasticsearch() as client:
            client.indices.forcemerge(index=self._index, max_num_segments=1)
            client.indices.flush(index=self._index)
            client.search(index=self._index, size=0)
        self._execute("VACUUM ANALYZE users, posts, comments")

    def _writes(self) -> Writes:
        return Writes(self.blog.world.endpoints.elasticsearch_url, self._index)

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(statement)

    def _ask(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            return connection.execute(query, parameters).fetchall()


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Both drain waiting changes, and both rename an author.

    Raises:
        SkippedError: PGSync cannot be installed here, or does not start.
    """
    program = pgsync_setup.installed()
    posts = min(blogs.posts, _POSTS_MAX)
    with pgsync_setup.logical(blogs) as logical, logical.blog(posts=posts + posts // 4, large=posts) as blog:
        live = Live(blog, is_profiled=options.is_profiled)
        peer = _Peer(blog, program)
        drain = Drain(blog, live, ONE_TRANSACTION)
        renames = Renames(blog, live, LARGE_AUTHOR, posts)
        bare = blog.loaded_like_it("bare")

        def alone(prepare: Callable[[], None]) -> Callable[[], None]:
            def stop_and_prepare() -> None:
                live.stop()
                peer.stop()
                prepare()

            return stop_and_prepare

        with peer.made():
            contest = hold(
                [
                    Contestant(name=_SYNCER_DRAIN, run=drain.run, prepare=alone(drain.prepare)),
                    Contestant(name=_PEER_DRAIN, run=peer.drain, prepare=alone(peer.prepare_drain)),
                    Contestant(
                        name=_BARE,
                        run=partial(blog.bare_loop, bare, 1, posts),
                        prepare=alone(partial(blog.settle, bare)),
                    ),
                    Contestant(name=_PEER_RENAME, run=peer.rename, prepare=alone(peer.prepare_rename)),
                    Contestant(name=_SYNCER_RENAME, run=renames.run, prepare=alone(renames.prepare)),
                ],
                passes=options.passes,
            )
            live.stop()
    return contest.outcome(
        f"{posts:,} changes of distinct posts wait; an author of {posts:,} posts is renamed; PGSync in its WAL mode",
        [
            contest.figure(_SYNCER_DRAIN, _PEER_DRAIN),
            contest.figure(_SYNCER_RENAME, _PEER_RENAME),
            contest.figure(_PEER_DRAIN, _BARE),
            contest.figure(_PEER_RENAME, _BARE),
            contest.figure(_SYNCER_DRAIN, _BARE),
            contest.figure(_SYNCER_RENAME, _BARE),
            contest.memory(_SYNCER_DRAIN, _SYNCER_RENAME),
            Figure(what="peak memory of PGSync", value=contest.peak_megabytes(_PEER_DRAIN), unit="MB"),
        ],
    )
