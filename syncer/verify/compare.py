"""Verify: compares every document with its SELECT, in both directions and by content, beside live traffic; and repairs.

*Two walks, in short snapshots.* The documents of the SELECT are read in ranges of the key, each range in a snapshot of
its own. All copies of their ids are read from the index, whatever their shard and routing, and compared byte for byte.
That finds documents that are missing, different or misplaced. Then the ids of the index are walked in pages, and
Postgres is asked which of them the SELECT returns: that finds what only Elasticsearch has. Where ``_id`` has no index
to walk, one statement reads the SELECT, in one snapshot: see `syncer.documents.queries`.

*In flight is not drift.* What differs is only suspect, since the two sides were read at different moments.
`syncer.verify.settle` finds out what of it has drifted. A limited number of suspects is kept; if there are more, they
are settled before the walk goes on.

*Repair* has the documents written again that drifted or are busy, by a job, and compares them again. That follows the
version rule, so it is safe beside live traffic, and can be repeated after a crash.

The last result of each index is kept for the status page and metrics.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import structlog

from syncer.base.formatting import amount
from syncer.base.lifecycle import Stop
from syncer.base.model import Role
from syncer.base.postgres import Connection
from syncer.base.retry import retry
from syncer.documents import queries
from syncer.documents.queries import Row
from syncer.documents.registry import Document
from syncer.documents.snapshot import reading
from syncer.elasticsearch.bulk import Index
from syncer.verify import diff
from syncer.verify.diff import Cause, Drift
from syncer.verify.settle import SETTLE_SECONDS, Settler

FOUND_MAX = 10_000
"""A comparison ends after this many documents that have drifted or are busy. As many suspects are kept at a time."""
PAGE = 1000
FIRST_ROWS = 100
_PAGE_BYTES_MAX = 4_000_000
_SEARCHES_MAX = 3

_RECORD = """
INSERT INTO syncer.verification (index_name, documents, drifted, repaired, is_complete)
SELECT d.index_name, $2, $3, $4, $5 FROM syncer.document AS d WHERE d.index_name = $1
ON CONFLICT (index_name) DO UPDATE
SET finished_at = excluded.finished_at, documents = excluded.documents, drifted = excluded.drifted,
    repaired = excluded.repaired, is_complete = excluded.is_complete
