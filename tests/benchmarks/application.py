"""What the triggers and the daemon cost those who write to Postgres.

The references are copies of the table, made by ``application.sql``: without triggers, and with the least trigger that
could capture changes.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg

from tests.benchmarks.gauges import peak_bytes
from tests.benchmarks.report import Figure, Run
from tests.benchmarks.world import Bench, token

_CLIENTS = 2
_WITHOUT, _LEAST, _WITH = "plain.posts", "least.posts", "public.posts"
_SCRIPT = """
\\set id random(1, {posts})
\\set number random(1, 1000000000)
UPDATE {table} SET title = 'Post ' || :id || ' ' || :number WHERE id = :id;
"""
_AT_ONCE = "UPDATE {table} SET title = 'Post ' || id || ' {token}' WHERE id <= {posts}"
_PLAIN, _FLOOR = "no triggers", "the least trigger"
_TRIGGERS, _RUNNING = "triggers, no daemon", "triggers and daemon"


def application(bench: Bench) -> Iterator[Figure]:
    """What triggers and daemon cost those who write to Postgres."""
    blog = bench.crowded
    duration = round(max(1.0, bench.seconds / 3))
    blog.sql(Path(__file__).with_suffix(".sql").read_text())
    script, pgbench = blog.folder / "pgbench.sql", blog.sandbox.postgres.bin_folder / "pgbench"
    command = [str(pgbench), "--no-vacuum", f"--file={script}", f"--client={_CLIENTS}", f"--jobs={_CLIENTS}"]

    def settle(*, with_daemon: bool) -> None:
        blog.start_idle()  # the daemon does what was left in the outbox
        if not with_daemon:
            blog.stop()
        with psycopg.connect(blog.dsn, autocommit=True) as connection:
            connection.execute(f"VACUUM ANALYZE {_WITH}, {_LEAST}, {_WITHOUT}")
            connection.execute("CHECKPOINT")

    def rows(table: str, *, with_daemon: bool = False) -> Run:
        settle(with_daemon=with_daemon)
        script.write_text(_SCRIPT.format(posts=blog.posts, table=table))
        before = blog.cpu_seconds()
        timed = [*command, f"--time={duration}", blog.dsn]
        printed = subprocess.run(timed, capture_output=True, text=True, check=True).stdout
        used = {name: spent - before[name] for name, spent in blog.cpu_seconds().items()}
        rate = float(printed.split("tps = ")[1].split()[0])
        run = Run(documents=round(rate * duration), seconds=duration)
        return replace(run, cpu_seconds=used, peak_bytes=peak_bytes(blog.pid)) if with_daemon else run

    def at_once(table: str) -> Run:
        settle(with_daemon=True)
        began = time.monotonic()
        blog.sql(_AT_ONCE.format(table=table, token=token(), posts=blog.large))
        took = time.monotonic() - began
        blog.wait_settled()
        return Run(documents=blog.large, seconds=took, peak_bytes=peak_bytes(blog.pid))

    contestants: dict[str, Callable[[], Run]] = {
        _PLAIN: partial(rows, _WITHOUT),
        _FLOOR: partial(rows, _LEAST),
        _TRIGGERS: partial(rows, _WITH),
        _RUNNING: partial(rows, _WITH, with_daemon=True),
        "at once, no triggers": partial(at_once, _WITHOUT),
        "at once, triggers and daemon": partial(at_once, _WITH),
    }
    about = f"single rows updated by pgbench, {_CLIENTS} clients, and {blog.large:,} rows at once"
    report = bench.contest(about, contestants)
    blog.stop()
    cores = report.of(_RUNNING, "cores")
    report.remarks.append(
        f"daemon, Kafka, Elasticsearch and syncer's backends took {cores:.2f} of {os.cpu_count()} cores"
    )
    for name, goal in ((_RUNNING, None), (_TRIGGERS, 0.9), (_FLOOR, None)):
        yield report.ratio(name, _PLAIN, at_least=goal)
    slower = f"{blog.large:,} rows at once, seconds with / without"
    yield report.ratio("at once, triggers and daemon", "at once, no triggers", by="seconds", called=slower, at_most=2.5)
    yield report.memory(_RUNNING, "at once, triggers and daemon", called="peak memory")
