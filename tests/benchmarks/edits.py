"""Single edits at an even pace, each a transaction of its own, and how long until each is seen in Elasticsearch.

Edits count: each writes the next number into the title of a post. A read that shows that number, or a greater one, has
seen the edit; one that shows a smaller number than an earlier read is wrong, as is one that misses the post.

The pace waits for nothing: an edit that is slow to be seen delays none of those that follow. The reader loads the
machine as little as it can, unless it is to read all posts all the time. It looks only while something is pending,
begins shortly before the soonest of the last edits was seen, and rests in between.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import psycopg

from tests.benchmarks.gauges import difference, peak_bytes
from tests.benchmarks.report import Run
from tests.benchmarks.world import EDITOR, Blog

OFTEN = 50
"""How many edits a second are usual here."""
_LOOK_AT_MAX = 100
_REST_SECONDS = {"visible": 0.001, "searchable": 0.005}
_LAST, _HOLD = 20, 0.8
_SEEN_SECONDS, _RECONNECT_SECONDS = 120.0, 0.05
_NO_NUMBER, _MISSING = -1, -2
_NUMBERS = itertools.count(1)
"""What edits write: never less than before."""

Sight = Literal["visible", "searchable"]
"""Visible: a realtime GET has it. Searchable: a search finds it, after the next refresh."""


def paced(per_second: float) -> Iterator[int]:
    """Numbers from 0, each when it is due."""
    began = time.monotonic()
    for number in itertools.count():
        time.sleep(max(0.0, began + number / per_second - time.monotonic()))
        yield number


def deadline(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


@dataclass(slots=True)
class Edits:
    """Edits of these posts, one after the other, over and over.

    Args:
        watched_of: Of so many edits, one is watched: on a busy machine, looking costs as much as writing. 0: none is.
        reads_all: Whether all of the posts are read all the time.
        survives: Errors after which it connects again.
        saved: Called with a post, once an edit of it is committed.
        made: How many were committed in the last run.
        seen: Those that were seen in the last run: when each was committed, and milliseconds from then.
    """

    blog: Blog
    posts: Sequence[int]
    per_second: float
    sight: Sight = "visible"
    watched_of: int = 1
    reads_all: bool = False
    survives: tuple[type[Exception], ...] = ()
    saved: Callable[[int], object] = lambda _: None
    made: int = 0
    seen: list[tuple[float, float]] = field(default_factory=list)
    reads: int = 0
    wrong_reads: int = 0
    _pending: dict[int, dict[int, float]] = field(default_factory=dict)
    """By post, when each number that no read has shown yet was committed."""
    _shown: dict[int, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_over: bool = False

    def run(self, *, until: Callable[[], bool]) -> None:
        """Edit until told not to, and return when every watched edit has been seen."""
        self.made, self.seen, self._is_over = 0, [], False
        self._pending.clear()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self._read_loop)
            try:
                while not until():
                    with suppress(*self.survives):
                        self._edit(until)
                    if self.survives:
                        time.sleep(_RECONNECT_SECONDS)
            finally:
                with self._changed:
                    self._is_over = True
                    self._changed.notify()
            reading.result()

    def make(self, number: int) -> None:
        """Make so many edits."""
        self.run(until=lambda: self.made == number)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Edit until the block ends."""
        is_over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            editing = pool.submit(self.run, until=is_over.is_set)
            try:
                yield
            finally:
                is_over.set()
            editing.result()

    def _edit(self, until: Callable[[], bool]) -> None:
        with psycopg.connect(self.blog.dsn, autocommit=True, connect_timeout=5, application_name=EDITOR) as connection:
            for _, post in zip(paced(self.per_second), itertools.cycle(self.posts), strict=False):
                if until():
                    return
                number = next(_NUMBERS)
                connection.execute(self.blog.edit.encode(), (f"{number} Post {post}", post), prepare=True)
                self.made += 1
                if self.watched_of and self.made % self.watched_of == 0:
                    with self._changed:
                        self._pending.setdefault(post, {})[number] = time.monotonic()
                        self._changed.notify()
                self.saved(post)

    def _read_loop(self) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.blog.endpoints.elasticsearch_url).netloc)
        seen_at = time.monotonic()
        while posts := self._waited_for():
            if not self.reads_all:
                # No edit is looked for until it can be written: shortly before the soonest of the last ones was.
                soonest = min((milliseconds / 1000 for _, milliseconds in self.seen[-_LAST:]), default=0.0)
                with self._changed:
                    oldest = min(self._pending[posts[0]].values())
                time.sleep(max(0.0, oldest + _HOLD * soonest - time.monotonic()))
            seen_before = len(self.seen)
            try:
                shown_numbers = self._look(connection, [str(post) for post in posts])
            except self.survives:
                connection.close()
            else:
                self._note(shown_numbers)
            if len(self.seen) > seen_before or self.reads_all:
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > _SEEN_SECONDS:
                raise TimeoutError(f"{len(self._pending)} edits are not {self.sight} after {_SEEN_SECONDS:.0f} s")
            time.sleep(_REST_SECONDS[self.sight] * min(10, len(posts)))

    def _look(self, connection: http.client.HTTPConnection, ids: list[str]) -> dict[int, int]:
        """The number in the title of each post that Elasticsearch answers for."""
        is_search = self.sight == "searchable"
        body = {"query": {"ids": {"values": ids}}} if is_search else {"ids": ids}
        path = f"/{self.blog.alias}/{f'_search?size={len(ids)}&' if is_search else '_mget?'}_source_includes=title"
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = json.loads(connection.getresponse().read())
        documents = answer["hits"]["hits"] if is_search else answer.get("docs", [])
        return {int(document["_id"]): _number(document) for document in documents if "error" not in document}

    def _note(self, shown_numbers: dict[int, int]) -> None:
        now = time.monotonic()
        with self._changed:
            for post, number in shown_numbers.items():
                self.reads += 1
                if number == _MISSING or number < self._shown.get(post, _NO_NUMBER):
                    self.wrong_reads += 1
                    continue
                self._shown[post] = number
                waiting = self._pending.get(post, {})
                for shown in [candidate for candidate in waiting if candidate <= number]:
                    committed_at = waiting.pop(shown)
                    self.seen.append((committed_at, (now - committed_at) * 1000))
                if not waiting:
                    self._pending.pop(post, None)

    def _waited_for(self) -> list[int]:
        """Posts with pending edits, the oldest first, at most so many; none once no more will come."""
        with self._changed:
            if self.reads_all:
                return [] if self._is_over else list(self.posts)
            self._changed.wait_for(lambda: self._pending or self._is_over)
            return list(self._pending)[:_LOOK_AT_MAX]


def _number(document: dict[str, dict[str, str]]) -> int:
    if "_source" not in document:
        return _MISSING
    first_word = document["_source"].get("title", "").partition(" ")[0]
    return int(first_word) if first_word.isdigit() else _NO_NUMBER


def edited(blog: Blog, per_second: float, seconds: float, *, sight: Sight = "visible", watched_of: int = 1) -> Run:
    """Edit posts of the thousand authors for so long, while the process runs that keeps the index."""
    edits = Edits(blog, blog.others, per_second, sight, watched_of)
    cpu_before, began = blog.cpu_seconds(), time.monotonic()
    edits.run(until=deadline(seconds))
    blog.wait_settled()
    took = time.monotonic() - began
    return Run(
        documents=edits.made,
        seconds=took,
        cpu_seconds=difference(blog.cpu_seconds(), cpu_before),
        peak_bytes=peak_bytes(blog.pid),
        milliseconds=[milliseconds for _, milliseconds in edits.seen],
    )
