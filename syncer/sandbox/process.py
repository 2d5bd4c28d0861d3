"""Finding, pausing and killing a server's processes.

A process is identified by its id *and* its start time. So a process that has reused the id is never mistaken for the
server, and never killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import psutil

from syncer.base.errors import SandboxError

POLL_SECONDS = 0.05
PAUSE_SECONDS = 5.0  # a process in an uninterruptible sleep handles the signal late
KILL_SECONDS = 30.0
_STILL = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE}
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """The identity of a process, to be kept in a file.

    ``started_ticks`` counts from the machine's boot. Unlike a time of day, it does not change when the clock is set.
    """

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessMark:
        """Return the mark of a process."""
        seconds = process.create_time() - psutil.boot_time()
        return cls(pid=process.pid, started_ticks=round(seconds * _TICKS_PER_SECOND))

    def find(self) -> psutil.Process | None:
        """Return the process; None if it has ended."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if is_alive(process) and ProcessMark.of(process) == self:
                return process
        return None


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not yet released its ports and files.

    Its main thread may be a zombie while other threads still hold them.
    """
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


def family(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return these processes and all their descendants, as far as they are alive."""
    members: dict[psutil.Process, None] = {}
    for process in processes:
        members[process] = None
        with suppress(psutil.NoSuchProcess):
            members |= dict.fromkeys(process.children(recursive=True))
    return [process for process in members if is_alive(process)]


def marks(pid: int) -> tuple[ProcessMark, ...]:
    """Return the marks of a process and all its descendants, as far as they are alive."""
    with suppress(psutil.NoSuchProcess):
        return tuple(map(ProcessMark.of, family([psutil.Process(pid)])))
    return ()


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that have not ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def pause(processes: Sequence[psutil.Process]) -> None:
    """Send SIGSTOP to all and their descendants, also those started meanwhile; return when all are stopped."""
    stopped: set[psutil.Process] = set()
    while fresh := set(family(processes)) - stopped:
        send(fresh, signal.SIGSTOP)
        stopped |= fresh
        wait_until(partial(_are_still, stopped), seconds=PAUSE_SECONDS)


def _are_still(processes: Iterable[psutil.Process]) -> bool:
    return not any(is_alive(process) and process.status() not in _STILL for process in processes)


def kill(processes: Sequence[psutil.Process]) -> None:
    """Send SIGKILL to all and their descendants, and wait until they are gone."""
    pause(processes)  # from here on none can start another process that would escape
    doomed = family(processes)
    send(doomed, signal.SIGKILL)
    if not wait_until(lambda: not any(map(is_alive, doomed)), seconds=KILL_SECONDS):
        raise SandboxError(f"Processes could not be killed: {[process.pid for process in doomed]}")


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Wait for a condition; return whether it became true before the deadline."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return holds
