"""The commands that ask what is done: ``status``, ``events`` and ``wait``. None needs a daemon."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from syncer.base import timeline
from syncer.base.formatting import amount, elapsed, shown_id
from syncer.cli import render
from syncer.cli.context import AsJson, flag, load_settings, open_postgres
from syncer.cli.render import TIME, Part, say, show_table
from syncer.monitoring import problems
from syncer.monitoring.problems import Urgency
from syncer.monitoring.status import WAITING_MAX, DocumentStatus, Reader, Status, Stored
from syncer.verify import wait as verify_wait

_STYLES = {Urgency.WELL: "green", Urgency.BUSY: "yellow", Urgency.BAD: "red"}
_SOON_SECONDS = 0.1
_LEVELS = {"warning": "yellow", "error": "red"}
_PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def status(*, as_json: AsJson = False) -> None:
    """Show health, lag, throughput, documents, jobs and daemons.

    Asks the servers directly; no daemon has to run. If a server does not answer within two
    seconds, shows the figures of the others. Exit code 0 only if everything is healthy.
    To follow it: `watch syncer status`.
    """
    reader = Reader(load_settings())
    with render.progress("asking Postgres and Elasticsearch"):
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


def wait(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="What SELECT syncer.token() returned in it.")],
    *,
    timeout: Annotated[int, typer.Option(min=0, help="Seconds to wait at most.")] = verify_wait.TIMEOUT_SECONDS,
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


def _show_waited(waited: verify_wait.Waited) -> None:
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
