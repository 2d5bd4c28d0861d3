"""The commands ``syncer verify`` and ``syncer explain``: all documents against their SELECT, and one of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from syncer import completion, findings, store, terminal
from syncer.comparing import compared
from syncer.entered import number, whole
from syncer.errors import DefinitionError
from syncer.explain import explanation, page as explain_page
from syncer.explain.events import Limits
from syncer.job import unfinished
from syncer.parts import Parts, open_parts
from syncer.store import Document
from syncer.verify import SETTLE_SECONDS

Repair = Annotated[bool, typer.Option("--repair", help="Write again what differs, and compare it again.")]
Sample = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        parser=whole(least=1, most=10_000),
        help="Compare only so many, chosen at random on either side.",
    ),
]
Settle = Annotated[
    float,
    typer.Option(
        metavar="NUMBER",
        parser=number(least=0),
        help="Seconds that a difference may last, or changes on their way stand still.",
    ),
]
DriftValues = Annotated[bool, typer.Option("--values", help="Show the values that differ; they may be secrets.")]
_NOT_KNOWN = 3
"""The exit code if nothing is known to have drifted, and not all could be judged."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def verify(
    document: completion.MaybeDocument = None,
    *,
    repair: Repair = False,
    sample: Sample = None,
    settle: Settle = SETTLE_SECONDS,
    values: DriftValues = False,
    as_json: AsJson = False,
) -> None:
    """Compare every document with its SELECT, beside live traffic. Exit code 1 if anything has drifted.

    Says of each document that differs which fields do, since which version, and why if
    that is known: it is parked, not filled yet, or somebody else wrote it. What changes may
    be on their way to is waited for while they move on; if they do not, exit code 3.

    --json is a list with document, index_name, documents, drifts, repaired, coming, awaited,
    moving, owed, owed_by, is_complete, sampled, halted, seconds, comparing_seconds,
    documents_per_second and holds; a drift has document, index_name, id, kind (missing, extra, different or
    misplaced), fields, differences (path, how, expected, held), version, routing,
    cause (parked, foreign, foreign_ahead, foreign_delete, lost, unfilled), error,
    drawn_after and drawn_before.
    """
    with open_parts("verify") as parts:
        if document is not None:
            parts.document(document)
        reports = [
            compared(
                parts,
                one,
                err=terminal.console(sys.stderr),
                settle_seconds=settle,
                sample=sample,
                values=values,
                repair=repair,
            )
            for one in _kept(parts, document)
        ]
        if not reports:
            raise DefinitionError("No document is in force", hint="Run: syncer apply")
        owed = unfinished(parts.connection)
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in reports], indent=2))
    else:
        out = terminal.console(sys.stdout)
        for report in reports:
            findings.show_verify(out, report, owed)
    if any(report.has_drifted for report in reports):
        raise typer.Exit(1)
    if not all(report.holds for report in reports):
        raise typer.Exit(_NOT_KNOWN)


def _kept(parts: Parts, name: str | None) -> Iterator[Document]:
    """What is to equal its SELECT, of one document or of all; each as it is in force when its turn comes."""
    done: set[str] = set()
    while left := [
        one
        for one in store.documents(parts.connection)
        if one.index_name not in done and name in (None, one.name) and one.is_kept
    ]:
        done.add(left[0].index_name)
        yield left[0]


def explain(
    document: completion.Document,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Which of its instances: its _id.")],
    *,
    values: Annotated[bool, typer.Option("--values", help="Show what fields hold, not only their names.")] = False,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="NUMBER", parser=number(least=0.1), help="How long to look into the outbox and the topic, at most."
        ),
    ] = 5,
    as_json: AsJson = False,
) -> None:
    """Why is this document as it is? Both sides, its versions, its changes, and what a refresh would do.

    Shows whether it equals its SELECT; what Elasticsearch holds, with its version
    and when that was drawn; the changes that touch it, in the outbox, in the topic,
    and the last that are done; why it is parked or halted; and what would be written
    now. Changes nothing. Exit code 0 only if it equals its SELECT.

    --json has document, id, at, is_equal, indices, coming, done, events, searched,
    lost and kafka; each of indices has verdict, says, hint, postgres, elasticsearch,
    refresh and dead_letter.
    """
    with terminal.asking(), open_parts("explain") as parts:
        parts.document(document)
        chosen = [one for one in store.documents(parts.connection) if one.name == document]
        limits = Limits(seconds=seconds)
        seen = explanation.read(parts.connection, parts.index, parts.settings.kafka, chosen, id_, limits=limits)
    if as_json:
        typer.echo(json.dumps(seen.as_json(values=values), indent=2, default=str, ensure_ascii=False))
    else:
        explain_page.show(terminal.console(sys.stdout), seen, values=values)
    if not seen.is_equal:
        raise typer.Exit(1)
