"""Verify: compares every document with its SELECT, in both directions and by content, beside live traffic; and repairs.

*One pass over two fixed views.* A view of the index is opened, then a snapshot of Postgres. The SELECT is streamed
once. For each page, all copies of its ids are read from the view, whatever their shard and routing, and compared byte
for byte. Elasticsearch keeps the bytes that were written, so only what differs is parsed. This finds documents that are
missing, different or misplaced.

*Extra* documents are found by counting. No id comes twice in the stream, which is checked first in the same snapshot,
so no copy is found twice. The copies in the view beyond those found are therefore exactly those whose id the snapshot
lacks. A missing document does not cancel out an extra one, since found copies are counted, not requested ids. Only if
there are extras are the ids of the view walked, until all of them are named. The result does not depend on the
duration: neither view moves.

*In flight is not drift.* The two views are of different moments, so documents being written then are suspect too. Each
suspect is checked again until its state is known: see `syncer.verify.recheck`. It is drift only if every change
committed before the difference was seen is handled, and no job will write it. Workers that lag are waited for as long
as they make progress. If nothing moves, the report says that the cause is unknown, and does not call it drift.

*Pending is not drift* either. What a job has yet to write is counted and left to the job, neither reported nor
repaired. It takes no room from other suspects, however much it is.

*Repair* writes again what drifted and what is unknown, then compares it again. It follows the version rule, so it is
safe beside live traffic and can be repeated after a crash. A round holds a bounded number of suspects. If there are
more, another round follows, as long as most suspects were in flight or repaired. No lock is held during writes and
re-checks, so a migration never waits for them.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from syncer.base.lifecycle import Stop
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.base.retry import retry
from syncer.documents import queries
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.documents.snapshot import reading
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import View
from syncer.indexing.writer import Writer
from syncer.verify import diff
from syncer.verify.diff import Drift, DriftKind
from syncer.verify.pending_jobs import PendingDocuments
from syncer.verify.recheck import Recheck, Seen, parts
from syncer.verify.watermark import Watermark

SUSPECTS_MAX = 10_000
ROUNDS_MAX = 5
SETTLE_SECONDS = 10.0
_PAGE_BYTES_MAX = 4_000_000
_SEARCHES_MAX = 3


@dataclass(slots=True)
class VerifyReport:
    """What a verification found.

    Args:
        drifts: Documents that stayed different and were not repaired.
        repaired: Documents that stayed different and are equal since they were written again.
        coming: Documents that stayed different for an unknown reason: a change may be in flight, but nothing moves.
        awaited: If any are coming: what is in flight and does not move.
        moving: Ids that were being written all the while, and were never equal when checked.
        pending: How many documents differ that a job has yet to write; they are not drift.
        is_complete: False if so many differed that counting stopped.
        sampled: The size of the sample from either side; None if all documents were compared.
        searched: The indices that searches find, if it is not this one alone.
        suspended: If the document is suspended, or has to be: the reason, and what to do. Nothing was compared.
        comparing_seconds: The part of ``seconds`` that was spent on comparing, without re-checks.
    """

    document: str
    index_name: str
    documents: int = 0
    drifts: list[Drift] = field(default_factory=list)
    repaired: list[Drift] = field(default_factory=list)
    coming: list[Drift] = field(default_factory=list)
    awaited: str = ""
    moving: list[str] = field(default_factory=list)
    pending: int = 0
    pending_by: list[int] = field(default_factory=list)
    is_complete: bool = True
    sampled: int | None = None
    searched: list[str] | None = None
    suspended: str | None = None
    seconds: float = 0
    comparing_seconds: float = 0

    @property
    def holds(self) -> bool:
        """Whether every compared document equals its SELECT, or will once pending work is done, and is found once."""
        return not (self.has_drifted or self.coming)

    @property
    def has_drifted(self) -> bool:
        """Whether any document differs or was not compared, or searches find another index."""
        return self.differs or self.searched is not None or self.suspended is not None

    @property
    def differs(self) -> bool:
        """Whether documents are known to differ."""
        return bool(self.drifts) or not self.is_complete

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {**asdict(self), "documents_per_second": round(self.documents_per_second), "holds": self.holds}

    @property
    def documents_per_second(self) -> float:
        """Documents compared per second."""
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
        document: The definition to compare, and so the index.
        index: Elasticsearch.
        page: How many documents are compared at once.
        settle_seconds: How long a document may differ before changes in flight are checked, and how long these may
            stand still before its state counts as unknown.
        sample: Compare only this many random documents from either side.
        values: Whether the report shows differing values, which may be secrets.
        repair: If given, writes documents that drifted again.
        progress: Called with the number of documents compared so far; each round starts at 0.
        pause: Called to wait; may raise `Stopping`.

    Raises:
        DocumentError: The document has to be suspended.
    """
    report = VerifyReport(document=document.name, index_name=document.index_name, sampled=sample)
    if document.role is Role.CURRENT:
        report.searched = _searched_instead(index, document)
    began = time.monotonic()
    with connect() as streaming, connect() as connection:
        recheck = Recheck(
            document=document,
            index=index,
            connection=connection,
            pending=PendingDocuments(document=document, connection=connection),
            watermark=Watermark(connection, document.dependencies.tables),
            settle_seconds=settle_seconds,
            values=values,
            pause=pause,
        )
        comparison = _Pass(
            document=document,
            index=index,
            streaming=streaming,
            page=page,
            progress=progress,
            pending=recheck.pending,
        )
        _verify(comparison, recheck, repair, report)
    report.seconds = time.monotonic() - began
    return report


