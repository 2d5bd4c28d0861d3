"""The command ``syncer verify``: compare documents with their SELECT."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from syncer.base.errors import DefinitionError
from syncer.cli import parameters, render
from syncer.cli.comparing import compared, show_verify
from syncer.cli.context import Parts, open_parts
from syncer.documents import registry
from syncer.documents.registry import Document

Repair = Annotated[bool, typer.Option("--repair", help="Write differing documents again and compare once more.")]
_UNDECIDED = 3
"""The exit code if no drift was found but some documents are busy."""


def verify(
    document: parameters.MaybeDocument = None,
    *,
    repair: Repair = False,
    values: parameters.Values = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Compare documents with their SELECT.

    Safe beside live traffic. Shows for each differing document the fields, the version, and
    the cause if known: a dead letter, an unfinished load, or a write by another client. Waits
    for changes in flight while they make progress. Exit code 1 if documents have drifted,
    3 if some are busy: being written all the while, or left to changes or jobs in flight.
    """
    err, out = render.console(sys.stderr), render.console(sys.stdout)
    reports = []
    with open_parts("verify") as parts:
        for kept in _kept(parts, document):
            report = compared(parts, kept, err=err, values=values, repair=repair)
            reports.append(report)
            if not as_json:
                show_verify(out, report, kept)
    if as_json:
        render.print_json([report.as_json() for report in reports])
    if any(report.has_drifted for report in reports):
        raise typer.Exit(1)
    if not all(report.holds for report in reports):
        raise typer.Exit(_UNDECIDED)


def _kept(parts: Parts, name: str | None) -> Iterator[Document]:
    """What is to equal its SELECT, of one document or of all; each as it is active when its turn comes.

    Raises:
        DefinitionError: The document is not active, or none is.
    """
    if name is not None:
        parts.document(name)
    done: set[str] = set()
    while left := [
        document
        for document in registry.documents(parts.connection)
        if document.index_name not in done and name in (None, document.name) and document.is_kept
    ]:
        done.add(left[0].index_name)
        yield left[0]
    if not done:
        raise DefinitionError("No document is active", hint="Run: syncer apply")
