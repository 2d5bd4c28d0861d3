"""Verify: compares every document with its SELECT, in both directions and by content, beside live traffic; and repairs.

*Two walks, in short snapshots.* The documents of the SELECT are read in ranges: see `syncer.documents.queries`. All
copies of their ids are read from the index, whatever their shard and routing, and compared byte for byte. That finds
documents that are missing, different or misplaced. Then the ids of the index are walked in pages, and Postgres is asked
which of them the SELECT returns: that finds what only Elasticsearch has.

*In flight is not drift.* What differs is only *suspect*: the two sides were read at different moments, and it may be
about to be written. `Settler.settle` decides which suspects have *drifted*, and which are *busy*.

*Repair* has both written again by a job, and compares them again. That follows the version rule, so it is safe beside
live traffic, and can be repeated after a crash.
"""

from __future__ import annotations

import re
import time
from collections import ChainMap, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import psycopg
import structlog

from syncer.base.error_policy import failure_of, is_of_data, is_of_some_rows
from syncer.base.errors import DocumentError
from syncer.base.formatting import amount
from syncer.base.lifecycle import Stop
from syncer.base.model import Role, is_utf8
from syncer.base.postgres import Connection
from syncer.base.retry import Backoff, retry
from syncer.capture import progress
from syncer.documents import queries
from syncer.documents.queries import IdRange, Row
from syncer.documents.registry import Document
from syncer.documents.snapshot import reading
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.reader import Copy
from syncer.elasticsearch.shortcomings import Effect
from syncer.indexing import compose, dead_letters, failover, version
from syncer.jobs import listing, model
from syncer.verify import diff
from syncer.verify.diff import Cause, Drift, DriftKind

FOUND_MAX = 10_000
"""A comparison ends after this many documents that have drifted or are busy. So many suspects are settled at a time."""
PAGE = 1000
FIRST_ROWS = 100
SETTLE_SECONDS = 10.0
"""How long what is in flight may stand still before its documents are called busy."""
WHOLE_SECONDS_MAX = 3600.0
"""How long one statement may take for all documents, where no table has their ids. Otherwise as long as a writer's."""
_PAGE_BYTES_MAX = 4_000_000
_SEARCHES_MAX = 3
_SETTLED_AT_ONCE = 200
_ORPHANS = (DriftKind.EXTRA, DriftKind.MISPLACED)

_RECORD = """
INSERT INTO syncer.verification (index_name, documents, drifted, repaired, is_complete)
SELECT d.index_name, $2, $3, $4, $5 FROM syncer.document AS d WHERE d.index_name = $1
ON CONFLICT (index_name) DO UPDATE
SET finished_at = excluded.finished_at, documents = excluded.documents, drifted = excluded.drifted,
    repaired = excluded.repaired, is_complete = excluded.is_complete
"""
_NO_PROBLEM = frozenset({Cause.DEAD_LETTERED, Cause.INCOMPLETE, Cause.ROUNDED})
"""What `syncer status` names by itself, as long as it lasts, and what is no fault of syncer or of another program."""


@dataclass(slots=True, kw_only=True)
class Settled:
    """What became of documents that differed.

    Args:
        drifts: Documents that have drifted.
        busy: Documents that may be about to be written: drift is undecided.
        jobs: The open jobs that may yet write some of these.
        are_changes_handled: False if changes in flight made no progress.
    """

    drifts: list[Drift] = field(default_factory=list)
    busy: list[Drift] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    are_changes_handled: bool = True


