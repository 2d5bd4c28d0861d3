"""The daemons of a soak, and the supervisor that starts another one for each that ends."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.benchmarks import gauges
from tests.soak.record import Record
from tests.support import preloaded
from tests.support.world import Daemon, World

SIZE = 3
_LOOK_SECONDS = 0.5
_EXPECTED_CODES = (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
"""The last is that of a daemon that got two SIGTERMs, and did not wait any more."""


class Fleet:
    """A fixed number of daemons.

    Args:
        world: Whose documents they keep.
        record: Where their starts and ends are recorded.
        switches_kafka: Whether `switch_kafka` does more than restart them.
        sabotage: Which of `tests.sabotages` they run with, if any.
    """

    def __init__(
        self, world: World, record: Record, *, switches_kafka: bool = True, sabotage: str | None = None
    ) -> None:
        self._world = world
        self._record = record
        self._switches_kafka = switches_kafka
        self._sabotage = sabotage
        self._lock = threading.RLock()
        self._daemons: list[Daemon] = []
        self._started = 0
        self._stopped: set[int] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """They run while the block lasts."""
        over = threading.Event()
        thread = threading.Thread(target=self._supervise, args=(over,), name="supervisor")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.resume()
            for daemon in self._daemons:
                self.end(daemon)

    def kill(self, dice: random.Random) -> None:
        """SIGKILL one of them, even if it is stopped."""
        with self._lock:
            if self._daemons:
                dice.choice(self._daemons).kill()

    def kill_all(self) -> None:
        """SIGKILL all of them."""
        with self._lock:
            for daemon in self._daemons:
                daemon.kill()

    def terminate(self, dice: random.Random) -> None:
        """SIGTERM one of them."""
        with self._lock:
            if going := self._going():
                dice.choice(going).process.send_signal(signal.SIGTERM)

    def stop(self, dice: random.Random) -> None:
        """SIGSTOP one of them, until `resume`; at least one continues."""
        with self._lock:
            going = self._going()
            if len(going) > 1:
                daemon = dice.choice(going)
                daemon.process.send_signal(signal.SIGSTOP)
                self._stopped.add(daemon.process.pid)

    def resume(self) -> None:
        """SIGCONT all that are stopped."""
        with self._lock:
            for daemon in self._daemons:
                if daemon.process.pid in self._stopped:
                    daemon.process.send_signal(signal.SIGCONT)
            self._stopped.clear()

    def switch_kafka(self) -> None:
        """Restart every daemon without Kafka; with it, if they run without."""
        with self._lock:
            self._world.uses_kafka ^= self._switches_kafka
            for daemon in self._daemons:
                daemon.process.send_signal(signal.SIGTERM)

    def _going(self) -> list[Daemon]:
        return [daemon for daemon in self._daemons if daemon.process.pid not in self._stopped]

    def _supervise(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_SECONDS):
            with self._lock:
                for daemon in list(self._daemons):
                    if daemon.process.poll() is not None:
                        self._check_end(daemon)
                        self._daemons.remove(daemon)
                    else:
                        with suppress(OSError):
                            self._record.note_memory(gauges.peak_bytes(daemon.process.pid))
                while len(self._daemons) < SIZE:
                    self._daemons.append(self._start())

    def _start(self) -> Daemon:
        self._started += 1
        log_file = Path(self._world.folder) / f"soaked-{self._started}.log"
        environment = self._world.environment
        process: subprocess.Popen[bytes] | preloaded.Command
        if self._sabotage:
            command = [sys.executable, "-m", "tests.sabotages", self._sabotage, "run"]
            with log_file.open("wb") as log:
                process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        else:
            process = preloaded.Command(["run"], environment=environment, log_file=log_file)
        self._record.note("daemon started", number=self._started, pid=process.pid)
        return Daemon(process=process, log_file=log_file)

    def end(self, daemon: Daemon) -> None:
        """SIGTERM a daemon, and check how it ends."""
        if daemon.process.poll() is None:
            daemon.process.send_signal(signal.SIGTERM)
        try:
            daemon.process.wait(60)
        except subprocess.TimeoutExpired:
            self._record.find(f"a daemon does not end: {daemon.log_file}")
            daemon.kill()
        self._check_end(daemon)

    def _check_end(self, daemon: Daemon) -> None:
        """A daemon that has started ends by a signal alone; before that, it may find that a server is away."""
        code = daemon.process.returncode
        log = daemon.log_file.read_text(errors="replace")
        self._record.note("daemon ended", pid=daemon.process.pid, code=code, log=daemon.log_file.name)
        if "Traceback" in log:
            start = log.index("Traceback")
            self._record.find(
                f"a daemon shows a traceback: {daemon.log_file}\n{log[max(0, start - 500) : start + 1500]}"
            )
        has_started = '"event": "daemon.started"' in log
        did_hang = "did not end within" in log  # a server hung, so a component could not end
        if code not in _EXPECTED_CODES and has_started and not did_hang:
            self._record.find(f"a daemon ended by itself, with {code}: {daemon.log_file}\n{log[-1500:]}")
