"""Refresher: the lane that writes pages of jobs. Pages → pipeline → progress.

Live changes have lanes of their own, the workers, so that a job of any size keeps none waiting in a queue; and
this lane makes way for them, see `syncer.pace`.

Guarantees: a page is counted as done only when its `Task` is; what a lane has in hand when it dies is given to another
one, and what it has when it is told to stop is given back at once; however long Postgres takes for a page, it stays in
hand; what is tried again and again is given up once nobody needs it; no job waits for another one to be through, nor
for one that is in trouble, nor for long for an index that is unwell.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psycopg
import structlog

from syncer import compose, events, halting, incarnation, job_pages, jobs, listing, metrics, store, unwell, version
from syncer.errors import DocumentError, JobError, UnwellError
from syncer.index import Index
from syncer.job import Job, JobState, due
from syncer.job_pages import JobPage
from syncer.lifecycle import TELL_SECONDS, Abandoned, Stop, Stopping, Trouble, persist
from syncer.model import Place
from syncer.pace import LiveTraffic
from syncer.pipeline import Pipeline, Task
from syncer.policy import Action, Backoff, at_work_for, decide, explain
from syncer.postgres import Connection
from syncer.reading import STAGE_LOCK_SECONDS, reading
from syncer.replica import Replica
from syncer.store import Document
from syncer.writer import Writer, WriteReport

_KEEP_SECONDS = job_pages.STALLED_SECONDS / 4
_LOOK_SECONDS = 1.0
_VERSION_SECONDS = 10.0
"""How often to keep a version where a restore of the database cannot take it back."""
_OTHERS_SECONDS = 2.0
"""When to look again after a job that somebody else is at."""


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
class _Hand(Task):
    """A page in hand.

    Args:
        page: Which.
        is_lost: Whether it is ours no more: its job was cancelled, or another lane was given it.
        is_left: Whether it is to be given back: its index takes no documents for now.
    """

    page: JobPage
    is_lost: bool = False
    is_left: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class _Postponed:
    """A step of a job that is to be tried again.

    Args:
        at: When, by the monotonic clock.
        said: What was logged about it last.
        said_at: When.
        backoff: How long to wait each time.
    """

    at: float = 0.0
    said: str = ""
    said_at: float = -math.inf
    backoff: Backoff = field(default_factory=Backoff)


class Refresher:
    """Writes pages of jobs, as one lane; and takes jobs further when their pages are gone.

    Args:
        connect: Opens a connection to Postgres.
        connect_replica: Opens the replica to read documents on, if not there.
        index: Elasticsearch.
        name: For the log, and for ``pg_stat_activity``.
        in_flight_max: How many bulk requests are on their way at once.
        batch_documents_max: How many documents are composed together.
        batch_bytes_max: How large together they may be, as far as that is known beforehand.
        idle_seconds: How long to rest when there was nothing to do.
        traffic: Live changes of this process, to make way for.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        connect_replica: Callable[[], Replica] | None = None,
        index: Index,
        name: str = "refresher",
        in_flight_max: int = 4,
        batch_documents_max: int = 1000,
        batch_bytes_max: int = 8 * 1024 * 1024,
        idle_seconds: float = 0.5,
        traffic: LiveTraffic | None = None,
    ) -> None:
        self._connect = connect
        self._index = index
        self._name = name
        self._page_documents = batch_documents_max
        self._idle_seconds = idle_seconds
        self._stop = Stop()
        self._woken = threading.Event()
        self._writer = Writer(
            connect=connect, connect_replica=connect_replica, index=index, pause=self._pause, name=name
        )
        self._pipeline = Pipeline(
            writer=self._writer,
            halt=self._halt,
            keep=self._keep,
            heed=self._heed,
            leave=self._leave,
            name=name,
            in_flight_max=in_flight_max,
            batch_documents_max=batch_documents_max,
            batch_bytes_max=batch_bytes_max,
            traffic=traffic,
        )
        self._connection: Connection | None = None
        self._lane = 0
        self._hands: list[_Hand] = []
        self._postponed: dict[int, _Postponed] = {}
        self._kept_at = self._looked_at = self._version_kept_at = 0.0
        self._trouble = Trouble(name)
        self._log = structlog.get_logger().bind(lane=name)

    def run(self, stop: Stop) -> None:
        """Write pages until told to stop; what is in flight is finished first."""
        self._stop = stop
        stop.call(self._woken.set)
        try:
            while not stop.is_requested:
                report = persist(self._attempt, pause=stop.pause, stage=self._name, trouble=self._trouble)
                if report.is_idle:
                    self._woken.wait(self._idle_seconds)
                    self._woken.clear()
        except Stopping:
            pass
        finally:
            self.close()

    def wake(self) -> None:
        """Say that a job was made, so that nobody waits for it to be noticed. Safe to call from any thread."""
        self._woken.set()

    def run_once(self) -> RefresherReport:
        """Write pages until there are none, or a job waits to be taken further; then take those further that do.

        Raises:
            Stopping: It was told to stop while a server was away, or in the middle of a step.
            Exception: What the policy says to RETRY or to HALT for. After `close` it may be done again.
        """
        report = RefresherReport()
        began = time.monotonic()
        self._write_pages(report)
        self._writer.tell()
        if not self._stop.is_requested:
            self._take_steps(report)
        self._keep_version()
        report.seconds = time.monotonic() - began
        return report

    def close(self) -> None:
        """Give back what is in hand, and let go of the servers; the next turn begins afresh."""
        is_through = self._pipeline.drop(seconds=self._stop.seconds_left)
        if is_through:
            self._writer.close()
        else:
            self._log.warning(events.STAGE_GAVE_UP, stage=self._name)
        if self._connection is not None:
            with suppress(psycopg.Error):  # if they are not given back now, they are when our session is gone
                job_pages.release(self._connection, [hand.page for hand in self._hands])
            self._connection.close()
        self._connection = None
        self._hands.clear()

    def _attempt(self) -> RefresherReport:
        try:
            return self.run_once()
        except Stopping:
            raise
        except Exception:
            self.close()
            raise

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            # Also while nobody writes: a new life of the database has to make good for what the last one has lost.
            incarnation.enter(self._connection, self._index)
            self._lane = job_pages.enter(self._connection)
        return self._connection

    # Pages

    def _write_pages(self, report: RefresherReport) -> None:
        """Write pages until there are none, or it is told to stop; then what is left in hand is given back."""
        with suppress(Stopping):
            while not self._stop.is_requested and not self._is_step_due():
                pages = self._take()
                for hand in pages:
                    page = hand.page
                    self._pipeline.write(hand, page.index_name, page.ids, everywhere=page.everywhere)
                    hand.is_given = True
                self._finish(report)
                if not pages:
                    if self._pipeline.is_empty:
                        break
                    self._pipeline.land()
        while not self._pipeline.is_empty:
            self._pipeline.land()
        self._finish(report)

    def _take(self) -> list[_Hand]:
        """Take no more than there is room for: what is not taken may yet serve another change, see `syncer.listing`."""
        pages_max = max(1, self._pipeline.documents_max // self._page_documents)
        pages = job_pages.take(self._connected(), self._lane, pages_max=pages_max)
        taken = [_Hand(page=page, origin={"job": page.job}) for page in pages]
        self._hands += taken
        return taken

    def _finish(self, report: RefresherReport) -> None:
        left = [hand for hand in self._hands if hand.is_done and hand.is_left]
        job_pages.release(self._connected(), [hand.page for hand in left])
        self._hands = [hand for hand in self._hands if hand not in left]
        done = [hand for hand in self._hands if hand.is_done]
        if not done:
            return
        job_pages.finish(self._connected(), [(hand.page, hand.report) for hand in done])
        self._trouble.over()
        self._hands = [hand for hand in self._hands if hand not in done]
        written = WriteReport()
        for hand in done:
            written.add(hand.report)
        report.pages += len(done)
        report.written.add(written)
        metrics.pages_written(self._name, written.outcomes)

    def _halt(self, error: DocumentError) -> None:
        halting.halt(self._connected(), error)

    def _leave(self, task: Task, _: Sequence[str], error: UnwellError) -> None:
        """Give a page back once it is through: none of that index is taken until it is well."""
        unwell.mark(self._connected(), error)
        assert isinstance(task, _Hand)  # noqa: S101 - no other task is handed over here
        task.is_left = True

    def _keep(self) -> None:
        """Say that our pages are still in hand, as long as that can be said.

        Raises:
            Stopping: They have had their time.
        """
        if self._stop.is_overdue:
            raise Stopping
        now = time.monotonic()
        if self._hands and now - self._kept_at >= _KEEP_SECONDS:
            self._kept_at = now
            with suppress(psycopg.Error):  # Postgres may be what is away; then another lane may have them
                lost = job_pages.keep(self._connected(), [hand.page for hand in self._hands])
                for hand in self._hands:
                    hand.is_lost = hand.page in lost

    def _heed(self) -> None:
        if self._stop.is_requested:
            raise Stopping

    def _pause(self, seconds: float) -> None:
        self._stop.pause(seconds)
        task = self._pipeline.patient_with
        if isinstance(task, _Hand) and task.is_lost:
            raise Abandoned

    def _keep_version(self) -> None:
        now = time.monotonic()
        if now - self._version_kept_at >= _VERSION_SECONDS:
            version.keep_noted(self._connected(), self._index)
            self._version_kept_at = now

    # Steps

    def _is_step_due(self) -> bool:
        """Whether a job is to be taken further before more pages are; looks at it from time to time."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now
        job_pages.reclaim(self._connected())
        unwell.look(self._connected(), self._index.holdings)
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
                with self._stop.patient(f"a step of job {job.id}"):
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
            self._log.error(events.STAGE_FAILED, stage=self._name, job=job.id, error=repr(error), exc_info=error)
            metrics.job_failed()
            jobs.fail(connection, job.id, f"An error that nobody foresaw: {error!r}\nPlease report it.")
        else:
            raise error

    def _postpone(self, job: Job, error: Exception) -> None:
        """Leave a job that is in trouble for a while, so that others need not wait for it."""
        postponed = self._postponed.setdefault(job.id, _Postponed())
        said = explain(error)
        message = said.message if said else repr(error)
        now = time.monotonic()
        if message != postponed.said or now - postponed.said_at >= TELL_SECONDS:
            self._log.warning(events.STAGE_RETRIED, stage=self._name, job=job.id, error=message)
            postponed.said, postponed.said_at = message, now
        postponed.at = now + postponed.backoff.next_seconds()

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
            return listing.list_pages(connection, job, document, page=self._page_documents, sequence_numbers=numbers)
        if job.state is JobState.WRITTEN:
            strays = self._strays(document, job.sequence_numbers or {})
            return listing.sweep(connection, job, strays, page=self._page_documents)
        after = jobs.advance(connection, job.id)
        if after.state is JobState.DONE:
            self._tell(after)
        return after.state is not job.state

    def _tell(self, job: Job) -> None:
        self._log.info(
            events.JOB_FINISHED,
            job=job.id,
            kind=job.kind,
            document=job.document,
            cause=job.cause,
            documents=job.documents_done,
            indexed=job.indexed,
            deleted=job.deleted,
            superseded=job.superseded,
            parked=job.parked,
            left_out=job.left_out,
            seconds=round(((job.finished_at or job.created_at) - job.created_at).total_seconds(), 3),
        )

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
            yield from self._index.holdings.untouched_since(document.target, numbers, page=self._page_documents)
