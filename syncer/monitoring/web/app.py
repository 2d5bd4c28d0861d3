"""App: answers HTTP requests: the page, the API, metrics and health.

Guarantees: every response of the API is JSON. An error is ``{"message": …, "hint": …}``, as a command would print it,
never a traceback. Only POST changes documents, jobs or dead letters, though a wait for searchability refreshes an
index. Permissions are checked here, before anything is read for a request.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from syncer.base.error_policy import explain
from syncer.base.errors import ConfigError, DefinitionError, JobError, SyncerError, TokenError, WaitTimeoutError
from syncer.base.log_limit import Repeated
from syncer.monitoring.web.access import Access, ForbiddenError, Need, UnauthorizedError
from syncer.monitoring.web.files import PAGE, Files

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_BUSY = 503
_STATUS: dict[type[SyncerError], int] = {
    UnauthorizedError: 401,
    ForbiddenError: 403,
    ConfigError: 400,
    DefinitionError: 404,
    JobError: 409,
    TokenError: 400,
    WaitTimeoutError: 504,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A permitted request.

    Args:
        words: The parameters in the query and in the body.
        has_token: Whether it has the token.
        address: The client's address.
    """

    words: Mapping[str, Any]
    has_token: bool
    address: str


Answer = Callable[..., Any]
"""Called with an `Asked`, and the path's parameters as keywords; returns JSON data, or a whole response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRoute:
    """A path and its handler.

    Args:
        path: A pattern of werkzeug's.
        method: GET or POST.
        need: The permission that it requires.
        answer: The handler.
    """

    path: str
    method: str
    need: Need
    answer: Answer


class App:
    """Answers requests; threads may call it concurrently.

    Args:
        access: Checks what requests may do.
        routes: All routes except the page itself.
    """

    def __init__(self, access: Access, routes: Iterable[WebRoute]) -> None:
        self._access = access
        self._files = Files()
        rules = [Rule(one.path, endpoint=one, methods=[one.method]) for one in routes]
        rules.append(Rule("/", endpoint=PAGE, methods=["GET"]))
        rules.append(Rule("/static/<name>", endpoint="", methods=["GET"]))
        # Paths must match exactly: no redirects to similar ones.
        self._paths = Map(rules, strict_slashes=False, merge_slashes=False, redirect_defaults=False)
        self._refused = Repeated[str, tuple[str, str]](_tell_refused)
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Handle one request: the WSGI protocol."""
        request = Request(environ)
        response = self._respond(request)
        for name, value in _HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Cache-Control", "no-store")
        return response(environ, start)

    def _respond(self, request: Request) -> Response:
        try:
            return self._answer(request)
        except HTTPException as error:
            return _of_http(request, error)
        except Exception as error:  # noqa: BLE001 - reported below, to the client or in the log
            return self._of_error(request, error)

    def _answer(self, request: Request) -> Response:
        self._access.require_ours(request.headers, is_page=request.path == "/" and request.method == "GET")
        endpoint, values = self._paths.bind_to_environ(request.environ).match()
        if not isinstance(endpoint, WebRoute):
            return self._files.get(request, endpoint or values["name"])
        has_token = self._access.has_token(request.headers)
        self._access.require(endpoint.need, has_token=has_token)
        asked = Asked(words=_words(request), has_token=has_token, address=request.remote_addr or "")
        said = endpoint.answer(asked, **values)
        return said if isinstance(said, Response) else as_json(said)

    def _of_error(self, request: Request, error: Exception) -> Response:
        said = explain(error)
        if said is None:
            structlog.get_logger().error("web.request_failed", path=request.path[:200], exc_info=error)
            return problem(500, "Unexpected error", "The daemon's log has it: web.request_failed")
        if isinstance(said, ForbiddenError | UnauthorizedError) and (error is said):
            self._note_refused(request, said)
        status = next((code for kind, code in _STATUS.items() if isinstance(said, kind)), _BUSY)
        response = problem(status, said.message, said.hint)
        if isinstance(said, UnauthorizedError):
            response.headers["WWW-Authenticate"] = 'Bearer realm="syncer"'
        return response

    def _note_refused(self, request: Request, error: SyncerError) -> None:
        """Log a request that may be an attack; the page without a token causes none of these."""
        if "Authorization" in request.headers or isinstance(error, ForbiddenError):
            with self._lock:
                # One key for all errors of a kind: made-up host names are logged no more often than a repeated one.
                self._refused.note(error.kind or error.message, (error.message[:60], request.remote_addr or ""))


def as_json(said: Any, status: int = 200) -> Response:
    """A JSON response of the API."""
    return Response(json.dumps(said, default=str, ensure_ascii=False), status, content_type="application/json")


def problem(status: int, message: str, hint: str = "") -> Response:
    """An error response of the API."""
    return as_json({"message": message, "hint": hint}, status)


def _of_http(request: Request, error: HTTPException) -> Response:
    match error:
        case NotFound():
            return problem(404, f"Not found: {request.path[:200]}", "The paths are in docs/status-page.md.")
        case MethodNotAllowed():
            allowed = ", ".join(error.valid_methods or ())
            response = problem(405, f"{request.method[:20]} is not allowed here", f"Allowed: {allowed}.")
            response.headers["Allow"] = allowed
            return response
    return problem(error.code or 400, error.description or error.name)


def _words(request: Request) -> dict[str, Any]:
    """The query, and the JSON object in the body of a POST.

    Raises:
        ConfigError: The body is something else.
    """
    words: dict[str, Any] = request.args.to_dict()
    body = request.get_data(cache=False) if request.method == "POST" else b""
    if not body:
        return words
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError("The body is not JSON", hint='As in: {"document": "blogpost"}') from error
    if not isinstance(said, dict):
        raise ConfigError("The body is not a JSON object", hint='As in: {"document": "blogpost"}')
    return words | said


def _tell_refused(_: str, requests: int, last: tuple[str, str]) -> None:
    reason, address = last
    structlog.get_logger().warning("web.refused", reason=reason, requests=requests, address=address)
