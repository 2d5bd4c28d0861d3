"""What a failover costs, beside edits: how many documents are written again, and how long until all is settled.

A planned switchover, and the failover to a standby that lags, of this and of another tree.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg

from tests.benchmarks.edits import OFTEN, paced
from tests.benchmarks.report import Figure, say
from tests.benchmarks.trees import trees
from tests.benchmarks.world import Bench, Blog
from tests.support.standbys import Standbys, standbys
from tests.support.world import wait_until

_BEFORE_SECONDS, _LAG_SECONDS, _SETTLE_SECONDS = 25.0, 3.0, 3600.0
_AGAIN = """
SELECT count(*), sum(documents_done)::bigint, bool_and(finished_at IS NOT NULL), extract(epoch FROM max(finished_at))
FROM syncer.job WHERE kind IN ('recovery', 'refresh') AND extract(epoch FROM created_at) > %s
"""


def failover(bench: Bench) -> Iterator[Figure]:
    """Documents and seconds that a switchover and a failover cost, beside edits, of this and of another tree."""
    for title, tree in trees(bench):
        with standbys(bench.sandbox) as servers, _blog(bench, servers, tree) as blog:
            blog.load()
            blog.start()
            for what, keep in {"switchover": Standbys.keep_follower, "failover": Standbys.keep_standby}.items():
                say(f"{title}: {what}")
                with _edits(blog):
                    time.sleep(_BEFORE_SECONDS)
                    set_back = keep(servers)
                    time.sleep(_LAG_SECONDS)
                    set_back()
                    began = time.time()
                    documents, seconds = _settled(blog, began)
                yield Figure(f"{title}: {what}, documents written again", documents)
                yield Figure(f"{title}: {what}, until they were", seconds, unit="s")
                [(token,)] = blog.sql("SELECT syncer.token()")
                blog.syncer("wait", token)
                if wrong := blog.wrong():
                    raise RuntimeError(f"{title}, {what}: {len(wrong)} documents are wrong")
            blog.stop()
    bench.report.about = f"{bench.posts:,} documents, {OFTEN} edits a second"


@contextmanager
def _blog(bench: Bench, servers: Standbys, tree: Path) -> Iterator[Blog]:
    """A blog in a Postgres of its own, kept by the program of a tree."""
    endpoints = replace(bench.endpoints, postgres_dsn=servers.primary.address)
    with tempfile.TemporaryDirectory(prefix="syncer-benchmarks-") as folder:
        settings = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        blog = Blog(
            sandbox=bench.sandbox,
            endpoints=endpoints,
            folder=Path(folder),
            posts=bench.posts,
            uses_kafka=False,
            worker_settings=settings,
        )
        try:
            yield blog
        finally:
            blog.unmake()


@contextmanager
def _edits(blog: Blog) -> Iterator[None]:
    """Edits of one post after the other; those that meet no server are left out."""
    over = threading.Event()

    def edit() -> None:
        connection: psycopg.Connection | None = None
        for number in paced(OFTEN):
            if over.is_set():
                return
            with suppress(psycopg.Error):
                if connection is None or connection.closed:
                    connection = psycopg.connect(blog.dsn, autocommit=True)
                connection.execute("UPDATE posts SET title = title || '.' WHERE id = %s", (1 + number % blog.posts,))

    editor = threading.Thread(target=edit, name="edits")
    editor.start()
    try:
        yield
    finally:
        over.set()
        editor.join()


def _settled(blog: Blog, began: float) -> tuple[int, float]:
    """How many documents were written again since, and after how many seconds the last of them was."""
    ended: list[tuple[int, float]] = []

    def is_over() -> bool:
        with suppress(psycopg.Error):
            ((jobs, documents, is_done, at),) = blog.sql(_AGAIN, began - _LAG_SECONDS)
            if jobs and is_done:
                ended.append((int(documents), float(at) - began))
        return bool(ended)

    wait_until(is_over, what="what is in doubt is written again", seconds=_SETTLE_SECONDS)
    return ended[0]
