"""Figures in README and docs are those of the kept runs.

A comment after a figure names where it comes from: the benchmark, then the figure or the row and its column.

    12 %<!--application::triggers, no daemon / no triggers-->     of a ratio, % says by how much it is less than one
    31 ms<!--load::without Kafka, 50/s::p50 ms-->                 the median; columns with the same end are added up
    17<!--staleness::PGSync: killed twice::all wrong for good-->  the sum of all passes
"""

from __future__ import annotations

import json
import re
from statistics import median

from tests.benchmarks.report import RESULTS
from tests.support.world import REPOSITORY

MARK = re.compile(r"([\d,]*\.?\d+)(?: (%|s\b))?[^\d<|]*<!--([\w-]+)::(.+?)(?:::(.+?))?-->")
PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))


def kept_figure(benchmark: str, what: str, column: str, unit: str) -> float:
    """What a mark names, in this unit, of the last kept run that measured it: a run may leave contestants out."""
    runs, scale = json.loads((RESULTS / f"{benchmark}.json").read_text()), 1.0
    if column:
        rows = [run.get("rows") or {**run.get("runs", {}), **run.get("first_fill", {})} for run in runs]
        last_run = next(named[what] for named in reversed(rows) if what in named)
        total, column = (sum, column[4:]) if column.startswith("all ") else (median, column)
        cells = [cells for name, cells in last_run.items() if name.endswith(column)]
        assert cells, f"{benchmark}::{what} has no column {column}"
        value = float(sum(total(cell) if isinstance(cell, list) else cell for cell in cells))
    else:
        figure = next(figure for run in reversed(runs) for figure in run["figures"] if figure["what"] == what)
        value, column = float(figure["value"]), figure["unit"]
    if unit == "s" and column.endswith("ms"):
        scale = 0.001
    return 100 * (1 - value) if unit == "%" and column != "%" else value * scale


def is_rounded(figure: str, value: float) -> bool:
    """Whether the figure is this value, rounded to its last digit that is not a zero before the point."""
    digits = figure.replace(",", "")
    decimals = len(digits.partition(".")[2])
    unit = 10.0 ** (-decimals if decimals else len(digits) - len(digits.rstrip("0") or "0"))
    return abs(float(digits) - value) <= unit / 2 * 1.0001


def test_marked_figures_are_those_of_the_kept_runs() -> None:
    """A figure that no kept run has fails, and so does a mark that stands at no figure."""
    wrong = []
    for page in PAGES:
        text = page.read_text()
        marks = MARK.findall(text)
        assert len(marks) == len(re.findall(r"<!--[\w-]+::", text)), page
        for figure, unit, benchmark, what, column in marks:
            if not is_rounded(figure, value := kept_figure(benchmark, what, column, unit)):
                wrong.append(f"{page.name}: {figure} {unit} is {value:,.3f}: {benchmark}::{what}::{column}")
    assert wrong == []


def test_a_figure_is_rounded_to_the_digits_that_it_shows() -> None:
    """Neither more precise than the run, nor another one."""
    right = [("31", 31.1), ("0.5", 0.53), ("11,300", 11275), ("0", 0.0)]
    wrong = [("31", 31.6), ("0.50", 0.53), ("11,300", 11400), ("0", 0.6)]
    assert [is_rounded(*pair) for pair in (*right, *wrong)] == [True] * 4 + [False] * 4