"""
LAST = """
SELECT d.name AS document, v.index_name, v.finished_at, v.documents, v.drifted, v.repaired, v.is_complete
FROM syncer.verification AS v JOIN syncer.document AS d USING (index_name)
WHERE d.role = 'current' ORDER BY d.name
"""
"""The query that returns the fields of each `Verification`, of the index that searches find."""
_NAMED_BY_STATUS = frozenset({Cause.DEAD_LETTERED, Cause.INCOMPLETE})
"""What `syncer status` names by itself, as long as it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The last result of an index.

    Args:
        drifted: How many were left different, for a reason that `syncer status` does not name otherwise.
        repaired: How many differed and are equal since they were written again.
        is_complete: False if so many differed that the comparison ended early.
    """

    document: str
    index_name: str
    finished_at: datetime
    documents: int
    drifted: int
    repaired: int
    is_complete: bool


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

    Threads read one side while this one reads the other. What is in hand is bounded.

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
    report, began = VerifyReport(document=document.name, index_name=document.index_name), time.monotonic()
    if document.role is Role.CURRENT:
        searched = index.holdings.searched([document.index])[document.index]
        report.searched = None if searched == [document.index_name] else searched
    suspects: set[str] = set()
    in_hand: deque[Future[set[str]]] = deque()
    stop = Stop()
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
        with ThreadPoolExecutor(_SEARCHES_MAX) as threads, closing(_searches(walking, settler, stop)) as searches:
            try:
                for search, documents in searches:
                    while len(in_hand) >= (_SEARCHES_MAX if documents else 1):
                        suspects |= in_hand.popleft().result()
                    if len(suspects) >= FOUND_MAX:
                        _settle(report, settler, suspects, repair)
                        suspects = set()
                        found = len(report.drifts) + len(report.busy) + len(report.repaired)
                        report.is_complete = found < FOUND_MAX
                        if not report.is_complete:
                            break
                    in_hand.append(threads.submit(search))
                    report.documents += documents
                    progress(report.documents)
                suspects = suspects.union(*(future.result() for future in in_hand))
            finally:
                stop.request()  # a search does not wait for Elasticsearch any more
        _settle(report, settler, suspects, repair)
    report.seconds = time.monotonic() - began
    report.drifts.sort(key=lambda drift: drift.id)
    return report


def _searches(walking: Connection, settler: Settler, stop: Stop) -> Generator[tuple[Callable[[], set[str]], int]]:
    """Walk both sides, and yield functions that return suspects, each with the number of documents that it compares.

    Those that compare none use the connection: one at a time.
    """
    document, holdings = settler.document, settler.index.holdings
    numbers = holdings.sequence_numbers(document.target)
    holdings.refresh(document.target)

    def differing(rows: dict[str, Row]) -> set[str]:
        copies = retry(partial(holdings.find, document.target, list(rows)), pause=stop.pause, component="verify")
        return {drift.id for drift in diff.compare(rows, copies)}

    def only_in_index(ids: list[str]) -> set[str]:
        with reading(walking, document):
            return set(ids) - {place.id for place in queries.existing(walking, document, ids)}

    rows_max, after, is_last = FIRST_ROWS, None, False
    while not is_last:
        chunk: dict[str, Row] = {}
        is_large = False
        with reading(walking, document):
            span = queries.next_range(walking, document, after, rows=rows_max)
            after, is_last = span.through, span.is_last
            with closing(queries.in_range(walking, document, span, page=PAGE, bytes_max=_PAGE_BYTES_MAX)) as found:
                for rows in found:
                    if is_large := bool(chunk):
                        yield partial(differing, chunk), len(chunk)
                    chunk = rows
        if chunk:  # outside of the snapshot, which must not wait for Elasticsearch
            yield partial(differing, chunk), len(chunk)
        # Documents may be large: a range then has fewer of them.
        rows_max = max(1, rows_max // 2) if is_large else min(PAGE, 2 * rows_max)
    for places in holdings.untouched_since(document.target, numbers, page=PAGE):
        yield partial(only_in_index, [place.id for place in places]), 0


def _settle(
    report: VerifyReport, settler: Settler, suspects: set[str], repair: Callable[[Sequence[str]], object] | None
) -> None:
    """Find out what suspects are, repair them, and add them to the report."""
    settled = settler.settle(suspects)
    if repair is not None and (differing := {drift.id: drift for drift in (*settled.drifts, *settled.busy)}):
        repair(list(differing))
        settled = settler.settle(differing)
        left = {drift.id for drift in (*settled.drifts, *settled.busy)}
        report.repaired += [drift for id_, drift in differing.items() if id_ not in left]
    report.drifts += settled.drifts
    report.busy += settled.busy
    report.jobs = sorted({*report.jobs, *settled.jobs})
    report.are_changes_handled &= settled.are_changes_handled


def record(connection: Connection, report: VerifyReport) -> None:
    """Record the result for an index, if it is still active."""
    drifted, repaired = sum(drift.cause not in _NAMED_BY_STATUS for drift in report.drifts), len(report.repaired)
    connection.execute(_RECORD, (report.index_name, report.documents, drifted, repaired, report.is_complete))
    documents = amount(report.documents, "document")
    structlog.get_logger().info(
        "verify.finished",
        index=report.index_name,
        documents=report.documents,
        drifted=drifted,
        repaired=repaired,
        timeline=f"Verified {report.index_name}: {documents}, {drifted:,} drifted, {repaired:,} repaired.",
    )
