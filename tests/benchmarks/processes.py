"""What processes use: processor time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from syncer.sandbox import Sandbox

_KILOBYTE = 1024


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
    return {server.name: cpu_seconds(server.pid) for server in sandbox.status().servers if server.running}


@contextmanager
def servers_measured(sandbox: Sandbox) -> Iterator[dict[str, float]]:
    """What each server uses until the block ends; the dict is filled then."""
    used: dict[str, float] = {}
    before = server_seconds(sandbox)
    yield used
    used |= {name: seconds - before[name] for name, seconds in server_seconds(sandbox).items()}
