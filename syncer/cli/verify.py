"""The commands ``syncer verify`` and ``syncer explain``: which documents differ from their SELECT, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from syncer.base.error_policy import at_work_for
from syncer.base.errors import DefinitionError, DocumentError
from syncer.base.formatting import amount, shortened, shown_id
from syncer.cli import jobs, render
from syncer.cli.context import AnyDocument, AsJson, DocumentName, Servers, UsageError, Values, flag, open_servers
from syncer.cli.render import TIME, Part, Show, say, show_table
from syncer.documents import definition, queries, registry
from syncer.documents.registry import Document
from syncer.jobs import listing
from syncer.verify import audit, compare, explain as explaining
from syncer.verify.audit import AuditReport
from syncer.verify.compare import SETTLE_SECONDS, VerifyReport
from syncer.verify.diff import Cause, Drift, DriftKind, advice
from syncer.verify.explain import InIndex, State

_SHOWN_MAX = 20
_EXPLAIN_SECONDS = 5
"""How long changes in flight to an explained document may make no progress."""
_STYLES = {State.EQUAL: "bold green", State.BUSY: "bold yellow"}


def verify(
    document: AnyDocument = None,
    *,
    repair: Annotated[bool, flag("--repair", text="Write what differs again, and compare once more.")] = False,
    select: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Compare --index with the SELECT in this file instead."),
    ] = None,
    index: Annotated[str | None, typer.Option(help="Name of the index.")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Field that --select does not compare; can be repeated.")
    ] = None,
    settle: Annotated[
        float | None,
        typer.Option(
            min=0, max=86_400, help="Seconds after which --select reads again what differs, each time (default: 10)."
        ),
    ] = None,
    values: Values = False,
    as_json: AsJson = False,
) -> None:
    """Compare documents with their SELECT.

    Safe beside live traffic. Shows for each differing document the fields, the version, and
    the cause if known: a dead letter, an unfinished load, or a write by another client. Waits
    for changes in flight while they make progress. Exit code 1 if documents have drifted,
    3 if some are busy: being written all the while, or left to changes or jobs in flight.

    With --select and --index, compares an index, alias or data stream that another program fills.
    It only reads, needs no schema of syncer's, and compares the fields that the SELECT returns.
    """
    render.out.quiet = as_json
    if select is not None and index is not None:
        if document is not None or repair:
            raise UsageError("--select does not go with DOCUMENT or --repair: syncer does not write that index.")
        seconds = SETTLE_SECONDS if settle is None else settle
        _audit(select, index, frozenset(ignore or ()), settle_seconds=seconds, values=values, as_json=as_json)
        return
    if select is not None or index is not None or ignore or settle is not None:
        raise UsageError("--select and --index belong together, and --ignore and --settle go with them alone.")
    reports: list[VerifyReport] = []
    with open_servers("verify") as servers:
        for active in _checked_documents(servers, document):
            reports.append(compared(servers, active, values=values, repair=repair))
            show_verify(reports[-1], active)
    _end(reports, as_json=as_json)


def _end(reports: Sequence[VerifyReport], *, as_json: bool) -> None:
    """Print JSON if it is asked for, and exit with the code for these reports."""
    if as_json:
        render.print_json(reports)
    if any(report.has_drifted for report in reports):
        raise typer.Exit(1)
    if not all(report.holds for report in reports):
        raise typer.Exit(3)


def _audit(
    select: Path, index: str, ignored: frozenset[str], *, settle_seconds: float, values: bool, as_json: bool
) -> None:
    """Compare an index that syncer does not write with a SELECT, and print the result."""
    query = definition.read_sql(select)
    with open_servers("verify", is_migrated=False) as servers, render.progress(f"comparing {index}") as show:
        report = audit.audit(
            servers.connect,
            query,
            file=str(select),
            index=servers.index,
            name=index,
            ignored=ignored,
            settle_seconds=settle_seconds,
            values=values,
            progress=lambda done, looked_up: show(_progress(f"{done:,}", looked_up)),
        )
    _show_report(report, _audit_advice(report))
    _end([report], as_json=as_json)


def _progress(count: str, looked_up: int) -> str:
    return f"{count}; {looked_up:,} of the index looked up in Postgres" if looked_up else count


def _audit_advice(report: AuditReport) -> Iterator[str]:
    if report.not_compared:
        fields: Any = shortened(sorted(report.not_compared))
        yield f"Not compared, since the SELECT does not return them: {', '.join(fields)}"
    kinds = {drift.kind for drift in report.drifts}
    if report.documents and report.drifts and not report.has_common_id:
        yield (
            "No id of the SELECT is in the index. If the index is not empty, let _id be what the other program uses as "
            "the document's id."
        )
    if any(drift.cause is Cause.REORDERED for drift in report.drifts):
        yield "Reordered: the elements are the same. Order the aggregate in the SELECT as the other program does."
    if not report.is_refreshed:
        yield "An index has no refresh interval: searches do not find what was written since its last refresh."
    if DriftKind.FAILING in kinds:
        yield "Failing: Postgres cannot compute these documents. Run the SELECT in psql to see its error."
    if kinds - {DriftKind.FAILING, DriftKind.UNREADABLE}:
        yield (
            f"Each was read {audit.READINGS} times. Changes that the other program has yet to write are unknown to "
            "syncer: with a longer --settle, they have more time."
        )


def _checked_documents(servers: Servers, name: str | None) -> Iterator[Document]:
    """What is to equal its SELECT, of one document or of all; each as it is active when its turn comes."""
    if name is not None:
        servers.document(name)
    verified: set[str] = set()
    while remaining := [
        document
        for document in registry.documents(servers.connection)
        if document.index_name not in verified and name in (None, document.name) and document.is_kept
    ]:
        verified.add(remaining[0].index_name)
        yield remaining[0]
    if not verified:
        raise DefinitionError("No document is active", hint="Run: syncer apply")


def compared(servers: Servers, document: Document, *, values: bool = False, repair: bool = False) -> VerifyReport:
    """Verify one document in one index, and record the result; if it is suspended, or has to be, the report says so.

    If another definition is applied meanwhile, the comparison starts again with that one.
    """
    report = VerifyReport(document=document.name, index_name=document.index_name, suspended=document.suspended)
    try:
        if document.suspended is None:
            with at_work_for(document.name, document.revision):
                expected = servers.index.holdings.count(document.target)  # counting the SELECT may take much longer
            with render.progress(f"comparing {document.index_name}") as show:
                report = compare.verify(
                    servers.connect,
                    document,
                    index=servers.index,
                    values=values,
                    repair=partial(_write_again, servers, document, show) if repair else None,
                    progress=lambda done, looked_up: show(_progress(f"{done:,} of {max(done, expected):,}", looked_up)),
                )
    except DocumentError as error:
        report.suspended = f"{error.message}\n{error.hint}"
    active = servers.active(document)
    if active is not None and active.revision != document.revision:
        return compared(servers, active, values=values, repair=repair)
    if active is not None and active.suspended is not None:  # the changes that it missed meanwhile are no drift
        report = VerifyReport(document=active.name, index_name=active.index_name, suspended=active.suspended)
    if report.suspended is None and (report.drifts or not report.busy):  # else nothing is known
        compare.record(servers.connection, report)
    return report


def _write_again(servers: Servers, document: Document, show: Show, ids: Sequence[str]) -> None:
    """Write documents by a job, on every shard, and wait until it is done."""
    writable = filter(queries.is_text, ids)  # no row has the others, and no job can name them
    chunk = servers.settings.worker.batch_documents_max
    job = listing.create_listed(servers.connection, document, writable, chunk=chunk, everywhere=True)
    if job is not None:
        jobs.follow(servers, document, job.id, show)


def show_verify(report: VerifyReport, document: Document) -> None:
    """Print the result of a verification, and what to do if something differs."""
    if report.suspended is not None:
        state = "cannot be compared" if document.suspended is None else "is suspended"
        say((f"{report.document} {state}:", "bold red"), f" {report.suspended}")
        return
    _show_report(report, _advice(report, document))


def _show_report(report: VerifyReport, advice: Iterable[str]) -> None:
    groups = (
        ("repaired", report.repaired, "dim"),
        ("busy", report.busy, "yellow"),
        ("different", report.drifts, "bold red"),
    )
    count = f"{'' if report.is_complete else 'only '}{amount(report.documents, 'document')}"
    verdict = f"{count} compared"
    if report.is_complete and not (report.busy or report.drifts):
        verdict = f"{count} {'equals its' if report.documents == 1 else 'equal their'} SELECT"
    say(f"{report.document}: {verdict} ({report.seconds:.1f} s, {report.documents_per_second:,.0f} documents/s)")
    if report.without_id:
        rows = f"{amount(report.without_id, 'row')} of the SELECT {'has' if report.without_id == 1 else 'have'}"
        say(f"{rows} no _id, and so no document. To see them: SELECT * FROM (…) AS d WHERE d._id IS NULL")
    if report.searched is not None:
        searched = " and ".join(report.searched) or "no index"
        say(
            (f"Searches find {searched} instead of {report.index_name} alone", "bold red"),
            ". What to do: syncer status",
        )
    if report.hidden is not None:
        say((report.hidden, "bold red"))
    for heading, drifts, style in groups:
        if drifts:
            say(f"{amount(len(drifts), 'document')} {'is' if len(drifts) == 1 else 'are'} {heading}:", style=style)
            _show_drifts(drifts)
    for line in (*_undecided(report), *advice):
        say(line, style="dim")


def _undecided(report: VerifyReport) -> Iterator[str]:
    if report.jobs:
        yield f"An open job may write what is busy: {', '.join(map(str, report.jobs))}. To follow it: syncer jobs list"
    if not report.are_changes_handled:
        yield "Changes in flight make no progress, so drift is undecided. See: syncer status"
    elif report.busy and not report.jobs:
        yield "What is busy was written all the while. To decide whether it differs, run it again."
    if not report.is_complete:
        yield "So many differ that not all were compared."


def _show_drifts(drifts: Sequence[Drift]) -> None:
    for drift in drifts[:_SHOWN_MAX]:
        paths: Any = shortened([difference.path for difference in drift.differences])
        facts = [
            f"{shown_id(drift.id)} {drift.kind} {', '.join(paths)}".rstrip(),
            f"routing {shown_id(drift.routing)}" if drift.routing not in (None, drift.id) else "",
            f"version {drift.version}" if drift.version else "",
            (drift.cause or "").replace("_", " "),
            (drift.failure or "") if drift.error is None else "",
        ]
        say(f"  {'; '.join(filter(None, facts))}")
        for difference in drift.differences:
            left, right = difference.postgres, difference.elasticsearch
            if left or right:
                say(f"      {difference.path}: {left or '-'} in Postgres, {right or '-'} in the index")
    if len(drifts) > _SHOWN_MAX:
        say(f"  … and {len(drifts) - _SHOWN_MAX:,} more; --json lists them all")


def _advice(report: VerifyReport, document: Document) -> Iterator[str]:
    if not report.is_complete:
        yield f"To write all documents again: syncer backfill {document.name}"
    causes = [drift.cause or (Cause.DEAD_LETTERED if drift.failure else None) for drift in report.drifts]
    for cause, example in dict(zip(reversed(causes), reversed(report.drifts), strict=True)).items():
        if example.error is not None:
            yield f"Dead-lettered, for example {shown_id(example.id)}: {shortened(example.error)}"
        yield advice(cause, document)


def explain(
    document: DocumentName,
    id_: Annotated[str, typer.Argument(metavar="ID", help="The document's _id.")],
    *,
    values: Values = False,
    as_json: AsJson = False,
) -> None:
    """Explain the state of one document.

    Shows whether the document equals its SELECT, and in which fields it differs. Also shows the
    version in Elasticsearch, its dead letter, the jobs that may write it, and the tables it
    reads. If it differs, waits for changes in flight. Exit code 0 only if it equals its SELECT.
    """
    with render.progress("asking Postgres and Elasticsearch"), open_servers("explain") as servers:
        explained = explaining.explain(
            servers.connection, servers.index, document, id_, seconds=_EXPLAIN_SECONDS, values=values
        )
    if as_json:
        render.print_json(explained)
    else:
        for in_index in explained.indices:
            _show_explanation(f"{document} {shown_id(id_)}", in_index, values=values)
    if not explained.is_equal:
        raise typer.Exit(1)


def _show_explanation(title: str, in_index: InIndex, *, values: bool) -> None:
    say((in_index.says, _STYLES.get(in_index.state, "bold red")))
    if in_index.hint:
        say(in_index.hint, style="dim")
    loaded = "" if in_index.is_loaded else ", to be written completely"
    say((f"\n{title}", "bold"), f" in {in_index.index}, {in_index.role}, revision {in_index.revision}{loaded}")
    show_table(("", ""), [(f"  {label}", text) for label, text in _facts(in_index) if text])
    if values:
        rows = [
            (difference.path, difference.postgres or "", difference.elasticsearch or "")
            for difference in in_index.differences
        ]
        show_table(("field", "Postgres", "index"), rows)


def _facts(in_index: InIndex) -> Iterator[tuple[Part, str]]:
    if in_index.postgres.exists is None:
        yield "Postgres", "unknown: its SELECT fails or does not end in time, or a table is locked"
    elif not in_index.postgres.exists:
        yield "Postgres", "its SELECT returns no such id"
    else:
        routing = f", _routing {in_index.postgres.routing}" if in_index.postgres.routing else ""
        yield "Postgres", f"its SELECT returns it: {amount(in_index.postgres.bytes or 0, 'byte')}{routing}"
    copies = [
        f"version {copy.version}{f', under routing {copy.routing}' if copy.routing is not None else ''}"
        for copy in in_index.elasticsearch or ()
    ]
    nothing = "unknown: it cannot be read" if in_index.elasticsearch is None else "nothing under this id"
    yield "index", "\n".join(copies) or nothing
    yield "differs in", ", ".join(difference.path for difference in in_index.differences)
    if (letter := in_index.dead_letter) is not None:
        yield "dead letter", f"{letter.error}\nat {letter.failed_at:{TIME}}, with version {letter.version}"
    yield "jobs", ", ".join(map(str, in_index.jobs))
    yield "reads", ", ".join(in_index.reads)
