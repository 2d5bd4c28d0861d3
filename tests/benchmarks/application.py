"""What the triggers and the daemon cost those who write to Postgres.

The references are copies of the table, made by ``application.sql``: without triggers, and with the least trigger that
could capture changes.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psycopg

from tests.benchmarks.contest import ratio
from tests.benchmarks.report import Figure, memory, say
from tests.benchmarks.world import Bench, Blog

_CLIENTS = 2
_WITHOUT, _LEAST, _WITH = "plain.posts", "least.posts", "public.posts"
_SCRIPT = """
\\set id random(1, {posts})
\\set number random(1, 1000000000)
UPDATE {table} SET title = 'Post ' || :id || ' ' || :number WHERE id = :id;
"""
_BULK = "UPDATE {table} SET title = 'Post ' || id || ' {token}' WHERE id <= {posts}"
_PLAIN, _FLOOR = "no triggers", "the least trigger"
_TRIGGERS, _RUNNING = "triggers, no daemon", "triggers and daemon"


def application(bench: Bench) -> Iterator[Figure]:
    """What triggers and daemon cost those who write to Postgres."""
    blog = bench.crowded
    seconds = max(1.0, bench.seconds / 3)
    blog.sql(Path(__file__).with_suffix(".sql").read_text())
    rates, bulk = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    cores, peaks = [], []
    for number in range(bench.passes):
        say(f"pass {number + 1} of {bench.passes}")
        for name, table in ((_PLAIN, _WITHOUT), (_FLOOR, _LEAST), (_TRIGGERS, _WITH)):
            rates[name].append(_pgbench(blog, name, table, seconds))
        blog.start_idle()  # the daemon has done what the last round left in the outbox
        before = blog.cpu_seconds()
        rates[_RUNNING].append(_pgbench(blog, _RUNNING, _WITH, seconds))
        cores.append((sum(blog.cpu_seconds().values()) - sum(before.values())) / seconds)
        blog.wait_settled()
        peaks.append(blog.stop())
        blog.start_idle()
        for name, table in ((_PLAIN, _WITHOUT), (_RUNNING, _WITH)):
            bulk[name].append(_large_update(blog, name, table))
        peaks.append(blog.stop())
    bench.report.about = f"single rows updated by pgbench, {_CLIENTS} clients, and {blog.large:,} rows at once"
    rows = [[name, f"{median(found):,.0f}", ""] for name, found in rates.items()]
    rows += [[f"at once, {name}", "", f"{median(found):.2f}"] for name, found in bulk.items()]
    bench.report.table(("", "transactions/s", "seconds"), rows)
    bench.report.record |= {"transactions_per_second": rates, "bulk_seconds": bulk, "cores": cores}
    cores_taken = f"{median(cores):.2f} of {os.cpu_count()} cores"
    bench.report.remarks.append(f"daemon, Kafka, Elasticsearch and syncer's backends took {cores_taken}")
    goals = {_TRIGGERS: 0.9}
    for name in (_RUNNING, _TRIGGERS, _FLOOR):
        yield Figure(f"{name} / {_PLAIN}", ratio(rates[name], rates[_PLAIN]), at_least=goals.get(name))
    slower = ratio(bulk[_RUNNING], bulk[_PLAIN])
    yield Figure(f"{blog.large:,} rows at once, seconds with / without", slower, at_most=2.5)
    yield memory("peak memory", max(peaks))


def _pgbench(blog: Blog, name: str, table: str, seconds: float) -> float:
    """Transactions per second."""
    _settle(blog)
    script = blog.folder / "pgbench.sql"
    script.write_text(_SCRIPT.format(posts=blog.posts, table=table))
    command = [str(blog.sandbox.postgres.bin_folder / "pgbench"), "--no-vacuum", f"--file={script}"]
    command += [f"--client={_CLIENTS}", f"--jobs={_CLIENTS}", f"--time={round(seconds)}", blog.dsn]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = float(printed.split("tps = ")[1].split()[0])
    say(f"{name}: {rate:,.0f} transactions/s")
    return rate


def _large_update(blog: Blog, name: str, table: str) -> float:
    """Seconds of one UPDATE of many rows, the daemon running."""
    _settle(blog)
    statement = _BULK.format(table=table, token=uuid.uuid4().hex[:8], posts=blog.large)
    with psycopg.connect(blog.dsn, autocommit=True) as connection:
        began = time.monotonic()
        connection.execute(statement)
        seconds = time.monotonic() - began
    say(f"{blog.large:,} rows at once, {name}: {seconds:.2f} s")
    blog.wait_settled()
    return seconds


def _settle(blog: Blog) -> None:
    with psycopg.connect(blog.dsn, autocommit=True) as connection:
        connection.execute(f"VACUUM ANALYZE {_WITH}, {_LEAST}, {_WITHOUT}")
        connection.execute("CHECKPOINT")
