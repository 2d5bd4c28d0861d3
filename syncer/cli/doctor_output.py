"""The output of `syncer doctor`: for each server the problems in full, and the rest in a line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console

from syncer.base.formatting import amount
from syncer.cli.render import say
from syncer.monitoring.doctor.check import Check, Finding, Severity
from syncer.monitoring.doctor.examination import SERVERS, Report

_MARKS = {
    Severity.WRONG: ("✘", "bold red"),
    Severity.CONSIDER: ("!", "bold yellow"),
    Severity.UNSEEN: ("?", "cyan"),
    Severity.WELL: ("✔", "green"),
}
_HOW = {"sql": "in psql:", "shell": "in a shell:"}
_WIDTH_MAX = 100


def show(console: Console, report: Report, *, all_checks: bool) -> None:
    """Print a report."""
    for server, title in SERVERS.items():
        checks = {check: found for check, found in report.findings.items() if check.server == server}
        if server == "kafka" and not checks:
            say(console, ("Kafka", "bold"), ("  is not used: one daemon at a time reads the outbox and writes", "dim"))
            say(console)
            continue
        well = sum(found[0].severity is Severity.WELL for found in checks.values())
        say(console, (report.servers.get(server, title), "bold"), (f"  {well} of {len(checks)} checks are well", "dim"))
        unseen: dict[str, list[str]] = {}
        for check, found in checks.items():
            if found[0].fix is not None:
                _show_problem(console, check, found)
            elif all_checks:
                _show_line(console, check, found[0])
            elif found[0].severity is Severity.UNSEEN:
                unseen.setdefault(found[0].found.splitlines()[0], []).append(check.id.partition(".")[2])
        for why, names in unseen.items():
            _show_text(console, f"? cannot be checked: {why}", style="cyan", indent=2)
            _show_text(console, ", ".join(names), style="dim")
        say(console)
    _show_verdict(console, report)


def _show_line(console: Console, check: Check, finding: Finding) -> None:
    mark, style = _MARKS[finding.severity]
    text = check.claim if finding.severity is Severity.WELL else f"cannot be checked: {finding.found}"
    say(console, (f"  {mark} ", style), (f"{check.id:<30}", ""), (text, "dim"))


def _show_problem(console: Console, check: Check, findings: Sequence[Finding]) -> None:
    """Print a check's findings, why they matter, and the fixes, grouped by place so that you can paste them."""
    severity = min((one.severity for one in findings), key=list(Severity).index)
    mark, style = _MARKS[severity]
    say(console, (f"  {mark} ", style), (check.id, style))
    for one in findings:
        _show_text(console, one.found)
    _show_text(console, f"{check.why} (guarantee {', '.join(map(str, check.guarantees))})", style="dim")
    fixes: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        if one.fix is not None and one.fix.text not in fixes.setdefault((one.fix.how, one.fix.note), []):
            fixes[one.fix.how, one.fix.note].append(one.fix.text)
    for (how, note), texts in fixes.items():
        if how == "advice":
            for text in texts:
                _show_text(console, text, style="cyan")
            continue
        say(console, f"    {_HOW[how]}", style="cyan")
        for line in "\n".join(texts).splitlines():
            say(console, f"      {line}")  # not folded, so that you can paste it
        _show_text(console, note, style="dim")


def _show_text(console: Console, text: str, *, style: str = "", indent: int = 4) -> None:
    """Print text folded to a readable width, also in a pipe."""
    width = min(console.width, _WIDTH_MAX) - indent
    for line in text.splitlines():
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False):
            say(console, f"{' ' * indent}{part}", style=style)


def _show_verdict(console: Console, report: Report) -> None:
    numbers = report.numbers
    if report.is_well(strict=True):
        verdict, style = "All is well", "bold green"
    elif report.is_well(strict=False):
        verdict, style = "Nothing is wrong", "bold green"
    else:
        verdict, style = f"{amount(numbers[Severity.WRONG], 'thing')} wrong", "bold red"
    counts = [f"{numbers[Severity.WELL]} well"]
    counts += [f"{numbers[Severity.CONSIDER]} to consider"] if numbers[Severity.CONSIDER] else []
    counts += [f"{numbers[Severity.UNSEEN]} cannot be checked"] if numbers[Severity.UNSEEN] else []
    say(console, (verdict, style), f": {', '.join(counts)} ({report.seconds:.1f} s)")
