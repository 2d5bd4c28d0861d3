"""The command ``syncer doctor``: check the deployment, and show each problem with its fix."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

import typer
from rich.console import Console

from syncer.base import log, settings
from syncer.base.formatting import amount
from syncer.cli import parameters, render
from syncer.cli.render import say
from syncer.monitoring import doctor as checks
from syncer.monitoring.doctor import Check, Finding, How, Report, Severity

_TITLES = {"postgres": "Postgres", "kafka": "Kafka", "elasticsearch": "Elasticsearch"}
_MARKS = {
    Severity.WRONG: ("✘", "bold red"),
    Severity.CONSIDER: ("!", "bold yellow"),
    Severity.UNSEEN: ("?", "cyan"),
    Severity.WELL: ("✔", "green"),
}
_PLACES = {How.SQL: "in psql:", How.SHELL: "in a shell:"}
_WIDTH_MAX = 100
_NAME_COLUMNS = 35


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
        _show(render.console(sys.stdout), report)
    if not report.is_well:
        raise typer.Exit(1)


def _show(console: Console, report: Report) -> None:
    for server, title in _TITLES.items():
        found = {check: findings for check, findings in report.findings.items() if check.server == server}
        if found:
            say(console, (title, "bold"))
        for check, findings in found.items():
            _show_check(console, check, findings)
        if found:
            say(console)
    numbers = report.numbers
    verdict, style = "Nothing is wrong", "bold green"
    if not report.is_well:
        verdict, style = f"{amount(numbers[Severity.WRONG], 'thing')} wrong", "bold red"
    counts = [f"{numbers[Severity.WELL]} well"]
    counts += [f"{numbers[Severity.CONSIDER]} to consider"] if numbers[Severity.CONSIDER] else []
    counts += [f"{numbers[Severity.UNSEEN]} cannot be checked"] if numbers[Severity.UNSEEN] else []
    say(console, (verdict, style), f": {', '.join(counts)}")


def _show_check(console: Console, check: Check, findings: Sequence[Finding]) -> None:
    """Print a check, and what it found, with the fixes grouped by place so that you can paste them."""
    severity = min((finding.severity for finding in findings if finding.severity), key=list(Severity).index)
    mark, style = _MARKS[severity]
    name = (f"{check.id:<29} ", "" if severity is Severity.WELL else style)
    if min(console.width, _WIDTH_MAX) > _NAME_COLUMNS + len(check.expected):
        say(console, (f"  {mark} ", style), name, (check.expected, "dim"))
    else:
        say(console, (f"  {mark} ", style), name)
        _show_text(console, check.expected, style="dim")
    if severity is Severity.WELL:
        return
    for finding in findings:
        _show_text(console, f"cannot be checked: {finding.found}" if severity is Severity.UNSEEN else finding.found)
    fixes: dict[tuple[How | None, str | None], list[str]] = {}
    for finding in findings:
        if finding.fix and finding.fix not in fixes.setdefault((finding.how, finding.note), []):
            fixes[finding.how, finding.note].append(finding.fix)
    for (how, note), texts in fixes.items():
        if how not in _PLACES:
            for text in texts:
                _show_text(console, text, style="cyan")
            continue
        say(console, f"    {_PLACES[how]}", style="cyan")
        for line in "\n".join(texts).splitlines():
            say(console, f"      {line}")  # not folded, so that you can paste it
        _show_text(console, note or "", style="dim")


def _show_text(console: Console, text: str, *, style: str = "") -> None:
    """Print text folded to a readable width, also in a pipe."""
    for line in text.splitlines():
        for part in textwrap.wrap(
            line, min(console.width, _WIDTH_MAX) - 4, break_long_words=False, break_on_hyphens=False
        ):
            say(console, f"    {part}", style=style)
