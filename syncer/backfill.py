"""Backfill: a job, followed by whoever asked for it until it is finished.

The lanes of all daemons write it together; as long as there is none, or none of them gets on with it, it is written
here. Guarantees: whoever follows
may die at any point, and the job goes on where there is a daemon, or from where it was when it is followed again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from syncer import job_pages
from syncer.job import Job, find
from syncer.lifecycle import Stop, Stopping, persist
from syncer.policy import Action, decide
from syncer.postgres import Connection
from syncer.refresher import Refresher

_LOOK_SECONDS = 0.05
_ALIVE_SECONDS = 1.0
"""How often to ask whether there is a lane."""


class Follower:
    """Follows jobs, one after the other.

    Args:
        connect: Opens a connection to Postgres.
        refresh: Makes a lane, for when no daemon has one.
        stop: Ends the waiting.
    """

    def __init__(self, *, connect: Callable[[], Connection], refresh: Callable[[], Refresher], stop: Stop) -> None:
        self._connect = connect
        self._refresh = refresh
        self._stop = stop
        self._connection: Connection | None = None
        self._lane: _Lane | None = None
        self._seen: tuple[object, ...] = ()
        self._moved_at = self._asked_at = -math.inf

    def follow(self, job_id: int, progress: Callable[[Job], None] = lambda _: None) -> Job:
        """Return once the job is finished, or its document is halted.

        Args:
            job_id: Which.
            progress: Told how far it is, several times a second.

        Raises:
            Stopping: It was told to stop. The job is as it was.
            JobError: There is no such job any more.
            Exception: What ended the lane that was started here.
        """
        while True:
            job = persist(lambda: self._look(job_id), pause=self._stop.pause, stage="backfill")
            progress(job)
            if job.state.is_finished or job.is_halted:
                return job
            if self._lane is not None:
                self._lane.require_well()
            self._stop.pause(_LOOK_SECONDS)

    def close(self) -> None:
        """End the lane that was started here; what it has in flight is finished first."""
        if self._lane is not None:
            self._lane.end()
        if self._connection is not None:
            self._connection.close()
        self._connection = self._lane = None

    def _look(self, job_id: int) -> Job:
        try:
            if self._connection is None:
                self._connection = self._connect()
            job = find(self._connection, job_id)
            is_left_alone = self._lane is None and self._is_left_alone(self._connection, job)
        except Exception as error:
            if decide(error) is Action.RETRY and self._connection is not None:
                self._connection.close()
                self._connection = None
            raise
        if is_left_alone:
            self._lane = _Lane(self._refresh())
        return job

    def _is_left_alone(self, connection: Connection, job: Job) -> bool:
        """Whether nobody writes it: no lane is alive, or those that are have not moved it for long, as if stopped."""
        now = time.monotonic()
        seen = (job.id, job.state, job.is_paused, job.documents_done)
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
        if now - self._moved_at > job_pages.STALLED_SECONDS:
            return True
        if now - self._asked_at < _ALIVE_SECONDS:
            return False
        self._asked_at = now
        return not job_pages.lanes_alive(connection)


class _Lane:
    """A refresher in a thread of its own."""

    def __init__(self, refresher: Refresher) -> None:
        self._refresher = refresher
        self._stop = Stop()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="refresher", daemon=True)
        self._thread.start()

    def require_well(self) -> None:
        """Pass on what has ended it, if anything has."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Let it finish what is in flight, and wait for that."""
        self._stop.request()
        self._thread.join()

    def _run(self) -> None:
        try:
            with suppress(Stopping):
                self._refresher.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - passed on to whoever follows
            self._failure = error
