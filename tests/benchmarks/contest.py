"""A contest: several who do the same work, one at a time, again and again, since the machine has good and bad minutes.

A ratio is taken within each pass, between runs that followed one another, and of all passes the median.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.processes import Servers, peak_bytes
from tests.benchmarks.report import Figure, Outcome

_LOOK_SECONDS = 0.01
PROCESS = "itself"
"""What the process that is measured is called, beside the servers."""
MEGABYTES_MAX = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one contestant.

    Args:
        documents: How many it wrote or compared.
        seconds: From its start to the end of the work.
        cpu_seconds: What it took, by process: its own and the servers'.
        peak_bytes: The most memory that its process had.
        writes: How many writes Elasticsearch counted, if somebody asked it.
    """

    documents: int
    seconds: float
    cpu_seconds: Mapping[str, float]
    peak_bytes: int
    writes: int = 0

    @property
    def rate(self) -> float:
        """Documents per second."""
        return self.documents / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One who is measured.

    Args:
        name: As the table has it.
        run: Does the work once.
        prepare: Brings what it works on into the state that each run begins with; not timed.
        parts: How long parts of the run just done took, by what they are called.
    """

    name: str
    run: Callable[[], Run]
    prepare: Callable[[], None]
    parts: Mapping[str, Callable[[], float]] = field(default_factory=dict)


@dataclass(slots=True)
class Contest:
    """The runs of all contestants, by pass."""

    passes: list[dict[str, Run]] = field(default_factory=list)

    def ratio(self, name: str, reference: str) -> float:
        """How fast one is beside another."""
        return median(one[name].rate / one[reference].rate for one in self.passes)

    def of(self, name: str, what: Callable[[Run], float]) -> float:
        """The median of something over the passes."""
        return median(what(one[name]) for one in self.passes)

    def peak_megabytes(self, name: str) -> float:
        """The most memory in any pass."""
        return max(one[name].peak_bytes for one in self.passes) / 1e6

    def cpu_per_thousand(self, name: str) -> dict[str, float]:
        """Processor milliseconds for 1,000 documents, by process."""
        names = self.passes[0][name].cpu_seconds
        return {
            process: self.of(name, lambda run, process=process: run.cpu_seconds[process] * 1e6 / run.documents)  # type: ignore[misc]
            for process in names
        }

    def figure(self, name: str, reference: str, *, at_least: float | None = None) -> Figure:
        """How fast one is beside another, and is to be."""
        return Figure(what=f"{name} / {reference}", value=self.ratio(name, reference), at_least=at_least)

    def memory(self, *names: str, at_most: float = MEGABYTES_MAX) -> Figure:
        """The most memory that any of them had, and is to have."""
        most = max(self.peak_megabytes(name) for name in names)
        return Figure(what=f"peak memory of {names[0]}", value=most, unit="MB", at_most=at_most)

    def outcome(self, about: str, figures: Sequence[Figure], *, remarks: Sequence[str] = ()) -> Outcome:
        """All runs as a table."""
        servers = [name for name in next(iter(self.passes[0].values())).cpu_seconds if name != PROCESS]
        columns = ("", "documents/s", "seconds", "peak MB", "CPU ms per 1,000:", PROCESS, *servers)
        rows = [self._row(name, (PROCESS, *servers)) for name in self.passes[0]]
        return Outcome(
            about=f"{about}; median of {len(self.passes)}",
            columns=columns,
            rows=rows,
            figures=figures,
            record={"passes": len(self.passes), "runs": self.as_json()},
            remarks=remarks,
        )

    def _row(self, name: str, processes: Sequence[str]) -> list[str]:
        used = self.cpu_per_thousand(name)
        rate, seconds = self.of(name, lambda run: run.rate), self.of(name, lambda run: run.seconds)
        measured = [f"{rate:,.0f}", f"{seconds:.2f}", f"{self.peak_megabytes(name):.0f}", ""]
        return [name, *measured, *(f"{used[one]:.0f}" if one in used else "" for one in processes)]

    def as_json(self) -> dict[str, Any]:
        """Every run, and the medians."""
        return {
            name: {
                "documents": self.passes[0][name].documents,
                "documents_per_second": round(self.of(name, lambda run: run.rate)),
                "peak_megabytes": round(self.peak_megabytes(name)),
                "seconds": [round(one[name].seconds, 2) for one in self.passes],
                "cpu_milliseconds_per_1000": {k: round(v) for k, v in self.cpu_per_thousand(name).items()},
                "writes": [one[name].writes for one in self.passes],
            }
            for name in self.passes[0]
        }


def hold(
    contestants: Iterable[Contestant], *, passes: int, best_of: Mapping[str, tuple[str, ...]] | None = None
) -> Contest:
    """Let each of them run once in each pass, in an order that turns round from pass to pass.

    Args:
        contestants: Who runs.
        passes: How often.
        best_of: Names for the better of several contestants, in each pass.
    """
    contest = Contest()
    order = list(contestants)
    names = [one.name for one in order]
    for number in range(passes):
        found: dict[str, Run] = {}
        for one in order:
            one.prepare()
            run = found[one.name] = one.run()
            # Where the processor's time went is known of the whole only.
            found |= {name: replace(run, seconds=measure(), cpu_seconds={}) for name, measure in one.parts.items()}
            say(f"pass {number + 1} of {passes}: {one.name} {run.rate:,.0f} documents/s, {run.seconds:.2f} s")
        for name, others in (best_of or {}).items():
            found[name] = max((found.pop(other) for other in others), key=lambda run: run.rate)
        contest.passes.append(dict(sorted(found.items(), key=lambda item: _place(item[0], names))))
        order.reverse()
    return contest


def _place(name: str, names: Sequence[str]) -> int:
    """Where a run stands in the table: as the contestants were given, parts after the whole."""
    return next((number for number, one in enumerate(names) if name.startswith(one)), len(names))


def say(text: str) -> None:
    """Tell whoever waits how far it is."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - it is a command


def run_process(
    command: list[str], documents: int, *, servers: Servers, environment: Mapping[str, str] | None = None
) -> Run:
    """Run a command to its end, and say what it took.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    with servers.measured() as used:
        began = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=Path.cwd())
        peak = 0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, peak_bytes(process.pid))
            time.sleep(_LOOK_SECONDS)
        seconds = time.monotonic() - began
    _, status, own = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run(
        documents=documents,
        seconds=seconds,
        cpu_seconds={PROCESS: own.ru_utime + own.ru_stime, **used},
        peak_bytes=peak,
    )
