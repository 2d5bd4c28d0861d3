"""References that use no code of syncer. Each runs in a process of its own: ``python -m tests.benchmarks.references``.

The *bare loop* is the simplest script that loads an index from Postgres. One connection composes 1,000 posts a query,
as JSON; four plain bulk requests are in flight. It has no versions, does not resume, and misses changes and deletes.

The *polling loop* is the simplest script that keeps an index: every 50 ms, it reads the posts that say they have
changed since, composes them, and sends them in one request. It misses deletes, late commits and other tables' changes.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from threading import local
from typing import Any
from urllib.parse import urlsplit

import psycopg

_IN_FLIGHT, _PAGE = 4, 1000
_POLL_SECONDS = 0.05
_CHANGED = "SELECT id, changed FROM posts WHERE changed > %s ORDER BY changed"


class Connections:
    """Plain bulk requests to one index, on one kept connection for each thread."""

    def __init__(self, url: str, index: str) -> None:
        self._address = urlsplit(url).netloc
        self._path = f"/{index}/_bulk?filter_path=errors"
        self._local = local()

    def post(self, rows: Sequence[tuple[str, str]]) -> None:
        """Send ids and documents in one bulk request, and fail if Elasticsearch refuses any part of it."""
        if not hasattr(self._local, "connection"):
            self._local.connection = HTTPConnection(self._address)
        connection: HTTPConnection = self._local.connection
        body = "".join([f'{{"index":{{"_id":"{id_}"}}}}\n{source}\n' for id_, source in rows]).encode()
        connection.request("POST", self._path, body, {"Content-Type": "application/x-ndjson"})
        answer = connection.getresponse().read()
        if answer != b'{"errors":false}':
            raise RuntimeError(f"Elasticsearch answers {answer[:300]!r}")


def documents_query(postgres: psycopg.Connection[Any], select_file: str | Path) -> bytes:
    """The query for ids and documents, composed as JSON; the fields are the columns of the SELECT without its id."""
    select = Path(select_file).read_text()
    columns = postgres.execute(f"SELECT d.* FROM ({select}) AS d LIMIT 0".encode()).description or ()
    fields = ", ".join(f'd."{column.name}"' for column in columns if column.name != "_id")
    source = f"(SELECT row_to_json(f) FROM (SELECT {fields}) AS f)::text"
    return f"SELECT d._id::text, {source} FROM ({select}) AS d WHERE d._id = ANY (%s)".encode()


def bare_loop(dsn: str, url: str, index: str, select_file: str, posts: str) -> None:
    """Write posts to an index, from the first to the last, such as 1-1000."""
    connections = Connections(url, index)
    first_post, last_post = map(int, posts.split("-"))
    with psycopg.connect(dsn, autocommit=True) as postgres, ThreadPoolExecutor(_IN_FLIGHT) as pool:
        query, in_flight = documents_query(postgres, select_file), deque[Future[None]]()
        for start in range(first_post, last_post + 1, _PAGE):
            ids = list(range(start, min(start + _PAGE, last_post + 1)))
            rows = postgres.execute(query, (ids,), prepare=True).fetchall()
            if len(in_flight) == _IN_FLIGHT:
                in_flight.popleft().result()
            in_flight.append(pool.submit(connections.post, rows))
        for future in in_flight:
            future.result()


def polling_loop(dsn: str, url: str, index: str, select_file: str) -> None:
    """Write the posts that change from now on, until killed."""
    connections = Connections(url, index)
    with psycopg.connect(dsn, autocommit=True, application_name="polling loop") as postgres:
        query, since = documents_query(postgres, select_file), datetime.now(tz=UTC)
        while True:
            changed = postgres.execute(_CHANGED, (since,), prepare=True).fetchall()
            if changed:
                since = changed[-1][1]
                ids = [id_ for id_, _ in changed]
                connections.post(postgres.execute(query, (ids,), prepare=True).fetchall())
            time.sleep(_POLL_SECONDS)


def command(name: str, *arguments: object) -> list[str]:
    """The command that runs one of them."""
    return [sys.executable, "-m", "tests.benchmarks.references", name, *map(str, arguments)]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
