"""Starting, finding, pausing and killing a server's processes.

A process is known by its id *and* the moment it was started, so that an id which the system has given to
another process since is never mistaken for the server, and never killed.
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

from syncer.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from syncer.sandbox.account import Account

POLL_SECONDS = 0.05
PAUSE_SECONDS = 5.0  # a process in an uninterruptible wait takes the signal late
KILL_SECONDS = 30.0

# The shell leaves the server behind as an orphan and tells its id: nobody has to wait for it, and it
# outlives the command that started it.
_START = 'log=$1; shift; exec 2>>"$log"; "$@" >>"$log" </dev/null & echo $!'


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """What a process is recognised by.

    ``started_ticks`` counts from the machine's boot: unlike a time of day, it does not change when the clock
    is set.
    """

    pid: int
    started_ticks: int


def start_detached(
    command: Sequence[str], *, folder: Path, log_file: Path, environment: Mapping[str, str], account: Account
) -> int:
    """Start a command in a session of its own, where the terminal's Ctrl-C does not reach; returns its id."""
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
    """Run a command to its end; if it fails, its output is the hint of the error."""
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
    """The mark of a process, or None if there is none of that id (one that only awaits burial is none)."""
    fields = _stat_fields(pid)
    return None if _is_dead(fields) else ProcessMark(pid=pid, started_ticks=int(fields[19]))


def lives(marked: ProcessMark) -> bool:
    """Whether the marked process still runs."""
    return mark(marked.pid) == marked


def tree(marks: Iterable[ProcessMark]) -> tuple[ProcessMark, ...]:
    """The marked processes that live, and all their descendants."""
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
    """SIGSTOP to all, and again to those that were started meanwhile; all stand still when it returns."""
    stopped: set[ProcessMark] = set()
    marks = tuple(marks)
    while fresh := set(tree(marks)) - stopped:
        for process in fresh:
            send(process, signal.SIGSTOP)
        wait_until(functools.partial(_stand_still, fresh), seconds=PAUSE_SECONDS)
        stopped |= fresh


def resume(marks: Iterable[ProcessMark]) -> None:
    """SIGCONT to all."""
    for process in tree(marks):
        send(process, signal.SIGCONT)


def kill(marks: Iterable[ProcessMark]) -> None:
    """SIGKILL to all, and wait until they are gone."""
    marks = tuple(marks)
    pause(marks)  # from here on, none can start another and escape
    processes = tree(marks)
    for process in processes:
        send(process, signal.SIGKILL)
    if not wait_until(lambda: not any(map(lives, processes)), seconds=KILL_SECONDS):
        raise SandboxError(f"Processes could not be killed: {[process.pid for process in processes]}")


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Whether the condition came true before the deadline."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return holds


@contextmanager
def locked(lock_file: Path) -> Iterator[None]:
    """Hold a lock that other processes and threads wait for; the kernel frees it if this process dies."""
    with lock_file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _stand_still(marks: Iterable[ProcessMark]) -> bool:
    stats = [_stat_fields(marked.pid) for marked in marks]
    return all(fields[0] in "TtZX" for fields in stats if fields)


def _is_dead(fields: Sequence[str]) -> bool:
    """Whether a process has ended and let go of its ports and files.

    Of a process with many threads, the first may have ended while others still hold on to them.
    """
    return not fields or (fields[0] in "ZX" and int(fields[17]) <= 1)


def _stat_fields(pid: int) -> Sequence[str]:
    """What the kernel says of a process, from its state on; nothing if there is no such process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        # The name in parentheses comes before, and may itself hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
    return ()
