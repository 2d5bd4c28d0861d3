"""The relay and the outbox source alone: changes are read and saved as done, without Elasticsearch."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median

import psycopg

from syncer.relay.loop import PAGE_ROWS
from syncer.worker.loop import BATCH_CHANGES_MAX
from syncer.worker.source import OutboxSource
from tests.benchmarks.bulk_work import ONE_TRANSACTION
from tests.benchmarks.contest import ratio
from tests.benchmarks.report import Figure
from tests.benchmarks.world import Bench, Blog


def sources(bench: Bench) -> Iterator[Figure]:
    """Changes a second that the relay and the outbox source read and save as done, without Elasticsearch."""
    blog = bench.even
    rates: defaultdict[str, list[float]] = defaultdict(list)

    def take(name: str, work: Callable[[Blog], int]) -> None:
        began = time.monotonic()
        rates[name].append(work(blog) / (time.monotonic() - began))

    outbox, relay, bare = "outbox source", "relay", "a plain cursor"
    for _ in range(bench.passes):
        _change(blog)
        take(bare, _read)
        take(outbox, _handle)
    for _ in range(bench.passes):  # not before: what is only in the topic would be made up for
        _change(blog)
        take(relay, _publish)
    bench.report.about = f"{blog.posts:,} changes of one transaction, read and saved as done, and nothing else"
    bench.report.record["changes_per_second"] = {name: list(map(round, found)) for name, found in rates.items()}
    for name in (outbox, relay):
        yield Figure(f"{name}, changes a second", median(rates[name]))
        yield Figure(f"{name} / {bare}", ratio(rates[name], rates[bare]))


def _change(blog: Blog) -> None:
    blog.sql(ONE_TRANSACTION.format(token=f"t{uuid.uuid4().hex[:8]}", posts=blog.posts))


def _read(blog: Blog) -> int:
    with psycopg.connect(blog.dsn) as connection, connection.cursor("changes") as cursor:
        cursor.itersize = PAGE_ROWS
        return sum(1 for _ in cursor.execute("SELECT row_to_json(o)::text FROM syncer.outbox AS o"))


def _handle(blog: Blog) -> int:
    source = OutboxSource(connect=blog.connect, settings=blog.settings.relay, pause=time.sleep)
    changes = 0
    while changes < blog.posts:
        batch = source.receive(records_max=BATCH_CHANGES_MAX, wait_seconds=1)
        if batch is not None:
            source.save(batch)
            changes += len(batch.changes)
    source.close()
    return changes


def _publish(blog: Blog) -> int:
    changes = 0
    with blog.relay() as relay:
        while changes < blog.posts:
            changes += relay.run_once().published
    return changes
