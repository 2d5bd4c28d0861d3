"""The commands ``syncer doctor``, ``syncer events`` and ``syncer wait``: each asks a question and prints the answer."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console

from syncer.base import log, migrations, postgres, settings, timeline
from syncer.base.formatting import amount
from syncer.base.timeline import DAYS_KEPT
from syncer.cli import parameters, render
from syncer.cli.parameters import finite, flag
from syncer.cli.render import say
from syncer.monitoring import doctor as checks
from syncer.monitoring.doctor import Finding, How, Severity
from syncer.verify.wait import TIMEOUT_SECONDS, Waited, Waiter

_MARKS = {
    Severity.WRONG: ("✘", "bold red"),
    Severity.CONSIDER: ("!", "bold yellow"),
    Severity.UNSEEN: ("?", "cyan"),
    Severity.WELL: ("✔", "green"),
}
_PLACES = {How.SQL: "in psql:", How.SHELL: "in a shell:", How.REQUEST: "in the console of Kibana, or by curl:"}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LEVELS = {"warning": "yellow", "error": "red"}


def doctor(*, as_json: parameters.AsJson = False) -> None:
    """Check the deployment and suggest fixes.

    Checks every setting, privilege and condition that a guarantee depends on. Changes
    nothing and takes a few seconds. Run it with the daemon's settings. If a server is
    unavailable or a privilege is missing, reports the checks that could not run. Exit code 0
    only if nothing is wrong.
    """
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    with render.asking():
        findings = checks.examine(loaded)
    found = Counter(finding.severity for finding in findings)
    numbers, is_well = {severity: found[severity] for severity in Severity}, not found[Severity.WRONG]
    if as_json:
        render.print_json({"is_well": is_well, **numbers, "findings": findings})
    else:
        console = render.console(sys.stdout)
        for _, of_check in groupby(findings, key=lambda finding: finding.id):
            _show_findings(console, list(of_check))
        counts = ", ".join(f"{number} {severity}" for severity, number in numbers.items() if number)
        verdict = ("Nothing is wrong", "bold green") if is_well else ("Not all is well", "bold red")
        say(console, "\n", verdict, f": {counts}")
    if not is_well:
        raise typer.Exit(1)


def _show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print what a check found; statements and commands are not folded, so that you can paste them."""
    severity = min((finding.severity for finding in findings if finding.severity), key=list(Severity).index)
    mark, style = _MARKS[severity]
    say(console, (f"{mark} ", style), f"{findings[0].id:<29} ", (findings[0].expected, "dim"))
    if severity is Severity.WELL:
        return
    unseen = "cannot be checked: " if severity is Severity.UNSEEN else ""
    for finding in findings:
        say(console, f"    {unseen}{finding.found}")
    # Grouped by place, so that they are pasted at once.
    fixes: dict[tuple[How | None, str], list[str]] = {}
    for finding in findings:
        if finding.fix and finding.fix not in fixes.setdefault((finding.how, finding.note), []):
            fixes[finding.how, finding.note].append(finding.fix)
    for (how, note), texts in fixes.items():
        if how in _PLACES:
            say(console, f"    {_PLACES[how]}", style="cyan")
        for line in "\n".join(texts).splitlines():
            say(console, f"      {line}")
        if note:
            say(console, f"    {note}", style="dim")


def _period(value: str) -> str:
    if not re.fullmatch(r"[0-9]{1,6}[smhd]", value):
        raise typer.BadParameter(f"{value} is not a period such as 30m, 24h or 7d")
    return value


def events(
    *,
    since: Annotated[
        str,
        typer.Option(metavar="PERIOD", callback=_period, help=f"How far to go back: 30m, 24h; at most {DAYS_KEPT}d."),
    ] = "24h",
    as_json: parameters.AsJson = False,
) -> None:
    """Show what happened lately, newest last.

    Shows daemons that start, stop or disappear, new leaders, outages once they are over,
    failovers, suspended and resumed documents, jobs that wrote every document, applies and
    verifies. Postgres keeps them for a week.
    """
    with postgres.connect(settings.load().postgres, name="events") as connection:
        migrations.require_current(connection)
        found = timeline.read(connection, seconds=int(since[:-1]) * _SECONDS[since[-1]])
    out = render.console(sys.stdout)
    if as_json:
        render.print_json(found)
    elif not found:
        render.say(out, f"Nothing happened in the last {since}.")
    else:
        rows = [
            (
                f"{note.at:%Y-%m-%d %H:%M:%S}",
                (note.message, _LEVELS.get(note.level, "")),
                f"{note.host}, {note.process}",
            )
            for note in found
        ]
        out.print(render.table(("at (UTC)", "event", "host, process"), rows))


def wait(
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="The result of SELECT syncer.token() in that transaction.")
    ],
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, callback=finite, help="Maximum time to wait.")
    ] = TIMEOUT_SECONDS,
    searchable: Annotated[
        bool, flag("--searchable", text="Wait until searches show it; refreshes the indices.")
    ] = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Wait until a transaction is indexed.

    Get the token inside the transaction, before its commit. Dead letters and suspended
    documents are reported, not waited for. Exit code 0 only if everything is indexed.
    """
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    with Waiter(loaded) as waiter:
        waited = waiter.wait(token, timeout_seconds=timeout, searchable=searchable)
    if as_json:
        render.print_json(waited)
    else:
        _show_waited(render.console(sys.stdout), waited)
    if not waited.is_complete:
        raise typer.Exit(1)


def _show_waited(out: Console, waited: Waited) -> None:
    if not waited.is_captured:
        say(out, f"Transaction {waited.xid} changed nothing that a document reads.")
        return
    what = "searchable" if waited.is_searchable else "indexed"
    end = "." if waited.is_complete else ", except:"
    say(out, f"Transaction {waited.xid} is {what}, after {waited.seconds:.3f} s{end}")
    for letter in waited.dead_lettered:
        say(out, f"  {letter.document} {letter.id} is dead-lettered: {letter.error}")
    for name in waited.suspended:
        say(out, f"  {name} is suspended: see syncer status")
    for name in waited.incomplete:
        say(out, f"  {name} has lost a job: run syncer backfill {name}")
    if waited.jobs:
        say(out, f"{amount(len(waited.jobs), 'job')} waited for: {', '.join(map(str, waited.jobs))}")
