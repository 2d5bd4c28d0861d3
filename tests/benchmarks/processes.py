"""What processes use: processor time, by process and by thread, and memory."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from syncer.sandbox import Sandbox

_KILOBYTE = 1024
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Servers:
    """The three servers' processes.

    A sandbox that others use at the same time counts what they make the servers do.
    """

    sandbox: Sandbox

    def cpu_seconds(self) -> dict[str, float]:
        """Used so far, by server."""
        return {one.name: _of_tree(one.pid) for one in self.sandbox.status().servers if one.pid is not None}

    @contextmanager
    def measured(self) -> Iterator[dict[str, float]]:
        """What they use meanwhile: a dict that is loaded at the end."""
        used: dict[str, float] = {}
        before = self.cpu_seconds()
        yield used
        used |= {name: seconds - before[name] for name, seconds in self.cpu_seconds().items()}


def _of_tree(pid: int) -> float:
    """Of a process and all that it has started, the ended ones too."""
    root = psutil.Process(pid)
    times = root.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += cpu_seconds(child.pid)
    return total


def cpu_seconds(pid: int) -> float:
    """Used so far by one process."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had. What `os.wait4` says of it counts what it was forked from."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(one.split()[1]) * _KILOBYTE for one in lines if one.startswith("VmHWM:")), 0)


def threads(pid: int) -> dict[str, float]:
    """Processor seconds used so far, by the name that a thread has in the kernel."""
    used: defaultdict[str, float] = defaultdict(float)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            user, system = rest.split()[11:13]
            used[name] += (int(user) + int(system)) * _TICK_SECONDS
    return used
