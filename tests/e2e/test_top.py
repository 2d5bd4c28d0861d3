"""`syncer top` on a real terminal, and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from syncer import postgres, status_commands
from syncer.postgres import Connection
from tests.harness import DEADLINE_SECONDS, World

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A terminal with a command in it.

    Args:
        process: The command.
        screen: What is typed into, and read from.
    """

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self._screen = screen
        self.said = ""

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str) -> None:
        """Return once it is shown."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in _CONTROL.sub("", self.said):
            assert time.monotonic() < deadline, f"{text} is not shown:\n{self.said}"
            self.read(1)

    def read(self, seconds: float) -> None:
        """Read what is shown within so long."""
        readable, _, _ = select.select([self._screen], [], [], seconds)
        try:
            self.said += os.read(self._screen, 65536).decode("utf-8", "replace") if readable else ""
        except OSError:
            assert self.process.wait(DEADLINE_SECONDS) is not None, self.said

    def wait(self) -> int:
        """Read until it ends, since who is not read from does not come to its end; its exit code."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.said}"
            self.read(0.1)
        return int(self.process.returncode)


@contextmanager
def terminal(world: World, *arguments: str, columns: int, rows: int = 40) -> Iterator[Terminal]:
    """A command in a terminal of this size."""
    screen, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**world.environment, "TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "syncer", *arguments],
        env=environment,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    try:
        yield Terminal(process, screen)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(screen)


@pytest.mark.parametrize("columns", [40, 120])
def test_top_goes_on_until_q(world: World, columns: int) -> None:
    """It shows what changes, at any width, also while no daemon runs; q leaves, and the terminal is as it was."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    with terminal(world, "top", "--seconds", "0.2", columns=columns) as one:
        one.wait_for("No daemon is at work")
        world.sql("INSERT INTO users (id, name, email) VALUES (2, 'Al', 'al@smith.com')")
        one.wait_for("2 changes in")
        one.wait_for("written")
        one.press("q")
        assert one.wait() == 0
    assert "Traceback" not in one.said


def test_top_tells_what_is_away_and_leaves_at_ctrl_c(world: World) -> None:
    """It says that a server is away, keeps what it has seen, and goes on once it is back."""
    with terminal(world, "top", "--seconds", "0.2", columns=100) as one:
        one.wait_for("No daemon is at work")
        world.sql("ALTER SCHEMA syncer RENAME TO away")
        one.wait_for("It is asked again")
        world.sql("ALTER SCHEMA away RENAME TO syncer")
        one.said = ""
        one.wait_for("No daemon is at work")
        one.process.send_signal(signal.SIGINT)
        assert one.wait() == 0


def test_top_leaves_no_connection_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that fails closes what it has asked with, and one that cannot begin closes what it has opened."""
    opened: list[Connection] = []
    connect = postgres.connect

    def connect_and_note(*arguments: Any, **named: Any) -> Connection:
        opened.append(connect(*arguments, **named))
        return opened[-1]

    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("syncer.telemetry.configure", lambda *_, **__: None)
    monkeypatch.setattr("syncer.postgres.connect", connect_and_note)
    watch = status_commands._Watch()
    watch.look()
    world.sql("ALTER SCHEMA syncer RENAME TO away")
    for number in (1, 2):
        watch.look()
        assert watch.trouble
        assert [one.closed for one in opened] == [True] * number
    world.sql("ALTER SCHEMA away RENAME TO syncer")


def test_top_in_a_pipe_shows_it_once(world: World) -> None:
    """A script gets one look, and the same facts as from status."""
    once = world.syncer("top", "--once")
    assert once.returncode == 0, once.stderr
    assert "No daemon is at work." in once.stdout
    assert "blogpost" in once.stdout
    assert "\x1b" not in once.stdout
    assert "\x1b" not in world.syncer("top").stdout
