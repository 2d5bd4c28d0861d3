"""The commands ``syncer jobs …``: list and control background jobs; and how a job is followed everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from syncer.base.errors import JobError
from syncer.cli import render
from syncer.cli.context import AsJson, Servers, Yes, confirm, open_postgres
from syncer.cli.render import Part, Show, say, show_table
from syncer.documents import suspend
from syncer.documents.registry import Document
from syncer.jobs import chunks, model, queue
from syncer.jobs.model import Job, JobState

app = typer.Typer(help="List and control background jobs.", no_args_is_help=True)

_FINISHED_SHOWN_MAX = 10
_STYLES = {JobState.DONE: "green", JobState.FAILED: "red", JobState.CANCELLED: "dim"}
JobId = Annotated[int, typer.Argument(metavar="ID", min=1, help="Job id, as shown by `syncer jobs list`.")]


@app.command("list", epilog="Examples: `syncer jobs list`, `syncer jobs list 7 --json`")
def list_(
    job_id: Annotated[int | None, typer.Argument(metavar="ID", min=1, help="Only this job.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List unfinished jobs and the last ten that finished, or one. --json lists all that are kept."""
    with open_postgres("jobs") as connection:
        job_workers = chunks.job_workers_alive(connection)
        if job_id is not None:
            jobs = [model.find(connection, job_id)]
        else:
            limit = None if as_json else _FINISHED_SHOWN_MAX
            jobs = model.unfinished(connection) + model.finished(connection, limit=limit)
    if as_json:
        render.print_json(jobs)
        return
    if not jobs:
        say("There are no jobs.")
        return
    columns = ("id", "kind", "document", "state", "done", "pace", "started (UTC)", "result")
    show_table(columns, [_cells(job) for job in jobs])
    if not (job_workers or all(job.state.is_finished for job in jobs)):
        say("No job worker is alive to continue them. Run: syncer run", style="yellow")


@app.command()
def pause(job_id: JobId) -> None:
    """Pause a job after the chunks in progress."""
    with open_postgres("jobs") as connection:
        queue.pause(connection, job_id)
    say(f"Job {job_id} is paused. Resume it with: syncer jobs resume {job_id}")


@app.command()
def resume(job_id: JobId) -> None:
    """Resume a paused job."""
    with open_postgres("jobs") as connection:
        resumed, job_workers = queue.resume(connection, job_id), chunks.job_workers_alive(connection)
    reason = render.hindrance(resumed) or ("" if job_workers else "continues once `syncer run` is running")
    say(f"Job {job_id} {reason or 'continues'}.")


@app.command()
def cancel(job_id: JobId, *, yes: Yes = False) -> None:
    """Cancel a job.

    Documents already written stay. Cancelling a backfill, whole or partial, leaves the other
    documents as they were. After cancelling a load, refresh or fan-out, documents may be
    stale: the document counts as not loaded until `syncer apply` or `syncer backfill` has
    written all of it.
    """
    with open_postgres("jobs") as connection:
        job = model.find(connection, job_id)
        confirm(f"Cancel job {job_id}, a {job.kind} of {job.document}?", yes=yes)
        cancelled = queue.cancel(connection, job_id)
    unwritten = "" if cancelled.documents_left is None else f", {cancelled.documents_left:,} were not"
    say(f"Job {job_id} is cancelled: {cancelled.documents_done:,} documents were written{unwritten}.")
    if not cancelled.kind.is_pending:
        say("The other documents are unchanged.")
        return
    name = cancelled.document
    say(f"The other documents may be missing or stale. To write them: syncer backfill {name}")
    say(f"If {cancelled.index_name} is being built: syncer index rebuild {name}", style="dim")


def _cells(job: Job) -> Sequence[Part]:
    started = "" if job.started_at is None else f"{job.started_at:%Y-%m-%d %H:%M}"
    state = (job.state.value, _STYLES.get(job.state, ""))
    outcome = (job.error or "").partition("\n")[0] or (render.result(job) if job.state.is_finished else "")
    return str(job.id), job.reason, job.document, state, render.completion(job), render.pace(job), started, outcome


def follow(servers: Servers, document: Document, job_id: int, show: Show) -> Job:
    """Follow a job to its end, show its progress, and return it; raise an error unless it was done."""
    from syncer import daemon  # noqa: PLC0415 - its packages are many, and most commands follow no job
    from syncer.worker import job_loop  # noqa: PLC0415 - likewise

    try:
        job = job_loop.follow(
            job_id,
            connect=servers.connect,
            job_worker=partial(daemon.job_worker, servers.settings, servers.index, name=servers.name),
            progress=lambda job: show(", ".join(filter(None, (render.completion(job), render.pace(job))))),
        )
    except KeyboardInterrupt:
        say(f"\nJob {job_id} continues wherever `syncer run` runs.", to=render.err)
        say(f"To see its progress: syncer jobs list {job_id}; to end it: syncer jobs cancel {job_id}", to=render.err)
        raise
    if job.state is JobState.DONE:
        return job
    if (active := servers.active(document)) is not None:
        suspend.require_active(active)
    message, _, hint = (job.error or "").partition("\n")
    ended = "was cancelled" if job.state is JobState.CANCELLED else "failed"
    raise JobError(f"Job {job_id} {ended}: {message}", hint=hint)
