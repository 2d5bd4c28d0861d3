"""Runs `verify` for one document and prints what it finds: which documents differ, in which fields, why, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from syncer.base.error_policy import at_work_for
from syncer.base.errors import DocumentError
from syncer.base.formatting import amount, brief
from syncer.base.lifecycle import Stop
from syncer.cli import job_output, render
from syncer.cli.context import Parts
from syncer.cli.render import Part, Rows, say
from syncer.documents import queries, registry
from syncer.documents.registry import Document
from syncer.jobs import listing
from syncer.verify import last_result
from syncer.verify.compare import VerifyReport, verify
from syncer.verify.diff import Cause, Drift, advice
from syncer.verify.settle import SETTLE_SECONDS
from syncer.worker.foreground import JobFollower

_SHOWN_MAX = 20
_PATHS_SHOWN_MAX = 3
_CAUSES = {
    Cause.DEAD_LETTERED: "dead-lettered",
    Cause.REORDERED: "same elements, other order",
    Cause.FOREIGN: "another client wrote it",
    Cause.FOREIGN_AHEAD: "another client wrote it, with a version that syncer has not assigned yet",
    Cause.LOST: "it shows what a restore or a failover has lost",
    Cause.INCOMPLETE: "not loaded yet",
}


def compared(
    parts: Parts,
    document: Document,
    *,
    err: Console,
    settle_seconds: float = SETTLE_SECONDS,
    values: bool = False,
    repair: bool = False,
) -> VerifyReport:
    """Verify one document in one index; if it is suspended, or has to be, the report says so.

    If another definition is applied meanwhile, the comparison starts again with that one.

    Args:
        parts: The servers.
        document: Its definition.
        err: Where to show progress.
        settle_seconds: As `verify` takes it.
        values: Whether to report the values that differ.
        repair: Whether to write again what differs.
    """
    while True:
        report = _compared(parts, document, err=err, settle_seconds=settle_seconds, values=values, repair=repair)
        now = active(parts, document)
        if now is None or now.revision == document.revision:
            break
        document = now
    if now is not None and now.suspended is not None:  # the changes that it missed meanwhile are no drift
        report = VerifyReport(document=now.name, index_name=now.index_name, suspended=now.suspended)
    if report.suspended is None and (report.drifts or not report.busy):  # else nothing is known
        last_result.note(
            parts.connection,
            report.index_name,
            documents=report.documents,
            drifted=len(report.drifts),
            repaired=len(report.repaired),
            is_complete=report.is_complete,
        )
    return report


def _compared(
    parts: Parts, document: Document, *, err: Console, settle_seconds: float, values: bool, repair: bool
) -> VerifyReport:
    if document.suspended is not None:
        return VerifyReport(document=document.name, index_name=document.index_name, suspended=document.suspended)
    try:
        with at_work_for(document.name, document.revision):
            expected = parts.index.holdings.count(document.target)  # counting the SELECT may take as long as reading it
        with render.progress(err, f"comparing {document.index_name}") as show:
            return verify(
                parts.connect,
                document,
                index=parts.index,
                settle_seconds=settle_seconds,
                values=values,
                repair=(lambda ids: write_again(parts, document, ids, err=err)) if repair else None,
                # A full bar that stays needs a word.
                progress=lambda done: show(
                    done, max(done, expected), "" if done < expected else "looking for what only Elasticsearch has"
                ),
            )
    except DocumentError as error:
        suspended = f"{error.message}\n{error.hint}"
        return VerifyReport(document=document.name, index_name=document.index_name, suspended=suspended)


def write_again(parts: Parts, document: Document, ids: Sequence[str], *, err: Console) -> None:
    """Write documents by a job, on every shard, and wait until it has ended."""
    writable = filter(queries.is_text, ids)  # no row has the others, and no job can name them
    chunk = parts.settings.worker.batch_documents_max
    job = listing.create_listed(parts.connection, document, writable, chunk=chunk, everywhere=True)
    if job is None:
        return
    follower = JobFollower(connect=parts.connect, refresh=parts.job_worker, stop=Stop())
    try:
        follower.follow(job.id)
    except KeyboardInterrupt:
        job_output.show_left(err, job)
        raise
    finally:
        follower.close()


def active(parts: Parts, document: Document) -> Document | None:
    """The definition that is active for a document's index by now; None if none is."""
    return next((now for now in registry.documents(parts.connection) if now.index_name == document.index_name), None)


