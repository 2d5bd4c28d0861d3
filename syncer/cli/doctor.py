"""The command ``doctor``, which checks the deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import typer

from syncer.cli import render
from syncer.cli.context import AsJson, load_settings
from syncer.cli.render import say
from syncer.monitoring.doctor import CheckSeverity, Finding, How, examine

_MARKS = {
    CheckSeverity.WRONG: ("✘", "bold red"),
    CheckSeverity.CONSIDER: ("!", "bold yellow"),
    CheckSeverity.UNSEEN: ("?", "cyan"),
    CheckSeverity.WELL: ("✔", "green"),
}
_PLACES = {How.SQL: "in psql:", How.SHELL: "in a shell:", How.REQUEST: "in Dev Tools, or by curl:"}


def doctor(*, as_json: AsJson = False) -> None:
    """Check the deployment and suggest fixes.

    Checks every setting, privilege and condition that a guarantee depends on. Changes
    nothing and takes a few seconds. Run it with the daemon's settings. If a server is
    unavailable or a privilege is missing, reports the checks that could not run. Exit code 0
    only if nothing is wrong.
    """
    with render.progress("asking Postgres, Kafka and Elasticsearch"):
        findings = examine(load_settings())
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
