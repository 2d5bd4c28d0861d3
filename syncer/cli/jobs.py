"""The commands ``syncer jobs …``: list and control background jobs; and how a job is shown everywhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from syncer.apply import reindex
from syncer.base import migrations, postgres, settings
from syncer.base.formatting import elapsed
from syncer.base.postgres import Connection
from syncer.cli import parameters, render
from syncer.cli.render import Part, counted, say
from syncer.jobs import chunks, model, queue
from syncer.jobs.model import Job, JobKind, JobState

app = typer.Typer(help="List and control background jobs.", no_args_is_help=True)

_FINISHED_SHOWN_MAX = 10
_SLOW = 10  # documents per second; slower rates are shown with a decimal
_STYLES = {JobState.DONE: "green", JobState.FAILED: "red", JobState.CANCELLED: "dim"}
JobId = Annotated[int, typer.Argument(metavar="ID", min=1, help="Job id, as shown by `syncer jobs list`.")]


@app.command("list", epilog="Examples: `syncer jobs list`, `syncer jobs list 7 --json`")
def list_(
    job_id: Annotated[int | None, typer.Argument(metavar="ID", min=1, help="Only this job.")] = None,
    *,
    as_json: parameters.AsJson = False,
) -> None:
    """List unfinished and recently finished jobs, or one."""
    with _connect() as connection:
        job_workers = chunks.job_workers_alive(connection)
        jobs = model.recent(connection) if job_id is None else [model.find(connection, job_id)]
    if as_json:
        render.print_json(jobs)
    else:
        _show(render.console(sys.stdout), jobs, job_workers=job_workers)


@app.command()
def pause(job_id: JobId) -> None:
    """Pause a job after the chunks in progress."""
    with _connect() as connection:
        paused = queue.pause(connection, job_id)
    typer.echo(f"Job {paused.id} is paused. Resume it with: syncer jobs resume {paused.id}")


@app.command()
def resume(job_id: JobId) -> None:
    """Resume a paused job."""
    with _connect() as connection:
        resumed, job_workers = queue.resume(connection, job_id), chunks.job_workers_alive(connection)
    if reason := hindrance(resumed):
        typer.echo(f"Job {resumed.id} is resumed, and {reason}.")
    else:
        typer.echo(f"Job {resumed.id} continues{'' if job_workers else ' once `syncer run` is running'}.")


@app.command()
def cancel(job_id: JobId, *, yes: parameters.Yes = False) -> None:
    """Cancel a job.

    Documents already written stay. Cancelling a backfill, whole or partial, leaves the other
    documents as they were. After cancelling a load, refresh or fan-out, documents may be
    stale: the document counts as not loaded until `syncer apply` or `syncer backfill` has
    written all of it.
    """
    with _connect() as connection:
        found = model.find(connection, job_id)
        parameters.confirm(f"Cancel job {job_id}, a {found.kind} of {found.document}?", yes=yes)
        cancelled = queue.cancel(connection, job_id)
        hint = reindex.hint_after(connection, cancelled)
    left = "" if cancelled.documents_left is None else f", {cancelled.documents_left:,} were not"
    typer.echo(f"Job {cancelled.id} is cancelled: {cancelled.documents_done:,} documents were written{left}.")
    typer.echo(f"The other documents {'may be missing or stale' if cancelled.kind.is_pending else 'are unchanged'}.")
    if hint:
        typer.echo(hint)


def _connect() -> Connection:
    connection = postgres.connect(settings.load().postgres, name="jobs")
    migrations.require_current(connection)
    return connection


# What is shown


def _show(console: Console, jobs: Sequence[Job], *, job_workers: int) -> None:
    """Print unfinished jobs, and the last finished ones."""
    if not jobs:
        say(console, "There are no jobs.")
        return
    unfinished = [job for job in jobs if not job.state.is_finished]
    finished = [job for job in jobs if job.state.is_finished]
    columns = ("id", "kind", "document", "state", "done", "pace", "started (UTC)", "result")
    rows = [_cells(job) for job in unfinished + finished[:_FINISHED_SHOWN_MAX]]
    console.print(render.table(columns, rows))
    if len(finished) > _FINISHED_SHOWN_MAX:
        say(console, f"… and {len(finished) - _FINISHED_SHOWN_MAX:,} more, finished; --json lists them all")
    if unfinished and not job_workers:
        say(console, "No job worker is alive to continue them. Run: syncer run", style="yellow")


def _cells(job: Job) -> list[Part]:
    started = "" if job.started_at is None else f"{job.started_at:%Y-%m-%d %H:%M}"
    state: Part = (job.state.value, _STYLES.get(job.state, ""))
    if not job.state.is_finished and hindrance(job):
        state = ("paused", "yellow") if job.is_paused else ("suspended", "red")
    outcome = (job.error or "").partition("\n")[0] or (result(job) if job.state.is_finished else "")
    speed = "" if job.state.is_finished else pace(job)
    return [str(job.id), job.reason, job.document, state, done(job), speed, started, outcome]


def done(job: Job) -> str:
    """How many documents of a job are done."""
    if not job.documents_total or job.documents_total == job.documents_done:
        return f"{job.documents_done:,} of {counted(job.documents_total)}"
    return f"{job.documents_done:,} of {job.documents_total:,} ({100 * job.documents_done // job.documents_total}%)"


def pace(job: Job) -> str:
    """The speed of a job and the time left; or what it waits for."""
    if reason := hindrance(job):
        return reason
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


def result(job: Job) -> str:
    """What became of a job's documents."""
    written = f"{job.indexed:,} written, {job.deleted:,} deleted, {job.skipped:,} already newer"
    return f"{written}, {job.dead_lettered:,} dead-lettered"


def show_left(console: Console, job: Job) -> None:
    """Print how to find a job again after Ctrl-C; the command that created a job of given ids would create another."""
    is_of_ids = job.kind is JobKind.PARTIAL
    again = f"To see its progress: syncer jobs list {job.id}" if is_of_ids else "To follow it again: the same command"
    say(console, f"\nJob {job.id} continues wherever `syncer run` runs.")
    say(console, f"{again}; to end it: syncer jobs cancel {job.id}")
