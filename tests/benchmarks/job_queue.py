"""A queue of jobs and its worker, as web applications have them beside callbacks.

``python -m tests.benchmarks.job_queue DSN URL INDEX SELECT QUEUE`` works until it is killed.

It is a model of Sidekiq or Celery. After the commit, the application enqueues a job that names a saved row. One of five
threads takes it, reads the documents that show the row, and indexes them. A job that fails is tried again after 16 s,
31 s, 96 s and so on, as Sidekiq does, without end. The queue itself loses nothing and is never away: it is a file of
SQLite, and a job stays in it until it is done, also when the worker is killed.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import elasticsearch
import psycopg
from elasticsearch import Elasticsearch
from elasticsearch.helpers import BulkIndexError, bulk

Callback = Callable[[str, dict[str, Any]], None]
"""Called after a commit with the query for the posts that show it, and its values."""
NOT_INDEXED = (elasticsearch.ApiError, elasticsearch.TransportError, BulkIndexError)
_THREADS, _IDLE_SECONDS = 5, 0.1
_MAKE = """
CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, shown_by TEXT, given TEXT,
    tries INTEGER DEFAULT 0, due REAL DEFAULT 0, is_taken INTEGER DEFAULT 0)
"""
_TAKE = """
UPDATE job SET is_taken = 1, tries = tries + 1
WHERE id = (SELECT id FROM job WHERE NOT is_taken AND due <= ? ORDER BY id LIMIT 1) RETURNING id, shown_by, given, tries
"""


def indexer(dsn: str, url: str, index: str, select_file: str) -> Callback:
    """What reads documents and indexes them, without versions; it raises an error of either server."""
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
            documents_by_id = dict(local.connection.execute(documents, [ids]).fetchall())
        except psycopg.OperationalError:
            local.__dict__.clear()
            raise
        actions = []
        for id_ in map(str, ids):
            action = {"_index": index, "_id": id_, "_op_type": "index" if id_ in documents_by_id else "delete"}
            fields = {name: value for name, value in documents_by_id.get(id_, {}).items() if name != "_id"}
            actions.append(action | ({"_source": fields} if id_ in documents_by_id else {}))
        _, errors = bulk(client, actions, raise_on_error=False)
        assert isinstance(errors, list)
        if failures := [item for item in errors if item.get("delete", {}).get("status") != 404]:  # it was not there
            raise BulkIndexError(f"{len(failures)} documents", failures)

    return index_them


def opened(queue: str) -> sqlite3.Connection:
    """A connection to the queue, for one thread."""
    connection = sqlite3.connect(queue, timeout=60, isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute(_MAKE)
    return connection


def enqueue(queue: str, shown_by: str, values: dict[str, Any]) -> None:
    """What the callback of an application does after a commit."""
    with closing(opened(queue)) as connection:
        connection.execute("INSERT INTO job (shown_by, given) VALUES (?, ?)", (shown_by, json.dumps(values)))


def is_empty(queue: str) -> bool:
    """Whether every job is done."""
    with closing(opened(queue)) as connection:
        return bool(connection.execute("SELECT count(*) = 0 FROM job").fetchone()[0])


def _work(queue: str, index: list[str]) -> None:
    index_them = indexer(*index)
    with closing(opened(queue)) as connection:
        while True:
            for job, shown_by, values, tries in connection.execute(_TAKE, (time.time(),)).fetchall():
                try:
                    index_them(shown_by, json.loads(values))
                    connection.execute("DELETE FROM job WHERE id = ?", (job,))
                except (psycopg.OperationalError, *NOT_INDEXED) as error:
                    print(f"job {job}, try {tries}: {error!r}", file=sys.stderr, flush=True)  # noqa: T201 - its log
                    due = time.time() + 15 + tries**4
                    connection.execute("UPDATE job SET is_taken = 0, due = ? WHERE id = ?", (due, job))
                break
            else:
                time.sleep(_IDLE_SECONDS)


if __name__ == "__main__":
    *addresses, file = sys.argv[1:]
    with closing(opened(file)) as queue:
        queue.execute("UPDATE job SET is_taken = 0")  # those that a killed worker had in hand
    for _ in range(_THREADS):
        threading.Thread(target=_work, args=(file, addresses)).start()
