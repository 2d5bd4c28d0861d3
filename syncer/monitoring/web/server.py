"""Server: a component of the daemon that answers HTTP requests: who may have what, the page's files, errors, the port.

Guarantees: every response of the API is JSON. An error is ``{"message": …, "hint": …}``, as a command would print it,
never a traceback. Permissions are checked here, before anything is read for a request.

                                        from this machine    from others    with the token
    the page alone, metrics, health     yes                  yes            yes
    figures, names, ids of documents    yes                  no             yes
    values of rows                      no                   no             yes

A page of another site, open in the same browser, can read nothing. A foreign host name is refused, to
prevent DNS rebinding. So is a request that the browser marks as cross-site. Tokens are compared in constant time.

The port is bound at once: a daemon whose port is in use fails before it does anything else. The server delays no other
component, nor the end of the daemon. What clients send is limited in size and number.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import json
import logging
import mimetypes
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError, validate_call
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from syncer.base.error_policy import explain
from syncer.base.errors import ConfigError, DefinitionError, SyncerError, TokenError, WaitTimeoutError
from syncer.base.formatting import plain
from syncer.base.lifecycle import Stop
from syncer.base.log import Repeated
from syncer.base.settings import WebSettings, shipped

PORTS_TRIED = 10
"""How many ports are tried, from the default one on: so many daemons on one machine have a page each."""
_STOP_SECONDS = 2
_LOOP_SECONDS = 0.5
_BACKLOG = 1024
"""More connections than this at once would be accepted in any order, after a second or more."""
_LIMITS: dict[str, Any] = {
    "threads": 8,  # more than may wait for a server at once, so a server that hangs delays neither metrics nor health
    "connection_limit": 100,  # the server's own sockets included
    "channel_timeout": 10,  # how long a connection may wait for a whole request: less than a liveness probe is patient
    "cleanup_interval": 2,
    "max_request_header_size": 16 * 1024,
    "max_request_body_size": 64 * 1024,
}
_ADDRESS_CONNECTIONS_MAX = 25
"""How many connections one address may have open: it leaves most of ``connection_limit`` to health checks."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Access(IntEnum):
    """What a request may have; each includes those before."""

    HEALTH = 0
    FIGURES = 1
    VALUES = 2


class ForbiddenError(SyncerError):
    """The request is refused, whether it has the token or not."""


class UnauthorizedError(SyncerError):
    """The request needs the token, and came without it or with a wrong one."""


