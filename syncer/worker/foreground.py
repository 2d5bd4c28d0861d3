"""Follows a job to its end for a command, and works on it if no daemon does.

The job workers of all daemons write a job together. If there is none, this process writes it.
Guarantee: the command may be killed at any point. A daemon continues the job; without one, the next command that
follows it does.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from syncer.base.lifecycle import Stop
from syncer.base.link import Link
from syncer.base.postgres import Connection
from syncer.base.retry import retry
from syncer.jobs import chunks
from syncer.jobs.model import Job, find
from syncer.worker.job_loop import JobWorker

_LOOK_SECONDS = 0.05
_ALIVE_SECONDS = 1.0
"""How often to check for live job workers."""


class JobFollower:
    """Follows jobs, one after the other.

    Args:
        connect: Opens a connection to Postgres.
        refresh: Creates a job worker, for when no daemon has one.
        stop: Ends the waiting.
    """

    def __init__(self, *, connect: Callable[[], Connection], refresh: Callable[[], JobWorker], stop: Stop) -> None:
        self._link = Link(connect)
        self._refresh = refresh
        self._stop = stop
        self._stop_working = Stop()
        self._work: Future[None] | None = None
        """Done once the job worker that was started here has ended."""
        self._asked_at = -math.inf

    def follow(self, job_id: int, progress: Callable[[Job], None] = lambda _: None) -> Job:
        """Return once the job is finished, or its definition is suspended.

        Args:
            job_id: The job's id.
            progress: Called with the job several times a second.

        Raises:
            Stopping: It was told to stop. The job is unchanged.
            JobError: The job no longer exists.
            Exception: The error that ended the job worker started here.
        """
        while True:
            job = retry(lambda: self._look(job_id), pause=self._stop.pause, component="command")
            progress(job)
            if job.state.is_finished or job.is_suspended:
                return job
            if self._work is not None and self._work.done():
                self._work.result()
            self._stop.pause(_LOOK_SECONDS)

    def close(self) -> None:
        """End the job worker that was started here, after it has finished what is in flight."""
        self._stop_working.request()
        if self._work is not None:
            wait([self._work])
        self._link.close()

    def _look(self, job_id: int) -> Job:
        with self._link.used() as connection:
            job = find(connection, job_id)
            is_left = self._work is None and self._is_left(connection)
        if is_left:
            self._work = self._started(self._refresh())
        return job

    def _started(self, job_worker: JobWorker) -> Future[None]:
        """Run a job worker in a thread of its own."""
        work: Future[None] = Future()

        def run() -> None:
            try:
                job_worker.run(self._stop_working)
            except BaseException as error:  # noqa: BLE001 - raised in the following thread
                work.set_exception(error)
            else:
                work.set_result(None)

        threading.Thread(target=run, name="job_worker", daemon=True).start()
        return work

    def _is_left(self, connection: Connection) -> bool:
        """Whether no job worker is alive."""
        now = time.monotonic()
        if now - self._asked_at < _ALIVE_SECONDS:
            return False
        self._asked_at = now
        return not chunks.job_workers_alive(connection)
