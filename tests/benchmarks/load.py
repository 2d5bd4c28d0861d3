"""Load: what a change costs, and how soon it is seen, by how many come in a second."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle
from statistics import median

import psycopg

from tests.benchmarks.blog import Blog, Blogs
from tests.benchmarks.contest import MEGABYTES_MAX, say
from tests.benchmarks.edits import Edits, milliseconds
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome, percentile

_PACES = (50, 200, 1000)
_WATCHED_PER_SECOND = 20
_EDIT = "UPDATE posts SET title = %s WHERE id = %s"


@dataclass(slots=True)
class _Found:
    """What was found at one pace.

    Args:
        per_second: How many changes came, really.
        cost: Milliseconds of processor time for each change, by who used them; one of each pass.
        milliseconds: From commit until visible, of some of them.
    """

    per_second: list[float] = field(default_factory=list)
    cost: list[dict[str, float]] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        """Milliseconds for each change, of all that took part."""
        return median(sum(one.values()) for one in self.cost)

    def of(self, name: str) -> float:
        """Milliseconds for each change, of one of them."""
        return median(one[name] for one in self.cost)


class _Writer:
    """An application that edits one post after the other, at an even pace, or as fast as it can."""

    def __init__(self, blog: Blog, posts: Sequence[int], per_second: float) -> None:
        self._blog = blog
        self._posts = posts
        self._per_second = per_second
        self._is_over = threading.Event()
        self.edits = 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Until the block ends."""
        thread = threading.Thread(target=self._write, name="writer")
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._blog.world.dsn, autocommit=True) as connection:
            began = time.monotonic()
            for number, post in zip(count(), cycle(self._posts), strict=False):
                due = began + number / self._per_second
                if self._is_over.wait(max(0.0, due - time.monotonic())):
                    return
                connection.execute(_EDIT, (f"Post {post} one at a time {number}", post), prepare=True)
                self.edits += 1


def _go_on(blog: Blog, live: Live, pace: int, seconds: float) -> tuple[float, dict[str, float], list[float]]:
    """Changes a second, milliseconds of processor time for each, and milliseconds until some were seen.

    Looking for changes costs Elasticsearch as much as writing them, so it has a time of its own.
    """
    posts = random.sample(blog.others, len(blog.others))
    half = len(posts) // 2
    writer = _Writer(blog, posts, pace)
    before, began = live.cpu_seconds(), time.monotonic()
    with writer.at_work():
        time.sleep(seconds / 2)
    live.wait_settled()
    rate = writer.edits / (time.monotonic() - began)
    cost = {name: (used - before[name]) * 1000 / writer.edits for name, used in live.cpu_seconds().items()}
    with _Writer(blog, posts[:half], pace - _WATCHED_PER_SECOND).at_work():
        watched = Edits(blog, posts[half:], _WATCHED_PER_SECOND).go_on_for(seconds / 2)
    live.wait_settled()
    return rate, cost, milliseconds(watched)


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Each pace one at a time, pass by pass, while a daemon runs."""
    blog = blogs.crowded
    live = Live(blog, is_profiled=options.is_profiled)
    found = {pace: _Found() for pace in _PACES}
    blog.settle(blog.world.alias)
    live.start_idle()
    _go_on(blog, live, _PACES[-1], 1)  # what is done for the first time is not measured
    for number in range(options.passes):
        for pace, one in found.items():
            say(f"pass {number + 1} of {options.passes}: {pace:,} changes a second")
            rate, cost, seen = _go_on(blog, live, pace, options.seconds / options.passes)
            one.per_second.append(rate)
            one.cost.append(cost)
            one.milliseconds += seen
    live.stop()
    return _outcome(found, live)


def _outcome(found: dict[int, _Found], live: Live) -> Outcome:
    names = list(found[_PACES[0]].cost[0])
    return Outcome(
        about="edits of single posts, each a transaction of its own, at several paces",
        columns=("changes/s", "came", *(f"{name}, ms a change" for name in names), "sum", "p50 ms", "p99 ms"),
        rows=[
            [
                f"{pace:,}",
                f"{median(one.per_second):,.0f}",
                *(f"{one.of(name):.2f}" for name in names),
                f"{one.total:.2f}",
                f"{percentile(one.milliseconds, 50):.1f}",
                f"{percentile(one.milliseconds, 99):.1f}",
            ]
            for pace, one in found.items()
        ],
        figures=[
            Figure(
                what=f"processor time a change, at {_PACES[0]}/s", value=found[_PACES[0]].total, unit="ms", at_most=5
            ),
            *(
                Figure(
                    what=f"processor time a change, at {pace:,}/s / at {_PACES[0]}/s",
                    value=one.total / found[_PACES[0]].total,
                )
                for pace, one in found.items()
                if pace != _PACES[0]
            ),
            Figure(what="peak memory", value=live.peak_bytes / 1e6, unit="MB", at_most=MEGABYTES_MAX),
        ],
        record={
            "cpu_milliseconds_per_change": {
                pace: {name: round(one.of(name), 3) for name in names} for pace, one in found.items()
            },
            "changes_per_second": {pace: round(median(one.per_second), 1) for pace, one in found.items()},
        },
        remarks=[
            "of Postgres, the sessions of syncer only",
            *live.remarks(),
        ],
    )
