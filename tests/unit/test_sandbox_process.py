"""Processes: what is recognised, what is reached, and what is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from syncer.sandbox.account import Account
from syncer.sandbox.process import ProcessMark, family, is_alive, kill, marks, pause, start_detached, wait_until
from tests.support.world import DEADLINE_SECONDS


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[psutil.Process]:
    """A process with one child, both of which would live for ten minutes."""
    pid = start_detached(
        ["/bin/sh", "-c", "sleep 600 & echo started; wait"],
        folder=tmp_path,
        log_file=tmp_path / "log",
        environment={"PATH": os.defpath},
        account=Account(),
    )
    assert wait_until(lambda: len(marks(pid)) == 2, seconds=DEADLINE_SECONDS)
    process = psutil.Process(pid)
    yield process
    kill([process])


def test_started_process_outlives_its_starter(parent: psutil.Process, tmp_path: Path) -> None:
    """It is nobody's child, in a session of its own, and writes to its log."""
    assert parent.ppid() != os.getpid()
    assert os.getsid(parent.pid) != os.getsid(0)
    assert wait_until(lambda: (tmp_path / "log").read_text("utf-8") == "started\n", seconds=DEADLINE_SECONDS)


def test_kill_reaches_the_whole_family_also_when_paused(parent: psutil.Process) -> None:
    """All stand still after a pause; children too are gone when kill returns."""
    processes = family([parent])
    pause([parent])
    assert [process.status() for process in processes] == [psutil.STATUS_STOPPED] * 2
    kill([parent])
    assert not any(map(is_alive, processes))


def test_recycled_id_is_not_mistaken(parent: psutil.Process) -> None:
    """The same id, started at another moment, is another process."""
    own = ProcessMark.of(parent)
    assert own.find() == parent
    assert replace(own, started_ticks=own.started_ticks - 1).find() is None


def test_dead_child_that_nobody_buried_is_not_alive() -> None:
    """A zombie is not a running server."""
    with subprocess.Popen(["/bin/sh", "-c", ":"]) as process:
        assert wait_until(lambda: not marks(process.pid), seconds=DEADLINE_SECONDS)
        assert psutil.pid_exists(process.pid)


def test_process_is_alive_while_one_of_its_threads_is() -> None:
    """A killed server is gone when it has let go of its ports, not when its first thread has ended."""
    program = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[600]).start(); "
        "ctypes.CDLL(None).pthread_exit(0)"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        process = psutil.Process(child.pid)
        assert wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, seconds=DEADLINE_SECONDS)
        assert is_alive(process)
        kill([process])
        assert not is_alive(process)
