"""What a measure found: a table, figures beside their goals, and the history of both."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_PAGE = Path(__file__).parent.parent.parent / "docs" / "benchmarks.md"
_KEPT_MAX = 20
_BEGIN, _END = "<!-- the last kept figures: written by the program -->", "<!-- end of the figures -->"


class SkippedError(Exception):
    """Something cannot be measured here; its text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure, and what it is to be.

    Args:
        what: What it says; a ratio names both that it is made of.
        value: The figure.
        unit: Its unit; nothing if it is a ratio.
        at_least: The goal, if it is a least one.
        at_most: The goal, if it is a greatest one.
    """

    what: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def goal(self) -> str:
        """The goal in words; nothing if there is none."""
        if self.at_least is not None:
            return f"at least {_said(self.at_least, self.unit)}"
        return "" if self.at_most is None else f"at most {_said(self.at_most, self.unit)}"

    @property
    def is_reached(self) -> bool | None:
        """Whether it is what it is to be; None if there is no goal."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    @property
    def said(self) -> str:
        """The figure with its unit."""
        return _said(self.value, self.unit)

    @property
    def verdict(self) -> str:
        """Whether it is reached, in a word."""
        return {True: "reached", False: "missed", None: ""}[self.is_reached]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "what": self.what,
            "value": round(self.value, 4),
            "unit": self.unit,
            "goal": self.goal,
            "reached": self.is_reached,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one measure found.

    Args:
        about: What was measured, on how much.
        columns: Of the table: the first one is who.
        rows: Of the table.
        figures: What it comes to.
        record: What is kept beside the figures.
        remarks: What a reader should know of this very run.
    """

    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Sequence[Figure]
    record: dict[str, Any]
    remarks: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        figures = [one.as_json() for one in self.figures]
        return {"about": self.about, "figures": figures, "remarks": list(self.remarks), **self.record}


def _said(value: float, unit: str) -> str:
    number = f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{number} {unit}".strip()


def show(name: str, outcome: Outcome, console: Console) -> None:
    """Print the table, and the figures beside their goals."""
    table = Table(box=None)
    for number, column in enumerate(outcome.columns):
        table.add_column(column, justify="right" if number else "left")
    for row in outcome.rows:
        table.add_row(*row)
    figures = Table(box=None, show_header=False)
    for one in outcome.figures:
        style = {True: "green", False: "red", None: None}[one.is_reached]
        figures.add_row(one.what, one.said, one.goal, one.verdict, style=style)
    console.print(f"\n[bold]{name}[/bold]: {outcome.about}", highlight=False)
    console.print(table, figures, sep="\n")
    for remark in outcome.remarks:
        console.print(f"  {remark}", highlight=False, markup=False)


def described(outcome: Outcome, *, load_before: float) -> dict[str, Any]:
    """What is kept of an outcome: the figures, when, and on what."""
    return {
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": round(load_before, 1),
        **outcome.as_json(),
    }


def keep(name: str, found: dict[str, Any]) -> None:
    """Add this to what was measured before, and put the last figures of all measures into docs/benchmarks.md."""
    file = RESULTS / f"{name}.json"
    history = json.loads(file.read_text()) if file.exists() else []
    history.append(found)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(history[-_KEPT_MAX:], indent=1, ensure_ascii=False) + "\n")
    write_page()


def write_page() -> None:
    """Put the last kept figures of all measures into docs/benchmarks.md."""
    before, _, rest = _PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text(f"{before}{_BEGIN}\n{_markdown()}{_END}{after}")


def _markdown() -> str:
    lines = ["| measure | figure | | goal | | measured |", "|---|---|---|---|---|---|"]
    for file in sorted(RESULTS.glob("*.json")):
        last = json.loads(file.read_text())[-1]
        lines += [_row(file.stem, one, last["measured_at"]) for one in last.get("figures", ())]
    return "\n".join(lines) + "\n"


def _row(name: str, figure: dict[str, Any], measured_at: str) -> str:
    verdict = {True: "reached", False: "**missed**", None: ""}[figure["reached"]]
    cells = (name, figure["what"], _said(figure["value"], figure["unit"]), figure["goal"], verdict, measured_at)
    return f"| {' | '.join(cells)} |"


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that so many percent of them do not exceed."""
    found = sorted(values)
    return found[min(len(found) - 1, int(len(found) * percent / 100))]
