"""The job worker: takes chunks of jobs, has them written, and deletes them.

Live changes have workers of their own, so a job of any size never delays them in a queue. The job worker also gives way
to them: see `syncer.indexing.flow_control`. Between chunks it takes the other steps of jobs: see `syncer.jobs.steps`.

Guarantees:

- A chunk is deleted only once each of its documents is written.
- If a job worker ends in any way, the end of its session frees its chunks for the others.
- A write that is retried is given up once its chunk is no longer needed.
- No job waits long for an unavailable index.

The job worker also records the last assigned version: see `syncer.indexing.version`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field

import elasticsearch
import psycopg
import structlog

from syncer.base import metrics
from syncer.base.errors import DocumentError, UnavailableError
from syncer.base.lifecycle import Abandoned, Stop, Stopping
from syncer.base.model import WriteReport
from syncer.base.postgres import Connection
from syncer.base.retry import Trouble, retry
from syncer.base.settings import WorkerSettings
from syncer.documents import registry
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover, version
from syncer.indexing.flow_control import FlowControl, LiveTraffic
from syncer.indexing.pool import WriterPool
from syncer.jobs import chunks
from syncer.jobs.chunks import Chunk, Chunks
from syncer.jobs.steps import JobSteps
from syncer.recovery import resume

_WAIT_SECONDS = 1.0
"""How long to wait for a chunk to be written before looking after other things."""
_LOOK_SECONDS = 1.0
"""How often to look for steps that are due, and for chunks that were dropped."""
_IDLE_SECONDS = 0.5
"""How often to look for a job while there is nothing to do."""
_STAYS_SUSPENDED = (DocumentError, UnavailableError, Abandoned, elasticsearch.ApiError, elasticsearch.TransportError)
_ATTEMPT_SECONDS = 5.0
"""How often to try to write a suspended document."""
_NOTE_SECONDS = 10.0
"""How often to record the last version."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Write:
    """A chunk that is being written.

    Args:
        is_dropped: Set once the chunk is gone with its job.
        report: What became of its documents.
    """

    chunk: Chunk
    is_dropped: threading.Event = field(default_factory=threading.Event)
    report: Future[WriteReport] = field(default_factory=Future)

    def is_needed(self) -> bool:
        """Whether to go on with it."""
        return not self.is_dropped.is_set()


