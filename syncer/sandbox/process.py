"""Starting, finding, pausing and killing a server's processes.

A process is identified by its id *and* its start time. So a process that has reused the id is never mistaken for the
server, and never killed.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from syncer.base.errors import SandboxError
from syncer.sandbox.account import Account

POLL_SECONDS = 0.05
PAUSE_SECONDS = 5.0  # a process in an uninterruptible sleep handles the signal late
KILL_SECONDS = 30.0
_STILL = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE}
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# The shell prints the server's id and exits: the server is an orphan, which no process need wait for and which outlives
# the command that started it.
_START = 'log=$1; shift; exec 2>>"$log"; "$@" >>"$log" </dev/null & echo $!'


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


def start_detached(
    command: Sequence[str], *, folder: Path, log_file: Path, environment: Mapping[str, str], account: Account
) -> int:
    """Start a command in a session of its own, which the terminal's Ctrl-C does not reach; return its process id."""
    started = subprocess.run(
        ["/bin/sh", "-c", _START, "sh", str(log_file), *command],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=folder,
        env=environment,
        start_new_session=True,
        text=True,
        **account.popen_arguments(),
    )
    return int(started.stdout)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not yet released its ports and files.

    Its main thread may be a zombie while other threads still hold them.
    """
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


def family(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return these processes and all their descendants, as far as they are alive."""
    found: dict[psutil.Process, None] = {}
    for process in processes:
        found[process] = None
        with suppress(psutil.NoSuchProcess):
            found |= dict.fromkeys(process.children(recursive=True))
    return [process for process in found if is_alive(process)]


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
        wait_until(functools.partial(_are_still, fresh), seconds=PAUSE_SECONDS)
        stopped |= fresh


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


@contextmanager
def locked(lock_file: Path) -> Iterator[None]:
    """Hold a lock among processes and threads; the kernel releases it if this process dies."""
    with lock_file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
