"""Single edits: until each is seen, what each costs, also the application, and beside a rename."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.benchmarks.edits import OFTEN, Edits, Sight, deadline, edited
from tests.benchmarks.gauges import Writes, difference, peak_bytes
from tests.benchmarks.peers import PollingLoop
from tests.benchmarks.report import Figure, Run
from tests.benchmarks.world import LARGE_AUTHOR, RENAME, WAYS, Bench, token

_SELDOM, _TURNS = 5, 5
_PACES, _WATCHED_PER_SECOND = (OFTEN, 200, 1000), 20
_P50_MAX, _P99_MAX = 50, 150
_WATCHED_OF = 5
_OPEN_JOBS = "SELECT FROM syncer.job WHERE finished_at IS NULL"
_APART_SECONDS = 0.2
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


def latency(bench: Bench) -> Iterator[Figure]:
    """Single edits, from commit until seen by id and by a search."""
    blog, duration = bench.crowded, bench.seconds / _TURNS
    blog.settle()
    blog.start_idle()
    edited(blog, OFTEN, 1)  # what is done for the first time is not measured
    sights: tuple[Sight, ...] = ("visible", "searchable")
    contestants = {
        f"{sight}, {pace}/s": partial(edited, blog, pace, duration, sight=sight)
        for sight in sights
        for pace in (OFTEN, _SELDOM)
    }
    about = f"from the commit of an edit until it is seen, {bench.seconds:.0f} s each"
    report = bench.contest(about, contestants, passes=_TURNS)
    blog.stop()
    for name in contestants:
        for percent, goal in ((50, _P50_MAX), (99, _P99_MAX)):
            at_most = goal if name.startswith("visible") else None
            yield Figure(f"{name}: p{percent}", report.percentile(name, percent), unit="ms", at_most=at_most)
    yield report.memory(*contestants, called="peak memory")


def load(bench: Bench) -> Iterator[Figure]:
    """What a change costs, and when it is seen, by how many come in a second."""
    blog, duration, loop = bench.crowded, bench.seconds / bench.passes / 2, f"polling loop, {OFTEN}/s"

    def edit(pace: int, way: str) -> Run:
        """What it costs is measured without looking, which costs Elasticsearch as much as writing."""
        blog.uses_kafka = WAYS[way]
        blog.start_idle()
        edited(blog, OFTEN, 1, watched_of=0)  # what is done for the first time
        unseen = edited(blog, pace, duration, watched_of=0)
        posts = blog.others
        half = len(posts) // 2
        with Edits(blog, posts[:half], pace - _WATCHED_PER_SECOND, watched_of=0).beside():
            seen = Edits(blog, posts[half:], _WATCHED_PER_SECOND)
            seen.run(until=deadline(duration))
        blog.wait_settled()
        peak = peak_bytes(blog.pid)
        blog.stop()
        return replace(unseen, milliseconds=[milliseconds for _, milliseconds in seen.seen], peak_bytes=peak)

    with PollingLoop.of(blog) as polled:
        polled.start()
        blog.settle()
        contestants = {f"{way}, {pace:,}/s": partial(edit, pace, way) for way in WAYS for pace in _PACES}
        contestants |= {loop: partial(edited, polled, OFTEN, duration, watched_of=0)}
        report = bench.contest("edits of single posts, each a transaction of its own, at several paces", contestants)
        blog.uses_kafka = True
    report.remarks.append("of Postgres, the sessions of the process only; Kafka counts where it is used")
    for way, goal in (("without Kafka", 1.5), ("with Kafka", 1.9)):
        often, *others = (f"{way}, {pace:,}/s" for pace in _PACES)
        figure = f"processor time a change, {way}, at {OFTEN}/s"
        yield Figure(figure, report.of(often, "cost"), unit="ms")
        yield report.ratio(often, loop, by="cost", called=f"{figure} / polling loop", at_most=goal)
        for name in others:
            called = f"processor time a change, {name} / at {OFTEN}/s"
            yield report.ratio(name, often, by="cost", called=called)
    yield report.memory(*(name for name in report.runs if name != loop), called="peak memory")


def isolation(bench: Bench) -> Iterator[Figure]:
    """Single edits of other posts while an author of many posts is renamed."""
    blog = bench.crowded
    bare, at_rest, single, five = "bare loop", "at rest", "during one rename", "during five renames"

    def edits_at_rest() -> Run:
        blog.settle()
        blog.start_idle()
        return edited(blog, OFTEN, bench.seconds / bench.passes, watched_of=_WATCHED_OF)

    def beside_renames(times: int) -> Run:
        """The edits that are made between the first commit and the last document count."""
        blog.settle()
        blog.start_idle()
        names = [token() for _ in range(times)]
        renames = [RENAME.format(token=name, author=LARGE_AUTHOR) for name in names]
        edits = Edits(blog, blog.others, OFTEN, watched_of=_WATCHED_OF)
        writes = Writes(blog.endpoints.elasticsearch_url, blog.alias)
        with edits.beside():
            blog.sql(renames[0])
            began = time.monotonic()
            for rename in renames[1:]:
                time.sleep(_APART_SECONDS)
                blog.sql(rename)
            # Jobs only, since edits are always on their way.
            writes.wait(blog.large, settled=lambda: not blog.sql(_OPEN_JOBS), quiet_seconds=0)
            ended = time.monotonic()
        blog.wait_settled()
        if (shown := blog.count(match={"user.name": names[-1]})) != blog.large:
            raise RuntimeError(f"{shown:,} documents show the last name, not {blog.large:,}")
        in_time = [milliseconds for committed_at, milliseconds in edits.seen if began <= committed_at <= ended]
        return Run(
            documents=blog.large,
            seconds=ended - began,
            peak_bytes=peak_bytes(blog.pid),
            writes=writes.made,
            milliseconds=in_time,
        )

    contestants: dict[str, Callable[[], Run]] = {
        bare: partial(blog.bare_loop, blog.loaded_like_it("bare"), last=blog.large),
        at_rest: edits_at_rest,
        single: partial(beside_renames, 1),
        five: partial(beside_renames, 5),
    }
    about = f"{OFTEN} edits a second, while an author of {blog.large:,} other posts is renamed"
    report = bench.contest(about, contestants)
    blog.stop()
    yield report.ratio(single, bare, called="one rename beside edits / bare loop alone", at_least=0.6)
    for name in (at_rest, single, five):
        at_most = None if name == at_rest else _P99_MAX
        yield Figure(f"{name}: p99", report.percentile(name, 99), unit="ms", at_most=at_most)
    yield report.memory(at_rest, single, five, called="peak memory")


def application(bench: Bench) -> Iterator[Figure]:
    """What triggers and daemon cost those who write to Postgres.

    The references are copies of the table, made by ``application.sql``: without triggers, and with the least trigger
    that could capture changes.
    """
    blog = bench.crowded
    duration = round(max(1.0, bench.seconds / 3))
    blog.sql(Path(__file__).with_name("application.sql").read_text())
    script, pgbench = blog.folder / "pgbench.sql", blog.sandbox.postgres.bin_folder / "pgbench"
    command = [str(pgbench), "--no-vacuum", f"--file={script}", f"--client={_CLIENTS}", f"--jobs={_CLIENTS}"]

    def settle(*, with_daemon: bool) -> None:
        blog.start_idle()  # the daemon does what was left in the outbox
        if not with_daemon:
            blog.stop()
        blog.settle()

    def rows(table: str, *, with_daemon: bool = False) -> Run:
        settle(with_daemon=with_daemon)
        script.write_text(_SCRIPT.format(posts=blog.posts, table=table))
        cpu_before = blog.cpu_seconds()
        timed = [*command, f"--time={duration}", blog.dsn]
        printed = subprocess.run(timed, capture_output=True, text=True, check=True).stdout
        used = difference(blog.cpu_seconds(), cpu_before)
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
    cores = report.of(_RUNNING, "cost") * report.of(_RUNNING) / 1000
    report.remarks.append(
        f"daemon, Kafka, Elasticsearch and syncer's backends took {cores:.2f} of {os.cpu_count()} cores"
    )
    for name, goal in ((_RUNNING, None), (_TRIGGERS, 0.9), (_FLOOR, None)):
        yield report.ratio(name, _PLAIN, at_least=goal)
    slower = f"{blog.large:,} rows at once, seconds with / without"
    yield report.ratio("at once, triggers and daemon", "at once, no triggers", by="seconds", called=slower, at_most=1.5)
    yield report.memory(_RUNNING, "at once, triggers and daemon", called="peak memory")
