"""What commands show while they follow a job."""

from __future__ import annotations

import dataclasses
import io
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from syncer import job_commands, terminal
from syncer.job import Job, JobKind, JobState
from syncer.steps import Change, Plan

NOW = datetime(2026, 11, 21, tzinfo=UTC)
JOB = Job(
    id=7,
    kind=JobKind.BACKFILL,
    document="blogpost",
    index_name="blogpost-000001",
    generation=1,
    state=JobState.LISTED,
    is_paused=False,
    is_halted=False,
    is_unwell=False,
    where=None,
    cause=None,
    rate=None,
    fills=True,
    sequence_numbers=None,
    documents_total=200_000,
    documents_done=104_000,
    left_out=0,
    indexed=0,
    deleted=0,
    superseded=0,
    parked=0,
    compose_seconds=0,
    index_seconds=0,
    documents_per_second=12_345,
    created_at=NOW,
    started_at=NOW,
    finished_at=None,
    error=None,
)


@pytest.mark.parametrize(
    ("changed", "is_building", "said"),
    [
        ({}, False, "syncer backfill blogpost;"),
        ({"rate": 500.0}, False, "syncer backfill blogpost --rate 500;"),
        (
            {"kind": JobKind.PART, "where": "title = 'a b'"},
            False,
            """syncer backfill blogpost --where 'title = '"'"'a b'"'"'';""",
        ),
        ({"kind": JobKind.PART}, False, "syncer jobs show 7;"),
        ({"kind": JobKind.FILL}, False, "syncer apply;"),
        ({"kind": JobKind.FILL}, True, "syncer backfill blogpost --rebuild;"),
    ],
)
def test_who_interrupts_is_told_the_command_that_goes_on(
    changed: dict[str, Any], *, is_building: bool, said: str
) -> None:
    """It follows the same job again, and not another one that would do more, or less."""
    out = io.StringIO()
    terminal.show_left(Console(file=out, width=80), dataclasses.replace(JOB, **changed), is_building=is_building)
    assert said in out.getvalue()


def test_on_a_narrow_terminal_the_numbers_are_whole() -> None:
    """What is cut is the label."""
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    with terminal.job_progress(console, f"writing {'long-' * 8}blogpost-000001") as show:
        show(JOB)
    assert "104,000/200,000" in out.getvalue()
    assert "12,345 documents/s" in out.getvalue()


@pytest.mark.parametrize(("changed", "said"), [({"documents_per_second": 0.5}, "0.5"), ({}, "12,345")])
def test_a_slow_rate_is_not_none(changed: dict[str, Any], said: str) -> None:
    """Half a document per second is neither 0 nor 1."""
    assert terminal.pace(dataclasses.replace(JOB, **changed)).startswith(f"{said} documents/s")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"is_unwell": True}, "waits: the index takes no documents"),
        ({"is_halted": True}, "waits: the document is halted"),
        ({"is_paused": True, "is_unwell": True}, "paused; to go on: syncer jobs resume 7"),
    ],
)
def test_what_a_job_waits_for_is_said(changed: dict[str, Any], said: str) -> None:
    """Who follows one that nobody may list yet is not told that its ids are being found."""
    assert terminal.pace(dataclasses.replace(JOB, state=JobState.NEW, **changed)) == said


def test_a_job_that_is_not_done_is_not_all_done() -> None:
    """The last document but one is no 100 %."""
    out = io.StringIO()
    almost = dataclasses.replace(JOB, documents_done=199_999)
    job_commands.show_jobs(Console(file=out, width=160), [almost], lanes=1)
    assert "199,999 of 200,000 (99%)" in out.getvalue()


def test_seconds_are_no_full_minute() -> None:
    """What is rounded up is carried over."""
    assert tuple(map(terminal.duration, (59.7, 359.6, 3599.9))) == ("1 min 0 s", "6 min 0 s", "1 h 0 min")


def test_a_value_that_elasticsearch_quotes_is_not_shown() -> None:
    """Only --values shows values; and no reason fills the screen."""
    reason = (
        "failed to parse field [title] of type [keyword]. Preview of field's value: 'it's: secret': " + "long " * 99
    )
    assert "secret" not in terminal.brief(reason)
    assert len(terminal.brief(reason)) < 300
    assert terminal.brief("refused. Preview of field's value: 'secret'") == "refused."
    assert terminal.brief("refused. Preview of field's value: 'secret': no date") == "refused: no date"


@pytest.mark.parametrize(
    ("is_person", "in_pipes", "is_said"), [(True, False, True), (False, False, False), (False, True, True)]
)
def test_who_waits_is_told_for_what(*, is_person: bool, in_pipes: bool, is_said: bool) -> None:
    """A person always; a pipe only what belongs into a log."""
    out = io.StringIO()
    with terminal.doing(Console(file=out, force_terminal=is_person), "trying it out", in_pipes=in_pipes):
        pass
    assert ("trying it out" in out.getvalue()) is is_said


def test_a_bar_that_is_full_says_what_goes_on() -> None:
    """Until all is done once, what is done; from then on what comes after it."""
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with terminal.progress(console, "comparing", 20, then="looking again") as advance:
        advance(19)
        assert "looking again" not in out.getvalue()
        advance(20)
    assert "looking again" in out.getvalue()


def test_a_table_with_brackets_in_its_name_is_shown_whole() -> None:
    """A name is no markup, in what apply will do neither."""
    dependencies = SimpleNamespace(tables=("public.[old]",))
    document = SimpleNamespace(name="blogpost", index="blogpost", generation=1, dependencies=dependencies)
    step = SimpleNamespace(document=document, change=Change.UNCHANGED, reason=None, halted=None)
    nothing: dict[str, tuple[()]] = dict.fromkeys(("abandoned", "leftovers", "forgotten", "removed", "released"), ())
    said = io.StringIO()
    terminal.show_plan(Console(file=said, width=100), cast("Plan", SimpleNamespace(steps=(step,), **nothing)))
    assert "public.[old]" in said.getvalue()
