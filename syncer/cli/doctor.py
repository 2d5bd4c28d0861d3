"""The command ``syncer doctor``: check the deployment, and show each problem with its fix."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from rich.console import Console

from syncer.base import log, settings
from syncer.cli import parameters, render
from syncer.cli.render import say
from syncer.monitoring import doctor as checks
from syncer.monitoring.doctor import Check, Finding, How, Severity

_MARKS = {
    Severity.WRONG: ("✘", "bold red"),
    Severity.CONSIDER: ("!", "bold yellow"),
    Severity.UNSEEN: ("?", "cyan"),
    Severity.WELL: ("✔", "green"),
}
_PLACES = {How.SQL: "in psql:", How.SHELL: "in a shell:"}


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
        report = checks.examine(loaded, settings.config_folder())
    if as_json:
        render.print_json(report.as_json())
    else:
        console = render.console(sys.stdout)
        for check, findings in report.findings.items():
            _show(console, check, findings)
        counts = ", ".join(f"{number} {severity}" for severity, number in report.numbers.items() if number)
        verdict = ("Nothing is wrong", "bold green") if report.is_well else ("Not all is well", "bold red")
        say(console, "\n", verdict, f": {counts}")
    if not report.is_well:
        raise typer.Exit(1)


def _show(console: Console, check: Check, findings: Sequence[Finding]) -> None:
    """Print a check, and what it found; statements and commands are not folded, so that you can paste them."""
    severity = min((finding.severity for finding in findings if finding.severity), key=list(Severity).index)
    mark, style = _MARKS[severity]
    say(console, (f"{mark} ", style), f"{check.id:<29} ", (check.expected, "dim"))
    if severity is Severity.WELL:
        return
    unseen = "cannot be checked: " if severity is Severity.UNSEEN else ""
    for finding in findings:
        say(console, f"    {unseen}{finding.found}")
    # Grouped by place, so that they are pasted at once.
    fixes: dict[tuple[How | None, str | None], list[str]] = {}
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
