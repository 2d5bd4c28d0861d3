"""Flink SQL, with its CDC connector and its sink for Elasticsearch, on the same blog, on the same machine.

The job, ``flink.sql``, joins posts, users and comments of a copy of the tables; it runs in one process, as Flink's SQL
client starts it on one machine. Its settings make it quick here: a parallelism of one, a flush every 20 ms and a look
at the log every 10 ms (by default 1 s and 500 ms). A job that starts anew loads all tables again, so syncer and Flink
are measured one after the other, each beside the bare loop.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from syncer.sandbox import Sandbox
from tests.benchmarks import contest, flink_setup
from tests.benchmarks.bulk_work import RENAME, renamed
from tests.benchmarks.contest import PROCESS, Contest, Run
from tests.benchmarks.edits import Edits
from tests.benchmarks.report import MEGABYTES_MAX, Figure, memory, percentile, say
from tests.benchmarks.single_edits import OFTEN, shuffled
from tests.benchmarks.world import LARGE_AUTHOR, Bench, Blog, Peer

_POSTS_MAX = 20_000
_START_SECONDS = 600.0
_SOURCE = {
    "connector": "postgres-cdc",
    "password": "",
    "schema-name": "public",
    "decoding.plugin.name": "pgoutput",
    "scan.incremental.snapshot.enabled": "true",
    "debezium.publication.autocreate.mode": "filtered",
    "debezium.poll.interval.ms": "10",
}


def flink(bench: Bench) -> Iterator[Figure]:
    """Flink SQL on the same work: first fill, rename, and single edits."""
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
        edits, used = dict[str, list[float]](), dict[str, dict[str, float]]()
        edits["syncer"], used["syncer"] = _edited(blog, bench.seconds)
        peaks = {"syncer": max(blog.stop(), *(run.peak_bytes for run in renames["syncer, one rename"]))}
        say("Flink: first fill")
        try:
            fills["Flink, first fill"] = [peer.fill(java)]
            renames |= _renames("Flink", logical, peer, peer.renamed)
            edits["Flink"], used["Flink"] = _edited(peer, bench.seconds)
            peaks["Flink"] = contest.peak_bytes(peer.pid)
        finally:
            peer.end()
    filling, renaming, names = Contest(fills), Contest(renames), list(edits)
    filling.enter(bench.report, "", key="first_fill")
    about = f"Flink {flink_setup.VERSION}, postgres-cdc {flink_setup.CDC_VERSION}"
    renaming.enter(bench.report, f"an author of {posts:,} posts is renamed; {about}; median of {bench.passes}")
    bench.report.milliseconds(edits)
    bench.report.record["cpu_milliseconds_per_edit"] = used
    bench.report.remarks += [f"{name}: CPU ms of an edit at {OFTEN}/s: {found}" for name, found in used.items()]
    yield filling.ratio("syncer, first fill", "Flink, first fill")
    for name in names:
        yield filling.ratio(f"{name}, first fill", "bare loop, first fill")
    yield Figure("Flink: from its start to its first document", fills["Flink, first fill"][0].first_seconds, unit="s")
    yield renaming.ratio("syncer, one rename", "Flink, one rename")
    for name in names:
        yield renaming.ratio(f"{name}, one rename", f"bare loop beside {name}")
    for name, found in edits.items():
        for percent in (50, 99):
            yield Figure(f"{name}: commit to visible, {OFTEN}/s, p{percent}", percentile(found, percent), unit="ms")
        yield Figure(f"{name}: processor time of an edit, servers too", sum(used[name].values()), unit="ms")
    for name in names:
        yield memory(f"peak memory of {name}", peaks[name], at_most=MEGABYTES_MAX if name == "syncer" else None)


def _renames(name: str, bench: Bench, blog: Blog, run: Callable[[], Run]) -> dict[str, list[Run]]:
    """Renames, and the bare loop, in turns."""
    bare = partial(blog.bare_loop, blog.loaded_like_it("bare"), last=blog.large)
    takers: dict[str, Callable[[], Run]] = {f"{name}, one rename": run, f"bare loop beside {name}": bare}
    return bench.contest(takers).runs


def _edited(blog: Blog, seconds: float) -> tuple[list[float], dict[str, float]]:
    """Milliseconds until each single edit was seen, and processor milliseconds of an edit, by process."""
    say(f"{blog.name}: {OFTEN} edits a second, for {seconds:.0f} s")
    edits = Edits(blog, shuffled(blog), OFTEN)
    edits.milliseconds(1)  # what is done for the first time is not measured
    own = contest.cpu_seconds(blog.pid)
    with contest.servers_measured(blog.sandbox) as used:
        found = edits.milliseconds(seconds)
    used[PROCESS] = contest.cpu_seconds(blog.pid) - own
    return found, {process: round(spent * 1000 / len(found), 2) for process, spent in used.items()}


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
