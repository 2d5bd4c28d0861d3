"""What OpenTelemetry's collector is told of a batch, from the relay to the worker."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from syncer.base import tracing
from syncer.base.errors import ConfigError
from syncer.base.settings import TracesSettings
from tests.harness import World

BLOG = """
INSERT INTO users (id, name, email) VALUES (1, 'John Smith', 'john@smith.com');
INSERT INTO posts (id, user_id, title, body) VALUES (2, 1, 'xylophone-in-the-row', 'long');
"""


@contextmanager
def collector(*, service: str = "syncer") -> Iterator[tuple[str, list[Any]]]:
    """A collector of spans: its endpoint, and the spans that it received."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Take what is sent."""
            told = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in told.resource_spans:
                names = {one.key: one.value.string_value for one in resource.resource.attributes}
                assert names["service.name"] == service
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    current = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    current.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
    finally:
        server.shutdown()
        current.join()
        server.server_close()


def test_a_batch_of_a_worker_is_linked_to_the_batches_of_the_relay_that_it_has(world: World) -> None:
    """Each has its components as children, and numbers; none has a value of a row; without changes there is none."""
    with collector() as (endpoint, spans):
        tracing.configure(TracesSettings(endpoint=endpoint))
        try:
            with world.index() as index, world.relay() as relay, world.worker(index) as worker:
                relay.run_once()
                worker.run_once()
                world.sql(BLOG)
                relay.run_once()
                world.sql("UPDATE users SET name = 'Jane' WHERE id = 1")
                world.drain(relay, worker)
                world.handle(worker)
        finally:
            tracing.close()
    named: dict[str, list[Any]] = {}
    for span in spans:
        named.setdefault(span.name, []).append(span)
    assert named.keys() == {"relay.batch", "produce", "publish", "save", "worker.batch", "follow", "compose", "index"}
    published = {span.span_id for span in named["relay.batch"]}
    linked = {link.span_id for span in named["worker.batch"] for link in span.links}
    assert len(published) == 2
    assert linked == published
    for span in spans:
        if span.name.endswith(".batch"):
            assert not span.parent_span_id
            assert span.end_time_unix_nano > span.start_time_unix_nano
    batches = {span.span_id for name in ("relay.batch", "worker.batch") for span in named[name]}
    assert {span.parent_span_id for name in ("produce", "compose", "index") for span in named[name]} == batches
    numbers = {one.key: one.value.int_value for span in named["worker.batch"] for one in span.attributes}
    assert numbers["syncer.indexed"] >= 1
    assert "xylophone" not in str(spans)


def test_what_fails_is_told_without_what_it_says() -> None:
    """Errors of servers quote the values that they are about: a span has the error's name alone."""
    with collector() as (endpoint, spans):
        tracing.configure(TracesSettings(endpoint=endpoint))
        batch = tracing.begin("worker.batch")
        with pytest.raises(ValueError, match="xylophone"), batch.step("compose"):
            raise ValueError("xylophone is no number")
        batch.end()
        tracing.close()
    (failed,) = [one for one in spans if one.name == "compose"]
    assert failed.status.message == "ValueError"
    assert "xylophone" not in str(spans)


def test_the_standard_variables_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They name an endpoint and the service; OTEL_SDK_DISABLED disables tracing."""
    with collector(service="search") as (endpoint, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.removesuffix("/v1/traces"))
        monkeypatch.setenv("OTEL_SERVICE_NAME", "search")
        tracing.configure(TracesSettings())
        tracing.begin("worker.batch").end()
        tracing.close()
        assert [one.name for one in spans] == ["worker.batch"]
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        tracing.configure(TracesSettings(endpoint=endpoint))
        assert not tracing.is_on()


def test_a_collector_that_is_down_delays_nothing(world: World) -> None:
    """The daemon continues, logs the error, and stops in time."""
    daemon = world.daemon(environment={"SYNCER_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"})
    world.sql(BLOG)
    world.wait_until_level()
    assert daemon.stop() == 0
    assert {one["event"] for one in daemon.events()} >= {"worker.batch_indexed", "daemon.stopped"}


def test_nothing_of_it_is_imported_unless_it_is_wanted() -> None:
    """Nor is the SDK needed. If traces.endpoint is set without it, the error says what to install."""
    # Elasticsearch's client asks OpenTelemetry's small API whether anybody wants to know, if that is there.
    loaded = "import sys, syncer.cli; print([one for one in sys.modules if one.startswith('opentelemetry.sdk')])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout == "[]\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
        with pytest.raises(ConfigError, match="not installed") as raised:
            tracing.configure(TracesSettings(endpoint="http://127.0.0.1:1"))
    assert "syncer-cdc[otel]" in raised.value.hint