def _verify(comparison: _Pass, recheck: Recheck, repair: Writer | None, report: VerifyReport) -> None:
    """Compare in rounds until all suspects fitted into one, or most of a round's suspects stay different."""
    for _ in range(ROUNDS_MAX):
        recheck.pending.forget()
        _note(recheck.settled(_suspects(comparison, report)), report)
        if repair is not None and (report.drifts or report.coming):
            _fix(repair, recheck, report)
        report.pending, report.pending_by = recheck.pending.documents, sorted(recheck.pending.jobs)
        if report.is_complete or len(report.drifts) + len(report.coming) > SUSPECTS_MAX // 2:
            break


def _note(seen: Seen, report: VerifyReport) -> None:
    report.drifts, report.coming, report.moving, report.awaited = seen.drifts, seen.coming, seen.moving, seen.awaited


def _suspects(comparison: _Pass, report: VerifyReport) -> set[str]:
    """Compare all documents, or a sample, once; return the ids to re-check."""
    began = time.monotonic()
    if report.sampled is None:
        suspects = comparison.run()
        report.documents, report.is_complete = comparison.documents, len(suspects) < SUSPECTS_MAX
    else:
        suspects = comparison.sample(report.sampled)
        report.documents = len(suspects)
    report.comparing_seconds = time.monotonic() - began
    return suspects


def _fix(writer: Writer, recheck: Recheck, report: VerifyReport) -> None:
    """Write differing documents again, and find out which of them are equal now."""
    differing = {one.id: one for one in (*report.drifts, *report.coming)}
    for everywhere in (False, True):  # copies of extra and misplaced documents may lie on any shard
        ids = [
            one.id for one in differing.values() if (one.kind in (DriftKind.EXTRA, DriftKind.MISPLACED)) is everywhere
        ]
        for part in parts(ids):
            writer.write(report.index_name, part, everywhere=everywhere)
    moving = report.moving
    seen = recheck.settled(differing)
    _note(seen, report)
    report.moving = [*moving, *seen.moving]
    # A document that drifted again since an earlier round is reported once, as repaired only if it is equal now.
    repaired = {one.id: one for one in report.repaired} | differing
    report.repaired = [one for id_, one in repaired.items() if id_ not in seen.ids]


def _searched_instead(index: Index, document: Document) -> list[str] | None:
    """Return the indices that searches find; None if it is the document's index alone."""
    found = index.holdings.searched([document.index])[document.index]
    return None if found == [document.index_name] else found


@dataclass(slots=True, kw_only=True)
class _Pass:
    """One comparison of all documents, over two fixed views.

    Args:
        streaming: The connection for the SELECT; in use for the whole pass.
        progress: Called with the number of documents compared so far.
        pending: Asked once there is no room for more suspects.
    """

    document: Document
    index: Index
    streaming: Connection
    page: int
    progress: Callable[[int], None]
    pending: PendingDocuments
    documents: int = 0

    def run(self) -> set[str]:
        """Return the ids of documents that differ, limited to the first if there are too many."""
        # The index first: rows added since then count as missing, which is cheap. Extras would need a walk of the view.
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
                        suspects -= self.pending.among(suspects)
                    if len(suspects) >= SUSPECTS_MAX:
                        return suspects
            return suspects | self._extras(view, view.count() - found, room=SUSPECTS_MAX - len(suspects))

    def sample(self, number: int) -> set[str]:
        """Return ``number`` random ids from Postgres, and as many from Elasticsearch."""
        ids = set(queries.random_ids(self.streaming, self.document, number))
        seed = random.randrange(1 << 31)  # noqa: S311 - a sample, not a secret
        with self.index.holdings.view(self.document.target) as view:
            for places in view.some(number, seed=seed, page=self.page):
                ids.update(one.id for one in places)
        return ids

    def _pages(self, view: View) -> Generator[tuple[set[str], int, int]]:
        """Yield for each page: the ids that differ, the number of copies, and the number of documents.

        Postgres reads further pages while a few are looked up in Elasticsearch.
        """
        stop = Stop()
        waiting: deque[Future[tuple[set[str], int, int]]] = deque()
        rows = queries.everything(self.streaming, self.document, page=self.page, bytes_max=_PAGE_BYTES_MAX)
        with closing(rows), ThreadPoolExecutor(_SEARCHES_MAX, thread_name_prefix="verify") as searching:
            try:
                for expected in rows:
                    waiting.append(searching.submit(_page, view, expected, stop))
                    if len(waiting) > _SEARCHES_MAX:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                stop.request()  # do not wait for a search that waits for Elasticsearch to recover

    def _extras(self, view: View, number: int, *, room: int) -> set[str]:
        """Return the ids of up to ``number`` copies that the snapshot of Postgres lacks."""
        extras: set[str] = set()
        if number <= 0:
            return extras
        for places in view.walk(page=self.page):
            ids = [one.id for one in places]
            present = {one.id for one in queries.existing_here(self.streaming, self.document, ids)}
            orphans = [one for one in ids if one not in present]
            extras.update(orphans)
            number -= len(orphans)
            if len(extras) >= room:
                extras -= self.pending.among(extras, are_orphans=True)
            if number <= 0 or len(extras) >= room:
                break
        return extras


def _page(view: View, expected: dict[str, Row], stop: Stop) -> tuple[set[str], int, int]:
    copies = retry(partial(view.find, list(expected)), pause=stop.pause, component="verify")
    return diff.suspects(expected, copies), len(copies), len(expected)
