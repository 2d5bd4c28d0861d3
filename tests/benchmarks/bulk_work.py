"""Many documents at once: commands that write or compare all, changes that wait for a daemon, and renamed authors."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import psycopg

from tests.benchmarks.contest import Contest, Run
from tests.benchmarks.report import Figure
from tests.benchmarks.world import LARGE_AUTHOR, MIDDLE_AUTHOR, Bench, Blog

ONE_TRANSACTION = "UPDATE posts SET title = 'Post ' || id || ' {token}' WHERE id <= {posts}"
RENAME = "UPDATE users SET name = %s WHERE id = %s"
_TRANSACTION_EACH = """
DO $$ BEGIN
    FOR n IN 1..{posts} LOOP
        UPDATE posts SET title = 'Post ' || id || ' {token}' WHERE id = n;
        COMMIT;
    END LOOP;
END $$
"""
_SPREAD = "UPDATE posts SET title = 'Post ' || id || ' ' || %s WHERE id = ANY (%s)"
_COMMAND_MEGABYTES_MAX = 200
_SMALL_PASSES = 5


def backfill(bench: Bench) -> Iterator[Figure]:
    """Every existing document is overwritten by the command."""
    blog = bench.even
    bare, ceiling = blog.loaded_like_it("bare"), blog.loaded_like_it("ceiling")

    def best() -> Run:
        """The better of two and four requests in flight."""
        return max((blog.ceiling(ceiling, in_flight=number) for number in (2, 4)), key=lambda run: run.rate)

    takers: dict[str, Callable[[], Run]] = {
        "syncer backfill": partial(_command, blog, "backfill"),
        "bare loop": partial(blog.bare_loop, bare),
        "ceiling": best,
    }
    contest = bench.contest(takers, f"{blog.posts:,} existing documents overwritten")
    yield contest.ratio("syncer backfill", "bare loop", at_least=0.9)
    yield contest.ratio("syncer backfill", "ceiling")
    yield contest.ratio("bare loop", "ceiling")
    yield contest.memory("syncer backfill", at_most=_COMMAND_MEGABYTES_MAX)


def rebuild(bench: Bench) -> Iterator[Figure]:
    """A new index is loaded, verified and put in place."""
    blog = bench.even

    def rebuilt() -> Run:
        run = blog.command("index", "rebuild", "blogpost")
        return replace(run, parts={"filling": blog.job_seconds("initial_load")})

    takers = {
        "syncer rebuild": rebuilt,
        "bare loop": lambda: blog.bare_loop(blog.index_like_it("bare")),
        "ceiling": lambda: blog.ceiling(blog.index_like_it("ceiling")),
    }
    about = f"an empty index loaded with {blog.posts:,} documents; filling: without verification and alias"
    contest = bench.contest(takers, about)
    yield contest.ratio("syncer rebuild, filling", "bare loop", at_least=1.0)
    yield contest.ratio("syncer rebuild", "bare loop")
    yield contest.ratio("syncer rebuild, filling", "ceiling")
    yield contest.ratio("bare loop", "ceiling")
    yield contest.memory("syncer rebuild", at_most=_COMMAND_MEGABYTES_MAX)


def fill(bench: Bench) -> Iterator[Figure]:
    """A document is applied for the first time."""
    blog = bench.even

    def applied() -> Run:
        aside = blog.folder / "aside"
        blog.document_folder.rename(aside)
        blog.command("apply", "--yes", "--remove", "blogpost")
        aside.rename(blog.document_folder)
        run = blog.command("apply", "--yes")
        return replace(run, parts={"filling": blog.job_seconds("initial_load")})

    takers = {"syncer apply": applied, "bare loop": lambda: blog.bare_loop(blog.index_like_it("bare"))}
    contest = bench.contest(takers, f"a new index filled with {blog.posts:,} documents; filling: its job alone")
    yield contest.ratio("syncer apply", "bare loop", at_least=0.8)
    yield contest.ratio("syncer apply, filling", "bare loop", at_least=0.9)
    yield contest.memory("syncer apply", at_most=_COMMAND_MEGABYTES_MAX)


def verify(bench: Bench) -> Iterator[Figure]:
    """Every document is compared with its SELECT; the backfill overwrites it."""
    takers = {f"syncer {name}": partial(_command, bench.even, name) for name in ("verify", "backfill")}
    contest = bench.contest(takers, f"{bench.posts:,} documents compared; the backfill overwrites them")
    yield contest.ratio("syncer verify", "syncer backfill", at_least=1.0)
    yield contest.memory("syncer verify", at_most=_COMMAND_MEGABYTES_MAX)


def _command(blog: Blog, name: str) -> Run:
    blog.settle()
    return blog.command(name, "blogpost")


def drained(blog: Blog, change: str = ONE_TRANSACTION) -> Run:
    """Change the large author's posts while no daemon runs; from the daemon's start to the last document."""
    token = f"t{uuid.uuid4().hex[:8]}"
    blog.stop()
    blog.settle()
    with psycopg.connect(blog.dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")  # how long this takes is not measured
        connection.execute(change.format(token=token, posts=blog.large))
        connection.execute("VACUUM ANALYZE posts")
        connection.execute("CHECKPOINT")
    run = blog.measured(blog.start, blog.large)
    blog.stop()
    blog.check(blog.large, match={"title": token})
    return replace(run, parts={"once it writes": run.seconds - run.first_seconds})


def drain(bench: Bench) -> Iterator[Figure]:
    """Changes have been waiting for a daemon, and it is started."""
    blog = bench.crowded
    syncer, each = "syncer drain", "syncer drain, a transaction each"
    takers = {
        syncer: partial(drained, blog),
        "bare loop": partial(blog.bare_loop, blog.loaded_like_it("bare"), last=blog.large),
        each: partial(drained, blog, _TRANSACTION_EACH),
    }
    about = f"{blog.large:,} changes of distinct posts wait, in one transaction or in one each"
    contest = bench.contest(takers, about)
    for name in (syncer, each):
        yield contest.ratio(name, "bare loop", at_least=0.7)
        yield contest.ratio(f"{name}, once it writes", "bare loop")
    first = contest.of(syncer, lambda run: run.first_seconds)
    yield Figure("from the daemon's start to its first document", first, unit="s")
    yield contest.memory(syncer, each)


def renamed(blog: Blog, *, author: int = LARGE_AUTHOR, times: int = 1) -> Run:
    """Rename an author so many times, one transaction right after the other, while a daemon runs that is idle.

    From the first commit to the last document; every document must show the last name.
    """
    posts = blog.large if author == LARGE_AUTHOR else blog.middle
    names = [f"Renamed {uuid.uuid4().hex}" for _ in range(times)]
    blog.stop()
    blog.settle()
    blog.start_idle()
    with psycopg.connect(blog.dsn, autocommit=True) as connection:

        def rename(*names: str) -> None:
            for name in names:
                connection.execute(RENAME, (name, author))

        run = blog.measured(partial(rename, names[0]), posts, then=partial(rename, *names[1:]))
    blog.check(posts, term={"user.name.raw": names[-1]})
    return run


def fan_out(bench: Bench) -> Iterator[Figure]:
    """An author is renamed, from commit to last document."""
    blog = bench.crowded
    bare = blog.loaded_like_it("bare")

    def bare_loop(first: int, last: int) -> Run:
        blog.stop()
        return blog.bare_loop(bare, first=first, last=last)

    single, five, middle = "one rename", "five renames", "one rename, fewer posts"
    takers = {
        single: partial(renamed, blog),
        "bare loop": partial(bare_loop, 1, blog.large),
        five: partial(renamed, blog, times=5),
        middle: partial(renamed, blog, author=MIDDLE_AUTHOR),
        "bare loop, fewer posts": partial(bare_loop, blog.large + 1, blog.large + blog.middle),
    }
    contest = bench.contest(takers, f"an author of {blog.large:,} posts is renamed, and one of {blog.middle:,}")
    blog.stop()
    yield contest.ratio(single, "bare loop", at_least=0.85)
    seconds = contest.of(middle, lambda run: run.seconds)
    yield Figure(f"commit to last document, {blog.middle:,} posts", seconds, unit="s", at_most=1.0)
    slower = 1 / contest.ratio(five, single).value
    yield Figure("five renames / one, seconds", slower, at_most=2.0)
    writes = contest.of(five, lambda run: run.writes) / contest.of(single, lambda run: run.writes)
    yield Figure("five renames / one, documents written", writes, at_most=2.0)
    yield contest.memory(single, five, middle)


def growth(bench: Bench) -> Iterator[Figure]:
    """The same work with a tenth of the posts, and with ten times as many.

    A backfill's time is its job's own, and changes count from their commit. The start of a process, which is most of
    the time of a small backfill, would flatter the large one.
    """
    sizes = small, large = bench.posts // 10, bench.posts * 10
    names = ("syncer backfill", f"syncer, {small:,} changes", "bare loop")
    contest = Contest({})
    for posts, passes in zip(sizes, (_SMALL_PASSES, bench.passes), strict=True):
        with bench.blog(posts=posts) as blog:
            bare = partial(blog.bare_loop, blog.loaded_like_it("bare"))
            takers = dict(zip(names, (partial(_backfilled, blog), partial(_spread, blog, small), bare), strict=True))
            runs = replace(bench, passes=passes).contest(takers).runs
            contest.runs |= {f"{name}, {posts:,} posts": found for name, found in runs.items()}
    about = f"{small:,} posts, and {large:,}; medians of {_SMALL_PASSES} and {bench.passes}"
    contest.enter(bench.report, about)
    for name in names:
        rates = [contest.of(f"{name}, {posts:,} posts") for posts in sizes]
        goal = None if name == "bare loop" else 0.9
        yield Figure(f"{name}, {large:,} posts / {small:,}", rates[1] / rates[0], at_least=goal)
    for name in names[:2]:
        peaks = [contest.peak_bytes(f"{name}, {posts:,} posts") for posts in sizes]
        yield replace(contest.memory(f"{name}, {large:,} posts"), what=f"peak memory of {name}")
        yield Figure(f"peak memory of {name}, {large:,} posts / {small:,}", peaks[1] / peaks[0], at_most=1.15)


def _backfilled(blog: Blog) -> Run:
    return replace(_command(blog, "backfill"), seconds=blog.job_seconds("backfill"))


def _spread(blog: Blog, changes: int) -> Run:
    """Change posts that are spread over all, in one transaction, while a daemon runs that is idle."""
    token = f"t{uuid.uuid4().hex[:8]}"
    posts = random.sample(range(1, blog.posts + 1), changes)
    blog.settle()
    blog.start_idle()
    with psycopg.connect(blog.dsn, autocommit=True) as connection:
        run = blog.measured(partial(connection.execute, _SPREAD, (token, posts)), changes)
    blog.stop()
    blog.check(changes, match={"title": token})
    return run
