"""The commands ``syncer jobs …``: list and control background jobs."""

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
from syncer.cli import job_output, parameters, render
from syncer.cli.render import Part, Rows, say
from syncer.jobs import chunks, model, queue
from syncer.jobs.model import Job, JobKind, JobState

app = typer.Typer(help="List and control background jobs.", no_args_is_help=True)

_FINISHED_SHOWN_MAX = 10
_STYLES = {JobState.DONE: "green", JobState.FAILED: "red", JobState.CANCELLED: "dim"}

JobId = Annotated[
    int,
    typer.Argument(metavar="ID", min=1, help="Job id, as shown by `syncer jobs list`."),
]


@app.command("list", epilog="Examples: `syncer jobs list`, `syncer jobs list 7 --json`")
def list_(
    job_id: Annotated[int | None, typer.Argument(metavar="ID", min=1, help="Only this job, in full.")] = None,
    *,
    as_json: parameters.AsJson = False,
) -> None:
    """List unfinished and recently finished jobs, or one."""
    with _connect() as connection:
        job_workers = chunks.job_workers_alive(connection)
        jobs = model.recent(connection) if job_id is None else [model.find(connection, job_id)]
    if as_json:
        render.print_json([job.as_json() for job in jobs])
    elif job_id is not None and jobs:
        _show(render.console(sys.stdout), jobs[0])
    else:
        _show_list(render.console(sys.stdout), jobs, job_workers=job_workers)


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
    if hindrance := job_output.hindrance(resumed):
        typer.echo(f"Job {resumed.id} is resumed, and {hindrance}.")
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
    typer.echo(_CANCELLED[cancelled.kind])
    if hint:
        typer.echo(hint)


_CANCELLED = {
    JobKind.BACKFILL: "The other documents are unchanged. Live changes are still followed.",
    JobKind.PARTIAL: "The other documents are unchanged. Live changes are still followed.",
    JobKind.INITIAL_LOAD: "The other documents may be missing, or built by an older definition.",
    JobKind.REFRESH: "The other documents may be stale: a table was truncated or rewritten, or writes were rejected.",
    JobKind.FAN_OUT: "The other documents may be stale: they do not show the change that caused the job.",
}


def _connect() -> Connection:
    connection = postgres.connect(settings.load().postgres, name="jobs")
    migrations.require_current(connection)
    return connection


# What is shown


def _show_list(console: Console, jobs: Sequence[Job], *, job_workers: int) -> None:
    """Print unfinished jobs, and the last finished ones."""
    if not jobs:
        say(console, "There are no jobs.")
        return
    unfinished = [job for job in jobs if not job.state.is_finished]
    finished = [job for job in jobs if job.state.is_finished]
    columns = ("id", "kind", "document", "state", "done", "rate", "left", "started (UTC)", "error")
    rows = [_cells(job) for job in unfinished + finished[:_FINISHED_SHOWN_MAX]]
    used = [at for at, _ in enumerate(columns) if any(row[at] for row in rows)]
    console.print(Rows([columns[at] for at in used], [[row[at] for at in used] for row in rows]))
    if len(finished) > _FINISHED_SHOWN_MAX:
        say(console, f"… and {len(finished) - _FINISHED_SHOWN_MAX:,} more, finished; --json lists them all")
    if unfinished and not job_workers:
        say(console, "No job worker is alive to continue them. Run: syncer run", style="yellow")


def _cells(job: Job) -> list[Part]:
    started = "" if job.started_at is None else f"{job.started_at:%Y-%m-%d %H:%M}"
    error = (job.error or "").partition("\n")[0]
    return [str(job.id), job.reason, job.document, _state(job), _done(job), _rate(job), _left(job), started, error]


def _show(console: Console, job: Job) -> None:
    """Print one job, line by line."""
    moments = {"created": job.created_at, "started": job.started_at, "finished": job.finished_at}
    facts: dict[str, Part] = {
        "job": f"{job.id}: {job.kind} of {job.document}",
        "cause": job.reason if job.cause else "",
        "index": f"{job.index_name}, revision {job.revision}",
        "where": job.where or "",
        "state": _state(job),
        "done": _done(job),
        "of these": job_output.result(job),
        "rate": _rate(job),
        "left": _left(job),
        **{name: "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC" for name, at in moments.items()},
        "error": job.error or "",
    }
    render.show_facts(console, facts.items(), indent=0)


def _state(job: Job) -> Part:
    if job.state.is_finished:
        return job.state.value, _STYLES[job.state]
    if job.is_paused:
        return "paused", "yellow"
    hindrance = job_output.hindrance(job)
    return (hindrance, "red") if hindrance else job.state.value


def _done(job: Job) -> str:
    if job.documents_total in (None, job.documents_done):
        return f"{job.documents_done:,}"
    return f"{job.documents_done:,} of {job.documents_total:,} ({100 * job.documents_done // job.documents_total}%)"


def _rate(job: Job) -> str:
    average = "" if job.documents_per_second is None else f"{job_output.rate(job.documents_per_second)}/s"
    limit = "" if job.rate is None else f"at most {job.rate:,.10g}/s"
    return ", ".join(filter(None, (average, limit)))


def _left(job: Job) -> str:
    return "" if job.eta_seconds is None else elapsed(job.eta_seconds)
