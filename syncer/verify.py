"""Verify: every document against its SELECT, in both directions, by content, beside live traffic; and repair.

*One pass, two fixed views.* A view of the index is opened, and then a snapshot of Postgres. The SELECT streams out of
the snapshot once. For each page of it, all copies of those ids are asked of the view, whatever their shard and routing,
and compared, byte for byte, since Elasticsearch keeps the bytes that were written; only what differs so is parsed. That
finds what is missing, different or misplaced. What is *extra* is found by counting: no id comes twice in the stream
(that is asked first, in the same snapshot), so no copy is found twice, and the copies that the view has beyond those
that were found are exactly those whose id the snapshot lacks. A missing document and an extra one do not cancel out:
what is counted is what was found, not what was looked for. Only if there are extras are the ids of the view
walked, until that many are named. Nothing depends on how long it takes: neither view moves.

*In flight is not drift.* The views are of two moments, so what was being written then is suspect too. Each suspect is
looked at again, as both sides are now: a read by id is realtime. It is drift if it differs at every look, for the time
allowed, while what Elasticsearch has of it stays as it is. If that changes, somebody is at work on it and the time
begins anew; one that changes all the while and never is equal when we look is called *moving*, not drift.

*Owed is not drift* either: what a fan-out, a refresh or a fill has yet to write differs for as long as that waits for
its turn, or is paused. Which jobs come to a suspect is asked once it has differed for the time allowed, and then it is
looked at for the last time, in this order: see `syncer.owing`. What is owed is counted, and left to the jobs: it is
neither reported nor repaired. Nor does it take the room of other suspects, however much it is.

*Repair* writes what drifted through the version rule like everybody else, so it is safe beside live traffic, and to do
again after a crash; then it compares again. A round holds a bounded number of suspects. If there are more, there is
another round, as long as most of what it met was in flight, or mended. No lock is held while anything is
written, or looked at again: a migration never waits for both, and we for it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from syncer import compose, dead_letters, drift, version
from syncer.compose import Row
from syncer.drift import Cause, Drift, Kind
from syncer.holdings import View
from syncer.index import Index
from syncer.lifecycle import Stop, persist
from syncer.owing import Owed, Pending
from syncer.postgres import Connection
from syncer.reading import reading
from syncer.store import Document
from syncer.version import Origin
from syncer.writer import Writer, WriteReport

SUSPECTS_MAX = 10_000
ROUNDS_MAX = 5
SETTLE_SECONDS = 10.0
_PAGE_BYTES_MAX = 4_000_000
_SEARCHES_MAX = 3
_LOOK_PAGE = 200
_LOOK_AGAIN_SECONDS = 0.25
_MOVING_FACTOR = 6
"""After how many times the time allowed a document that is being written all the while is left alone."""


@dataclass(slots=True)
class VerifyReport:
    """What a verification found.

    Args:
        document: Which definition.
        index_name: In which physical index.
        documents: How many were compared.
        drifts: Those that stayed different, and were not repaired.
        repaired: Those that stayed different, and are equal after they were written again.
        moving: Those that were being written all the while, and never equal when they were looked at.
        owed: How many differ that a job has yet to write, which is no drift: nothing is known of them until then.
        owed_by: Which jobs.
        is_complete: False if so many differed that it stopped counting.
        sampled: If only some were compared: how many were chosen from either side.
        halted: If the document is halted, or would have to be: what happened, and what to do. Nothing was compared.
        seconds: How long it took.
        comparing_seconds: How much of that went into comparing, and not into looking again.
    """

    document: str
    index_name: str
    documents: int = 0
    drifts: list[Drift] = field(default_factory=list)
    repaired: list[Drift] = field(default_factory=list)
    moving: list[str] = field(default_factory=list)
    owed: int = 0
    owed_by: list[int] = field(default_factory=list)
    is_complete: bool = True
    sampled: int | None = None
    halted: str | None = None
    seconds: float = 0
    comparing_seconds: float = 0

    @property
    def holds(self) -> bool:
        """Whether every document that was compared equals its SELECT, now, or is on its way to it."""
        return not self.drifts and self.is_complete and self.halted is None

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        found = {**asdict(self), "documents_per_second": round(self.documents_per_second), "holds": self.holds}
        for one in (*found["drifts"], *found["repaired"]):
            one |= {name: one[name] and one[name].isoformat() for name in ("drawn_after", "drawn_before")}
        return found

    @property
    def documents_per_second(self) -> float:
        """How fast it compared."""
        return self.documents / self.comparing_seconds if self.comparing_seconds else 0


def verify(
    connect: Callable[[], Connection],
    document: Document,
    *,
    index: Index,
    page: int = 1000,
    settle_seconds: float = SETTLE_SECONDS,
    sample: int | None = None,
    values: bool = False,
    repair: Writer | None = None,
    progress: Callable[[int], None] = lambda _: None,
    pause: Callable[[float], None] = time.sleep,
) -> VerifyReport:
    """Compare every document in one index with its SELECT.

    Args:
        connect: Opens a connection to Postgres.
        document: Which definition, and so which index.
        index: Elasticsearch.
        page: How many documents are compared at once.
        settle_seconds: How long a document may stay different before that is called drift.
        sample: Compare so many documents that Postgres has, and as many that Elasticsearch has, chosen at random.
        values: Whether the report is to have the values that differ: they may be secrets.
        repair: Writes what drifted again.
        progress: Told how many documents have been compared so far; from 0 again in another round.
        pause: How to wait; may raise `Stopping`.

    Raises:
        DocumentError: The document is to halt.
    """
    report = VerifyReport(document=document.name, index_name=document.index_name, sampled=sample)
    began = time.monotonic()
    with connect() as streaming, connect() as asking:
        looking = _Looking(
            document=document,
            index=index,
            asking=asking,
            owed=Owed(document=document, asking=asking),
            settle_seconds=settle_seconds,
            values=values,
            pause=pause,
        )
        passing = _Pass(
            document=document, index=index, streaming=streaming, page=page, progress=progress, owed=looking.owed
        )
        for _ in range(ROUNDS_MAX):
            looking.owed.forget()
            suspects = _chosen(passing, sample, report) if sample is not None else _compared(passing, report)
            report.drifts, report.moving = looking.settled(suspects)
            if repair is not None and report.drifts:
                _mend(repair, looking, report)
            report.owed, report.owed_by = looking.owed.documents, sorted(looking.owed.jobs)
            if report.is_complete or len(report.drifts) > SUSPECTS_MAX // 2:
                break
    report.seconds = time.monotonic() - began
    return report


def _compared(passing: _Pass, report: VerifyReport) -> set[str]:
    began = time.monotonic()
    suspects = passing.run()
    report.documents, report.is_complete = passing.documents, len(suspects) < SUSPECTS_MAX
    report.comparing_seconds = time.monotonic() - began
    return suspects


def _chosen(passing: _Pass, number: int, report: VerifyReport) -> set[str]:
    began = time.monotonic()
    chosen = passing.sample(number)
    report.documents = len(chosen)
    report.comparing_seconds = time.monotonic() - began
    return chosen


def _mend(writer: Writer, looking: _Looking, report: VerifyReport) -> None:
    """Write what drifted again, and find out which of it is equal now."""
    drifted = {one.id: one for one in report.drifts}
    total = WriteReport()
    for everywhere in (False, True):  # what should not be there may be on any shard
        ids = [one.id for one in report.drifts if (one.kind in (Kind.EXTRA, Kind.MISPLACED)) is everywhere]
        for part in _parts(ids):
            total.add(writer.write(report.index_name, part, everywhere=everywhere))
    left, moving = looking.settled(drifted)
    if total.superseded:
        left = [_outdone(one) for one in left]
    report.drifts = left
    report.moving = [*report.moving, *moving]
    again = {one.id for one in left}.union(moving, looking.left)
    # What has drifted again since an earlier round is told of once, and only if it is equal now.
    repaired = {one.id: one for one in report.repaired} | drifted
    report.repaired = [one for id_, one in repaired.items() if id_ not in again]


def _outdone(drift: Drift) -> Drift:
    """What is still missing, though it was written and not parked, has been deleted with a greater version."""
    is_unknown = drift.kind is Kind.MISSING and drift.cause in (None, Cause.UNFILLED)
    return replace(drift, cause=Cause.FOREIGN_DELETE) if is_unknown else drift


@dataclass(slots=True, kw_only=True)
class _Pass:
    """All documents compared once, as two fixed views show them.

    Args:
        document: Which definition.
        index: Elasticsearch.
        streaming: Taken while it lasts.
        page: How many documents are compared at once.
        progress: Told how many have been compared so far.
        owed: Asked once there is no room for more suspects.
        documents: How many were compared.
    """

    document: Document
    index: Index
    streaming: Connection
    page: int
    progress: Callable[[int], None]
    owed: Owed
    documents: int = 0

    def run(self) -> set[str]:
        """The ids of what differs; if they are too many, those of the first."""
        # The index first: it lags, so that what has been added since is missing, which costs no walk as an extra does.
        with self.index.holdings.view(self.document.target) as view, reading(self.streaming, self.document):
            suspects: set[str] = set()
            self.documents = found = 0
            with closing(self._pages(view)) as pages:
                for wrong, copies, documents in pages:
                    suspects |= wrong
                    found += copies
                    self.documents += documents
                    self.progress(self.documents)
                    if len(suspects) >= SUSPECTS_MAX:
                        suspects -= self.owed.among(suspects)
                    if len(suspects) >= SUSPECTS_MAX:
                        return suspects
            return suspects | self._extras(view, view.count() - found, room=SUSPECTS_MAX - len(suspects))

    def sample(self, number: int) -> set[str]:
        """The ids of so many documents of Postgres, and of so many of Elasticsearch."""
        ids = set(compose.random_ids(self.streaming, self.document, number))
        seed = random.randrange(1 << 31)  # noqa: S311 - a sample, not a secret
        with self.index.holdings.view(self.document.target) as view:
            for places in view.some(number, seed=seed, page=self.page):
                ids.update(one.id for one in places)
        return ids

    def _pages(self, view: View) -> Generator[tuple[set[str], int, int]]:
        """Of each page: what differs, how many copies there are, and how many documents.

        Postgres goes on with the next pages while Elasticsearch is asked about a few.
        """
        stop = Stop()
        waiting: deque[Future[tuple[set[str], int, int]]] = deque()
        rows = compose.everything(self.streaming, self.document, page=self.page, bytes_max=_PAGE_BYTES_MAX)
        with closing(rows), ThreadPoolExecutor(_SEARCHES_MAX, thread_name_prefix="verify") as searching:
            try:
                for expected in rows:
                    waiting.append(searching.submit(_page, view, expected, stop))
                    if len(waiting) > _SEARCHES_MAX:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                stop.request()  # a search that waits for Elasticsearch to be well again is not waited for

    def _extras(self, view: View, number: int, *, room: int) -> set[str]:
        """The ids of so many copies that the snapshot of Postgres has not."""
        extras: set[str] = set()
        if number <= 0:
            return extras
        for places in view.walk(page=self.page):
            ids = [one.id for one in places]
            present = {one.id for one in compose.existing_here(self.streaming, self.document, ids)}
            strays = [one for one in ids if one not in present]
            extras.update(strays)
            number -= len(strays)
            if len(extras) >= room:
                extras -= self.owed.among(extras, are_strays=True)
            if number <= 0 or len(extras) >= room:
                break
        return extras


def _page(view: View, expected: dict[str, Row], stop: Stop) -> tuple[set[str], int, int]:
    copies = persist(partial(view.find, list(expected)), pause=stop.pause, stage="verify")
    return drift.suspects(expected, copies), len(copies), len(expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """A document that differs.

    Args:
        drift: How.
        held: Which versions of it are where in Elasticsearch.
        since: Since when that has been so, by the monotonic clock.
    """

    drift: Drift
    held: frozenset[tuple[str | None, int]]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looking:
    """Documents looked at as they are now, until each is equal, drifted or known to be moving.

    Args:
        document: Which definition.
        index: Elasticsearch.
        asking: For what Postgres says.
        owed: Which jobs may yet come to the documents.
        settle_seconds: How long a document may stay different.
        values: Whether to show the values that differ.
        pause: How to wait between two looks.
        left: Those of the last look that were left to a job.
    """

    document: Document
    index: Index
    asking: Connection
    owed: Owed
    settle_seconds: float
    values: bool
    pause: Callable[[float], None]
    left: set[str] = field(default_factory=set)

    def settled(self, ids: Iterable[str]) -> tuple[list[Drift], list[str]]:
        """What has drifted, and what is moving."""
        self.left.clear()
        drifts: list[Drift] = []
        suspects = self._look({}, list(ids))
        give_up_at = time.monotonic() + _MOVING_FACTOR * self.settle_seconds
        while suspects:
            ripe_at = time.monotonic() - self.settle_seconds
            drifts += self._ripe(suspects, ripe_at)
            if not suspects or time.monotonic() > give_up_at:
                break
            self.pause(_LOOK_AGAIN_SECONDS)
            suspects = self._look(suspects, list(suspects))
        restless = self._explained([one.drift for one in suspects.values()])
        foreign = [one for one in restless if one.cause in (Cause.FOREIGN, Cause.FOREIGN_AHEAD)]
        moving = [one.id for one in restless if one not in foreign]
        return sorted(self._explained(drifts) + foreign, key=lambda one: one.id), sorted(moving)

    def _ripe(self, suspects: dict[str, _Suspect], ripe_at: float) -> list[Drift]:
        """Take away those that have differed since then: the drifts among them, the others being owed, or equal now."""
        ids = [id_ for id_, one in suspects.items() if one.since <= ripe_at]
        coming = self.owed.coming(ids)
        last = self._look(suspects, ids)
        for id_ in ids:
            del suspects[id_]
        suspects |= {id_: one for id_, one in last.items() if one.since > ripe_at}
        drifts = [one.drift for one in last.values() if one.since <= ripe_at]
        return [one for one in drifts if not self._is_owed(one, coming.get(one.id, ()))]

    def _is_owed(self, drift: Drift, coming: Sequence[Pending]) -> bool:
        """Whether it is left to a job: not what no write of a job replaces."""
        is_stray = drift.kind in (Kind.EXTRA, Kind.MISPLACED)
        is_owed = bool(coming) and not self._is_ahead(drift) and self.owed.owe(coming, is_stray=is_stray)
        self.left.update([drift.id] if is_owed else [])
        return is_owed

    def _is_ahead(self, drift: Drift) -> bool:
        """Whether somebody else wrote it with a version that no write of syncer's surpasses."""
        number = drift.version
        if number is None or version.is_surpassed(self.asking, number):
            return False
        return version.origin(self.asking, self.index, number) is Origin.FOREIGN

    def _look(self, before: dict[str, _Suspect], ids: Sequence[str]) -> dict[str, _Suspect]:
        """Those that still differ."""
        suspects: dict[str, _Suspect] = {}
        for part in _parts(ids):
            copies = persist(
                partial(self.index.holdings.read, self.document.target, part), pause=self.pause, stage="verify"
            )
            wanted = set(part)
            rows = compose.current(self.asking, self.document, part)
            # To Postgres 007 is 7: which nobody asked for.
            expected = {id_: row for id_, row in rows.items() if id_ in wanted}
            for one in drift.compare(
                self.document.name, self.document.index_name, expected, copies, values=self.values
            ):
                held = frozenset((copy.routing, copy.version) for copy in copies if copy.id == one.id)
                last = before.get(one.id)
                since = last.since if last is not None and last.held == held else time.monotonic()
                suspects[one.id] = _Suspect(drift=one, held=held, since=since)
        return suspects

    def _explained(self, drifts: Sequence[Drift]) -> list[Drift]:
        """The same, with what is known of why."""
        if not drifts:
            return []
        errors = dead_letters.errors(self.asking, self.document.index_name, [one.id for one in drifts])
        return [self._traced(replace(one, error=errors.get(one.id))) for one in drifts]

    def _traced(self, drift: Drift) -> Drift:
        """With its cause, and when its version was drawn."""
        cause = None if self.document.is_filled else Cause.UNFILLED
        cause = cause if drift.error is None else Cause.PARKED
        if drift.version is None:
            return replace(drift, cause=cause)
        if self._is_ahead(drift):
            return replace(drift, cause=Cause.FOREIGN_AHEAD)
        match version.origin(self.asking, self.index, drift.version):
            case Origin.FOREIGN:
                return replace(drift, cause=cause if drift.error is not None else Cause.FOREIGN)
            case Origin.LOST:
                return replace(drift, cause=Cause.LOST)
        after, before = version.drawn_between(self.asking, drift.version)
        return replace(drift, cause=cause, drawn_after=after, drawn_before=before)


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[at : at + _LOOK_PAGE] for at in range(0, len(ids), _LOOK_PAGE))
