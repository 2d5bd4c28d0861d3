"""Refresher: the lane that writes pages of jobs. Pages → compose → several bulk requests in flight → progress.

Live changes have lanes of their own, the workers, so that a job of any size keeps none waiting in a queue. While one
batch is composed, those before it are being written, since Elasticsearch orders them by their versions, not by when
they come. Whatever does not go smoothly is left to `Writer.write`, which tries again, parks and halts.

Guarantees: a page is counted as done only when each of its documents has been written, found superseded, or parked, or
its document is halted; what a lane has in hand when it dies is given to another one, and what it has when it is told
to stop is given back at once; however long Postgres takes for a page, it stays in hand; no job waits for another one to
be through, nor for one that is in trouble; how much is in memory does not depend on how large a job is, a page, or a
document, as long as one fits into a bulk request.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import psycopg
import structlog

from syncer import compose, halting, job_pages, jobs, listing, store, telemetry
from syncer.errors import DocumentError, JobError
from syncer.index import Index
from syncer.job import Job, JobState, due
from syncer.job_pages import JobPage
from syncer.lifecycle import Stop, Stopping, persist
from syncer.model import Place
from syncer.policy import Action, Backoff, at_work_for, decide, explain
from syncer.postgres import Connection
from syncer.reading import STAGE_LOCK_SECONDS, reading
from syncer.store import Document
from syncer.writer import Attempt, Writer, WriteReport

_KEEP_SECONDS = job_pages.STALLED_SECONDS / 4
_LOOK_SECONDS = 1.0
_OTHERS_SECONDS = 2.0
"""When to look again after a job that somebody else is at."""
_UNKNOWN_DOCUMENTS = 50
"""How many documents are composed together as long as nobody knows how large they are."""
_MEAN_OVER = 8

_Result = TypeVar("_Result")


@dataclass(slots=True)
class RefresherReport:
    """What one turn of a refresher did.

    Args:
        pages: How many pages it wrote.
        steps: How many jobs it took a step further: listed, swept, ended.
        written: What became of the documents.
        seconds: How long it took.
    """

    pages: int = 0
    steps: int = 0
    written: WriteReport = field(default_factory=WriteReport)
    seconds: float = 0

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do."""
        return not self.pages and not self.steps


@dataclass(slots=True, kw_only=True, eq=False)
class _Hand:
    """A page in hand.

    Args:
        page: Which.
        begun: How many of its ids have been composed, or are being.
        open: How many slices of those are not done.
        report: What has become of the slices that are done.
    """

    page: JobPage
    begun: int = 0
    open: int = 0
    report: WriteReport = field(default_factory=WriteReport)

    @property
    def is_composed(self) -> bool:
        """Whether nothing of it is left to compose."""
        return self.begun >= len(self.page.ids)

    @property
    def is_done(self) -> bool:
        """Whether all of it is."""
        return self.is_composed and not self.open


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Flight:
    """A slice that is being sent.

    Args:
        hand: Of which page.
        attempt: What was composed.
        size: How many bytes that are.
    """

    hand: _Hand
    attempt: Attempt
    size: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Postponed:
    """A step of a job that is to be tried again.

    Args:
        at: When, by the monotonic clock.
        said: What was logged about it last.
        backoff: How long to wait each time.
    """

    at: float = 0.0
    said: str = ""
    backoff: Backoff = field(default_factory=Backoff)


