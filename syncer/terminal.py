"""What the commands show to a person: tables on a terminal, plain lines in a pipe."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table
from rich.text import Text

from syncer.errors import SyncerError
from syncer.job import Job, JobKind, JobState
from syncer.steps import Change, Plan
from syncer.store import Document
from syncer.wording import shortened

_PIPE_COLUMNS = 400
_PLAIN_LINE_SECONDS = 5
_MINUTE, _HOUR = 60, 3600
_SLOW = 10  # documents per second, below which a decimal says something
_PREVIEW = re.compile(r"\s*Preview of field's value: '.*'(?=:|$)", re.DOTALL)


def show_error(console: Console, error: SyncerError) -> None:
    """What happened, and what to do."""
    console.print(f"[bold red]Error:[/] {escape(error.message)}", soft_wrap=True)
    if error.hint:
        console.print(escape(error.hint), style="dim", soft_wrap=True)


def console(stream: TextIO | None) -> Console:
    """Where to show things; in a pipe lines are as long as they are, unless COLUMNS says otherwise."""
    if stream is None:  # closed by whoever started us
        return Console(quiet=True)
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return Console(file=stream, highlight=False, width=width)


@contextmanager
def progress(console: Console, label: str, total: int, *, then: str) -> Iterator[Callable[[int], None]]:
    """Show how far something is: a bar on a terminal, a line every few seconds elsewhere.

    Args:
        console: Where.
        label: What is done.
        total: With how many.
        then: What is done once that is: a full bar that stays is not understood.

    Yields:
        What to call with the number that is done so far.
    """
    if not console.is_terminal:
        yield _plain_progress(console, label, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task: TaskID = shown.add_task(label, total=total)

        def tell(done: int) -> None:
            said = label if done < total else then
            shown.update(task, description=said, completed=done, total=max(total, done))

        yield tell


def _plain_progress(console: Console, label: str, total: int) -> Callable[[int], None]:
    said_at = time.monotonic()

    def tell(done: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _PLAIN_LINE_SECONDS:
            said_at = time.monotonic()
            console.print(f"{label}: {done:,} of {total:,}")

    return tell


def table(*columns: str) -> Table:
    """A table without lines; what is too long for its column goes on below, since a name that is cut is none."""
    return Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False, header_style="bold")


def show_plan(console: Console, plan: Plan) -> None:
    """What apply will do."""
    documents = table("document", "index", "generation", "what", "reads")
    for step in plan.steps:
        style = {Change.UNCHANGED: "dim", Change.REBUILD: "yellow"}.get(step.change, "green")
        documents.add_row(
            step.document.name,
            step.document.index,
            str(step.document.generation),
            f"[{style}]{step.change}",
            escape(", ".join(step.document.dependencies.tables)),
        )
    console.print(documents)
    for step in plan.steps:
        if step.reason is not None:
            console.print(f"[yellow]{step.document.name} needs a new index:[/] {escape(step.reason)}")
        if step.halted is not None:
            console.print(f"[red]{step.document.name} is halted:[/] {escape(step.halted)}")
    for one in plan.abandoned:
        console.print(f"{escape(one.index_name)} will be built no more, and dropped: it is not what is wanted now")
    for target in plan.leftovers:
        console.print(
            f"{target.index_name} was left behind by a command that did not come to its end: it will be dropped"
        )
    for name in plan.forgotten:
        console.print(f"[yellow]{escape(name)} is in force and has no folder: it is left as it is[/]")
        console.print(
            f"  syncer apply --remove {shlex.quote(name)} puts it out of force, and drops its index", style="dim"
        )
    for one in plan.removed:
        console.print(f"[red]{escape(one.name)} will be put out of force, and its index {one.index_name} dropped")
    for relation in plan.released:
        console.print(f"{escape(relation)} will no longer be captured")


@contextmanager
def doing(console: Console, what: str, *, in_pipes: bool = True) -> Iterator[None]:
    """Say what takes a while, of which nobody knows how long; to a person only, if it is not for pipes."""
    if not console.is_terminal:
        if in_pipes:
            console.print(what)
        yield
        return
    with console.status(what):
        yield


@contextmanager
def asking() -> Iterator[None]:
    """Tell a person what is waited for while servers are asked, of which one may be away."""
    with doing(console(sys.stderr), "asking Postgres, Kafka and Elasticsearch", in_pipes=False):
        yield


@contextmanager
def job_progress(console: Console, label: str) -> Iterator[Callable[[Job], None]]:
    """Show how far a job is: a bar on a terminal, a line every few seconds elsewhere.

    Yields:
        What to call with the job as it is.
    """
    if not console.is_terminal:
        yield _plain_job_progress(console, label)
        return
    columns = (
        _Label(),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[pace]}"),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task: TaskID = shown.add_task(label, total=None, done="", pace="")

        def show(job: Job) -> None:
            done, total = job.documents_done, job.documents_total
            shown.update(task, completed=done, total=total, done=f"{done:,}/{_total(job)}", pace=pace(job))

        yield show


class _Label(ProgressColumn):
    """What is being done; where it is narrow it is cut, and not the numbers."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


