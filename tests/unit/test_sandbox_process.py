"""Processes: what is recognised, what is reached, and what is left."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from syncer.sandbox.account import Account
from syncer.sandbox.process import (
    ProcessMark,
    kill,
    lives,
    locked,
    mark,
    pause,
    resume,
    start_detached,
    tree,
    wait_until,
)
from tests.support.world import DEADLINE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def family(tmp_path: Path) -> Iterator[ProcessMark]:
    """A process with one child, both of which would live for ten minutes."""
    pid = start_detached(
        ["/bin/sh", "-c", "sleep 600 & echo started; wait"],
        folder=tmp_path,
        log_file=tmp_path / "log",
        environment={"PATH": os.defpath},
        account=Account(),
    )
    root = mark(pid)
    assert root
    assert wait_until(lambda: len(tree([root])) == 2, seconds=DEADLINE_SECONDS)
    yield root
    kill([root])


def status_of(pid: int) -> str:
    """What the kernel says a process does."""
    return str(psutil.Process(pid).status())


def test_started_process_is_nobodys_child(family: ProcessMark, tmp_path: Path) -> None:
    """It outlives who started it, in a session of its own, and writes to its log."""
    assert psutil.Process(family.pid).ppid() != os.getpid()
    assert os.getsid(family.pid) != os.getsid(0)
    assert wait_until(lambda: (tmp_path / "log").read_text("utf-8") == "started\n", seconds=DEADLINE_SECONDS)


def test_kill_reaches_the_whole_family(family: ProcessMark) -> None:
    """Children too are gone when it returns."""
    processes = tree([family])
    kill([family])
    assert not any(map(lives, processes))
    assert tree(processes) == ()


def test_pause_and_resume_reach_the_whole_family(family: ProcessMark) -> None:
    """All stand still, then all go on."""
    pause([family])
    assert [status_of(process.pid) for process in tree([family])] == ["stopped", "stopped"]
    resume([family])
    assert "stopped" not in [status_of(process.pid) for process in tree([family])]


def test_recycled_id_is_not_mistaken(family: ProcessMark) -> None:
    """The same id, started at another moment, is another process, and is left alone."""
    other = ProcessMark(pid=family.pid, started_ticks=family.started_ticks - 1)
    assert not lives(other)
    kill([other])
    assert lives(family)


def test_dead_child_that_nobody_buried_does_not_live() -> None:
    """A zombie is not a running server."""
    with subprocess.Popen(["/bin/sh", "-c", ":"]) as process:
        assert wait_until(lambda: mark(process.pid) is None, seconds=DEADLINE_SECONDS)
        assert psutil.pid_exists(process.pid)


def test_process_lives_while_one_of_its_threads_does() -> None:
    """A killed server is gone when it has let go of its ports, not when its first thread has ended."""
    program = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[600]).start(); "
        "ctypes.CDLL(None).pthread_exit(0)"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            assert wait_until(lambda: status_of(process.pid) == "zombie", seconds=DEADLINE_SECONDS)
            marked = mark(process.pid)
            assert marked
            kill([marked])
            assert not lives(marked)
        finally:
            process.kill()


def test_lock_is_held_by_one(tmp_path: Path) -> None:
    """Another process cannot take the lock while it is held, and can afterwards."""
    command = ["flock", "--nonblock", str(tmp_path / "lock"), "true"]
    with locked(tmp_path / "lock"):
        assert subprocess.run(command, check=False).returncode
    assert not subprocess.run(command, check=False).returncode
