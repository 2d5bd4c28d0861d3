"""Application: what the triggers and the daemon cost those who write to Postgres.

What is without triggers is a copy of the table, in a schema of its own, with the same rows, indexes and foreign keys.
Another copy has the least trigger that could capture changes: it inserts one row into a table with one index.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import psycopg

from tests.benchmarks.blog import Blog, Blogs
from tests.benchmarks.contest import MEGABYTES_MAX, say
from tests.benchmarks.live import Live
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome

_CLIENTS = 2
_BURNERS = 2
_WITHOUT, _LEAST, _WITH = "plain.posts", "least.posts", "public.posts"
_COPY = """
DROP SCHEMA IF EXISTS {schema} CASCADE;
CREATE SCHEMA {schema};
CREATE TABLE {schema}.posts (LIKE public.posts INCLUDING ALL);
CREATE TABLE {schema}.comments (LIKE public.comments INCLUDING ALL);
INSERT INTO {schema}.posts SELECT * FROM public.posts;
ALTER TABLE {schema}.posts ADD FOREIGN KEY (user_id) REFERENCES public.users;
ALTER TABLE {schema}.comments ADD FOREIGN KEY (post_id) REFERENCES {schema}.posts ON DELETE CASCADE;
"""
_LEAST_TRIGGER = """
CREATE TABLE least.change (id bigint, xid xid8 DEFAULT pg_current_xact_id());
CREATE INDEX ON least.change (xid);
CREATE FUNCTION least.note() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN INSERT INTO least.change (id) SELECT id FROM new_rows; RETURN NULL; END $$;
CREATE TRIGGER note AFTER UPDATE ON least.posts REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION least.note();
"""
_SCRIPT = """
\\set id random(1, {posts})
\\set number random(1, 1000000000)
UPDATE {table} SET title = 'Post ' || :id || ' ' || :number WHERE id = :id;
"""
_BULK = "UPDATE {table} SET title = 'Post ' || id || ' {token}' WHERE id <= {posts}"
_PLAIN, _FLOOR = "no triggers", "the least trigger"
_TRIGGERS, _RUNNING = "triggers, no daemon", "triggers and daemon"
_BURDENED = "no triggers, cores as busy"
_BULK_PLAIN, _BULK_RUNNING = "no triggers", "triggers and daemon"


@dataclass(slots=True)
class _Application:
    """Writes to the tables, with and without triggers.

    Args:
        blog: Whose tables.
        live: The daemon.
        seconds: How long each round goes on.
        rates: Transactions per second, by round.
        bulk: Seconds of the large UPDATE, by table.
        shares: How many cores the daemon took, with what Kafka, Elasticsearch and its own backends did for it.
    """

    blog: Blog
    live: Live
    seconds: float
    rates: dict[str, list[float]] = field(default_factory=dict)
    bulk: dict[str, list[float]] = field(default_factory=dict)
    shares: list[float] = field(default_factory=list)

    def single_rows(self) -> None:
        """One round of each kind."""
        self._round(_PLAIN, _WITHOUT)
        self._round(_FLOOR, _LEAST)
        self._round(_TRIGGERS, _WITH)
        self.live.start_idle()  # what the round before has left in the outbox is done by then
        before = self.live.cpu_seconds()
        self._round(_RUNNING, _WITH)
        self.shares.append((sum(self.live.cpu_seconds().values()) - sum(before.values())) / self.seconds)
        self.live.wait_settled()
        self.live.stop()
        with _burning(self.shares[-1]):
            self._round(_BURDENED, _WITHOUT)

    def many_rows(self) -> None:
        """One large UPDATE of each kind, the daemon running."""
        self.live.start_idle()
        for name, table in ((_BULK_PLAIN, _WITHOUT), (_BULK_RUNNING, _WITH)):
            self._settle()
            statement = _BULK.format(table=table, token=uuid.uuid4().hex[:8], posts=self.blog.large)
            with psycopg.connect(self.blog.world.dsn, autocommit=True) as connection:
                began = time.monotonic()
                connection.execute(statement)
                seconds = time.monotonic() - began
            self.bulk.setdefault(name, []).append(seconds)
            say(f"{self.blog.large:,} rows at once, {name}: {seconds:.2f} s")
            self.live.wait_settled()
        self.live.stop()

    def ratio(self, name: str, reference: str) -> float:
        """Of transactions per second, within a pass."""
        return median(one / other for one, other in zip(self.rates[name], self.rates[reference], strict=True))

    def _round(self, name: str, table: str) -> None:
        self._settle()
        script = self.blog.world.folder / "pgbench.sql"
        script.write_text(_SCRIPT.format(posts=self.blog.posts, table=table))
        command = [str(self.blog.world.sandbox.postgres.bin_folder / "pgbench"), "--no-vacuum", f"--file={script}"]
        command += [f"--client={_CLIENTS}", f"--jobs={_CLIENTS}", f"--time={round(self.seconds)}", self.blog.world.dsn]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rate = float(printed.split("tps = ")[1].split()[0])
        self.rates.setdefault(name, []).append(rate)
        say(f"{name}: {rate:,.0f} transactions/s")

    def _settle(self) -> None:
        with psycopg.connect(self.blog.world.dsn, autocommit=True) as connection:
            connection.execute(f"VACUUM ANALYZE {_WITH}, {_LEAST}, {_WITHOUT}")
            connection.execute("CHECKPOINT")


@contextmanager
def _burning(cores: float) -> Iterator[None]:
    """Use so many cores meanwhile."""
    command = [sys.executable, "-m", "tests.benchmarks.burner", str(cores / _BURNERS)]
    started = [subprocess.Popen(command) for _ in range(_BURNERS)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Single-row updates by pgbench, and one of many rows."""
    blog = blogs.crowded
    with psycopg.connect(blog.world.dsn, autocommit=True) as connection:
        for schema in ("plain", "least"):
            connection.execute(_COPY.format(schema=schema))
        connection.execute(_LEAST_TRIGGER)
    application = _Application(blog, Live(blog, is_profiled=options.is_profiled), max(1.0, options.seconds / 3))
    for number in range(options.passes):
        say(f"pass {number + 1} of {options.passes}")
        application.single_rows()
        application.many_rows()
    return _outcome(application)


