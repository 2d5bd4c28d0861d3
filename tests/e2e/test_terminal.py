"""Commands on a real terminal: the live status, and questions."""

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

import pytest

from tests.support.world import DEADLINE_SECONDS, World

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
def test_the_live_status_follows_what_changes(world: World, columns: int) -> None:
    """At any width, also while no daemon runs."""
    world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com')")
    with terminal(world, "status", "--watch", columns=columns) as one:
        one.wait_for("No daemon is running")
        world.sql("INSERT INTO users (id, name, email) VALUES (2, 'Al', 'al@smith.com')")
        one.wait_for("2 changes in")
        one.process.send_signal(signal.SIGINT)
        assert one.wait() == 0
    assert "Traceback" not in one.said


def test_the_live_status_tells_what_is_away_and_leaves_at_ctrl_c(world: World) -> None:
    """It says that a server is away, keeps what it has seen, and goes on once it is back."""
    with terminal(world, "status", "--watch", columns=100) as one:
        one.wait_for("No daemon is running")
        world.sql("ALTER SCHEMA syncer RENAME TO away")
        one.wait_for("Postgres is not usable")
        world.sql("ALTER SCHEMA away RENAME TO syncer")
        one.said = ""
        one.wait_for("No daemon is running")
        one.process.send_signal(signal.SIGINT)
        assert one.wait() == 0


def test_a_no_changes_nothing(world: World) -> None:
    """On a terminal apply asks; it goes on only after a yes."""
    mapping = world.document_folder / "index.json"
    mapping.write_text(mapping.read_text().replace('"title":', '"more": {"type": "long"}, "title":'))
    for answer, code, revision in (("n", 1, 1), ("y", 0, 2)):
        with terminal(world, "apply", columns=100) as one:
            one.wait_for("Apply?")
            one.press(f"{answer}\n")
            assert one.wait() == code
        assert world.sql("SELECT revision FROM syncer.document") == [(revision,)]
