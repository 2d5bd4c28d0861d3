"""Flink SQL, with its CDC connector and its sink for Elasticsearch, on the same blog, on the same machine.

The job, ``flink.sql``, joins posts, users and comments of a copy of the tables; it runs in one process, as Flink's SQL
client starts it on one machine. Its settings make it quick here: a parallelism of one, a flush every 20 ms and a look
at the log every 10 ms (by default 1 s and 500 ms). A job that starts anew loads all tables again, so syncer and Flink
are measured one after the other, each beside the bare loop.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from syncer.sandbox import Sandbox
from tests.benchmarks import contest, flink_setup
from tests.benchmarks.bulk_work import RENAME, renamed
from tests.benchmarks.contest import PROCESS, Contest, Run
from tests.benchmarks.edits import Edits, deadline
from tests.benchmarks.report import MEGABYTES_MAX, Figure, memory, percentile, say
from tests.benchmarks.single_edits import OFTEN, shuffled
from tests.benchmarks.world import LARGE_AUTHOR, Bench, Blog, Peer

_POSTS_MAX = 20_000
_START_SECONDS = 600.0
_STIR_SECONDS, _STIRRERS, _SETTLE_SECONDS = 10.0, 4, 60.0
_KEPT, _APART_SECONDS = 100, 0.01
_SOURCE = {
    "connector": "postgres-cdc",
    "password": "",
    "schema-name": "public",
    "decoding.plugin.name": "pgoutput",
    "scan.incremental.snapshot.enabled": "true",
    "debezium.publication.autocreate.mode": "filtered",
    "debezium.poll.interval.ms": "10",
}
_STIRRED = {  # and how often, beside the others
    "UPDATE users SET name = %(text)s WHERE id = %(author)s": 30,
    "UPDATE posts SET title = %(text)s WHERE id = %(post)s": 10,
    "UPDATE posts SET user_id = %(author)s WHERE id = %(post)s": 10,
    "UPDATE comments SET comment = %(text)s WHERE post_id = %(post)s": 10,
    "INSERT INTO comments (post_id, name, comment) SELECT id, %(text)s, title FROM posts WHERE id = %(post)s": 10,
    "DELETE FROM comments WHERE post_id = %(post)s": 5,
    "DELETE FROM posts WHERE id = %(gone)s": 1,
}


def flink(bench: Bench) -> Iterator[Figure]:
    """Flink SQL on the same work: first fill, rename, single edits, and documents that differ in the end."""
    posts = min(bench.posts, _POSTS_MAX)
    java = flink_setup.java_command()
    with (
        bench.logical(lambda folder: Sandbox(folder).postgres) as logical,
        logical.blog(posts=posts + posts // 4, large=posts) as blog,
    ):
        peer = Flink.of(blog)
        fills = {
            "syncer, first fill": [blog.command("index", "rebuild", "blogpost")],
            "bare loop, first fill": [blog.bare_loop(blog.index_like_it("bare"))],
        }
        renames = _renames("syncer", logical, blog, partial(renamed, blog))
        blog.start_idle()
        watched = {"syncer": _Watched(blog, bench.seconds)}
        peaks = {"syncer": max(blog.stop(), *(run.peak_bytes for run in renames["syncer, one rename"]))}
        say("Flink: first fill")
        try:
            fills["Flink, first fill"] = [peer.fill(java)]
            renames |= _renames("Flink", logical, peer, peer.renamed)
            watched["Flink"] = _Watched(peer, bench.seconds)
            peaks["Flink"] = contest.peak_bytes(peer.pid)
        finally:
            peer.end()
    filling, renaming, names = Contest(fills), Contest(renames), list(watched)
    filling.enter(bench.report, "", key="first_fill")
    about = f"Flink {flink_setup.VERSION}, postgres-cdc {flink_setup.CDC_VERSION}"
    renaming.enter(bench.report, f"an author of {posts:,} posts is renamed; {about}; median of {bench.passes}")
    bench.report.milliseconds({name: found.edits for name, found in watched.items()})
    bench.report.record["cpu_milliseconds_per_edit"] = {name: found.used for name, found in watched.items()}
    bench.report.remarks += [f"{name}: CPU ms of an edit at {OFTEN}/s: {found.used}" for name, found in watched.items()]
    yield filling.ratio("syncer, first fill", "Flink, first fill")
    for name in names:
        yield filling.ratio(f"{name}, first fill", "bare loop, first fill")
    yield Figure("Flink: from its start to its first document", fills["Flink, first fill"][0].first_seconds, unit="s")
    yield renaming.ratio("syncer, one rename", "Flink, one rename")
    for name in names:
        yield renaming.ratio(f"{name}, one rename", f"bare loop beside {name}")
    for name, found in watched.items():
        for percent in (50, 99):
            value = percentile(found.edits, percent)
            yield Figure(f"{name}: commit to visible, {OFTEN}/s, p{percent}", value, unit="ms")
        used = sum(found.used.values())
        yield Figure(f"{name}: processor time of an edit, servers too", used, unit="ms")
        yield Figure(f"{name}: documents that differ, after edits and renames", found.differed_before)
        yield Figure(f"{name}: documents that differ, after concurrent changes", found.differed_after)
        yield Figure(f"{name}: documents missing meanwhile, of {_KEPT} that are edited", found.missed)
    for name in names:
        yield memory(f"peak memory of {name}", peaks[name], at_most=MEGABYTES_MAX if name == "syncer" else None)


def _renames(name: str, bench: Bench, blog: Blog, run: Callable[[], Run]) -> dict[str, list[Run]]:
    """Renames, and the bare loop, in turns."""
    bare = partial(blog.bare_loop, blog.loaded_like_it("bare"), last=blog.large)
    takers: dict[str, Callable[[], Run]] = {f"{name}, one rename": run, f"bare loop beside {name}": bare}
    return bench.contest(takers).runs


class Flink(Peer):
    """A job on a copy of the blog."""

    def fill(self, java: list[str]) -> Run:
        """From the start of the process until every document is whole; the index has the document's id as a field."""
        for table in ("users", "posts", "comments"):
            self.sql(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        index = self.index_like_it("documents")
        with self.elasticsearch() as client:
            client.indices.put_mapping(index=index, properties={"id": {"type": "long"}})
            client.indices.put_alias(index=index, name=self.alias)
        whole = 3 * self.posts  # Elasticsearch counts the two comments, which are nested, as documents, too
        return self.measured(partial(self._start, java), self.posts, settled=lambda: self._count_nested() == whole)

    def renamed(self) -> Run:
        """From the commit to the last document."""
        self.settle()
        name = f"Renamed {uuid.uuid4().hex}"
        return self.measured(
            partial(self.sql, RENAME, name, LARGE_AUTHOR),
            self.large,
            settled=lambda: self.count(term={"user.name.raw": name}) == self.large,
        )

    def recover(self, java: list[str]) -> None:
        """Start it again from its last checkpoint, after it has ended."""
        kept = [file.parent for file in (self.folder / "checkpoints").glob("*/chk-*/_metadata")]
        newest = max(kept, key=lambda folder: folder.stat().st_mtime, default=None)
        self._start(java, "" if newest is None else f"SET 'execution.state-recovery.path' = 'file://{newest}';\n")

    def _start(self, java: list[str], first: str = "") -> None:
        """Start it, and return once it writes."""
        postgres, sql = urlsplit(self.dsn), self.folder / "flink.sql"
        source = _SOURCE | {
            "hostname": str(postgres.hostname),
            "port": str(postgres.port),
            "username": str(postgres.username),
            "database-name": self.name,
        }
        job = Path(__file__).with_suffix(".sql").read_text()
        sql.write_text(
            first
            + job.format(
                folder=self.folder,
                source=", ".join(f"'{key}' = '{value}'" for key, value in source.items()),
                elasticsearch=self.endpoints.elasticsearch_url,
                index=self.alias,
            )
        )
        (self.folder / "config.yaml").write_text(f"io.tmp.dirs: {self.folder}\n")
        environment = {"FLINK_CONF_DIR": str(self.folder), "ELASTIC_CLIENT_APIVERSIONING": "true"}
        self.launch([*java, str(sql)], environment, is_ready=lambda: self._count_nested() > 0, seconds=_START_SECONDS)

    def _count_nested(self) -> int:
        with self.elasticsearch() as client:
            client.indices.refresh(index=self.alias)
            found = client.indices.stats(index=self.alias, metric="docs").body
        return int(found["_all"]["primaries"]["docs"]["count"])


class _Watched:
    """Single edits, then much at once, and whether all is as it should be.

    `edits` are milliseconds, and `used` the processor milliseconds of an edit, by process. `missed` is the most
    documents that were missing at once, of those that are always there.
    """

    def __init__(self, blog: Blog, seconds: float) -> None:
        say(f"{blog.name}: {OFTEN} edits a second, for {seconds:.0f} s")
        edits = Edits(blog, shuffled(blog), OFTEN)
        edits.milliseconds(1)  # what is done for the first time is not measured
        own = contest.cpu_seconds(blog.pid)
        with contest.servers_measured(blog.sandbox) as used:
            self.edits = edits.milliseconds(seconds)
        used[PROCESS] = contest.cpu_seconds(blog.pid) - own
        self.used = {process: round(spent * 1000 / len(self.edits), 2) for process, spent in used.items()}
        self.differed_before = _differing_at_last(blog)
        say(f"{blog.name}: {_STIRRERS} sessions change everything at random, for {_STIR_SECONDS:.0f} s")
        with ThreadPoolExecutor() as pool:
            stirring = [pool.submit(_stir, blog, number) for number in range(_STIRRERS)]
            self.missed = _missing_at_most(blog, until=lambda: all(future.done() for future in stirring))
            for future in stirring:
                future.result()
        self.differed_after = _differing_at_last(blog)


def _missing_at_most(blog: Blog, *, until: Callable[[], bool]) -> int:
    """The most posts that realtime GETs did not find at once, of those that are edited and never deleted."""
    ids, most = [str(post) for post in blog.others[-_KEPT:]], 0
    with blog.elasticsearch() as client:
        while not until():
            found = client.mget(index=blog.alias, ids=ids, source=False).body["docs"]
            most = max(most, sum(not doc["found"] for doc in found))
            time.sleep(_APART_SECONDS)
    return most


def _stir(blog: Blog, seed: int) -> None:
    """Change a few authors and posts, again and again; now and then the author of many."""
    chosen, is_over = random.Random(seed), deadline(_STIR_SECONDS)
    posts, gone = blog.others[-_KEPT:], blog.others[:_KEPT]
    with psycopg.connect(blog.dsn, autocommit=True) as connection:
        while not is_over():
            author = LARGE_AUTHOR if chosen.random() < 1 / 500 else chosen.choice(range(1, 21))
            values = {"text": f"Stirred {chosen.random()}", "author": author, "post": chosen.choice(posts)}
            values["gone"] = chosen.choice(gone)
            with suppress(psycopg.errors.ForeignKeyViolation, psycopg.errors.DeadlockDetected):
                connection.execute(chosen.choices(list(_STIRRED), list(_STIRRED.values()))[0], values)
            time.sleep(_APART_SECONDS)


def _differing_at_last(blog: Blog) -> int:
    """How many documents are missing, wrong, or too many, once none is or time is up."""
    is_over = deadline(_SETTLE_SECONDS)
    while True:
        wanted, found = (
            {id_: comparable(document) for id_, document in documents.items()}
            for documents in (blog.expected(), blog.held())
        )
        differing = sum(wanted.get(id_) != found.get(id_) for id_ in wanted.keys() | found.keys())
        if not differing or is_over():
            return differing
        time.sleep(1)


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """A document without what a job of Flink cannot say: the order of an array, an empty array, no field for the id."""
    comments = sorted(json.dumps(comment, sort_keys=True) for comment in document["comments"] or [])
    made = {**document, "comments": comments, "created": datetime.fromisoformat(document["created"])}
    made.pop("id", None)
    return made
