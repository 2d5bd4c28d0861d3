"""The commands that ask how the deployment is: ``status``, ``events``, ``doctor`` and ``wait``. None needs a daemon."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer

from syncer.base import timeline
from syncer.base.formatting import amount, elapsed, shown_id
from syncer.cli import render
from syncer.cli.context import AsJson, flag, load_settings, open_postgres
from syncer.cli.render import TIME, Part, say, show_table
from syncer.monitoring import doctor as checks, problems
from syncer.monitoring.doctor import CheckSeverity, Finding, How
from syncer.monitoring.problems import Urgency
from syncer.monitoring.status import WAITING_MAX, DocumentStatus, Reader, Status, Stored
from syncer.verify import wait as verify_wait
from syncer.verify.wait import TIMEOUT_SECONDS, Waited

_ASKING = "asking Postgres, Kafka and Elasticsearch"
_STYLES = {Urgency.WELL: "green", Urgency.BUSY: "yellow", Urgency.BAD: "red"}
_SOON_SECONDS = 0.1
_LEVELS = {"warning": "yellow", "error": "red"}
_PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MARKS = {
    CheckSeverity.WRONG: ("✘", "bold red"),
    CheckSeverity.CONSIDER: ("!", "bold yellow"),
    CheckSeverity.UNSEEN: ("?", "cyan"),
    CheckSeverity.WELL: ("✔", "green"),
}
_PLACES = {How.SQL: "in psql:", How.SHELL: "in a shell:", How.REQUEST: "in Dev Tools, or by curl:"}


def status(*, as_json: AsJson = False) -> None:
    """Show health, lag, throughput, documents, jobs and daemons.

    Asks the servers directly; no daemon has to run. If a server does not answer within two
    seconds, shows the figures of the others. Exit code 0 only if everything is healthy.
    To follow it: `watch syncer status`.
    """
    reader = Reader(load_settings())
    with render.progress(_ASKING):
        state = reader.read()
    reader.close()
    if as_json:
        render.print_json(problems.as_json(state))
    else:
        _show_problems(state)
        if state.stored is not None:
            _show_figures(state, state.stored)
    if problems.problems(state):
        raise typer.Exit(1)


def _show_problems(state: Status) -> None:
    open_problems = problems.problems(state)
    say(problems.headline(state), style=f"bold {_STYLES[problems.urgency(state)]}")
    for problem in open_problems:
        indent = ""
        if len(open_problems) > 1:
            say(problem.message, style="yellow" if problem.is_passing else "red")
            indent = "  "
        detail = problem.detail if problem.runbook == "SyncerComponentTroubled" else ""
        for line in [*problem.action.splitlines(), *detail.splitlines()]:
            say(f"{indent}{line}", style="dim")


def _show_figures(state: Status, stored: Stored) -> None:
    led, workers = ("none", "red"), ("none", "red")
    if leader := stored.leader:
        led = f"{leader.host}, process {leader.process}", "green"
    if stored.workers:
        workers = f"{stored.workers} at work, {stored.written_per_second:,.1f} documents/s", "green"
    at_least = "at least " if stored.outbox_waiting >= WAITING_MAX else ""
    outbox = f"{at_least}{amount(stored.outbox_waiting, 'change')} in the outbox{_oldest(state.outbox_lag_seconds)}"
    in_hand = amount(stored.topic_waiting, "change") + " read, not handled" + _oldest(state.topic_lag_seconds)
    show_table(("component", "state", "waiting"), [("leader", led, outbox), ("workers", workers, in_hand)])
    if not state.documents:
        say("\nNo document is active. Run: syncer apply")
    show_table(
        ("document", "loaded", "lag", "dead letters", "index", "role", "documents"),
        [_document(document, index) for document in state.documents for index in document.targets],
    )
    show_table(
        ("job", "of", "done", "pace"),
        [(f"{job.id} {job.reason}", job.index_name, render.completion(job), render.pace(job)) for job in stored.jobs],
    )
    daemons = [
        (
            f"{daemon.host}, {daemon.process}",
            daemon.version,
            daemon.duties,
            f"{daemon.started_at:{TIME}}",
            (f"has not reported for {elapsed(daemon.silent_seconds)}" if daemon.is_silent else "", "red"),
        )
        for daemon in stored.daemons
    ]
    show_table(("daemon", "version", "components", "started (UTC)", ""), daemons)


def _oldest(seconds: float) -> str:
    return f", the oldest for {seconds:,.1f} s" if seconds >= _SOON_SECONDS else ""


def _document(document: DocumentStatus, index: str) -> Sequence[Part]:
    loaded, count = ("yes", "green") if document.is_loaded else ("no", "red"), document.targets[index]
    return (
        document.name,
        loaded if document.suspended is None else ("suspended", "red"),
        f"{document.lag_seconds:,.1f} s",
        (f"{document.dead_letters:,}", "red" if document.dead_letters else ""),
        index,
        document.roles[index],
        f"{count:,}" if count is not None else (document.faults.get(index, "unknown"), "red"),
    )


def _period(value: str) -> str:
    if not re.fullmatch(r"[0-9]{1,6}[smhd]", value):
        raise typer.BadParameter(f"{value} is not a period such as 30m, 24h or 7d")
    return value


def events(
    *,
    since: Annotated[str, typer.Option(callback=_period, help="How far to go back: 30m, 24h, 7d.")] = "24h",
    as_json: AsJson = False,
) -> None:
    """Show what happened lately, newest last.

    Shows daemons that start, stop or disappear, new leaders, outages once they are over,
    failovers, suspended and resumed documents, jobs that wrote every document, applies and
    verifies. Postgres keeps them for a week.
    """
    with open_postgres("events") as connection:
        events = timeline.read(connection, seconds=int(since[:-1]) * _PERIODS[since[-1]])
    if as_json:
        render.print_json(events)
    elif not events:
        say(f"Nothing happened in the last {since}.")
    else:
        rows = [
            (f"{event.at:{TIME}}", (event.message, _LEVELS.get(event.level, "")), f"{event.host}, {event.process}")
            for event in events
        ]
        show_table(("at (UTC)", "event", "host, process"), rows)


def doctor(*, as_json: AsJson = False) -> None:
    """Check the deployment and suggest fixes.

    Checks every setting, privilege and condition that a guarantee depends on. Changes
    nothing and takes a few seconds. Run it with the daemon's settings. If a server is
    unavailable or a privilege is missing, reports the checks that could not run. Exit code 0
    only if nothing is wrong.
    """
    with render.progress(_ASKING):
        findings = checks.examine(load_settings())
    counts = Counter(finding.severity for finding in findings)
    numbers, is_well = {severity: counts[severity] for severity in CheckSeverity}, not counts[CheckSeverity.WRONG]
    if as_json:
        render.print_json({"is_well": is_well, **numbers, "findings": findings})
    else:
        for _, of_check in groupby(findings, key=lambda finding: finding.id):
            _show_findings(list(of_check))
        summary = ", ".join(f"{number} {severity}" for severity, number in numbers.items() if number)
        verdict = ("Nothing is wrong with the deployment", "bold green") if is_well else ("Not all is well", "bold red")
        say("\n", verdict, f": {summary}. For its documents, see: syncer status")
    if not is_well:
        raise typer.Exit(1)


def _show_findings(findings: Sequence[Finding]) -> None:
    """Print what a check found; statements and commands are not folded, so that you can paste them."""
    severity = min((finding.severity for finding in findings if finding.severity), key=list(CheckSeverity).index)
    mark, style = _MARKS[severity]
    say((f"{mark} ", style), f"{findings[0].id:<29} ", (findings[0].expected, "dim"))
    if severity is CheckSeverity.WELL:
        return
    unseen = "cannot be checked: " if severity is CheckSeverity.UNSEEN else ""
    for finding in findings:
        say(f"    {unseen}{finding.found}")
    # Together, so that they are pasted at once.
    fixes = {finding.fix: finding for finding in findings if finding.fix}
    for (how, note), fixing in groupby(fixes.values(), key=lambda finding: (finding.how, finding.note)):
        if how in _PLACES:
            say(f"    {_PLACES[how]}", style="cyan")
        for line in "\n".join(finding.fix for finding in fixing).splitlines():
            say(f"      {line}")
        if note:
            say(f"    {note}", style="dim")


def wait(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="What SELECT syncer.token() returned in it.")],
    *,
    timeout: Annotated[int, typer.Option(min=0, help="Seconds to wait at most.")] = TIMEOUT_SECONDS,
    searchable: Annotated[bool, flag("--searchable", text="Wait until searches show it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Wait until a transaction is indexed.

    Get the token inside the transaction, before its commit. Dead letters and suspended
    documents are reported, not waited for. Exit code 0 only if everything is indexed.
    """
    waited = verify_wait.wait(load_settings(), token, timeout_seconds=timeout, searchable=searchable)
    if as_json:
        render.print_json(waited)
    else:
        _show_waited(waited)
    if not waited.is_complete:
        raise typer.Exit(1)


def _show_waited(waited: Waited) -> None:
    if not waited.is_captured:
        say(f"Transaction {waited.xid} changed nothing that a document reads.")
        return
    state = "searchable" if waited.is_searchable else "indexed"
    end = "." if waited.is_complete else ", except:"
    say(f"Transaction {waited.xid} is {state}, after {waited.seconds:.3f} s{end}")
    for letter in waited.dead_lettered:
        say(f"  {letter.document} {shown_id(letter.id)} is dead-lettered: {letter.error}")
    for name in waited.suspended:
        say(f"  {name} is suspended: see syncer status")
    for name in waited.incomplete:
        say(f"  {name} has lost a job: run syncer backfill {name}")
    if waited.jobs:
        say(f"{amount(len(waited.jobs), 'job')} waited for: {', '.join(map(str, waited.jobs))}")
