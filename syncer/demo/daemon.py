"""The daemon of the demo: a real ``syncer run`` in a process of its own, followed through its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from syncer import events
from syncer.errors import SyncerError

_STOP_SECONDS = 30
_PAGE_SECONDS = 10
_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class Totals:
    """What the daemon has done so far.

    Args:
        relayed: Changes that the relay has published.
        handled: Changes that the workers have done.
        indexed: Documents written: by workers, and by jobs that are finished.
        deleted: Documents deleted.
        lag_seconds: The age of the oldest change in the last batch.
    """

    relayed: int = 0
    handled: int = 0
    indexed: int = 0
    deleted: int = 0
    lag_seconds: float = 0


class DaemonProcess:
    """Starts, follows and stops ``syncer run``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.log_file = folder / "daemon.log"
        self._log = self.log_file.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "syncer", "run"],
            env={**os.environ, **environment, "SYNCER_LOG_FORMAT": "json"},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is ours to handle: the daemon is stopped in order
        )
        self._reading = self.log_file.open("rb")
        self.totals = Totals()
        self._page: str | None = None
        self._may_have_page = True

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def page(self) -> str | None:
        """Where its status page is; None if it has none.

        Raises:
            SyncerError: It has ended.
        """
        deadline = time.monotonic() + _PAGE_SECONDS
        while self._page is None and self._may_have_page and time.monotonic() < deadline:
            self.follow()
            time.sleep(_LOOK_SECONDS)
        return self._page

    def follow(self) -> Totals:
        """Read what it has logged since the last call.

        Raises:
            SyncerError: It has ended.
        """
        while line := self._reading.readline():
            if not line.endswith(b"\n"):
                self._reading.seek(-len(line), os.SEEK_CUR)
                break
            if line.startswith(b"{"):
                self._count(json.loads(line))
        if self._process.poll() is not None:
            raise SyncerError(
                f"The daemon has ended with exit code {self._process.returncode}",
                hint="Its last words:\n" + "".join(self.log_file.read_text().splitlines(keepends=True)[-8:]),
            )
        return self.totals

    def _count(self, event: dict[str, object]) -> None:
        if event["event"] == events.DAEMON_STARTED:
            self._may_have_page = "web" in str(event["stages"])
        elif event["event"] == events.WEB_LISTENING:
            self._page = str(event["address"])
        number = {key: value for key, value in event.items() if isinstance(value, int | float)}
        if event["event"] == events.RELAY_PUBLISHED:
            self.totals.relayed += int(number["changes"])
        elif event["event"] == events.WORKER_INDEXED:
            self.totals.handled += int(number["changes"])
            self.totals.indexed += int(number["indexed"])
            self.totals.deleted += int(number["deleted"])
            self.totals.lag_seconds = float(number["lag_seconds"])
        elif event["event"] == events.JOB_FINISHED:
            self.totals.indexed += int(number["indexed"])
            self.totals.deleted += int(number["deleted"])

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that takes too long; its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._log.close()
        self._reading.close()
        return self._process.wait()