class JobWorker:
    """Writes chunks of jobs, and advances jobs whose chunks are finished.

    Args:
        connect: Opens a connection to Postgres.
        index: Elasticsearch.
        settings: Limits of batches and concurrency.
        name: For the log, and for ``pg_stat_activity``.
        traffic: The live changes of this process, to give way to.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        index: Index,
        settings: WorkerSettings | None = None,
        name: str = "job_worker",
        traffic: LiveTraffic | None = None,
    ) -> None:
        self._connect = connect
        self._index = index
        self._name = name
        self._stop = Stop()
        settings = settings or WorkerSettings()
        flow = FlowControl(settings, traffic=traffic)
        self._writers = WriterPool(connect=connect, index=index, pause=self._pause, name=name, flow=flow)
        self._steps = JobSteps(index=index, chunk_documents=settings.batch_documents_max, name=name)
        self._connection: Connection | None = None
        self._chunks: Chunks | None = None
        self._writes: list[_Write] = []
        self._attempts: dict[str, Future[WriteReport]] = {}
        """Attempts to write a suspended document, by index."""
        self._looked_at = self._noted_at = self._attempted_at = 0.0
        self._trouble = Trouble(name)
        self._log = structlog.get_logger().bind(job_worker=name)

    def run(self, stop: Stop) -> None:
        """Write chunks until told to stop; what is in flight is finished first."""
        self._stop = stop
        try:
            while not stop.is_requested:
                retry(self._attempt, pause=stop.pause, component=self._name, trouble=self._trouble)
        except Stopping:
            pass
        finally:
            self.close()

    def _attempt(self) -> None:
        try:
            if seconds := self.run_once():
                self._trouble.over()
                self._stop.wait(seconds)
        except Stopping:
            raise
        except Exception:
            self._writers.drop()
            self._disconnect()
            raise

    def run_once(self) -> float:
        """Take chunks while there is room, record those that are written, and take the steps that are due.

        Returns:
            How many seconds to rest before the next turn; 0 if this one has done anything.

        Raises:
            Stopping: It was told to stop while a server was down, or in the middle of a step.
            Exception: An error that the policy calls RETRY or FATAL. After `close` you may call it again.
        """
        self._writers.report_dead_letters()
        connection, done = self._connected(), 0
        if self._writes or chunks.is_any_to_write(connection):
            while self._writers.has_room and self._take():
                done += 1
            if self._writes:
                self._wait()
                done += self._finish()
            done += self._look(connection)
        self._note_version(connection, keeps=done > 0 or not self._writes)
        return 0 if done or self._writes else _IDLE_SECONDS

    def close(self) -> None:
        """Finish what is being written, and close the connections, which frees the other chunks."""
        if not self._writers.close(seconds=self._stop.seconds_left):
            self._log.warning("component.gave_up", component=self._name)
        with suppress(psycopg.Error):
            self._finish()
        self._steps.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._chunks = None
        self._writes.clear()
        self._attempts.clear()

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            # Also without work: after a failover, the changes that it lost must be made good.
            failover.enter(self._connection, self._index)
            self._chunks = Chunks(self._connection)
        return self._connection

    def _take(self) -> bool:
        """Take a chunk and have it written; return whether there was one."""
        if self._stop.is_requested or self._chunks is None:
            return False
        chunk = self._chunks.take()
        if chunk is None:
            return False
        write = _Write(chunk=chunk)
        self._writes.append(write)
        write.report = self._writers.submit(
            chunk.index_name,
            chunk.ids,
            everywhere=chunk.everywhere,
            origin={"job": chunk.job},
            is_needed=write.is_needed,
        )
        return True

    def _wait(self) -> None:
        """Wait for a chunk to be written.

        Raises:
            Stopping: The time to stop is up.
        """
        wait([write.report for write in self._writes], timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
        if self._stop.is_overdue:
            raise Stopping

    def _finish(self) -> int:
        """Delete the chunks that are written; return how many.

        Raises:
            Exception: An error that the policy calls FATAL.
        """
        # Rule: a-chunk-is-done-when-written.
        ended = [write for write in self._writes if write.report.done()]
        written: list[tuple[Chunk, WriteReport]] = []
        for write in ended:
            # If its document is suspended, the chunk waits with its job.
            with suppress(Abandoned, DocumentError, Stopping):
                written.append((write.chunk, write.report.result()))
        if self._chunks is not None and ended:
            self._chunks.finish(written)
            self._chunks.release([write.chunk for write in ended])
        self._writes = [write for write in self._writes if write not in ended]
        for _, report in written:
            self._trouble.over()
            metrics.chunks_written(report)
        return len(written)

    def _look(self, connection: Connection) -> int:
        """At intervals, and whenever no chunk is being written, take steps of jobs; return how many."""
        now = time.monotonic()
        if self._stop.is_requested or (self._writes and now - self._looked_at < _LOOK_SECONDS):
            return 0
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._try_suspended(connection)
            dropped = {chunk.id for chunk in self._chunks.dropped()} if self._chunks is not None else set()
            for write in self._writes:
                if write.chunk.id in dropped:
                    write.is_dropped.set()
        return self._steps.take(connection, self._stop)

    def _try_suspended(self, connection: Connection) -> None:
        """Try to write each suspended document every few seconds, in the writers' threads; resume those that can be."""
        for index_name, attempt in list(self._attempts.items()):
            if attempt.done():
                del self._attempts[index_name]
                with suppress(*_STAYS_SUSPENDED):
                    attempt.result()
                    resume.resume(connection, index_name)
        now = time.monotonic()
        if now - self._attempted_at < _ATTEMPT_SECONDS:
            return
        self._attempted_at = now
        for index_name, ids in registry.suspended(connection).items():
            if index_name not in self._attempts:
                self._attempts[index_name] = self._writers.submit(index_name, ids, resumes=True)

    def _note_version(self, connection: Connection, *, keeps: bool) -> None:
        """Record the last version from time to time, also where a restore of Postgres does not undo it.

        That is Elasticsearch. It may hang, so it is not called while it does not answer.
        """
        now = time.monotonic()
        if now - self._noted_at >= _NOTE_SECONDS:
            noted = version.note(connection)
            if keeps:
                self._index.write_assigned(*noted)
            self._noted_at = now

    def _pause(self, seconds: float) -> None:
        self._stop.pause(seconds)
