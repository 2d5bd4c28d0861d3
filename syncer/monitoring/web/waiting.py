"""What a daemon answers over HTTP while it waits for its servers at its start: it lives, and is not ready."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from syncer.base import metrics
from syncer.base.lifecycle import Stop
from syncer.monitoring.web.server import WebServer

_TEXT = [("content-type", "text/plain; charset=utf-8")]


class Waiting:
    """A WSGI application that says what the daemon waits for, as ``reason``."""

    def __init__(self) -> None:
        self.reason = "The daemon starts"

    def __call__(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        match request["PATH_INFO"]:
            case "/healthz":
                start("200 OK", _TEXT)
                return [b"It waits for its servers\n"]
            case "/metrics":
                start("200 OK", [("content-type", "text/plain; version=0.0.4; charset=utf-8")])
                return [metrics.render()]
        start("503 Service Unavailable", _TEXT)
        return [f"{self.reason}\n".encode()]


@contextmanager
def answering(listening: socket.socket | None) -> Iterator[Waiting]:
    """Answer on a bound socket during the block; the socket stays open."""
    waiting, stop = Waiting(), Stop()
    if listening is None:
        yield waiting
        return
    server = WebServer(listening.dup(), waiting, has_token=False, is_logged=False)
    thread = threading.Thread(target=server.run, args=(stop,), name="web", daemon=True)
    thread.start()
    try:
        yield waiting
    finally:
        stop.request()
        thread.join()
