"""What the doctor prints."""

from __future__ import annotations

import io

from rich.console import Console

from syncer.cli import doctor_output
from syncer.monitoring.doctor.check import Check, consider, shell
from syncer.monitoring.doctor.examination import Report

CHECK = Check(id="postgres.thing", claim="It is well", why="It matters.", guarantees=(1,), look=lambda _: ())


def test_a_check_that_finds_two_things_explains_itself_once() -> None:
    """Its findings follow one another, then why they matter, then all fixes together, to be pasted."""
    found = tuple(consider(f"{name} lacks it", shell(f"give {name}")) for name in ("one", "two"))
    output = io.StringIO()
    report = Report(findings={CHECK: found}, servers={}, seconds=0.1)
    doctor_output.show(Console(file=output, width=80), report, all_checks=False)
    text = output.getvalue()
    assert "    one lacks it\n    two lacks it\n    It matters. (guarantee 1)\n" in text
    assert "    in a shell:\n      give one\n      give two\n" in text
    assert (text.count("postgres.thing"), text.count("It matters."), text.count("in a shell")) == (1, 1, 1)
