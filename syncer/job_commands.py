"""The commands ``syncer jobs …``, and what they show: what is being written in the background, and how far it is."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncer import job, job_pages, jobs, postgres, rebuild, schema, settings, terminal
from syncer.entered import whole
from syncer.job import Job, JobKind, JobState
from syncer.postgres import Connection

_FINISHED_SHOWN_MAX = 10
_FAN_OUTS_SHOWN_MAX = 3
"""So that they, who come often, leave room for others."""
_ALWAYS_SHOWN = ("id", "kind", "document", "state", "done")
_STYLES = {JobState.DONE: "green", JobState.FAILED: "red", JobState.CANCELLED: "dim"}

app = typer.Typer(
    help="What is being written in the background: backfills, fills, fan-outs, repairs.", no_args_is_help=True
)

JobId = Annotated[
    int,
    typer.Argument(metavar="ID", parser=whole(least=1), help="The job's number, as `syncer jobs list` shows it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


@app.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """Jobs that are not finished, and the last ones that are."""
    with _connect() as connection:
        seen, lanes = job.recent(connection), job_pages.lanes_alive(connection)
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in seen], indent=2))
    else:
        show_jobs(terminal.console(sys.stdout), seen, lanes=lanes)


@app.command()
def show(job_id: JobId, *, as_json: AsJson = False) -> None:
    """All that is known of a job."""
    with _connect() as connection:
        seen = job.find(connection, job_id)
    if as_json:
        typer.echo(json.dumps(seen.as_json(), indent=2))
    else:
        show_job(terminal.console(sys.stdout), seen)


@app.command()
def pause(job_id: JobId) -> None:
    """Write no more pages of a job until it is resumed; those in hand are finished."""
    with _connect() as connection:
        paused = jobs.pause(connection, job_id)
    typer.echo(f"Job {paused.id} is paused. To go on: syncer jobs resume {paused.id}")


@app.command()
def resume(job_id: JobId) -> None:
    """Go on with a job that is paused, from where it is."""
    with _connect() as connection:
        resumed, lanes = jobs.resume(connection, job_id), job_pages.lanes_alive(connection)
    if hindrance := terminal.hindrance(resumed):
        typer.echo(f"Job {resumed.id} is resumed, and {hindrance}.")
    else:
        typer.echo(f"Job {resumed.id} goes on{'' if lanes else ' once `syncer run` is running'}.")


@app.command()
def cancel(job_id: JobId) -> None:
    """End a job: what it has not written is left out, what it has written stays.

    A cancelled backfill, part or repair leaves the rest as it was. What a cancelled fill, refresh, fan-out or catch-up
    leaves out may be stale: the document counts as not filled until `syncer apply` or `syncer backfill` has written
    all of it.
    """
    with _connect() as connection:
        cancelled = jobs.cancel(connection, job_id)
        unfilled = rebuild.unfilled_by(connection, cancelled)
    left = "" if cancelled.documents_left is None else f", {cancelled.documents_left:,} were left out"
    typer.echo(f"Job {cancelled.id} is cancelled: {cancelled.documents_done:,} documents were written{left}.")
    typer.echo(_CANCELLED[cancelled.kind])
    if unfilled is not None:
        typer.echo(f"{unfilled.index_name} counts as not filled. {rebuild.way_on(unfilled)}")


_CANCELLED = {
    JobKind.BACKFILL: "What was left out is as it was: live changes go on being followed.",
    JobKind.PART: "What was left out is as it was: live changes go on being followed.",
    JobKind.REPAIR: "What was left out differs as it did: live changes go on being followed.",
    JobKind.FILL: "What was left out may be missing, or as an older definition has made it.",
    JobKind.REFRESH: "What was left out may be stale: a table was truncated, or written anew.",
    JobKind.CATCH_UP: "What was left out may be stale: it changed while its index took no documents.",
    JobKind.FAN_OUT: "What was left out may be stale: it does not show the change that caused the job.",
}


def _connect() -> Connection:
    connection = postgres.connect(settings.load().postgres, name="jobs")
    schema.require_current(connection)
    return connection


def show_jobs(console: Console, seen: list[Job], *, lanes: int) -> None:
    """Those that are not finished, and some of those that are, as a table."""
    unfinished = [one for one in seen if not one.state.is_finished]
    finished = [one for one in seen if one.state.is_finished]
    if not seen:
        console.print("There are no jobs.")
        return
    last_fan_outs = [one for one in finished if one.kind is JobKind.FAN_OUT][:_FAN_OUTS_SHOWN_MAX]
    shown = [one for one in finished if one.kind is not JobKind.FAN_OUT or one in last_fan_outs][:_FINISHED_SHOWN_MAX]
    rows = [_cells(one, is_worked_on=lanes > 0) for one in unfinished + shown]
    names = [name for name in rows[0] if name in _ALWAYS_SHOWN or any(row[name] for row in rows)]
    table = terminal.table(*names)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    console.print(table)
    if len(finished) > len(shown):
        console.print(f"… and {len(finished) - len(shown):,} more, finished; --json lists them all")
    if unfinished and not lanes:
        console.print("[yellow]Nobody works on them: is `syncer run` running?")


def _cells(one: Job, *, is_worked_on: bool) -> dict[str, str]:
    return {
        "id": str(one.id),
        "kind": escape(one.reason),
        "document": escape(one.document),
        "state": _state(one),
        "done": _done(one),
        "rate": _rate(one),
        "left": "" if one.eta_seconds is None or not is_worked_on else terminal.duration(one.eta_seconds),
        "started (UTC)": "" if one.started_at is None else f"{one.started_at:%Y-%m-%d %H:%M}",
        "error": escape((one.error or "").partition("\n")[0]),
    }


def _state(one: Job) -> str:
    if one.state.is_finished:
        return f"[{_STYLES[one.state]}]{one.state}"
    if one.is_paused:
        return "[yellow]paused"
    hindrance = terminal.hindrance(one)
    return f"[red]{hindrance}" if hindrance else one.state


def _done(one: Job) -> str:
    if one.documents_total is None:
        return ""
    if one.documents_done == one.documents_total:
        return f"{one.documents_done:,}"
    return f"{one.documents_done:,} of {one.documents_total:,} ({100 * one.documents_done // one.documents_total}%)"


def _rate(one: Job) -> str:
    said = [] if one.documents_per_second is None else [f"{terminal.rate(one.documents_per_second)}/s"]
    if one.rate is not None:
        said.append(f"at most {one.rate:,.10g}/s")
    return ", ".join(said)


def show_job(console: Console, one: Job) -> None:
    """One job, line by line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, said in _lines(one).items():
        if said:
            table.add_row(f"[bold]{name}", said)
    console.print(table)


def _lines(one: Job) -> dict[str, str]:
    moments = {"made": one.created_at, "started": one.started_at, "finished": one.finished_at}
    return {
        "job": f"{one.id}: {one.kind} of {escape(one.document)}",
        "cause": escape(one.reason) if one.cause else "",
        "index": f"{escape(one.index_name)}, generation {one.generation}",
        "where": escape(one.where or ""),
        "state": _state(one),
        "done": _done(one),
        "left out": f"{one.left_out:,} that other jobs had listed already, and write instead" if one.left_out else "",
        "of these": f"{one.indexed:,} written, {one.deleted:,} deleted, {one.superseded:,} already newer, "
        f"{one.parked:,} parked",
        "rate": _rate(one),
        "left": "" if one.eta_seconds is None else terminal.duration(one.eta_seconds),
        "spent": f"{terminal.duration(one.compose_seconds)} in Postgres, "
        f"{terminal.duration(one.index_seconds)} in Elasticsearch, all that ran at once added up",
        **{name: "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC" for name, at in moments.items()},
        "error": escape(one.error or ""),
    }
