"""References that use no code of syncer. Each runs in a process of its own: ``python -m tests.benchmarks.references``.

The *bare loop* is the simplest script that loads an index from Postgres. One connection composes 1,000 posts a query,
as JSON; four plain bulk requests are in flight. It has no versions, does not resume, and misses changes and deletes.

The *ceiling* sends bulk bodies that were built before, as fast as Elasticsearch takes them. The bodies are in one file,
each after its length, so that a million documents need no more memory than a few bodies.

The *polling loop* is the simplest script that keeps an index: every 50 ms, it reads the posts that say they have
changed since, composes them, and sends them in one request. It misses deletes, late commits and other tables' changes.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from threading import Lock, local
from urllib.parse import urlsplit

import psycopg

_IN_FLIGHT, _PAGE = 4, 1000
_LENGTH_BYTES = 8
_SOURCE = """
(SELECT row_to_json(f) FROM (SELECT d.title, d.body, d.tags, d.created, d."user", d.comments) AS f)::text
"""
_POLL_SECONDS = 0.05
_CHANGED = "SELECT id, changed FROM posts WHERE changed > %s ORDER BY changed"
_DOCUMENTS = "SELECT d._id::text, {source} FROM ({select}) AS d WHERE d._id = ANY (%s)"
_BODY = """
SELECT string_agg(format(E'{"index":{"_id":"%%s"}}\n%%s\n', d._id, {source}), '')
FROM ({select}) AS d
WHERE d._id BETWEEN %s AND %s
"""


class Connections:
    """Plain bulk requests to one index, on one kept connection for each thread."""

    def __init__(self, url: str, index: str) -> None:
        self._address = urlsplit(url).netloc
        self._path = f"/{index}/_bulk?filter_path=errors"
        self._local = local()

    def post(self, body: bytes) -> None:
        """Send one bulk request, and fail if Elasticsearch refuses any part of it."""
        if not hasattr(self._local, "connection"):
            self._local.connection = HTTPConnection(self._address)
        connection: HTTPConnection = self._local.connection
        connection.request("POST", self._path, body, {"Content-Type": "application/x-ndjson"})
        answer = connection.getresponse().read()
        if answer != b'{"errors":false}':
            raise RuntimeError(f"Elasticsearch answers {answer[:300]!r}")


def _body(rows: list[tuple[str, str]]) -> bytes:
    return "".join([f'{{"index":{{"_id":"{id_}"}}}}\n{source}\n' for id_, source in rows]).encode()


def bare_loop(dsn: str, url: str, index: str, select_file: str, posts: str) -> None:
    """Write posts to an index, from the first to the last, such as 1-1000."""
    connections = Connections(url, index)
    first, last = map(int, posts.split("-"))
    query = _DOCUMENTS.format(source=_SOURCE, select=Path(select_file).read_text())

    def send(rows: list[tuple[str, str]]) -> None:
        connections.post(_body(rows))

    with psycopg.connect(dsn, autocommit=True) as postgres, ThreadPoolExecutor(_IN_FLIGHT) as pool:
        in_flight: deque[Future[None]] = deque()
        for start in range(first, last + 1, _PAGE):
            ids = list(range(start, min(start + _PAGE, last + 1)))
            rows = postgres.execute(query, (ids,), prepare=True).fetchall()
            if len(in_flight) == _IN_FLIGHT:
                in_flight.popleft().result()
            in_flight.append(pool.submit(send, rows))
        for future in in_flight:
            future.result()


def polling_loop(dsn: str, url: str, index: str, select_file: str) -> None:
    """Write the posts that change from now on, until killed."""
    connections = Connections(url, index)
    query = _DOCUMENTS.format(source=_SOURCE, select=Path(select_file).read_text())
    with psycopg.connect(dsn, autocommit=True, application_name="polling loop") as postgres:
        since = datetime.now(tz=UTC)
        while True:
            changed = postgres.execute(_CHANGED, (since,), prepare=True).fetchall()
            if changed:
                since = changed[-1][1]
                rows = postgres.execute(query, ([id_ for id_, _ in changed],), prepare=True).fetchall()
                connections.post(_body(rows))
            time.sleep(_POLL_SECONDS)


def prebuild(dsn: str, select: str, posts: int, file: Path) -> None:
    """Write the bodies that the ceiling sends."""
    query = _BODY.replace("{source}", _SOURCE).replace("{select}", select)
    with psycopg.connect(dsn, autocommit=True) as postgres, file.open("wb") as out:
        for first in range(1, posts + 1, _PAGE):
            row = postgres.execute(query, (first, min(first + _PAGE - 1, posts))).fetchone()
            assert row is not None
            body = row[0].encode()
            out.write(len(body).to_bytes(_LENGTH_BYTES) + body)


def bodies(file: Path) -> Iterator[bytes]:
    """What `prebuild` has written, body by body."""
    with file.open("rb") as built:
        while length := built.read(_LENGTH_BYTES):
            yield built.read(int.from_bytes(length))


def ceiling(url: str, index: str, file: str, in_flight: str) -> None:
    """Send all bodies, so many at once."""
    connections = Connections(url, index)
    waiting, turn = bodies(Path(file)), Lock()

    def send() -> None:
        while True:
            with turn:
                body = next(waiting, None)
            if body is None:
                return
            connections.post(body)

    with ThreadPoolExecutor(int(in_flight)) as pool:
        for future in [pool.submit(send) for _ in range(int(in_flight))]:
            future.result()


def command(name: str, *arguments: object) -> list[str]:
    """The command that runs one of them."""
    return [sys.executable, "-m", "tests.benchmarks.references", name, *map(str, arguments)]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
