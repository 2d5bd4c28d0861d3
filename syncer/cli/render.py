"""Renders lines, tables, facts and progress in a terminal.

A terminal gets styles, folded columns and a line that follows the progress. A pipe gets plain, unfolded lines.
Guarantee: text is never parsed as markup, so names are shown verbatim.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from syncer.base.errors import SyncerError
from syncer.base.formatting import plain

_PIPE_COLUMNS = 400
_PLAIN_LINE_SECONDS = 5

Part = str | tuple[str, str] | Text
"""Plain text, or text with a style."""
Show = Callable[[int, int | None, str], None]
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


def print_json(data: Any) -> None:
    """Print what ``--json`` asks for on standard output."""
    print(json.dumps(plain(data), indent=2))  # noqa: T201 - no console, which would fold it


def show_error(console: Console, error: SyncerError) -> None:
    """Print what failed, and what to do."""
    say(console, ("Error:", "bold red"), f" {error.message}")
    if error.hint:
        say(console, error.hint, style="dim")


def table(headings: Sequence[str], rows: Iterable[Sequence[Part]]) -> Table:
    """A table without lines. A cell that is too long is folded: a truncated name is useless."""
    columns = [Column(Text(name), overflow="fold") for name in headings]
    made = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*map(Text.assemble, row))
    return made


def show_facts(console: Console, facts: Iterable[tuple[Part, Part]], *, indent: int = 2) -> None:
    """Print labels and texts in two columns; a long text is folded within its column."""
    grid = Table.grid(Column(), Column(overflow="fold"), padding=(0, 2, 0, 0), pad_edge=False)
    for label, text in facts:
        if text:
            grid.add_row(Text.assemble(" " * indent, label), Text.assemble(text))
    if grid.row_count:
        console.print(grid)


@contextmanager
def progress(console: Console, label: str) -> Iterator[Show]:
    """Show progress: in a line on a terminal, in one every few seconds elsewhere."""
    shown_at = time.monotonic()

    def text(done: int, total: int | None, note: str) -> str:
        return f"{label}: {done:,} of {counted(total)}{', ' if note else ''}{note}"

    def show_line(done: int, total: int | None, note: str = "") -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _PLAIN_LINE_SECONDS:
            shown_at = time.monotonic()
            say(console, text(done, total, note))

    if not console.is_terminal:
        yield show_line
        return
    with console.status(Text(label)) as status:

        def show_status(done: int, total: int | None, note: str = "") -> None:
            status.update(Text(text(done, total, note)))

        yield show_status


def counted(total: int | None) -> str:
    """A number, or "?" if it is unknown."""
    return "?" if total is None else f"{total:,}"


@contextmanager
def doing(console: Console, what: str, *, in_pipes: bool = True) -> Iterator[None]:
    """Show that a slow operation is in progress; with ``in_pipes=False``, on a terminal only."""
    if console.is_terminal:
        with console.status(Text(what)):
            yield
        return
    if in_pipes:
        say(console, what)
    yield


@contextmanager
def asking() -> Iterator[None]:
    """Show on a terminal that servers are being queried: one that is down takes a while."""
    with doing(console(sys.stderr), "asking Postgres, Kafka and Elasticsearch", in_pipes=False):
        yield
