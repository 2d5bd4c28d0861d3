"""The commands ``backfill``, ``index …`` and ``dead-letters …``: write documents again, in place or to a new index.

`load_all` carries initial loads out, for ``syncer apply`` too. It takes a new index from loaded to current in the order
that `syncer.apply.reindex` explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import elasticsearch
import typer

from syncer.apply import reindex
from syncer.apply.activate import InitialLoad
from syncer.base.errors import ConfigError, DefinitionError, IndexingError, SyncerError
from syncer.base.formatting import amount, shortened, shown_id
from syncer.base.model import ID_BYTES_MAX, Role, is_id
from syncer.base.postgres import AdvisoryLock
from syncer.cli import jobs, render
from syncer.cli.context import AllowFailed, AnyDocument, AsJson, DocumentName, Servers, Yes, confirm, open_servers
from syncer.cli.render import TIME, say, show_table
from syncer.cli.verify import compared, show_verify
from syncer.documents import registry, suspend
from syncer.documents.registry import Document
from syncer.indexing import dead_letters
from syncer.jobs import listing, queue
from syncer.jobs.model import Job, JobKind
from syncer.verify.compare import VerifyReport

index_app = typer.Typer(help="Rebuild an index, or abort a rebuild.", no_args_is_help=True)
letters_app = typer.Typer(help="List or retry documents that could not be written.", no_args_is_help=True)

_LETTERS_SHOWN_MAX = 10_000


def backfill(
    document: DocumentName,
    *,
    ids: Annotated[
        typer.FileText | None,
        typer.Option(
            encoding="utf-8-sig",
            errors="replace",
            metavar="FILE",
            help="Only the ids in this file (-: standard input), one per line.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write every document again, in place.

    Deletes documents that the SELECT no longer returns. Safe beside live traffic. Running
    daemons share the work; without one, the command does it itself. If it is interrupted,
    the same command resumes it. To write to a new index instead: `syncer index rebuild`.
    """
    render.out.quiet = as_json
    with open_servers("backfill") as servers:
        chosen = servers.document(document)
        suspend.require_active(chosen)
        if ids is None:
            job = queue.create(servers.connection, chosen, JobKind.BACKFILL, resumes=True)
        else:
            chunk = servers.settings.worker.batch_documents_max
            job = listing.create_listed(servers.connection, chosen, _read_ids(ids), chunk=chunk)
        if job is None:
            raise DefinitionError(f"{chosen.index_name} is no longer active", hint="It was replaced. Try again.")
        job = write(servers, chosen, job.id)
        _require_written(servers, chosen, job)
    if as_json:
        render.print_json({"document": document, "index_name": chosen.index_name, "job": job})


def _read_ids(lines: Iterable[str]) -> Iterator[str]:
    """The ids on the lines of a file; empty lines are left out."""
    for number, line in enumerate(lines, start=1):
        id_ = line.strip()
        if "\0" in id_ or (id_ and not is_id(id_)):
            raise ConfigError(
                f"Line {number} of --ids is no valid id: one has 1 to {ID_BYTES_MAX} bytes of UTF-8, "
                "without zero bytes",
                hint="Check the file: it must have one id per line. Nothing was written.",
            )
        if id_:
            yield id_


@index_app.command(epilog="Example: `syncer index rebuild blogpost`")
def rebuild(document: DocumentName, *, allow_failed: AllowFailed = False) -> None:
    """Build a new index and switch searches to it.

    Creates it from the applied index.json and writes every document. Searches switch to it
    atomically when it is complete and verified, and the previous index is dropped. If it is
    interrupted, the same command resumes it. With --allow-failed-documents, the index may lack
    documents that cannot be written.
    """
    with open_servers("index") as servers:
        servers.document(document)
        initial_load = reindex.begin(servers.connection, servers.indices, document, report=say)
        load_all(servers, [initial_load], allow_failed=allow_failed)


@index_app.command(epilog="Example: `syncer index abort blogpost --yes`")
def abort(document: DocumentName, *, yes: Yes = False) -> None:
    """Drop the new index that is being built.

    Searches still use the current index.
    """
    with open_servers("index") as servers:
        servers.document(document)
        building = reindex.building(servers.connection, document)
        confirm(f"Drop {building.index_name}, which is being built?", yes=yes)
        dropped = reindex.abort(servers.connection, servers.indices, document)
    say(f"Dropped {dropped.index_name}")


