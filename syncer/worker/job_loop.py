"""The job worker: takes chunks of jobs, has them written, and records progress.

Live changes have workers of their own, so a job of any size never delays them in a queue. The job worker also gives way
to them: see `syncer.indexing.flow_control`. Its main thread takes chunks, hands them to writers, and finishes them.
Meanwhile it renews its claim on them. For the other steps of a job, see `syncer.jobs.steps`.

Guarantees:

- A chunk is finished only when each of its documents is.
- If a job worker dies, another one gets its chunks. If it is told to stop, it gives them back at once.
- A chunk stays in hand however long a server takes for it.
- A write that is retried is given up once its chunk is no longer needed.
- No job waits long for an unavailable index.

The job worker also records the last assigned version: see `syncer.indexing.version_log`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import elasticsearch
import psycopg
import structlog

from syncer.base import metrics
from syncer.base.errors import DocumentError, UnavailableError
from syncer.base.lifecycle import Abandoned, Stop, Stopping
from syncer.base.postgres import Connection
from syncer.base.retry import Trouble, retry
from syncer.base.write_report import WriteReport
from syncer.documents import registry
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover, version_log
from syncer.indexing.flow_control import FlowControl, LiveTraffic
from syncer.indexing.pool import WriterPool
from syncer.jobs import chunks
from syncer.jobs.chunks import Chunk
from syncer.jobs.steps import JobSteps
from syncer.recovery import resume

_KEEP_SECONDS = chunks.STALLED_SECONDS / 4
_WAIT_SECONDS = 1.0
"""How long to wait for a chunk before serving the others."""
_HANDS_SECONDS = 5.0
"""How long a step that is due waits for the chunks in hand; it may take so long that another job worker gets them."""
_LOOK_SECONDS = 1.0
_IDLE_SECONDS = 0.1
"""How often to look for a job while there is nothing to do."""
_STAYS_SUSPENDED = (DocumentError, UnavailableError, Abandoned, elasticsearch.ApiError, elasticsearch.TransportError)
_ATTEMPT_SECONDS = 5.0
"""How often to try to write a suspended document."""
_NOTE_SECONDS = 10.0
"""How often to record the last version."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Hand:
    """A chunk in hand.

    Args:
        chunk: The chunk.
        lost: Set once it is no longer ours: its job was cancelled, or another job worker got it.
        write: The pending outcome of its documents.
    """

    chunk: Chunk
    lost: threading.Event = field(default_factory=threading.Event)
    write: Future[WriteReport] = field(default_factory=Future)


def _is_ours(hand: _Hand) -> bool:
    return not hand.lost.is_set()


