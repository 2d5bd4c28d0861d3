"""Many documents at once: commands that write or compare all, changes that wait for a daemon, and renamed authors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import psycopg

from syncer.documents import registry
from syncer.jobs import queue
from syncer.jobs.model import JobKind, find
from syncer.relay.loop import PAGE_ROWS
from syncer.worker.loop import BATCH_CHANGES_MAX
from syncer.worker.source import OutboxSource
from tests.benchmarks import gauges
from tests.benchmarks.report import Figure, Run
from tests.benchmarks.world import ONE_TRANSACTION, Bench, Blog, opensearch, token, two_nodes

_COMMAND_MEGABYTES_MAX = 200
_SMALL_PASSES = 5
_LOOK_SECONDS = 0.1


def fill(bench: Bench) -> Iterator[Figure]:
    """A document is applied for the first time."""
    blog = bench.even
    contestants: dict[str, Callable[[], Run]] = {
        "syncer apply": partial(_applied, blog),
        "bare loop": lambda: blog.bare_loop(blog.index_like_it("bare")),
    }
    report = bench.contest(f"a new index filled with {blog.posts:,} documents; filling: its job alone", contestants)
    yield report.ratio("syncer apply", "bare loop", at_least=0.8)
    yield report.ratio("syncer apply, filling", "bare loop", at_least=0.9)
    yield report.memory("syncer apply", at_most=_COMMAND_MEGABYTES_MAX)


def _applied(blog: Blog) -> Run:
    """The first fill, until all copies of the index are there."""
    aside = blog.folder / "aside"
    blog.document_folder.rename(aside)
    blog.command("apply", "--yes", "--remove", "blogpost")
    aside.rename(blog.document_folder)
    run, ended = blog.command("apply", "--yes", part="filling"), time.monotonic()
    with blog.elasticsearch() as client:
        client.cluster.health(index=blog.alias, wait_for_status="green", timeout="10m")
    copied = time.monotonic() - ended
    return replace(run, seconds=run.seconds + copied, parts={**run.parts, "copies after its end": copied})


def replica(bench: Bench) -> Iterator[Figure]:
    """A document is applied for the first time, with a replica on a second node."""
    with two_nodes(bench) as nodes, nodes.blog(posts=bench.posts, replicas=1) as blog:
        alone, both = "bare loop, no replica", "bare loop, a replica from the start"
        contestants: dict[str, Callable[[], Run]] = {
            "syncer apply": partial(_applied, blog),
            alone: lambda: blog.bare_loop(blog.index_like_it("alone", number_of_replicas=0)),
            both: lambda: blog.bare_loop(blog.index_like_it("both")),
        }
        about = f"a new index filled with {blog.posts:,} documents, until its replica is there, too"
        report = nodes.contest(about, contestants)
    for name in ("syncer apply, filling", "syncer apply"):
        yield report.ratio(name, alone)
        yield report.ratio(name, both)
    yield report.ratio(both, alone)


def _over_all(blog: Blog, name: str, words: str = "") -> Run:
    """A command over all documents of a settled index."""
    blog.settle()
    return blog.command(name, "blogpost", part=words, kind=name)


def backfill(bench: Bench) -> Iterator[Figure]:
    """Every existing document is overwritten by the command."""
    blog = bench.even
    contestants: dict[str, Callable[[], Run]] = {
        "syncer backfill": partial(_over_all, blog, "backfill"),
        "bare loop": partial(blog.bare_loop, blog.loaded_like_it("bare")),
    }
    report = bench.contest(f"{blog.posts:,} existing documents overwritten", contestants)
    yield report.ratio("syncer backfill", "bare loop", at_least=0.9)
    yield report.memory("syncer backfill", at_most=_COMMAND_MEGABYTES_MAX)


def refresh(bench: Bench) -> Iterator[Figure]:
    """The daemon refreshes an index in which no document differs; a backfill overwrites all of them."""
    blog, names = bench.even, ("refresh", "backfill")
    contestants = {name: partial(_job, blog, JobKind(name)) for name in names}
    report = bench.contest(f"{blog.posts:,} equal documents, from the start of the job to its end", contestants)
    blog.stop()
    yield report.ratio(*names, at_least=1.0)
    yield report.ratio(*names, by="cost", called="refresh / backfill, processor time", at_most=0.7)


def _job(blog: Blog, kind: JobKind) -> Run:
    """A job of all documents, written by a daemon."""
    blog.start_idle()
    blog.settle()
    before = blog.cpu_seconds()
    with blog.connect() as connection:
        job = queue.create(connection, registry.named(connection, "blogpost")[0], kind)
        while job is not None and not job.state.is_finished:
            time.sleep(_LOOK_SECONDS)
            job = find(connection, job.id)
    assert job is not None
    assert job.finished_at is not None
    assert job.started_at is not None
    used, seconds = gauges.difference(blog.cpu_seconds(), before), (job.finished_at - job.started_at).total_seconds()
    return Run(documents=blog.posts, seconds=seconds, cpu_seconds=used, peak_bytes=gauges.peak_bytes(blog.pid))


def rebuild(bench: Bench) -> Iterator[Figure]:
    """A new index is loaded, verified and put in place."""
    blog = bench.even
    contestants = {"syncer rebuild": blog.filled, "bare loop": lambda: blog.bare_loop(blog.index_like_it("bare"))}
    about = f"an empty index loaded with {blog.posts:,} documents; filling: without verification and alias"
    report = bench.contest(about, contestants)
    yield report.ratio("syncer rebuild, filling", "bare loop", at_least=1.0)
    yield report.ratio("syncer rebuild", "bare loop")
    yield report.memory("syncer rebuild", at_most=_COMMAND_MEGABYTES_MAX)


def verify(bench: Bench) -> Iterator[Figure]:
    """Every document is compared with its SELECT; the backfill overwrites it."""
    contestants = {f"syncer {name}": partial(_over_all, bench.even, name) for name in ("verify", "backfill")}
    report = bench.contest(f"{bench.posts:,} documents compared; the backfill overwrites them", contestants)
    yield report.ratio("syncer verify", "syncer backfill", at_least=1.0)
    yield report.memory("syncer verify", at_most=_COMMAND_MEGABYTES_MAX)


def audit(bench: Bench) -> Iterator[Figure]:
    """The same index compared as one that syncer writes, and as one of another program."""
    blog, ours, others = bench.even, "syncer verify", "syncer verify --select"

    def compared() -> Run:
        return blog.command("verify", "--select", str(blog.select_file), "--index", blog.alias)

    report = bench.contest(f"{bench.posts:,} documents", {ours: partial(_over_all, blog, "verify"), others: compared})
    yield report.ratio(others, ours, by="seconds", called=f"{others} / {ours}, seconds", at_most=1.2)
    yield report.memory(others, at_most=_COMMAND_MEGABYTES_MAX)


def sources(bench: Bench) -> Iterator[Figure]:
    """Changes a second that the relay and the outbox source read and save as done, without Elasticsearch."""
    blog = bench.even

    def taken(take: Callable[[Blog], int]) -> Run:
        blog.sql(ONE_TRANSACTION.format(token=token(), posts=blog.posts))
        began = time.monotonic()
        changes = take(blog)
        return Run(documents=changes, seconds=time.monotonic() - began)

    outbox, relay, bare = "outbox source", "relay", "a plain cursor"
    about = f"{blog.posts:,} changes of one transaction, read and saved as done, and nothing else"
    bench.contest(about, {bare: partial(taken, _read_all), outbox: partial(taken, _handle)})
    # Not before: what is only in the topic would be made up for.
    report = bench.contest(about, {relay: partial(taken, _publish)})
    for name in (outbox, relay):
        yield Figure(f"{name}, changes a second", report.of(name))
        yield report.ratio(name, bare)


def _read_all(blog: Blog) -> int:
    with psycopg.connect(blog.dsn) as connection, connection.cursor("changes") as cursor:
        cursor.itersize = PAGE_ROWS
        return sum(1 for _ in cursor.execute("SELECT row_to_json(o)::text FROM syncer.outbox AS o"))


def _handle(blog: Blog) -> int:
    source = OutboxSource(connect=blog.connect, settings=blog.settings.relay, pause=time.sleep)
    changes = 0
    while changes < blog.posts:
        batch = source.receive(records_max=BATCH_CHANGES_MAX, wait_seconds=1)
        if batch is not None:
            source.save(batch)
            changes += len(batch.changes)
    source.close()
    return changes


def _publish(blog: Blog) -> int:
    changes = 0
    with blog.relay() as relay:
        while changes < blog.posts:
            changes += relay.run_once().published
    return changes


def drain(bench: Bench) -> Iterator[Figure]:
    """Changes have been waiting for a daemon, and it is started."""
    blog = bench.crowded
    syncer, one_by_one = "syncer drain", "syncer drain, a transaction each"
    contestants: dict[str, Callable[[], Run]] = {
        syncer: blog.drained,
        "bare loop": partial(blog.bare_loop, blog.loaded_like_it("bare"), last=blog.large),
        one_by_one: partial(blog.drained, each=True),
    }
    about = f"{blog.large:,} changes of distinct posts wait, in one transaction or in one each"
    report = bench.contest(about, contestants)
    for name in (syncer, one_by_one):
        yield report.ratio(name, "bare loop", at_least=0.7)
        yield report.ratio(f"{name}, once it writes", "bare loop")
    first_seconds = report.of(syncer, "first_seconds")
    yield Figure("from the daemon's start to its first document", first_seconds, unit="s")
    yield report.memory(syncer, one_by_one)


def fan_out(bench: Bench) -> Iterator[Figure]:
    """Authors of many posts, of some and of few are renamed, from commit to last document."""
    blog = bench.crowded
    bare, last_post = blog.loaded_like_it("bare"), 0
    contestants: dict[str, Callable[[], Run]] = {"five renames": partial(blog.renamed, times=5)}
    for author, posts in blog.authors.items():
        contestants[f"one rename, {posts:,} posts"] = partial(blog.renamed, author)
        contestants[f"bare loop, {posts:,} posts"] = partial(
            blog.bare_loop, bare, first=last_post + 1, last=last_post + posts
        )
        last_post += posts
    sizes = list(blog.authors.values())
    report = bench.contest(f"an author of {', '.join(f'{posts:,}' for posts in sizes)} posts is renamed", contestants)
    blog.stop()
    for posts in sizes:
        at_least = 0.85 if posts == blog.large else None
        yield report.ratio(f"one rename, {posts:,} posts", f"bare loop, {posts:,} posts", at_least=at_least)
    large, middle = (f"one rename, {posts:,} posts" for posts in sizes[:2])
    yield Figure(f"commit to last document, {blog.middle:,} posts", report.of(middle, "seconds"), unit="s", at_most=1.0)
    yield report.ratio("five renames", large, by="seconds", called="five renames / one, seconds", at_most=2.0)
    called = "five renames / one, documents written"
    yield report.ratio("five renames", large, by="writes", called=called, at_most=2.0)
    yield report.memory(large, middle, "five renames")


def search_servers(bench: Bench) -> Iterator[Figure]:
    """A backfill, a verification and a rename with OpenSearch, beside Elasticsearch."""
    contestants: dict[str, Callable[[], Run]] = {}
    with ExitStack() as stack:
        benches = bench, stack.enter_context(opensearch(bench))
        blogs = [stack.enter_context(servers.blog(posts=bench.posts, large=bench.posts)) for servers in benches]
        for work in ("backfill", "verify", "rename"):
            for blog in blogs:
                run = blog.renamed if work == "rename" else partial(_over_all, blog, work)
                contestants[f"{work}, {blog.sandbox.elasticsearch.name}"] = run
        report = bench.contest(f"{bench.posts:,} documents, with both servers in turn", contestants)
        for blog in blogs:
            blog.stop()
    for work in ("backfill", "verify", "rename"):
        names = f"{work}, OpenSearch", f"{work}, Elasticsearch"
        yield report.ratio(*names, at_least=0.9)
        yield report.ratio(*names, by="cost", called=f"{work}, OpenSearch / Elasticsearch, processor time")


def growth(bench: Bench) -> Iterator[Figure]:
    """The same work with `--posts` small posts and with `--to`, by default ten times as many; and what survives a kill.

    Changes count from their commit; of the first fill, its job's time. Indices are not merged between runs.
    """
    sizes, changes = (bench.posts, bench.to or 10 * bench.posts), bench.posts // 10
    scattered, renamed, verified = f"{changes:,} changes", "a rename", "verify"
    renamed_through_kill, verified_after_kill = "a rename, killed half-way", "verify after a killed one"
    of_size, report = "{}, {:,} posts".format, bench.report
    for posts, passes in zip(sizes, (_SMALL_PASSES, bench.passes), strict=True):
        with bench.blog(posts=posts, large=posts // 10, sentences=1, is_merged=False) as blog:

            def watched(name: str, work: Callable[[], Run], blog: Blog = blog) -> tuple[str, Callable[[], Run]]:
                def run() -> Run:
                    with gauges.footprint(blog.dsn) as footprint:
                        run = work()
                    most = report.rows.setdefault(f"{name}, in Postgres", footprint)
                    most.update({gauge: max(most[gauge], value) for gauge, value in footprint.items()})
                    return run

                return name, run

            first_fill = blog.first_fill
            assert first_fill is not None
            report.add(of_size("first fill", posts), replace(first_fill, seconds=first_fill.parts["filling"], parts={}))
            bench.contest("", {of_size("bare loop, first fill", posts): blog.filled_by_the_bare_loop}, passes=1)
            works: dict[str, Callable[[], Run]] = {
                verified: partial(_over_all, blog, "verify"),
                scattered: partial(blog.scattered, changes),
                renamed: blog.renamed,
            }
            bench.contest("", dict(watched(of_size(name, posts), work) for name, work in works.items()), passes=passes)
            half = report.of(of_size(verified, posts), "seconds") / 2
            works = {
                renamed_through_kill: blog.renamed_through_a_kill,
                verified_after_kill: partial(blog.verified_after_a_kill, half),
            }
            bench.contest("", dict(watched(of_size(name, posts), work) for name, work in works.items()), passes=1)
    report.about = f"{sizes[0]:,} posts, and {sizes[1]:,}, with bodies of 100 bytes; a tenth of them is renamed"
    small, large = sizes
    for name in ("first fill", "bare loop, first fill", verified, scattered, renamed):
        ratio = report.of(of_size(name, large)) / report.of(of_size(name, small))
        goal = None if name.startswith("bare loop") else 0.9
        yield Figure(f"{of_size(name, large)} / {small:,}", ratio, at_least=goal)
    for name, killed in ((renamed, renamed_through_kill), (verified, verified_after_kill)):
        ratio = report.of(of_size(killed, large), "seconds") / report.of(of_size(name, large), "seconds")
        yield Figure(f"{of_size(killed, large)} / without a kill, seconds", ratio)
    for name in ("first fill", verified, scattered, renamed):
        yield report.memory(of_size(name, large))
    for gauge, most in (("longest transaction, s", 1.0), ("outbox MB", None), ("jobs MB", None)):
        rows = [row for name, row in report.rows.items() if f"{large:,} posts" in name]
        yield Figure(f"{gauge}, {large:,} posts", max(row[gauge] for row in rows), at_most=most)