# What is printed


def show_verify(console: Console, report: VerifyReport, document: Document) -> None:
    """Print the result of a verification, and what to do if something differs."""
    if report.suspended is not None:
        say(console, (f"{report.document} is suspended:", "bold red"), f" {report.suspended}")
        return
    say(console, _verdict(report))
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


def _verdict(report: VerifyReport) -> Text:
    pace = f" ({report.seconds:.1f} s, {report.documents_per_second:,.0f} documents/s)"
    compared = f", of {report.documents:,} compared{pace}"
    at_least = "" if report.is_complete else "at least "
    if report.drifts:
        differ = f"{amount(len(report.drifts), 'document')} {'differs' if len(report.drifts) == 1 else 'differ'}"
        return Text.assemble((f"{report.document}: {at_least}{differ}", "bold red"), compared)
    if report.busy:
        busy = f"{amount(len(report.busy), 'document')} {'is' if len(report.busy) == 1 else 'are'} busy"
        return Text.assemble((f"{report.document}: {at_least}{busy}", "yellow"), compared)
    if not report.is_complete:
        return Text.assemble((f"{report.document}: not all documents were compared", "yellow"), compared)
    equal = "equals its" if report.documents == 1 else "equal their"
    return Text.assemble((f"{report.document}: {amount(report.documents, 'document')} {equal} SELECT", "green"), pace)


def _show_drifts(console: Console, drifts: Sequence[Drift], *, style: str) -> None:
    shown = drifts[:_SHOWN_MAX]
    console.print(
        Rows(("id", "how", "fields", "version", "why"), [_cells(drift) for drift in shown], [style] * len(shown))
    )
    values: list[tuple[Part, ...]] = [
        (drift.id, difference.path, difference.expected or "-", difference.held or "-")
        for drift in shown
        for difference in drift.differences
        if difference.expected or difference.held
    ]
    if values:
        console.print(Rows(("id", "field", "Postgres", "Elasticsearch"), values))
    if len(drifts) > len(shown):
        say(console, f"… and {len(drifts) - len(shown):,} more; --json lists them all")


def _cells(drift: Drift) -> tuple[str, ...]:
    how = str(drift.kind) if drift.routing in (None, drift.id) else f"{drift.kind} (routing {drift.routing})"
    why = "" if drift.cause is None else _CAUSES[drift.cause]
    paths = [difference.path for difference in drift.differences]
    more = f" and {len(paths) - _PATHS_SHOWN_MAX} more" if len(paths) > _PATHS_SHOWN_MAX else ""
    return drift.id, how, ", ".join(paths[:_PATHS_SHOWN_MAX]) + more, str(drift.version or ""), why


def _advice(report: VerifyReport, document: Document) -> Iterator[str]:
    if report.jobs:
        yield f"An open job may write what is busy: {', '.join(map(str, report.jobs))}. To follow it: syncer jobs list"
    if not report.are_changes_handled:
        yield "Changes in flight make no progress, so drift is undecided. See: syncer status"
    elif report.busy and not report.jobs:
        yield "What is busy was written all the while. To decide whether it has drifted, run it again"
    if not report.is_complete:
        yield f"So many differ that not all were compared. To write all of them again: syncer backfill {document.name}"
    for cause in {drift.cause: drift for drift in report.drifts}:
        example = next(drift for drift in report.drifts if drift.cause is cause)
        if example.error is not None:
            yield f"Dead-lettered, for example {example.id}: {brief(example.error)}"
        yield advice(cause, document)
