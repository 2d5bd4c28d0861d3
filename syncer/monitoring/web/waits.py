"""Waits: lets a client wait until its transaction is indexed: see `syncer.verify.wait`.

Guarantee: waiting clients delay no other request, since only a few threads wait.
"""

from __future__ import annotations

import threading
from typing import Any

from syncer.base.errors import UnavailableError
from syncer.base.lifecycle import Stopping
from syncer.monitoring.web import words
from syncer.monitoring.web.app import Asked
from syncer.monitoring.web.facts import Daemon
from syncer.verify.wait import Waiter

SECONDS_MAX = 25
"""The longest wait: proxies may cut a connection that is silent for longer."""
_AT_ONCE = 2


class Waits:
    """Answers once a transaction is indexed.

    Args:
        daemon: The daemon whose settings apply.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        self._waiter: Waiter | None = None

    def wait(self, asked: Asked) -> dict[str, Any]:
        """Wait for ``token``; optional are ``timeout`` in seconds and ``searchable``.

        Raises:
            TokenError, WaitTimeoutError: As `syncer.verify.wait.Waiter.wait`.
            UnavailableError: Too many clients are waiting already, or the daemon ends.
        """
        token = words.required(asked.words, "token")
        seconds = words.number(asked.words, "timeout", default=SECONDS_MAX, most=SECONDS_MAX)
        searchable = words.whether(asked.words, "searchable")
        if not self._free.acquire(blocking=False):
            raise UnavailableError("Too many requests are waiting here", hint="Try again, or use another daemon.")
        try:
            waited = self._shared().wait(token, timeout_seconds=seconds, searchable=searchable)
        except Stopping:
            raise UnavailableError("This daemon is stopping", hint="Try again, or use another daemon.") from None
        finally:
            self._free.release()
        said = waited.as_json()
        return said if asked.has_token else {**said, "dead_lettered": len(waited.dead_lettered)}

    def _shared(self) -> Waiter:
        with self._lock:
            if self._waiter is None:
                self._waiter = Waiter(self._daemon.settings, pause=self._daemon.stop.pause)
            return self._waiter