_STATUS: dict[type[SyncerError], int] = {
    UnauthorizedError: 401,
    ForbiddenError: 403,
    ConfigError: 400,
    DefinitionError: 404,
    TokenError: 400,
    WaitTimeoutError: 504,
}
_BUSY = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Decides what requests may have, by the address that the server listens on, and the token, if one is set."""

    host: str
    token: str | None

    def access(self, headers: Headers) -> Access:
        """What a request with these headers may have; one with a wrong token is refused."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if not scheme or self.token is None:
            return Access.FIGURES if _is_loopback(self.host) else Access.HEALTH
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self.token.encode()):
            raise UnauthorizedError("Wrong token", hint="It is the value of web.token.")
        return Access.VALUES

    def require(self, needed: Access, access: Access) -> None:
        """Refuse a request that may not have what it needs."""
        if access >= needed:
            return
        if self.token is None:
            hint = "Set web.token (SYNCER_WEB_TOKEN) and restart the daemon."
            raise ForbiddenError("This requires a token, and none is set", hint=hint)
        raise UnauthorizedError("This requires the token", hint="Send it as: Authorization: Bearer TOKEN")

    def require_same_site(self, headers: Headers, *, is_page: bool) -> None:
        """Refuse cross-site requests of browsers. A link may lead to the page, which has no data yet."""
        host = headers.get("Host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if _is_loopback(self.host) and not _is_loopback(name):
            raise ForbiddenError(
                f"This is not {name[:100]!r}",
                hint="It answers to localhost and 127.0.0.1 only, to prevent DNS rebinding. "
                "If a proxy forwards the requests, let it send localhost as the Host header.",
                kind="host",
            )
        follows_link = is_page and headers.get("Sec-Fetch-Dest") == "document"
        if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not follows_link:
            raise ForbiddenError("A page of another site sent this request", hint="Open the status page itself.")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower().rstrip(".") == "localhost"


class App:
    """The WSGI application; threads may call it concurrently.

    Each route has its handler, and what a request needs to be answered. The handler is called with what the request may
    have and with the parameters of path and query, which pydantic checks against its annotations. It returns JSON data,
    or a whole response.
    """

    def __init__(self, guard: Guard, routes: Mapping[str, tuple[Callable[..., Any], Access]]) -> None:
        self._guard = guard
        static = Path(__file__).parent / "static"
        # A problem's link leads to the manual, also without internet access.
        files = {"/": static / "index.html", "/operating": shipped("docs") / "operating.md"}
        files |= {f"/static/{file.name}": file for file in static.iterdir()}
        handlers = {path: (validate_call(handler), needed) for path, (handler, needed) in routes.items()}
        rules = [Rule(path, endpoint=endpoint, methods=["GET"]) for path, endpoint in (files | handlers).items()]
        # Paths must match exactly: no redirects to similar ones.
        self._paths = Map(rules, strict_slashes=False, merge_slashes=False, redirect_defaults=False)
        self._refused = Repeated()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Handle one request: the WSGI protocol."""
        request = Request(environ)
        try:
            response = self._answer(request)
        except Exception as error:  # noqa: BLE001 - reported to the client or in the log
            response = self._of_error(request, error)
        response.headers.extend(_HEADERS)
        return response(environ, start)

    def _answer(self, request: Request) -> Response:
        self._guard.require_same_site(request.headers, is_page=request.path == "/" and request.method == "GET")
        endpoint, parameters = self._paths.bind_to_environ(request.environ).match()
        if isinstance(endpoint, Path):
            mimetype = "text/plain" if endpoint.suffix == ".md" else mimetypes.guess_type(endpoint)[0]
            return Response(endpoint.read_bytes(), mimetype=mimetype)
        handler, needed = endpoint
        access = self._guard.access(request.headers)
        self._guard.require(needed, access)
        body = handler(access, **{**request.args.to_dict(), **parameters})
        return body if isinstance(body, Response) else as_json(body)

    def _of_error(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            message = f"{request.method[:20]} {request.path[:200]}: {error.name}"
            response = as_json({"message": message, "hint": "The paths are in docs/json.md."}, error.code or 400)
            response.headers.extend([header for header in error.get_headers() if header[0] == "Allow"])
            return response
        if isinstance(error, ValidationError):
            problem = error.errors()[0]
            message = ": ".join([*map(str, problem["loc"][:1]), problem["msg"]])
            error = ConfigError(message, hint="The parameters are in docs/json.md.")
        explained = explain(error)
        if explained is None:
            structlog.get_logger().error("web.request_failed", path=request.path[:200], exc_info=error)
            explained, status = SyncerError("Unexpected error", hint="The daemon's log has it: web.request_failed"), 500
        else:
            status = next((code for kind, code in _STATUS.items() if isinstance(explained, kind)), _BUSY)
        response = as_json({"message": explained.message, "hint": explained.hint}, status)
        is_unauthorized = isinstance(explained, UnauthorizedError)
        # The page without a token causes none of these: they may be an attack.
        is_attack = isinstance(explained, ForbiddenError) or (is_unauthorized and "Authorization" in request.headers)
        # One key for all errors of a kind: made-up host names are logged no more often than a repeated one.
        if is_attack and (requests := self._refused.count(explained.kind or explained.message)):
            reason, address = explained.message[:60], request.remote_addr or ""
            structlog.get_logger().warning("web.refused", reason=reason, requests=requests, address=address)
        if is_unauthorized:
            response.headers["WWW-Authenticate"] = 'Bearer realm="syncer"'
        return response


def as_json(body: Any, status: int = 200) -> Response:
    """A JSON response of the API."""
    return Response(json.dumps(plain(body)), status, content_type="application/json")


class _Channel(HTTPChannel):
    """A connection that is closed if it sends no whole request in time, or if its address has too many."""

    def __init__(self, server: Any, sock: socket.socket, addr: Any, adj: Any, map: Any = None) -> None:  # noqa: A002
        super().__init__(server, sock, addr, adj, map)
        alike = sum(channel.addr[0] == addr[0] for channel in server.active_channels.values())
        self.will_close = alike > _ADDRESS_CONNECTIONS_MAX

    def handle_read(self) -> None:
        since = self.last_activity
        super().handle_read()
        if not self.requests:  # a part of a request, or an empty line, is no activity: it would put off the timeout
            self.last_activity = since


class WebServer:
    """The HTTP server of a WSGI application, on a bound socket: see `listen`."""

    def __init__(self, listening: socket.socket, application: Callable[..., Iterable[bytes]]) -> None:
        self._listening = listening
        self._application = application
        host, port, *_ = listening.getsockname()
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self, stop: Stop) -> None:
        """Answer requests until a stop is requested; those not answered in time are then cut off."""
        # What waitress logs of clients is discarded: standard error is for our log lines.
        logging.getLogger("waitress").propagate = False
        logging.getLogger("waitress").addHandler(logging.NullHandler())
        sockets: dict[int, Any] = {}
        server = create_server(self._application, map=sockets, sockets=[self._listening], ident=None, **_LIMITS)
        assert isinstance(server, TcpWSGIServer)  # one socket makes one server
        server.channel_class = _Channel
        structlog.get_logger().info("web.listening", address=self.address)
        try:
            while not stop.is_requested:
                wasyncore.loop(timeout=_LOOP_SECONDS, use_poll=True, map=sockets, count=1)
        finally:
            server.task_dispatcher.shutdown(timeout=_STOP_SECONDS)
            wasyncore.close_all(sockets)


def listen(settings: WebSettings) -> socket.socket | None:
    """Bind the port; None if none is free. If one is configured and not available, it is an error."""
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
