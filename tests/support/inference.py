"""A model on a server of its own, which Elasticsearch asks for embeddings: requests are real, answers as wanted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from elasticsearch import Elasticsearch


class Model(ThreadingHTTPServer):
    """Embeds texts, or answers another status.

    Attributes:
        status: What it answers to any request.
        refused: A word for which it refuses a request with all of its texts.
    """

    status = 200
    refused = "-"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
        is_refused = any(self.server.refused in text for text in texts)
        status = 400 if is_refused else self.server.status
        answer = [[0.1, 0.2, 0.3] for _ in texts] if status == 200 else {"error": "refused"}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Say nothing."""


@contextmanager
def model(client: Elasticsearch, name: str) -> Iterator[Model]:
    """An inference endpoint of that name, while the block lasts. It needs a licence, of which a trial does."""
    with Model(("127.0.0.1", 0), _Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        client.options(ignore_status=403).license.post_start_trial(acknowledge=True)
        url = f"http://127.0.0.1:{served.server_port}/"
        settings = {"service": "hugging_face", "service_settings": {"url": url, "api_key": "none"}}
        client.inference.put(task_type="text_embedding", inference_id=name, inference_config=settings)
        try:
            yield served
        finally:
            served.status, served.refused = 200, "-"
            client.inference.delete(inference_id=name, force=True)
            served.shutdown()
