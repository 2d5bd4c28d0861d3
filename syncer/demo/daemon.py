"""The demo's daemon: a real ``syncer run`` in a process of its own, observed through its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from syncer.base import events
from syncer.base.errors import SyncerError

_STOP_SECONDS = 30
_PAGE_SECONDS = 10
_LOOK_SECONDS = 0.05


class DaemonProcess:
    """Starts, follows and stops ``syncer run``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.log_file = folder / "daemon.log"
        logs = {"SYNCER_LOG_FORMAT": "json", "SYNCER_LOG_LEVELS": json.dumps({events.WORKER_INDEXED: "debug"})}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "syncer", "run"],
                env={**os.environ, **environment, **logs},
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must not reach it: the demo stops it in order
            )
        self._reader = self.log_file.open("rb")
        self._handled = 0
        self._page: str | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def page(self) -> str | None:
        """Return the address of its status page; None if it has none.

        Raises:
            SyncerError: The daemon has ended.
        """
        deadline = time.monotonic() + _PAGE_SECONDS
        while self._page is None and time.monotonic() < deadline:
            self.handled()
            time.sleep(_LOOK_SECONDS)
        return self._page or None

    def handled(self) -> int:
        """Return how many changes its workers have handled.

        Raises:
            SyncerError: The daemon has ended.
        """
        while line := self._reader.readline():
            if not line.endswith(b"\n"):
                self._reader.seek(-len(line), os.SEEK_CUR)
                break
            event = json.loads(line) if line.startswith(b"{") else {}
            match event.get("event"):
                case events.WEB_LISTENING:
                    self._page = str(event["address"])
                case events.WEB_ABSENT:
                    self._page = ""
                case events.WORKER_INDEXED:
                    self._handled += int(event["changes"])
        if self._process.poll() is not None:
            raise SyncerError(
                f"The daemon has ended with exit code {self._process.returncode}",
                hint="The end of its log:\n" + "".join(self.log_file.read_text().splitlines(keepends=True)[-8:]),
            )
        return self._handled

    def stop(self) -> int:
        """Send SIGTERM, then SIGKILL if that takes too long; return the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reader.close()
        return self._process.wait()
