"""Server: a stage of the daemon that answers HTTP requests with a few threads.

Guarantees: the port is taken when it is made, so that a daemon whose port somebody else has says so before it does
anything else; it holds up no other stage, nor the end of the daemon: what is not answered in time then is cut. What a
client sends is bounded, in size, in number, and in time; what is no request, or too large a one, is told so as the API
says it.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server
from waitress.task import ErrorTask
from waitress.utilities import Error

from syncer import events
from syncer.errors import ConfigError
from syncer.lifecycle import Stop
from syncer.settings import WebSettings

PORTS_TRIED = 10
"""How many ports are tried, from the default one on: as many daemons on one machine have a page each."""
_THREADS = 8
"""More than may wait for a server at once, so that one that hangs holds up neither metrics nor health."""
_STOP_SECONDS = 2
_LOOP_SECONDS = 5
_CONNECTIONS_MAX = 100
_HEADER_BYTES_MAX = 16 * 1024
_BODY_BYTES_MAX = 64 * 1024
_SILENT_SECONDS = 30
_REQUEST_SECONDS = 30
_CLEANUP_SECONDS = 10
_BOUNDS = f"A request has at most {_HEADER_BYTES_MAX // 1024} KB of headers, and {_BODY_BYTES_MAX // 1024} KB of body."

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class WebServer:
    """Answers until told to stop.

    Args:
        listening: The port: see `listen`.
        application: What answers.
        has_token: Whether there is a token; for the log.
    """

    def __init__(self, listening: socket.socket, application: Application, *, has_token: bool) -> None:
        self._listening = listening
        self._application = application
        self._has_token = has_token
        self.address = _address(listening)

    def run(self, stop: Stop) -> None:
        """Answer until told to stop."""
        _silence()
        sockets: dict[int, Any] = {}
        server = create_server(
            self._application,
            map=sockets,
            sockets=[self._listening],
            threads=_THREADS,
            ident=None,
            connection_limit=_CONNECTIONS_MAX,
            channel_timeout=_SILENT_SECONDS,
            cleanup_interval=_CLEANUP_SECONDS,
            max_request_header_size=_HEADER_BYTES_MAX,
            max_request_body_size=_BODY_BYTES_MAX,
        )
        assert isinstance(server, TcpWSGIServer)  # noqa: S101 - one socket makes one server
        server.channel_class = _Channel
        structlog.get_logger().info(events.WEB_LISTENING, address=self.address, has_token=self._has_token)
        stop.call(server.pull_trigger)
        unfinished = _Unfinished()
        try:
            while not stop.is_requested:
                wasyncore.loop(timeout=_LOOP_SECONDS, use_poll=True, map=sockets, count=1)
                unfinished.cut(server)
        finally:
            server.task_dispatcher.shutdown(timeout=_STOP_SECONDS)
            wasyncore.close_all(sockets)


class _Refusal(ErrorTask):
    """What the server refuses by itself, before anything of ours sees it."""

    def execute(self) -> None:
        """Answer."""
        error: Error = self.request.error  # type: ignore[attr-defined]  # typeshed has another class
        body = json.dumps({"message": f"{error.reason}: {error.body}", "hint": _BOUNDS}).encode()
        self.status = f"{error.code} {error.reason}"
        self.response_headers = [
            *self.response_headers,
            ("Content-Type", "application/json"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Channel(HTTPChannel):
    """A connection."""

    error_task_class = _Refusal


class _Unfinished:
    """Requests that have begun and not ended: whoever sends a byte now and then is silent to nobody, and never done.

    Else a hundred of them would keep everybody out, and with them whoever asks whether this daemon is alive.
    """

    def __init__(self) -> None:
        self._begun: dict[Any, float] = {}

    def cut(self, server: TcpWSGIServer) -> None:
        """Close the connections whose request has taken too long to come."""
        now = time.monotonic()
        channels: dict[int, HTTPChannel] = server.active_channels  # type: ignore[assignment]  # typeshed has the class
        coming = {one.request: one for one in channels.values() if one.request is not None}
        self._begun = {request: self._begun.get(request, now) for request in coming}
        for request, channel in coming.items():
            if now - self._begun[request] > _REQUEST_SECONDS:
                channel.will_close = True


def listen(settings: WebSettings) -> socket.socket | None:
    """Take the port; None if none is to be had, and nobody has asked for a certain one.

    Raises:
        ConfigError: The one that was asked for cannot be had.
    """
    if settings.port is None:
        return None
    is_chosen = settings.is_port_chosen
    last = settings.port + (1 if is_chosen else PORTS_TRIED)
    for port in range(settings.port, last):
        try:
            return _bound(settings.host, port)
        except OSError as error:
            trouble = error
            if error.errno != errno.EADDRINUSE:
                break
    if is_chosen or trouble.errno != errno.EADDRINUSE:
        raise ConfigError(
            f"The status page cannot listen at {settings.host}, port {settings.port}: {trouble.strerror}",
            hint="Set web.host and web.port (SYNCER_WEB_HOST, SYNCER_WEB_PORT): 0 for any port that is free, none for "
            "no page.",
        )
    structlog.get_logger().warning(
        events.WEB_ABSENT,
        host=settings.host,
        ports=f"{settings.port} to {last - 1}",
    )
    return None


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def _address(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _silence() -> None:
    """Keep what waitress says of clients off standard error, where our lines are: it says it to nobody else."""
    logger = logging.getLogger("waitress")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
