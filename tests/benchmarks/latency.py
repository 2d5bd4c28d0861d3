"""Latency: from the commit of a single edit until it is seen."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from tests.benchmarks import processes
from tests.benchmarks.blog import Blog, Blogs
from tests.benchmarks.contest import MEGABYTES_MAX, PROCESS, say
from tests.benchmarks.edits import COLUMNS, Edits, Sight, as_json, milliseconds, row
from tests.benchmarks.floor import Floor
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome, percentile

_OFTEN, _SELDOM = 50, 5
_TURNS = 5
_FLOOR = "a bare bulk request of one document, and its GET"


@dataclass(slots=True)
class _Found:
    """Milliseconds, by what they are of; and what the processes used meanwhile."""

    blog: Blog
    live: Live
    posts: list[int]
    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)

    def edit(self, sight: Sight, per_second: float, seconds: float) -> None:
        """Edit for so long, with the daemon running."""
        name = f"{sight}, {per_second}/s"
        own, ours = processes.cpu_seconds(self.live.pid), time.process_time()
        with self.blog.servers.measured() as used:
            found = Edits(self.blog, self.posts, per_second, sight).go_on_for(seconds)
        used[PROCESS] = processes.cpu_seconds(self.live.pid) - own
        used["editing and looking"] = time.process_time() - ours
        if per_second == _OFTEN and sight == "visible":
            self.used = {one: self.used.get(one, 0) + used[one] for one in used}
        self.add(name, milliseconds(found))

    def add(self, name: str, found: list[float]) -> None:
        """Add to what was found so far."""
        self.milliseconds.setdefault(name, []).extend(found)


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Edits of posts, and the floor together with them, while a daemon runs."""
    blog = blogs.crowded
    floor, live = Floor(blog), Live(blog, is_profiled=options.is_profiled)
    posts = random.sample(blog.others, len(blog.others))
    found = _Found(blog, live, posts)
    turn = options.seconds / _TURNS
    blog.settle(blog.world.alias)
    live.start_idle()
    Edits(blog, posts, _OFTEN).go_on_for(1)  # what is done for the first time is not measured
    floor.write_for(1, per_second=_OFTEN)
    for number in range(_TURNS):
        say(f"turn {number + 1} of {_TURNS}: floor, {_OFTEN}/s, {_SELDOM}/s, until searchable")
        found.add(_FLOOR, floor.write_for(turn, per_second=_OFTEN))
        found.edit("visible", _OFTEN, turn)
        found.edit("visible", _SELDOM, turn)
        found.edit("searchable", _OFTEN, turn)
        found.edit("searchable", _SELDOM, turn)
    live.stop()
    return _outcome(found, options)


def _outcome(found: _Found, options: Options) -> Outcome:
    measured = found.milliseconds
    floor_p50 = percentile(measured[_FLOOR], 50)
    often = measured[f"visible, {_OFTEN}/s"]
    p50, p99 = percentile(often, 50), percentile(often, 99)
    per_change = {name: round(seconds * 1000 / len(often), 2) for name, seconds in found.used.items()}
    used = ", ".join(f"{name} {one}" for name, one in per_change.items())
    return Outcome(
        about=f"from the commit of one edit until it is seen, {options.seconds:.0f} s each, in {_TURNS} turns",
        columns=COLUMNS,
        rows=[row(name, one) for name, one in measured.items()],
        figures=[
            Figure(what=f"p50 at {_OFTEN}/s / p50 of the floor", value=p50 / floor_p50, at_most=3),
            Figure(what=f"p99 at {_OFTEN}/s / p50 of the floor", value=p99 / floor_p50, at_most=8),
            Figure(what="peak memory", value=found.live.peak_bytes / 1e6, unit="MB", at_most=MEGABYTES_MAX),
        ],
        record={
            "milliseconds": {name: as_json(one) for name, one in measured.items()},
            "cpu_milliseconds_per_change": per_change,
        },
        remarks=[
            f"CPU ms per change at {_OFTEN}/s: {used} (in Elasticsearch, looking included)",
            *found.live.remarks(),
        ],
    )
