"""What `syncer status` and `syncer top` show: whether all is well, the flow, documents, jobs, and who runs where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
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


def _flow(seen: Overview, rates: Rates | None) -> Table:
    flow = terminal.table("stage", "state", "waiting", *(("per second",) if rates else ()))
    leader = seen.leader
    if leader is None:
        led = "[red]no relay leads: is `syncer run` running?"
    else:
        place = f" from {leader.address}" if leader.address else ""
        age = "" if leader.seconds is None else f" for {terminal.duration(leader.seconds)}"
        led = f"[green]led by Postgres connection {leader.process}[/]{escape(place)}{age}"
    in_outbox = amount(seen.outbox_waiting, "change") + " in the outbox" + _oldest(seen.outbox_lag_seconds)
    working = f"[green]{seen.workers} at work" if seen.workers else "[red]none: is `syncer run` running?"
    in_topic = amount(seen.topic_waiting, "change") + " in the topic" + _oldest(seen.topic_lag_seconds)
    rows = [["relay", led, in_outbox], ["workers", working, in_topic], ["index", "", ""]]
    if rates:
        rows[0].append(f"{_rate(rates.captured)} captured, {_rate(rates.published)} published")
        rows[1].append(f"{_rate(rates.handled)} handled")
        rows[2].append(f"{_rate(rates.written)} documents written")
    for row in rows if rates else rows[:2]:
        flow.add_row(*row)
    return flow


def _oldest(seconds: float) -> str:
    return f", the oldest for {seconds:,.1f} s" if seconds >= _SOON_SECONDS else ""


def _rate(per_second: float) -> str:
    return terminal.rate(per_second)


def _documents(seen: Overview) -> RenderableType | None:
    if not seen.documents:
        return Text("No document is in force. Run: syncer apply")
    documents = terminal.table("document", "generation", "filled", "dead letters", "index", "role", "documents")
    for one in seen.documents:
        documents.add_row(
            escape(one.name),
            str(one.generation),
            _filled(one),
            f"[red]{one.dead_letters:,}" if one.dead_letters else "0",
            "\n".join(map(escape, one.targets)),
            "\n".join(one.roles[name] for name in one.targets),
            "\n".join("[red]gone or closed" if number is None else f"{number:,}" for number in one.targets.values()),
        )
    return documents


def _filled(document: DocumentOverview) -> str:
    if document.halted is not None:
        return "[red]halted"
    return "[green]yes" if document.is_filled else "[red]no"


def _jobs(jobs: Sequence[Job]) -> RenderableType | None:
    if not jobs:
        return None
    table = terminal.table("job", "of", "done", "how fast, and how long yet")
    for one in jobs:
        total = "?" if one.documents_total is None else f"{one.documents_total:,}"
        pace = "waits: the document is halted" if one.is_halted else terminal.pace(one)
        table.add_row(
            escape(f"{one.id} {one.reason}"), escape(one.index_name), f"{one.documents_done:,} of {total}", pace
        )
    return table


def _running(running: Sequence[Running]) -> RenderableType | None:
    if not running:
        return None
    table = terminal.table("from", "daemons", "stages", "since (UTC)")
    for one in running:
        table.add_row(
            escape(one.address or "beside Postgres"),
            str(one.daemons),
            _stages(one),
            f"{one.since:%Y-%m-%d %H:%M:%S}",
        )
    return table


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
