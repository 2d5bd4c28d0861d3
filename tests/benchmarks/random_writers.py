"""An application for `staleness`: writers that change rows at random, in a process of its own.

``python -m tests.benchmarks.random_writers DSN CHANGES SEED [URL INDEX SELECT [QUEUE]]`` runs until it gets SIGTERM.

With an index, it also keeps that index by itself, as search plugins of popular ORMs do: after each commit, a callback
reads the documents that show the saved object, and indexes them. An error of Elasticsearch is logged and the request
goes on, since the row is saved already. With a queue, the callback enqueues a job instead: see `job_queue`.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import yaml

from tests.benchmarks import job_queue
from tests.benchmarks.job_queue import Callback

WATCHED = 50
"""The first posts: their titles belong to the benchmark, and they are never deleted."""
OF_POST = "SELECT %(post)s::bigint"
_WRITERS, _PAUSE_SECONDS = 4, 0.1
"""Slow enough that no contestant falls behind for minutes: what differs then is wrong, and not late."""
_HOT, _OTHERS = 20, 1000
"""Half of all changes are of so many posts and other rows, so that they meet."""


def callbacks(dsn: str, url: str, index: str, select_file: str, queue: str = "") -> Callback:
    """The callbacks of an application with this document."""
    if queue:
        return partial(job_queue.enqueue, queue)
    index_them = job_queue.indexer(dsn, url, index, select_file)

    def called(shown_by: str, values: dict[str, Any]) -> None:
        try:
            index_them(shown_by, values)
        except job_queue.NOT_INDEXED as error:
            print(f"not indexed: {error}", file=sys.stderr)  # noqa: T201 - its log

    return called


def _write(dsn: str, changes: list[dict[str, Any]], number: int, stop: threading.Event, call: Callback) -> None:
    dice = random.Random(number)
    weights = [change["weight"] for change in changes]
    new = int(time.time() * 1000) * _WRITERS + number % _WRITERS
    while not stop.wait(_PAUSE_SECONDS):
        # A server that restarts ends the session: an application connects again, and goes on with what is next.
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as connection:
            posts = [row[0] for row in connection.execute("SELECT id FROM posts ORDER BY id")]
            while not stop.wait(_PAUSE_SECONDS):
                is_hot = dice.random() < 0.5
                new += _WRITERS
                values = {
                    "text": f"written {dice.random()}",
                    "other": dice.randint(1, _HOT if is_hot else _OTHERS),
                    "post": dice.choice(posts[:_HOT] if is_hot else posts),
                    "row": dice.randint(1, len(posts)),
                    "new": new,
                    "watched": WATCHED,
                }
                change = dice.choices(changes, weights)[0]
                former = connection.execute(change["former"], values).fetchone() if "former" in change else None
                values["former"] = former[0] if former else values["post"]
                for statement in change["statements"]:
                    with suppress(psycopg.IntegrityError, psycopg.errors.DeadlockDetected):
                        connection.execute(statement, values)
                        call(change["shown_by"], values)


def main(dsn: str, changes_file: str, seed: str, *index: str) -> None:
    """Write until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    changes = yaml.safe_load(Path(changes_file).read_text())
    call: Callback = callbacks(dsn, *index) if index else lambda *_: None
    numbers = (int(seed) * _WRITERS + writer for writer in range(_WRITERS))
    threads = [threading.Thread(target=_write, args=(dsn, changes, number, stop, call)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
