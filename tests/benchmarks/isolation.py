"""Isolation: single edits while an author of many posts is renamed."""

from __future__ import annotations

import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median

from tests.benchmarks.blog import Blog, Blogs
from tests.benchmarks.contest import MEGABYTES_MAX, say
from tests.benchmarks.edits import COLUMNS, Edits, TimedEdit, as_json, row
from tests.benchmarks.floor import Floor
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome, percentile

_PER_SECOND = 50
_WATCHED_OF = 5
_SMALL = 250
"""The documents of one request of a fan-out beside live traffic."""
_NOISE = 40  # writes in a tenth of a second: far more than the edits are, far fewer than a fan-out's
_AT_REST, _ONE, _FIVE = "at rest", "during one rename", "during five renames"
_APART_SECONDS = 0.2


@dataclass(slots=True)
class _Edited:
    """Edits of other authors' posts, by what went on meanwhile.

    Args:
        blog: Whose posts.
        live: The daemon.
        posts: Of other authors than those who are renamed.
        reference: An index for the bare loop, which writes the same posts.
        found: Milliseconds, by what went on.
        rates: How many documents a second each rename wrote meanwhile.
        writes: How many documents were written by each, single edits included.
        bare: How many documents a second the bare loop wrote in each pass, alone.
    """

    blog: Blog
    live: Live
    posts: list[int]
    reference: str
    found: dict[str, list[float]] = field(default_factory=lambda: {_AT_REST: [], _ONE: [], _FIVE: []})
    rates: dict[str, list[float]] = field(default_factory=lambda: {_ONE: [], _FIVE: []})
    writes: dict[str, list[int]] = field(default_factory=lambda: {_ONE: [], _FIVE: []})
    bare: list[float] = field(default_factory=list)

    def at_rest(self, seconds: float) -> None:
        """Edit while nothing else goes on, nor the servers are busy still with what went on before."""
        self._settle()
        self._note(_AT_REST, self._edits().go_on_for(seconds))

    def alone(self) -> None:
        """Let the bare loop write the posts that a rename writes, while nothing else goes on."""
        self._settle()
        self.blog.settle(self.reference)
        self.bare.append(self.blog.bare_loop(self.reference, 1, self.blog.large).rate)

    def during(self, name: str, renames: int) -> None:
        """Edit while an author is renamed so many times, until every document has been written."""
        self._settle()
        names = [f"Renamed {uuid.uuid4().hex}" for _ in range(renames)]
        over = threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="edits") as pool, self.live.writes() as writes:
            edits = pool.submit(self._edits().go_on, until=over.is_set)
            try:
                self.live.rename(names[0])
                began = time.monotonic()
                for one in names[1:]:
                    time.sleep(_APART_SECONDS)
                    self.live.rename(one)
                # Not all that is pending, but jobs: edits are always on their way.
                span = writes.wait(self.blog.large, settled=self.live.has_no_job, noise=_NOISE)
            finally:
                over.set()
        self._check(names[-1])
        self._note(name, [one for one in edits.result() if began <= one.committed_at <= span.last_at])
        self.rates[name].append(self.blog.large / (span.last_at - began))
        self.writes[name].append(span.writes)

    def _settle(self) -> None:
        self.live.wait_settled()
        self.blog.settle(self.blog.world.alias)
        self.live.start_idle()

    def _edits(self) -> Edits:
        return Edits(self.blog, self.posts, _PER_SECOND, watched_of=_WATCHED_OF)

    def _note(self, name: str, edits: list[TimedEdit]) -> None:
        self.found[name] += [one.milliseconds for one in edits]

    def _check(self, name: str) -> None:
        self.live.wait_settled()
        if (found := self.blog.count(term={"user.name.raw": name})) != self.blog.large:
            raise RuntimeError(f"{found:,} documents show the last name, not {self.blog.large:,}")


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Edits at rest, and while an author is renamed once, and five times."""
    blog = blogs.crowded
    floor, live = Floor(blog), Live(blog, is_profiled=options.is_profiled)
    edited = _Edited(blog, live, random.sample(blog.others, len(blog.others)), blog.loaded_like_it("bare"))
    blog.settle(blog.world.alias)
    live.start_idle()
    bulk = floor.bulk_milliseconds(_SMALL)
    for number in range(options.passes):
        say(f"pass {number + 1} of {options.passes}: the bare loop, at rest, one rename, five renames")
        edited.alone()
        edited.at_rest(options.seconds / options.passes)
        edited.during(_ONE, 1)
        edited.during(_FIVE, 5)
    live.stop()
    return _outcome(edited, bulk)


def _outcome(edited: _Edited, bulk: float) -> Outcome:
    found, live = edited.found, edited.live
    allowed = 2 * percentile(found[_AT_REST], 99) + bulk
    ratios = {name: percentile(found[name], 99) / allowed for name in (_ONE, _FIVE)}
    rates = {name: round(sum(one) / len(one)) for name, one in edited.rates.items()}
    shares = [rename / bare for rename, bare in zip(edited.rates[_ONE], edited.bare, strict=True)]
    return Outcome(
        about=f"{_PER_SECOND} single edits a second, while an author of {edited.blog.large:,} other posts is renamed",
        columns=COLUMNS,
        rows=[row(name, one) for name, one in found.items()],
        figures=[
            Figure(what="one rename beside edits / bare loop alone", value=median(shares), at_least=0.6),
            *(Figure(what=f"p99 {k} / (2 p99 at rest + a bulk)", value=v, at_most=1) for k, v in ratios.items()),
            Figure(what="peak memory", value=live.peak_bytes / 1e6, unit="MB", at_most=MEGABYTES_MAX),
        ],
        record={
            "milliseconds": {name: as_json(one) for name, one in found.items()},
            f"bulk_of_{_SMALL}_milliseconds": round(bulk, 1),
            "bare_documents_per_second": [round(one) for one in edited.bare],
            "documents_per_second_meanwhile": rates,
            "writes": edited.writes,
        },
        remarks=[
            f"a bulk request of {_SMALL} documents alone: {bulk:.0f} ms",
            *(f"documents/s of the fan-out {name}: {rate:,}" for name, rate in rates.items()),
            *live.remarks(),
        ],
    )
