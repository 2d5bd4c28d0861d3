"""Follows a job to its end for a command, and works on it if no daemon does.

The job workers of all daemons write a job together. If there is none, this process writes it.
Guarantee: the command may be killed at any point. A daemon continues the job; without one, the next command that
follows it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count

from syncer.base.lifecycle import Stop
from syncer.base.postgres import Connection, Link
from syncer.base.retry import retry
from syncer.jobs import chunks
from syncer.jobs.model import Job, find
from syncer.worker.job_loop import JobWorker

_LOOK_SECONDS = 0.05
_ALIVE_TURNS = 20
"""After how many looks to check for live job workers."""


def follow(
    job_id: int,
    *,
    connect: Callable[[], Connection],
    job_worker: Callable[[], JobWorker],
    progress: Callable[[Job], None] = lambda _: None,
) -> Job:
    """Return once a job is finished, or its definition is suspended.

    Args:
        job_id: The job's id.
        connect: Opens a connection to Postgres.
        job_worker: Creates a job worker, for when no daemon has one. What it has in flight is finished in any case.
        progress: Called with the job several times a second.

    Raises:
        JobError: The job no longer exists.
        Exception: What ``progress`` raises, or the error that ended the job worker.
    """
    link, stop, work = Link(connect), Stop(), Future[None]()
    thread: threading.Thread | None = None

    def look(*, asks: bool) -> tuple[Job, bool]:
        with link.used() as connection:
            return find(connection, job_id), asks and not chunks.job_workers_alive(connection)

    def write() -> None:
        try:
            job_worker().run(stop)
        except BaseException as error:  # noqa: BLE001 - raised in the following thread
            work.set_exception(error)
        else:
            work.set_result(None)

    turns = count()
    try:
        while True:
            asks = thread is None and next(turns) % _ALIVE_TURNS == 0
            job, is_alone = retry(partial(look, asks=asks), pause=time.sleep, component="command")
            progress(job)
            if job.state.is_finished or job.is_suspended:
                return job
            if is_alone:
                thread = threading.Thread(target=write, name="job_worker", daemon=True)
                thread.start()
            if work.done():
                work.result()
            time.sleep(_LOOK_SECONDS)
    finally:
        stop.request()
        if thread is not None:
            thread.join()
        link.close()
