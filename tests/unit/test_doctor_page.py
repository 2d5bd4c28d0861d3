"""What the doctor shows to a person."""

from __future__ import annotations

import io

from rich.console import Console

from syncer.doctor import page
from syncer.doctor.examination import Report
from syncer.doctor.finding import Check, Finding
from syncer.doctor.symptom import Severity, shell

CHECK = Check(id="postgres.thing", claim="It is well", why="It matters.", promises=(1,), look=lambda _: ())


def test_a_check_that_finds_two_things_explains_itself_once() -> None:
    """What was found stands one below the other, why it matters once, and the mends together, to be pasted."""
    found = tuple(
        Finding(check=CHECK, severity=Severity.CONSIDER, found=f"{name} lacks it", mend=shell(f"give {name}"))
        for name in ("one", "two")
    )
    said = io.StringIO()
    page.show(Console(file=said, width=80), Report(findings=found, servers={}, seconds=0.1), all_checks=False)
    text = said.getvalue()
    assert "    one lacks it\n    two lacks it\n    It matters. (promise 1)\n" in text
    assert "    in a shell:\n      give one\n      give two\n" in text
    assert (text.count("postgres.thing"), text.count("It matters."), text.count("in a shell")) == (1, 1, 1)
