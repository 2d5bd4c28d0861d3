"""What the demo shows while something happens: the flow, live on a terminal, one line at the end in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from syncer.demo.blog import Blog
from syncer.demo.daemon import DaemonProcess
from syncer.errors import SyncerError

_HEADINGS = (
    "rows\ncommitted",
    "changes\nrelayed",
    "changes\nhandled",
    "documents\nwritten",
    "documents\nper second",
    "lag",
)
_COLUMN_WIDTH = 10
_FRAMES_PER_SECOND = 10
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 90
_PATIENCE_PER_POST = 0.002


class Board:
    """Follows the application and the daemon, and draws what it sees."""

    def __init__(self, console: Console, blog: Blog, daemon: DaemonProcess) -> None:
        self._console = console
        self._blog = blog
        self._daemon = daemon

    @property
    def handled(self) -> int:
        """How many changes the workers have done."""
        return self._daemon.follow().handled

    @property
    def indexed(self) -> int:
        """How many documents were written."""
        return self._daemon.follow().indexed

    def watch(self, title: str, is_over: Callable[[], bool]) -> float:
        """Draw until something is over; how many seconds that took.

        Raises:
            SyncerError: It is not over in time, or the daemon has ended.
        """
        began = time.monotonic()
        patience = _PATIENCE_SECONDS + _PATIENCE_PER_POST * self._blog.posts
        before = self._daemon.follow().indexed
        with self._drawing() as draw:
            while not is_over():
                draw(self._table(title, began, before))
                if time.monotonic() - began > patience:
                    raise SyncerError(f"{title}: not done within {patience:.0f} s", hint=f"See {self._daemon.log_file}")
                time.sleep(_LOOK_SECONDS)
            seconds = time.monotonic() - began
            self._daemon.follow()
            draw(self._table(title, began, before))
        if not self._console.is_terminal:
            self._console.print(self._line(title, seconds, before))
        return seconds

    @contextmanager
    def _drawing(self) -> Iterator[Callable[[Table], None]]:
        if not self._console.is_terminal:
            yield lambda _: None
            return
        with Live(console=self._console, refresh_per_second=_FRAMES_PER_SECOND) as live:
            yield live.update

    def _table(self, title: str, began: float, before: int) -> Table:
        totals = self._daemon.follow()
        seconds = max(time.monotonic() - began, 1e-3)
        table = Table(title=title, title_justify="left", title_style="bold", expand=False)
        for heading in _HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True, min_width=_COLUMN_WIDTH)
        table.add_row(
            f"[cyan]{self._blog.committed:,}",
            f"[magenta]{totals.relayed:,}",
            f"[yellow]{totals.handled:,}",
            f"[green]{totals.indexed + totals.deleted:,}",
            f"{(totals.indexed - before) / seconds:,.0f}",
            f"{totals.lag_seconds * 1000:,.0f} ms",
        )
        return table

    def _line(self, title: str, seconds: float, before: int) -> str:
        totals = self._daemon.totals
        return (
            f"{title}: {self._blog.committed:,} rows committed, {totals.relayed:,} changes relayed, "
            f"{totals.handled:,} handled, {totals.indexed + totals.deleted:,} documents written so far; "
            f"{totals.indexed - before:,} in these {seconds:.1f} s"
        )
