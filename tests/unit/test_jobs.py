"""Which job stands for another one: a table, without servers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from syncer.jobs import queue
from syncer.jobs.model import JobKind, JobState
from tests.unit.test_render import JOB

NEW = dataclasses.replace(JOB, kind=JobKind.REFRESH, state=JobState.NEW)
COVERED_BY = {
    JobKind.BACKFILL: {JobKind.BACKFILL, JobKind.REFRESH, JobKind.INITIAL_LOAD},
    JobKind.REFRESH: {JobKind.REFRESH, JobKind.INITIAL_LOAD},
    JobKind.INITIAL_LOAD: {JobKind.INITIAL_LOAD},
}


@pytest.mark.parametrize("wanted", COVERED_BY)
def test_a_job_joins_one_that_writes_as_much_and_is_pending_if_it_is(wanted: JobKind) -> None:
    """A load does all that a refresh does; a backfill may be cancelled."""
    for kind in JobKind:
        new = dataclasses.replace(NEW, kind=kind, completes_load=kind.is_whole)
        assert (queue._still_new([new], wanted, None) is new) is (kind in COVERED_BY[wanted])


@pytest.mark.parametrize("hindrance", [{"state": JobState.WRITING}, {"is_paused": True}, {"rate": 5.0}], ids=str)
def test_a_job_does_not_join_every_other(hindrance: dict[str, Any]) -> None:
    """None whose listing has begun, or that is paused or slower."""
    assert queue._still_new([NEW], NEW.kind, None) is NEW
    assert queue._still_new([dataclasses.replace(NEW, **hindrance)], NEW.kind, None) is None


def test_a_job_joins_one_of_its_own_rate() -> None:
    """Not a slower one, and not one that is quicker than was asked for."""
    slow = dataclasses.replace(NEW, rate=5.0)
    assert queue._still_new([slow], NEW.kind, 5.0) is slow
    assert queue._still_new([slow], NEW.kind, 7.0) is None
    assert queue._still_new([NEW], NEW.kind, 5.0) is NEW


def test_a_refresh_joins_none_since_which_changes_were_missed() -> None:
    """Its end would not mean that the document is loaded: see `queue.mark_incomplete`."""
    assert queue._still_new([dataclasses.replace(NEW, completes_load=False)], NEW.kind, None) is None
