"""The job worker: takes chunks of jobs, has them written, and deletes them. Between chunks it moves jobs on.

Live changes have workers of their own, so a job of any size never delays them in a queue. The job worker also gives way
to them: see `syncer.indexing.flow_control`.

Guarantees:

- A chunk is deleted only once each of its documents is written.
- If a job worker ends in any way, the end of its session frees its chunks for the others.
- No job waits long for an unavailable index, or for one whose step fails.
- An unexpected error fails its own job only.

The job worker also tries to resume suspended documents and to write dead letters, and takes marks: see
`syncer.indexing.marks`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import elasticsearch
import psycopg
import structlog

from syncer.base import metrics
from syncer.base.error_policy import Action, at_work_for, decide, explain, is_of_data, kind
from syncer.base.errors import DocumentError, IndexingError, JobError, UnavailableError
from syncer.base.formatting import amount, elapsed
from syncer.base.lifecycle import GRACE_SECONDS, Stop, Stopping
from syncer.base.model import Place, WriteReport
from syncer.base.postgres import Connection, Link
from syncer.base.retry import failed, give_up, recovered, repeat
from syncer.base.settings import WorkerSettings
from syncer.documents import queries, registry, suspend
from syncer.documents.registry import Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS, reading
from syncer.elasticsearch.bulk import Index
from syncer.indexing import compose, dead_letters, failover, marks
from syncer.indexing.flow_control import FlowControl, LiveTraffic
from syncer.indexing.pool import WriterPool
from syncer.jobs import chunks, listing, queue
from syncer.jobs.chunks import Chunk, Chunks
from syncer.jobs.model import Job, JobKind, JobState, due, find
from syncer.recovery import schema_watch

_WAIT_SECONDS = 1.0
"""How long to wait for a chunk to be written before looking after other things."""
_LOOK_SECONDS = 1.0
"""How often to look for steps that are due, and for suspended documents."""
_IDLE_SECONDS = 0.5
"""How often to look for a job while there is nothing to do."""
_AGAIN_SECONDS = 2.0
"""When to try a step again that has failed, or that another process is taking."""
_FOLLOW_SECONDS = 0.05
"""How often to look how far a job is that is followed."""
_ALIVE_TURNS = 20
"""After how many looks to check for live job workers."""
_STAYS_SUSPENDED = (DocumentError, IndexingError, elasticsearch.ApiError, elasticsearch.TransportError)
ATTEMPT_SECONDS = 5.0
"""How often to try to write a suspended document."""
_LETTERS_SECONDS = 60.0
"""How often to try to write a dead letter of each index: its cause may be gone, which no change tells."""
_SLOW_LETTERS_SECONDS = 3600.0
"""How often to try one that took too much to build: it keeps a writer, and Postgres, busy for as long again."""
_STEPS = "job steps"
"""The steps of jobs, in the log and the status: one that fails does not keep chunks from being written."""
_MARK_SECONDS = 10.0
"""How often to take a mark."""
_PRUNE_SECONDS = 3600.0
"""How often to delete what is too old in the log of deletes."""


class JobWorker:
    """Writes chunks of jobs, and advances jobs whose chunks are finished.

    Args:
        traffic: The live changes of this process, to give way to.
        idle_seconds: How often to look for a job while there is nothing to do, if that is more often than usual.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        index: Index,
        settings: WorkerSettings | None = None,
        name: str = "job_worker",
        traffic: LiveTraffic | None = None,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        self._connect = connect
        self._index = index
        self._name = name
        self._idle_seconds = min(_IDLE_SECONDS, idle_seconds)
        self._stop = Stop()
        settings = settings or WorkerSettings()
        self._chunk_documents = settings.batch_documents_max
        flow = FlowControl(settings, traffic=traffic)
        self._writers = WriterPool(connect=connect, index=index, pause=self._pause, name=name, flow=flow)
        self._link = Link(self._opened)
        self._chunks: Chunks | None = None
        self._writes: list[tuple[Chunk, Future[WriteReport]]] = []
        self._mostly_different: set[int] = set()
        """Refreshes of whose documents more than half differed in a chunk: to compare the others would not pay."""
        self._attempts: dict[str, Future[WriteReport]] = {}
        """Attempts to write a suspended document, by index."""
        self._retries: dict[tuple[str, bool], tuple[list[str], Future[WriteReport]]] = {}
        """Dead letters that are tried, by index and whether they were too slow to build."""
        self._retried: dict[tuple[str, bool], str] = {}
        """The last of each that was tried: the next ones follow it in the order of ids."""
        self._deferred: dict[int, float] = {}
        """By job, when its step is to be tried again."""
        self._looked_at = self._attempted_at = self._marked_at = 0.0
        self._has_moved_jobs = False
        self._retried_at = self._slow_retried_at = self._pruned_at = time.monotonic()
        self._log = structlog.get_logger().bind(job_worker=name)

    def run(self, stop: Stop) -> None:
        """Write chunks until told to stop; what is in flight is finished first."""
        self._stop = stop
        try:
            repeat(self.run_once, reset=self.reset, stop=stop, component=self._name)
        finally:
            self.close(seconds=stop.seconds_left)

    def run_once(self) -> float:
        """Take chunks while there is room, record those that are written, and take the steps that are due.

        Returns:
            How many seconds to rest before the next turn; 0 if this one has done anything.

        Raises:
            Stopping: It was told to stop while a server was down, or in the middle of a step.
            Exception: An error that the policy calls RETRY or FATAL. After `close` you may call it again.
        """
        connection, units_done = self._link.connection, 0
        assert self._chunks is not None  # made with the connection
        if self._writes or chunks.is_any_to_write(connection):
            while self._writers.has_room and not self._stop.is_requested and (chunk := self._chunks.take()) is not None:
                report = self._writers.submit(
                    chunk.index_name,
                    chunk.ids,
                    everywhere=chunk.everywhere,
                    compares=chunk.compares and chunk.job not in self._mostly_different,
                    origin={"job": chunk.job},
                )
                self._writes.append((chunk, report))
                units_done += 1
            if self._writes:
                wait([report for _, report in self._writes], timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
                if self._stop.is_overdue:
                    raise Stopping
                units_done += self._finish(self._chunks)
            is_due = time.monotonic() - self._looked_at >= _LOOK_SECONDS
            if is_due and not self._stop.is_requested:
                self._looked_at = time.monotonic()
                self._try_suspended(connection)
            # A job that was moved on goes on: it is listed, range by range, while chunks are written. A new one waits
            # a moment then: a fan-out that has not begun takes up those that follow it.
            begins = is_due or not self._writes
            if (begins or self._has_moved_jobs) and not self._stop.is_requested:
                steps = self._take_steps(connection, begins=begins)
                self._has_moved_jobs = steps > 0
                units_done += steps
        if not self._stop.is_requested:
            self._try_dead_letters(connection)
            self._take_mark(connection)
        return 0 if units_done or self._writes else self._idle_seconds

    def close(self, *, seconds: float | None = None) -> None:
        """Finish what is being written in this time, and close the connections, which frees the other chunks."""
        if not self._writers.close(seconds=seconds):
            self._log.warning("component.gave_up", component=self._name)
        with suppress(psycopg.Error):
            if self._chunks is not None:
                self._finish(self._chunks)
        give_up(_STEPS)
        self._deferred.clear()
        self.reset()

    def reset(self) -> None:
        """Drop what is in hand, which others may take."""
        self._writers.close(seconds=0)
        self._link.close()
        self._chunks = None
        self._writes.clear()
        self._attempts.clear()
        self._retries.clear()

    def _opened(self) -> Connection:
        connection = self._connect()
        # Also without work: after a failover, the changes that it lost must be made good.
        failover.enter(connection, self._index)
        self._chunks = Chunks(connection)
        return connection

    def _finish(self, chunks: Chunks) -> int:
        """Delete the chunks that are written; return how many.

        Raises:
            Exception: An error that the policy calls FATAL.
        """
        # Rule: a-chunk-is-done-when-written.
        ended = [(chunk, write) for chunk, write in self._writes if write.done()]
        settled: list[tuple[Chunk, WriteReport | None]] = []
        for chunk, write in ended:
            report = None
            with suppress(DocumentError, Stopping):  # if its document is suspended, the chunk waits with its job
                report = write.result()
            settled.append((chunk, report))
            if report is not None and chunk.compares and 2 * report.skipped < len(chunk.ids):
                self._mostly_different.add(chunk.job)
        if settled:
            chunks.finish(settled)
        self._writes = [write for write in self._writes if write not in ended]
        reports = [report for _, report in settled if report is not None]
        for report in reports:
            metrics.count("job", report)
        return len(reports)

    # Steps

    def _take_steps(self, connection: Connection, *, begins: bool) -> int:
        """Take each job that needs it one step further, new ones if it ``begins`` them; return how many steps it took.

        Raises:
            Stopping: It was told to stop in the middle of a step.
            Exception: The configuration is wrong, or the connection is lost.
        """
        waiting = due(connection)
        self._deferred = {job.id: self._deferred[job.id] for job in waiting if job.id in self._deferred}
        documents = {document.index_name: document for document in registry.documents(connection)} if waiting else {}
        steps = 0
        for job in waiting:
            document = documents.get(job.index_name)
            waits = job.state is JobState.NEW and not begins
            if waits or document is None or time.monotonic() < self._deferred.get(job.id, 0):
                continue
            moved: Job | None = None
            try:
                with self._stop.patient():
                    moved = listing.step(
                        connection,
                        job,
                        document,
                        chunk=self._chunk_documents,
                        sequence_numbers=partial(self._index.holdings.sequence_numbers, document.target),
                        orphans=partial(self._orphans, connection, document),
                        in_doubt=partial(self._in_doubt, connection, document),
                    )
            except DocumentError as error:
                suspend.suspend(connection, error)
            except JobError:  # the job was removed with its index
                pass
            except Stopping:
                raise
            except Exception as error:  # noqa: BLE001 - _handle_error tells them apart
                self._handle_error(connection, job, error)
            finally:
                self._deferred.pop(job.id, None)
                if moved is None:
                    self._deferred[job.id] = time.monotonic() + _AGAIN_SECONDS
            steps += moved is not None
            if moved is not None and moved.state is JobState.DONE and job.is_listed:  # otherwise another one ended it
                self._log_finished(moved)
        if not self._deferred:
            recovered(_STEPS)
        return steps

    def _orphans(self, connection: Connection, document: Document, numbers: Mapping[str, int]) -> Iterator[str]:
        """Yield the ids that only Elasticsearch has, among documents unchanged since the job began.

        Ids that no text of Postgres can be are left: no row has them, so another client has written them.
        """

        def existing(ids: list[str]) -> set[Place]:
            seconds = compose.STATEMENT_SECONDS_MAX
            limits: dict[str, Any] = {"lock_seconds": COMPONENT_LOCK_SECONDS, "statement_seconds": seconds}
            with reading(connection, document, in_time=True, **limits):
                return queries.existing(connection, document, ids)

        unwritable = 0
        with at_work_for(document.name, document.revision):
            for page in self._index.holdings.untouched_since(document.target, numbers, page=self._chunk_documents):
                if self._stop.is_requested:
                    raise Stopping
                results, failing = queries.isolated(existing, [copy.id for copy in page])
                present = set[Place]().union(*results)
                orphans = [copy.id for copy in page if copy not in present and copy.id not in failing]
                yield from filter(queries.is_text, orphans)
                unwritable += sum(not queries.is_text(id_) for id_ in orphans)
        if unwritable:
            self._log.warning("job.orphans_left", index=document.index_name, documents=unwritable)

    def _in_doubt(
        self, connection: Connection, document: Document, mark: Mapping[str, Any] | None
    ) -> Iterator[str] | None:
        """Return the ids that were written or deleted since a mark, on any shard; None if that cannot be told."""
        # Rules: drain-before-listing, fence-before-listing. An index without its alias suspends the document.
        if not self._index.is_drained(document.index_name, registry.epoch(connection)):
            raise UnavailableError(f"Requests of the time before the failover are at work on {document.index_name}")
        with at_work_for(document.name, document.revision):
            self._index.holdings.require_usable(document.target, has_routing=document.dependencies.has_routing)
            pages = marks.written_since(self._index, document.target, mark, page=self._chunk_documents)

        def ids(pages: Iterator[list[str]]) -> Iterator[str]:
            with at_work_for(document.name, document.revision):
                for page in pages:
                    if self._stop.is_requested:
                        raise Stopping
                    yield from filter(queries.is_text, page)

        return None if pages is None else ids(pages)

    def _handle_error(self, connection: Connection, job: Job, error: Exception) -> None:
        """Handle an error of one job so that it does not block other jobs.

        Raises:
            Exception: The configuration is wrong, or the connection is lost; then the other jobs go first next time.
        """
        if decide(error) is Action.RETRY:
            failed(_STEPS, error)
            if connection.closed:
                raise error
        elif explain(error) is None or decide(error) is Action.DEAD_LETTER:
            # What Postgres says of data may quote a row.
            shown, trace = (kind(error), None) if is_of_data(error) else (repr(error), error)
            self._log.error("component.failed", component=self._name, job=job.id, error=shown, exc_info=trace)
            metrics.INCIDENTS.labels("job_failed").inc()
            with suppress(JobError):  # it is finished, or gone
                queue.cancel(connection, job.id, f"Unexpected error: {shown}\nPlease report it.", state=JobState.FAILED)
        else:
            raise error

    def _log_finished(self, job: Job) -> None:
        seconds = ((job.finished_at or job.created_at) - job.created_at).total_seconds()
        total = amount(job.documents_done, "document")
        which = "every document" if job.kind.is_whole else "again what was written since the last mark"
        wrote = f"Job {job.id} ({job.reason}) wrote {which} of {job.document}: {total} in {elapsed(seconds)}."
        self._log.info(
            "job.finished",
            job=job.id,
            kind=job.kind,
            document=job.document,
            cause=job.occasion or job.cause,
            documents=job.documents_done,
            indexed=job.indexed,
            deleted=job.deleted,
            skipped=job.skipped,
            dead_lettered=job.dead_lettered,
            seconds=round(seconds, 3),
            timeline=wrote if job.kind.is_whole or job.kind is JobKind.RECOVERY else None,
        )

    # What else it looks after

    def _try_suspended(self, connection: Connection) -> None:
        """Try to write each suspended document every few seconds, in the writers' threads; resume those that can be."""
        for index_name, attempt in list(self._attempts.items()):
            if attempt.done():
                del self._attempts[index_name]
                with suppress(*_STAYS_SUSPENDED):
                    attempt.result()
                    schema_watch.resume(connection, index_name)
        now = time.monotonic()
        if now - self._attempted_at < ATTEMPT_SECONDS:
            return
        self._attempted_at = now
        for index_name, ids in registry.suspended(connection).items():
            if index_name not in self._attempts:
                self._attempts[index_name] = self._writers.submit(index_name, ids, resumes=True)

    def _try_dead_letters(self, connection: Connection) -> None:
        """Try one dead letter of each index a minute; after a success twice as many at once, until one fails."""
        numbers: dict[tuple[str, bool], int] = {}
        now = time.monotonic()
        if now - self._retried_at >= _LETTERS_SECONDS:
            self._retried_at = now
            indices = dead_letters.indices(connection)
            numbers = {(index_name, False): 1 for index_name in indices}
            if now - self._slow_retried_at >= _SLOW_LETTERS_SECONDS:
                self._slow_retried_at = now
                numbers |= {(index_name, True): 1 for index_name in indices}
        for letters, (ids, write) in list(self._retries.items()):
            numbers.pop(letters, None)
            if write.done():
                del self._retries[letters]
                with suppress(DocumentError):
                    if not write.result().dead_lettered:
                        numbers[letters] = min(2 * len(ids), self._chunk_documents)
        for letters, number in numbers.items():
            index_name, took_too_much = letters
            last = self._retried.get(letters, "")
            ids = dead_letters.next_ids(connection, index_name, last, number, took_too_much=took_too_much)
            self._retried[letters] = ids[-1] if ids else ""
            if ids:
                self._retries[letters] = ids, self._writers.submit(index_name, ids, retries=True)

    def _take_mark(self, connection: Connection) -> None:
        """Take a mark from time to time; now and then, delete what is too old in the log of deletes."""
        now = time.monotonic()
        if now - self._marked_at >= _MARK_SECONDS:
            self._marked_at = now
            # A restore in one transaction ends no session, and no mark is taken after it until its epoch is entered.
            failover.enter(connection, self._index)
            if not marks.take(connection, self._index):
                failover.require_in_use(connection, self._index)
        if now - self._pruned_at >= _PRUNE_SECONDS:
            self._pruned_at = now
            self._index.record.prune()

    def _pause(self, seconds: float) -> None:
        self._stop.pause(seconds)


def follow(
    job_id: int,
    *,
    connect: Callable[[], Connection],
    job_worker: Callable[[], JobWorker],
    progress: Callable[[Job], None] = lambda _: None,
) -> Job:
    """Return once a job is finished, or its definition is suspended.

    The job workers of all daemons write a job together. If there is none, this process writes it, for a command. The
    command may be killed at any point: a daemon continues the job, or the next command that follows it.

    ``job_worker`` creates one for that; what it has in flight is finished in any case. ``progress`` is called with the
    job before each turn.

    Raises:
        JobError: The job no longer exists.
        Exception: What ``progress`` raises, or the error that ended the job worker.
    """
    link, stop, turns = Link(connect), Stop(), count()
    jobs: list[Job] = []
    own_workers: list[JobWorker] = []

    def turn() -> float:
        jobs[:] = [find(link.connection, job_id)]
        progress(jobs[0])
        if jobs[0].state.is_finished or jobs[0].is_suspended:
            stop.request()
            return 0
        if not own_workers and next(turns) % _ALIVE_TURNS == 0 and not chunks.job_workers_alive(link.connection):
            own_workers.append(job_worker())
        return own_workers[0].run_once() if own_workers else _FOLLOW_SECONDS

    def reset() -> None:
        link.close()
        for worker in own_workers:
            worker.reset()

    try:
        repeat(turn, reset=reset, stop=stop, component="command")
    finally:
        link.close()
        for worker in own_workers:
            worker.close(seconds=GRACE_SECONDS)
    return jobs[0]
