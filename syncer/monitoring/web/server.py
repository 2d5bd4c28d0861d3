"""Server: a component of the daemon that answers HTTP requests with a few threads.

Guarantees:

- The port is bound at once: a daemon whose port is in use fails before it does anything else.
- It delays no other component, nor the end of the daemon: requests not answered in time are then cut off.
- What clients send is limited in size and number, and connections without a request are soon closed.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from waitress import wasyncore
from waitress.server import TcpWSGIServer, create_server

from syncer.base.errors import ConfigError
from syncer.base.lifecycle import Stop
from syncer.base.settings import WebSettings

PORTS_TRIED = 10
"""How many ports are tried, from the default one on: so many daemons on one machine have a page each."""
_STOP_SECONDS = 2
_LOOP_SECONDS = 0.5
_BACKLOG = 1024
"""More connections than this at once would be accepted in any order, after a second or more."""
_LIMITS: dict[str, Any] = {
    "threads": 8,  # more than may wait for a server at once, so a server that hangs delays neither metrics nor health
    "connection_limit": 100,  # the server's own sockets included
    "channel_timeout": 10,  # how long a connection may be idle: less than a liveness probe is patient
    "cleanup_interval": 2,
    "max_request_header_size": 16 * 1024,
    "max_request_body_size": 64 * 1024,
}


class WebServer:
    """The HTTP server of a WSGI application, on a bound socket: see `listen`."""

    def __init__(self, listening: socket.socket, application: Callable[..., Iterable[bytes]]) -> None:
        self._listening = listening
        self._application = application
        host, port, *_ = listening.getsockname()
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self, stop: Stop) -> None:
        """Answer requests until a stop is requested."""
        # What waitress logs of clients is discarded: standard error is for our log lines.
        logging.getLogger("waitress").propagate = False
        logging.getLogger("waitress").addHandler(logging.NullHandler())
        sockets: dict[int, Any] = {}
        server = create_server(self._application, map=sockets, sockets=[self._listening], ident=None, **_LIMITS)
        assert isinstance(server, TcpWSGIServer)  # one socket makes one server
        structlog.get_logger().info("web.listening", address=self.address)
        try:
            while not stop.is_requested:
                wasyncore.loop(timeout=_LOOP_SECONDS, use_poll=True, map=sockets, count=1)
        finally:
            server.task_dispatcher.shutdown(timeout=_STOP_SECONDS)
            wasyncore.close_all(sockets)


def listen(settings: WebSettings) -> socket.socket | None:
    """Bind the port; None if none is free and none was configured.

    Raises:
        ConfigError: The configured port is not available.
    """
    if settings.port is None:
        return None
    is_chosen = "port" in settings.model_fields_set
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    ports = range(settings.port, settings.port + (1 if is_chosen else PORTS_TRIED))
    for port in ports:
        try:
            return socket.create_server((settings.host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if is_chosen or error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"The status page cannot listen at {settings.host}, port {port}: {error.strerror}",
                    hint="Set web.host and web.port (SYNCER_WEB_HOST, SYNCER_WEB_PORT): 0 for any port that is free, "
                    "none for no page.",
                ) from error
    structlog.get_logger().warning("web.absent", host=settings.host, ports=f"{ports[0]} to {ports[-1]}")
    return None
