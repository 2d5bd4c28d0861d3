"""Renders lines, tables, facts and progress in a terminal.

A terminal gets styles, folded columns and a progress bar. A pipe gets plain, unfolded lines. Guarantee: text is never
parsed as markup, so names are shown verbatim.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from syncer.base.errors import SyncerError

_PIPE_COLUMNS = 400
_TABLE_COLUMNS = 72
"""In a narrower terminal, a table is shown row by row."""
_PLAIN_LINE_SECONDS = 5

Part = str | tuple[str, str] | Text
"""Plain text, or text with a style."""
Tell = Callable[[int, int | None, str], None]
"""Shows how much is done, the total, and a note."""


def console(stream: TextIO | None) -> Console:
    """A console for a stream; in a pipe, lines are not folded unless COLUMNS is set."""
    if stream is None:  # closed by the caller of this process
        return Console(quiet=True)
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return Console(file=stream, highlight=False, width=width)


def say(console: Console, *parts: Part, style: str = "") -> None:
    """Print one or more lines, uncut."""
    console.print(Text.assemble(*parts, style=style), soft_wrap=True)


def print_json(said: Any) -> None:
    """Print what ``--json`` asks for on standard output."""
    print(json.dumps(said, indent=2))  # noqa: T201 - no console, which would fold it


def show_error(console: Console, error: SyncerError) -> None:
    """Print what failed, and what to do."""
    say(console, ("Error:", "bold red"), f" {error.message}")
    if error.hint:
        say(console, error.hint, style="dim")


@dataclass(frozen=True, slots=True)
class Rows:
    """A table without lines; in a narrow terminal, a block of lines for each row.

    Args:
        headings: The column headings.
        rows: The cells of each row.
        styles: The style of each row; may be empty.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Part]]
    styles: Sequence[str] = ()

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table: rich's protocol."""
        cells = [[Text.assemble(cell) for cell in row] for row in self.rows]
        if options.max_width >= _TABLE_COLUMNS:
            # A cell that is too long is folded: a truncated name is useless.
            columns = [Column(Text(name), overflow="fold") for name in self.headings]
            table = Table(*columns, box=None, pad_edge=False, header_style="bold")
            for number, row in enumerate(cells):
                table.add_row(*row, style=self.styles[number] if self.styles else "")
            yield table
            return
        for first, *others in cells:
            first.stylize("bold")
            first.overflow = "fold"
            yield first
            lines = Table.grid(Column(), Column(overflow="fold"), padding=(0, 1, 0, 2), pad_edge=True)
            for heading, cell in zip(self.headings[1:], others, strict=True):
                if cell:
                    lines.add_row(Text(heading, style="dim"), cell)
            yield lines


def show_facts(console: Console, facts: Iterable[tuple[Part, Part]], *, indent: int = 2) -> None:
    """Print labels and texts in two columns; a long text is folded within its column."""
    shown = [(Text.assemble(label), Text.assemble(text)) for label, text in facts if text]
    width = max((label.cell_len for label, _ in shown), default=0) + 2
    if console.is_terminal:
        grid = Table.grid(Column(), Column(overflow="fold"), padding=(0, 2, 0, 0))
        for label, text in shown:
            label.pad_left(indent)
            grid.add_row(label, text)
        console.print(grid)
        return
    for label, text in shown:
        for number, line in enumerate(text.split("\n")):
            before = label.plain if number == 0 else ""
            say(console, f"{' ' * indent}{before:<{width}}", line)


@contextmanager
def progress(console: Console, label: str) -> Iterator[Tell]:
    """Show progress: a bar on a terminal, a line every few seconds elsewhere."""
    if not console.is_terminal:
        yield _plain_progress(console, label)
        return
    columns = (
        _Label(),
        BarColumn(),
        TextColumn("{task.fields[done]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(label, total=None, done="", note="")

        def tell(done: int, total: int | None, note: str = "") -> None:
            shown.update(task, completed=done, total=total, done=f"{done:,}/{counted(total)}", note=note)

        yield tell


class _Label(ProgressColumn):
    """The label of a progress bar; a narrow terminal truncates it rather than the numbers."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


def _plain_progress(console: Console, label: str) -> Tell:
    said_at = time.monotonic()

    def tell(done: int, total: int | None, note: str = "") -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _PLAIN_LINE_SECONDS:
            said_at = time.monotonic()
            say(console, f"{label}: {done:,} of {counted(total)}{', ' if note else ''}{note}")

    return tell


def counted(total: int | None) -> str:
    """A number, or "?" if it is unknown."""
    return "?" if total is None else f"{total:,}"


@contextmanager
def doing(console: Console, what: str, *, in_pipes: bool = True) -> Iterator[None]:
    """Show that a slow operation is in progress; with ``in_pipes=False``, on a terminal only."""
    if not console.is_terminal:
        if in_pipes:
            say(console, what)
        yield
        return
    with console.status(Text(what)):
        yield


@contextmanager
def asking() -> Iterator[None]:
    """Show on a terminal that servers are being queried: one that is down takes a while."""
    with doing(console(sys.stderr), "asking Postgres, Kafka and Elasticsearch", in_pipes=False):
        yield
