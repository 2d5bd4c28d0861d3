"""Plain bulk requests, one kept connection for each thread."""

from __future__ import annotations

from http.client import HTTPConnection
from threading import local
from urllib.parse import urlsplit


class Connections:
    """Connections to one index of one Elasticsearch."""

    def __init__(self, url: str, index: str) -> None:
        self._address = urlsplit(url).netloc
        self._path = f"/{index}/_bulk?filter_path=errors"
        self._local = local()

    def post(self, body: bytes) -> None:
        """Send one bulk request, and fail if Elasticsearch refused any part of it."""
        if not hasattr(self._local, "connection"):
            self._local.connection = HTTPConnection(self._address)
        connection: HTTPConnection = self._local.connection
        connection.request("POST", self._path, body, {"Content-Type": "application/x-ndjson"})
        answer = connection.getresponse().read()
        if answer != b'{"errors":false}':
            raise RuntimeError(f"Elasticsearch answers {answer[:300]!r}")
