"""Fan-out: an author is renamed, and all of his posts show it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial

import psycopg

from tests.benchmarks.blog import LARGE_AUTHOR, MIDDLE_AUTHOR, Blog, Blogs
from tests.benchmarks.contest import Contestant, Run, hold
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome

_ONE, _FIVE, _MIDDLE = "one rename", "five renames", "one rename, fewer posts"
_BARE, _BARE_MIDDLE = "bare loop", "bare loop, fewer posts"


@dataclass(slots=True)
class Renames:
    """Renames of one author, each a transaction of its own, one right after the other."""

    blog: Blog
    live: Live
    author: int
    posts: int
    times: int = 1

    def prepare(self) -> None:
        """Settle, and have a daemon that is idle."""
        self.live.stop()
        self.blog.settle(self.blog.world.alias)
        self.live.start_idle()

    def run(self) -> Run:
        """From the first commit to the last document; every document must show the last name."""
        names = [f"Renamed {uuid.uuid4().hex}" for _ in range(self.times)]
        with psycopg.connect(self.blog.world.dsn, autocommit=True) as connection:

            def rename(name: str) -> None:
                connection.execute("UPDATE users SET name = %s WHERE id = %s", (name, self.author))

            def go_on() -> None:
                for name in names[1:]:
                    rename(name)

            run, _ = self.live.measured(partial(rename, names[0]), self.posts, then=go_on)
        found = self.blog.count(term={"user.name.raw": names[-1]})
        if found != self.posts:
            raise RuntimeError(f"{found:,} documents show the last name, not {self.posts:,}")
        return run


def measure(blogs: Blogs, options: Options) -> Outcome:
    """An author is renamed while a daemon runs that has nothing else to do."""
    blog = blogs.crowded
    live = Live(blog, is_profiled=options.is_profiled)
    bare = blog.loaded_like_it("bare")

    def settle_bare() -> None:
        live.stop()
        blog.settle(bare)

    def renames(name: str, author: int, posts: int, times: int = 1) -> Contestant:
        made = Renames(blog, live, author, posts, times)
        return Contestant(name=name, run=made.run, prepare=made.prepare)

    last_middle = blog.large + blog.middle
    contestants = [
        renames(_ONE, LARGE_AUTHOR, blog.large),
        Contestant(name=_BARE, run=partial(blog.bare_loop, bare, 1, blog.large), prepare=settle_bare),
        renames(_FIVE, LARGE_AUTHOR, blog.large, times=5),
        renames(_MIDDLE, MIDDLE_AUTHOR, blog.middle),
        Contestant(
            name=_BARE_MIDDLE,
            run=partial(blog.bare_loop, bare, blog.large + 1, last_middle),
            prepare=settle_bare,
        ),
    ]
    contest = hold(contestants, passes=options.passes)
    live.stop()
    seconds = contest.of(_MIDDLE, lambda run: run.seconds)
    writes = contest.of(_FIVE, lambda run: run.writes) / contest.of(_ONE, lambda run: run.writes)
    return contest.outcome(
        f"an author of {blog.large:,} posts is renamed, and one of {blog.middle:,}",
        [
            contest.figure(_ONE, _BARE, at_least=0.85),
            Figure(what=f"commit to last document, {blog.middle:,} posts", value=seconds, unit="s", at_most=1.0),
            Figure(what="five renames / one, seconds", value=1 / contest.ratio(_FIVE, _ONE), at_most=2.0),
            Figure(what="five renames / one, documents written", value=writes, at_most=2.0),
            contest.memory(_ONE, _FIVE, _MIDDLE),
        ],
        remarks=live.remarks(),
    )
