"""Single edits at an even pace, each a transaction of its own, and how long until each is seen in Elasticsearch.

The pace waits for nothing: an edit that is slow to be seen delays none of those that follow. The lookout loads the
machine as little as it can. It looks only while something is pending, begins shortly before the soonest of the last
edits was seen, and rests in between, a millisecond for each edit that it looked for.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import count, cycle, islice
from typing import Literal
from urllib.parse import urlsplit

import psycopg

from tests.benchmarks.references import Connections, bodies
from tests.benchmarks.world import Blog

_LOOK_AT_MAX = 32
_REST_SECONDS = {"visible": 0.001, "searchable": 0.005}
_LAST, _HOLD = 20, 0.8
_SEEN_SECONDS = 120.0

Sight = Literal["visible", "searchable"]
"""Visible: a realtime GET has it. Searchable: a search finds it, after the next refresh."""


def paced(per_second: float, *, until: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """Numbers from 0, each when it is due."""
    began = time.monotonic()
    for number in count():
        time.sleep(max(0.0, began + number / per_second - time.monotonic()))
        if until():
            return
        yield number


def deadline(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


class Lookout:
    """Looks for documents by their ids, in one request on a kept connection."""

    def __init__(self, blog: Blog, index: str, sight: Sight = "visible") -> None:
        self._connection = HTTPConnection(urlsplit(blog.endpoints.elasticsearch_url).netloc)
        self._is_realtime = sight == "visible"
        path = "_mget?" if self._is_realtime else f"_search?size={_LOOK_AT_MAX}&"
        self._path = f"/{index}/{path}_source_includes=title"

    def look(self, posts: Sequence[int]) -> bytes:
        """The titles of these posts, somewhere in an answer."""
        ids = [str(post) for post in posts]
        body = {"ids": ids} if self._is_realtime else {"query": {"ids": {"values": ids}}}
        self._connection.request("POST", self._path, json.dumps(body), {"Content-Type": "application/json"})
        return self._connection.getresponse().read()


@dataclass(slots=True, kw_only=True, eq=False)
class TimedEdit:
    """One edit that is watched, by the clock of `time.monotonic`; its mark is in its title and in no other."""

    post: int
    mark: bytes
    committed_at: float
    seen_at: float = 0

    @property
    def milliseconds(self) -> float:
        """From its commit until it was seen."""
        return (self.seen_at - self.committed_at) * 1000


@dataclass(slots=True)
class Edits:
    """Edits of these posts, one after the other, over and over.

    Args:
        posts: Which of the blog's; more than are ever pending.
        per_second: The pace.
        sight: What counts as seen.
        watched_of: Of so many edits, one is watched: on a busy machine, looking costs as much as writing. 0: none is.
        survives: Errors after which it connects again.
        made: How many were committed in the last run.
        seen: Those that were watched in the last run.
    """

    blog: Blog
    posts: Sequence[int]
    per_second: float
    sight: Sight = "visible"
    watched_of: int = 1
    survives: tuple[type[Exception], ...] = ()
    made: int = 0
    seen: list[TimedEdit] = field(default_factory=list)
    _pending: list[TimedEdit] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_over: bool = False
    _turn: int = 0

    def go_on(self, *, until: Callable[[], bool]) -> None:
        """Edit until told not to, and return when every watched edit has been seen."""
        self.made, self.seen, self._pending, self._is_over = 0, [], [], False
        watcher = threading.Thread(target=self._watch, name="lookout")
        watcher.start()
        try:
            while not until():
                with suppress(*self.survives):
                    self._edit(until)
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify()
            watcher.join()
        if self._pending:
            raise TimeoutError(f"{len(self._pending)} edits are not {self.sight} after {_SEEN_SECONDS:.0f} s")

    def milliseconds(self, seconds: float) -> list[float]:
        """Edit for so long; from commit until seen, of each watched edit."""
        self.go_on(until=deadline(seconds))
        return [edit.milliseconds for edit in self.seen]

    def make(self, number: int) -> None:
        """Make so many edits."""
        self.go_on(until=lambda: self.made == number)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Edit until the block ends."""
        is_over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            editing = pool.submit(self.go_on, until=is_over.is_set)
            try:
                yield
            finally:
                is_over.set()
            editing.result()

    def _edit(self, until: Callable[[], bool]) -> None:
        run = uuid.uuid4().hex[:8]
        with psycopg.connect(self.blog.dsn, autocommit=True, connect_timeout=5) as connection:
            for _, post in zip(paced(self.per_second, until=until), cycle(self.posts), strict=False):
                mark = f"edit{run}n{self.made}n"
                connection.execute(self.blog.edit, (f"Post {post} {mark}", post), prepare=True)
                self.made += 1
                if self.watched_of and self.made % self.watched_of == 0:
                    made = TimedEdit(post=post, mark=mark.encode(), committed_at=time.monotonic())
                    with self._changed:
                        self._pending.append(made)
                        self._changed.notify()

    def _watch(self) -> None:
        lookout = Lookout(self.blog, self.blog.alias, self.sight)
        looked_for_since = time.monotonic()
        while wanted := self._wanted():
            # No edit is looked for until it can be written: shortly before the soonest of the last ones was.
            soonest = min((edit.milliseconds / 1000 for edit in self.seen[-_LAST:]), default=0.0)
            oldest = min(edit.committed_at for edit in wanted)
            time.sleep(max(0.0, oldest + _HOLD * soonest - time.monotonic()))
            answer = lookout.look([edit.post for edit in wanted])
            now = time.monotonic()
            found = [edit for edit in wanted if edit.mark in answer]
            if found:
                looked_for_since = now
            elif now - looked_for_since > _SEEN_SECONDS:
                return
            for edit in found:
                edit.seen_at = now
            with self._changed:
                self._pending = [edit for edit in self._pending if not edit.seen_at]
            self.seen += found
            time.sleep(_REST_SECONDS[self.sight] * len(wanted))

    def _wanted(self) -> list[TimedEdit]:
        """Those that are pending, or some of them in turn if they are many; none if no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_over)
            if len(self._pending) <= _LOOK_AT_MAX:
                return list(self._pending)
            self._turn += _LOOK_AT_MAX
            first = self._turn % len(self._pending)
            return list(islice(cycle(self._pending), first, first + _LOOK_AT_MAX))


class Floor:
    """What Elasticsearch alone takes: bare bulk requests to an index that holds as many documents as syncer's."""

    def __init__(self, blog: Blog) -> None:
        index = blog.loaded_like_it("floor")
        self._lines = next(bodies(blog.bodies)).splitlines(keepends=True)  # a thousand documents, two lines for each
        self._documents = cycle(zip(self._lines[::2], self._lines[1::2], strict=True))
        self._connections = Connections(blog.endpoints.elasticsearch_url, index)
        self._lookout = Lookout(blog, index)

    def milliseconds(self, seconds: float, *, per_second: float) -> list[float]:
        """Write one document at a time at an even pace; from each request to the answer of its GET."""
        found = []
        for _ in islice(paced(per_second), int(seconds * per_second)):
            action, source = next(self._documents)
            post, mark = int(json.loads(action)["index"]["_id"]), f"floor{uuid.uuid4().hex}"
            body = action + source.replace(b'"title":"', f'"title":"{mark} '.encode(), 1)
            began = time.monotonic()
            self._connections.post(body)
            while mark.encode() not in self._lookout.look([post]):
                pass
            found.append((time.monotonic() - began) * 1000)
        return found

    def bulk_milliseconds(self, documents: int) -> list[float]:
        """What twenty bulk requests of so many documents take, up to 1,000, one after the other."""
        body, found = b"".join(self._lines[: 2 * documents]), []
        for _ in range(20):
            began = time.monotonic()
            self._connections.post(body)
            found.append((time.monotonic() - began) * 1000)
        return found