def _outcome(found: _Application) -> Outcome:
    bulk = [with_ / without for with_, without in zip(found.bulk[_BULK_RUNNING], found.bulk[_BULK_PLAIN], strict=True)]
    share = median(found.shares)
    rows = [[name, f"{median(rates):,.0f}", ""] for name, rates in found.rates.items()]
    rows += [[f"at once, {name}", "", f"{median(seconds):.2f}"] for name, seconds in found.bulk.items()]
    return Outcome(
        about=f"updates of single rows by pgbench, {_CLIENTS} clients, and of {found.blog.large:,} rows at once",
        columns=("", "transactions/s", "seconds"),
        rows=rows,
        figures=[
            Figure(what=f"{_RUNNING} / {_PLAIN}", value=found.ratio(_RUNNING, _PLAIN)),
            Figure(what=f"{_TRIGGERS} / {_PLAIN}", value=found.ratio(_TRIGGERS, _PLAIN), at_least=0.9),
            Figure(what=f"{_FLOOR} / {_PLAIN}", value=found.ratio(_FLOOR, _PLAIN)),
            Figure(what=f"{_BURDENED} / {_PLAIN}", value=found.ratio(_BURDENED, _PLAIN)),
            Figure(what=f"{_RUNNING} / {_BURDENED}", value=found.ratio(_RUNNING, _BURDENED)),
            Figure(what=f"{found.blog.large:,} rows at once, seconds with / without", value=median(bulk), at_most=2.5),
            Figure(what="peak memory", value=found.live.peak_bytes / 1e6, unit="MB", at_most=MEGABYTES_MAX),
        ],
        record={"transactions_per_second": found.rates, "bulk_seconds": found.bulk, "cores": found.shares},
        remarks=[
            f"daemon, Kafka, Elasticsearch and syncer's backends took {share:.2f} of {os.cpu_count()} cores meanwhile",
            f"'{_BURDENED}' runs beside processes that burn as much and do nothing",
            *found.live.remarks(),
        ],
    )
