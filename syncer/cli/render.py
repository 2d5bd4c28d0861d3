"""Prints lines, tables and progress, also of jobs: results on standard output, everything else on standard error.

A terminal gets styles, folded columns and a line that follows the progress. A pipe gets plain, unfolded lines.
Guarantee: text is never parsed as markup, so names are shown verbatim, but for controls, which are made visible.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TextIO

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from syncer.base.errors import SyncerError
from syncer.base.formatting import elapsed, plain, visible
from syncer.jobs.model import Job, JobState

TIME = "%Y-%m-%d %H:%M:%S"
_PIPE_COLUMNS = 400
_ALIGNED_MAX = 40
_PLAIN_LINE_SECONDS = 5
_STATES = {JobState.NEW: "has not begun", JobState.CLEANING_UP: "finding documents that only the index has"}

Part = str | tuple[str, str] | Text
"""Plain text, or text with a style."""
Show = Callable[[str], None]


def console(stream: TextIO | None) -> Console:
    """A console for a stream; in a pipe, lines are not folded unless COLUMNS is set."""
    if stream is None:  # closed by the caller of this process
        return Console(quiet=True)
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return Console(file=stream, highlight=False, width=width)


out, err = console(sys.stdout), console(sys.stderr)


def say(*texts: Part, style: str = "", to: Console | None = None) -> None:
    """Print one or more lines, uncut; a command's results, unless ``to`` is given."""
    (to or out).print(Text.assemble(*map(_shown, texts), style=style), soft_wrap=True)


def _shown(text: Part) -> Part:
    """Return what to print, with controls made visible: ids, names and errors may have some."""
    if isinstance(text, Text):
        return text if (plainly := visible(text.plain)) == text.plain else Text(plainly, style=text.style)
    return visible(text) if isinstance(text, str) else (visible(text[0]), text[1])


def show_error(error: SyncerError) -> None:
    """Print what failed, and what to do."""
    say(("Error:", "bold red"), f" {error.message}", to=err)
    if error.hint:
        say(error.hint, style="dim", to=err)


def print_json(value: Any) -> None:
    """Print what ``--json`` asks for."""
    print(json.dumps(plain(value), indent=2))  # noqa: T201 - no console, which would fold it


def show_table(headings: Sequence[str], rows: Sequence[Sequence[Part]]) -> None:
    """Print rows, if there are any, below an empty line and their headings; empty headings are left out."""
    if rows and out.width == _PIPE_COLUMNS and not out.is_terminal:
        if any(headings):
            say("")
        _print_plainly([headings, *rows] if any(headings) else rows)
        return
    columns = [Column(Text(name), overflow="fold") for name in headings]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold", show_header=any(headings))
    for row in rows:
        table.add_row(*(Text.assemble(_shown(cell)) for cell in row))
    if rows:
        out.print(*([""] if any(headings) else []), table, sep="\n")


def _print_plainly(rows: Sequence[Sequence[Part]]) -> None:
    """Print rows in a pipe: aligned, but for what is long, and without blanks at the end of a line."""
    cells = [[Text.assemble(_shown(cell)).plain.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]
    for row in cells:
        for lines in zip_longest(*row, fillvalue=""):
            padded = (line.ljust(min(width, _ALIGNED_MAX)) for line, width in zip(lines, widths, strict=True))
            say("  ".join(padded).rstrip())


@contextmanager
def progress(label: str) -> Iterator[Show]:
    """Show what is in progress, with the notes that are given: in a line on a terminal, elsewhere every few seconds."""
    shown_at = time.monotonic()

    def show(note: str) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _PLAIN_LINE_SECONDS:
            shown_at = time.monotonic()
            say(f"{label}: {note}", to=err)

    if not err.is_terminal:
        yield show
        return
    label = visible(label)
    with err.status(Text(label)) as status:
        yield lambda note: status.update(Text(f"{label}: {note}"))


def completion(job: Job) -> str:
    """How many documents of a job are done."""
    if job.documents_total is None:
        return f"{job.documents_done:,} of ?"
    percent = f" ({100 * job.documents_done // job.documents_total}%)" if job.documents_left else ""
    return f"{job.documents_done:,} of {job.documents_total:,}{percent}"


def pace(job: Job) -> str:
    """The speed of an unfinished job and the time left; or what it waits for."""
    if job.state.is_finished:
        return ""
    if reason := hindrance(job):
        return reason
    if job.documents_per_second is None or job.documents_left == 0:
        return _STATES.get(job.state, "")
    remaining_time = "" if job.eta_seconds is None else f", {elapsed(job.eta_seconds)} left"
    return f"{job.documents_per_second:,.1f} documents/s{remaining_time}"


def hindrance(job: Job) -> str:
    """Why no worker may continue a job; empty if one may."""
    if job.is_paused:
        return f"paused; to resume: syncer jobs resume {job.id}"
    return "waits: the document is suspended" if job.is_suspended else ""


def result(job: Job) -> str:
    """What became of a job's documents."""
    outcomes = f"{job.indexed:,} written, {job.deleted:,} deleted, {job.skipped:,} already up to date"
    return f"{outcomes}, {job.dead_lettered:,} dead-lettered"
