"""Single edits: until each is seen, what each costs, and how they fare beside a rename and after an outage."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean, median

import psycopg

from tests.benchmarks import references
from tests.benchmarks.bulk_work import RENAME
from tests.benchmarks.contest import in_turns, ratio
from tests.benchmarks.edits import Edits, Floor, Sight
from tests.benchmarks.report import Figure, memory, percentile, say
from tests.benchmarks.world import LARGE_AUTHOR, WAYS, Bench, Blog, Peer
from tests.benchmarks.writes import sampled

OFTEN, _SELDOM = 50, 5
_TURNS = 5
_PACES, _WATCHED_PER_SECOND = (50, 200, 1000), 20
_POLLING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'polling loop'"
_BULK, _WATCHED_OF = 250, 5
_NOISE = 40  # writes in a tenth of a second: far more than the edits make, far fewer than a rename
_APART_SECONDS = 0.2
_STEADY_PER_SECOND, _STEADY_POSTS, _LAST = 200, 400, 100
_STEADY_SECONDS = 5.0


def shuffled(blog: Blog) -> list[int]:
    """The posts of the thousand authors, in any order."""
    return random.sample(blog.others, len(blog.others))


def latency(bench: Bench) -> Iterator[Figure]:
    """Single edits, from commit until seen by id and by a search."""
    blog = bench.crowded
    floor, posts, seconds = Floor(blog), shuffled(blog), bench.seconds / _TURNS
    bare = "a bare bulk request of one document, and its GET"

    def edit(sight: Sight, per_second: float) -> list[float]:
        return Edits(blog, posts, per_second, sight).milliseconds(seconds)

    blog.settle()
    blog.start_idle()
    Edits(blog, posts, OFTEN).milliseconds(1)  # what is done for the first time is not measured
    floor.milliseconds(1, per_second=OFTEN)
    takers = {bare: partial(floor.milliseconds, seconds, per_second=OFTEN)}
    sights: tuple[Sight, ...] = ("visible", "searchable")
    takers |= {f"{sight}, {pace}/s": partial(edit, sight, pace) for sight in sights for pace in (OFTEN, _SELDOM)}
    found = {name: list(chain(*parts)) for name, parts in in_turns(takers, _TURNS).items()}
    peak, often = blog.stop(), found[f"visible, {OFTEN}/s"]
    bench.report.about = f"from the commit of an edit until it is seen, {bench.seconds:.0f} s each, in {_TURNS} turns"
    bench.report.milliseconds(found)
    for percent, goal in ((50, 3), (99, 8)):
        value = percentile(often, percent) / percentile(found[bare], 50)
        yield Figure(f"p{percent} at {OFTEN}/s / p50 of the floor", value, at_most=goal)
    yield memory("peak memory", peak)


@dataclass(kw_only=True)
class _Polled(Peer):
    """The polling loop, on a copy of the tables in which each edit says when it was made."""

    edit: str = "UPDATE posts SET title = %s, changed = clock_timestamp() WHERE id = %s"

    def start_polling(self) -> None:
        """Start the loop."""
        self.sql("ALTER TABLE posts ADD changed timestamptz")
        self.sql("CREATE INDEX ON posts (changed)")
        self.sql("ANALYZE posts")
        where = (self.dsn, self.endpoints.elasticsearch_url, self.loaded_like_it("polled"))
        command = references.command("polling_loop", *where, self.document_folder / "select.sql")
        self.launch(command, {}, cwd=Path.cwd(), is_ready=lambda: bool(self.sql(_POLLING)), seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """How many changes a second came, the processor milliseconds of each, and milliseconds until some were seen."""

    came: float
    cost: dict[str, float]
    seen: list[float] = field(default_factory=list)


def load(bench: Bench) -> Iterator[Figure]:
    """What a change costs, and when it is seen, by how many come in a second."""
    blog = bench.crowded
    polled = _Polled.of(blog)
    polled.start_polling()
    seconds, loop = bench.seconds / bench.passes, f"polling loop, {OFTEN}/s"

    def cost(edited: Blog, pace: int, way: str) -> _Loaded:
        """Without looking, which costs Elasticsearch as much as writing."""
        edits = Edits(edited, shuffled(blog), pace, watched_of=0)
        before, began = edited.cpu_seconds(), time.monotonic()
        edits.milliseconds(seconds / 2)
        if edited is blog:
            blog.wait_settled()
        came = edits.made / (time.monotonic() - began)
        used = {name: (used - before[name]) * 1000 / edits.made for name, used in edited.cpu_seconds().items()}
        costs = {name: value for name, value in used.items() if way == "with Kafka" or name != "Kafka"}
        return _Loaded(came=came, cost=costs)

    peaks = []

    def edit(pace: int, way: str) -> _Loaded:
        blog.start_idle(environment=WAYS[way])
        Edits(blog, shuffled(blog), pace, watched_of=0).milliseconds(1)  # what is done for the first time
        blog.wait_settled()
        loaded = cost(blog, pace, way)
        posts = shuffled(blog)
        half = len(posts) // 2
        with Edits(blog, posts[:half], pace - _WATCHED_PER_SECOND, watched_of=0).beside():
            seen = Edits(blog, posts[half:], _WATCHED_PER_SECOND).milliseconds(seconds / 2)
        blog.wait_settled()
        peaks.append(blog.stop())
        return replace(loaded, seen=seen)

    blog.settle()
    takers = {f"{way}, {pace:,}/s": partial(edit, pace, way) for way in WAYS for pace in _PACES}
    found = in_turns(takers | {loop: partial(cost, polled, OFTEN, "without Kafka")}, bench.passes)
    polled.end()
    servers = list(dict.fromkeys(server for turns in found.values() for server in turns[0].cost))
    medians = {
        name: {server: median(turn.cost[server] for turn in turns) for server in turns[0].cost}
        for name, turns in found.items()
    }
    totals = {name: [sum(turn.cost.values()) for turn in turns] for name, turns in found.items()}
    came = {name: median(turn.came for turn in turns) for name, turns in found.items()}
    bench.report.about = "edits of single posts, each a transaction of its own, at several paces"
    bench.report.table(
        ("", "came/s", *(f"{server}, ms a change" for server in servers), "sum"),
        [
            [
                name,
                f"{came[name]:,.0f}",
                *(f"{used[server]:.2f}" if server in used else "" for server in servers),
                f"{median(totals[name]):.2f}",
            ]
            for name, used in medians.items()
        ],
    )
    bench.report.milliseconds({name: list(chain(*(turn.seen for turn in found[name]))) for name in takers})
    bench.report.record |= {
        "changes_per_second": {name: round(rate, 1) for name, rate in came.items()},
        "cpu_milliseconds_per_change": {
            name: {server: round(value, 3) for server, value in used.items()} for name, used in medians.items()
        },
    }
    bench.report.remarks.append("of Postgres, the sessions of the process only; Kafka counts where it is used")
    for way, goal in (("without Kafka", 1.5), ("with Kafka", 1.9)):
        often, *others = (f"{way}, {pace:,}/s" for pace in _PACES)
        figure = f"processor time a change, {way}, at {OFTEN}/s"
        yield Figure(figure, median(totals[often]), unit="ms")
        yield Figure(f"{figure} / polling loop", ratio(totals[often], totals[loop]), at_most=goal)
        for name in others:
            yield Figure(f"processor time a change, {name} / at {OFTEN}/s", ratio(totals[name], totals[often]))
    yield memory("peak memory", max(peaks))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """Milliseconds of edits, documents a second of what went on beside them, and all writes."""

    milliseconds: Sequence[float] = ()
    rate: float = 0
    writes: int = 0


def isolation(bench: Bench) -> Iterator[Figure]:
    """Single edits of other posts while an author of many posts is renamed."""
    blog = bench.crowded
    floor, reference = Floor(blog), blog.loaded_like_it("bare")
    edits = Edits(blog, shuffled(blog), OFTEN, watched_of=_WATCHED_OF)
    bare, rest, single, five = "bare loop", "at rest", "during one rename", "during five renames"

    def settle() -> None:
        blog.wait_settled()
        blog.settle()
        blog.start_idle()

    def alone() -> _Beside:
        settle()
        return _Beside(rate=blog.bare_loop(reference, last=blog.large).rate)

    def at_rest() -> _Beside:
        settle()
        return _Beside(milliseconds=edits.milliseconds(bench.seconds / bench.passes))

    def beside_renames(renames: int) -> _Beside:
        """The edits that are made between the first commit and the last document count."""
        settle()
        names = [f"Renamed {uuid.uuid4().hex}" for _ in range(renames)]
        with sampled(blog.endpoints.elasticsearch_url, blog.alias) as writes, edits.beside():
            blog.sql(RENAME, names[0], LARGE_AUTHOR)
            began = time.monotonic()
            for name in names[1:]:
                time.sleep(_APART_SECONDS)
                blog.sql(RENAME, name, LARGE_AUTHOR)
            # Jobs only, since edits are always on their way.
            span = writes.wait(blog.large, settled=blog.has_no_job, noise=_NOISE)
        seen = [edit.milliseconds for edit in edits.seen if began <= edit.committed_at <= span.last_at]
        blog.wait_settled()
        blog.check(blog.large, term={"user.name.raw": names[-1]})
        return _Beside(milliseconds=seen, rate=blog.large / (span.last_at - began), writes=span.writes)

    blog.settle()
    blog.start_idle()
    bulk = median(floor.bulk_milliseconds(_BULK))
    takers: dict[str, Callable[[], _Beside]] = {
        bare: alone,
        rest: at_rest,
        single: partial(beside_renames, 1),
        five: partial(beside_renames, 5),
    }
    found = in_turns(takers, bench.passes)
    peak = blog.stop()
    seen = {name: list(chain(*(turn.milliseconds for turn in found[name]))) for name in (rest, single, five)}
    rates = {name: [turn.rate for turn in turns] for name, turns in found.items()}
    meanwhile = {name: round(mean(rates[name])) for name in (single, five)}
    bench.report.about = f"{OFTEN} edits a second, while an author of {blog.large:,} other posts is renamed"
    bench.report.milliseconds(seen)
    bench.report.record |= {
        f"bulk_of_{_BULK}_milliseconds": round(bulk, 1),
        "bare_documents_per_second": list(map(round, rates[bare])),
        "documents_per_second_meanwhile": meanwhile,
        "writes": {name: [turn.writes for turn in found[name]] for name in (single, five)},
    }
    bench.report.remarks.append(f"a bulk request of {_BULK} documents alone: {bulk:.0f} ms")
    bench.report.remarks += [f"documents/s of the fan-out {name}: {rate:,}" for name, rate in meanwhile.items()]
    yield Figure("one rename beside edits / bare loop alone", ratio(rates[single], rates[bare]), at_least=0.6)
    allowed = 2 * percentile(seen[rest], 99) + bulk
    for name in (single, five):
        yield Figure(f"p99 {name} / (2 p99 at rest + a bulk)", percentile(seen[name], 99) / allowed, at_most=1)
    yield memory("peak memory", peak)


def recovery(bench: Bench) -> Iterator[Figure]:
    """An outage of each server and of the daemon under steady edits, until it has caught up.

    It has when realtime GETs show the hundred edits that are committed when the outage ends: they come after all that
    were waiting. In the end every document is compared with its SELECT. The servers are those of the benchmarks'
    sandbox: nothing else should be using it.
    """
    seconds = 2 * bench.seconds
    found, peaks = {}, []
    with bench.blog(posts=_STEADY_POSTS + _LAST) as blog:
        servers = blog.sandbox.servers
        outages: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
            *((f"{server.name} killed", server.kill, server.start) for server in servers),
            *((f"{server.name} paused", server.pause, server.resume) for server in servers),
            ("daemon killed", lambda: peaks.append(blog.stop(kill=True)), blog.start),
        ]
        blog.start_idle()
        steady = Edits(
            blog, range(1, _STEADY_POSTS + 1), _STEADY_PER_SECOND, watched_of=0, survives=(psycopg.OperationalError,)
        )
        with steady.beside():
            for name, begin, end in outages:
                say(f"{name} for {seconds:.0f} s")
                time.sleep(_STEADY_SECONDS)
                begin()
                time.sleep(seconds)
                end()
                ended_at = time.monotonic()
                last = Edits(blog, range(_STEADY_POSTS + 1, blog.posts + 1), 10 * _LAST)
                last.make(_LAST)
                found[name] = last.seen[-1].seen_at - ended_at
                say(f"  caught up after {found[name]:.1f} s")
        blog.wait_until_level()
        peaks.append(blog.stop())
    bench.report.about = (
        f"{_STEADY_PER_SECOND} changes a second, an outage of {seconds:.0f} s; from its end until caught up"
    )
    bench.report.record |= {"seconds": {name: round(v, 1) for name, v in found.items()}, "changes": steady.made}
    for name, value in found.items():
        yield Figure(name, value=value, unit="s", at_most=30.0)
    yield memory("peak memory", max(peaks))
