"""The command ``syncer verify``: compare documents with their SELECT, and print which differ, why, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from syncer.base.error_policy import at_work_for
from syncer.base.errors import DefinitionError, DocumentError
from syncer.base.formatting import amount, shortened, shown_id
from syncer.cli import parameters, render
from syncer.cli.context import Parts, open_parts
from syncer.cli.jobs import show_left
from syncer.cli.parameters import flag
from syncer.cli.render import say
from syncer.documents import queries, registry
from syncer.documents.registry import Document
from syncer.jobs import listing
from syncer.verify import compare
from syncer.verify.compare import VerifyReport
from syncer.verify.diff import Cause, Drift, advice
from syncer.verify.settle import SETTLE_SECONDS
from syncer.worker import job_loop

_UNDECIDED = 3
"""The exit code if no drift was found but some documents are busy."""
_SHOWN_MAX = 20
_PATHS_SHOWN_MAX = 3
_CAUSES = {
    None: "",
    Cause.DEAD_LETTERED: "dead-lettered",
    Cause.REORDERED: "same elements, other order",
    Cause.FOREIGN: "another client wrote it",
    Cause.FOREIGN_AHEAD: "another client wrote it, with a version that syncer has not assigned yet",
    Cause.INCOMPLETE: "not loaded yet",
}


def verify(
    document: parameters.MaybeDocument = None,
    *,
    repair: Annotated[bool, flag("--repair", text="Write differing documents again and compare once more.")] = False,
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
        render.print_json(reports)
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


def compared(
    parts: Parts,
    document: Document,
    *,
    err: Console,
    settle_seconds: float = SETTLE_SECONDS,
    values: bool = False,
    repair: bool = False,
) -> VerifyReport:
    """Verify one document in one index, and record the result; if it is suspended, or has to be, the report says so.

    If another definition is applied meanwhile, the comparison starts again with that one.
    """
    while True:
        report = VerifyReport(document=document.name, index_name=document.index_name, suspended=document.suspended)
        try:
            if document.suspended is None:
                with at_work_for(document.name, document.revision):
                    expected = parts.index.holdings.count(document.target)  # counting the SELECT may take much longer
                with render.progress(err, f"comparing {document.index_name}") as show:
                    report = compare.verify(
                        parts.connect,
                        document,
                        index=parts.index,
                        settle_seconds=settle_seconds,
                        values=values,
                        repair=partial(_write_again, parts, document, err) if repair else None,
                        progress=partial(_show_compared, show, expected),
                    )
        except DocumentError as error:
            report.suspended = f"{error.message}\n{error.hint}"
        now = parts.active(document)
        if now is None or now.revision == document.revision:
            break
        document = now
    if now is not None and now.suspended is not None:  # the changes that it missed meanwhile are no drift
        report = VerifyReport(document=now.name, index_name=now.index_name, suspended=now.suspended)
    if report.suspended is None and (report.drifts or not report.busy):  # else nothing is known
        compare.record(parts.connection, report)
    return report


def _show_compared(show: render.Show, expected: int, done: int) -> None:
    show(done, max(done, expected), "" if done < expected else "looking for what only Elasticsearch has")


def _write_again(parts: Parts, document: Document, err: Console, ids: Sequence[str]) -> None:
    """Write documents by a job, on every shard, and wait until it has ended."""
    writable = filter(queries.is_text, ids)  # no row has the others, and no job can name them
    chunk = parts.settings.worker.batch_documents_max
    job = listing.create_listed(parts.connection, document, writable, chunk=chunk, everywhere=True)
    if job is None:
        return
    try:
        job_loop.follow(job.id, connect=parts.connect, job_worker=parts.job_worker)
    except KeyboardInterrupt:
        show_left(err, job)
        raise


# What is printed


def show_verify(console: Console, report: VerifyReport, document: Document) -> None:
    """Print the result of a verification, and what to do if something differs."""
    if report.suspended is not None:
        state = "cannot be compared" if document.suspended is None else "is suspended"
        say(console, (f"{report.document} {state}:", "bold red"), f" {report.suspended}")
        return
    _show_verdict(console, report)
    if report.searched is not None:
        found = " and ".join(report.searched) or "no index"
        wrong = f"Searches find {found} instead of {report.index_name} alone"
        say(console, (wrong, "bold red"), ". Run: syncer apply")
    for what, drifts, style in (
        ("repaired", report.repaired, "dim"),
        ("busy", report.busy, "yellow"),
        ("different", report.drifts, ""),
    ):
        if drifts:
            say(console, f"{amount(len(drifts), 'document')} {'is' if len(drifts) == 1 else 'are'} {what}:")
            _show_drifts(console, drifts, style=style)
    for line in _advice(report, document):
        say(console, line, style="dim")


def _show_verdict(console: Console, report: VerifyReport) -> None:
    count, style = amount(report.documents, "document"), "bold red" if report.drifts else "yellow"
    if differing := report.drifts or report.busy:
        found = amount(len(differing), "document")
        verb = ("differs" if len(differing) == 1 else "differ") if report.drifts else "busy"
        verdict = f"{'' if report.is_complete else 'at least '}{found} {verb}, of {count} compared"
    elif not report.is_complete:
        verdict = f"not all documents were compared, only {count}"
    else:
        verdict, style = f"{count} {'equals its' if report.documents == 1 else 'equal their'} SELECT", "green"
    pace = f" ({report.seconds:.1f} s, {report.documents_per_second:,.0f} documents/s)"
    say(console, (f"{report.document}: {verdict}", style), pace)


def _show_drifts(console: Console, drifts: Sequence[Drift], *, style: str) -> None:
    for drift in drifts[:_SHOWN_MAX]:
        paths = [difference.path for difference in drift.differences]
        more = f" and {len(paths) - _PATHS_SHOWN_MAX} more" if len(paths) > _PATHS_SHOWN_MAX else ""
        facts = [
            f"routing {drift.routing}" if drift.routing not in (None, drift.id) else "",
            f"version {drift.version}" if drift.version else "",
            _CAUSES[drift.cause],
        ]
        fields = "".join(f" {path}," for path in paths[:_PATHS_SHOWN_MAX]).rstrip(",") + more
        say(
            console,
            f"  {shown_id(drift.id)} {drift.kind}{fields}; {', '.join(filter(None, facts))}".rstrip("; "),
            style=style,
        )
        for difference in drift.differences:
            left, right = difference.postgres, difference.elasticsearch
            if left or right:
                say(console, f"      {difference.path}: {left or '-'} in Postgres, {right or '-'} in Elasticsearch")
    if len(drifts) > _SHOWN_MAX:
        say(console, f"  … and {len(drifts) - _SHOWN_MAX:,} more; --json lists them all")


def _advice(report: VerifyReport, document: Document) -> Iterator[str]:
    if report.jobs:
        yield f"An open job may write what is busy: {', '.join(map(str, report.jobs))}. To follow it: syncer jobs list"
    if not report.are_changes_handled:
        yield "Changes in flight make no progress, so drift is undecided. See: syncer status"
    elif report.busy and not report.jobs:
        yield "What is busy was written all the while. To decide whether it has drifted, run it again"
    if not report.is_complete:
        yield f"So many differ that not all were compared. To write all of them again: syncer backfill {document.name}"
    for cause, example in {drift.cause: drift for drift in reversed(report.drifts)}.items():
        if example.error is not None:
            yield f"Dead-lettered, for example {shown_id(example.id)}: {shortened(example.error)}"
        yield advice(cause, document)
