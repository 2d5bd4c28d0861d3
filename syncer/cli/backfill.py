"""The commands ``syncer backfill`` and ``syncer index …``: write documents again, in place or into a new index."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from syncer.apply import reindex
from syncer.base.errors import DefinitionError
from syncer.cli import parameters, render
from syncer.cli.context import open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.parameters import finite
from syncer.cli.render import say
from syncer.documents import suspend
from syncer.jobs import queue
from syncer.jobs.model import JobKind

app = typer.Typer(help="Rebuild an index, or give that up.", no_args_is_help=True)


def backfill(
    document: parameters.Document,
    *,
    rate: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0.1, callback=finite, help="Maximum documents per second.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Only documents whose row in the root table meets this SQL condition."),
    ] = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Write every document again, in place.

    Deletes documents that the SELECT no longer returns. Safe beside live traffic. Running
    daemons share the work; without one, the command does it itself. If it is interrupted,
    the same command resumes it. To write to a new index instead: `syncer index rebuild`.
    """
    out, err = render.console(None if as_json else sys.stdout), render.console(sys.stderr)
    with open_parts("backfill") as parts:
        chosen = parts.document(document)
        suspend.require_active(chosen)
        kind = JobKind.BACKFILL if where is None else JobKind.PARTIAL
        job = queue.create(parts.connection, chosen, kind, where=where, rate=rate, resumes=True)
        if job is None:
            raise DefinitionError(
                f"{chosen.index_name} is no longer active", hint="It was changed meanwhile. Try again."
            )
        done = LoadProgress(parts, out=out, err=err).follow(chosen, job.id)
    if as_json:
        render.print_json({"document": document, "index_name": chosen.index_name, "job": done})


@app.command(epilog="Example: `syncer index rebuild blogpost`")
def rebuild(
    document: parameters.Document,
    *,
    despite_dead_lettered: parameters.DespiteDeadLettered = False,
) -> None:
    """Build a new index and switch searches to it.

    Creates it from the applied index.json and writes every document. Searches switch to it
    atomically when it is complete and verified, and the index before is dropped. If it is
    interrupted, the same command resumes it. With --despite-dead-lettered, the index may lack
    documents that cannot be written.
    """
    out, err = render.console(sys.stdout), render.console(sys.stderr)
    with open_parts("index") as parts:
        parts.document(document)
        initial_load = reindex.begin(parts.connection, parts.indices, document, report=partial(say, out))
        LoadProgress(parts, out=out, err=err, despite_dead_lettered=despite_dead_lettered).initial_load(initial_load)


@app.command(epilog="Example: `syncer index abort blogpost --yes`")
def abort(document: parameters.Document, *, yes: parameters.Yes = False) -> None:
    """Drop the new index that is being built.

    Searches still use the current index.
    """
    with open_parts("index") as parts:
        parts.document(document)
        found = reindex.building(parts.connection, document)
        parameters.confirm(f"Drop {found.index_name}, which is being built?", yes=yes)
        dropped = reindex.abort(parts.connection, parts.indices, document)
    typer.echo(f"Dropped {dropped.index_name}")
