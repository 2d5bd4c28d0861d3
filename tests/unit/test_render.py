"""What commands show in a terminal and in a pipe."""

from __future__ import annotations

import dataclasses
import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from syncer.cli import job_output, render
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


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "the same command"),
        ({"kind": JobKind.PARTIAL, "where": "id = 1"}, "the same command"),
        ({"kind": JobKind.PARTIAL}, "syncer jobs list 7"),
    ],
)
def test_an_interrupted_job_can_be_found_again(changed: dict[str, Any], said: str) -> None:
    """The command is repeated only where it follows the same job, and does not create another."""
    out = io.StringIO()
    job_output.show_left(Console(file=out, width=80), dataclasses.replace(JOB, **changed))
    assert f"{said}; to end it: syncer jobs cancel 7" in out.getvalue()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"is_suspended": True}, "waits: the document is suspended"),
        ({"is_paused": True, "is_suspended": True}, "paused; to resume: syncer jobs resume 7"),
    ],
)
def test_what_a_job_waits_for_is_said(changed: dict[str, Any], said: str) -> None:
    """Who follows one that nobody may list yet is not told that its ids are being found."""
    assert job_output.pace(dataclasses.replace(JOB, state=JobState.NEW, **changed)) == said


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("width", [60, 100])
def test_a_name_is_shown_letter_by_letter(width: int, *, is_terminal: bool) -> None:
    """One that reads like a colour is no markup, and one that is long is folded, not cut."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=is_terminal, color_system=None)
    name = "public.[red]" + "x" * 90
    render.say(console, name)
    render.show_facts(console, [("[bold]", f"{name}\nmore")])
    console.print(render.Rows(("[green]", "rows"), [(name, "1"), (("[blue]", "red"), "2")]))
    said = out.getvalue()
    assert said.count("x") == 3 * name.count("x")
    assert all(one in said for one in ("[red]", "[bold]", "[blue]", "more"))
    assert is_terminal or not [line for line in said.splitlines()[:3] if line.endswith(" ")]