@dataclass(slots=True, kw_only=True)
class VerifyReport(Settled):
    """What a verification found. What was repaired is not among ``drifts`` and ``busy``.

    Args:
        without_id: How many rows of the SELECT have no ``_id``, and are no documents; None if that cannot be computed.
        repaired: Documents that differed and are equal since they were written again.
        is_complete: False if so many differed that the comparison ended early.
        searched: The indices that searches find, if it is not this one alone.
        hidden: Why searches miss documents of this one, if they do, and what to do.
        suspended: If the document is suspended, or has to be: the reason, and what to do. Nothing was compared.
    """

    document: str
    index_name: str
    documents: int = 0
    without_id: int | None = 0
    repaired: list[Drift] = field(default_factory=list)
    is_complete: bool = True
    searched: list[str] | None = None
    hidden: str | None = None
    suspended: str | None = None
    seconds: float = 0

    @property
    def holds(self) -> bool:
        """Whether every document is known to equal its SELECT, and is found once."""
        return not (self.has_drifted or self.busy) and self.is_complete

    @property
    def has_drifted(self) -> bool:
        """Whether any document differs or was not compared, or searches find another index."""
        reasons = (self.searched, self.hidden, self.suspended)
        return bool(self.drifts) or any(reason is not None for reason in reasons)

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
    progress: Callable[[int, int], None] = lambda *_: None,
) -> VerifyReport:
    """Compare every document in one index with its SELECT; show differing ``values``, which may be secrets.

    Threads read one side while this one reads the other. What is in hand is bounded. ``repair`` writes documents again,
    and returns when that is done. ``progress`` is called with how many documents are compared so far, and with how many
    ids of the index were looked up in Postgres, which comes after that.

    Raises:
        DocumentError: The document has to be suspended.
    """
    report = VerifyReport(document=document.name, index_name=document.index_name)
    if document.role is Role.CURRENT:
        searched = index.holdings.searched([document.index])[document.index]
        report.searched = None if searched == [document.index_name] else searched
        for shortcoming in index.holdings.shortcomings(document.target, searched_as=document.index):
            if shortcoming.effect is Effect.HIDES:
                report.hidden = f"{shortcoming.problem}. {shortcoming.hint}"
    with connect() as walking, connect() as connection:
        settler = Settler(
            document=document,
            index=index,
            connection=connection,
            settle_seconds=settle_seconds,
            values=values,
            retries=True,
        )
        walk(walking, settler, report, repair=repair, progress=progress)
    return report


def walk(
    walking: Connection,
    settler: Settler,
    report: VerifyReport,
    *,
    repair: Callable[[Sequence[str]], object] | None = None,
    progress: Callable[[int, int], None],
) -> None:
    """Walk both sides, and add to the report what differs once it is settled; ``progress`` is as for `verify`."""
    began = time.monotonic()
    report.without_id = queries.count_without_id(walking, settler.document, seconds=WHOLE_SECONDS_MAX)
    suspects: set[str] = set()
    looked_up = 0
    in_hand: deque[Future[set[str]]] = deque()
    stop = Stop()
    with ThreadPoolExecutor(_SEARCHES_MAX) as threads, closing(_searches(walking, settler, stop)) as searches:
        try:
            for search, documents, looked_up_now in searches:
                while len(in_hand) >= (1 if looked_up_now else _SEARCHES_MAX):
                    suspects |= in_hand.popleft().result()
                if len(suspects) >= FOUND_MAX:
                    _settle(report, settler, suspects, repair)
                    suspects = set()
                    reported = len(report.drifts) + len(report.busy) + len(report.repaired)
                    report.is_complete = reported < FOUND_MAX
                    if not report.is_complete:
                        break
                in_hand.append(threads.submit(search))
                report.documents += documents
                looked_up += looked_up_now
                progress(report.documents, looked_up)
            suspects = suspects.union(*(future.result() for future in in_hand))
        finally:
            stop.request()  # a search does not wait for Elasticsearch any more
    _settle(report, settler, suspects, repair)
    report.seconds = time.monotonic() - began
    report.drifts.sort(key=lambda drift: drift.id)


