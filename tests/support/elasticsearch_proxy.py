"""What stands before a real Elasticsearch and spoils its answers: a load balancer, a bad line, a proxy.

It knows HTTP, so that it can spoil the n-th request of a kind and let all else pass; whether a request has reached
Elasticsearch is part of what a fault is.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_HOP_BY_HOP = frozenset({"connection", "content-length", "transfer-encoding", "host", "accept-encoding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, or the half of it before the connection is cut."""

    status: int
    body: bytes
    headers: dict[str, str]
    is_cut: bool = False


Forward = Callable[[], Answer]
"""Lets Elasticsearch answer."""
Fault = Callable[[Forward], Answer | None]
"""What is done to a request; none is answered with is a connection that is closed."""


def swallowed(forward: Forward) -> None:
    """It is applied, and the connection is cut before the answer."""
    forward()


def cut(forward: Forward) -> Answer:
    """It is applied, and the connection is cut in the middle of the answer."""
    return replace(forward(), is_cut=True)


def emptied(forward: Forward) -> Answer:
    """It is applied, and the answer is an object with nothing in it."""
    return replace(forward(), body=b"{}")


def page(status: int) -> Fault:
    """A load balancer answers with a page of its own; Elasticsearch hears of nothing."""

    def fault(_: Forward) -> Answer:
        body = b"<html><body>We will be back soon.</body></html>"
        return Answer(status=status, body=body, headers={"Content-Type": "text/html"})

    return fault


def refused(status: int, kind: str) -> Fault:
    """Elasticsearch's own refusal of a whole request, whose sentence is another one each time."""
    numbers = iter(range(10**9))

    def fault(_: Forward) -> Answer:
        error = {"type": kind, "reason": f"would be [{next(numbers)}], which is larger than the limit"}
        body = json.dumps({"error": {"root_cause": [error], **error}, "status": status}).encode()
        return Answer(status=status, body=body, headers=_OWN)

    return fault


_OWN = {"Content-Type": "application/vnd.elasticsearch+json;compatible-with=8", "X-elastic-product": "Elasticsearch"}


class Proxy(ThreadingHTTPServer):
    """A proxy before one Elasticsearch.

    Attributes:
        left: How many more requests are spoilt.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream)
        self.left = 0
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._spoilt = ""
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def address(self) -> str:
        """The URL."""
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        """While the block lasts."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Refuse connections while the block lasts."""
        self.shutdown()
        self.server_close()
        try:
            with self.spoiling(lambda _: None, path="/"):  # connections that are open are closed too
                yield
        finally:
            self.socket = socket.create_server(self.server_address[:2], backlog=self.request_queue_size)
            threading.Thread(target=self.serve_forever, daemon=True).start()

    @contextmanager
    def spoiling(self, fault: Fault, *, times: int = 10**9, path: str = "/_bulk") -> Iterator[None]:
        """Do this to the next requests that come while the block lasts: bulk requests, or those with another path."""
        with self._lock:
            self._fault, self.left, self._spoilt = fault, times, path
        try:
            yield
        finally:
            with self._lock:
                self._fault = None

    def next_fault(self, path: str) -> Fault | None:
        """What is done to the next request."""
        with self._lock:
            if self._fault is None or self.left == 0 or self._spoilt not in path:
                return None
            self.left -= 1
            return self._fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _any(self) -> None:
        with suppress(ConnectionError):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault, forward = self.server.next_fault(unquote(urlsplit(self.path).path)), partial(self._forward, body)
            answer = forward() if fault is None else fault(forward)
            self.close_connection |= answer is None or answer.is_cut
            if answer is not None:
                self._send(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any  # noqa: N815 - named by the library

    def _forward(self, body: bytes) -> Answer:
        with closing(
            HTTPConnection(str(self.server.upstream.hostname), self.server.upstream.port, timeout=120)
        ) as upstream:
            upstream.request(self.command, self.path, body=body, headers=_forwarded(self.headers.items()))
            response = upstream.getresponse()
            return Answer(status=response.status, body=response.read(), headers=_forwarded(response.getheaders()))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in (*answer.headers.items(), ("Content-Length", str(len(answer.body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) // 2] if answer.is_cut else answer.body)
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Say nothing."""


def _forwarded(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _HOP_BY_HOP}
