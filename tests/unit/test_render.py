"""What commands show in a terminal and in a pipe."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from syncer.cli import render
from syncer.jobs.model import Job, JobKind, JobState

NOW = datetime(2026, 11, 21, tzinfo=UTC)
JOB = Job(
    id=7,
    kind=JobKind.BACKFILL,
    document="blogpost",
    index_name="blogpost-000001",
    revision=1,
    state=JobState.WRITING,
    is_listed=True,
    is_paused=False,
    is_suspended=False,
    where=None,
    cause=None,
    rate=None,
    completes_load=True,
    sequence_numbers=None,
    documents_total=200_000,
    documents_done=104_000,
    indexed=0,
    deleted=0,
    skipped=0,
    dead_lettered=0,
    documents_per_second=12_345,
    created_at=NOW,
    started_at=NOW,
    finished_at=None,
    error=None,
)


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("width", [60, 100])
def test_a_name_is_shown_letter_by_letter(width: int, *, is_terminal: bool) -> None:
    """One that reads like a colour is no markup, and one that is long is folded, not cut."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=is_terminal, color_system=None)
    name = "public.[red]" + "x" * 90
    render.say(console, name)
    render.show_facts(console, [("[bold]", f"{name}\nmore")])
    console.print(render.table(("[green]", "rows"), [(name, "1"), (("[blue]", "red"), "2")]))
    shown = out.getvalue()
    assert shown.count("x") == 3 * name.count("x")
    assert all(part in shown for part in ("[red]", "[bold]", "[blue]", "more"))
