"""App: answers HTTP requests: the page, the API, metrics and health.

Guarantees: every response of the API is JSON. An error is ``{"message": …, "hint": …}``, as a command would print it,
never a traceback. No request changes anything, though a wait for searchability refreshes an index.
Permissions are checked here, before anything is read for a request. The page refers to no other host.

A page of another site, open in the same browser, can read nothing. A foreign host name is refused, to
prevent DNS rebinding. So is a request that the browser marks as cross-site. Tokens are compared in constant time.

                                        from this machine    from others    with the token
    the page alone, metrics, health     yes                  yes            yes
    figures, names, ids of documents    yes                  no             yes
    values of rows                      no                   no             yes
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import structlog
from pydantic import ValidationError, validate_call
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.http import generate_etag
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from syncer.base import settings
from syncer.base.error_policy import explain
from syncer.base.errors import ConfigError, DefinitionError, SyncerError, TokenError, WaitTimeoutError
from syncer.base.formatting import plain
from syncer.base.log import Repeated

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class ForbiddenError(SyncerError):
    """The request is refused, whether it has the token or not."""


class UnauthorizedError(SyncerError):
    """The request needs the token, and came without it or with a wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Checks what requests may do, by the address that the server listens on, and the token, if one is set."""

    host: str
    token: str | None

    @property
    def is_own(self) -> bool:
        """Whether only this machine can reach the server."""
        return _is_loopback(self.host)

    def require(self, *, has_token: bool, for_values: bool = False) -> None:
        """Refuse a request for figures and names, or for values, that may not have them.

        Raises:
            ForbiddenError, UnauthorizedError: It may not.
        """
        if has_token or (self.is_own and not for_values):
            return
        if self.token is None:
            hint = "Set web.token (SYNCER_WEB_TOKEN) and restart the daemon."
            raise ForbiddenError("This requires a token, and none is set", hint=hint)
        raise UnauthorizedError("This requires the token", hint="Send it as: Authorization: Bearer TOKEN")

    def require_ours(self, headers: Headers, *, is_page: bool) -> None:
        """Refuse cross-site requests of browsers. A link from another site may lead to the page, which has no data yet.

        Raises:
            ForbiddenError: The request is cross-site.
        """
        host = headers.get("Host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if self.is_own and not _is_loopback(name):
            raise ForbiddenError(
                f"This is not {name[:100]!r}",
                hint="It answers to localhost and 127.0.0.1 only, to prevent DNS rebinding. "
                "If a proxy forwards the requests, let it send localhost as the Host header.",
                kind="host",
            )
        follows_link = is_page and headers.get("Sec-Fetch-Dest") == "document"
        if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not follows_link:
            raise ForbiddenError("A page of another site sent this request", hint="Open the status page itself.")

    def has_token(self, headers: Headers) -> bool:
        """Whether the request has the token.

        Raises:
            UnauthorizedError: It has a wrong one.
        """
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if not scheme or self.token is None:
            return False
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise UnauthorizedError("Wrong token", hint="It is the value of web.token.")
        return True


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower().rstrip(".") == "localhost"


_STATUS: dict[type[SyncerError], int] = {
    UnauthorizedError: 401,
    ForbiddenError: 403,
    ConfigError: 400,
    DefinitionError: 404,
    TokenError: 400,
    WaitTimeoutError: 504,
}
_BUSY = 503
_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "md": "text/plain",
}


def route(path: str, answer: Callable[..., Any], *, is_public: bool = False) -> Rule:
    """A path and its handler; unless it is public, other machines need the token.

    The handler is called with whether the request has the token, and with the parameters of path and query, which
    pydantic checks against its annotations. It returns JSON data, or a whole response.
    """
    return Rule(path, endpoint=(validate_call(answer), is_public), methods=["GET"])


class App:
    """Answers requests; threads may call it concurrently."""

    def __init__(self, access: Access, routes: Iterable[Rule]) -> None:
        self._access = access
        self._files = {file.name: file.read_bytes() for file in (files(__package__) / "static").iterdir()}
        # A problem's link leads there, also without internet access.
        self._files["operating.md"] = (settings.shipped("docs") / "operating.md").read_bytes()
        pages = {"/": "index.html", "/operating": "operating.md", "/static/<name>": ""}
        rules = [Rule(path, endpoint=name, methods=["GET"]) for path, name in pages.items()]
        # Paths must match exactly: no redirects to similar ones.
        self._paths = Map([*rules, *routes], strict_slashes=False, merge_slashes=False, redirect_defaults=False)
        self._refused = Repeated()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Handle one request: the WSGI protocol."""
        request = Request(environ)
        try:
            response = self._answer(request)
        except Exception as error:  # noqa: BLE001 - reported to the client or in the log
            response = self._of_error(request, error)
        response.headers.extend(_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response(environ, start)

    def _answer(self, request: Request) -> Response:
        self._access.require_ours(request.headers, is_page=request.path == "/" and request.method == "GET")
        endpoint, values = self._paths.bind_to_environ(request.environ).match()
        if isinstance(endpoint, str):
            return self._file(request, endpoint or values["name"])
        answer, is_public = endpoint
        has_token = self._access.has_token(request.headers)
        if not is_public:
            self._access.require(has_token=has_token)
        found = answer(has_token, **{**request.args.to_dict(), **values})
        return found if isinstance(found, Response) else as_json(found)

    def _file(self, request: Request, name: str) -> Response:
        """A file of the page; without its content if the browser has it already.

        Raises:
            NotFound: There is no file of that name.
        """
        if name not in self._files:
            raise NotFound
        response = Response(self._files[name], content_type=f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8")
        response.set_etag(generate_etag(self._files[name]))
        response.headers["Cache-Control"] = "no-cache"  # revalidated each time, and sent only if it has changed
        return response.make_conditional(request)

    def _of_error(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            message = f"{request.method[:20]} {request.path[:200]}: {error.name}"
            response = as_json({"message": message, "hint": "The paths are in docs/json.md."}, error.code or 400)
            response.headers.extend([header for header in error.get_headers() if header[0] == "Allow"])
            return response
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            message = ": ".join([*map(str, first["loc"][:1]), first["msg"]])
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
