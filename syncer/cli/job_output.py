"""The progress of jobs, for the commands that follow them: speed, what a job waits for, and its result."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console

from syncer.base.formatting import elapsed
from syncer.cli import render
from syncer.cli.render import say
from syncer.jobs.model import Job, JobKind, JobState

_SLOW = 10  # documents per second; slower rates are shown with a decimal
_RATE_SECONDS = 10.0
"""The window over which the rate of a job that is followed is measured."""


@contextmanager
def progress(console: Console, label: str) -> Iterator[Callable[[Job], None]]:
    """Show the progress of a job, with its rate in the last seconds."""
    seen: deque[tuple[float, int]] = deque()
    with render.progress(console, label) as tell:

        def show(job: Job) -> None:
            seen.append((time.monotonic(), job.documents_done))
            while len(seen) > 1 and seen[-1][0] - seen[1][0] >= _RATE_SECONDS:
                seen.popleft()
            (began, before), (now, done) = seen[0], seen[-1]
            measured = (done - before) / (now - began) if now - began >= 1 else None
            tell(job.documents_done, job.documents_total, pace(replace(job, documents_per_second=measured)))

        yield show


def pace(job: Job) -> str:
    """The speed of a job and the time left; or what it waits for."""
    if hindered := hindrance(job):
        return hindered
    if job.state is JobState.NEW:
        return "has not begun"
    if job.documents_left == 0:
        return "finding documents that only Elasticsearch has" if job.state is JobState.CLEANING_UP else "finishing"
    if job.documents_per_second is None:
        return ""
    left = "" if job.eta_seconds is None else f", {elapsed(job.eta_seconds)} left"
    return f"{rate(job.documents_per_second)} documents/s{left}"


def hindrance(job: Job) -> str:
    """Why no worker may continue a job; empty if one may."""
    if job.is_paused:
        return f"paused; to resume: syncer jobs resume {job.id}"
    return "waits: the document is suspended" if job.is_suspended else ""


def rate(documents_per_second: float) -> str:
    """A rate, with a decimal if it is low."""
    decimals = 1 if 0 < documents_per_second < _SLOW else 0
    return f"{documents_per_second:,.{decimals}f}"


def show_result(console: Console, job: Job) -> None:
    """Print the outcome of a job's documents."""
    say(console, f"{job.document}: {result(job)}")


def result(job: Job) -> str:
    """What became of a job's documents."""
    written = f"{job.indexed:,} written, {job.deleted:,} deleted, {job.skipped:,} already newer"
    return f"{written}, {job.dead_lettered:,} dead-lettered"


def show_left(console: Console, job: Job) -> None:
    """Print how to find a job again after Ctrl-C; the command that created a job of given ids would create another."""
    is_of_ids = job.kind is JobKind.PARTIAL and job.where is None
    again = f"To see its progress: syncer jobs list {job.id}" if is_of_ids else "To follow it again: the same command"
    say(
        console,
        f"\nJob {job.id} continues wherever `syncer run` runs.\n{again}; to end it: syncer jobs cancel {job.id}",
    )
