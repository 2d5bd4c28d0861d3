"""A contest: syncer and its references do the same work, one at a time, pass by pass.

The machine has good and bad minutes, so a ratio is taken within a pass, between runs that followed each other. The
figure is the median over all passes.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

import psutil

from syncer.sandbox import Sandbox
from tests.benchmarks.report import MEGABYTES_MAX, Figure, Report, memory, say

PROCESS = "itself"
"""The name of the measured process, beside the servers."""
_LOOK_SECONDS = 0.01
_KILOBYTE = 1024
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of syncer or of a reference; its processor time is by process, its own and the servers'.

    `writes` and `first_seconds`, until the first write, are as Elasticsearch counted. `parts` are seconds of parts of
    the run that get rows of their own.
    """

    documents: int
    seconds: float
    cpu_seconds: Mapping[str, float]
    peak_bytes: int
    writes: int = 0
    first_seconds: float = 0
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Documents per second."""
        return self.documents / self.seconds


def in_turns(takers: Mapping[str, Callable[[], _Found]], passes: int) -> dict[str, list[_Found]]:
    """Call each once in a pass; the order turns round from pass to pass."""
    found: dict[str, list[_Found]] = {name: [] for name in takers}
    order = list(takers.items())
    for number in range(passes):
        for name, take in order:
            result = take()
            found[name].append(result)
            rate = f" {result.rate:,.0f} documents/s, {result.seconds:.2f} s" if isinstance(result, Run) else ""
            say(f"pass {number + 1} of {passes}: {name}{rate}")
        order.reverse()
    return found


def ratio(values: Iterable[float], reference: Iterable[float]) -> float:
    """The median of the ratios, each within a pass."""
    return median(value / other for value, other in zip(values, reference, strict=True))


@dataclass(slots=True)
class Contest:
    """The runs of each contestant, one a pass."""

    runs: dict[str, list[Run]]

    def of(self, name: str, what: Callable[[Run], float] = lambda run: run.rate) -> float:
        """The median of something over the passes, by default of the rate."""
        return median(map(what, self.runs[name]))

    def ratio(self, name: str, reference: str, *, at_least: float | None = None) -> Figure:
        """How fast one is beside another."""
        rates = ([run.rate for run in self.runs[contestant]] for contestant in (name, reference))
        return Figure(f"{name} / {reference}", ratio(*rates), at_least=at_least)

    def peak_bytes(self, *names: str) -> int:
        """The most memory in any run of theirs."""
        return max(run.peak_bytes for name in names for run in self.runs[name])

    def memory(self, *names: str, at_most: float | None = MEGABYTES_MAX) -> Figure:
        """The figure of their peak of memory, called by the first of them."""
        return memory(f"peak memory of {names[0]}", self.peak_bytes(*names), at_most=at_most)

    def enter(self, report: Report, about: str, *, key: str = "runs") -> None:
        """Add a table of all runs to the report, and keep them under this key."""
        report.about = about
        processes = list(dict.fromkeys(process for found in self.runs.values() for process in found[0].cpu_seconds))
        rows, kept = [], {}
        for name, found in self.runs.items():
            used = {
                process: median(run.cpu_seconds[process] * 1e6 / run.documents for run in found)
                for process in found[0].cpu_seconds
            }
            rate, seconds, peak = self.of(name), self.of(name, lambda run: run.seconds), self.peak_bytes(name) / 1e6
            shares = (f"{used[process]:.0f}" if process in used else "" for process in processes)
            rows.append([name, f"{rate:,.0f}", f"{seconds:.2f}", f"{peak:.0f}", "", *shares])
            kept[name] = {
                "documents": found[0].documents,
                "documents_per_second": round(rate),
                "peak_megabytes": round(peak),
                "seconds": [round(run.seconds, 2) for run in found],
                "cpu_milliseconds_per_1000": {process: round(value) for process, value in used.items()},
                "writes": [run.writes for run in found],
            }
        report.table(("", "documents/s", "seconds", "peak MB", "CPU ms per 1,000:", *processes), rows)
        report.record |= {"passes": max(map(len, self.runs.values())), key: kept}


def run_command(
    command: list[str], documents: int, *, sandbox: Sandbox, environment: Mapping[str, str] | None = None
) -> Run:
    """Run a command to its end, in a process of its own."""
    with servers_measured(sandbox) as used:
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
    cpu = {PROCESS: own.ru_utime + own.ru_stime, **used}
    return Run(documents=documents, seconds=seconds, cpu_seconds=cpu, peak_bytes=peak)


def cpu_seconds(pid: int | None) -> float:
    """Processor seconds used so far by a process and everything that it has started; 0 if there is none."""
    if pid is None:
        return 0
    root = psutil.Process(pid)
    times = root.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:2])
    return total


def peak_bytes(pid: int | None) -> int:
    """The most memory that a process has had; 0 if there is none.

    `os.wait4` would count the process that it was forked from.
    """
    if pid is None:
        return 0
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * _KILOBYTE for line in lines if line.startswith("VmHWM:")), 0)


def server_seconds(sandbox: Sandbox) -> dict[str, float]:
    """Processor seconds used so far by each server that runs, also for others that use the sandbox."""
    return {server.name: cpu_seconds(server.pid) for server in sandbox.servers if server.is_running()}


@contextmanager
def servers_measured(sandbox: Sandbox) -> Iterator[dict[str, float]]:
    """What each server uses until the block ends; the dict is filled then."""
    used: dict[str, float] = {}
    before = server_seconds(sandbox)
    yield used
    used |= {name: seconds - before[name] for name, seconds in server_seconds(sandbox).items()}
