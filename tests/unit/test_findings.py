"""What a person reads of a verification."""

from __future__ import annotations

import io

from rich.console import Console

from syncer.cli import verify_output
from syncer.verify.compare import VerifyReport
from syncer.verify.diff import Drift, DriftKind


def shown(report: VerifyReport) -> list[str]:
    """What is said of it, line by line."""
    out = io.StringIO()
    verify_output.show_verify(Console(file=out, width=200), report)
    return out.getvalue().splitlines()


def drift(id_: str) -> Drift:
    """A document that is not there."""
    return Drift(document="blogpost", id=id_, kind=DriftKind.MISSING, index_name="blogpost-000001")


def report(seconds: float, drifts: list[Drift], repaired: list[Drift]) -> VerifyReport:
    """Of 20,000 documents, compared in half a second."""
    return VerifyReport(
        document="blogpost",
        index_name="blogpost-000001",
        documents=20_000,
        drifts=drifts,
        repaired=repaired,
        seconds=seconds,
        comparing_seconds=0.5,
    )


def test_waiting_is_no_part_of_the_pace() -> None:
    """The pace is that of comparing, however long changes in flight were waited for."""
    assert shown(report(10.5, [drift("7")], []))[0].endswith("(10.5 s, 40,000 documents/s)")


def test_what_is_repaired_and_what_is_not_are_two_tables() -> None:
    """Each has a line above it that says which it is."""
    lines = shown(report(0.6, [drift("kept")], [drift("fixed")]))
    told = [line.split()[0] if line.startswith(("id", "kept", "fixed")) else line for line in lines[1:6]]
    assert told == ["1 document differed and is equal now: repaired", "id", "fixed", "1 document differs still", "id"]
