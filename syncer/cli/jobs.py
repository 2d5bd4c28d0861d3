"""The commands ``syncer jobs …``: list and control background jobs."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from syncer.apply import reindex
from syncer.base import migrations, postgres, settings
from syncer.base.postgres import Connection
from syncer.cli import job_output, parameters, render
from syncer.cli.context import require_active
from syncer.jobs import chunks, model, queue
from syncer.jobs.model import Job, JobKind

app = typer.Typer(help="List and control background jobs.", no_args_is_help=True)

JobId = Annotated[
    int,
    typer.Argument(metavar="ID", min=1, help="Job id, as shown by `syncer jobs list`."),
]


class ShownState(StrEnum):
    """The states to filter jobs by."""

    UNFINISHED = "unfinished"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    def has(self, job: Job) -> bool:
        """Whether a job is in this state."""
        if self is ShownState.UNFINISHED:
            return not job.state.is_finished
        return job.is_paused and not job.state.is_finished if self is ShownState.PAUSED else job.state == self.value


@app.command("list", epilog="Examples: `syncer jobs list`, `syncer jobs list --document blogpost --state failed`")
def list_(
    *,
    document: parameters.OfDocument = None,
    state: Annotated[
        ShownState | None,
        typer.Option(metavar="STATE", help="Only jobs in this state: unfinished, paused, done, failed or cancelled."),
    ] = None,
    as_json: parameters.AsJson = False,
) -> None:
    """List unfinished and recently finished jobs."""
    with _connect() as connection:
        if document is not None:
            require_active(connection, document)
        job_workers = chunks.job_workers_alive(connection)
        seen = [
            one
            for one in model.recent(connection)
            if document in (None, one.document) and (state is None or state.has(one))
        ]
    if as_json:
        render.print_json([one.as_json() for one in seen])
    else:
        job_output.show_list(render.console(sys.stdout), seen, job_workers=job_workers)


@app.command()
def show(job_id: JobId, *, as_json: parameters.AsJson = False) -> None:
    """Show one job."""
    with _connect() as connection:
        seen = model.find(connection, job_id)
    if as_json:
        render.print_json(seen.as_json())
    else:
        job_output.show_one(render.console(sys.stdout), seen)


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
        typer.echo(f"Job {resumed.id} goes on{'' if job_workers else ' once `syncer run` is running'}.")


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
        incomplete = reindex.incomplete_by(connection, cancelled)
    left = "" if cancelled.documents_left is None else f", {cancelled.documents_left:,} were not"
    typer.echo(f"Job {cancelled.id} is cancelled: {cancelled.documents_done:,} documents were written{left}.")
    typer.echo(_CANCELLED[cancelled.kind])
    if incomplete is not None:
        typer.echo(f"{incomplete.index_name} counts as not loaded. {reindex.way_on(incomplete)}")


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
