"""What `syncer status` and `syncer top` show: whether all is well, the flow, documents, jobs, and who runs where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from syncer import terminal
from syncer.concern import Mood, concerns, headline, mood
from syncer.job import Job
from syncer.overview import DocumentOverview, Overview, Rates, Running
from syncer.wording import amount

_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {Mood.WELL: "green", Mood.BUSY: "yellow", Mood.BAD: "red"}
_SOON_SECONDS = 0.1
_TABLE_COLUMNS = 72


@dataclass(frozen=True, slots=True)
class _Rows:
    """A table; where it would be too narrow to be read, a block for each row, with a line for each cell.

    Args:
        headings: Of the columns.
        rows: Cells, as markup.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """As rich asks for it."""
        if options.max_width >= _TABLE_COLUMNS:
            table = terminal.table(*self.headings)
            for row in self.rows:
                table.add_row(*row)
            yield table
            return
        for first, *others in self.rows:
            yield Text.from_markup(first, style="bold")
            lines = Table.grid(padding=(0, 1, 0, 2), pad_edge=True)
            for heading, cell in zip(self.headings[1:], others, strict=True):
                if cell:
                    lines.add_row(Text(heading, style="dim"), cell)
            yield lines


def status(seen: Overview, rates: Rates | None) -> Group:
    """All of it, one below the other; what is empty is left out."""
    parts = [_headline(seen), _flow(seen, rates), _documents(seen), _jobs(seen.jobs), _running(seen.running)]
    return Group(*_apart(one for one in parts if one is not None))


def _apart(parts: Iterable[RenderableType]) -> Iterable[RenderableType]:
    for number, one in enumerate(parts):
        if number:
            yield Text("")
        yield one


def _headline(seen: Overview) -> RenderableType:
    found = concerns(seen)
    lines = [Text(headline(seen), style=f"bold {_STYLES[mood(seen)]}")]
    if len(found) == 1:
        lines.append(Text(found[0].do, style="dim"))
    elif found:
        for one in found:
            lines.append(Text(one.says, style="yellow" if one.is_passing else "red"))
            lines.extend(Text(f"  {line}", style="dim") for line in one.do.splitlines())
    return Group(*lines)


def _flow(seen: Overview, rates: Rates | None) -> RenderableType:
    leader = seen.leader
    if leader is None:
        led = "[red]no relay leads: is `syncer run` running?"
    else:
        place = f" from {leader.address}" if leader.address else ""
        age = "" if leader.seconds is None else f", connected for {terminal.duration(leader.seconds)}"
        led = f"[green]led by Postgres connection {leader.process}[/]{escape(place)}{age}"
    in_outbox = amount(seen.outbox_waiting, "change") + " in the outbox" + _oldest(seen.outbox_lag_seconds)
    working = f"[green]{seen.workers} at work" if seen.workers else "[red]none: is `syncer run` running?"
    in_topic = amount(seen.topic_waiting, "change") + " in the topic" + _oldest(seen.topic_lag_seconds)
    rows = [["relay", led, in_outbox], ["workers", working, in_topic], ["index", "", ""]]
    if rates:
        rows[0].append(f"{_rate(rates.captured)} captured, {_rate(rates.published)} published")
        rows[1].append(f"{_rate(rates.handled)} handled")
        rows[2].append(f"{_rate(rates.written)} documents written")
    headings = ("stage", "state", "waiting", "per second")
    return _Rows(headings, rows) if rates else _Rows(headings[:-1], rows[:-1])


def _oldest(seconds: float) -> str:
    return f", the oldest for {seconds:,.1f} s" if seconds >= _SOON_SECONDS else ""


def _rate(per_second: float) -> str:
    return terminal.rate(per_second)


def _documents(seen: Overview) -> RenderableType | None:
    if not seen.documents:
        return Text("No document is in force. Run: syncer apply")
    rows = [
        (
            escape(one.name),
            str(one.generation),
            _filled(one),
            f"[red]{one.dead_letters:,}" if one.dead_letters else "0",
            "\n".join(map(escape, one.targets)),
            "\n".join(one.roles[name] for name in one.targets),
            "\n".join(
                "[red]gone, closed, troubled[/]" if held is None else f"{held:,}" for held in one.targets.values()
            ),
        )
        for one in seen.documents
    ]
    return _Rows(("document", "generation", "filled", "parked", "index", "role", "documents"), rows)


def _filled(document: DocumentOverview) -> str:
    if document.halted is not None:
        return "[red]halted"
    return "[green]yes" if document.is_filled else "[red]no"


def _jobs(jobs: Sequence[Job]) -> RenderableType | None:
    if not jobs:
        return None
    rows = []
    for one in jobs:
        total = "?" if one.documents_total is None else f"{one.documents_total:,}"
        done = f"{one.documents_done:,} of {total}"
        rows.append((escape(f"{one.id} {one.reason}"), escape(one.index_name), done, terminal.pace(one)))
    return _Rows(("job", "of", "done", "pace"), rows)


def _running(running: Sequence[Running]) -> RenderableType | None:
    if not running:
        return None
    rows = [
        (
            escape(one.address or "beside Postgres"),
            str(one.daemons),
            _stages(one),
            f"{one.since:%Y-%m-%d %H:%M:%S}" if one.since else "",
        )
        for one in running
    ]
    return _Rows(("from", "daemons", "stages", "since (UTC)"), rows)


def _stages(one: Running) -> str:
    """Which stages, without those that every daemon has."""
    standing_by = one.relays - one.leads
    said = (
        "the relay that leads" if one.leads else "",
        f"{amount(standing_by, 'relay')} standing by" if standing_by else "",
        "workers" if one.works else "",
    )
    return ", ".join(filter(None, said))


def sparks(label: str, values: Sequence[float | None], said: str, *, width: int) -> Text:
    """A plot of one line: the last values, the highest as high as a line, and what the last one is."""
    shown = list(values)[-max(1, width) :]
    highest = max((one for one in shown if one is not None), default=0.0)
    bars = "".join(
        " " if one is None else _BARS[min(len(_BARS) - 1, int(one / highest * len(_BARS)))] if highest else _BARS[0]
        for one in shown
    )
    return Text.assemble((f"{label:<8}", "bold"), (bars, "green"), f" {said}", no_wrap=True, overflow="ellipsis")
