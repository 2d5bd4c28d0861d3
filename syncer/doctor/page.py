"""What `syncer doctor` shows to a person: by server, what is not well in full, and the rest in a line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from syncer.doctor.examination import Report
from syncer.doctor.finding import Finding
from syncer.doctor.symptom import Group, How, Mend, Severity
from syncer.wording import amount

_TITLES = {
    Group.POSTGRES: "Postgres",
    Group.KAFKA: "Kafka",
    Group.ELASTICSEARCH: "Elasticsearch",
    Group.SYNCER: "syncer",
}
_MARKS = {
    Severity.WRONG: ("✘", "bold red"),
    Severity.CONSIDER: ("!", "bold yellow"),
    Severity.UNSEEN: ("?", "cyan"),
    Severity.WELL: ("✔", "green"),
}
_TO_DO = {How.SQL: "in psql", How.SHELL: "in a shell", How.ADVICE: "to do"}
_WIDTH_MAX = 100


def show(console: Console, report: Report, *, all_checks: bool) -> None:
    """All of a report."""
    for group in Group:
        findings = [one for one in report.findings if one.check.group is group]
        title = report.servers.get(group, _TITLES[group])
        console.print(Text.assemble((title, "bold"), ("  " + _counted(findings), "dim")), soft_wrap=True)
        for (_, severity), alike in groupby(findings, key=lambda one: (one.check.id, one.severity)):
            if severity in (Severity.WRONG, Severity.CONSIDER):
                _show_ill(console, list(alike))
            elif all_checks:
                for one in alike:
                    _show_line(console, one)
        if not all_checks:
            _show_unseen(console, [one for one in findings if one.severity is Severity.UNSEEN])
        console.print()
    _show_verdict(console, report)


def _counted(findings: Sequence[Finding]) -> str:
    many = sum(one.severity is Severity.WELL for one in findings)
    return f"{many} of {len({one.check.id for one in findings})} checks are well"


def _show_line(console: Console, one: Finding) -> None:
    mark, style = _MARKS[one.severity]
    said = one.check.claim if one.severity is Severity.WELL else f"cannot be seen: {one.found}"
    console.print(Text.assemble((f"  {mark} ", style), (f"{one.check.id:<30}", ""), (said, "dim")), soft_wrap=True)


def _show_ill(console: Console, alike: Sequence[Finding]) -> None:
    """What one check has found: each thing, why it matters, and each mend, once."""
    mark, style = _MARKS[alike[0].severity]
    check = alike[0].check
    console.print(Text.assemble((f"  {mark} ", style), (check.id, style)))
    for one in alike:
        _show_text(console, one.found)
    promises = ", ".join(map(str, check.promises))
    rests = f" (promise {promises})" if check.promises else ""
    _show_text(console, f"{check.why}{rests}", style="dim")
    for mend in _together(one.mend for one in alike if one.mend is not None):
        _show_mend(console, mend)


def _together(mends: Iterable[Mend]) -> Iterator[Mend]:
    """Those that are typed at the same place, with the same note, as one."""
    texts: dict[tuple[How, str], dict[str, None]] = {}
    for one in mends:
        texts.setdefault((one.how, one.note), {})[one.text] = None
    for (how, note), said in texts.items():
        yield Mend(how=how, text="\n".join(said), note=note)


def _show_mend(console: Console, mend: Mend) -> None:
    if mend.how is How.ADVICE:
        _show_text(console, mend.text, style="cyan", label=f"{_TO_DO[mend.how]}: ")
        return
    console.print(Text(f"    {_TO_DO[mend.how]}:", style="cyan"))
    for line in mend.text.splitlines():
        # Not broken: it is to be pasted.
        console.print(Text(f"      {line}"), soft_wrap=True)
    if mend.note:
        _show_text(console, mend.note, style="dim")


def _show_text(console: Console, text: str, *, style: str = "", label: str = "") -> None:
    """Lines of a readable length, also in a pipe."""
    width = min(console.width, _WIDTH_MAX) - 4
    for line in text.splitlines():
        for part in textwrap.wrap(f"{label}{line}", width, break_long_words=False, break_on_hyphens=False):
            console.print(Text(f"    {part}", style=style), soft_wrap=True)
        label = ""


def _show_unseen(console: Console, findings: Sequence[Finding]) -> None:
    """What could not be looked at, by reason."""
    mark, style = _MARKS[Severity.UNSEEN]
    for why in dict.fromkeys(one.found for one in findings):
        names = [one.check.id.partition(".")[2] for one in findings if one.found == why]
        said = textwrap.wrap(f"cannot be seen: {why.splitlines()[0]}", min(console.width, _WIDTH_MAX) - 4)
        for number, line in enumerate(said):
            console.print(Text(f"{'   ' if number else f'  {mark}'} {line}", style=style), soft_wrap=True)
        _show_text(console, ", ".join(names), style="dim")


def _show_verdict(console: Console, report: Report) -> None:
    numbers = report.numbers
    if report.is_well(strict=True):
        said, style = "All is well", "bold green"
    elif report.is_well(strict=False):
        said, style = "Nothing is wrong", "bold green"
    else:
        said, style = f"{amount(numbers[Severity.WRONG], 'thing')} wrong", "bold red"
    rest = [f"{numbers[Severity.CONSIDER]} to consider" if numbers[Severity.CONSIDER] else ""]
    rest.append(f"{numbers[Severity.UNSEEN]} that cannot be seen" if numbers[Severity.UNSEEN] else "")
    parts = ", ".join(one for one in rest if one)
    counted = f": {numbers[Severity.WELL]} well{', ' + parts if parts else ''} ({report.seconds:.1f} s)"
    console.print(Text.assemble((said, style), counted), soft_wrap=True)
