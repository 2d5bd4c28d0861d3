"""How `syncer plan` says what happens to how many documents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from syncer.apply.preview.problems import PlanProblem, ProblemKind

REJECTED = PlanProblem(kind=ProblemKind.REJECTED, field="x", message="no", action="Fix it.")
CHANGED = replace(REJECTED, kind=ProblemKind.CHANGED)


@pytest.mark.parametrize(
    ("problem", "finding"),
    [
        (REJECTED, "no"),
        (
            replace(REJECTED, documents=2, looked_at=200, example="7"),
            "2 of 200 sampled documents are rejected, for example 7: no",
        ),
        (
            replace(REJECTED, kind=ProblemKind.FAILS, documents=1, looked_at=1),
            "1 of 1 sampled document cannot be built: no",
        ),
        (replace(CHANGED, documents=300, total=300), "no; all 300 documents"),
        (replace(CHANGED, documents=241, total=300, example="9"), "no; 241 of 300 documents, for example 9"),
        (replace(CHANGED, documents=1, total=None), "no; 1 document"),
        (replace(CHANGED, documents=0, total=300), "no; no document has one"),
    ],
)
def test_findings_have_a_share_and_a_count(problem: PlanProblem, finding: str) -> None:
    """All documents, some of all, and some of a sample are told apart."""
    assert problem.finding == finding
