"""The command ``syncer status``: show the status, once or live. It needs no daemon."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import psycopg
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from syncer import daemon
from syncer.base import log, migrations, postgres, settings
from syncer.cli import job_output, parameters, render, status_output
from syncer.cli.parameters import UsageError, finite
from syncer.documents import registry
from syncer.monitoring import problems
from syncer.monitoring.history import Sample
from syncer.monitoring.poll import Polled, Poller

_PATIENCE_SECONDS = 5
_LABEL_COLUMNS = 30
_LEAVE = ("q", "Q", "\x04")


def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it live until you press q.")] = False,
    interval: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, max=60, callback=finite, help="Time between two measurements."),
    ] = 0.5,
    as_json: parameters.AsJson = False,
) -> None:
    """Show health, lag, throughput, documents and jobs.

    Asks the servers directly; no daemon has to run. If a server is down, shows the figures
    of the others. Rates are measured over the interval. Exit code 0 only if everything is
    healthy.

    --watch updates the status after each interval, also while a server is unavailable, and
    plots lag and rate. To quit, press q or Ctrl-C.

    --json has is_well, headline, status (well, busy or bad), problems (message, action, runbook,
    detail, about, is_passing), at, servers (server, error, hint, detail, seconds,
    age_seconds), leader, running, outbox_waiting, outbox_lag_seconds, workers, topic_waiting,
    topic_lag_seconds, lag_seconds, totals and rates (captured, published, handled,
    written), epoch, documents and jobs.
    What a silent server would tell is null.
    """
    console = render.console(sys.stdout)
    if watch:
        _watch(console, interval, as_json=as_json)
        return
    with render.asking(), _polling("status") as poll:
        polled = poll.run_once()
        if not polled.overview.silent:
            time.sleep(interval)
            polled = poll.run_once()
    seen, rates = polled.overview, polled.rates
    if as_json:
        typer.echo(json.dumps(problems.as_json(seen, rates), indent=2))
    else:
        console.print(status_output.status(seen, rates), soft_wrap=not sys.stdout.isatty())
    if problems.problems(seen):
        raise typer.Exit(1)


def _watch(console: Console, interval: float, *, as_json: bool) -> None:
    if as_json:
        raise UsageError("--watch and --json cannot be combined.")
    if not (sys.stdin.isatty() and console.is_terminal):
        raise UsageError("--watch needs a terminal. Omit it to show the status once.")
    with (
        _interrupted() as is_interrupted,
        _polling("status") as poll,
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            polled = poll.run_once()
            live.update(_live(polled, poll.history.last(), columns=console.width), refresh=True)
            if is_interrupted() or pressed(interval) in _LEAVE:
                return


@contextmanager
def _polling(name: str) -> Iterator[Poller]:
    """A poller that waits only briefly for a server.

    Raises:
        SyncerError: A setting is wrong, or the syncer schema is not current.
    """
    loaded = settings.load()
    log.configure(loaded.log, is_command=True)
    brief = min(_PATIENCE_SECONDS, loaded.postgres.connect_timeout_seconds)
    loaded = loaded.model_copy(
        update={"postgres": loaded.postgres.model_copy(update={"connect_timeout_seconds": brief})}
    )
    try:
        with postgres.connect(loaded.postgres, name=name) as connection:
            migrations.require_current(connection)
            loaded = loaded.of(registry.installation(connection))
    except psycopg.OperationalError:
        loaded = loaded.of("")  # the poll says why; the name of the topic may be unknown
    poll = daemon.poller(loaded, patience_seconds=_PATIENCE_SECONDS)
    try:
        yield poll
    finally:
        poll.close()


def _live(polled: Polled, samples: Sequence[Sample], *, columns: int) -> RenderableType:
    """The status, and how lag and rate have been since the command was started."""
    parts: list[RenderableType] = [status_output.status(polled.overview, polled.rates)]
    if len(samples) > 1:
        width = max(10, columns - _LABEL_COLUMNS)
        written = samples[-1].written_per_second
        lag = f"{polled.overview.lag_seconds:,.1f} s"
        rate = "" if written is None else f"{job_output.rate(written)} documents/s"
        parts += [
            Text(""),
            status_output.sparks("lag", [one.lag_seconds for one in samples], lag, width=width),
            status_output.sparks("written", [one.written_per_second for one in samples], rate, width=width),
        ]
    return Group(*parts)


@contextmanager
def _interrupted() -> Iterator[Callable[[], bool]]:
    """What tells whether Ctrl-C was pressed; as an exception, it may get lost in a callback of a library."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed, none of them shown: what to call to wait so long for one; empty if none came."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def pressed(seconds: float) -> str:
        readable, _, _ = select.select([stdin], [], [], seconds)
        return os.read(stdin, 1).decode("ascii", "replace") or "q" if readable else ""

    tty.setcbreak(stdin)
    try:
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
