"""The commands ``syncer index …``: rebuild a document's index, or give that up."""

from __future__ import annotations

import sys
from functools import partial

import typer

from syncer.apply import reindex
from syncer.cli import parameters, render
from syncer.cli.context import open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.render import say

app = typer.Typer(help="Rebuild an index, or give that up.", no_args_is_help=True)


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
