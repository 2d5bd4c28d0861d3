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
from syncer.cli import jobs, parameters, render
from syncer.cli.parameters import UsageError, flag
from syncer.cli.render import Part, table
from syncer.monitoring import problems
from syncer.monitoring.daemons import Daemon
from syncer.monitoring.problems import Urgency
from syncer.monitoring.status import POSTGRES, DocumentStatus, Reader, Status

_STYLES = {Urgency.WELL: "green", Urgency.BUSY: "yellow", Urgency.BAD: "red"}
_SOON_SECONDS = 0.1
_WATCH_SECONDS = 1.0


def status(
    *,
    watch: Annotated[bool, flag("--watch", "-w", text="Show it live until you press Ctrl-C.")] = False,
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
    """The status, section by section; empty sections are left out, and those of a Postgres that never answered."""
    shown: list[RenderableType] = [Text("\n").join(_headline(read))]
    for section in _sections(read):
        shown += [Text(""), section]
    return Group(*shown)


def _headline(read: Status) -> Iterator[Text]:
    found = problems.problems(read)
    yield Text(problems.headline(read), style=f"bold {_STYLES[problems.urgency(read)]}")
    for problem in found:
        indent = ""
        if len(found) > 1:
            yield Text(problem.message, style="yellow" if problem.is_passing else "red")
            indent = "  "
        where = problem.detail if problem.runbook == "SyncerComponentTroubled" else ""
        for line in [*problem.action.splitlines(), *where.splitlines()]:
            yield Text(f"{indent}{line}", style="dim")


def _sections(read: Status) -> Iterator[RenderableType]:
    stored = read.stored
    if stored is None:
        return
    yield _flow(read)
    if read.documents:
        headings = ("document", "loaded", "lag", "dead letters", "index", "role", "documents")
        yield table(headings, map(_document, read.documents))
    else:
        yield Text("No document is active. Run: syncer apply")
    if stored.jobs:
        rows = [(f"{job.id} {job.reason}", job.index_name, jobs.done(job), jobs.pace(job)) for job in stored.jobs]
        yield table(("job", "of", "done", "pace"), rows)
    if stored.daemons:
        yield table(("daemon", "version", "components", "started (UTC)", ""), map(_daemon, stored.daemons))


def _flow(read: Status) -> RenderableType:
    stored, workers = read.stored, ("none", "red")
    assert stored is not None  # see above
    if stored.workers:
        pace = f"{jobs.rate(stored.written_per_second)} documents/s"
        workers = f"{stored.workers} at work, {pace}", "green"
    leader = stored.leader
    led = ("none", "red") if leader is None else (f"{leader.host}, process {leader.process}", "green")
    outbox = amount(stored.outbox_waiting, "change") + " in the outbox" + _oldest(read.outbox_lag_seconds)
    in_hand = amount(stored.topic_waiting, "change") + " read, not handled" + _oldest(read.topic_lag_seconds)
    rows: list[list[Part]] = [["leader", led, outbox], ["workers", workers, in_hand]]
    headings = ["component", "state", "waiting"]
    if (postgres := next(server for server in read.servers if server.server == POSTGRES)).error is not None:
        headings.append("as of")
        for row in rows:
            row.append((f"{elapsed(postgres.age_seconds or 0)} ago", "yellow"))
    return table(headings, rows)


def _oldest(seconds: float) -> str:
    return f", the oldest for {seconds:,.1f} s" if seconds >= _SOON_SECONDS else ""


def _document(document: DocumentStatus) -> Sequence[Part]:
    loaded = ("yes", "green") if document.is_loaded else ("no", "red")
    return (
        document.name,
        loaded if document.suspended is None else ("suspended", "red"),
        f"{document.lag_seconds:,.1f} s",
        (f"{document.dead_letters:,}", "red" if document.dead_letters else ""),
        "\n".join(document.targets),
        "\n".join(document.roles[name] for name in document.targets),
        Text("\n").join(
            Text(f"{count:,}") if count is not None else Text(document.faults.get(name, "unknown"), "red")
            for name, count in document.targets.items()
        ),
    )


def _daemon(daemon: Daemon) -> Sequence[Part]:
    parts = [
        "leads" if daemon.leads else "stands by" if "relay" in daemon.components else "",
        amount(daemon.workers, "worker") if daemon.workers else "",
        "job worker" if "job_worker" in daemon.components else "",
    ]
    return (
        f"{daemon.host}, {daemon.process}",
        daemon.version,
        ", ".join(filter(None, parts)) if daemon.components else "starting",
        f"{daemon.started_at:%Y-%m-%d %H:%M:%S}",
        (f"has not reported for {elapsed(daemon.silent_seconds)}", "red") if daemon.is_silent else "",
    )
