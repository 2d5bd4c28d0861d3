"""How the sandbox tells what it is doing: downloads of a known size, and steps that take seconds.

A `Reporter` is called from several threads at once, since the servers start in parallel.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rich.console import Console


class Reporter(Protocol):
    """What listens to the sandbox's progress."""

    def download(self, label: str, total_bytes: int) -> AbstractContextManager[Callable[[int], None]]:
        """Begin and end a download; what it yields is called with the bytes that are there so far."""

    def step(self, label: str) -> AbstractContextManager[None]:
        """Begin and end something that takes a while, such as "starting Kafka"."""


class SilentReporter:
    """Says nothing."""

    @contextmanager
    def download(self, label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        """Say nothing about a download."""
        del label, total_bytes
        yield lambda _completed_bytes: None

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """Say nothing about a step."""
        del label
        yield


silent = SilentReporter()


class ConsoleReporter:
    """Says it on a console: in plain lines, two per event; on a terminal also with a bar per download."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            transient=True,
        )
        self._running = 0
        self._guard = threading.Lock()

    @contextmanager
    def download(self, label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        """Show a bar on a terminal; elsewhere only a line at the beginning and one at the end."""
        with self.step(f"downloading {label} ({total_bytes / 1e6:.0f} MB)"), self._live():
            task = self._progress.add_task(label, total=total_bytes)
            try:
                yield lambda completed_bytes: self._progress.update(task, completed=completed_bytes)
            finally:
                self._progress.remove_task(task)

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """Print a line when the step begins, and one with its seconds when it has succeeded."""
        began = time.monotonic()
        self._console.print(f"{label} …", highlight=False, markup=False)
        yield
        seconds = time.monotonic() - began
        self._console.print(f"{label}: done in {seconds:.1f} s", highlight=False, markup=False)

    @contextmanager
    def _live(self) -> Iterator[None]:
        """Draw the bars while there is a download; a console can be drawn on by one only."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._guard:
            self._running += change
            if not self._console.is_terminal:
                return
            if self._running:
                self._progress.start()
            else:
                self._progress.stop()
