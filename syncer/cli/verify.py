"""The commands ``syncer verify`` and ``syncer explain``: compare documents with their SELECT."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer

from syncer.base.errors import DefinitionError
from syncer.cli import explain_output, parameters, render, verify_output
from syncer.cli.comparing import compared
from syncer.cli.context import Parts, open_parts
from syncer.cli.parameters import finite
from syncer.documents import registry
from syncer.documents.registry import Document
from syncer.jobs.model import unfinished
from syncer.verify import explain as explaining
from syncer.verify.compare import SETTLE_SECONDS

Repair = Annotated[bool, typer.Option("--repair", help="Write differing documents again and compare once more.")]
Sample = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        min=1,
        max=10_000,
        help="Compare a random sample of this size on each side.",
    ),
]
Settle = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0,
        callback=finite,
        help="Time to wait for changes in flight that make no progress.",
    ),
]
_NOT_KNOWN = 3
"""The exit code if no drift was found but some differences are undecided."""


def verify(
    document: parameters.MaybeDocument = None,
    *,
    repair: Repair = False,
    sample: Sample = None,
    settle: Settle = SETTLE_SECONDS,
    values: parameters.Values = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Compare documents with their SELECT.

    Safe beside live traffic. Shows for each differing document the fields, the version, and
    the cause if known: a dead letter, an unfinished load, or a write by another client. Waits
    for changes in flight while they make progress. Exit code 1 if documents have drifted,
    3 if changes in flight made no progress and drift is undecided.
    """
    err = render.console(sys.stderr)
    with open_parts("verify") as parts:
        compare = partial(compared, parts, err=err, settle_seconds=settle, sample=sample, values=values, repair=repair)
        reports = [compare(one) for one in _kept(parts, document)]
        pending = unfinished(parts.connection)
    if as_json:
        render.print_json([one.as_json() for one in reports])
    else:
        out = render.console(sys.stdout)
        for report in reports:
            verify_output.show_verify(out, report, pending)
    if any(report.has_drifted for report in reports):
        raise typer.Exit(1)
    if not all(report.holds for report in reports):
        raise typer.Exit(_NOT_KNOWN)


def _kept(parts: Parts, name: str | None) -> Iterator[Document]:
    """What is to equal its SELECT, of one document or of all; each as it is active when its turn comes.

    Raises:
        DefinitionError: The document is not active, or none is.
    """
    if name is not None:
        parts.document(name)
    done: set[str] = set()
    while left := [
        one
        for one in registry.documents(parts.connection)
        if one.index_name not in done and name in (None, one.name) and one.is_kept
    ]:
        done.add(left[0].index_name)
        yield left[0]
    if not done:
        raise DefinitionError("No document is active", hint="Run: syncer apply")


def explain(
    document: parameters.Document,
    id_: parameters.DocumentId,
    *,
    values: parameters.Values = False,
    timeout: parameters.Timeout = 5,
    as_json: parameters.AsJson = False,
) -> None:
    """Explain the state of one document.

    Shows whether the document equals its SELECT, and in which fields it differs; the version
    in Elasticsearch; its dead letter; the jobs that may write it; and the tables it reads. If
    it differs, waits for changes in flight. Exit code 0 only if it equals its SELECT.
    """
    with render.asking(), open_parts("explain") as parts:
        parts.document(document)
        chosen = [one for one in registry.documents(parts.connection) if one.name == document]
        seen = explaining.explain(parts.connection, parts.index, chosen, id_, seconds=timeout)
    if as_json:
        render.print_json(explaining.as_json(seen, id_, values=values))
    else:
        explain_output.show(render.console(sys.stdout), seen, id_, values=values)
    if not explaining.is_equal(seen):
        raise typer.Exit(1)
