"""Files: the page, its style and its scripts, as they ship with the package. They refer to no other host."""

from __future__ import annotations

from importlib.resources import files

from werkzeug.exceptions import NotFound
from werkzeug.http import generate_etag
from werkzeug.wrappers import Request, Response

PAGE = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Files:
    """All files, read once."""

    def __init__(self) -> None:
        folder = files(__package__) / "static"
        self._bytes = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}

    def get(self, request: Request, name: str) -> Response:
        """One file; without its content if the browser has it already.

        Raises:
            NotFound: There is no file of that name.
        """
        found = self._bytes.get(name)
        if found is None:
            raise NotFound
        response = Response(found, content_type=_TYPES[name.rpartition(".")[2]])
        response.set_etag(generate_etag(found))
        response.headers["Cache-Control"] = "no-cache"  # revalidated each time, and sent only if it has changed
        return response.make_conditional(request)
