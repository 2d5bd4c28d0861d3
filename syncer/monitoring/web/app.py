"""App: answers HTTP requests: the page, the API, metrics and health.

Guarantees: every response of the API is JSON. An error is ``{"message": …, "hint": …}``, as a command would print it,
never a traceback. No request changes anything, though a wait for searchability refreshes an index.
Permissions are checked here, before anything is read for a request. The page refers to no other host.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any

import structlog
from pydantic import ValidationError, validate_call
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.http import generate_etag
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from syncer.base import settings
from syncer.base.error_policy import explain
from syncer.base.errors import ConfigError, DefinitionError, SyncerError, TokenError, WaitTimeoutError
from syncer.base.formatting import plain
from syncer.base.log import Repeated
from syncer.monitoring.web.access import Access, ForbiddenError, UnauthorizedError

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
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
        self._refused = Repeated[str, tuple[str, str]](_log_refused)

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
        if isinstance(explained, ForbiddenError) or (is_unauthorized and "Authorization" in request.headers):
            # One key for all errors of a kind: made-up host names are logged no more often than a repeated one.
            self._refused.note(explained.kind or explained.message, (explained.message[:60], request.remote_addr or ""))
        if is_unauthorized:
            response.headers["WWW-Authenticate"] = 'Bearer realm="syncer"'
        return response


def as_json(body: Any, status: int = 200) -> Response:
    """A JSON response of the API."""
    return Response(json.dumps(plain(body)), status, content_type="application/json")


def _log_refused(_: str, requests: int, last: tuple[str, str]) -> None:
    reason, address = last
    structlog.get_logger().warning("web.refused", reason=reason, requests=requests, address=address)
