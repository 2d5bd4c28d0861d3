"""Client: opens a client of Elasticsearch or OpenSearch, after checking that the server is supported.

The client is that of Elasticsearch for both. What it must send and receive in another way for OpenSearch is done by its
transport; what else differs is in `Product`.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import structlog
from elastic_transport import HttpHeaders, NodeConfig, Transport, TransportApiResponse, Urllib3HttpNode
from elasticsearch import ApiError, AuthorizationException, Elasticsearch, NotFoundError
from elasticsearch.serializer import NdjsonSerializer
from urllib3.connection import HTTPConnection

from syncer.base.error_policy import NO_ROOM, OPENSEARCH_VERSION, PRODUCT, explain, is_by_another
from syncer.base.errors import IndexingError
from syncer.base.retry import Backoff, answered
from syncer.base.settings import ElasticsearchSettings

TIMEOUT_SECONDS = 60.0
"""How long a request may take."""
_PATIENCE_SECONDS = 60.0
_BULK_TYPES = ("application/x-ndjson", "application/vnd.elasticsearch+x-ndjson")
_SUCCESSES, _NOT_FOUND = range(200, 300), 404
_PLAIN = frozenset({None, "application/json"})
_TAGLINE = "You Know, for Search"
"""Of Elasticsearch, in its response to ``GET /``."""
_SECURITY_PLUGIN = 'realm="OpenSearch Security"'
_MEDIA_TYPE = re.compile(r"vnd\.elasticsearch\+|; *compatible-with=\d+")


class Product(NamedTuple):
    """A search server, and what it needs that the other one does not know."""

    name: str
    oldest: tuple[int, int]
    supported: str
    preference: str | None
    """With which a search asks primary shards, where a replica may not show what a refresh has shown."""
    search_options: Mapping[str, Any]
    """What a search says besides, for what is in the index and nothing else. A count cannot say it."""
    own_settings: Mapping[str, Any]
    """Settings of syncer's own indices."""
    point_in_time: tuple[str, str, str, list[Any]]
    """Its path and parameters, the name of its id in a response, and the order in which its documents are listed."""


ELASTICSEARCH = Product(
    name="Elasticsearch",
    oldest=(8, 0),
    supported="8 or newer",
    preference=None,
    search_options={},
    own_settings={"mode": "standard"},
    point_in_time=("/_pit", "", "id", ["_shard_doc"]),
)
OPENSEARCH = Product(
    name="OpenSearch",
    oldest=(2, 19),
    supported="2.19 or newer",
    # With index.replication.type SEGMENT, a replica copies segments now and then: a refresh shows it nothing new.
    preference="_primary",
    search_options={"search_pipeline": "_none"},
    own_settings={},
    point_in_time=(
        "/_search/point_in_time",
        "&preference=_primary&allow_partial_pit_creation=false",
        "pit_id",
        # An index in which there has never been a document may have no mapping, also of these.
        [{name: {"unmapped_type": "keyword"}} for name in ("_id", "_index")],
    ),
)


# As for Postgres: a dead peer is noticed within half a minute, and no load balancer forgets an idle connection.
_TCP = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
_KEEPALIVE = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # A system other than Linux has not all of them.
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP.items() if hasattr(socket, name)),
]


class _Node(Urllib3HttpNode):
    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.pool.conn_kw["socket_options"] = _KEEPALIVE


class ServerTransport(Transport):
    """Speaks to OpenSearch, too, once the response to ``GET /`` has told that it is one."""

    product = ELASTICSEARCH

    def perform_request(self, method: str, target: str, *, headers: Any = None, **options: Any) -> TransportApiResponse:
        """Send what OpenSearch takes, and return what the client of Elasticsearch takes."""
        if self.product is OPENSEARCH and headers:
            headers = HttpHeaders({name: _MEDIA_TYPE.sub("", str(value)) for name, value in headers.items()})
        meta, body = super().perform_request(method, target, headers=headers, **options)
        response = body if isinstance(body, Mapping) else {}
        version = response.get("version") if target == "/" else None
        is_greeting = isinstance(version, Mapping) and version.get("distribution") == "opensearch"
        # Version 2 refuses a login in plain text, and is named by nothing else.
        is_refusal = _SECURITY_PLUGIN in str(meta.headers.get("www-authenticate"))
        if is_greeting or is_refusal or OPENSEARCH_VERSION in meta.headers:
            self.product = OPENSEARCH
        # Version 3 names itself in every response. Version 2 does not: a proxy's responses have another form.
        is_of_its_form = is_refusal or "_index" in response or isinstance(response.get("error"), Mapping)
        is_of_its_form |= meta.status in _SUCCESSES and meta.mimetype in _PLAIN
        if self.product is OPENSEARCH and (OPENSEARCH_VERSION in meta.headers or is_of_its_form):
            named = {OPENSEARCH_VERSION: "", **meta.headers, PRODUCT: "Elasticsearch"}
            meta = replace(meta, headers=HttpHeaders(named))
        elif version and response.get("tagline") == _TAGLINE:  # before 7.14, it had no header: see `require_supported`
            meta = replace(meta, headers=HttpHeaders({**meta.headers, PRODUCT: "Elasticsearch"}))
        # A proxy's page must not be taken for an index that is not there. Version 2 answers HEAD without a form.
        if meta.status == _NOT_FOUND and (self.product is ELASTICSEARCH or meta.mimetype not in _PLAIN):
            missing = NotFoundError("not found", meta, body)
            if is_by_another(missing):
                raise missing
        return TransportApiResponse(meta, body)


def product(client: Elasticsearch) -> Product:
    """Return what a client is connected to; Elasticsearch, unless `connect` or `open_client` has made it."""
    return client.transport.product if isinstance(client.transport, ServerTransport) else ELASTICSEARCH


def open_client(url: str, **options: Any) -> Elasticsearch:
    """Return a client of Elasticsearch's library, also for OpenSearch; the options are those of the library."""
    client = Elasticsearch(url, transport_class=ServerTransport, **options)
    require_supported(client.info().body)
    return client


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
        "transport_class": ServerTransport,
        "node_class": _Node,
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
    try:
        with suppress(AuthorizationException):  # of a user with privileges on one index: `syncer verify --select`
            require_supported(client.info().body)
    except NotFoundError as error:
        if is_by_another(error):
            raise
        problem = "elasticsearch.url has a path, which the search server takes for an index"
        raise IndexingError(problem, hint="Leave the path out. It is for a proxy that removes it.") from error
    return client


def require_supported(greeting: Mapping[str, Any]) -> None:
    """Check, from the response to ``GET /``, that the server is Elasticsearch or OpenSearch, and not too old."""
    version = greeting.get("version", {})
    number, name = str(version.get("number", "0")), str(version.get("distribution", "elasticsearch"))
    server = next((server for server in (ELASTICSEARCH, OPENSEARCH) if server.name.lower() == name), None)
    numbers = [int(digits) for digits in re.findall(r"\d+", number)[:2]]
    if server is None or tuple(numbers) < server.oldest:
        needed = " or ".join(f"{candidate.name} {candidate.supported}" for candidate in (ELASTICSEARCH, OPENSEARCH))
        hint = f"syncer needs {needed}. Check elasticsearch.url."
        raise IndexingError(f"{server.name if server else name} {number} is not supported", hint=hint)


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
