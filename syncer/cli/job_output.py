"""The output of commands about jobs: progress, speed, what a job waits for, and its result."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console

from syncer.base.formatting import elapsed
from syncer.cli import render
from syncer.cli.render import Part, Rows, say
from syncer.jobs.model import Job, JobKind, JobState

_FINISHED_SHOWN_MAX = 10
_FAN_OUTS_SHOWN_MAX = 3
"""Fan-outs are frequent: this leaves room for the others."""
_ALWAYS_SHOWN = ("id", "kind", "document", "state", "done")
_STYLES = {JobState.DONE: "green", JobState.FAILED: "red", JobState.CANCELLED: "dim"}
_SLOW = 10  # documents per second; slower rates are shown with a decimal
_RATE_SECONDS = 10.0
"""The window over which the rate of a job that is followed is measured."""


# Following one job


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
    say(console, f"{job.document}: {_result(job)}")


def _result(job: Job) -> str:
    written = f"{job.indexed:,} written, {job.deleted:,} deleted, {job.skipped:,} already newer"
    return f"{written}, {job.dead_lettered:,} dead-lettered"


def show_left(console: Console, job: Job) -> None:
    """Print how to find a job again after Ctrl-C; the command that created a job of given ids would create another."""
    is_of_ids = job.kind is JobKind.PARTIAL and job.where is None
    again = f"To see its progress: syncer jobs show {job.id}" if is_of_ids else "To follow it again: the same command"
    say(
        console,
        f"\nJob {job.id} continues wherever `syncer run` runs.\n{again}; to end it: syncer jobs cancel {job.id}",
    )


# Lists and details


def show_list(console: Console, seen: Sequence[Job], *, job_workers: int) -> None:
    """Print unfinished jobs, and some of the finished ones."""
    if not seen:
        say(console, "There are no jobs.")
        return
    unfinished = [one for one in seen if not one.state.is_finished]
    finished = [one for one in seen if one.state.is_finished]
    last_fan_outs = [one for one in finished if one.kind is JobKind.FAN_OUT][:_FAN_OUTS_SHOWN_MAX]
    shown = [one for one in finished if one.kind is not JobKind.FAN_OUT or one in last_fan_outs][:_FINISHED_SHOWN_MAX]
    rows = [_cells(one, is_worked_on=job_workers > 0) for one in unfinished + shown]
    names = [name for name in rows[0] if name in _ALWAYS_SHOWN or any(row[name] for row in rows)]
    console.print(Rows(names, [[row[name] for name in names] for row in rows]))
    if len(finished) > len(shown):
        say(console, f"… and {len(finished) - len(shown):,} more, finished; --json lists them all")
    if unfinished and not job_workers:
        say(console, "No job worker is alive to continue them. Run: syncer run", style="yellow")


def _cells(one: Job, *, is_worked_on: bool) -> dict[str, Part]:
    return {
        "id": str(one.id),
        "kind": one.reason,
        "document": one.document,
        "state": _state(one),
        "done": _done(one),
        "rate": _rate(one),
        "left": "" if one.eta_seconds is None or not is_worked_on else elapsed(one.eta_seconds),
        "started (UTC)": "" if one.started_at is None else f"{one.started_at:%Y-%m-%d %H:%M}",
        "error": (one.error or "").partition("\n")[0],
    }


def _state(one: Job) -> Part:
    if one.state.is_finished:
        return one.state.value, _STYLES[one.state]
    if one.is_paused:
        return "paused", "yellow"
    hindered = hindrance(one)
    return (hindered, "red") if hindered else one.state.value


def _done(one: Job) -> str:
    if one.documents_total is None:
        return ""
    if one.documents_done == one.documents_total:
        return f"{one.documents_done:,}"
    return f"{one.documents_done:,} of {one.documents_total:,} ({100 * one.documents_done // one.documents_total}%)"


def _rate(one: Job) -> str:
    said = [] if one.documents_per_second is None else [f"{rate(one.documents_per_second)}/s"]
    if one.rate is not None:
        said.append(f"at most {one.rate:,.10g}/s")
    return ", ".join(said)


def show_one(console: Console, one: Job) -> None:
    """Print one job, line by line."""
    moments = {"made": one.created_at, "started": one.started_at, "finished": one.finished_at}
    facts: dict[str, Part] = {
        "job": f"{one.id}: {one.kind} of {one.document}",
        "cause": one.reason if one.cause else "",
        "index": f"{one.index_name}, revision {one.revision}",
        "where": one.where or "",
        "state": _state(one),
        "done": _done(one),
        "of these": _result(one),
        "rate": _rate(one),
        "left": "" if one.eta_seconds is None else elapsed(one.eta_seconds),
        **{name: "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC" for name, at in moments.items()},
        "error": one.error or "",
    }
    render.show_facts(console, facts.items(), indent=0)
