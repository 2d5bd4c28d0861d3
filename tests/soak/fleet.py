"""The daemons of a soak, as an operator's supervisor keeps them: whoever is gone is started again."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.benchmarks import processes
from tests.soak.journal import Journal
from tests.support.world import Daemon, World

SIZE = 3
_LOOK_SECONDS = 0.5
_EXPECTED = (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
"""How one ends that was told to; the last is one that was told twice, and did not wait any more."""


class Fleet:
    """So many daemons, whatever becomes of them.

    Args:
        world: Whose.
        journal: Where it is said what became of them.
    """

    def __init__(self, world: World, journal: Journal) -> None:
        self._world = world
        self._journal = journal
        self._lock = threading.RLock()
        self._living: list[Daemon] = []
        self._number = 0
        self._stopped: set[int] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """From here to the end of the block."""
        over = threading.Event()
        thread = threading.Thread(target=self._supervise, args=(over,), name="supervisor")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.wake()
            for daemon in self._living:
                self._end(daemon)

    def kill(self, dice: random.Random) -> None:
        """SIGKILL to one of them, even if it stands still."""
        with self._lock:
            if self._living:
                dice.choice(self._living).kill()

    def stop(self, dice: random.Random) -> None:
        """SIGTERM to one of them."""
        with self._lock:
            going = [one for one in self._living if one.process.pid not in self._stopped]
            if going:
                dice.choice(going).process.send_signal(signal.SIGTERM)

    def stall(self, dice: random.Random) -> None:
        """SIGSTOP to one of them, until it is woken; one at least goes on."""
        with self._lock:
            going = [one for one in self._living if one.process.pid not in self._stopped]
            if len(going) > 1:
                one = dice.choice(going)
                one.process.send_signal(signal.SIGSTOP)
                self._stopped.add(one.process.pid)

    def switch_kafka(self) -> None:
        """Have every daemon restarted without Kafka, or with it if they run without."""
        with self._lock:
            self._world.uses_kafka = not self._world.uses_kafka
            for daemon in self._living:
                daemon.process.send_signal(signal.SIGTERM)

    def wake(self) -> None:
        """SIGCONT to all that stand still."""
        with self._lock:
            for daemon in self._living:
                if daemon.process.pid in self._stopped:
                    daemon.process.send_signal(signal.SIGCONT)
            self._stopped.clear()

    def _supervise(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_SECONDS):
            with self._lock:
                for daemon in list(self._living):
                    if daemon.process.poll() is not None:
                        self._note_end(daemon)
                        self._living.remove(daemon)
                    else:
                        with suppress(OSError):
                            self._journal.noticed(processes.peak_bytes(daemon.process.pid))
                while len(self._living) < SIZE:
                    self._living.append(self._start())

    def _start(self) -> Daemon:
        self._number += 1
        log_file = Path(self._world.folder) / f"soaked-{self._number}.log"
        with log_file.open("wb") as log:
            command = [sys.executable, "-m", "syncer", "run"]
            process = subprocess.Popen(command, env=self._world.environment, stdout=log, stderr=log)
        self._journal.note("daemon started", number=self._number, pid=process.pid)
        return Daemon(process=process, log_file=log_file)

    def _end(self, daemon: Daemon) -> None:
        try:
            daemon.stop(seconds=60)
        except subprocess.TimeoutExpired:
            self._journal.find(f"a daemon does not end: {daemon.log_file}")
            daemon.kill()
        self._note_end(daemon)

    def _note_end(self, daemon: Daemon) -> None:
        """A daemon that has begun its work ends only if it is told to; one that has not may find a server away."""
        code = daemon.process.returncode
        said = daemon.log_file.read_text(errors="replace")
        self._journal.note("daemon ended", pid=daemon.process.pid, code=code, log=daemon.log_file.name)
        if "Traceback" in said:
            self._journal.find(f"a daemon shows a traceback: {daemon.log_file}\n{_around(said, 'Traceback')}")
        has_begun = '"event": "daemon.started"' in said
        if code not in _EXPECTED and has_begun and not _hung(said):
            self._journal.find(f"a daemon has ended by itself, with {code}: {daemon.log_file}\n{said[-1500:]}")


def _hung(said: str) -> bool:
    """Whether it was told to end, and a server that stood still kept it: that is what it says then."""
    return "did not end within" in said


def _around(text: str, word: str) -> str:
    at = text.index(word)
    return text[max(0, at - 500) : at + 1500]
