"""docs/json.md has the fields that the commands print."""

from __future__ import annotations

from syncer.jobs.model import Job
from syncer.monitoring import problems
from syncer.monitoring.doctor.examination import Report
from tests.json_page import SECTIONS, rows
from tests.unit.test_problems import WELL
from tests.unit.test_render import JOB


def fields(name: str) -> set[str]:
    """The fields that the page has for an object."""
    (shape,) = (one for shapes in SECTIONS.values() for one in shapes if one.name == name)
    return {one for one, _, _ in rows(shape)}


def test_fields_that_are_listed_by_hand_are_those_that_are_printed() -> None:
    """The status, a job and an examination have the fields of the page, and no others."""
    assert problems.as_json(WELL, None).keys() == fields("Status")
    assert isinstance(JOB, Job)
    assert JOB.as_json().keys() == fields("Job")
    assert Report(findings={}, servers={}, seconds=0).as_json().keys() == fields("Examination")
