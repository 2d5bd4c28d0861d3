"""Reports the sandbox's progress: downloads of a known size, and steps that take seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


class Reporter:
    """Writes two lines for each step to a console, if given, and a bar for each download on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(quiet=True)

    @contextmanager
    def download(self, label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        """Report a download; call what it yields with the number of bytes downloaded so far."""
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        with self.step(f"downloading {label} ({total_bytes / 1e6:.0f} MB)"), bar:
            task = bar.add_task(label, total=total_bytes)
            yield lambda completed_bytes: bar.update(task, completed=completed_bytes)

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """Report a step: one line when it begins, and one with its duration when it has succeeded."""
        began = time.monotonic()
        self._console.print(f"{label} …", highlight=False, markup=False)
        yield
        seconds = time.monotonic() - began
        self._console.print(f"{label}: done in {seconds:.1f} s", highlight=False, markup=False)
