"""An application for `staleness`: writers that change rows at random, in a process of its own.

``python -m tests.benchmarks.random_writers DSN CHANGES SEED [URL INDEX SELECT]`` runs until it gets SIGTERM.

With an index, it also keeps that index by itself, as search plugins of popular ORMs do: after each commit, a callback
reads the documents that show the saved object, and indexes them. An error of Elasticsearch is logged and the request
goes on, since the row is saved already.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import elasticsearch
import psycopg
import yaml
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk

WATCHED = 50
"""The first posts: their titles belong to the benchmark, and they are never deleted."""
OF_POST = "SELECT %(post)s::bigint"
_WRITERS, _PAUSE_SECONDS = 4, 0.1
"""Slow enough that no contestant falls behind for minutes: what differs then is wrong, and not late."""
_HOT, _OTHERS = 20, 1000
"""Half of all changes are of so many posts and other rows, so that they meet."""

Callback = Callable[[str, dict[str, Any]], None]
"""Called after a commit with the query for the posts that show it, and its values."""


def callbacks(dsn: str, url: str, index: str, select_file: str) -> Callback:
    """The callbacks of an application with this document."""
    client = Elasticsearch(url, request_timeout=10, max_retries=3, retry_on_timeout=True)
    select = Path(select_file).read_text().strip().removesuffix(";")
    documents = f"SELECT d._id::text, row_to_json(d.*) FROM (\n{select}\n) AS d WHERE d._id = ANY(%s)"
    local = threading.local()

    def index_them(shown_by: str, values: dict[str, Any]) -> None:
        """Read the documents, and index them; those that are gone are deleted."""
        try:
            if not hasattr(local, "connection"):
                local.connection = psycopg.connect(dsn, autocommit=True, options="-c TimeZone=UTC")
            ids = [row[0] for row in local.connection.execute(shown_by, values)]
            found = dict(local.connection.execute(documents, [ids]).fetchall())
        except psycopg.OperationalError:
            local.__dict__.clear()
            raise
        actions = []
        for id_ in map(str, ids):
            action = {"_index": index, "_id": id_, "_op_type": "index" if id_ in found else "delete"}
            fields = {name: value for name, value in found.get(id_, {}).items() if name != "_id"}
            actions.append(action | ({"_source": fields} if id_ in found else {}))
        try:
            bulk(client, actions, raise_on_error=False)
        except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
            print(f"not indexed: {error}", file=sys.stderr)  # noqa: T201 - its log

    return index_them


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
