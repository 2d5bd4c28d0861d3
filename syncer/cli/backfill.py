"""The command ``syncer backfill``: write documents again, in place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import typer

from syncer.base.errors import ConfigError, DefinitionError
from syncer.base.model import ID_BYTES_MAX
from syncer.cli import parameters, render
from syncer.cli.context import Parts, open_parts
from syncer.cli.follow_jobs import LoadProgress
from syncer.cli.parameters import UsageError
from syncer.documents import suspend
from syncer.documents.registry import Document
from syncer.jobs import listing, queue
from syncer.jobs.model import Job, JobKind

Where = Annotated[
    str | None,
    typer.Option(metavar="CONDITION", help="Only documents whose row in the root table meets this SQL condition."),
]
Ids = Annotated[
    typer.FileBinaryRead | None,
    typer.Option(metavar="FILE", help="Only the ids in this file, one per line; - for standard input."),
]


def backfill(
    document: parameters.Document,
    *,
    rate: parameters.Rate = None,
    where: Where = None,
    ids: Ids = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Write every document again, in place.

    Deletes documents that the SELECT no longer returns. Safe beside live traffic. Running
    daemons share the work; without one, the command does it itself. If it is interrupted,
    the same command resumes it. To write to a new index instead: `syncer index rebuild`.
    """
    if where is not None and ids is not None:
        raise UsageError("--where and --ids cannot be combined.")
    out, err = render.console(None if as_json else sys.stdout), render.console(sys.stderr)
    with open_parts("backfill") as parts:
        chosen = parts.document(document)
        suspend.require_active(chosen)
        job = _job(parts, chosen, where=where, ids=ids, rate=rate)
        done = LoadProgress(parts, out=out, err=err).follow(chosen, job.id)
    if as_json:
        render.print_json({"document": document, "index_name": chosen.index_name, "job": done.as_json()})


def _job(parts: Parts, document: Document, *, where: str | None, ids: BinaryIO | None, rate: float | None) -> Job:
    """A job for what was asked; one that was interrupted is taken up again."""
    if ids is None:
        kind = JobKind.BACKFILL if where is None else JobKind.PARTIAL
        job = queue.create(parts.connection, document, kind, where=where, rate=rate, resumes=True)
    else:
        page = parts.settings.worker.batch_documents_max
        job = listing.create_listed(parts.connection, document, _ids(ids), chunk=page, rate=rate)
    if job is None:
        raise DefinitionError(f"{document.index_name} is no longer active", hint="It was changed meanwhile. Try again.")
    return job


def _ids(lines: BinaryIO) -> Iterator[str]:
    """The ids on the lines of a file, one on each; empty lines are left out.

    Raises:
        ConfigError: A line cannot be an id.
    """
    for place, line in enumerate(lines, start=1):
        try:
            id_ = line.decode("utf-8-sig" if place == 1 else "utf-8").strip()  # some editors begin a file with a mark
        except UnicodeDecodeError as error:
            raise ConfigError(f"Line {place} of --ids is not valid UTF-8", hint="Check the file.") from error
        if "\0" in id_ or len(id_.encode()) > ID_BYTES_MAX:
            raise ConfigError(
                f"Line {place} of --ids is not a valid id: an id has 1 to {ID_BYTES_MAX} bytes, without zero bytes",
                hint="Check the file: it must have one id per line. Nothing was written.",
            )
        if id_:
            yield id_
