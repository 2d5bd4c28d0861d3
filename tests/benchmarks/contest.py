"""A contest: several who do the same work, in turn, again and again, since the machine has good and bad minutes.

A ratio is taken within each pass, between runs that followed one another, and of all passes the median.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

_KILOBYTE = 1024
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one contestant.

    Args:
        documents: How many it wrote or compared.
        seconds: From the start of its process to the end.
        cpu_seconds: That its process took, servers not counted.
        peak_bytes: The most memory that its process had.
    """

    documents: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int

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

    def rate(self, name: str) -> float:
        """Documents per second."""
        return median(one[name].rate for one in self.passes)

    def as_json(self) -> dict[str, Any]:
        """Every run, and the medians."""
        names = self.passes[0]
        return {
            name: {
                "documents_per_second": round(self.rate(name)),
                "peak_megabytes": round(max(one[name].peak_bytes for one in self.passes) / 1e6),
                "seconds": [round(one[name].seconds, 2) for one in self.passes],
                "cpu_seconds": [round(one[name].cpu_seconds, 2) for one in self.passes],
            }
            for name in names
        }


def hold(contestants: Iterable[Contestant], *, passes: int, best_of: Mapping[str, tuple[str, ...]]) -> Contest:
    """Let each of them run once in each pass, in an order that turns round from pass to pass.

    Args:
        contestants: Who runs.
        passes: How often.
        best_of: Names for the better of several contestants, in each pass.
    """
    contest = Contest()
    order = list(contestants)
    for number in range(passes):
        found: dict[str, Run] = {}
        for one in order:
            one.prepare()
            found[one.name] = one.run()
            found |= {name: replace(found[one.name], seconds=measure()) for name, measure in one.parts.items()}
            said = f"pass {number + 1} of {passes}: {one.name} {found[one.name].rate:,.0f} documents/s"
            print(said, file=sys.stderr, flush=True)  # noqa: T201 - it is a command
        for name, others in best_of.items():
            found[name] = max((found.pop(other) for other in others), key=lambda run: run.rate)
        contest.passes.append(found)
        order.reverse()
    return contest


def run_process(command: list[str], documents: int, *, environment: Mapping[str, str] | None = None) -> Run:
    """Run a command to its end, and say what it took.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=Path.cwd())
    peak_bytes = 0
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak_bytes = max(peak_bytes, _peak_bytes(process.pid))
        time.sleep(_LOOK_SECONDS)
    seconds = time.monotonic() - began
    _, status, used = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run(
        documents=documents,
        seconds=seconds,
        cpu_seconds=used.ru_utime + used.ru_stime,
        peak_bytes=peak_bytes,
    )


def _peak_bytes(pid: int) -> int:
    """The most memory that a process has had. What `os.wait4` says of it counts what it was forked from."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(one.split()[1]) * _KILOBYTE for one in lines if one.startswith("VmHWM:")), 0)
