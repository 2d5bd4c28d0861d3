"""Backfill: a job, followed by whoever asked for it until it is finished.

The lanes of all daemons write it together; as long as there is none, it is written here. Guarantees: whoever follows
may die at any point, and the job goes on where there is a daemon, or from where it was when it is followed again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from syncer import job_pages
from syncer.job import Job, find
from syncer.lifecycle import Stop, Stopping, persist
from syncer.policy import Action, decide
from syncer.postgres import Connection
from syncer.refresher import Refresher

_LOOK_SECONDS = 0.05


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
            if self._lane is None and not job_pages.lanes_alive(self._connection):
                self._lane = _Lane(self._refresh())
            return find(self._connection, job_id)
        except Exception as error:
            if decide(error) is Action.RETRY and self._connection is not None:
                self._connection.close()
                self._connection = None
            raise


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
