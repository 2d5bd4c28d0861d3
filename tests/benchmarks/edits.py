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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Literal
from urllib.parse import urlsplit

import psycopg

from tests.benchmarks.gauges import peak_bytes
from tests.benchmarks.references import Connections, documents_query
from tests.benchmarks.report import Run
from tests.benchmarks.world import EDITOR, Blog

OFTEN = 50
"""How many edits a second are usual here."""
_LOOK_AT_MAX = 32
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


class Reader:
    """Reads documents by their ids, in one request on a kept connection."""

    def __init__(self, blog: Blog, index: str, sight: Sight = "visible") -> None:
        self._connection = http.client.HTTPConnection(urlsplit(blog.endpoints.elasticsearch_url).netloc)
        self._is_realtime = sight == "visible"
        path = "_mget?" if self._is_realtime else f"_search?size={_LOOK_AT_MAX}&"
        self._path = f"/{index}/{path}_source_includes=title"

    def read(self, posts: Sequence[int]) -> dict[int, int]:
        """The number in the title of each post that Elasticsearch answers for."""
        ids = [str(post) for post in posts]
        body = {"ids": ids} if self._is_realtime else {"query": {"ids": {"values": ids}}}
        try:
            self._connection.request("POST", self._path, json.dumps(body), {"Content-Type": "application/json"})
            answer = json.loads(self._connection.getresponse().read())
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        found = answer.get("docs", []) if self._is_realtime else answer["hits"]["hits"]
        return {int(document["_id"]): _number(document) for document in found if "error" not in document}


def _number(document: dict[str, dict[str, str]]) -> int:
    if "_source" not in document:
        return _MISSING
    first = document["_source"].get("title", "").partition(" ")[0]
    return int(first) if first.isdigit() else _NO_NUMBER


@dataclass(slots=True)
class Edits:
    """Edits of these posts, one after the other, over and over.

    Args:
        posts: Which of the blog's; more than are ever pending.
        per_second: The pace.
        sight: What counts as seen.
        watched_of: Of so many edits, one is watched: on a busy machine, looking costs as much as writing. 0: none is.
        reads_all: Whether all of the posts are read all the time.
        survives: Errors after which it connects again.
        saved: Called with a post, once an edit of it is committed.
        made: How many were committed in the last run.
        seen: Those that were seen in the last run: when each was committed, and milliseconds from then.
        reads: How many documents were read, in all runs.
        wrong_reads: How many of them were missing, or went back.
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
    _pending: defaultdict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """By post, when each number that no read has shown yet was committed."""
    _shown: dict[int, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_over: bool = False
    _turn: int = 0

    def run(self, *, until: Callable[[], bool]) -> None:
        """Edit until told not to, and return when every watched edit has been seen."""
        self.made, self.seen, self._is_over = 0, [], False
        self._pending.clear()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self._read)
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
                        self._pending[post][number] = time.monotonic()
                        self._changed.notify()
                self.saved(post)

    def _read(self) -> None:
        reader = Reader(self.blog, self.blog.alias, self.sight)
        seen_at = time.monotonic()
        while wanted := self._wanted():
            if not self.reads_all:
                # No edit is looked for until it can be written: shortly before the soonest of the last ones was.
                soonest = min((milliseconds / 1000 for _, milliseconds in self.seen[-_LAST:]), default=0.0)
                with self._changed:
                    oldest = min(min(self._pending[post].values()) for post in wanted)
                time.sleep(max(0.0, oldest + _HOLD * soonest - time.monotonic()))
            before = len(self.seen)
            with suppress(*self.survives):
                found = reader.read(wanted)
                now = time.monotonic()
                with self._changed:
                    self._note(found, now)
            if len(self.seen) > before or self.reads_all:
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > _SEEN_SECONDS:
                raise TimeoutError(f"{len(self._pending)} edits are not {self.sight} after {_SEEN_SECONDS:.0f} s")
            time.sleep(_REST_SECONDS[self.sight] * min(10, len(wanted)))

    def _note(self, found: dict[int, int], now: float) -> None:
        for post, number in found.items():
            self.reads += 1
            if number == _MISSING or number < self._shown.get(post, _NO_NUMBER):
                self.wrong_reads += 1
                continue
            self._shown[post] = number
            waiting = self._pending[post]
            for shown in [other for other in waiting if other <= number]:
                committed_at = waiting.pop(shown)
                self.seen.append((committed_at, (now - committed_at) * 1000))
            if not waiting:
                del self._pending[post]

    def _wanted(self) -> list[int]:
        """Posts with pending edits, or some of them in turn if they are many; none once no more will come."""
        with self._changed:
            if self.reads_all:
                return [] if self._is_over else list(self.posts)
            self._changed.wait_for(lambda: self._pending or self._is_over)
            pending = list(self._pending)
            if len(pending) <= _LOOK_AT_MAX:
                return pending
            self._turn += _LOOK_AT_MAX
            first = self._turn % len(pending)
            return list(itertools.islice(itertools.cycle(pending), first, first + _LOOK_AT_MAX))


def edited(
    blog: Blog,
    per_second: float,
    seconds: float,
    *,
    sight: Sight = "visible",
    watched_of: int = 1,
    posts: Sequence[int] = (),
) -> Run:
    """Edit posts of the thousand authors for so long, while the process runs that keeps the index."""
    edits = Edits(blog, posts or blog.others, per_second, sight, watched_of)
    before, began = blog.cpu_seconds(), time.monotonic()
    edits.run(until=deadline(seconds))
    blog.wait_settled()
    took, used = time.monotonic() - began, blog.cpu_seconds()
    return Run(
        documents=edits.made,
        seconds=took,
        cpu_seconds={name: spent - before[name] for name, spent in used.items()},
        peak_bytes=peak_bytes(blog.pid),
        milliseconds=[milliseconds for _, milliseconds in edits.seen],
    )


class Floor:
    """What Elasticsearch alone takes: bare bulk requests to an index that holds as many documents as syncer's."""

    def __init__(self, blog: Blog) -> None:
        index = blog.loaded_like_it("floor")
        with psycopg.connect(blog.dsn) as postgres:
            query = documents_query(postgres, blog.select_file)
            self._rows: list[tuple[str, str]] = postgres.execute(query, (list(range(1, 1001)),)).fetchall()
        self._connections = Connections(blog.endpoints.elasticsearch_url, index)
        self._reader = Reader(blog, index)

    def edited(self, per_second: float, seconds: float) -> Run:
        """Write one document at a time at an even pace; from each request to the answer of its GET."""
        found, began, rows = [], time.monotonic(), itertools.cycle(self._rows)
        for _ in itertools.islice(paced(per_second), int(seconds * per_second)):
            (post, source), number = next(rows), next(_NUMBERS)
            sent_at = time.monotonic()
            self._connections.post([(post, source.replace('"title":"', f'"title":"{number} ', 1))])
            while self._reader.read([int(post)])[int(post)] != number:
                pass
            found.append((time.monotonic() - sent_at) * 1000)
        return Run(documents=len(found), seconds=time.monotonic() - began, milliseconds=found)

    def bulk_milliseconds(self, documents: int) -> float:
        """The median of what twenty bulk requests of so many documents take, one after the other."""
        found = []
        for _ in range(20):
            sent_at = time.monotonic()
            self._connections.post(self._rows[:documents])
            found.append((time.monotonic() - sent_at) * 1000)
        return median(found)
