"""Drain: changes have been waiting for a daemon, and one is started."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import partial

import psycopg

from tests.benchmarks.blog import Blog, Blogs
from tests.benchmarks.contest import Contestant, Run, hold
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome

ONE_TRANSACTION = "UPDATE posts SET title = 'Post ' || id || ' {token}' WHERE id <= {posts}"
_TRANSACTION_EACH = """
DO $$ BEGIN
    FOR n IN 1..{posts} LOOP
        UPDATE posts SET title = 'Post ' || id || ' {token}' WHERE id = n;
        COMMIT;
    END LOOP;
END $$
"""
_SYNCER, _SYNCER_EACH, _BARE = "syncer drain", "syncer drain, a transaction each", "bare loop"
_SYNCER_AFTER, _EACH_AFTER = f"{_SYNCER}, once it writes", f"{_SYNCER_EACH}, once it writes"


@dataclass(slots=True)
class Drain:
    """Changes of the first posts, all distinct.

    Args:
        blog: Whose posts.
        live: The daemon that is started.
        change: The statement that changes them.
        seconds_writing: Of the last run: from its first document to its last.
    """

    blog: Blog
    live: Live
    change: str
    token: str = ""
    seconds_writing: float = 0

    def prepare(self) -> None:
        """Change the posts while no daemon runs."""
        self.token = f"t{uuid.uuid4().hex[:8]}"
        self.blog.settle(self.blog.world.alias)
        with psycopg.connect(self.blog.world.dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")  # how long this takes is not measured
            connection.execute(self.change.format(token=self.token, posts=self.blog.large))
            connection.execute("VACUUM ANALYZE posts")
            connection.execute("CHECKPOINT")

    def run(self) -> Run:
        """From the daemon's start to the last document; then it is stopped."""
        run, span = self.live.measured(self.live.start, self.blog.large)
        self.seconds_writing = span.last_at - span.first_at
        self.live.stop()
        if (found := self.blog.count(match={"title": self.token})) != self.blog.large:
            raise RuntimeError(f"{found:,} documents show the change, not {self.blog.large:,}")
        return replace(run, peak_bytes=max(run.peak_bytes, self.live.peak_bytes))


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Changes wait; the daemon is started."""
    blog = blogs.crowded
    live = Live(blog, is_profiled=options.is_profiled)
    bare = blog.loaded_like_it("bare")
    together = Drain(blog, live, ONE_TRANSACTION)
    each = Drain(blog, live, _TRANSACTION_EACH)
    contestants = [
        Contestant(
            name=_SYNCER,
            run=together.run,
            prepare=together.prepare,
            parts={_SYNCER_AFTER: lambda: together.seconds_writing},
        ),
        Contestant(
            name=_BARE,
            run=partial(blog.bare_loop, bare, 1, blog.large),
            prepare=partial(blog.settle, bare),
        ),
        Contestant(
            name=_SYNCER_EACH,
            run=each.run,
            prepare=each.prepare,
            parts={_EACH_AFTER: lambda: each.seconds_writing},
        ),
    ]
    contest = hold(contestants, passes=options.passes)
    whole, writing = (contest.of(name, lambda run: run.seconds) for name in (_SYNCER, _SYNCER_AFTER))
    return contest.outcome(
        f"{blog.large:,} changes of distinct posts wait, in one transaction or in one each, and the daemon is started",
        [
            contest.figure(_SYNCER, _BARE, at_least=0.7),
            contest.figure(_SYNCER_AFTER, _BARE),
            contest.figure(_SYNCER_EACH, _BARE, at_least=0.7),
            contest.figure(_EACH_AFTER, _BARE),
            Figure(what="from the daemon's start to its first document", value=whole - writing, unit="s"),
            contest.memory(_SYNCER, _SYNCER_EACH),
        ],
        remarks=live.remarks(),
    )
