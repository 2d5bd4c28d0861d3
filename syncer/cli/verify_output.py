"""The output of `syncer verify`: which documents differ, in which fields, why, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from syncer.base.formatting import brief
from syncer.cli.render import Part, Rows, say
from syncer.jobs.model import Job
from syncer.verify.compare import VerifyReport
from syncer.verify.diff import Cause, Drift

_DRIFTS_SHOWN_MAX = 20
_PATHS_SHOWN_MAX = 3
_MOVING_SHOWN_MAX = 5

_CAUSES = {
    Cause.DEAD_LETTERED: "dead-lettered",
    Cause.REORDERED: "same elements, other order",
    Cause.FOREIGN: "another client wrote it",
    Cause.FOREIGN_AHEAD: "another client wrote it, with a version that syncer has not assigned yet",
    Cause.LOST: "it shows what a restore or a failover has lost",
    Cause.INCOMPLETE: "not loaded yet",
}


def show_verify(console: Console, report: VerifyReport, pending: Sequence[Job] = ()) -> None:
    """Print the result of a verification, and what to do if something differs.

    Args:
        console: Where to print.
        report: The result.
        pending: The jobs that were unfinished when it ended.
    """
    if report.suspended is not None:
        say(console, (f"{report.document} is suspended:", "bold red"), f" {report.suspended}")
        return
    say(console, _verdict(report))
    for remark in _remarks(report, pending):
        say(console, remark)
    if report.repaired:
        repaired = _counted(len(report.repaired), "differed and is", "differed and are")
        say(console, (f"{repaired} equal now", "yellow"), ": repaired")
        _show_drifts(console, report.repaired, style="dim")
    _show_drifts(console, report.coming, style="yellow")
    if report.repaired and report.drifts:
        say(console, f"{_counted(len(report.drifts), 'differs', 'differ')} still", style="red")
    _show_drifts(console, report.drifts, style="")
    for advice in _advices(report):
        say(console, advice, style="dim")


def _verdict(report: VerifyReport) -> Text:
    # Waiting for changes in flight does not count towards the speed.
    took = f" ({report.seconds:.1f} s, {report.documents_per_second:,.0f} documents/s)"
    sampled = "" if report.sampled is None else " of a sample"
    compared = f", of {report.documents:,} compared{sampled}{took}"
    if report.differs:
        at_least = "" if report.is_complete else "at least "
        differ = _counted(len(report.drifts), "differs", "differ")
        return Text.assemble((f"{report.document}: {at_least}{differ}", "bold red"), compared)
    if report.coming:
        return Text.assemble((f"{report.document}: nothing is known to have drifted", "yellow"), compared)
    if report.pending:
        return Text.assemble((f"{report.document}: nothing has drifted", "green"), compared)
    equal = _counted(report.documents, "equals its", "equal their", sampled)
    return Text.assemble((f"{report.document}: {equal} SELECT", "green"), took)


def _remarks(report: VerifyReport, pending: Sequence[Job]) -> Iterator[Text]:
    def remark(highlighted: str, rest: str) -> Text:
        return Text.assemble((highlighted, "yellow"), rest)

    if report.searched is not None:
        found = " and ".join(report.searched) or "no index"
        wrong = f"Searches find {found} instead of {report.index_name} alone"
        yield Text.assemble((wrong, "bold red"), ". Run: syncer apply")
    if report.sampled is not None:
        yield remark(
            "Only a sample was compared",
            f": {report.sampled:,} documents that Postgres has, and as many that Elasticsearch has, at most; "
            "nothing is known of the others",
        )
    if report.pending:
        jobs = f"job{'s' * (len(report.pending_by) > 1)} {', '.join(map(str, report.pending_by))}"
        on_the_way = _counted(report.pending, "is", "are")
        yield remark(f"{on_the_way} on the way", f": {jobs} will write what differs. To follow: syncer jobs list")
        for job in pending:
            if job.is_paused and job.id in report.pending_by:
                yield remark(f"Job {job.id} ({job.reason}) is paused", f"; to go on: syncer jobs resume {job.id}")
    if report.coming:
        yield remark(
            f"{_counted(len(report.coming), 'differs', 'differ')}, and whether that is drift is not known",
            f": changes may be on the way, and nothing moves ({report.awaited}). To see why: syncer status",
        )
    if report.moving:
        some = ", ".join(report.moving[:_MOVING_SHOWN_MAX]) + (" …" if len(report.moving) > _MOVING_SHOWN_MAX else "")
        written = _counted(len(report.moving), "was", "were")
        yield remark(f"{written} being written all the while", f", and not equal whenever looked at: {some}")


def _counted(number: int, singular: str, plural: str, which: str = "") -> str:
    return f"1 document{which} {singular}" if number == 1 else f"{number:,} documents{which} {plural}"


def _show_drifts(console: Console, drifts: Sequence[Drift], *, style: str) -> None:
    if not drifts:
        return
    shown = drifts[:_DRIFTS_SHOWN_MAX]
    headings = ("id", "how", "fields", "version", "why", "index")
    console.print(Rows(headings, [_cells(one) for one in shown], [style] * len(shown)))
    values: list[tuple[Part, ...]] = [
        (drift.id, one.path, one.expected or "-", one.held or "-")
        for drift in shown
        for one in drift.differences
        if one.expected or one.held
    ]
    if values:
        console.print(Rows(("id", "field", "Postgres", "Elasticsearch"), values))
    if len(drifts) > len(shown):
        say(console, f"… and {len(drifts) - len(shown):,} more; --json lists them all")


def _cells(drift: Drift) -> tuple[str, ...]:
    how = str(drift.kind) if drift.routing in (None, drift.id) else f"{drift.kind} (routing {drift.routing})"
    why = "" if drift.cause is None else _CAUSES[drift.cause]
    return drift.id, how, _paths(drift), str(drift.version or ""), why, drift.index_name


def _paths(drift: Drift) -> str:
    paths = [one.path for one in drift.differences]
    more = f" and {len(paths) - _PATHS_SHOWN_MAX} more" if len(paths) > _PATHS_SHOWN_MAX else ""
    return ", ".join(paths[:_PATHS_SHOWN_MAX]) + more


def _advices(report: VerifyReport) -> Iterator[str]:
    """What to do, for each cause."""
    name = report.document
    numbers = Counter(one.cause for one in report.drifts)
    if not report.is_complete:
        yield f"So many differ that not all were compared. To write every document again: syncer backfill {name}"
    if numbers[Cause.INCOMPLETE]:
        yield f"{name} has not been loaded yet. Run: syncer apply"
    if numbers[Cause.DEAD_LETTERED]:
        one = next(one for one in report.drifts if one.cause is Cause.DEAD_LETTERED)
        said = brief(one.error or "")
        yield f"Some are dead-lettered, such as {one.id}: {said}\nFix the data, select.sql or index.json: syncer apply"
    if numbers[Cause.FOREIGN] or numbers[Cause.FOREIGN_AHEAD]:
        yield (
            f"Another program writes to {report.index_name}: it has versions that syncer never assigned. Find that "
            "program, and let only syncer write there"
        )
    if numbers[Cause.FOREIGN_AHEAD]:
        yield (
            "syncer cannot overwrite a version that it has not assigned yet. To make a new index "
            f"without it: syncer index rebuild {name}"
        )
    if numbers[Cause.REORDERED]:
        yield (
            "An aggregate without ORDER BY returns its elements in any order. To see whether the SELECT has one: "
            f"syncer plan {name}. Add ORDER BY to it, then run: syncer apply"
        )
    if numbers[None] or numbers[Cause.FOREIGN] or numbers[Cause.LOST]:
        yield f"To write again what differs: syncer verify {name} --repair; or all documents: syncer backfill {name}"
