"""Growth: the same work in a blog of ten thousand posts and in one of a million.

Documents per second are taken from a job's own times, or from a commit on: the start of a process, which is most of the
time of a small backfill, would flatter the large one.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psycopg

from tests.benchmarks.blog import Blog, Blogs
from tests.benchmarks.contest import MEGABYTES_MAX, say
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome

SMALL, LARGE = 10_000, 1_000_000
_CHANGES = 10_000
_RUNS_SMALL = 5
_FLAT = 1.15
_CHANGE = "UPDATE posts SET title = 'Post ' || id || ' ' || %s WHERE id = ANY (%s)"
_BACKFILL, _BARE, _DRAIN = "syncer backfill", "bare loop", "syncer, 10,000 changes"


@dataclass(slots=True)
class _Grown:
    """What one blog took.

    Args:
        rates: Documents per second of every run, by what ran.
        peaks: The most memory, likewise.
    """

    rates: dict[str, list[float]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, rate: float, peak_bytes: int) -> None:
        """Add a run."""
        self.rates.setdefault(name, []).append(rate)
        self.peaks[name] = max(self.peaks.get(name, 0), peak_bytes / 1e6)

    def rate(self, name: str) -> float:
        """The median of the runs."""
        return median(self.rates[name])

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            name: {"documents_per_second": [round(one) for one in rates], "peak_megabytes": round(self.peaks[name])}
            for name, rates in self.rates.items()
        }


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Backfills, the bare loop, and changes spread over all posts, in a small blog and in a large one."""
    grown = {}
    for posts, runs in ((SMALL, _RUNS_SMALL), (LARGE, options.passes)):
        with blogs.blog(posts=posts) as blog:
            grown[posts] = _grow(blog, runs, options)
    small, large = grown[SMALL], grown[LARGE]
    names = (_BACKFILL, _DRAIN, _BARE)
    return Outcome(
        about=f"{SMALL:,} posts, and {LARGE:,}; medians of {_RUNS_SMALL} and {options.passes}",
        columns=("documents/s", f"{SMALL:,} posts", f"{LARGE:,} posts", "peak MB", "peak MB"),
        rows=[
            [
                name,
                *(f"{one.rate(name):,.0f}" for one in (small, large)),
                *(f"{one.peaks[name]:.0f}" for one in (small, large)),
            ]
            for name in names
        ],
        figures=[
            *(
                Figure(
                    what=f"{name}, {LARGE:,} posts / {SMALL:,}",
                    value=large.rate(name) / small.rate(name),
                    at_least=None if name == _BARE else 0.9,
                )
                for name in names
            ),
            *(
                Figure(what=f"peak memory of {name}", value=large.peaks[name], unit="MB", at_most=MEGABYTES_MAX)
                for name in (_BACKFILL, _DRAIN)
            ),
            *(
                Figure(
                    what=f"peak memory of {name}, {LARGE:,} posts / {SMALL:,}",
                    value=large.peaks[name] / small.peaks[name],
                    at_most=_FLAT,
                )
                for name in (_BACKFILL, _DRAIN)
            ),
        ],
        record={f"{posts}": one.as_json() for posts, one in grown.items()},
    )


def _grow(blog: Blog, runs: int, options: Options) -> _Grown:
    found = _Grown()
    bare = blog.loaded_like_it("bare")
    live = Live(blog, is_profiled=options.is_profiled)
    for number in range(runs):
        say(f"{blog.posts:,} posts, run {number + 1} of {runs}")
        blog.settle(blog.world.alias)
        peak = blog.syncer("backfill", "blogpost").peak_bytes
        found.add(_BACKFILL, blog.posts / blog.initial_load_seconds("backfill"), peak)
        blog.settle(bare)
        run = blog.bare_loop(bare)
        found.add(_BARE, run.rate, run.peak_bytes)
        blog.settle(blog.world.alias)
        live.start_idle()
        _drain(blog, live, found)
        live.stop()
    return found


def _drain(blog: Blog, live: Live, found: _Grown) -> None:
    token = f"t{uuid.uuid4().hex[:8]}"
    changed = random.sample(range(1, blog.posts + 1), _CHANGES)
    with psycopg.connect(blog.world.dsn, autocommit=True) as connection:

        def change() -> None:
            connection.execute(_CHANGE, (token, changed))

        run, _ = live.measured(change, _CHANGES)
    if (seen := blog.count(match={"title": token})) != _CHANGES:
        raise RuntimeError(f"{seen:,} documents show the change, not {_CHANGES:,}")
    found.add(_DRAIN, run.rate, run.peak_bytes)
