"""Client: opens a client of Elasticsearch, after checking that the server is supported."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import structlog
from elasticsearch import ApiError, AuthorizationException, Elasticsearch
from elasticsearch.serializer import NdjsonSerializer

from syncer.base.error_policy import NO_ROOM, explain
from syncer.base.errors import IndexingError
from syncer.base.retry import Backoff, answered
from syncer.base.settings import ElasticsearchSettings

OLDEST_SUPPORTED_VERSION = 8
TIMEOUT_SECONDS = 60.0
"""How long a request may take."""
_PATIENCE_SECONDS = 60.0
_BULK_TYPES = ("application/x-ndjson", "application/vnd.elasticsearch+x-ndjson")


def connect(
    settings: ElasticsearchSettings, *, is_patient: bool = False, timeout_seconds: float = TIMEOUT_SECONDS
) -> Elasticsearch:
    """Create a client that tries another node if one cannot be reached, after checking that the server is supported.

    It retries nothing else: that is decided by the error policy, not by the transport. Only a patient client, for
    commands, repeats what Elasticsearch refuses for lack of room (429), for a minute.
    """
    options: dict[str, Any] = {"request_timeout": timeout_seconds, "max_retries": len(settings.urls) - 1}
    options |= {
        "retry_on_status": (),
        "retry_on_timeout": False,
        "serializers": dict.fromkeys(_BULK_TYPES, _Prebuilt()),
    }
    if settings.api_key:
        options["api_key"] = settings.api_key.get_secret_value()
    elif settings.username:
        password = settings.password.get_secret_value() if settings.password else ""
        options["basic_auth"] = (settings.username, password)
    if settings.ca_certs:
        options["ca_certs"] = str(settings.ca_certs)
    try:
        client = (_Patient if is_patient else _Client)(settings.urls, **options)
    except (ValueError, OSError) as error:
        # Not chained: the client's message may quote a password in the URL.
        problem = "The client of Elasticsearch does not take elasticsearch.url, .ca_certs or the credentials"
        problem += f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        hint = "As in: http://127.0.0.1:9200 or https://search:9200, with a user and a password or an API key;\n"
        raise IndexingError(problem, hint=f"{hint}ca_certs is a file of PEM certificates.") from None
    with suppress(AuthorizationException):  # of a user with privileges on one index: `syncer verify --select`
        require_supported(client.info().body)
    return client


def require_supported(info: Mapping[str, Any]) -> None:
    """Check, from the response to ``GET /``, that the server is Elasticsearch 8 or newer."""
    version = info.get("version", {})
    number = str(version.get("number", "0"))
    product = version.get("distribution", "elasticsearch")
    if product != "elasticsearch" or int(number.split(".", maxsplit=1)[0]) < OLDEST_SUPPORTED_VERSION:
        hint = f"syncer needs Elasticsearch {OLDEST_SUPPORTED_VERSION} or newer. Check elasticsearch.url."
        raise IndexingError(f"{product.capitalize()} {number} is not supported", hint=hint)


class _Client(Elasticsearch):
    def perform_request(self, method: str, path: str, **kwargs: Any) -> Any:
        """Record how long an answer took."""
        began = time.monotonic()
        response = super().perform_request(method, path, **kwargs)
        answered("elasticsearch", seconds=time.monotonic() - began)
        return response


class _Patient(_Client):
    def perform_request(self, method: str, path: str, **kwargs: Any) -> Any:
        """Repeat a request that is refused for lack of room; nothing of it was done. The writer repeats its own."""
        backoff, deadline, is_logged = Backoff(), time.monotonic() + _PATIENCE_SECONDS, False
        while True:
            try:
                return super().perform_request(method, path, **kwargs)
            except ApiError as error:
                if error.status_code != NO_ROOM or path.endswith("/_bulk") or time.monotonic() > deadline:
                    raise
                if not is_logged and (why := explain(error)):
                    structlog.get_logger().warning("elasticsearch.request_retried", error=why.message, hint=why.hint)
                    is_logged = True
            time.sleep(backoff.next_seconds())


class _Prebuilt(NdjsonSerializer):
    """Sends a bulk body given as bytes unchanged; the client would copy it twice."""

    def dumps(self, data: Any) -> bytes:
        return data if isinstance(data, bytes) else super().dumps(data)
