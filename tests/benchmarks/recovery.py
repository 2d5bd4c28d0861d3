"""Recovery: a server, or the daemon, is away for a while under steady changes; seconds until all is level again.

Level means that Elasticsearch has every change that was committed more than a second ago. It is asked by realtime GETs
of all posts that are changed, each of which says in its title which change was its last.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

import psycopg

from tests.benchmarks.blog import Blog, Blogs
from tests.benchmarks.contest import MEGABYTES_MAX, say
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome

PER_SECOND = 200
GOAL_SECONDS = 30.0
_POSTS = 400
_LEVEL_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_STEADY_SECONDS = 5.0
_GIVE_UP_SECONDS = 300.0
_OUTAGES_PER_OPTION = 2
_EDIT = "UPDATE posts SET title = %s WHERE id = %s"
_MARK = "change "


@dataclass(slots=True)
class Steady:
    """Changes at an even pace, each a transaction of its own; while Postgres is unavailable, none.

    Args:
        blog: Whose posts.
        made: How many were committed.
    """

    blog: Blog
    made: int = 0
    _of_post: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Changes until the block ends."""
        stop = threading.Event()
        thread = threading.Thread(target=self._change, args=(stop,), name="changes")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _change(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with psycopg.connect(self.blog.world.dsn, autocommit=True, connect_timeout=5) as connection:
                    self._go_on(connection, stop)
            except psycopg.OperationalError:
                stop.wait(_LOOK_SECONDS)

    def _go_on(self, connection: psycopg.Connection[tuple[object, ...]], stop: threading.Event) -> None:
        began = time.monotonic()
        turn = 0
        while not stop.is_set():
            stop.wait(max(0.0, began + turn / PER_SECOND - time.monotonic()))
            turn += 1
            number = self.made + 1
            post = 1 + number % _POSTS
            connection.execute(_EDIT, (f"{_MARK}{number}", post), prepare=True)
            with self._lock:
                self.made = number
                self._of_post.setdefault(post, []).append((number, time.monotonic()))

    def behind_seconds(self, shown: dict[int, int]) -> float:
        """How old the oldest change is that is not shown, by post the number of the last change that is."""
        now = time.monotonic()
        oldest = now
        with self._lock:
            for post, changes in self._of_post.items():
                del changes[: bisect_right(changes, shown.get(post, 0), key=lambda one: one[0])]
                if changes:
                    oldest = min(oldest, changes[0][1])
        return now - oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Something that goes away and comes back.

    Args:
        name: What, and how.
        begin: Takes it away.
        end: Brings it back; returns when it answers.
    """

    name: str
    begin: Callable[[], object]
    end: Callable[[], object]


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Each server is killed, and each is paused, and the daemon is killed; the daemon recovers by itself.

    The servers are those of the sandbox that the measures run on: nobody else should be using it.
    """
    seconds = options.seconds * _OUTAGES_PER_OPTION
    with blogs.blog(posts=_POSTS) as blog:
        live = Live(blog)
        live.start_idle()
        steady = Steady(blog)
        found: dict[str, float] = {}
        with steady.going_on():
            for outage in _outages(blog, live):
                say(f"{outage.name} for {seconds:.0f} s")
                _wait_level(steady, blog)
                time.sleep(_STEADY_SECONDS)
                outage.begin()
                time.sleep(seconds)
                outage.end()
                ended_at = time.monotonic()
                _wait_level(steady, blog)
                found[outage.name] = time.monotonic() - ended_at
                say(f"  level after {found[outage.name]:.1f} s")
        live.stop()
    return Outcome(
        about=f"{PER_SECOND} changes a second, an outage of {seconds:.0f} s; from its end until all is level again",
        columns=("outage", "seconds until level"),
        rows=[[name, f"{one:.1f}"] for name, one in found.items()],
        figures=[
            *(Figure(what=name, value=one, unit="s", at_most=GOAL_SECONDS) for name, one in found.items()),
            Figure(what="peak memory", value=live.peak_bytes / 1e6, unit="MB", at_most=MEGABYTES_MAX),
        ],
        record={"seconds": {name: round(one, 1) for name, one in found.items()}, "changes": steady.made},
    )


def _outages(blog: Blog, live: Live) -> Iterator[Outage]:
    for server in blog.world.sandbox.servers:
        yield Outage(name=f"{server.name} killed", begin=server.kill, end=server.start)
    for server in blog.world.sandbox.servers:
        yield Outage(name=f"{server.name} paused", begin=server.pause, end=server.resume)
    yield Outage(name="daemon killed", begin=live.kill, end=live.start)


def _wait_level(steady: Steady, blog: Blog) -> None:
    """Return once Elasticsearch has all that was committed more than a second ago.

    Raises:
        TimeoutError: It does not come to that.
    """
    began = time.monotonic()
    while steady.behind_seconds(_shown(blog)) > _LEVEL_SECONDS:
        if time.monotonic() - began > _GIVE_UP_SECONDS:
            raise TimeoutError(f"Not level after {_GIVE_UP_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)


def _shown(blog: Blog) -> dict[int, int]:
    """By post, the number of the last change that Elasticsearch has; nothing while it does not answer."""
    connection = HTTPConnection(urlsplit(blog.world.endpoints.elasticsearch_url).netloc, timeout=5)
    body = json.dumps({"ids": [str(one) for one in range(1, _POSTS + 1)]})
    try:
        connection.request(
            "POST", f"/{blog.world.alias}/_mget?_source_includes=title", body, {"Content-Type": "application/json"}
        )
        docs = json.loads(connection.getresponse().read())["docs"]
    except (OSError, HTTPException, ValueError, KeyError):
        return {}
    finally:
        connection.close()
    titles = {int(one["_id"]): one["_source"]["title"] for one in docs if one.get("found")}
    return {post: int(title.removeprefix(_MARK)) for post, title in titles.items() if title.startswith(_MARK)}
