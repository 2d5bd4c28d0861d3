"""Single edits at an even pace, each a transaction of its own, and how long until each is seen in Elasticsearch.

The pace does not wait for anybody: an edit that is slow to be seen delays none of those that follow.
Who looks takes care not to load the machine: it looks only while something is pending, begins to look shortly before
the soonest of the last edits was seen, and rests in between, a millisecond for each that it looked for.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import count, cycle, islice
from typing import Literal
from urllib.parse import urlsplit

import psycopg

from tests.benchmarks.blog import Blog
from tests.benchmarks.report import percentile

_LOOK_AT_MAX = 32
_REST_SECONDS = {"visible": 0.001, "searchable": 0.005}
_LAST, _HOLD = 20, 0.8
_SEEN_SECONDS = 120.0
_EDIT = "UPDATE posts SET title = %s WHERE id = %s"

Sight = Literal["visible", "searchable"]
"""Visible: a realtime GET has it. Searchable: a search finds it, after the next refresh."""


class Lookout:
    """Looks for documents by their ids, in one request on a kept connection."""

    def __init__(self, url: str, index: str, sight: Sight = "visible") -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc)
        self._sight = sight
        self._path = f"/{index}/_mget?_source_includes=title"
        if sight == "searchable":
            self._path = f"/{index}/_search?_source_includes=title&size={_LOOK_AT_MAX}"

    def look(self, posts: Sequence[int]) -> bytes:
        """The titles of these posts, somewhere in an answer."""
        ids = [str(one) for one in posts]
        body = {"ids": ids} if self._sight == "visible" else {"query": {"ids": {"values": ids}}}
        self._connection.request("POST", self._path, json.dumps(body), {"Content-Type": "application/json"})
        return self._connection.getresponse().read()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEdit:
    """One edit that was seen.

    Args:
        committed_at: When its commit was acknowledged, by the clock of `time.monotonic`.
        seen_at: When it was seen.
    """

    committed_at: float
    seen_at: float

    @property
    def milliseconds(self) -> float:
        """From its commit until it was seen."""
        return (self.seen_at - self.committed_at) * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    post: int
    mark: bytes
    committed_at: float


@dataclass(slots=True)
class Edits:
    """Edits of these posts, one after the other, over and over.

    Args:
        blog: Whose posts.
        posts: Which of them; more than are ever pending.
        per_second: The pace.
        sight: What counts as seen.
        watched_of: Of so many edits one is watched: on a busy machine, looking costs as much as writing.
    """

    blog: Blog
    posts: Sequence[int]
    per_second: float
    sight: Sight = "visible"
    watched_of: int = 1
    _pending: list[_Pending] = field(default_factory=list)
    _seen: list[TimedEdit] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_over: bool = False
    _turn: int = 0

    def go_on(self, *, until: Callable[[], bool]) -> list[TimedEdit]:
        """Edit until told not to, and return when all edits have been seen.

        Raises:
            TimeoutError: One of them was not seen.
        """
        self._pending, self._seen, self._is_over = [], [], False
        watcher = threading.Thread(target=self._watch, name="lookout")
        watcher.start()
        try:
            self._edit(until)
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify()
            watcher.join()
        if self._pending:
            raise TimeoutError(f"{len(self._pending)} edits are not {self.sight} after {_SEEN_SECONDS:.0f} s")
        return self._seen

    def go_on_for(self, seconds: float) -> list[TimedEdit]:
        """Edit for so long."""
        end = time.monotonic() + seconds
        return self.go_on(until=lambda: time.monotonic() >= end)

    def _edit(self, until: Callable[[], bool]) -> None:
        run = uuid.uuid4().hex[:8]
        with psycopg.connect(self.blog.world.dsn, autocommit=True) as connection:
            began = time.monotonic()
            for number, post in zip(count(), cycle(self.posts), strict=False):
                time.sleep(max(0.0, began + number / self.per_second - time.monotonic()))
                if until():
                    return
                mark = f"edit{run}n{number}n"
                connection.execute(_EDIT, (f"Post {post} {mark}", post), prepare=True)
                if number % self.watched_of:
                    continue
                made = _Pending(post=post, mark=mark.encode(), committed_at=time.monotonic())
                with self._changed:
                    self._pending.append(made)
                    self._changed.notify()

    def _watch(self) -> None:
        lookout = Lookout(self.blog.world.endpoints.elasticsearch_url, self.blog.world.alias, self.sight)
        looked_for_since = time.monotonic()
        while wanted := self._wanted():
            oldest = min(one.committed_at for one in wanted)
            time.sleep(max(0.0, oldest + self._hold_seconds() - time.monotonic()))
            answer = lookout.look([one.post for one in wanted])
            now = time.monotonic()
            found = [one for one in wanted if one.mark in answer]
            if found:
                looked_for_since = now
            elif now - looked_for_since > _SEEN_SECONDS:
                return
            with self._changed:
                self._pending = [one for one in self._pending if one not in found]
            self._seen += [TimedEdit(committed_at=one.committed_at, seen_at=now) for one in found]
            time.sleep(_REST_SECONDS[self.sight] * len(wanted))

    def _hold_seconds(self) -> float:
        """How long after its commit no edit is looked for: it cannot well have been written so soon."""
        return _HOLD * min((one.milliseconds / 1000 for one in self._seen[-_LAST:]), default=0.0)

    def _wanted(self) -> list[_Pending]:
        """Those that are pending, or some of them one at a time if they are many; none if no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_over)
            if len(self._pending) <= _LOOK_AT_MAX:
                return list(self._pending)
            self._turn += _LOOK_AT_MAX
            first = self._turn % len(self._pending)
            return list(islice(cycle(self._pending), first, first + _LOOK_AT_MAX))


def milliseconds(edits: Sequence[TimedEdit]) -> list[float]:
    """From commit until seen, of each."""
    return [one.milliseconds for one in edits]


def row(name: str, found: Sequence[float]) -> list[str]:
    """A row of a table of `COLUMNS`."""
    return [name, str(len(found)), *(f"{percentile(found, one):.1f}" for one in (50, 95, 99, 100))]


def as_json(found: Sequence[float]) -> dict[str, float]:
    """The same, to be kept."""
    kept = {f"p{one}": round(percentile(found, one), 1) for one in (50, 95, 99)}
    return {"count": len(found), **kept, "max": round(max(found), 1)}


COLUMNS = ("milliseconds", "count", "p50", "p95", "p99", "max")