def _plain_job_progress(console: Console, label: str) -> Callable[[Job], None]:
    said_at = time.monotonic()

    def show(job: Job) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _PLAIN_LINE_SECONDS:
            said_at = time.monotonic()
            console.print(f"{label}: {job.documents_done:,} of {_total(job)}, {pace(job)}".removesuffix(", "))

    return show


def _total(job: Job) -> str:
    return "?" if job.documents_total is None else f"{job.documents_total:,}"


def pace(job: Job) -> str:
    """How fast a job goes, and how long it will take; or what it waits for."""
    if hindered := hindrance(job):
        return hindered
    if job.state in (JobState.NEW, JobState.LISTING):
        return "finding ids"
    if job.state is JobState.WRITTEN:
        return "looking for what only Elasticsearch has"
    if job.documents_left == 0:
        return "finishing"
    if job.documents_per_second is None:
        return ""
    left = "" if job.eta_seconds is None else f", {duration(job.eta_seconds)} left"
    return f"{rate(job.documents_per_second)} documents/s{left}"


def hindrance(job: Job) -> str:
    """Why nobody works on a job, if that is so; empty if it goes on where there is a lane."""
    if job.is_paused:
        return f"paused; to go on: syncer jobs resume {job.id}"
    if job.is_unwell:
        return "waits: the index takes no documents"
    return "waits: the document is halted" if job.is_halted else ""


def rate(documents_per_second: float) -> str:
    """A rate, also one that is almost nothing."""
    decimals = 1 if 0 < documents_per_second < _SLOW else 0
    return f"{documents_per_second:,.{decimals}f}"


def duration(seconds: float) -> str:
    """Seconds, to the second or to the minute."""
    seconds = round(seconds)
    if seconds < _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min {seconds % _MINUTE} s"
    return f"{seconds // _HOUR} h {seconds % _HOUR // _MINUTE} min"


def show_job(console: Console, job: Job) -> None:
    """What became of the documents that a job has written."""
    console.print(
        f"{job.document}: {job.indexed:,} written, {job.deleted:,} deleted, "
        f"{job.superseded:,} already newer, {job.parked:,} parked"
    )


def show_rolled_back(console: Console, serving: Document, *, before: Document) -> None:
    """What is searched after a rollback."""
    console.print(f"{escape(serving.index)} is searched in {serving.index_name} again")
    console.print(f"{before.index_name} is kept up to date; to go back to it: the same command again", style="dim")
    if (serving.dependencies, serving.index_body) != (before.dependencies, before.index_body):
        console.print(
            "Its definition is another one. If the config folder has the one that was rolled back, take that back too: "
            "`syncer apply` would build an index for it again",
            style="yellow",
            soft_wrap=True,
        )


def show_taken_up(console: Console, job: Job) -> None:
    """What was done before, of a job that is gone on with."""
    since = job.started_at or job.created_at
    console.print(
        f"Going on with job {job.id}, begun {since:%Y-%m-%d %H:%M:%S} UTC: "
        f"{job.documents_done:,} of {_total(job)} are written already",
        soft_wrap=True,
    )


def show_left(console: Console, job: Job, *, is_building: bool) -> None:
    """What goes on, or waits, after somebody has stopped to look."""
    console.print(
        f"\nJob {job.id} is left as it is, and goes on wherever `syncer run` runs.\n"
        f"{_way_back(job, is_building=is_building)}; to end it: syncer jobs cancel {job.id}",
        markup=False,
        soft_wrap=True,
    )


def show_unserved(console: Console, building: Document) -> None:
    """What waits, after somebody has stopped to look at a new index that is filled."""
    console.print(
        f"\n{building.index_name} is filled, and does not serve yet.\n"
        f"To go on: syncer backfill {building.name} --rebuild; to give it up: --abandon",
        markup=False,
        soft_wrap=True,
    )


def _way_back(job: Job, *, is_building: bool) -> str:
    """How to follow a job again; the same command with other ids would be another job."""
    limit = "" if job.rate is None else f" --rate {job.rate:.10g}"
    command = f"To take it up again: syncer backfill {job.document}"
    if is_building:
        return f"{command} --rebuild{limit}"
    if job.kind is JobKind.FILL:
        return "To take it up again: syncer apply"
    if job.kind is JobKind.BACKFILL:
        return f"{command}{limit}"
    if job.where is not None:
        return f"{command} --where {shlex.quote(job.where)}{limit}"
    return f"How far it is: syncer jobs show {job.id}"


def brief(error: str) -> str:
    """What was said of a document that could not be written, without the value that Elasticsearch quotes."""
    return str(shortened(_PREVIEW.sub("", error).replace(".: ", ": ")))
