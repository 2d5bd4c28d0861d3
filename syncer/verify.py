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
looked at again, until it is known what it is: see `syncer.looking`. It is drift only if every change that was committed
before we saw it so is handled, and no job comes to it: what lags is waited for as long as the workers move on, however
far they are behind. If nothing moves, nobody knows what it is: that is said, and it is not called drift.

*Owed is not drift* either: what is owed by a job is counted, and left to the jobs: it is neither reported nor repaired.
Nor does it take the room of other suspects, however much it is.

*Repair* writes what drifted, and what nobody knows of, through the version rule like everybody else, so it is safe
beside live traffic, and to do again after a crash; then it compares again. A round holds a bounded number of suspects.
If there are more, there is another round, as long as most of what it met was in flight, or mended. No lock is held
while anything is written, or looked at again: a migration never waits for both, and we for it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from syncer import compose, drift
from syncer.compose import Row
from syncer.drift import Cause, Drift, Kind
from syncer.holdings import View
from syncer.index import Index
from syncer.lifecycle import Stop, persist
from syncer.looking import Looking, Seen, parts
from syncer.owing import Owed
from syncer.postgres import Connection
from syncer.reading import reading
from syncer.settings import KafkaSettings
from syncer.store import Document
from syncer.transit import Transit
from syncer.writer import Writer, WriteReport

SUSPECTS_MAX = 10_000
ROUNDS_MAX = 5
SETTLE_SECONDS = 10.0
_PAGE_BYTES_MAX = 4_000_000
_SEARCHES_MAX = 3


@dataclass(slots=True)
class VerifyReport:
    """What a verification found.

    Args:
        document: Which definition.
        index_name: In which physical index.
        documents: How many were compared.
        drifts: Those that stayed different, and were not repaired.
        repaired: Those that stayed different, and are equal after they were written again.
        coming: Those that stayed different, and of which nobody knows whether they have drifted: a change may be on its
            way to them, and nothing moves.
        awaited: What is on its way and does not move, if any is coming.
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
    coming: list[Drift] = field(default_factory=list)
    awaited: str = ""
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
        """Whether every document that was compared equals its SELECT, now, or is known to be on its way to it."""
        return not (self.has_drifted or self.coming)

    @property
    def has_drifted(self) -> bool:
        """Whether anything has, or was not compared."""
        return bool(self.drifts) or not self.is_complete or self.halted is not None

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        found = {**asdict(self), "documents_per_second": round(self.documents_per_second), "holds": self.holds}
        for one in (*found["drifts"], *found["repaired"], *found["coming"]):
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
    kafka: KafkaSettings,
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
        kafka: Where the changes go; asked once something differs.
        page: How many documents are compared at once.
        settle_seconds: How long a document may stay different before it is asked whether a change is on its way to it,
            and how long these may stand still before that is left open.
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
        looking = Looking(
            document=document,
            index=index,
            asking=asking,
            owed=Owed(document=document, asking=asking),
            transit=Transit(asking, kafka, document.dependencies.tables),
            settle_seconds=settle_seconds,
            values=values,
            pause=pause,
        )
        passing = _Pass.before(looking, streaming=streaming, page=page, progress=progress)
        _verify(passing, looking, repair, report)
    report.seconds = time.monotonic() - began
    return report


def _verify(passing: _Pass, looking: Looking, repair: Writer | None, report: VerifyReport) -> None:
    """In rounds, until there was room for all that differs, or most of what there was room for stays so."""
    for _ in range(ROUNDS_MAX):
        looking.owed.forget()
        suspects = _compared(passing, report) if report.sampled is None else _chosen(passing, report.sampled, report)
        _note(looking.settled(suspects), report)
        if repair is not None and (report.drifts or report.coming):
            _mend(repair, looking, report)
        report.owed, report.owed_by = looking.owed.documents, sorted(looking.owed.jobs)
        if report.is_complete or len(report.drifts) + len(report.coming) > SUSPECTS_MAX // 2:
            break


def _note(seen: Seen, report: VerifyReport) -> None:
    report.drifts, report.coming, report.moving, report.awaited = seen.drifts, seen.coming, seen.moving, seen.awaited


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


def _mend(writer: Writer, looking: Looking, report: VerifyReport) -> None:
    """Write what differs again, and find out which of it is equal now."""
    differing = {one.id: one for one in (*report.drifts, *report.coming)}
    total = WriteReport()
    for everywhere in (False, True):  # what should not be there may be on any shard
        ids = [one.id for one in differing.values() if (one.kind in (Kind.EXTRA, Kind.MISPLACED)) is everywhere]
        for part in parts(ids):
            total.add(writer.write(report.index_name, part, everywhere=everywhere))
    moving = report.moving
    seen = looking.settled(differing)
    _note(seen, report)
    report.moving = [*moving, *seen.moving]
    if total.superseded:
        report.drifts = [_outdone(one) for one in seen.drifts]
    # What has drifted again since an earlier round is told of once, and only if it is equal now.
    repaired = {one.id: one for one in report.repaired} | differing
    report.repaired = [one for id_, one in repaired.items() if id_ not in seen.ids]


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

    @classmethod
    def before(cls, looking: Looking, *, streaming: Connection, page: int, progress: Callable[[int], None]) -> _Pass:
        """One whose suspects are looked at by that."""
        return cls(
            document=looking.document,
            index=looking.index,
            streaming=streaming,
            page=page,
            progress=progress,
            owed=looking.owed,
        )

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
