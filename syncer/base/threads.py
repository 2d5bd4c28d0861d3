"""Waiting for threads, for a limited time.

All of syncer's threads are daemon threads: those of the standard library's executors are joined at exit, even if a
server keeps them waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence


def join(threads: Sequence[threading.Thread], *, seconds: float | None) -> bool:
    """Wait up to ``seconds`` for all threads to end; return whether they have."""
    deadline = None if seconds is None else time.monotonic() + seconds
    for thread in threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
