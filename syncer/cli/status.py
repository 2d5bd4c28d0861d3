"""The command ``syncer status``: show the status, once or live. It needs no daemon."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from syncer.base import log, settings
from syncer.base.formatting import amount, elapsed
from syncer.cli import job_output, parameters, render
from syncer.cli.parameters import UsageError
from syncer.cli.render import Part, Rows, counted
from syncer.jobs.model import Job
from syncer.monitoring import problems
from syncer.monitoring.daemons import Daemon
from syncer.monitoring.problems import Urgency
from syncer.monitoring.status import POSTGRES, DocumentStatus, Reader, Status, Stored

_STYLES = {Urgency.WELL: "green", Urgency.BUSY: "yellow", Urgency.BAD: "red"}
_SOON_SECONDS = 0.1
_WATCH_SECONDS = 1.0


def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it live until you press Ctrl-C.")] = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Show health, lag, throughput, documents, jobs and daemons.

    Asks the servers directly; no daemon has to run. If a server does not answer within two
    seconds, shows the figures of the others. Exit code 0 only if everything is healthy.
    """
    if watch and as_json:
        raise UsageError("--watch and --json cannot be combined.")
    console = render.console(sys.stdout)
    if watch and not console.is_terminal:
        raise UsageError("--watch needs a terminal. Omit it to show the status once.")
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    reader = Reader(loaded)
    if watch:
        _watch(reader, console)
        return
    with render.asking():
        read = reader.read()
    reader.close()
    if as_json:
        render.print_json(problems.as_json(read))
    else:
        console.print(_shown(read), soft_wrap=not sys.stdout.isatty())
    if problems.problems(read):
        raise typer.Exit(1)


def _watch(reader: Reader, console: Console) -> None:
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_shown(reader.read()), refresh=True)
            time.sleep(_WATCH_SECONDS)


def _shown(read: Status) -> Group:
    """The status, section by section; empty sections are left out, and those of servers that never answered."""
    parts = [_headline(read), _flow(read), _documents(read)]
    if read.stored is not None:
        parts += [_jobs(read.stored.jobs), _daemons(read.stored.daemons)]
    shown: list[RenderableType] = []
    for part in parts:
        if part is not None:
            shown += [Text(""), part] if shown else [part]
    return Group(*shown)


def _headline(read: Status) -> RenderableType:
    found = problems.problems(read)
    lines = [Text(problems.headline(read), style=f"bold {_STYLES[problems.urgency(read)]}")]
    if len(found) == 1:
        lines += _explained(found[0])
    elif found:
        for problem in found:
            lines.append(Text(problem.message, style="yellow" if problem.is_passing else "red"))
            lines += _explained(problem, indent="  ")
    return Group(*lines)


def _explained(problem: problems.Problem, *, indent: str = "") -> Iterator[Text]:
    where = problem.detail.splitlines() if problem.runbook == "SyncerComponentTroubled" else []
    for line in [*problem.action.splitlines(), *where]:
        yield Text(f"{indent}{line}", style="dim")


def _flow(read: Status) -> RenderableType | None:
    stored = read.stored
    if stored is None:
        return None
    pace = f"{stored.workers} at work, {job_output.rate(stored.written_per_second)} documents/s"
    workers: Part = (pace, "green") if stored.workers else ("none", "red")
    outbox = amount(stored.outbox_waiting, "change") + " in the outbox" + _oldest(read.outbox_lag_seconds)
    in_hand = amount(stored.topic_waiting, "change") + " read, not handled" + _oldest(read.topic_lag_seconds)
    rows: list[list[Part]] = [["leader", _led(stored), outbox], ["workers", workers, in_hand]]
    headings = ["component", "state", "waiting"]
    if (postgres := next(server for server in read.servers if server.server == POSTGRES)).error is not None:
        headings.append("as of")
        for row in rows:
            row.append((f"{elapsed(postgres.age_seconds or 0)} ago", "yellow"))
    return Rows(headings, rows)


def _led(stored: Stored) -> Part:
    leader = stored.leader
    return ("none", "red") if leader is None else (f"{leader.host}, process {leader.process}", "green")


def _oldest(seconds: float) -> str:
    return f", the oldest for {seconds:,.1f} s" if seconds >= _SOON_SECONDS else ""


def _documents(read: Status) -> RenderableType | None:
    if read.stored is None:
        return None
    if not read.documents:
        return Text("No document is active. Run: syncer apply")
    rows: list[list[Part]] = [
        [
            document.name,
            str(document.revision),
            _loaded(document),
            f"{document.lag_seconds:,.1f} s",
            (f"{document.dead_letters:,}", "red" if document.dead_letters else ""),
            "\n".join(document.targets),
            "\n".join(document.roles[name] for name in document.targets),
            Text("\n").join(
                Text(f"{count:,}") if count is not None else Text(document.faults.get(name, "unknown"), "red")
                for name, count in document.targets.items()
            ),
        ]
        for document in read.documents
    ]
    return Rows(("document", "revision", "loaded", "lag", "dead_lettered", "index", "role", "documents"), rows)


def _loaded(document: DocumentStatus) -> Part:
    if document.suspended is not None:
        return "suspended", "red"
    return ("yes", "green") if document.is_loaded else ("no", "red")


def _jobs(jobs: Sequence[Job]) -> RenderableType | None:
    if not jobs:
        return None
    rows = [
        (
            f"{job.id} {job.reason}",
            job.index_name,
            f"{job.documents_done:,} of {counted(job.documents_total)}",
            job_output.pace(job),
        )
        for job in jobs
    ]
    return Rows(("job", "of", "done", "pace"), rows)


def _daemons(daemons: Sequence[Daemon]) -> RenderableType | None:
    if not daemons:
        return None
    rows: list[tuple[Part, ...]] = [
        (
            f"{daemon.host}, {daemon.process}",
            daemon.version,
            _components(daemon),
            f"{daemon.started_at:%Y-%m-%d %H:%M:%S}",
            (f"has not reported for {elapsed(daemon.silent_seconds)}", "red") if daemon.is_silent else "",
        )
        for daemon in daemons
    ]
    return Rows(("daemon", "version", "components", "started (UTC)", ""), rows)


def _components(daemon: Daemon) -> str:
    """The components of a daemon, except those that every daemon has."""
    if not daemon.components:
        return "starting"
    parts = (
        "leads" if daemon.leads else "stands by" if "relay" in daemon.components else "",
        amount(daemon.workers, "worker") if daemon.workers else "",
        "job worker" if "job_worker" in daemon.components else "",
    )
    return ", ".join(filter(None, parts))
