"""An application of the blog, for `staleness`: writers that change rows at random, in a process of its own.

``python -m tests.benchmarks.random_writers DSN SEED [URL INDEX SELECT]`` runs until it gets SIGTERM.

With an index, it also keeps that index by itself, as search plugins of popular ORMs do: after each commit, a callback
reads the documents of the saved object, and of the objects that refer to it, and indexes them. An error of
Elasticsearch is logged and the request goes on, since the row is saved already.
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
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk

WATCHED = 50
"""The first posts: their titles belong to the benchmark, and they are never deleted."""
_WRITERS, _PAUSE_SECONDS = 4, 0.02
_HOT = 20
"""Half of all changes are of so many posts and authors, so that they meet."""

_IDS = dict[str, Any]
_MOVE = "UPDATE posts SET user_id = %(author)s WHERE id = %(post)s"
_RENAME = "UPDATE users SET name = %(text)s WHERE id = %(author)s"
_COMMENT = "INSERT INTO comments (post_id, name, comment) VALUES (%(post)s, %(text)s, '') RETURNING id"
_UNCOMMENT = "DELETE FROM comments WHERE id = %(comment)s"
# Values as all contestants can show them: Flink cuts times to milliseconds, and reads no empty array.
_INSERT = """
INSERT INTO posts (id, user_id, title, body, tags, created)
VALUES (%(new)s, %(author)s, %(text)s, '', '{new,post}', '2026-01-01 00:00:00+00')
"""
OF_POST = "SELECT %(post)s::bigint"
_OF_AUTHOR = "SELECT id FROM posts WHERE user_id = %(author)s"
CHANGES: dict[str, tuple[int, list[tuple[str, str]]]] = {
    "rename": (30, [(_RENAME, _OF_AUTHOR)]),
    "move": (20, [(_MOVE, OF_POST)]),
    "move, then rename": (15, [(_MOVE, OF_POST), (_RENAME, _OF_AUTHOR)]),
    "title": (15, [("UPDATE posts SET title = %(text)s WHERE id = %(post)s AND id > %(watched)s", OF_POST)]),
    "comment": (15, [(_COMMENT, OF_POST)]),
    "comment, then delete it": (15, [(_COMMENT, OF_POST), (_UNCOMMENT, OF_POST)]),
    "move a comment": (5, [("UPDATE comments SET post_id = %(post)s WHERE id = %(comment)s", OF_POST)]),
    "delete": (2, [("DELETE FROM posts WHERE id = %(post)s AND id > %(watched)s", OF_POST)]),
    "insert": (
        4,
        [(_INSERT, "SELECT %(new)s::bigint")],
    ),
}
"""How often each is done beside the others; each statement commits by itself, with the posts that it concerns."""


def _write(dsn: str, number: int, seed: int, stop: threading.Event, callback: Callable[[str, _IDS], None]) -> None:
    chosen = random.Random(seed * _WRITERS + number)
    kinds, weights = list(CHANGES), [weight for weight, _ in CHANGES.values()]
    new = int(time.time() * 1000) * _WRITERS + number
    while not stop.is_set():
        # A server that restarts ends the session: an application connects again, and goes on with what is next.
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as connection:
            posts = [row[0] for row in connection.execute("SELECT id FROM posts ORDER BY id")]
            while not stop.wait(_PAUSE_SECONDS):
                hot = chosen.random() < 0.5
                new += _WRITERS
                values: _IDS = {
                    "text": f"written {chosen.random()}",
                    "author": chosen.randint(1, _HOT if hot else 1000),
                    "post": chosen.choice(posts[:_HOT] if hot else posts),
                    "comment": chosen.randint(1, len(posts)),
                    "new": new,
                    "watched": WATCHED,
                }
                for statement, concerns in CHANGES[chosen.choices(kinds, weights)[0]][1]:
                    with suppress(psycopg.errors.ForeignKeyViolation, psycopg.errors.DeadlockDetected):
                        cursor = connection.execute(statement, values)
                        if "RETURNING" in statement:
                            values["comment"] = cursor.fetchone()[0]  # type: ignore[index]
                        callback(concerns, values)


class Callbacks:
    """Indexes what a saved object concerns."""

    def __init__(self, dsn: str, url: str, index: str, select: str) -> None:
        self._dsn = dsn
        self._index = index
        self._client = Elasticsearch(url, request_timeout=10, max_retries=3, retry_on_timeout=True)
        self._documents = f"SELECT d._id::text, row_to_json(d.*) FROM (\n{select}\n) AS d WHERE d._id = ANY(%s)"
        self._local = threading.local()

    def __call__(self, concerns: str, values: _IDS) -> None:
        """Read the documents, and index them; those that are gone are deleted."""
        try:
            if not hasattr(self._local, "connection"):
                self._local.connection = psycopg.connect(self._dsn, autocommit=True, options="-c TimeZone=UTC")
            ids = [row[0] for row in self._local.connection.execute(concerns, values)]
            found = dict(self._local.connection.execute(self._documents, [ids]).fetchall())
        except psycopg.OperationalError:
            self._local.__dict__.clear()
            raise
        actions = [
            {"_index": self._index, "_id": str(id_), "_op_type": "index", "_source": _fields(found[str(id_)])}
            if str(id_) in found
            else {"_index": self._index, "_id": str(id_), "_op_type": "delete"}
            for id_ in ids
        ]
        try:
            bulk(self._client, actions, raise_on_error=False)
        except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
            print(f"not indexed: {error}", file=sys.stderr)  # noqa: T201 - its log


def callbacks(dsn: str, url: str, index: str, select_file: str) -> Callbacks:
    """The callbacks of an application with this document."""
    return Callbacks(dsn, url, index, Path(select_file).read_text().strip().removesuffix(";"))


def _fields(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "_id"}


def main(dsn: str, seed: str, url: str = "", index: str = "", select: str = "") -> None:
    """Write until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def nothing(_: str, __: _IDS) -> None:
        pass

    callback = callbacks(dsn, url, index, select) if url else nothing
    threads = [
        threading.Thread(target=_write, args=(dsn, number, int(seed), stop, callback)) for number in range(_WRITERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
