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

from tests.support.world import DEADLINE_SECONDS, World

_PROGRAM = """
import signal
from syncer.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background inherits that it is ignored
main()
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A terminal with a command in it."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self.shown = ""
        self._screen = screen

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str) -> None:
        """Return once it is shown."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in _CONTROL.sub("", self.shown):
            assert time.monotonic() < deadline, f"{text} is not shown:\n{self.shown}"
            self._read(1)

    def wait(self) -> int:
        """Read until the command ends, as it may wait for its output to be read; its exit code."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.shown}"
            self._read(0.1)
        return int(self.process.returncode)

    def _read(self, seconds: float) -> None:
        readable, _, _ = select.select([self._screen], [], [], seconds)
        try:
            self.shown += os.read(self._screen, 65536).decode("utf-8", "replace") if readable else ""
        except OSError:
            assert self.process.wait(DEADLINE_SECONDS) is not None, self.shown


@contextmanager
def terminal(world: World, *arguments: str, columns: int) -> Iterator[Terminal]:
    """A command in a terminal of this width."""
    screen, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**world.environment, "TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    process = subprocess.Popen(
        command, env=environment, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
    )
    os.close(inside)
    try:
        yield Terminal(process, screen)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(screen)


def test_the_live_status_follows_what_changes(world: World) -> None:
    """Also in a narrow terminal, and while a server is away; Ctrl-C ends it."""
    with terminal(world, "status", "--watch", columns=60) as live:
        live.wait_for("No daemon is running")
        world.sql("INSERT INTO users (id, name, email) VALUES (1, 'John', 'john@smith.com'), (2, 'Al', 'al@smith.com')")
        live.wait_for("2 changes in")
        world.sql("ALTER SCHEMA syncer RENAME TO away")
        live.wait_for("Postgres is not usable")
        world.sql("ALTER SCHEMA away RENAME TO syncer")
        live.shown = ""
        live.wait_for("No daemon is running")
        live.process.send_signal(signal.SIGINT)
        assert live.wait() == 0
    assert "Traceback" not in live.shown


def test_a_no_changes_nothing(world: World) -> None:
    """On a terminal apply asks; it goes on only after a yes."""
    mapping = world.document_folder / "index.json"
    mapping.write_text(mapping.read_text().replace('"title":', '"more": {"type": "long"}, "title":'))
    for answer, code, revision in (("n", 1, 1), ("y", 0, 2)):
        with terminal(world, "apply", columns=100) as asking:
            asking.wait_for("Apply?")
            asking.press(f"{answer}\n")
            assert asking.wait() == code
        assert world.sql("SELECT revision FROM syncer.document") == [(revision,)]
