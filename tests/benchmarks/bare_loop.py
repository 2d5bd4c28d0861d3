"""The bare loop: the simplest script that loads an index from Postgres. The reference that syncer is measured by.

One connection composes 1,000 posts a query, as JSON; four plain bulk requests are in flight. It knows nothing of
versions, of what changes meanwhile, of what fails, of where it was when it is run again, or of posts that are gone.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psycopg

from tests.benchmarks.bulk import Connections

IN_FLIGHT = 4
PAGE = 1000

_QUERY = """
SELECT d._id::text, (
    SELECT row_to_json(f) FROM (SELECT d.title, d.body, d.tags, d.created, d."user", d.comments) AS f
)::text
FROM ({select}) AS d
WHERE d._id = ANY (%s)
"""


def fill(dsn: str, url: str, index: str, select: str, *, first_post: int, last_post: int) -> None:
    """Write these posts to an index."""
    connections = Connections(url, index)

    def send(rows: list[tuple[str, str]]) -> None:
        body = "".join([f'{{"index":{{"_id":"{id_}"}}}}\n{source}\n' for id_, source in rows])
        connections.post(body.encode())

    query = _QUERY.format(select=select)
    with psycopg.connect(dsn, autocommit=True) as postgres, ThreadPoolExecutor(IN_FLIGHT) as pool:
        in_flight: list[Future[None]] = []
        for first in range(first_post, last_post + 1, PAGE):
            ids = list(range(first, min(first + PAGE, last_post + 1)))
            rows = postgres.execute(query, (ids,), prepare=True).fetchall()
            if len(in_flight) == IN_FLIGHT:
                in_flight.pop(0).result()
            in_flight.append(pool.submit(send, rows))
        for one in in_flight:
            one.result()


if __name__ == "__main__":
    _dsn, _url, _index, _select, _first, _last = sys.argv[1:]
    fill(_dsn, _url, _index, Path(_select).read_text(), first_post=int(_first), last_post=int(_last))