class Refresher:
    """Writes pages of jobs, as one lane; and takes jobs further when their pages are gone.

    Args:
        connect: Opens a connection to Postgres.
        index: Elasticsearch.
        name: For the log, and for ``pg_stat_activity``.
        in_flight_max: How many bulk requests are on their way at once.
        batch_documents_max: How many documents are composed together.
        batch_bytes_max: How large together they may be, as far as that is known beforehand.
        idle_seconds: How long to rest when there was nothing to do.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        index: Index,
        name: str = "refresher",
        in_flight_max: int = 4,
        batch_documents_max: int = 1000,
        batch_bytes_max: int = 8 * 1024 * 1024,
        idle_seconds: float = 0.5,
    ) -> None:
        self._connect = connect
        self._index = index
        self._name = name
        self._in_flight_max = in_flight_max
        self._batch_documents_max = batch_documents_max
        self._batch_bytes_max = batch_bytes_max
        self._idle_seconds = idle_seconds
        self._stop = Stop()
        self._writer = Writer(connect=connect, index=index, pause=self._pause, name=name)
        # Those in flight, and one that is composed.
        self._pool = ThreadPoolExecutor(in_flight_max + 1, thread_name_prefix=f"{name}-work")
        self._connection: Connection | None = None
        self._lane = 0
        self._hands: list[_Hand] = []
        self._flights: dict[Future[None], _Flight] = {}
        self._document_bytes: dict[str, float] = {}
        self._postponed: dict[int, _Postponed] = {}
        self._kept_at = self._looked_at = 0.0
        self._log = structlog.get_logger().bind(lane=name)

    def run(self, stop: Stop) -> None:
        """Write pages until told to stop; what is in flight is finished first."""
        self._stop = stop
        try:
            while not stop.is_requested:
                report = persist(self._attempt, pause=stop.pause, stage=self._name)
                if report.is_idle:
                    stop.wait(self._idle_seconds)
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> RefresherReport:
        """Write pages until there are none, or a job waits to be taken further; then take those further that do.

        Raises:
            Stopping: It was told to stop while a server was away, or in the middle of a step.
            Exception: What the policy says to RETRY or to HALT for. After `close` it may be done again.
        """
        report = RefresherReport()
        began = time.monotonic()
        self._write_pages(report)
        if not self._stop.is_requested:
            self._take_steps(report)
        report.seconds = time.monotonic() - began
        return report

    def close(self) -> None:
        """Give back what is in hand, and let go of the servers; the next turn begins afresh."""
        wait(self._flights)
        self._writer.close()
        if self._connection is not None:
            with suppress(psycopg.Error):  # if they are not given back now, they are when our session is gone
                job_pages.release(self._connection, [hand.page for hand in self._hands])
            self._connection.close()
        self._connection = None
        self._hands.clear()
        self._flights.clear()

    def _attempt(self) -> RefresherReport:
        try:
            return self.run_once()
        except Exception:
            self.close()
            raise

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._lane = job_pages.enter(self._connection)
        return self._connection

    # Pages

    def _write_pages(self, report: RefresherReport) -> None:
        """Keep composing while there is room for another request in flight."""
        waiting: deque[_Hand] = deque()
        is_over = False
        while True:
            if self._stop.is_requested:
                waiting.clear()  # `close` gives them back
            elif not waiting and not is_over:
                self._finish(report)
                is_over = self._is_step_due()
                waiting.extend(() if is_over else self._take())
            if waiting and self._has_room():
                self._launch(waiting[0])
                if waiting[0].is_composed:
                    waiting.popleft()
            elif self._flights:
                self._land()
            else:
                break
        self._finish(report)

    def _take(self) -> Iterable[_Hand]:
        connection = self._connected()
        for page in job_pages.take(connection, self._lane, pages_max=self._in_flight_max):
            hand = _Hand(page=page)
            self._hands.append(hand)
            yield hand

    def _launch(self, hand: _Hand) -> None:
        """Compose the next slice of a page, and let it fly."""
        page = hand.page
        ids = page.ids[hand.begun : hand.begun + self._step_documents(page.index_name)]
        hand.begun += len(ids)
        hand.open += 1
        try:
            attempt = self._meanwhile(partial(self._writer.compose, page.index_name, ids, everywhere=page.everywhere))
        except Exception as error:
            if decide(error) is Action.HALT:
                raise
            self._write_slowly(hand, ids)
        else:
            size = self._weigh(page.index_name, attempt)
            self._flights[self._pool.submit(self._writer.send, attempt)] = _Flight(
                hand=hand, attempt=attempt, size=size
            )

    def _has_room(self) -> bool:
        """Whether another request may fly: of large documents two at once keep Elasticsearch busy."""
        flights = self._flights.values()
        return len(flights) < self._in_flight_max and sum(one.size for one in flights) < 2 * self._batch_bytes_max

    def _step_documents(self, index_name: str) -> int:
        """How many documents to compose together: by what they weighed so far."""
        weight = self._document_bytes.get(index_name)
        fitting = _UNKNOWN_DOCUMENTS if weight is None else int(self._batch_bytes_max / weight)
        return max(1, min(self._batch_documents_max, fitting))

    def _weigh(self, index_name: str, attempt: Attempt) -> int:
        """Remember how large documents are; how many bytes these are together."""
        sizes = [len(one.source) for one in attempt.batch.compositions if one.source is not None]
        if sizes:
            now = sum(sizes) / len(sizes)
            mean = self._document_bytes.get(index_name, now)
            # Quick to grow, slow to shrink.
            self._document_bytes[index_name] = max(now, mean + (now - mean) / _MEAN_OVER)
        return sum(sizes)

    def _land(self) -> None:
        """Wait for a request, and settle those that have been answered."""
        landed, _ = wait(self._flights, timeout=_KEEP_SECONDS, return_when=FIRST_COMPLETED)
        self._keep()
        for answer in landed:
            flight = self._flights.pop(answer)
            hand, attempt = flight.hand, flight.attempt
            ids = [one.id for one in attempt.batch.compositions]
            try:
                answer.result()
                again = self._writer.settle(attempt)
            except Exception as error:
                if decide(error) is Action.HALT:
                    raise
                self._write_slowly(hand, ids)
            else:
                hand.report.add(attempt.report)
                if again:
                    self._write_slowly(hand, again)
                else:
                    hand.open -= 1

    def _write_slowly(self, hand: _Hand, ids: list[str]) -> None:
        """Write a slice that did not go smoothly: with patience, or to find out what is at fault."""
        page = hand.page
        try:
            write = partial(self._writer.write, page.index_name, ids, everywhere=page.everywhere)
            hand.report.add(self._meanwhile(write))
        except DocumentError as error:
            # What is skipped from here on is made good by the fill of the next generation: `syncer.halting`.
            halting.halt(self._connected(), error)
        hand.open -= 1

    def _meanwhile(self, work: Callable[[], _Result]) -> _Result:
        """Do something that may take long, while saying that our pages are still in hand."""
        done = self._pool.submit(work)
        while wait([done], timeout=_KEEP_SECONDS).not_done:
            with suppress(psycopg.Error):  # Postgres may be what is away; then another lane may have them
                self._keep()
        return done.result()

    def _finish(self, report: RefresherReport) -> None:
        done = [hand for hand in self._hands if hand.is_done]
        if not done:
            return
        job_pages.finish(self._connected(), [(hand.page, hand.report) for hand in done])
        self._hands = [hand for hand in self._hands if not hand.is_done]
        for hand in done:
            report.pages += 1
            report.written.add(hand.report)

    def _keep(self) -> None:
        now = time.monotonic()
        if self._hands and now - self._kept_at >= _KEEP_SECONDS:
            self._kept_at = now
            job_pages.keep(self._connected(), [hand.page for hand in self._hands])

    def _pause(self, seconds: float) -> None:
        self._stop.pause(seconds)

    # Steps

    def _is_step_due(self) -> bool:
        """Whether a job is to be taken further before more pages are; looks at it from time to time."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now
        job_pages.reclaim(self._connected())
        return bool(self._due())

    def _due(self) -> list[Job]:
        waiting = due(self._connected())
        ids = {job.id for job in waiting}
        self._postponed = {id_: one for id_, one in self._postponed.items() if id_ in ids}
        now = time.monotonic()
        return [job for job in waiting if job.id not in self._postponed or self._postponed[job.id].at <= now]

    def _take_steps(self, report: RefresherReport) -> None:
        connection = self._connected()
        waiting = self._due()
        documents = {one.index_name: one for one in store.documents(connection)} if waiting else {}
        for job in waiting:
            document = documents.get(job.index_name)
            if document is None:  # put out of force just now
                continue
            try:
                is_further = self._step(connection, job, document)
            except DocumentError as error:
                halting.halt(connection, error)
            except JobError:  # it went away with its index
                continue
            except Stopping:
                raise
            except Exception as error:  # noqa: BLE001 - told apart there
                self._suffer(connection, job, error)
            else:
                report.steps += is_further
                self._postponed.pop(job.id, None)
                if not is_further:
                    self._postponed[job.id] = _Postponed(at=time.monotonic() + _OTHERS_SECONDS)

    def _suffer(self, connection: Connection, job: Job, error: Exception) -> None:
        """Let no job be in the way of others: what it asks of a server may be what the server cannot do.

        Raises:
            Exception: The set-up is at fault, or the connection is gone; then the others go first the next time.
        """
        if decide(error) is Action.RETRY:
            self._postpone(job, error)
            if connection.closed:
                raise error
        elif explain(error) is None:
            self._log.error(telemetry.STAGE_FAILED, stage=self._name, job=job.id, error=repr(error), exc_info=error)
            jobs.fail(connection, job.id, f"An error that nobody foresaw: {error!r}\nPlease report it.")
        else:
            raise error

    def _postpone(self, job: Job, error: Exception) -> None:
        """Leave a job that is in trouble for a while, so that others need not wait for it."""
        postponed = self._postponed.setdefault(job.id, _Postponed())
        said = explain(error)
        message = said.message if said else repr(error)
        if message != postponed.said:
            self._log.warning(telemetry.STAGE_RETRIED, stage=self._name, job=job.id, error=message)
            postponed.said = message
        postponed.at = time.monotonic() + postponed.backoff.next_seconds()

    def _step(self, connection: Connection, job: Job, document: Document) -> bool:
        """Take one job further; whether it is.

        Raises:
            DocumentError: The document is to halt.
            JobError: There is no such job any more.
            Stopping: It was told to stop; the step is to be taken again.
            Exception: To be tried again.
        """
        if job.state in (JobState.NEW, JobState.LISTING):
            numbers = partial(self._sequence_numbers, document) if job.kind.is_whole else None
            return listing.list_pages(
                connection, job, document, page=self._batch_documents_max, sequence_numbers=numbers
            )
        if job.state is JobState.WRITTEN:
            strays = self._strays(document, job.sequence_numbers or {})
            return listing.sweep(connection, job, strays, page=self._batch_documents_max)
        after = jobs.advance(connection, job.id)
        if after.state is JobState.DONE:
            self._log.info(
                telemetry.JOB_FINISHED, job=job.id, kind=job.kind, document=job.document, documents=after.documents_done
            )
        return after.state is not job.state

    def _sequence_numbers(self, document: Document) -> Mapping[int, int]:
        with at_work_for(document.name, document.generation):
            return self._index.holdings.sequence_numbers(document.target)

    def _strays(self, document: Document, numbers: dict[int, int]) -> Iterable[str]:
        """What only Elasticsearch has, among what nobody has touched since the job began."""
        with self._connect() as asking:
            for places in self._untouched(document, numbers):
                if self._stop.is_requested:
                    raise Stopping
                with reading(asking, document, lock_seconds=STAGE_LOCK_SECONDS):
                    present = compose.existing_here(asking, document, [one.id for one in places])
                yield from (one.id for one in places if one not in present)

    def _untouched(self, document: Document, numbers: dict[int, int]) -> Iterable[list[Place]]:
        with at_work_for(document.name, document.generation):
            yield from self._index.holdings.untouched_since(document.target, numbers, page=self._batch_documents_max)
