"""Verify: compares every document with its SELECT, in both directions and by content, beside live traffic; and repairs.

*Two walks, in short snapshots.* The documents of the SELECT are read in ranges of the key, each range in a snapshot of
its own. All copies of their ids are read from the index, whatever their shard and routing, and compared byte for byte.
Elasticsearch keeps the bytes that were written, so only what differs is parsed. That finds documents that are missing,
different or misplaced. Then the ids of the index are walked in pages, and Postgres is asked which of them the SELECT
returns: that finds what only Elasticsearch has. Where ``_id`` has no index to walk, one statement reads the SELECT, in
one snapshot: see `syncer.documents.ranges`.

*In flight is not drift.* What differs is only suspect, since the two sides were read at different moments.
`syncer.verify.settle` finds out what of it has drifted. A limited number of suspects is kept; if there are more, they
are settled before the walk goes on.

*Repair* has the documents written again that drifted or are busy, by a job, and compares them again. That follows the
version rule, so it is safe beside live traffic, and can be repeated after a crash.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from syncer.base.lifecycle import Stop
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.base.retry import retry
from syncer.documents import queries, ranges
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.documents.snapshot import reading
from syncer.elasticsearch.bulk import Index
from syncer.verify import diff
from syncer.verify.diff import Drift
from syncer.verify.settle import SETTLE_SECONDS, Settler

FOUND_MAX = 10_000
"""A comparison ends after this many documents that have drifted or are busy. As many suspects are kept at a time."""
PAGE = 1000
FIRST_ROWS = 100
_PAGE_BYTES_MAX = 4_000_000
_SEARCHES_MAX = 3


@dataclass(slots=True)
class VerifyReport:
    """What a verification found.

    Args:
        drifts: Documents that have drifted and were not repaired.
        repaired: Documents that differed and are equal since they were written again.
        busy: Documents that differed, and may be about to be written: drift is undecided.
        jobs: The open jobs that may yet write some of these.
        are_changes_handled: False if changes in flight made no progress.
        is_complete: False if so many differed that the comparison ended early.
        searched: The indices that searches find, if it is not this one alone.
        suspended: If the document is suspended, or has to be: the reason, and what to do. Nothing was compared.
    """

    document: str
    index_name: str
    documents: int = 0
    drifts: list[Drift] = field(default_factory=list)
    repaired: list[Drift] = field(default_factory=list)
    busy: list[Drift] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    are_changes_handled: bool = True
    is_complete: bool = True
    searched: list[str] | None = None
    suspended: str | None = None
    seconds: float = 0

    @property
    def holds(self) -> bool:
        """Whether every document is known to equal its SELECT, and is found once."""
        return not (self.has_drifted or self.busy) and self.is_complete

    @property
    def has_drifted(self) -> bool:
        """Whether any document differs or was not compared, or searches find another index."""
        return bool(self.drifts) or self.searched is not None or self.suspended is not None

    @property
    def documents_per_second(self) -> float:
        """Documents compared per second."""
        return self.documents / self.seconds if self.seconds else 0


def verify(
    connect: Callable[[], Connection],
    document: Document,
    *,
    index: Index,
    settle_seconds: float = SETTLE_SECONDS,
    values: bool = False,
    repair: Callable[[Sequence[str]], object] | None = None,
    progress: Callable[[int], None] = lambda _: None,
    pause: Callable[[float], None] = time.sleep,
) -> VerifyReport:
    """Compare every document in one index with its SELECT.

    Args:
        connect: Opens a connection to Postgres.
        document: The definition to compare, and so the index.
        index: Elasticsearch.
        settle_seconds: How long changes in flight, and jobs, may make no progress before their documents are busy.
        values: Whether the report shows differing values, which may be secrets.
        repair: If given, writes documents again, and returns when that is done.
        progress: Called with the number of documents compared so far.
        pause: Called to wait; may raise `Stopping`.

    Raises:
        DocumentError: The document has to be suspended.
    """
    report = VerifyReport(document=document.name, index_name=document.index_name)
    if document.role is Role.CURRENT:
        found = index.holdings.searched([document.index])[document.index]
        report.searched = None if found == [document.index_name] else found
    began = time.monotonic()
    with connect() as walking, connect() as connection:
        settler = Settler(
            document=document,
            index=index,
            connection=connection,
            settle_seconds=settle_seconds,
            values=values,
            retries=True,
            pause=pause,
        )
        _Comparison(walking, settler, report, repair, progress).run()
    report.seconds = time.monotonic() - began
    report.drifts.sort(key=lambda drift: drift.id)
    return report


@dataclass(slots=True)
class _Comparison:
    """One comparison of all documents, which fills its report.

    Threads read one side while this one reads the other. What is in hand is bounded.
    """

    connection: Connection
    settler: Settler
    report: VerifyReport
    repair: Callable[[Sequence[str]], object] | None
    progress: Callable[[int], None]
    suspects: set[str] = field(default_factory=set)
    threads: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, _SEARCHES_MAX))
    in_hand: deque[Future[set[str]]] = field(default_factory=deque)
    stop: Stop = field(default_factory=Stop)

    def run(self) -> None:
        """Walk both sides."""
        document, holdings = self.settler.document, self.settler.index.holdings
        numbers = holdings.sequence_numbers(document.target)
        holdings.refresh(document.target)
        with self.threads:
            try:
                self._compare_documents()
                for places in holdings.untouched_since(document.target, numbers, page=PAGE):
                    self._submit(partial(self._extras, [place.id for place in places]), most=1)
                    if not self.report.is_complete:
                        break
                self._take_results()
            finally:
                self.stop.request()  # a search does not wait for Elasticsearch any more
        self._settle()

    def _compare_documents(self) -> None:
        """Walk the SELECT, and search each of its documents in the index."""
        document = self.settler.document
        rows_max, after, is_last = FIRST_ROWS, None, False
        while not is_last and self.report.is_complete:
            chunk: dict[str, Row] = {}
            is_large = False
            with reading(self.connection, document):
                span = ranges.next_range(self.connection, document, after, rows=rows_max)
                after, is_last = span.through, span.is_last
                found = queries.in_range(self.connection, document, span, page=PAGE, bytes_max=_PAGE_BYTES_MAX)
                with closing(found):
                    for rows in found:
                        if is_large := bool(chunk):
                            self._search(chunk)
                        chunk = rows
                        if not self.report.is_complete:
                            return
            if chunk:  # outside of the snapshot, which must not wait for Elasticsearch
                self._search(chunk)
            # Documents may be large: a range then has fewer of them.
            rows_max = max(1, rows_max // 2) if is_large else min(PAGE, 2 * rows_max)
        self._take_results()

    def _search(self, rows: dict[str, Row]) -> None:
        """Search documents in the index, and compare them there."""
        find = partial(self.settler.index.holdings.find, self.settler.document.target, list(rows))

        def differing() -> set[str]:
            copies = retry(find, pause=self.stop.pause, component="verify")
            return {drift.id for drift in diff.compare(rows, copies)}

        self._submit(differing, most=_SEARCHES_MAX)
        self.report.documents += len(rows)
        self.progress(self.report.documents)

    def _extras(self, ids: Sequence[str]) -> set[str]:
        """Return those of these ids that the SELECT does not return."""
        present = queries.existing(self.connection, self.settler.document, ids)
        return set(ids) - {place.id for place in present}

    def _submit(self, find: Callable[[], set[str]], *, most: int) -> None:
        """Have suspects found in a thread, while at most so many are at it."""
        self._take_results(fewer_than=most)
        self.in_hand.append(self.threads.submit(find))

    def _take_results(self, *, fewer_than: int = 1) -> None:
        """Take the suspects that were found; settle them if there is no room for more, and end if too many differ."""
        while len(self.in_hand) >= fewer_than:
            self.suspects |= self.in_hand.popleft().result()
            if len(self.suspects) >= FOUND_MAX:
                self._settle()
                found = len(self.report.drifts) + len(self.report.busy) + len(self.report.repaired)
                self.report.is_complete = found < FOUND_MAX

    def _settle(self) -> None:
        """Find out what the suspects are, and repair them."""
        report, suspects, self.suspects = self.report, self.suspects, set()
        settled = self.settler.settle(suspects)
        if self.repair is not None and (differing := {drift.id: drift for drift in (*settled.drifts, *settled.busy)}):
            self.repair(list(differing))
            settled = self.settler.settle(differing)
            left = {drift.id for drift in (*settled.drifts, *settled.busy)}
            report.repaired += [drift for id_, drift in differing.items() if id_ not in left]
        report.drifts += settled.drifts
        report.busy += settled.busy
        report.jobs = sorted({*report.jobs, *settled.jobs})
        report.are_changes_handled &= settled.are_changes_handled
