"""Many documents at once: commands that write or compare all, changes that wait for a daemon, and renamed authors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import psycopg

from syncer.relay.loop import PAGE_ROWS
from syncer.worker.loop import BATCH_CHANGES_MAX
from syncer.worker.source import OutboxSource
from tests.benchmarks.report import Figure, Run
from tests.benchmarks.world import ONE_TRANSACTION, Bench, Blog, token

_COMMAND_MEGABYTES_MAX = 200
_SMALL_PASSES = 5


def fill(bench: Bench) -> Iterator[Figure]:
    """A document is applied for the first time."""
    blog = bench.even

    def applied() -> Run:
        aside = blog.folder / "aside"
        blog.document_folder.rename(aside)
        blog.command("apply", "--yes", "--remove", "blogpost")
        aside.rename(blog.document_folder)
        return blog.command("apply", "--yes", part="filling")

    contestants = {"syncer apply": applied, "bare loop": lambda: blog.bare_loop(blog.index_like_it("bare"))}
    report = bench.contest(f"a new index filled with {blog.posts:,} documents; filling: its job alone", contestants)
    yield report.ratio("syncer apply", "bare loop", at_least=0.8)
    yield report.ratio("syncer apply, filling", "bare loop", at_least=0.9)
    yield report.memory("syncer apply", at_most=_COMMAND_MEGABYTES_MAX)


def _over_all(blog: Blog, name: str, part: str = "") -> Run:
    """A command over all documents of a settled index."""
    blog.settle()
    return blog.command(name, "blogpost", part=part, kind=name)


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
    bench.contest(about, {bare: partial(taken, _read), outbox: partial(taken, _handle)})
    # Not before: what is only in the topic would be made up for.
    report = bench.contest(about, {relay: partial(taken, _publish)})
    for name in (outbox, relay):
        yield Figure(f"{name}, changes a second", report.of(name))
        yield report.ratio(name, bare)


def _read(blog: Blog) -> int:
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
    syncer, each = "syncer drain", "syncer drain, a transaction each"
    contestants: dict[str, Callable[[], Run]] = {
        syncer: blog.drained,
        "bare loop": partial(blog.bare_loop, blog.loaded_like_it("bare"), last=blog.large),
        each: partial(blog.drained, each=True),
    }
    about = f"{blog.large:,} changes of distinct posts wait, in one transaction or in one each"
    report = bench.contest(about, contestants)
    for name in (syncer, each):
        yield report.ratio(name, "bare loop", at_least=0.7)
        yield report.ratio(f"{name}, once it writes", "bare loop")
    first = report.of(syncer, "first_seconds")
    yield Figure("from the daemon's start to its first document", first, unit="s")
    yield report.memory(syncer, each)


def fan_out(bench: Bench) -> Iterator[Figure]:
    """Authors of many posts, of some and of few are renamed, from commit to last document."""
    blog = bench.crowded
    bare, last = blog.loaded_like_it("bare"), 0
    contestants: dict[str, Callable[[], Run]] = {"five renames": partial(blog.renamed, times=5)}
    for author, posts in blog.authors.items():
        contestants[f"one rename, {posts:,} posts"] = partial(blog.renamed, author)
        contestants[f"bare loop, {posts:,} posts"] = partial(blog.bare_loop, bare, first=last + 1, last=last + posts)
        last += posts
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


def growth(bench: Bench) -> Iterator[Figure]:
    """The same work with `--posts` posts and with `--to`, by default ten times as many.

    A job's time is its own, and changes count from their commit. The start of a process, which is most of the time of
    a small backfill, would flatter the large one.
    """
    sizes, changes = (bench.posts, bench.to or 10 * bench.posts), bench.posts // 10
    names = ("syncer backfill", "syncer verify", f"syncer, {changes:,} changes", "syncer, a rename", "bare loop")
    of_size = "{}, {:,} posts".format
    report = bench.report

    def backfilled(blog: Blog) -> Run:
        run = _over_all(blog, "backfill", "filling")
        return replace(run, seconds=run.parts["filling"], parts={})

    for posts, passes in zip(sizes, (_SMALL_PASSES, bench.passes), strict=True):
        with bench.blog(posts=posts, large=posts // 10) as blog:
            works: tuple[Callable[[], Run], ...] = (
                partial(backfilled, blog),
                partial(_over_all, blog, "verify"),
                partial(blog.scattered, changes),
                blog.renamed,
                partial(blog.bare_loop, blog.loaded_like_it("bare")),
            )
            contestants = {of_size(name, posts): work for name, work in zip(names, works, strict=True)}
            bench.contest("", contestants, passes=passes)
    report.about = f"{sizes[0]:,} posts, and {sizes[1]:,}; a tenth of them is renamed"
    for name in names:
        small, large = (of_size(name, posts) for posts in sizes)
        goal = None if name == "bare loop" else 0.9
        yield Figure(f"{large} / {sizes[0]:,}", report.of(large) / report.of(small), at_least=goal)
        if name != "bare loop":
            yield report.memory(large)
            larger = report.peak_bytes(large) / report.peak_bytes(small)
            yield Figure(f"peak memory of {large} / {sizes[0]:,}", larger, at_most=1.15)
