"""The commands ``syncer dead-letters …``: list, explain, retry and discard dead letters."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from syncer.base.errors import ConfigError
from syncer.base.formatting import amount
from syncer.cli import dead_letter_output, parameters, render
from syncer.cli.context import Parts, open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.parameters import UsageError
from syncer.cli.render import say
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.indexing import dead_letters, dry_run
from syncer.indexing.dead_letters import Selection
from syncer.jobs import listing
from syncer.jobs.model import find

_SHOWN_MAX = 10_000
_NUMBER_MAX = 2**63 - 1
_MISSING_SHOWN = 5

app = typer.Typer(help="List, retry or discard documents that could not be written.", no_args_is_help=True)

Name = parameters.MaybeDocument
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

    --json has letters (how many there are), kinds and shown; a kind has document, index_name,
    kind, field, value_type, letters, first_at, last_at and examples; one of shown has document,
    index_name, id, version, kind, error, field, value_type, is_id_cut and failed_at.
    """
    with open_parts("dead-letters") as parts:
        selection = _selection(parts, document, (), kind, field)
        kinds = dead_letters.kinds(parts.connection, selection)
        letters = dead_letters.page(parts.connection, selection, limit=limit, offset=offset)
    if as_json:
        said = {
            "letters": sum(one.letters for one in kinds),
            "kinds": [one.as_json() for one in kinds],
            "shown": [one.as_json() for one in letters],
        }
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False))
    else:
        out = render.console(sys.stdout)
        dead_letter_output.show_list(out, kinds, letters, offset=offset)


@app.command()
def show(
    document: parameters.Document,
    id_: Annotated[str, typer.Argument(metavar="ID", help="The document's _id.")],
    *,
    as_json: parameters.AsJson = False,
) -> None:
    """Show one dead letter, its cause and its fix.

    Also tries whether a retry would succeed. Changes nothing. Exit code 0 if there is such a dead letter.

    --json is a list with the output of `list --json` for each index that lacks the document, and
    now (select_fails, refused, writable, gone or unknown), now_error, now_field, now_value_type and do.
    """
    out = render.console(sys.stdout)
    with open_parts("dead-letters") as parts:
        _show_letters(parts, document, id_, out, as_json=as_json)


def _show_letters(parts: Parts, name: str, id_: str, out: Console, *, as_json: bool) -> None:
    rows = {one.index_name: one for one in registry.documents(parts.connection)}
    selection = _selection(parts, name, (id_,), None, None)
    _require_ids(parts, selection)
    said: list[dict[str, Any]] = []
    for letter in dead_letters.page(parts.connection, selection, limit=len(rows)):
        trial = dry_run.attempt(parts.connection, parts.index, rows[letter.index_name], letter)
        fault = trial.fault
        now = {
            "now": trial.now,
            "now_error": fault and fault.error,
            "now_field": fault and fault.field,
            "now_value_type": fault and fault.value_type,
            "do": dead_letter_output.advice(letter, trial),
        }
        said.append({**letter.as_json(), **now})
        if not as_json:
            dead_letter_output.show_letter(out, letter, trial)
    if as_json:
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False))


@dataclass(slots=True)
class _Retried:
    """The result of a retry.

    Args:
        jobs: The ids of the retry jobs.
        tried: Documents retried.
        fixed: Documents written or deleted.
        remaining: Selected documents that are still dead letters.
    """

    jobs: list[int]
    tried: int = 0
    fixed: int = 0
    remaining: int = 0


