"""Flink SQL, with its CDC connector and its sink for Elasticsearch, on the same blog, on the same machine.

The job, ``flink.sql``, joins posts, users and comments of a copy of the tables; it runs in one process, as Flink's SQL
client starts it on one machine. It has the settings that make it quick here: a parallelism of one, a flush every 20 ms
and a look at the log every 10 ms (by default 1 s and 500 ms). What starts anew each time loads all tables again, so
both are measured one after the other, each beside the bare loop.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
from elasticsearch.helpers import scan

from tests.benchmarks import flink_setup, pgsync_setup, processes
from tests.benchmarks.blog import LARGE_AUTHOR, Blog, Blogs
from tests.benchmarks.contest import MEGABYTES_MAX, PROCESS, Contest, Contestant, Run, hold, say
from tests.benchmarks.edits import Edits, as_json, milliseconds
from tests.benchmarks.fan_out import Renames
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome, SkippedError, percentile
from tests.benchmarks.writes import Span, Writes

_POSTS_MAX = 20_000
_PER_SECOND = 50
_START_SECONDS, _LOOK_SECONDS = 240.0, 0.2
_STIR_SECONDS, _STIRRERS, _SETTLE_SECONDS = 10.0, 4, 60.0
_KEPT, _APART_SECONDS = 100, 0.01
_SYNCER, _FLINK, _BARE = "syncer", "Flink", "bare loop"
_SOURCE = {
    "connector": "postgres-cdc",
    "password": "",
    "schema-name": "public",
    "decoding.plugin.name": "pgoutput",
    "scan.incremental.snapshot.enabled": "true",
    "debezium.publication.autocreate.mode": "filtered",
    "debezium.poll.interval.ms": "10",
}
_STIRRED = (
    "UPDATE users SET name = %(text)s WHERE id = %(author)s",
    "UPDATE posts SET title = %(text)s WHERE id = %(post)s",
    "UPDATE posts SET user_id = %(author)s WHERE id = %(post)s",
    "UPDATE comments SET comment = %(text)s WHERE post_id = %(post)s",
    "INSERT INTO comments (post_id, name, comment) SELECT id, %(text)s, title FROM posts WHERE id = %(post)s",
    "DELETE FROM comments WHERE post_id = %(post)s",
    "DELETE FROM posts WHERE id = %(gone)s",
)


@dataclass(slots=True)
class _Flink:
    """A job on a blog of its own.

    Args:
        blog: A copy that syncer knows nothing of.
        java: The command that runs a file of SQL.
        start_seconds: From the start of the process to its first document.
    """

    blog: Blog
    java: list[str]
    start_seconds: float = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def fill(self) -> Run:
        """From the start of the process until every document is whole."""
        whole = 3 * self.blog.posts  # Elasticsearch counts the two comments, which are nested, as documents, too
        with self.blog.servers.measured() as used, self._writes() as writes:
            began = time.monotonic()
            self._start()
            span = writes.wait(self.blog.posts, settled=lambda: self._count_nested() == whole)
        self.start_seconds = span.first_at - began
        return self._run(self.blog.posts, began, span, 0, used)

    def rename(self) -> Run:
        """From the commit to the last document."""
        name = f"Renamed {uuid.uuid4().hex}"
        large, used_before = self.blog.large, processes.cpu_seconds(self.pid)
        with self.blog.servers.measured() as used, self._writes() as writes:
            self.blog.world.sql("UPDATE users SET name = %s WHERE id = %s", name, LARGE_AUTHOR)
            began = time.monotonic()
            span = writes.wait(large, settled=lambda: self.blog.count(term={"user.name.raw": name}) == large)
        return self._run(large, began, span, used_before, used)

    def _run(self, documents: int, began: float, span: Span, used_before: float, used: dict[str, float]) -> Run:
        return Run(
            documents=documents,
            seconds=span.last_at - began,
            cpu_seconds={PROCESS: processes.cpu_seconds(self.pid) - used_before, **used},
            peak_bytes=processes.peak_bytes(self.pid),
            writes=span.writes,
        )

    def make(self) -> None:
        """Make what it reads from, and the index that it writes to: with the document's id as a field."""
        endpoints, name = self.blog.world.endpoints, self.blog.world.name
        with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{name.removesuffix("_flink")}"')
        with psycopg.connect(self.blog.world.dsn) as connection:
            connection.execute("DROP SCHEMA syncer CASCADE")
            for table in ("users", "posts", "comments"):
                connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        index = self.blog.index_like_it("documents")
        with self.blog.elasticsearch() as client:
            client.indices.put_mapping(index=index, properties={"id": {"type": "long"}})
            client.indices.put_alias(index=index, name=self.blog.world.alias)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        folder, endpoints = self.blog.world.folder, self.blog.world.endpoints
        postgres = urlsplit(self.blog.world.dsn)
        source = _SOURCE | {
            "hostname": str(postgres.hostname),
            "port": str(postgres.port),
            "username": str(postgres.username),
            "database-name": self.blog.world.name,
        }
        sql, log = folder / "flink.sql", folder / "flink.log"
        sql.write_text(
            flink_setup.JOB.read_text().format(
                folder=folder,
                source=", ".join(f"'{key}' = '{value}'" for key, value in source.items()),
                elasticsearch=endpoints.elasticsearch_url,
                index=self.blog.world.alias,
            )
        )
        (folder / "config.yaml").write_text(f"io.tmp.dirs: {folder}\n")
        environment = {**os.environ, "FLINK_CONF_DIR": str(folder), "ELASTIC_CLIENT_APIVERSIONING": "true"}
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*self.java, str(sql)],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        deadline = time.monotonic() + _START_SECONDS
        while self._count_nested() == 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SkippedError(f"Flink does not start: {log.read_text()[-1500:]}")
            time.sleep(_LOOK_SECONDS)

    def _writes(self) -> Writes:
        return Writes(self.blog.world.endpoints.elasticsearch_url, self.blog.world.alias)

    def _count_nested(self) -> int:
        with self.blog.elasticsearch() as client:
            client.indices.refresh(index=self.blog.world.alias)
            found = client.indices.stats(index=self.blog.world.alias, metric="docs").body
        return int(found["_all"]["primaries"]["docs"]["count"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was found of one of them beside the contest.

    Args:
        edits: Milliseconds, of single edits.
        used: Processor milliseconds of an edit, by process.
        differed: How many documents differed from the SELECT before much was changed at once, and after.
        missed: How many documents were missing at once, at most, of those that are always there.
    """

    edits: list[float]
    used: dict[str, float]
    differed: tuple[int, int]
    missed: int

    def figures(self, name: str) -> list[Figure]:
        """Each with the name of who it is of."""
        return [
            Figure(what=f"{name}: commit to visible, 50/s, p50", value=percentile(self.edits, 50), unit="ms"),
            Figure(what=f"{name}: commit to visible, 50/s, p99", value=percentile(self.edits, 99), unit="ms"),
            Figure(what=f"{name}: processor time of an edit, servers too", value=sum(self.used.values()), unit="ms"),
            Figure(what=f"{name}: documents that differ, after edits and renames", value=self.differed[0]),
            Figure(what=f"{name}: documents that differ, after concurrent changes", value=self.differed[1]),
            Figure(what=f"{name}: documents missing meanwhile, of {_KEPT} that are edited", value=self.missed),
        ]


def _watched(name: str, blog: Blog, pid: int, seconds: float) -> _Found:
    """Single edits, then much at once, and whether all is as it should be."""
    say(f"{name}: {_PER_SECOND} edits a second, for {seconds:.0f} s")
    edits = Edits(blog, random.sample(blog.others, len(blog.others)), _PER_SECOND)
    edits.go_on_for(1)  # what is done for the first time is not measured
    own = processes.cpu_seconds(pid)
    with blog.servers.measured() as used:
        seen = milliseconds(edits.go_on_for(seconds))
    used[PROCESS] = processes.cpu_seconds(pid) - own
    before = _differing_at_last(blog)
    say(f"{name}: {_STIRRERS} sessions change everything at random, for {_STIR_SECONDS:.0f} s")
    with ThreadPoolExecutor() as pool:
        stirring = [pool.submit(_stir, blog, number) for number in range(_STIRRERS)]
        missed = _missing_at_most(blog, until=lambda: all(one.done() for one in stirring))
        for one in stirring:
            one.result()
    per_edit = {server: round(spent * 1000 / len(seen), 2) for server, spent in used.items()}
    return _Found(edits=seen, used=per_edit, differed=(before, _differing_at_last(blog)), missed=missed)


def _missing_at_most(blog: Blog, *, until: Callable[[], bool]) -> int:
    """How many of the posts that are edited, and never deleted, realtime GETs did not find at once, at most."""
    ids, most = [str(one) for one in blog.others[-_KEPT:]], 0
    with blog.elasticsearch() as client:
        while not until():
            found = client.mget(index=blog.world.alias, ids=ids, source=False).body["docs"]
            most = max(most, sum(not one["found"] for one in found))
            time.sleep(_APART_SECONDS)
    return most


def _stir(blog: Blog, seed: int) -> None:
    """Change a few authors and posts, again and again; now and then the author of many."""
    chosen = random.Random(seed)
    authors, posts, gone = range(1, 21), blog.others[-_KEPT:], blog.others[:_KEPT]
    deadline = time.monotonic() + _STIR_SECONDS
    with psycopg.connect(blog.world.dsn, autocommit=True) as connection:
        while time.monotonic() < deadline:
            author = LARGE_AUTHOR if chosen.random() < 1 / 500 else chosen.choice(authors)
            values = {"text": f"Stirred {chosen.random()}", "author": author, "post": chosen.choice(posts)}
            values["gone"] = chosen.choice(gone)
            weights = [30, 10, 10, 10, 10, 5, 1]
            with suppress(psycopg.errors.ForeignKeyViolation, psycopg.errors.DeadlockDetected):
                connection.execute(chosen.choices(_STIRRED, weights)[0], values)
            time.sleep(_APART_SECONDS)


def _differing_at_last(blog: Blog) -> int:
    """How many documents differ from the SELECT, once none does or time is up."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (found := _differing(blog)) and time.monotonic() < deadline:
        time.sleep(1)
    return found


def _differing(blog: Blog) -> int:
    """How many documents are missing, wrong, or too many. The order of comments does not count, nor a missing list."""
    select = (blog.world.document_folder / "select.sql").read_text()
    with psycopg.connect(blog.world.dsn) as connection:
        rows = connection.execute(f"SELECT d._id::text, to_jsonb(d) - '_id' FROM ({select}) AS d").fetchall()
    with blog.elasticsearch() as client:
        client.indices.refresh(index=blog.world.alias)
        hits = list(scan(client, index=blog.world.alias, size=1000))
    wanted = {one: comparable(document) for one, document in rows}
    found = {one["_id"]: comparable(one["_source"]) for one in hits}
    return sum(wanted.get(one) != found.get(one) for one in wanted.keys() | found.keys())


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """A document without what a job of Flink cannot say: the order of an array, an empty array, no field for the id."""
    comments = sorted(json.dumps(one, sort_keys=True) for one in document["comments"] or [])
    made = {**document, "comments": comments, "created": datetime.fromisoformat(document["created"])}
    made.pop("id", None)
    return made


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Each loads an index, renames an author of many posts, and follows single edits and many changes at once.

    Raises:
        SkippedError: Flink does not start.
    """
    posts = min(blogs.posts, _POSTS_MAX)
    java = flink_setup.java_command()
    with (
        pgsync_setup.logical(blogs, as_text=False) as logical,
        logical.blog(posts=posts + posts // 4, large=posts) as blog,
    ):
        flink = _Flink(replace(blog, world=replace(blog.world, name=f"{blog.world.name}_flink")), java)
        flink.make()
        live = Live(blog, is_profiled=options.is_profiled)
        filled = {
            f"{_SYNCER}, first fill": blog.syncer("index", "rebuild", "blogpost"),
            f"{_BARE}, first fill": blog.bare_loop(blog.index_like_it("bare")),
        }
        renames = Renames(blog, live, LARGE_AUTHOR, posts)
        ours = _renamed(_SYNCER, blog, renames.run, renames.prepare, options)
        renames.prepare()
        found = {_SYNCER: _watched(_SYNCER, blog, live.pid, options.seconds)}
        live.stop()
        say("Flink: first fill")
        try:
            filled[f"{_FLINK}, first fill"] = flink.fill()
            settle = partial(flink.blog.settle, flink.blog.world.alias)
            theirs = _renamed(_FLINK, flink.blog, flink.rename, settle, options)
            found[_FLINK] = _watched(_FLINK, flink.blog, flink.pid, options.seconds)
            peak = processes.peak_bytes(flink.pid)
        finally:
            flink.stop()
    renamed = Contest([ours_then | theirs_then for ours_then, theirs_then in zip(ours, theirs, strict=True)])
    return _outcome(Contest([filled]), renamed, found, {_SYNCER: live.peak_bytes, _FLINK: peak}, flink)


def _renamed(
    name: str, blog: Blog, run: Callable[[], Run], prepare: Callable[[], None], options: Options
) -> list[dict[str, Run]]:
    """One of them and the bare loop, in turn."""
    bare = blog.loaded_like_it("bare")
    contestants = [
        Contestant(name=f"{name}, one rename", run=run, prepare=prepare),
        Contestant(
            name=f"{_BARE} beside {name}",
            run=partial(blog.bare_loop, bare, 1, blog.large),
            prepare=partial(blog.settle, bare),
        ),
    ]
    return hold(contestants, passes=options.passes).passes


def _outcome(
    filled: Contest, renamed: Contest, found: dict[str, _Found], peaks: dict[str, int], flink: _Flink
) -> Outcome:
    fill, rename = "{}, first fill".format, "{}, one rename".format
    figures = [
        filled.figure(fill(_SYNCER), fill(_FLINK)),
        *(filled.figure(fill(name), fill(_BARE)) for name in found),
        Figure(what=f"{_FLINK}: from its start to its first document", value=flink.start_seconds, unit="s"),
        renamed.figure(rename(_SYNCER), rename(_FLINK)),
        *(renamed.figure(rename(name), f"{_BARE} beside {name}") for name in found),
        *(figure for name, one in found.items() for figure in one.figures(name)),
        Figure(what=f"peak memory of {_SYNCER}", value=peaks[_SYNCER] / 1e6, unit="MB", at_most=MEGABYTES_MAX),
        Figure(what=f"peak memory of {_FLINK}", value=peaks[_FLINK] / 1e6, unit="MB"),
    ]
    fills = filled.outcome("", [])
    outcome = renamed.outcome(
        f"an author of {flink.blog.large:,} posts is renamed; "
        f"Flink {flink_setup.VERSION}, postgres-cdc {flink_setup.CDC_VERSION}",
        figures,
        remarks=[f"{name}: CPU ms of an edit at {_PER_SECOND}/s: {one.used}" for name, one in found.items()],
    )
    record = {
        **outcome.record,
        "first_fill": filled.as_json(),
        "milliseconds": {name: as_json(one.edits) for name, one in found.items()},
        "cpu_milliseconds_per_edit": {name: one.used for name, one in found.items()},
    }
    return replace(outcome, rows=[*fills.rows, *outcome.rows], record=record)
