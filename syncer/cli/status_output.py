"""The output of `syncer status`: problems, the flow of changes, documents, jobs, daemons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from syncer.base.formatting import amount, elapsed
from syncer.capture.leader import Leader
from syncer.cli import job_output
from syncer.cli.render import Part, Rows, counted
from syncer.jobs.model import Job
from syncer.monitoring.problems import Urgency, headline, problems, urgency
from syncer.monitoring.status import DocumentOverview, Flow, Overview, Running, Server

_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {Urgency.WELL: "green", Urgency.BUSY: "yellow", Urgency.BAD: "red"}
_SOON_SECONDS = 0.1


def status(seen: Overview, rates: Flow | None) -> Group:
    """The status, section by section; empty sections are left out, and those of servers that never answered."""
    parts = [_headline(seen), _flow(seen, rates), _documents(seen)]
    if seen.stored is not None:
        parts += [_jobs(seen.stored.jobs), _running(seen.stored.running)]
    return Group(*_apart(one for one in parts if one is not None))


def _apart(parts: Iterable[RenderableType]) -> Iterable[RenderableType]:
    for number, one in enumerate(parts):
        if number:
            yield Text("")
        yield one


def _headline(seen: Overview) -> RenderableType:
    found = problems(seen)
    lines = [Text(headline(seen), style=f"bold {_STYLES[urgency(seen)]}")]
    if len(found) == 1:
        lines.append(Text(found[0].action, style="dim"))
    elif found:
        for one in found:
            lines.append(Text(one.message, style="yellow" if one.is_passing else "red"))
            lines.extend(Text(f"  {line}", style="dim") for line in one.action.splitlines())
    return Group(*lines)


def _flow(seen: Overview, rates: Flow | None) -> RenderableType:
    stored = seen.stored
    if stored is None:
        rows: list[list[Part]] = [["leader", ("unknown", "dim"), ""], ["workers", ("unknown", "dim"), ""]]
    else:
        working: Part = (
            (f"{stored.workers} at work", "green") if stored.workers else ("none: is `syncer run` running?", "red")
        )
        in_outbox = amount(stored.outbox_waiting, "change") + " in the outbox" + _oldest(seen.outbox_lag_seconds)
        in_hand = amount(stored.topic_waiting, "change") + " published, not handled" + _oldest(seen.topic_lag_seconds)
        rows = [["leader", _led(stored.leader), in_outbox], ["workers", working, in_hand]]
    for row in rows:
        row.extend(_old(seen, Server.POSTGRES))
    headings = ["component", "state", "waiting", *(["as of"] if seen.silent else [])]
    if rates is not None:
        headings.append("per second")
        rows[0].append(f"{job_output.rate(rates.captured)} captured, {job_output.rate(rates.published)} published")
        rows[1].append(f"{job_output.rate(rates.handled)} handled")
        rows.append(["index", *[""] * (len(headings) - 2), f"{job_output.rate(rates.written)} documents written"])
    return Rows(headings, rows)


def _led(leader: Leader | None) -> Part:
    if leader is None:
        return "no relay leads: is `syncer run` running?", "red"
    place = f" from {leader.address}" if leader.address else ""
    age = "" if leader.seconds is None else f", connected for {elapsed(leader.seconds)}"
    return Text.assemble((f"led by Postgres connection {leader.process}", "green"), place, age)


def _old(seen: Overview, server: Server) -> list[Part]:
    """The age of the figures that a server gave, if one is silent."""
    if not seen.silent:
        return []
    (one,) = (one for one in seen.servers if one.server is server)
    return [(f"as of {elapsed(one.age_seconds)} ago" if one.error and one.age_seconds is not None else "", "yellow")]


def _oldest(seconds: float) -> str:
    return f", the oldest for {seconds:,.1f} s" if seconds >= _SOON_SECONDS else ""


def _documents(seen: Overview) -> RenderableType | None:
    if seen.stored is None:
        return None
    if not seen.documents:
        return Text("No document is active. Run: syncer apply")
    rows: list[list[Part]] = [
        [
            one.name,
            str(one.revision),
            _loaded(one),
            f"{one.lag_seconds:,.1f} s",
            (f"{one.dead_letters:,}", "red" if one.dead_letters else ""),
            "\n".join(one.targets),
            "\n".join(one.roles[name] for name in one.targets),
            Text("\n").join(
                Text(f"{held:,}") if held is not None else Text(one.faults.get(name, "unknown"), "red")
                for name, held in one.targets.items()
            ),
        ]
        for one in seen.documents
    ]
    return Rows(("document", "revision", "loaded", "lag", "dead_lettered", "index", "role", "documents"), rows)


def _loaded(document: DocumentOverview) -> Part:
    if document.suspended is not None:
        return "suspended", "red"
    return ("yes", "green") if document.is_loaded else ("no", "red")


def _jobs(jobs: Sequence[Job]) -> RenderableType | None:
    if not jobs:
        return None
    rows = [
        (
            f"{one.id} {one.reason}",
            one.index_name,
            f"{one.documents_done:,} of {counted(one.documents_total)}",
            job_output.pace(one),
        )
        for one in jobs
    ]
    return Rows(("job", "of", "done", "pace"), rows)


def _running(running: Sequence[Running]) -> RenderableType | None:
    if not running:
        return None
    rows = [
        (
            f"{one.host}, {one.process}",
            one.version or "unknown",
            _components(one),
            one.address or ("local socket" if one.since else "unknown"),
            f"{one.since:%Y-%m-%d %H:%M:%S}" if one.since else "unknown",
        )
        for one in running
    ]
    return Rows(("daemon", "version", "components", "connects from", "connected since (UTC)"), rows)


def _components(one: Running) -> str:
    """The components of a daemon, except those that every daemon has."""
    said = (
        ("leading relay" if one.leads else "standby relay") if one.has_relay else "",
        amount(one.worker_threads, "worker thread") if one.worker_threads else "",
        "job worker" if one.has_job_worker else "",
    )
    return ", ".join(filter(None, said))


def sparks(label: str, values: Sequence[float | None], said: str, *, width: int) -> Text:
    """A one-line plot: the last values, scaled to the highest, and the current value as text."""
    shown = list(values)[-max(1, width) :]
    highest = max((one for one in shown if one is not None), default=0.0)
    bars = "".join(
        " " if one is None else _BARS[min(len(_BARS) - 1, int(one / highest * len(_BARS)))] if highest else _BARS[0]
        for one in shown
    )
    return Text.assemble((f"{label:<8}", "bold"), (bars, "green"), f" {said}", no_wrap=True, overflow="ellipsis")