@app.command(epilog="Example: `syncer dead-letters retry blogpost --field created`")
def retry(
    document: Name = None,
    ids: Ids = None,
    *,
    everything: All = False,
    kind: OfKind = None,
    field: OfField = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Retry dead letters.

    Use it after a fix that syncer cannot see, such as a mapping changed by hand, a replaced
    function, or an Elasticsearch setting. Fixed data and `syncer apply` need no retry. Dead
    letters of the previous index alone are not retried. Exit code 1 if any remain.

    --json has jobs, tried, fixed and remaining.
    """
    done = _Retried(jobs=[])
    out = render.console(None if as_json else sys.stdout)
    _require_selection(document, everything=everything)
    with open_parts("dead-letters") as parts:
        selection = _selection(parts, document, ids or (), kind, field)
        _require_ids(parts, selection)
        lacking = dead_letters.to_retry(parts.connection, selection)
        try:
            _retry_letters(parts, selection, lacking, done, out)
        finally:  # report what is done, whatever ends it
            if as_json:
                typer.echo(json.dumps(asdict(done), indent=2))
    if done.remaining:
        raise typer.Exit(1)


def _retry_letters(
    parts: Parts, selection: Selection, lacking: list[tuple[Document, int]], done: _Retried, out: Console
) -> None:
    if not lacking:
        say(out, "There are no such dead letters.")
    for document, letters in lacking:
        _retry_index(parts, document, selection.of_index(document.index_name), letters=letters, done=done, out=out)


def _retry_index(
    parts: Parts, document: Document, selection: Selection, *, letters: int, done: _Retried, out: Console
) -> None:
    """Write the documents that one index lacks.

    Raises:
        SyncerError: The document was suspended meanwhile, or the job was cancelled or failed.
    """
    query, parameters = dead_letters.ids_query(selection)
    page = parts.settings.worker.batch_documents_max
    job = listing.create_selected(parts.connection, document, query, parameters, chunk=page)
    fixed = 0
    if job is not None:
        done.jobs.append(job.id)
        done.tried += job.documents_total or 0
        LoadProgress(parts, out=out, err=render.console(sys.stderr)).follow(document, job.id, is_partial=True)
        job = find(parts.connection, job.id)
        fixed = (job.documents_total or 0) - job.dead_lettered
    done.fixed += fixed
    remaining = max(0, letters - fixed)
    done.remaining += remaining
    said = f"{amount(fixed, 'document')} of {document.index_name} {'is' if fixed == 1 else 'are'} fixed"
    rest = f"; {remaining:,} remain{'s' if remaining == 1 else ''}: syncer dead-letters list --document {document.name}"
    say(out, said + (rest if remaining else ""))


@app.command(epilog="Example: `syncer dead-letters discard blogpost 7 --yes`")
def discard(
    document: Name = None,
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

    --json has letters: the number discarded.
    """
    _require_selection(document, everything=everything)
    if not (ids or kind or field or everything):
        raise UsageError(f"Missing selection of dead letters of {document}: add ids, --kind, --field or --all.")
    with open_parts("dead-letters") as parts:
        selection = _selection(parts, document, ids or (), kind, field)
        _require_ids(parts, selection)
        found = sum(one.letters for one in dead_letters.kinds(parts.connection, selection))
        parameters.confirm(f"Discard {amount(found, 'dead letter')}?", yes=yes)
        letters = dead_letters.discard(parts.connection, selection)
    if as_json:
        typer.echo(json.dumps({"letters": letters}, indent=2))
    else:
        typer.echo(
            f"{amount(letters, 'dead letter')} discarded. The documents stay as Elasticsearch has them until they "
            "change; those that fail again become dead letters again"
        )


# What was asked for


def _selection(
    parts: Parts, document: str | None, ids: list[str] | tuple[str, ...], kind: str | None, field: str | None
) -> Selection:
    if document is not None:
        parts.document(document)
    return Selection(document=document, ids=tuple(dict.fromkeys(ids)), kind=kind, field=field)


def _require_selection(document: str | None, *, everything: bool) -> None:
    if document is None and not everything:
        raise UsageError("Missing selection of dead letters: name a document, or add --all.")


def _require_ids(parts: Parts, selection: Selection) -> None:
    """Reject ids without a dead letter: a mistyped id would look as if it were fixed.

    Raises:
        ConfigError: With some of them.
    """
    if not selection.ids:
        return
    found = dead_letters.known(parts.connection, selection)
    missing = [one for one in selection.ids if dead_letters.recorded(one) not in found]
    if missing:
        more = f" and {len(missing) - _MISSING_SHOWN:,} more" if len(missing) > _MISSING_SHOWN else ""
        raise ConfigError(
            f"{selection.document} has no dead letter {', '.join(missing[:_MISSING_SHOWN])}{more}",
            hint=f"It may be fixed already. Run: syncer dead-letters list --document {selection.document}",
        )