class JobWorker:
    """Writes chunks of jobs, and advances jobs whose chunks are finished.

    Args:
        connect: Opens a connection to Postgres.
        index: Elasticsearch.
        name: For the log, and for ``pg_stat_activity``.
        in_flight_max: The largest number of concurrent bulk requests.
        batch_documents_max: The largest number of documents composed together.
        batch_bytes_max: The largest size of those, as far as it is known in advance.
        traffic: The live changes of this process, to give way to.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        index: Index,
        name: str = "job_worker",
        in_flight_max: int = 4,
        batch_documents_max: int = 1000,
        batch_bytes_max: int = 8 * 1024 * 1024,
        traffic: LiveTraffic | None = None,
    ) -> None:
        self._connect = connect
        self._index = index
        self._name = name
        self._stop = Stop()
        flow = FlowControl(
            slices_max=in_flight_max, documents_max=batch_documents_max, bytes_max=batch_bytes_max, traffic=traffic
        )
        self._writers = WriterPool(
            connect=connect,
            index=index,
            pause=self._pause,
            name=name,
            flow=flow,
            threads=in_flight_max,
        )
        self._steps = JobSteps(connect=connect, index=index, chunk_documents=batch_documents_max, name=name)
        self._connection: Connection | None = None
        self._job_worker = 0
        self._hands: list[_Hand] = []
        self._attempts: dict[str, Future[WriteReport]] = {}
        """Attempts to write a suspended document, by index."""
        self._kept_at = self._looked_at = self._noted_at = self._attempted_at = 0.0
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

    def run_once(self) -> float:
        """Write chunks until none is left or a job needs another step; then take the steps that are due.

        The steps do not wait long for chunks in hand, which may be held up by a server or a locked table.

        Returns:
            How many seconds to rest before the next turn; 0 if this one has done anything.

        Raises:
            Stopping: It was told to stop while a server was down, or in the middle of a step.
            Exception: An error that the policy calls RETRY or FATAL. After `close` you may call it again.
        """
        self._writers.tell()
        has_jobs = chunks.is_any_to_write(self._connected()) or bool(self._hands)
        done = self._write_chunks() if has_jobs else 0
        if has_jobs and not self._stop.is_requested:
            done += self._steps.take(self._connected(), self._stop)
        self._note_version(keeps=not self._hands)
        return 0 if done else _IDLE_SECONDS

    def close(self) -> None:
        """Finish what is being written, release the other chunks, and close the connections."""
        if not self._writers.close(seconds=self._stop.seconds_left):
            self._log.warning("component.gave_up", component=self._name)
        with suppress(psycopg.Error, Stopping):
            self._finish()
        self._give_back()

    def _give_back(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):  # if this fails, the end of our session releases them
                chunks.release(self._connection, [hand.chunk for hand in self._hands])
            self._connection.close()
        self._connection = None
        self._hands.clear()
        self._attempts.clear()

    def _attempt(self) -> None:
        try:
            if seconds := self.run_once():
                self._trouble.over()
                self._stop.wait(seconds)
        except Stopping:
            raise
        except Exception:
            self._writers.drop()
            self._give_back()
            raise

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            # Also without work: after a failover, the changes that it lost must be made good.
            failover.enter(self._connection, self._index)
            self._job_worker = chunks.enter(self._connection)
        return self._connection

    # Chunks

    def _write_chunks(self) -> int:
        """Write chunks until none is left or a step is due; then finish those in hand, as far as that is soon done.

        Returns:
            How many chunks are finished.
        """
        finished = 0
        while not self._stop.is_requested and not self._is_step_due():
            if not (self._writers.has_room and self._take()):
                if not self._hands:
                    return finished
                self._wait()
            finished += self._finish()
        deadline = time.monotonic() + _HANDS_SECONDS
        while self._hands and not self._stop.is_requested and time.monotonic() < deadline:
            self._wait()
            finished += self._finish()
        return finished

    def _take(self) -> bool:
        """Take a chunk and have it written; return whether there was one."""
        chunk = chunks.take(self._connected(), self._job_worker)
        if chunk is None:
            return False
        hand = _Hand(chunk=chunk)
        self._hands.append(hand)
        hand.write = self._writers.submit(
            chunk.index_name,
            chunk.ids,
            everywhere=chunk.everywhere,
            origin={"job": chunk.job},
            is_needed=partial(_is_ours, hand),
        )
        return True

    def _wait(self) -> None:
        """Wait for a chunk to be written, and keep the claim on all of them meanwhile.

        Raises:
            Stopping: The time to stop is up.
        """
        wait([hand.write for hand in self._hands], timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
        if self._stop.is_overdue:
            raise Stopping
        now = time.monotonic()
        if self._hands and now - self._kept_at >= _KEEP_SECONDS:
            self._kept_at = now
            with suppress(psycopg.Error):  # if Postgres is down, another job worker may get them
                self._keep()

    def _keep(self) -> None:
        """Renew the claim on the chunks in hand; give up those that are lost."""
        lost = chunks.keep(self._connected(), [hand.chunk for hand in self._hands])
        for hand in self._hands:
            if hand.chunk in lost:
                hand.lost.set()

    def _done(self) -> list[_Hand]:
        """The chunks that have no document being written any more."""
        # Rule: a-chunk-is-done-when-written.
        return [hand for hand in self._hands if hand.write.done()]

    def _finish(self) -> int:
        """Record the chunks that are written; return how many.

        Raises:
            Stopping: It was told to stop before all of them were written.
            Exception: An error that the policy calls FATAL.
        """
        written: list[tuple[Chunk, WriteReport]] = []
        done = self._done()
        for hand in done:
            try:
                written.append((hand.chunk, hand.write.result()))
            except Abandoned:
                pass
            except DocumentError:  # it is suspended: the chunk waits with its job
                chunks.release(self._connected(), [hand.chunk])
        if written:
            chunks.finish(self._connected(), written)
            self._trouble.over()
        self._hands = [hand for hand in self._hands if hand not in done]
        for _, report in written:
            metrics.chunks_written(report)
        return len(written)

    def _pause(self, seconds: float) -> None:
        self._stop.pause(seconds)

    # Upkeep

    def _try_suspended(self) -> None:
        """Try to write each suspended document every few seconds, in the writers' threads; resume those that can be."""
        for index_name, attempt in list(self._attempts.items()):
            if attempt.done():
                del self._attempts[index_name]
                with suppress(
                    DocumentError, UnavailableError, Abandoned, elasticsearch.ApiError, elasticsearch.TransportError
                ):
                    attempt.result()
                    resume.resume(self._connected(), index_name)
        now = time.monotonic()
        if now - self._attempted_at < _ATTEMPT_SECONDS:
            return
        self._attempted_at = now
        for index_name, ids in registry.suspended(self._connected()).items():
            if index_name not in self._attempts:
                self._attempts[index_name] = self._writers.submit(index_name, ids, resumes=True)

    def _note_version(self, *, keeps: bool = False) -> None:
        """Record the last version from time to time, also where a restore of Postgres does not undo it.

        That is Elasticsearch. It may hang, so it is not called while chunks are in hand.
        """
        now = time.monotonic()
        if now - self._noted_at >= _NOTE_SECONDS:
            noted = version_log.note(self._connected())
            if keeps:
                self._index.write_assigned(*noted)
            self._noted_at = now

    def _is_step_due(self) -> bool:
        """Whether a job needs a step before more chunks are taken. Checked at intervals, along with other upkeep."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now
        self._note_version()
        chunks.reclaim(self._connected())
        self._try_suspended()
        return bool(self._steps.due(self._connected()))
