"""Waits: who has written waits here until that is indexed: see `syncer.waiting`.

Guarantee: whoever waits keeps no other answer waiting, since only a few threads do.
"""

from __future__ import annotations

import threading
from typing import Any

from syncer.errors import UnavailableError
from syncer.lifecycle import Stopping
from syncer.waiting import Waiter
from syncer.web import words
from syncer.web.app import Asked
from syncer.web.facts import Daemon

SECONDS_MAX = 25
"""No longer than that: a connection on which nothing is said for longer may be cut by whoever is between."""
_AT_ONCE = 2


class Waits:
    """Answers once a transaction is indexed.

    Args:
        daemon: Whose settings say where.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        self._waiter: Waiter | None = None

    def wait(self, asked: Asked) -> dict[str, Any]:
        """``token``, and if one likes ``timeout`` in seconds and ``searchable``.

        Raises:
            TokenError, WaitTimeoutError: As `syncer.waiting.Waiter.wait`.
            UnavailableError: Others are waiting already, or the daemon ends.
        """
        token = words.required(asked.words, "token")
        seconds = words.number(asked.words, "timeout", default=SECONDS_MAX, most=SECONDS_MAX)
        searchable = words.whether(asked.words, "searchable")
        if not self._free.acquire(blocking=False):
            raise UnavailableError(f"{_AT_ONCE} are waiting here already", hint="Ask again, or ask another daemon.")
        try:
            waited = self._shared().wait(token, timeout_seconds=seconds, searchable=searchable)
        except Stopping:
            raise UnavailableError("This daemon is ending", hint="Ask again, or ask another daemon.") from None
        finally:
            self._free.release()
        said = waited.as_json()
        return said if asked.has_token else {**said, "parked": len(waited.parked)}

    def _shared(self) -> Waiter:
        with self._lock:
            if self._waiter is None:
                self._waiter = Waiter(self._daemon.settings, pause=self._daemon.stop.pause)
            return self._waiter
