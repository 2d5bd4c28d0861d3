"""Locks made of documents: what each costs alone, what it costs when many want it; and a rename under one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from elasticsearch import ConflictError, Elasticsearch

from syncer.base.retry import Backoff
from syncer.locks import HeldLocks, Locks
from tests.benchmarks import renaming
from tests.benchmarks.blog import Blogs
from tests.benchmarks.contest import say
from tests.benchmarks.options import Options
from tests.benchmarks.report import Figure, Outcome, percentile

_OWNERS = (1, 2, 8, 32)
_SECONDS = 3.0
_BARE = "a document, created and deleted"
_PATH = "/clinton/projects/elasticsearch/README.txt"
_KINDS: dict[str, Callable[[Locks], AbstractContextManager[HeldLocks]]] = {
    "global": lambda locks: locks.everything(timeout=None),
    "3 documents": lambda locks: locks.documents("files", ["1", "2", "3"], timeout=None),
    "tree, 5 levels": lambda locks: locks.tree(_PATH, timeout=None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """How often a lock was taken and given back by so many owners who all want it, and how long each turn took."""

    seconds: float
    took: Sequence[float]

    @property
    def rate(self) -> float:
        """Turns per second, of all together."""
        return len(self.took) / self.seconds

    def row(self, name: str) -> tuple[str, ...]:
        """A row of the table."""
        return (name, f"{self.rate:,.0f}", *(f"{percentile(self.took, one) * 1000:,.0f}" for one in (50, 99)))


def measure(blogs: Blogs, options: Options) -> Outcome:
    """Locks taken and given back, by one owner and by many; then renames."""
    seconds = min(_SECONDS, options.seconds)
    rows, figures = [], []
    with _client(blogs) as client, _scratch(client) as index:
        bare = {owners: _taken([partial(_bare_turn, client, index)] * owners, seconds) for owners in _OWNERS}
        rows += [one.row(_named(_BARE, owners)) for owners, one in bare.items()]
        for kind, take in _KINDS.items():
            say(f"taking locks: {kind}")
            found = {owners: _of_owners(client, index, take, owners, seconds) for owners in _OWNERS}
            rows += [one.row(_named(kind, owners)) for owners, one in found.items()]
            figures.append(Figure(what=f"{kind}: turns/s of one owner / bare", value=found[1].rate / bare[1].rate))
            figures += [
                Figure(what=f"{kind}: turns/s of {owners} who want it / of one", value=one.rate / found[1].rate)
                for owners, one in found.items()
                if owners > 1
            ]
    renamed = renaming.measure(blogs, options)
    return Outcome(
        about=f"locks taken and given back for {seconds:.0f} s each; a directory of {renaming.FILES:,} files renamed",
        columns=("", "a second", "p50 ms", "p99 ms"),
        rows=[*rows, *renamed.rows],
        figures=[*figures, *renamed.figures],
        record={"runs": renamed.record},
        remarks=[
            f"bare: {_BARE}, as the guide's global lock, which knows of no death",
            "p50, p99: of whole turns; beside a rename: who renames a file meanwhile, the median and the longest",
        ],
    )


def _named(kind: str, owners: int) -> str:
    return f"{kind}: {owners} who want it" if owners > 1 else kind


def _client(blogs: Blogs) -> Elasticsearch:
    return Elasticsearch(blogs.endpoints.elasticsearch_url, request_timeout=60, connections_per_node=2 * max(_OWNERS))


@contextmanager
def _scratch(client: Elasticsearch) -> Iterator[str]:
    """An index for bare locks, and a name for others; gone afterwards."""
    name = f"locks-{uuid.uuid4().hex}"
    client.indices.create(index=name, settings={"number_of_shards": 1})
    try:
        yield name
    finally:
        client.indices.delete(index=[name, f"{name}-locks", f"{name}-locks-intents"], ignore_unavailable=True)


def _bare_turn(client: Elasticsearch, index: str) -> None:
    """The guide's global lock, with nothing that knows of death."""
    backoff = Backoff(first_seconds=0.01, longest_seconds=0.5)
    while True:
        try:
            client.create(index=index, id="lock", document={})
        except ConflictError:
            time.sleep(backoff.next_seconds())
        else:
            break
    client.delete(index=index, id="lock")


def _of_owners(
    client: Elasticsearch,
    index: str,
    take: Callable[[Locks], AbstractContextManager[HeldLocks]],
    owners: int,
    seconds: float,
) -> Taken:
    made = [Locks(client, owner=str(number), index=f"{index}-locks") for number in range(owners)]

    def turn(locks: Locks) -> None:
        with take(locks):
            pass

    try:
        return _taken([partial(turn, one) for one in made], seconds)
    finally:
        for one in made:
            one.close()


def _taken(turns: list[Callable[[], None]], seconds: float) -> Taken:
    """Let all take turns for so long."""
    began = time.monotonic()

    def go_on(turn: Callable[[], None]) -> list[float]:
        took = []
        while (at := time.monotonic()) < began + seconds:
            turn()
            took.append(time.monotonic() - at)
        return took

    with ThreadPoolExecutor(len(turns)) as pool:
        took = [one for done in [pool.submit(go_on, turn) for turn in turns] for one in done.result()]
    return Taken(seconds=time.monotonic() - began, took=took)
