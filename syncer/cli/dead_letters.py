"""The commands ``syncer dead-letters …``: list, explain, retry and discard dead letters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from syncer.base.errors import ConfigError
from syncer.base.formatting import amount
from syncer.base.model import Role
from syncer.cli import dead_letter_output, parameters, render
from syncer.cli.context import Parts, open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.parameters import UsageError
from syncer.cli.render import say
from syncer.documents.registry import Document
from syncer.indexing import dead_letters
from syncer.indexing.dead_letters import Selection
from syncer.jobs import listing
from syncer.jobs.model import Job

_SHOWN_MAX = 10_000
_NUMBER_MAX = 2**63 - 1
_MISSING_SHOWN = 5

app = typer.Typer(help="List, retry or discard documents that could not be written.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Document ids (default: all).")]
OfKind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only this kind of error, as shown by `list`.")
]
OfField = Annotated[
    str | None, typer.Option("--field", metavar="FIELD", help="Only dead letters with this field at fault.")
]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the document, or of all documents.")]


@app.command("list", epilog="Example: `syncer dead-letters list --document blogpost --field created --limit 20`")
def list_(
    *,
    document: parameters.OfDocument = None,
    kind: OfKind = None,
    field: OfField = None,
    limit: Annotated[
        int,
        typer.Option(metavar="NUMBER", min=0, max=_SHOWN_MAX, help="Number of dead letters to list."),
    ] = 20,
    offset: Annotated[
        int,
        typer.Option(metavar="NUMBER", min=0, max=_NUMBER_MAX, help="Number of dead letters to skip."),
    ] = 0,
    as_json: parameters.AsJson = False,
) -> None:
    """List dead letters, grouped by kind and one by one.

    A kind consists of the error, the field at fault and the type of its value.
    """
    with open_parts("dead-letters") as parts:
        selection = _selection(parts, document, kind=kind, field=field)
        kinds = dead_letters.kinds(parts.connection, selection)
        letters = dead_letters.page(parts.connection, selection, limit=limit, offset=offset)
    if as_json:
        said = {
            "letters": sum(one.letters for one in kinds),
            "kinds": [one.as_json() for one in kinds],
            "shown": [one.as_json() for one in letters],
        }
        render.print_json(said)
    else:
        out = render.console(sys.stdout)
        dead_letter_output.show_list(out, kinds, letters, offset=offset)


@app.command()
def show(
    document: parameters.Document,
    id_: parameters.DocumentId,
    *,
    as_json: parameters.AsJson = False,
) -> None:
    """Show one dead letter, its cause and its fix.

    `syncer explain` shows whether its SELECT still fails. Exit code 0 if there is such a dead letter.
    """
    with open_parts("dead-letters") as parts:
        letters = dead_letters.page(parts.connection, _selection(parts, document, (id_,)), limit=len(Role))
    if as_json:
        render.print_json([one.as_json() for one in letters])
    else:
        for one in letters:
            dead_letter_output.show_letter(render.console(sys.stdout), one)


@app.command(epilog="Example: `syncer dead-letters retry blogpost --field created`")
def retry(
    document: parameters.MaybeDocument = None,
    ids: Ids = None,
    *,
    everything: All = False,
    kind: OfKind = None,
    field: OfField = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Retry dead letters.

    Use it after a fix that syncer cannot see, such as a mapping changed by hand, a replaced
    function, or an Elasticsearch setting. Fixed data and `syncer apply` need no retry. Exit
    code 1 if any remain.
    """
    _require_selection(document, everything=everything)
    out, err = render.console(None if as_json else sys.stdout), render.console(sys.stderr)
    jobs: list[Job] = []
    remaining = 0
    with open_parts("dead-letters") as parts:
        selection = _selection(parts, document, ids or (), kind, field)
        lacking = dead_letters.to_retry(parts.connection, selection)
        if not lacking:
            say(out, "There are no such dead letters.")
        for row, letters in lacking:
            job = _retried(parts, row, selection.of_index(row.index_name), LoadProgress(parts, out=out, err=err))
            jobs += [job] if job else []
            left = max(0, letters - (_fixed(job) if job else 0))
            remaining += left
            if left:
                more = f"syncer dead-letters list --document {row.name}"
                say(out, f"{amount(left, 'dead letter')} of {row.index_name} left: {more}")
    if as_json:
        tried, fixed = sum(one.documents_total or 0 for one in jobs), sum(map(_fixed, jobs))
        render.print_json({"jobs": [one.id for one in jobs], "tried": tried, "fixed": fixed, "remaining": remaining})
    if remaining:
        raise typer.Exit(1)


def _retried(parts: Parts, row: Document, selection: Selection, progress: LoadProgress) -> Job | None:
    """Write the documents that one index lacks; return the finished job, None if there is nothing to write any more.

    Raises:
        SyncerError: The document was suspended meanwhile, or the job was cancelled or failed.
    """
    ids = dead_letters.ids(parts.connection, selection)
    chunk = parts.settings.worker.batch_documents_max
    job = listing.create_listed(parts.connection, row, ids, chunk=chunk)
    return job and progress.follow(row, job.id, is_partial=True)


def _fixed(job: Job) -> int:
    return (job.documents_total or 0) - job.dead_lettered


@app.command(epilog="Example: `syncer dead-letters discard blogpost 7 --yes`")
def discard(
    document: parameters.MaybeDocument = None,
    ids: Ids = None,
    *,
    everything: All = False,
    kind: OfKind = None,
    field: OfField = None,
    yes: parameters.Yes = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Discard dead letters; their documents stay as they are.

    A document that fails again becomes a dead letter again.
    """
    _require_selection(document, everything=everything)
    if not (ids or kind or field or everything):
        raise UsageError(f"Missing selection of dead letters of {document}: add ids, --kind, --field or --all.")
    with open_parts("dead-letters") as parts:
        selection = _selection(parts, document, ids or (), kind, field)
        found = dead_letters.count(parts.connection, selection)
        parameters.confirm(f"Discard {amount(found, 'dead letter')}?", yes=yes)
        letters = dead_letters.discard(parts.connection, selection)
    if as_json:
        render.print_json({"letters": letters})
    else:
        typer.echo(
            f"{amount(letters, 'dead letter')} discarded. The documents stay as Elasticsearch has them until they "
            "change; those that fail again become dead letters again"
        )


# What was asked for


def _require_selection(document: str | None, *, everything: bool) -> None:
    if document is None and not everything:
        raise UsageError("Missing selection of dead letters: name a document, or add --all.")


def _selection(
    parts: Parts, document: str | None, ids: Sequence[str] = (), kind: str | None = None, field: str | None = None
) -> Selection:
    """Reject ids without a dead letter: a mistyped id would look as if it were fixed.

    Raises:
        DefinitionError: The document is not active.
        ConfigError: Some of the ids have no dead letter.
    """
    if document is not None:
        parts.document(document)
    selection = Selection(document=document, ids=tuple(dict.fromkeys(ids)), kind=kind, field=field)
    found = dead_letters.known(parts.connection, selection) if ids else set()
    missing = [one for one in selection.ids if dead_letters.recorded(one) not in found]
    if missing:
        more = f" and {len(missing) - _MISSING_SHOWN:,} more" if len(missing) > _MISSING_SHOWN else ""
        raise ConfigError(
            f"{document} has no dead letter {', '.join(missing[:_MISSING_SHOWN])}{more}",
            hint=f"It may be fixed already. Run: syncer dead-letters list --document {document}",
        )
    return selection
