"""The commands ``syncer status`` and ``syncer top``: how syncer is doing, once and live. They ask the servers alone."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from syncer import concern, overview, status_page, terminal
from syncer.entered import number
from syncer.overview import Overview, Rates
from syncer.parts import Parts, open_parts
from syncer.policy import explain
from syncer.wording import duration

_MEASURED_SECONDS = 0.5
_SAMPLES_MAX = 600
_LABEL_COLUMNS = 30
_LEAVE = ("q", "Q", "\x04")


def status(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="NUMBER", parser=number(least=0, most=60), help="Over how long rates are measured; 0 for no rates."
        ),
    ] = _MEASURED_SECONDS,
) -> None:
    """Is all well, how far behind, how fast, who leads, what each document holds. Exit code 0 only if all is well.

    Asks the servers alone: no daemon has to run.

    --json has is_well, headline, mood (well, busy or bad), concerns (says, do, about,
    is_passing), at, leader,
    running, outbox_waiting, outbox_lag_seconds, workers, topic_waiting,
    topic_lag_seconds, lag_seconds, totals and rates (captured, published, handled,
    written), epoch, documents, jobs and unreadable_records.
    """
    with terminal.asking(), open_parts("status") as parts:
        before = _read(parts)
        time.sleep(seconds)
        seen = _read(parts) if seconds else before
    rates = overview.rates(before, seen)
    if as_json:
        typer.echo(json.dumps(concern.as_json(seen, rates), indent=2))
    else:
        terminal.console(sys.stdout).print(status_page.status(seen, rates), soft_wrap=not sys.stdout.isatty())
    if not seen.is_well:
        raise typer.Exit(1)


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and leave: for scripts.")] = False,
    seconds: Annotated[
        float, typer.Option(metavar="NUMBER", parser=number(least=0.1, most=60), help="How long between two looks.")
    ] = 1.0,
) -> None:
    """The same as status, live: q or Ctrl-C to leave. Goes on when a server is away, and says so."""
    console = terminal.console(sys.stdout)
    watch = _Watch()
    if once or not (sys.stdin.isatty() and console.is_terminal):
        watch.look()
        if not once and watch.trouble is None:
            time.sleep(seconds)
            watch.look()
        console.print(watch.page(console))
        raise typer.Exit(0 if watch.trouble is None else 1)
    with (
        suppress(KeyboardInterrupt),
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            watch.look()
            live.update(watch.page(console), refresh=True)
            if pressed(seconds) in _LEAVE:
                return


def _read(parts: Parts) -> Overview:
    return overview.read(parts.connection, parts.index, parts.settings.kafka)


@dataclass(slots=True)
class _Watch:
    """What `syncer top` has seen.

    Args:
        seen: The last overview.
        rates: What has passed since the one before.
        trouble: Why the last look has failed; None if it has not.
        at: When the last overview was read, by this process's clock.
        lags: The lag of each look; None where one has failed.
        writes: How many documents were written each second, likewise.
        parts: What the servers are asked with; None until they are reached, and after a look that has failed.
    """

    seen: Overview | None = None
    rates: Rates | None = None
    trouble: str | None = None
    at: float = 0.0
    lags: deque[float | None] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))
    writes: deque[float | None] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))
    parts: Parts | None = None

    def look(self) -> None:
        """Ask the servers; one that does not answer is told, and asked again next time.

        Raises:
            Exception: Nothing was ever seen, or it is an error that nobody foresaw.
        """
        try:
            self.parts = self.parts or open_parts("top")
            seen = _read(self.parts)
        except Exception as error:
            said = explain(error)
            if said is None or self.seen is None:
                raise
            self.trouble = said.message
            self.close()
            self.lags.append(None)
            self.writes.append(None)
            return
        self.rates = None if self.seen is None else overview.rates(self.seen, seen)
        self.seen, self.trouble, self.at = seen, None, time.monotonic()
        self.lags.append(seen.lag_seconds)
        self.writes.append(None if self.rates is None else self.rates.written)

    def close(self) -> None:
        """Let go of the servers; the next look reaches them again."""
        if self.parts is not None:
            self.parts.close()
        self.parts = None

    def page(self, console: Console) -> RenderableType:
        """What there is to see."""
        assert self.seen is not None  # noqa: S101 - a look comes first
        parts: list[RenderableType] = []
        if self.trouble is not None:
            age = duration(time.monotonic() - self.at)
            parts.append(
                Text(f"{self.trouble}: what is below was seen {age} ago. It is asked again.", style="bold red")
            )
        parts.append(status_page.status(self.seen, self.rates))
        if len(self.lags) > 1:
            width = max(10, console.width - _LABEL_COLUMNS)
            written = self.writes[-1]
            rate = "" if written is None else f"{terminal.rate(written)} documents/s"
            parts += [
                Text(""),
                status_page.sparks("lag", self.lags, f"{self.seen.lag_seconds:,.1f} s", width=width),
                status_page.sparks("written", self.writes, rate, width=width),
            ]
        return Group(*parts)


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
