"""What a benchmark found: figures beside their goals, tables, and the history of kept figures."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
MEGABYTES_MAX = 250
"""The goal for the daemon's memory."""
_PAGE = Path(__file__).parent.parent.parent / "docs" / "benchmarks.md"
_KEPT_MAX = 20
_BEGIN, _END = "<!-- the last kept figures: written by the program -->", "<!-- end of the figures -->"


class SkippedError(Exception):
    """Something cannot be measured here; its text says why."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure and its goal, a lower or an upper bound; a ratio has no unit, and names both of its parts."""

    what: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The figure as plain data, with its goal in words, and whether that is reached; None if there is none."""
        goal, reached = "", None
        if self.at_least is not None:
            goal, reached = f"at least {_with_unit(self.at_least, self.unit)}", self.value >= self.at_least
        elif self.at_most is not None:
            goal, reached = f"at most {_with_unit(self.at_most, self.unit)}", self.value <= self.at_most
        return {"what": self.what, "value": round(self.value, 4), "unit": self.unit, "goal": goal, "reached": reached}


def memory(what: str, peak_bytes: float, *, at_most: float | None = MEGABYTES_MAX) -> Figure:
    """The figure of a peak of memory."""
    return Figure(what, peak_bytes / 1e6, unit="MB", at_most=at_most)


@dataclass(slots=True)
class Report:
    """What one benchmark found: figures, a record that is kept beside them, and remarks on this very run."""

    about: str = ""
    figures: list[Figure] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    _tables: list[Table] = field(default_factory=list)
    _load: float = field(default_factory=lambda: os.getloadavg()[0])  # the work of others shows in every figure

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table; its first column names what each row is of."""
        made = Table(box=None)
        for number, column in enumerate(columns):
            made.add_column(column, justify="right" if number else "left")
        for row in rows:
            made.add_row(*row)
        self._tables.append(made)

    def milliseconds(self, found: Mapping[str, Sequence[float]]) -> None:
        """Add a table of percentiles, and keep them."""
        self.record["milliseconds"] = kept = {
            name: {
                "count": len(values),
                **{f"p{percent}": round(percentile(values, percent), 1) for percent in (50, 95, 99)},
                "max": round(max(values), 1),
            }
            for name, values in found.items()
        }
        columns = ("milliseconds", "count", "p50", "p95", "p99", "max")
        self.table(columns, [[name, *map(str, row.values())] for name, row in kept.items()])

    def show(self, name: str, console: Console) -> None:
        """Print the tables, and the figures beside their goals."""
        console.print(f"\n[bold]{name}[/bold]: {self.about}", highlight=False)
        figures = Table(box=None, show_header=False)
        for figure in self.figures:
            *cells, verdict = _cells(figure.as_json())
            figures.add_row(*cells, verdict, style={"reached": "green", "missed": "red"}.get(verdict))
        console.print(*self._tables, figures, sep="\n")
        for remark in self.remarks:
            console.print(f"  {remark}", highlight=False, markup=False)

    def as_json(self) -> dict[str, Any]:
        """What is kept: the figures, when, and on what."""
        return {
            "measured_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "load_before": round(self._load, 1),
            "about": self.about,
            "figures": [figure.as_json() for figure in self.figures],
            "remarks": self.remarks,
            **self.record,
        }


def keep(name: str, found: dict[str, Any]) -> None:
    """Add this to the benchmark's history, and put the last figures of all benchmarks into docs/benchmarks.md."""
    file = RESULTS / f"{name}.json"
    history = json.loads(file.read_text()) if file.exists() else []
    history.append(found)
    file.write_text(json.dumps(history[-_KEPT_MAX:], indent=1, ensure_ascii=False) + "\n")
    before, _, rest = _PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text(f"{before}{_BEGIN}\n{_markdown()}{_END}{after}")


def _markdown() -> str:
    lines = ["| measure | figure | | goal | | measured |", "|---|---|---|---|---|---|"]
    for file in sorted(RESULTS.glob("*.json")):
        last = json.loads(file.read_text())[-1]
        for figure in last["figures"]:
            *cells, verdict = _cells(figure)
            marked = "**missed**" if verdict == "missed" else verdict
            lines.append(f"| {' | '.join((file.stem, *cells, marked, last['measured_at']))} |")
    return "\n".join(lines) + "\n"


def _cells(figure: Mapping[str, Any]) -> tuple[str, str, str, str]:
    verdict = {True: "reached", False: "missed", None: ""}[figure["reached"]]
    return figure["what"], _with_unit(figure["value"], figure["unit"]), figure["goal"], verdict


def _with_unit(value: float, unit: str) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f} {unit}".strip()


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that so many percent of them do not exceed."""
    found = sorted(values)
    return found[min(len(found) - 1, int(len(found) * percent / 100))]


def say(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - it is a command