@letters_app.command("list", epilog="Example: `syncer dead-letters list blogpost --limit 20`")
def list_letters(
    document: AnyDocument = None,
    *,
    limit: Annotated[int, typer.Option(min=0, max=_LETTERS_SHOWN_MAX, help="Number of dead letters to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List dead letters by kind and one by one."""
    with open_servers("dead-letters") as servers:
        if document is not None:
            servers.document(document)
        kinds = dead_letters.kinds(servers.connection, document)
        letters = dead_letters.page(servers.connection, document=document, limit=limit)
    total = sum(kind.letters for kind in kinds)
    if as_json:
        render.print_json({"letters": total, "kinds": kinds, "shown": letters})
        return
    if not kinds:
        say("There are no dead letters.")
        return
    rows = [
        ((f"{kind.letters:,}", "red"), kind.index_name, kind.kind, f"{kind.first_at:{TIME}}", shown_id(kind.example))
        for kind in kinds
    ]
    show_table(("letters", "index", "error", "since", "such as"), rows)
    say()
    for letter in letters:
        say((f"{letter.document} {shown_id(letter.id)}", "bold"), f"  {letter.failed_at:{TIME}}\n  {letter.error}")
    if len(letters) < total:
        say(f"… and {total - len(letters):,} more: --limit {min(total, _LETTERS_SHOWN_MAX)}", style="dim")
    say("\nFixed data is written by itself. If select.sql or index.json is fixed: syncer apply", style="dim")
    say("If you fixed it in another way: syncer dead-letters retry DOCUMENT", style="dim")


@letters_app.command("retry", epilog="Example: `syncer dead-letters retry blogpost 7`")
def retry_letters(
    document: AnyDocument = None,
    id_: Annotated[str | None, typer.Argument(metavar="ID", help="Document id (default: all of the document).")] = None,
) -> None:
    """Write the documents of dead letters again.

    Use it after a fix that syncer cannot see, such as a mapping changed by hand, a replaced
    function, or an Elasticsearch setting. Fixed data and `syncer apply` need no retry, and a
    daemon tries one of each index a minute. Exit code 1 if any remain.
    """
    with open_servers("dead-letters") as servers:
        if document is not None:
            servers.document(document)
        letters = dead_letters.indices(servers.connection, document=document, id_=id_)
        if id_ is not None and not letters:
            raise ConfigError(
                f"{document} has no dead letter {id_}",
                hint=f"It may be fixed already. Run: syncer dead-letters list {document}",
            )
        active = [
            definition for definition in registry.documents(servers.connection) if definition.index_name in letters
        ]
        for definition in active:
            suspend.require_active(definition)
        for definition in active:
            ids = dead_letters.ids(servers.connection, definition.index_name) if id_ is None else [id_]
            chunk = servers.settings.worker.batch_documents_max
            if job := listing.create_listed(servers.connection, definition, ids, chunk=chunk):
                write(servers, definition, job.id)
        remaining = dead_letters.indices(servers.connection, document=document, id_=id_)
    for index_name, number in remaining.items():
        say(f"{amount(number, 'dead letter')} of {index_name} left: syncer dead-letters list")
    if remaining:
        raise typer.Exit(1)
    say("There are no dead letters left.")


def write(servers: Servers, document: Document, job_id: int) -> Job:
    """Follow a job of a document on the screen, as `jobs.follow` does; print its result, and return it."""
    with render.progress(f"writing {document.index_name}") as show:
        job = jobs.follow(servers, document, job_id, show)
    say(f"{job.document}: {render.result(job)}")
    return job


def load_all(servers: Servers, loads: Sequence[InitialLoad], *, allow_failed: bool = False) -> None:
    """Write all documents of each definition once, and make each new index current; a failed one stops no other.

    The last failure is raised; earlier ones are printed.
    """
    if any(load.document.role is Role.BUILDING for load in loads):
        # As long as this session lasts, `syncer status` knows that a command is at work on new indices.
        servers.connection.execute("SELECT pg_advisory_lock_shared($1)", (AdvisoryLock.REBUILD,))
    failed: list[SyncerError] = []
    remaining = list(loads)
    try:
        while remaining:
            try:
                _load(servers, remaining.pop(0), allow_failed=allow_failed)
            except SyncerError as error:
                failed.append(error)
    finally:
        # Even if the loads go on without this command: searches find what is written.
        for load in remaining:
            _settle(servers, load.document)
    for earlier in failed[:-1]:
        render.show_error(earlier)
    if failed:
        raise failed[-1]


def _load(servers: Servers, load: InitialLoad, *, allow_failed: bool) -> None:
    document, is_new = load.document, load.document.role is Role.BUILDING
    try:
        if load.job is not None:
            job = write(servers, document, load.job)
            if not is_new:
                _require_written(servers, document, job)
            if job.skipped and not job.indexed + job.deleted and not compared(servers, document, repair=False).holds:
                raise IndexingError(
                    f"No document of {document.name} was written: the index has newer versions, which differ from it",
                    hint=f"Another syncer may write this index. To replace it: syncer index rebuild {document.name}",
                )
        if is_new:
            _serve(servers, document, allow_failed=allow_failed)
    except (SyncerError, elasticsearch.ApiError):
        # If another command has made the new index current meanwhile, that is as good.
        active = servers.active(document) if is_new else None
        if active is None or (active.revision, active.role) != (document.revision, Role.CURRENT):
            raise
        say(f"{active.index} is searched in {active.index_name} now: another command switched it")
    finally:
        _settle(servers, document)


def _settle(servers: Servers, document: Document) -> None:
    """Give an index that is searched its own settings; a new one beside it gets them once it is loaded."""
    if document.role is Role.CURRENT:
        servers.indices.settle(document.target)


def _serve(servers: Servers, building: Document, *, allow_failed: bool) -> None:
    """Settle and verify a loaded index, and make it current."""
    with render.progress(f"settling {building.index_name}"):
        reindex.settle(servers.connection, servers.indices, building)
    _wait_for_pending(servers, building)  # so that their documents are compared, too
    report = compared(servers, servers.active(building) or building, repair=True)
    show_verify(report, building)
    replaced = registry.named(servers.connection, building.name)[0]
    if not report.holds:
        _require_acceptable(servers, report, building, replaced, allow_failed=allow_failed)
    _wait_for_pending(servers, building)
    current = reindex.serve(servers.connection, servers.indices, servers.active(building) or building)
    say(f"{current.index} is searched in {current.index_name} now")
    say(f"{replaced.index_name} is dropped", style="dim")


def _wait_for_pending(servers: Servers, building: Document) -> None:
    """Wait for the pending jobs of an index that exist now, but not for later ones."""
    ids = {job.id for job in reindex.pending(servers.connection, building)}
    while pending := [job for job in reindex.pending(servers.connection, building) if job.id in ids]:
        say(f"{building.index_name} waits for job {pending[0].id} ({pending[0].reason})")
        write(servers, building, pending[0].id)


def _require_acceptable(
    servers: Servers, report: VerifyReport, building: Document, current: Document, *, allow_failed: bool
) -> None:
    """Refuse an index that differs, except in documents that the current one lacks too, or that were accepted."""
    # What is busy is about to be written, unless the new index refuses it.
    ids = [drift.id for drift in (*report.drifts, *(drift for drift in report.busy if drift.error is not None))]
    dead_lettered = dead_letters.find(servers.connection, building.index_name, ids).keys()
    lacking = dead_letters.find(servers.connection, current.index_name, ids).keys()
    hint = (
        "Searches still use the current index.\n"
        f"To go on: syncer index rebuild {building.name}\nTo give it up: syncer index abort {building.name}"
    )
    if not report.is_complete or report.suspended is not None or not dead_lettered >= set(ids):
        raise IndexingError(f"{building.index_name} is not equal to its SELECT, and does not serve", hint=hint)
    if not allow_failed and not lacking >= set(ids):
        fix = "Fix the data; or the SELECT or index.json, then: syncer apply. To go on without these documents, add "
        raise _unwritten(servers, building, len(dead_lettered), hint=f"{fix}--allow-failed-documents.\n{hint}")


def _require_written(servers: Servers, document: Document, job: Job) -> None:
    """Refuse to call a job done that could not write all of its documents."""
    if job.dead_lettered:
        hint = f"The reason for each: syncer dead-letters list {document.name}\nFixed data is written by itself."
        fixed = "If the SELECT or index.json is fixed: syncer apply"
        raise _unwritten(servers, document, job.dead_lettered, hint=f"{hint} {fixed}")


def _unwritten(servers: Servers, document: Document, number: int, *, hint: str) -> IndexingError:
    """The error that so many documents could not be written, with an example."""
    kinds = dead_letters.kinds(servers.connection, document.name)  # the most frequent first
    ids = [kind.example for kind in kinds if kind.index_name == document.index_name][:1]
    letters = dead_letters.find(servers.connection, document.index_name, ids)
    example = "".join(f", such as {shown_id(id_)}: {shortened(letter.error)}" for id_, letter in letters.items())
    return IndexingError(f"{amount(number, 'document')} of {document.name} could not be written{example}", hint=hint)
