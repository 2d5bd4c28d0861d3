"""The commands ``syncer backfill`` and ``syncer index …``: write documents again, in place or into a new index."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated

import typer

from syncer.apply import reindex
from syncer.base.errors import ConfigError, DefinitionError
from syncer.base.model import ID_BYTES_MAX
from syncer.cli import parameters, render
from syncer.cli.context import open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.render import say
from syncer.documents import suspend
from syncer.jobs import listing, queue
from syncer.jobs.model import JobKind

app = typer.Typer(help="Rebuild an index, or give that up.", no_args_is_help=True)


def backfill(
    document: parameters.Document,
    *,
    ids: Annotated[
        typer.FileText | None,
        typer.Option(
            metavar="FILE",
            encoding="utf-8-sig",
            errors="replace",
            help="Only the ids in this file, one per line; - for standard input.",
        ),
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
        if ids is None:
            job = queue.create(parts.connection, chosen, JobKind.BACKFILL, resumes=True)
        else:
            chunk = parts.settings.worker.batch_documents_max
            job = listing.create_listed(parts.connection, chosen, _read(ids), chunk=chunk)
        if job is None:
            raise DefinitionError(
                f"{chosen.index_name} is no longer active", hint="It was changed meanwhile. Try again."
            )
        done = LoadProgress(parts, out=out, err=err).follow(chosen, job.id)
    if as_json:
        render.print_json({"document": document, "index_name": chosen.index_name, "job": done})


def _read(lines: Iterable[str]) -> Iterator[str]:
    """The ids on the lines of a file; empty lines are left out."""
    for place, line in enumerate(lines, start=1):
        id_ = line.strip()
        if "\0" in id_ or len(id_.encode()) > ID_BYTES_MAX:
            raise ConfigError(
                f"Line {place} of --ids is not a valid id: an id has 1 to {ID_BYTES_MAX} bytes, without zero bytes",
                hint="Check the file: it must have one id per line. Nothing was written.",
            )
        if id_:
            yield id_


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
