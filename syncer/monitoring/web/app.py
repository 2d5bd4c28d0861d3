"""App: answers HTTP requests: the page, the API, metrics and health.

Guarantees: every response of the API is JSON. An error is ``{"message": …, "hint": …}``, as a command would print it,
never a traceback. Only POST changes jobs or dead letters, though a wait for searchability refreshes an index.
Permissions are checked here, before anything is read for a request. The page refers to no other host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import Any

import structlog
from markdown_it import MarkdownIt
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.http import generate_etag
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from syncer.base import settings
from syncer.base.error_policy import explain
from syncer.base.errors import ConfigError, DefinitionError, JobError, SyncerError, TokenError, WaitTimeoutError
from syncer.base.formatting import plain
from syncer.base.log import Repeated
from syncer.monitoring.web.access import Access, ForbiddenError, Need, UnauthorizedError

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
_STATUS: dict[type[SyncerError], int] = {
    UnauthorizedError: 401,
    ForbiddenError: 403,
    ConfigError: 400,
    DefinitionError: 404,
    JobError: 409,
    TokenError: 400,
    WaitTimeoutError: 504,
}
_BUSY = 503
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_TEXT_MAX = 1000
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
# Links to other pages, which do not ship; their text stays.
_OTHER_PAGES = re.compile(r"\[([^\]]*)\]\((?!#)[^)]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A permitted request: the parameters in its query and body, whether it has the token, and the client's address.

    Raises:
        ConfigError: A parameter is not what it should be. So raise all methods.
    """

    words: Mapping[str, Any]
    has_token: bool
    address: str

    def text(self, name: str) -> str:
        """A text parameter; empty if it is missing."""
        value = self.words.get(name) or ""
        if not isinstance(value, str) or len(value) > _TEXT_MAX or _UNSTORABLE.search(value):
            raise ConfigError(f"{name} must be text of at most {_TEXT_MAX:,} characters")
        return value

    def required(self, name: str) -> str:
        """A text parameter that must be there."""
        if value := self.text(name):
            return value
        raise ConfigError(f"Missing parameter: {name}", hint=f"Add {name}=…")

    def flag(self, name: str) -> bool:
        """A boolean parameter; false if it is missing."""
        value = str(self.words.get(name, "false")).lower()
        if value not in ("true", "false", "1", "0"):
            raise ConfigError(f"{name} must be true or false")
        return value in ("true", "1")

    def number(self, name: str, *, default: int, most: int) -> int:
        """A whole number from 0 to ``most``."""
        value = str(self.words.get(name, default))
        if not (value.isascii() and value.isdigit()) or len(value) > len(str(most)) or int(value) > most:
            raise ConfigError(f"{name} must be a number from 0 to {most:,}")
        return int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRoute:
    """A path, the permission that it requires, and its handler.

    The handler is called with an `Asked`, and the path's parameters; it returns JSON data, or a whole response.
    """

    path: str
    need: Need
    answer: Callable[..., Any]
    method: str = "GET"


class App:
    """Answers requests; threads may call it concurrently."""

    def __init__(self, access: Access, routes: Iterable[WebRoute]) -> None:
        self._access = access
        self._files = {file.name: file.read_bytes() for file in (files(__package__) / "static").iterdir()}
        self._files["operating.html"] = _manual(self._files["manual.html"].decode()).encode()
        rules = [Rule(route.path, endpoint=route, methods=[route.method]) for route in routes]
        for path, name in (("/", "index.html"), ("/operating", "operating.html"), ("/static/<name>", "")):
            rules.append(Rule(path, endpoint=name, methods=["GET"]))
        # Paths must match exactly: no redirects to similar ones.
        self._paths = Map(rules, strict_slashes=False, merge_slashes=False, redirect_defaults=False)
        self._refused = Repeated[str, tuple[str, str]](_log_refused)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Handle one request: the WSGI protocol."""
        request = Request(environ)
        try:
            response = self._answer(request)
        except HTTPException as error:
            asked = f"{request.method[:20]} {request.path[:200]}"
            response = _problem(error.code or 400, f"{asked}: {error.name}", "The paths are in docs/json.md.")
            response.headers.extend([header for header in error.get_headers() if header[0] == "Allow"])
        except Exception as error:  # noqa: BLE001 - reported to the client or in the log
            response = self._of_error(request, error)
        response.headers.extend(_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response(environ, start)

    def _answer(self, request: Request) -> Response:
        self._access.require_ours(request.headers, is_page=request.path == "/" and request.method == "GET")
        route, values = self._paths.bind_to_environ(request.environ).match()
        if not isinstance(route, WebRoute):
            return self._file(request, route or values["name"])
        has_token = self._access.has_token(request.headers)
        self._access.require(route.need, has_token=has_token)
        asked = Asked(words=_words(request), has_token=has_token, address=request.remote_addr or "")
        answer = route.answer(asked, **values)
        return answer if isinstance(answer, Response) else as_json(answer)

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
        explained = explain(error)
        if explained is None:
            structlog.get_logger().error("web.request_failed", path=request.path[:200], exc_info=error)
            return _problem(500, "Unexpected error", "The daemon's log has it: web.request_failed")
        is_refusal = isinstance(explained, ForbiddenError | UnauthorizedError)
        # The page without a token causes none of these: they may be an attack.
        if is_refusal and ("Authorization" in request.headers or isinstance(explained, ForbiddenError)):
            # One key for all errors of a kind: made-up host names are logged no more often than a repeated one.
            self._refused.note(explained.kind or explained.message, (explained.message[:60], request.remote_addr or ""))
        status = next((code for kind, code in _STATUS.items() if isinstance(explained, kind)), _BUSY)
        response = _problem(status, explained.message, explained.hint)
        if isinstance(explained, UnauthorizedError):
            response.headers["WWW-Authenticate"] = 'Bearer realm="syncer"'
        return response


def as_json(body: Any, status: int = 200) -> Response:
    """A JSON response of the API."""
    return Response(json.dumps(plain(body), ensure_ascii=False), status, content_type="application/json")


def _problem(status: int, message: str, hint: str = "") -> Response:
    return as_json({"message": message, "hint": hint}, status)


def _words(request: Request) -> dict[str, Any]:
    """The query, and the JSON object in the body of a POST.

    Raises:
        ConfigError: The body is not a JSON object.
    """
    body = request.get_data(cache=False) if request.method == "POST" else b""
    try:
        parsed = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError("The body is not a JSON object", hint='As in: {"document": "blogpost"}')
    return {**request.args.to_dict(), **parsed}


def _log_refused(_: str, requests: int, last: tuple[str, str]) -> None:
    reason, address = last
    structlog.get_logger().warning("web.refused", reason=reason, requests=requests, address=address)


def _manual(page: str) -> str:
    """Render docs/operating.md, so that a problem's link works without internet access."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    text = (settings.shipped("docs") / "operating.md").read_text("utf-8")
    tokens = markdown.parse(_OTHER_PAGES.sub(r"\1", text))
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", following.content.lower().replace(" ", "-"))
    return page.replace("{content}", markdown.renderer.render(tokens, markdown.options, {}))
