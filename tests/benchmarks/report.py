"""What a benchmark finds: the runs of all contestants, figures beside their goals, and the history of kept figures.

The machine has good and bad minutes, so a ratio is taken within a pass, between runs that followed each other. The
figure is the median over all passes.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
PROCESS = "itself"
"""The name of the measured process, beside the servers."""
_DAEMON_MEGABYTES_MAX = 250
_PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
_KEPT_MAX = 20
_HEAD = ("measure", "figure", "", "goal", "", "measured")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one contestant did once.

    Args:
        documents: How many it wrote; or other pieces of work, such as transactions.
        cpu_seconds: Processor time by process, its own and the servers'.
        writes: As Elasticsearch counted them.
        first_seconds: Until the first write.
        parts: Seconds of parts of the run that get rows of their own.
        milliseconds: How long each of several things took.
    """

    documents: int
    seconds: float
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    writes: int = 0
    first_seconds: float = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    milliseconds: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Documents per second."""
        return self.documents / self.seconds

    @property
    def cost(self) -> float:
        """Milliseconds of processor time for each document, of all processes."""
        return sum(self.cpu_seconds.values()) * 1000 / self.documents


@dataclass(slots=True)
class Report:
    """What one benchmark found.

    Attributes:
        runs: Of each contestant, one a pass.
        rows: Numbers by column, of what is no run.
        remarks: On this very run.
        contestants: Those that were asked for by name; none means all.
    """

    about: str = ""
    contestants: Sequence[str] = ()
    runs: dict[str, list[Run]] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _load: float = field(default_factory=lambda: os.getloadavg()[0])  # the work of others shows in every figure

    def add(self, name: str, run: Run) -> None:
        """Add a run, and its parts; the processor time is known of the whole only."""
        self.runs.setdefault(name, []).append(run)
        for part_name, took in run.parts.items():
            alone = replace(run, seconds=took, cpu_seconds={}, parts={}, milliseconds=())
            self.runs.setdefault(f"{name}, {part_name}", []).append(alone)

    # Figures

    def of(self, name: str, what: str = "rate") -> float:
        """The median of an attribute of the runs."""
        return float(median(getattr(run, what) for run in self.runs[name]))

    def ratio(
        self,
        name: str,
        reference: str,
        *,
        by: str = "rate",
        called: str = "",
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Figure:
        """One contestant beside another, within each pass."""
        pairs = zip(self.runs[name], self.runs[reference], strict=True)
        value = median(getattr(run, by) / getattr(other, by) for run, other in pairs)
        return Figure(called or f"{name} / {reference}", value, at_least=at_least, at_most=at_most)

    def percentile(self, name: str, percent: float) -> float:
        """The milliseconds that so many percent do not exceed, over all passes."""
        return percentile(chain(*(run.milliseconds for run in self.runs[name])), percent)

    def peak_bytes(self, *names: str) -> int:
        """The most memory in any of these runs."""
        return max(run.peak_bytes for name in names for run in self.runs[name])

    def memory(self, *names: str, called: str = "", at_most: float | None = _DAEMON_MEGABYTES_MAX) -> Figure:
        """The peak of memory of these runs, by default called by the first of them."""
        label = called or f"peak memory of {names[0]}"
        return Figure(label, self.peak_bytes(*names) / 1e6, unit="MB", at_most=at_most)

    def as_json(self) -> dict[str, Any]:
        """What is kept: the figures, when, on what, and each run."""
        return {
            "measured_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "load_before": round(self._load, 1),
            "about": self.about,
            "contestants": list(self.contestants),
            "figures": [figure.as_json() for figure in self.figures],
            "remarks": self.remarks,
            "rows": self._rows(),
        }

    def _rows(self) -> dict[str, Mapping[str, Any]]:
        """Numbers by column of all runs and rows; of the runs a list, one a pass."""
        rows: dict[str, Mapping[str, Any]] = {}
        for name, runs in self.runs.items():
            columns: dict[str, list[float]] = {
                "documents": [run.documents for run in runs],
                "documents/s": [round(run.rate, 1) for run in runs],
                "seconds": [round(run.seconds, 2) for run in runs],
                "writes": [run.writes for run in runs],
                "peak MB": [round(run.peak_bytes / 1e6) for run in runs],
            }
            for process in runs[0].cpu_seconds:
                key = f"{process}, CPU ms/1,000"
                columns[key] = [round(run.cpu_seconds[process] * 1e6 / run.documents, 1) for run in runs]
            timed = [run.milliseconds for run in runs if run.milliseconds]
            columns |= {
                f"p{percent} ms": [round(percentile(times, percent), 1) for times in timed] for percent in (50, 99, 100)
            }
            rows[name] = {column: values for column, values in columns.items() if any(values)}
        return rows | self.rows


def text(name: str, kept: Mapping[str, Any]) -> str:
    """What was found, as Markdown: all runs and rows, the figures beside their goals, and remarks."""
    columns = list(dict.fromkeys(chain(*kept["rows"].values())))
    rows = [(row_name, *(_cell(row.get(column)) for column in columns)) for row_name, row in kept["rows"].items()]
    tables = _table(("", *columns), rows), _table(_HEAD, _figures(name, kept))
    return "\n\n".join((f"{name}: {kept['about']}", *tables, *kept["remarks"]))


def keep(name: str, measured: dict[str, Any]) -> None:
    """Add this to the benchmark's history, and put the last figures of all benchmarks into docs/benchmarks.md."""
    file = RESULTS / f"{name}.json"
    history = json.loads(file.read_text()) if file.exists() else []
    history.append(measured)
    file.write_text(json.dumps(history[-_KEPT_MAX:], indent=1, ensure_ascii=False) + "\n")
    histories = {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}
    figures = chain(*(_last_figures(measure, history) for measure, history in histories.items()))
    head, _, tail = _PAGE.read_text().partition(_BEGIN)
    _, _, foot = tail.partition(_END)
    _PAGE.write_text(f"{head}{_BEGIN}\n{_table(_HEAD, list(figures))}\n{_END}{foot}")


def _last_figures(name: str, history: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Those of the newest run, and of contestants that it left out, those of the run before."""
    shown: set[str] = set()
    for kept in reversed(history):
        rows = _figures(name, kept)
        yield from (row for row in rows if row[1].partition(": ")[0] not in shown)
        shown |= {row[1].partition(": ")[0] for row in rows}
        if not kept.get("contestants"):
            return


def _figures(name: str, kept: Mapping[str, Any]) -> list[tuple[str, ...]]:
    verdicts = {True: "reached", False: "**missed**", None: ""}
    return [
        (
            name,
            figure["what"],
            _with_unit(figure["value"], figure["unit"]),
            figure["goal"],
            verdicts[figure["reached"]],
            kept["measured_at"],
        )
        for figure in kept["figures"]
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
    lines = [
        " | ".join(map(str.ljust, row, widths)) for row in (head, ["-" * max(3, width) for width in widths], *rows)
    ]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: float | list[float] | None) -> str:
    return "" if value is None else _with_unit(median(value) if isinstance(value, list) else value)


def _with_unit(value: float, unit: str = "") -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f} {unit}".strip()


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def say(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - it is a command
