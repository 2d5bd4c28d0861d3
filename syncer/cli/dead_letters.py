"""The commands ``syncer dead-letters …``: list and retry dead letters."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from syncer.base.errors import ConfigError
from syncer.base.formatting import amount
from syncer.cli import parameters, render
from syncer.cli.context import Parts, open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.render import Rows, say
from syncer.documents import registry, suspend
from syncer.documents.registry import Document
from syncer.indexing import dead_letters
from syncer.indexing.dead_letters import DeadLetter, DeadLetterGroup
from syncer.jobs import listing
from syncer.jobs.model import Job

_SHOWN_MAX = 10_000

app = typer.Typer(help="List or retry documents that could not be written.", no_args_is_help=True)

Id = Annotated[str | None, typer.Argument(metavar="ID", help="Document id (default: all of the document).")]


@app.command("list", epilog="Example: `syncer dead-letters list blogpost --limit 20`")
def list_(
    document: parameters.MaybeDocument = None,
    *,
    limit: Annotated[
        int,
        typer.Option(metavar="NUMBER", min=0, max=_SHOWN_MAX, help="Number of dead letters to list."),
    ] = 20,
    as_json: parameters.AsJson = False,
) -> None:
    """List dead letters by kind and one by one."""
    with open_parts("dead-letters") as parts:
        if document is not None:
            parts.document(document)
        kinds = dead_letters.kinds(parts.connection, document)
        letters = dead_letters.page(parts.connection, document=document, limit=limit)
    total = sum(each.letters for each in kinds)
    if as_json:
        render.print_json(
            {
                "letters": total,
                "kinds": [each.as_json() for each in kinds],
                "shown": [each.as_json() for each in letters],
            }
        )
    else:
        _print_list(render.console(sys.stdout), kinds, letters, total=total)


def _print_list(console: Console, kinds: list[DeadLetterGroup], letters: list[DeadLetter], *, total: int) -> None:
    if not kinds:
        say(console, "There are no dead letters.")
        return
    rows = [
        ((f"{each.letters:,}", "red"), each.index_name, each.kind, f"{each.first_at:%Y-%m-%d %H:%M:%S}", each.example)
        for each in kinds
    ]
    console.print(Rows(("letters", "index", "error", "since", "such as"), rows))
    say(console)
    for each in letters:
        say(console, (f"{each.document} {each.id}", "bold"), f"  {each.failed_at:%Y-%m-%d %H:%M:%S}")
        say(console, f"  {each.error}")
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
    id_: Id = None,
) -> None:
    """Write the documents of dead letters again.

    Use it after a fix that syncer cannot see, such as a mapping changed by hand, a replaced
    function, or an Elasticsearch setting. Fixed data and `syncer apply` need no retry. Exit
    code 1 if any remain.
    """
    out, err = render.console(sys.stdout), render.console(sys.stderr)
    remaining = 0
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
        rows = [each for each in registry.documents(parts.connection) if each.index_name in found]
        for row in rows:
            suspend.require_active(row)
        for row in rows:
            job = _retry(parts, row, id_, LoadProgress(parts, out=out, err=err))
            left = max(0, found[row.index_name] - (_fixed(job) if job else 0))
            remaining += left
            if left:
                more = f"syncer dead-letters list {row.name}"
                say(out, f"{amount(left, 'dead letter')} of {row.index_name} left: {more}")
    if remaining:
        raise typer.Exit(1)


def _retry(parts: Parts, row: Document, id_: str | None, progress: LoadProgress) -> Job | None:
    """Write the documents that one index lacks; return the finished job, None if there is nothing to write any more.

    Raises:
        SyncerError: The document was suspended meanwhile, or the job was cancelled or failed.
    """
    ids = dead_letters.ids(parts.connection, row.index_name) if id_ is None else [id_]
    chunk = parts.settings.worker.batch_documents_max
    job = listing.create_listed(parts.connection, row, ids, chunk=chunk)
    return job and progress.follow(row, job.id, is_partial=True)


def _fixed(job: Job) -> int:
    return (job.documents_total or 0) - job.dead_lettered
