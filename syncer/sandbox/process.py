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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from syncer.base.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from syncer.sandbox.account import Account

POLL_SECONDS = 0.05
PAUSE_SECONDS = 5.0  # a process in an uninterruptible sleep handles the signal late
KILL_SECONDS = 30.0

# The shell prints the server's id and exits, so that the server is an orphan: no process needs to wait for it, and it
# outlives the command that started it.
_START = 'log=$1; shift; exec 2>>"$log"; "$@" >>"$log" </dev/null & echo $!'


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """The identity of a process.

    ``started_ticks`` counts from the machine's boot. Unlike a time of day, it does not change when the clock is set.
    """

    pid: int
    started_ticks: int


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


def run(
    command: Sequence[str], *, failure: str, folder: Path, environment: Mapping[str, str], account: Account
) -> None:
    """Run a command to its end; if it fails, raise an error with its output as the hint."""
    done = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
        text=True,
        **account.popen_arguments(),
    )
    if done.returncode:
        raise SandboxError(failure, hint=done.stdout.strip())


def mark(pid: int) -> ProcessMark | None:
    """Return the mark of a process; None if there is no such process, or only a zombie."""
    fields = _stat_fields(pid)
    return None if _is_dead(fields) else ProcessMark(pid=pid, started_ticks=int(fields[19]))


def lives(marked: ProcessMark) -> bool:
    """Whether the marked process is still running."""
    return mark(marked.pid) == marked


def tree(marks: Iterable[ProcessMark]) -> tuple[ProcessMark, ...]:
    """Return the marked processes that are alive, and all their descendants."""
    found: dict[ProcessMark, None] = {}
    for root in filter(lives, marks):
        found[root] = None
        with suppress(psutil.NoSuchProcess):
            pids = [child.pid for child in psutil.Process(root.pid).children(recursive=True)]
            found |= {child: None for child in map(mark, pids) if child}
    return tuple(found)


def send(marked: ProcessMark, number: signal.Signals) -> None:
    """Send a signal, unless the process has ended."""
    if lives(marked):
        with suppress(ProcessLookupError):
            os.kill(marked.pid, number)


def pause(marks: Iterable[ProcessMark]) -> None:
    """Send SIGSTOP to all, including processes started meanwhile; when it returns, all are stopped."""
    stopped: set[ProcessMark] = set()
    marks = tuple(marks)
    while fresh := set(tree(marks)) - stopped:
        for process in fresh:
            send(process, signal.SIGSTOP)
        wait_until(functools.partial(_stand_still, fresh), seconds=PAUSE_SECONDS)
        stopped |= fresh


def resume(marks: Iterable[ProcessMark]) -> None:
    """Send SIGCONT to all."""
    for process in tree(marks):
        send(process, signal.SIGCONT)


def kill(marks: Iterable[ProcessMark]) -> None:
    """Send SIGKILL to all, and wait until they are gone."""
    marks = tuple(marks)
    pause(marks)  # from here on none can start another process that would escape
    processes = tree(marks)
    for process in processes:
        send(process, signal.SIGKILL)
    if not wait_until(lambda: not any(map(lives, processes)), seconds=KILL_SECONDS):
        raise SandboxError(f"Processes could not be killed: {[process.pid for process in processes]}")


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


def _stand_still(marks: Iterable[ProcessMark]) -> bool:
    stats = [_stat_fields(marked.pid) for marked in marks]
    return all(fields[0] in "TtZX" for fields in stats if fields)


def _is_dead(fields: Sequence[str]) -> bool:
    """Whether a process has ended and released its ports and files.

    The main thread may be a zombie while other threads still hold them.
    """
    return not fields or (fields[0] in "ZX" and int(fields[17]) <= 1)


def _stat_fields(pid: int) -> Sequence[str]:
    """Return the fields of /proc/PID/stat from the state on; nothing if there is no such process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        # The name in parentheses comes first, and may contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
    return ()
