"""The ceiling: bulk bodies that were built before, sent as fast as Elasticsearch takes them.

The bodies lie in one file, each after its length, so that a million documents take no more memory than a few bodies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import psycopg

from tests.benchmarks.bare_loop import PAGE
from tests.benchmarks.bulk import Connections

_LENGTH_BYTES = 8
_BODY = """
SELECT string_agg(format(E'{"index":{"_id":"%%s"}}\n%%s\n', d._id, (
    SELECT row_to_json(f) FROM (SELECT d.title, d.body, d.tags, d.created, d."user", d.comments) AS f
)), '')
FROM ({select}) AS d
WHERE d._id BETWEEN %s AND %s
"""


def prebuild(dsn: str, select: str, posts: int, file: Path) -> None:
    """Write the bodies that `initial_load` sends."""
    query = _BODY.replace("{select}", select)
    with psycopg.connect(dsn, autocommit=True) as postgres, file.open("wb") as out:
        for first in range(1, posts + 1, PAGE):
            row = postgres.execute(query, (first, min(first + PAGE - 1, posts))).fetchone()
            assert row is not None
            body = row[0].encode()
            out.write(len(body).to_bytes(_LENGTH_BYTES))
            out.write(body)


def fill(url: str, index: str, file: Path, in_flight: int) -> None:
    """Send all bodies."""
    connections = Connections(url, index)
    waiting = bodies(file)
    turn = Lock()

    def send() -> None:
        while True:
            with turn:
                body = next(waiting, None)
            if body is None:
                return
            connections.post(body)

    with ThreadPoolExecutor(in_flight) as pool:
        for one in [pool.submit(send) for _ in range(in_flight)]:
            one.result()


def bodies(file: Path) -> Iterator[bytes]:
    """What `prebuild` has written, one after the other."""
    with file.open("rb") as out:
        while length := out.read(_LENGTH_BYTES):
            yield out.read(int.from_bytes(length))


if __name__ == "__main__":
    fill(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
