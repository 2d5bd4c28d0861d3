"""The commands ``syncer dead-letters …``: list and retry dead letters."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from syncer.base.errors import ConfigError
from syncer.base.formatting import amount, shown_id
from syncer.cli import parameters, render
from syncer.cli.context import open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.render import say
from syncer.documents import registry, suspend
from syncer.indexing import dead_letters
from syncer.jobs import listing

_SHOWN_MAX = 10_000

app = typer.Typer(help="List or retry documents that could not be written.", no_args_is_help=True)


@app.command("list", epilog="Example: `syncer dead-letters list blogpost --limit 20`")
def list_(
    document: parameters.MaybeDocument = None,
    *,
    limit: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, max=_SHOWN_MAX, help="Number of dead letters to list.")
    ] = 20,
    as_json: parameters.AsJson = False,
) -> None:
    """List dead letters by kind and one by one."""
    with open_parts("dead-letters") as parts:
        if document is not None:
            parts.document(document)
        kinds = dead_letters.kinds(parts.connection, document)
        letters = dead_letters.page(parts.connection, document=document, limit=limit)
    total = sum(kind.letters for kind in kinds)
    if as_json:
        render.print_json({"letters": total, "kinds": kinds, "shown": letters})
        return
    console = render.console(sys.stdout)
    if not kinds:
        say(console, "There are no dead letters.")
        return
    rows = [
        (
            (f"{kind.letters:,}", "red"),
            kind.index_name,
            kind.kind,
            f"{kind.first_at:%Y-%m-%d %H:%M:%S}",
            shown_id(kind.example),
        )
        for kind in kinds
    ]
    console.print(render.table(("letters", "index", "error", "since", "such as"), rows))
    say(console)
    for letter in letters:
        say(console, (f"{letter.document} {shown_id(letter.id)}", "bold"), f"  {letter.failed_at:%Y-%m-%d %H:%M:%S}")
        say(console, f"  {letter.error}")
    if len(letters) < total:
        say(console, f"… and {total - len(letters):,} more: --limit {min(total, _SHOWN_MAX)}", style="dim")
    say(
        console,
        "\nFix the data, and the document is written by itself. Or fix select.sql or index.json, and run: syncer "
        "apply. If you fixed it in another way, run: syncer dead-letters retry DOCUMENT",
        style="dim",
    )


@app.command(epilog="Example: `syncer dead-letters retry blogpost 7`")
def retry(
    document: parameters.MaybeDocument = None,
    id_: Annotated[str | None, typer.Argument(metavar="ID", help="Document id (default: all of the document).")] = None,
) -> None:
    """Write the documents of dead letters again.

    Use it after a fix that syncer cannot see, such as a mapping changed by hand, a replaced
    function, or an Elasticsearch setting. Fixed data and `syncer apply` need no retry. Exit
    code 1 if any remain.
    """
    out, err = render.console(sys.stdout), render.console(sys.stderr)
    has_remaining = False
    with open_parts("dead-letters") as parts:
        if document is not None:
            parts.document(document)
        found = dead_letters.indices(parts.connection, document=document, id_=id_)
        if id_ is not None and not found:
            raise ConfigError(
                f"{document} has no dead letter {id_}",
                hint=f"It may be fixed already. Run: syncer dead-letters list {document}",
            )
        if not found:
            say(out, "There are no dead letters.")
        rows = [active for active in registry.documents(parts.connection) if active.index_name in found]
        for row in rows:
            suspend.require_active(row)
        for row in rows:
            ids = dead_letters.ids(parts.connection, row.index_name) if id_ is None else [id_]
            chunk = parts.settings.worker.batch_documents_max
            left = found[row.index_name]
            if job := listing.create_listed(parts.connection, row, ids, chunk=chunk):
                done = LoadProgress(parts, out=out, err=err).follow(row, job.id, is_partial=True)
                left -= (done.documents_total or 0) - done.dead_lettered
            if left > 0:
                has_remaining = True
                more = f"syncer dead-letters list {row.name}"
                say(out, f"{amount(left, 'dead letter')} of {row.index_name} left: {more}")
    if has_remaining:
        raise typer.Exit(1)
