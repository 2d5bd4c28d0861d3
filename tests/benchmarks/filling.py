"""Every document is written, or compared, by one command."""

from __future__ import annotations

from functools import partial

from tests.benchmarks.blog import Blogs
from tests.benchmarks.contest import Contestant, hold
from tests.benchmarks.options import Options
from tests.benchmarks.report import Outcome

_COMMAND_MEGABYTES_MAX = 200


def backfill(blogs: Blogs, options: Options) -> Outcome:
    """Everybody overwrites documents that exist."""
    blog = blogs.even
    loaded = {name: blog.loaded_like_it(name) for name in ("bare", "two", "four")}
    contestants = [
        Contestant(
            name="syncer backfill",
            run=partial(blog.syncer, "backfill", "blogpost"),
            prepare=partial(blog.settle, blog.world.alias),
        ),
        Contestant(
            name="bare loop",
            run=partial(blog.bare_loop, loaded["bare"]),
            prepare=partial(blog.settle, loaded["bare"]),
        ),
        Contestant(
            name="2 in flight",
            run=partial(blog.ceiling, loaded["two"], 2),
            prepare=partial(blog.settle, loaded["two"]),
        ),
        Contestant(
            name="4 in flight",
            run=partial(blog.ceiling, loaded["four"], 4),
            prepare=partial(blog.settle, loaded["four"]),
        ),
    ]
    contest = hold(contestants, passes=options.passes, best_of={"ceiling": ("2 in flight", "4 in flight")})
    return contest.outcome(
        f"{blog.posts:,} existing documents overwritten",
        [
            contest.figure("syncer backfill", "bare loop", at_least=0.9),
            contest.figure("syncer backfill", "ceiling"),
            contest.figure("bare loop", "ceiling"),
            contest.memory("syncer backfill", at_most=_COMMAND_MEGABYTES_MAX),
        ],
    )


def rebuild(blogs: Blogs, options: Options) -> Outcome:
    """Everybody writes an empty index."""
    blog = blogs.even
    contestants = [
        Contestant(
            name="syncer rebuild",
            run=partial(blog.syncer, "index", "rebuild", "blogpost"),
            prepare=lambda: None,
            parts={"syncer rebuild, filling": blog.initial_load_seconds},
        ),
        Contestant(
            name="bare loop",
            run=lambda: blog.bare_loop(f"{blog.world.alias}-bare"),
            prepare=lambda: blog.settle(blog.index_like_it("bare")),
        ),
        Contestant(
            name="ceiling",
            run=lambda: blog.ceiling(f"{blog.world.alias}-four", 4),
            prepare=lambda: blog.settle(blog.index_like_it("four")),
        ),
    ]
    contest = hold(contestants, passes=options.passes)
    return contest.outcome(
        f"an empty index loaded with {blog.posts:,} documents; with and without verification and alias",
        [
            contest.figure("syncer rebuild, filling", "bare loop", at_least=1.0),
            contest.figure("syncer rebuild", "bare loop"),
            contest.figure("syncer rebuild, filling", "ceiling"),
            contest.figure("bare loop", "ceiling"),
            contest.memory("syncer rebuild", at_most=_COMMAND_MEGABYTES_MAX),
        ],
    )


def verify(blogs: Blogs, options: Options) -> Outcome:
    """Documents are compared; the backfill overwrites them."""
    blog = blogs.even
    prepare = partial(blog.settle, blog.world.alias)
    contestants = [
        Contestant(name=f"syncer {name}", run=partial(blog.syncer, name, "blogpost"), prepare=prepare)
        for name in ("verify", "backfill")
    ]
    contest = hold(contestants, passes=options.passes)
    return contest.outcome(
        f"{blog.posts:,} documents compared; the backfill overwrites them",
        [
            contest.figure("syncer verify", "syncer backfill", at_least=1.0),
            contest.memory("syncer verify", at_most=_COMMAND_MEGABYTES_MAX),
        ],
    )
