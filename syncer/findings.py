"""Findings: what a verification found, for a person: which documents, which fields, why, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape

from syncer.drift import Cause, Drift
from syncer.job import Job
from syncer.terminal import brief, table
from syncer.verify import VerifyReport

_DRIFTS_SHOWN_MAX = 20
_PATHS_SHOWN_MAX = 3
_MOVING_SHOWN_MAX = 5
_AGAIN_SECONDS = 1  # from here on it is said that something was looked at again

_CAUSES = {
    Cause.PARKED: "parked: a dead letter",
    Cause.FOREIGN: "somebody else wrote it",
    Cause.FOREIGN_AHEAD: "somebody else wrote it, with a version that syncer has not drawn yet",
    Cause.LOST: "it shows what a restore or a failover has lost",
    Cause.FOREIGN_DELETE: "somebody else deleted it, with a greater version",
    Cause.UNFILLED: "not filled yet",
}


def show_verify(console: Console, report: VerifyReport, owed: Sequence[Job] = ()) -> None:
    """What a verification found, and what to do if something differs.

    Args:
        console: Where to show it.
        report: What was found.
        owed: The jobs that were not finished when it ended.
    """
    if report.halted is not None:
        console.print(f"[bold red]{report.document} is halted:[/] {escape(report.halted)}")
        return
    console.print(_verdict(report), soft_wrap=True)
    for said in _remarks(report, owed):
        console.print(said, soft_wrap=True)
    if report.repaired:
        repaired = _counted(len(report.repaired), "differed and is", "differed and are")
        console.print(f"[yellow]{repaired} equal now[/]: repaired", soft_wrap=True)
        _show_drifts(console, report.repaired, style="dim")
    if report.repaired and report.drifts:
        console.print(f"[red]{_counted(len(report.drifts), 'differs', 'differ')} still[/]", soft_wrap=True)
    _show_drifts(console, report.drifts, style="")
    for advice in _advices(report):
        console.print(escape(advice), style="dim", soft_wrap=True)


def _verdict(report: VerifyReport) -> str:
    took = f"({_took(report)})"
    sampled = "" if report.sampled is None else " of a sample"
    if report.holds:
        if report.owed:
            return f"[green]{report.document}: nothing has drifted[/], of {report.documents:,} compared{sampled} {took}"
        equal = _counted(report.documents, "equals its", "equal their", sampled)
        return f"[green]{report.document}: {equal} SELECT[/] {took}"
    at_least = "" if report.is_complete else "at least "
    differ = _counted(len(report.drifts), "differs", "differ")
    return f"[bold red]{report.document}: {at_least}{differ}[/], of {report.documents:,} compared{sampled} {took}"


def _took(report: VerifyReport) -> str:
    """How long it took, and how fast it compared; what waited for changes on their way is no part of the pace."""
    pace = f"{report.documents_per_second:,.0f} documents/s"
    again = report.seconds - report.comparing_seconds
    if again < _AGAIN_SECONDS:
        return f"{report.seconds:.1f} s, {pace}"
    return f"{report.comparing_seconds:.1f} s, {pace}; {again:.1f} s more to look again at what differed"


def _remarks(report: VerifyReport, owed: Sequence[Job]) -> Iterator[str]:
    if report.sampled is not None:
        yield (
            f"[yellow]Only a sample was compared[/]: {report.sampled:,} documents that Postgres has, and as many that "
            "Elasticsearch has, at most; nothing is known of the others"
        )
    if report.owed:
        jobs = f"job{'s' * (len(report.owed_by) > 1)} {', '.join(map(str, report.owed_by))}"
        on_the_way = _counted(report.owed, "is", "are")
        yield f"[yellow]{on_the_way} on the way[/]: {jobs} will write what differs. To follow: syncer jobs list"
        for job in owed:
            if job.is_paused and job.id in report.owed_by:
                yield f"[yellow]Job {job.id} ({escape(job.reason)}) is paused[/]; to go on: syncer jobs resume {job.id}"
    if report.moving:
        some = ", ".join(report.moving[:_MOVING_SHOWN_MAX]) + (" …" if len(report.moving) > _MOVING_SHOWN_MAX else "")
        written = _counted(len(report.moving), "was", "were")
        yield f"[yellow]{written} being written all the while[/], and not equal whenever looked at: {escape(some)}"


def _counted(number: int, singular: str, plural: str, which: str = "") -> str:
    return f"1 document{which} {singular}" if number == 1 else f"{number:,} documents{which} {plural}"


def _show_drifts(console: Console, drifts: Sequence[Drift], *, style: str) -> None:
    if not drifts:
        return
    shown = table("id", "how", "fields", "version", "why", "index")
    for drift in drifts[:_DRIFTS_SHOWN_MAX]:
        shown.add_row(*_cells(drift), style=style)
    console.print(shown)
    _show_values(console, drifts[:_DRIFTS_SHOWN_MAX])
    if len(drifts) > _DRIFTS_SHOWN_MAX:
        console.print(f"… and {len(drifts) - _DRIFTS_SHOWN_MAX:,} more; --json lists them all")


def _cells(drift: Drift) -> tuple[str, ...]:
    how = str(drift.kind) if drift.routing in (None, drift.id) else f"{drift.kind} (routing {drift.routing})"
    why = "" if drift.cause is None else _CAUSES[drift.cause]
    return escape(drift.id), escape(how), escape(_paths(drift)), _version(drift), why, drift.index_name


def _version(drift: Drift) -> str:
    """Which one Elasticsearch holds, and when it was drawn, as far as that is known."""
    if drift.version is None:
        return ""
    after, before = (
        None if one is None else f"{one:%Y-%m-%d %H:%M:%S}" for one in (drift.drawn_after, drift.drawn_before)
    )
    drawn = " and ".join(said for said in (after and f"after {after}", before and f"before {before}") if said)
    return f"{drift.version}, drawn {drawn} UTC" if drawn else str(drift.version)


def _paths(drift: Drift) -> str:
    paths = [one.path for one in drift.differences]
    more = f" and {len(paths) - _PATHS_SHOWN_MAX} more" if len(paths) > _PATHS_SHOWN_MAX else ""
    return ", ".join(paths[:_PATHS_SHOWN_MAX]) + more


def _show_values(console: Console, drifts: Sequence[Drift]) -> None:
    """The values that differ, if they were asked for."""
    found = [(drift, one) for drift in drifts for one in drift.differences if one.expected or one.held]
    if not found:
        return
    values = table("id", "field", "Postgres", "Elasticsearch")
    for drift, one in found:
        values.add_row(escape(drift.id), escape(one.path), escape(one.expected or "-"), escape(one.held or "-"))
    console.print(values)


def _advices(report: VerifyReport) -> Iterator[str]:
    """What to do, cause by cause."""
    name = report.document
    numbers = Counter(one.cause for one in report.drifts)
    if not report.is_complete:
        yield f"So many differ that not all were compared. To write every document again: syncer backfill {name}"
    if numbers[Cause.UNFILLED]:
        yield f"{name} has not been filled yet. Run: syncer apply"
    if numbers[Cause.PARKED]:
        one = next(one for one in report.drifts if one.cause is Cause.PARKED)
        said = brief(one.error or "")
        yield f"Some are parked, such as {one.id}: {said}\nMend the data, select.sql or index.json: syncer apply"
    if numbers[Cause.FOREIGN] or numbers[Cause.FOREIGN_AHEAD] or numbers[Cause.FOREIGN_DELETE]:
        yield (
            f"Somebody else writes to {report.index_name}: there are versions that syncer never drew. Find out who it "
            "is, and give the privilege to write there to syncer alone"
        )
    if numbers[Cause.FOREIGN_AHEAD]:
        yield (
            "What has a version that syncer has not drawn yet is never overwritten, by nobody. To make a new index "
            f"without it: syncer backfill {name} --rebuild"
        )
    if numbers[Cause.FOREIGN_DELETE]:
        yield (
            "Elasticsearch remembers a delete for index.gc_deletes, an hour here, and takes no smaller version until "
            f"then. After that: syncer verify {name} --repair"
        )
    if numbers[None] or numbers[Cause.FOREIGN] or numbers[Cause.LOST]:
        yield f"To write again what differs: syncer verify {name} --repair; or all documents: syncer backfill {name}"