def _searches(walking: Connection, settler: Settler, stop: Stop) -> Generator[tuple[Callable[[], set[str]], int, int]]:
    """Walk both sides, and yield functions that return suspects.

    With each, the number of documents that it compares, or of those of the index that it looks up. The latter use the
    connection: one at a time.
    """
    document, ids_of_index = settler.document, settler.ids_of_index()

    def differing(rows: dict[str, Row], failing: Collection[str]) -> set[str]:
        copies = retry(partial(settler.find, list(rows)), pause=stop.pause, component="verify")
        return {*failing, *(drift.id for drift in settler.differing(rows, copies))}

    def existing(ids: list[str]) -> set[str]:
        with reading(walking, document, statement_seconds=compose.STATEMENT_SECONDS_MAX, in_time=True):
            return {row_place.id for row_place in queries.existing(walking, document, ids)}

    def only_in_index(ids: list[str]) -> set[str]:
        results, failing = queries.isolated(existing, ids)
        return set(ids).difference(failing, *results)

    rows_max, listed_to, is_last = FIRST_ROWS, None, False
    while not is_last:
        with reading(walking, document):
            span = queries.next_range(walking, document, listed_to, rows=rows_max)
        listed_to, is_last, chunks, documents = span.through, span.is_last, 0, 0
        try:
            for rows in _in_range(walking, document, span):
                yield partial(differing, rows, ()), len(rows), 0
                chunks, documents = chunks + 1, documents + len(rows)
        except DocumentError as error:
            if not is_of_some_rows(error):
                raise
            chunks = PAGE  # so that the next range is shorter
            for rows, failing in _by_id(walking, settler, span):
                yield partial(differing, rows, failing), max(0, len(rows) - documents), 0
                documents = max(0, documents - len(rows))
        # Documents may be large: a range then has fewer of them.
        rows_max = max(1, rows_max // 2) if chunks > 1 else min(PAGE, 2 * rows_max)
    for page in ids_of_index:
        yield partial(only_in_index, page), 0, len(page)


def _in_range(walking: Connection, document: Document, span: IdRange) -> Iterator[dict[str, Row]]:
    """Yield the documents of a range in one snapshot, the last chunk once it has ended."""
    chunk: dict[str, Row] = {}
    seconds = compose.STATEMENT_SECONDS_MAX if document.dependencies.root else WHOLE_SECONDS_MAX
    with (
        reading(walking, document, statement_seconds=seconds, in_time=True),
        closing(queries.in_range(walking, document, span, page=PAGE, bytes_max=_PAGE_BYTES_MAX)) as chunks,
    ):
        for rows in chunks:
            if chunk:
                yield chunk
            chunk = rows
    if chunk:  # outside of the snapshot, which must not wait for Elasticsearch
        yield chunk


def _by_id(walking: Connection, settler: Settler, span: IdRange) -> Iterator[tuple[dict[str, Row], Collection[str]]]:
    """Yield the documents of a range in which the SELECT fails on a row; with each page, the ids of those that fail."""
    document = settler.document
    # Without a root, the ids come from the SELECT, which may not end. To list them takes as long as to compare them.
    if not document.dependencies.root:
        queries.count(walking, document, seconds=WHOLE_SECONDS_MAX, in_time=True)
    ids_in_range = queries.ids_in_range(walking, document, span, page=_SETTLED_AT_ONCE)
    with reading(walking, document), closing(ids_in_range) as pages:
        for ids in pages:
            yield settler.rows(ids)


def _settle(
    report: VerifyReport, settler: Settler, suspects: set[str], repair: Callable[[Sequence[str]], object] | None
) -> None:
    """Settle suspects, repair what differs, and add it to the report."""
    settled = settler.settle(suspects)
    if repair is not None and (differing := {drift.id: drift for drift in (*settled.drifts, *settled.busy)}):
        repair(list(differing))
        settled = settler.settle(differing)
        unrepaired = {drift.id for drift in (*settled.drifts, *settled.busy)}
        report.repaired += [drift for id_, drift in differing.items() if id_ not in unrepaired]
    report.drifts += settled.drifts
    report.busy += settled.busy
    report.jobs = sorted({*report.jobs, *settled.jobs})
    report.are_changes_handled &= settled.are_changes_handled


class Differing(NamedTuple):
    """A document that differs, with the routings and versions of its copies in Elasticsearch."""

    drift: Drift
    copies: frozenset[tuple[str | None, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """Compares suspects of one index until it is known what they are. ``retries`` while Elasticsearch is away."""

    document: Document
    index: Index
    connection: Connection
    settle_seconds: float
    values: bool
    retries: bool = False

    def ids_of_index(self) -> Iterator[list[str]]:
        """Return the ids of the index in chunks, but for those that are written from now on; they are read later."""
        holdings, target = self.index.holdings, self.document.target
        numbers = holdings.sequence_numbers(target)
        holdings.refresh(target)
        return ([place.id for place in page] for page in holdings.untouched_since(target, numbers, page=PAGE))

    def find(self, ids: Sequence[str], *, are_suspects: bool = False) -> list[Copy]:
        """Return all copies of these documents as searches find them; of suspects, as they are now."""
        holdings = self.index.holdings
        return (holdings.read if are_suspects else holdings.find)(self.document.target, ids)

    def rows(self, ids: Sequence[str]) -> tuple[dict[str, Row], dict[str, psycopg.Error]]:
        """Return these documents as the SELECT returns them now, and why others cannot be read, by id."""
        seconds = compose.STATEMENT_SECONDS_MAX
        read = partial(queries.current, self.connection, self.document, seconds=seconds)
        results, failing = queries.isolated(read, ids)
        return dict(ChainMap(*results)), failing

    def differing(self, expected: Mapping[str, Row], copies: Collection[Copy]) -> Iterator[Drift]:
        """Yield how copies differ from the rows with their ids."""
        return diff.compare(expected, copies, values=self.values)

    def settle(self, ids: Collection[str]) -> Settled:
        """Return which of these documents differ, once that is known; the others equal their SELECT.

        They are compared, and a moment is taken. Once everything committed before it is handled and no open job holds
        a document, it is compared again. If it still differs and has kept its version, it has drifted, however slow
        the workers are. For a change that it does not show was committed before the moment, as it differed by then;
        once that change is handled, the document has another version.

        What is written all the while is busy, after four moments. So is what changes in flight or an open job may yet
        write, once these have made no progress for the allowed time.
        """
        settled = Settled()
        undecided = self._compare(ids)
        # What is in flight does not tell whether they can be read, and reading them again takes as long again.
        unreadable = [id_ for id_, differing in undecided.items() if differing.drift.kind is DriftKind.UNREADABLE]
        settled.drifts = [undecided.pop(id_).drift for id_ in unreadable]
        for is_last in (False, False, False, True):
            if not undecided:
                break
            suspects = undecided
            is_handled, holders = self._wait(suspects)
            settled.are_changes_handled &= is_handled
            surpassed = version.least_next(self.connection)
            undecided = {}
            for id_, differing in self._compare(suspects).items():
                # No write of syncer's surpasses this version: it stays, whatever is in flight.
                if any(number >= surpassed and self._is_foreign(number) for _, number in differing.copies):
                    settled.drifts.append(differing.drift)
                elif id_ in holders or not is_handled:
                    settled.busy.append(differing.drift)
                    settled.jobs = sorted({*settled.jobs, *holders.get(id_, ())})
                # What is deleted and written again has no version in between.
                elif differing.copies == suspects[id_].copies and (differing.copies or is_last):
                    settled.drifts.append(differing.drift)
                else:  # something writes it
                    undecided[id_] = differing
        settled.busy += [differing.drift for differing in undecided.values()]
        settled.drifts, settled.busy = self._explained(settled.drifts), self._explained(settled.busy)
        return settled

    def _compare(self, ids: Collection[str]) -> dict[str, Differing]:
        """Read these documents from both sides; return those that differ."""
        differing: dict[str, Differing] = {}
        all_ids = list(ids)
        for page in (all_ids[start : start + _SETTLED_AT_ONCE] for start in range(0, len(all_ids), _SETTLED_AT_ONCE)):
            read_copies = partial(self.find, page, are_suspects=True)
            copies = retry(read_copies, pause=time.sleep, component="verify") if self.retries else read_copies()
            rows, failing = self.rows(page)
            # Postgres casts the id 007 to 7, which was not asked for.
            expected = {id_: rows[id_] for id_ in page if id_ in rows}
            comparable = [copy for copy in copies if copy.id not in failing]
            drifts = []
            for id_, error in failing.items():
                kind = DriftKind.FAILING if is_of_data(error) else DriftKind.UNREADABLE
                drifts.append(Drift(id=id_, kind=kind, failure=f"the SELECT {failure_of(error)}"))
            drifts += [Drift(id=id_, kind=DriftKind.FAILING) for id_ in page if not is_utf8(id_)]
            for drift in (*drifts, *self.differing(expected, comparable)):
                places_and_versions = frozenset((copy.routing, copy.version) for copy in copies if copy.id == drift.id)
                differing[drift.id] = Differing(drift, places_and_versions)
        return differing

    def _wait(self, differing: Mapping[str, Differing]) -> tuple[bool, dict[str, list[int]]]:
        """Wait until all changes so far are handled, and no job that is open then holds one of these documents.

        Returns:
            Whether the changes are handled, and the jobs that hold documents after all.
        """
        orphans = [id_ for id_, suspect in differing.items() if suspect.drift.kind in _ORPHANS]
        moment, state, since = progress.moment(self.connection), -1, time.monotonic()
        backoff = Backoff(first_seconds=0.03, longest_seconds=0.5)
        while not progress.is_handled(self.connection, moment):
            previous, state = state, progress.handled(self.connection)
            since = since if state == previous else time.monotonic()
            if time.monotonic() - since >= self.settle_seconds:
                return False, {}
            time.sleep(backoff.next_seconds())
        jobs, since = model.unfinished(self.connection, self.document.index_name), time.monotonic()
        while True:  # later jobs are of later changes
            holders = listing.held(self.connection, jobs, differing, orphans)
            if not holders or time.monotonic() - since >= self.settle_seconds:
                return True, holders
            time.sleep(backoff.next_seconds())
            jobs = [job for job in model.some(self.connection, [job.id for job in jobs]) if not job.state.is_finished]

    def _explained(self, drifts: Sequence[Drift]) -> list[Drift]:
        """Add dead-letter errors and causes; return them by id."""
        letters = dead_letters.find(self.connection, self.document.index_name, [drift.id for drift in drifts])
        errors = {id_: letter.error for id_, letter in letters.items()}
        explained = [replace(drift, error=errors.get(drift.id), cause=self._cause(drift, errors)) for drift in drifts]
        return sorted(explained, key=lambda drift: drift.id)

    def _cause(self, drift: Drift, errors: Mapping[str, str]) -> Cause | None:
        is_foreign = drift.version is not None and self._is_foreign(drift.version)
        if is_foreign and (drift.version or 0) >= version.least_next(self.connection):
            return Cause.FOREIGN_AHEAD
        if drift.id in errors:
            return Cause.DEAD_LETTERED
        if is_foreign:
            return Cause.FOREIGN
        if drift.cause is Cause.ROUNDED and not self._are_sums(drift):
            return None
        return drift.cause if self.document.is_loaded else Cause.INCOMPLETE

    def _are_sums(self, drift: Drift) -> bool:
        """Whether all that differs is in fields that sum floating-point numbers."""
        from syncer.lineage.unordered import unordered_fields  # noqa: PLC0415 - it imports sqlglot, which is slow to load

        of = self.document.dependencies
        _, rounded, _ = unordered_fields(self.connection, of.canonical_select, of.views, of.tables)
        return all(re.split(r"[.\[]", difference.path)[0] in rounded for difference in drift.differences)

    def _is_foreign(self, number: int) -> bool:
        return failover.is_foreign(self.connection, self.index, number)


def record(connection: Connection, report: VerifyReport) -> None:
    """Record the result for an index, if it is still active."""
    drifted, repaired = sum(drift.cause not in _NO_PROBLEM for drift in report.drifts), len(report.repaired)
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
