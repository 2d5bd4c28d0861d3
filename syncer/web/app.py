"""App: what answers an HTTP request: the page, the API, metrics and health.

Guarantees: every answer of the API is JSON, an error ``{"message": …, "hint": …}`` as a command would say it, never a
traceback; no document, job or dead letter changes but by POST, though who waits to find what he has written has its
index refreshed; what a request may have is decided here, before anything is read for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from syncer import events
from syncer.errors import ConfigError, DefinitionError, JobError, SyncerError, TokenError, WaitTimeoutError
from syncer.policy import explain
from syncer.repeated import Repeated
from syncer.web.access import Access, ForbiddenError, Need, UnauthorizedError
from syncer.web.files import PAGE, Files

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
    """A request that may have what it asks for.

    Args:
        words: What is in the query, and in the body.
        has_token: Whether it came with the token.
        address: Where it came from.
    """

    words: Mapping[str, Any]
    has_token: bool
    address: str


Answer = Callable[..., Any]
"""Takes an `Asked`, and as keywords what is in the path; returns JSON, or a whole response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What is answered at a path.

    Args:
        path: As werkzeug has it.
        method: GET or POST.
        need: What one has to be allowed.
        answer: Who answers.
    """

    path: str
    method: str
    need: Need
    answer: Answer


class App:
    """Answers requests; safe to be called by several threads at once.

    Args:
        access: Who may do what.
        routes: What there is, beside the page itself.
    """

    def __init__(self, access: Access, routes: Iterable[Route]) -> None:
        self._access = access
        self._files = Files()
        rules = [Rule(one.path, endpoint=one, methods=[one.method]) for one in routes]
        rules.append(Rule("/", endpoint=PAGE, methods=["GET"]))
        rules.append(Rule("/static/<name>", endpoint="", methods=["GET"]))
        # A path is what it is: one that is nearly right leads nowhere, and least of all elsewhere.
        self._paths = Map(rules, strict_slashes=False, merge_slashes=False, redirect_defaults=False)
        self._refused = Repeated[str, tuple[str, str]](_tell_refused)
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """As WSGI has it."""
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
        except Exception as error:  # noqa: BLE001 - told below, to who asked or to the log
            return self._of_error(request, error)

    def _answer(self, request: Request) -> Response:
        self._access.require_ours(request.headers, is_page=request.path == "/" and request.method == "GET")
        endpoint, values = self._paths.bind_to_environ(request.environ).match()
        if not isinstance(endpoint, Route):
            return self._files.get(request, endpoint or values["name"])
        has_token = self._access.has_token(request.headers)
        self._access.require(endpoint.need, has_token=has_token)
        asked = Asked(words=_words(request), has_token=has_token, address=request.remote_addr or "")
        said = endpoint.answer(asked, **values)
        return said if isinstance(said, Response) else as_json(said)

    def _of_error(self, request: Request, error: Exception) -> Response:
        said = explain(error)
        if said is None:
            structlog.get_logger().error(events.WEB_FAILED, path=request.path[:200], exc_info=error)
            return problem(500, "That met an error that nobody foresaw", "The daemon's log has it: web.request_failed")
        if isinstance(said, ForbiddenError | UnauthorizedError) and (error is said):
            self._note_refused(request, said)
        status = next((code for kind, code in _STATUS.items() if isinstance(said, kind)), _BUSY)
        response = problem(status, said.message, said.hint)
        if isinstance(said, UnauthorizedError):
            response.headers["WWW-Authenticate"] = 'Bearer realm="syncer"'
        return response

    def _note_refused(self, request: Request, error: SyncerError) -> None:
        """Tell of what an attempt may be; that the page asks without a token for what takes one is none."""
        if "Authorization" in request.headers or isinstance(error, ForbiddenError):
            with self._lock:
                # Who makes up names is told of as seldom as who sends the same one.
                self._refused.note(error.kind or error.message, (error.message[:60], request.remote_addr or ""))


def as_json(said: Any, status: int = 200) -> Response:
    """An answer of the API."""
    return Response(json.dumps(said, default=str, ensure_ascii=False), status, content_type="application/json")


def problem(status: int, message: str, hint: str = "") -> Response:
    """An error as the API says it."""
    return as_json({"message": message, "hint": hint}, status)


def _of_http(request: Request, error: HTTPException) -> Response:
    match error:
        case NotFound():
            return problem(404, f"There is nothing at {request.path[:200]}", "What there is: docs/status-page.md")
        case MethodNotAllowed():
            allowed = ", ".join(error.valid_methods or ())
            response = problem(405, f"{request.method[:20]} is not for this path", f"It takes {allowed}.")
            response.headers["Allow"] = allowed
            return response
        case RequestEntityTooLarge():
            return problem(413, "The request is too large")
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
    structlog.get_logger().warning(events.WEB_REFUSED, reason=reason, requests=requests, address=address)
