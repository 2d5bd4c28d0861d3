"""OpenTelemetry traces: a span for each batch of the relay and of a worker, with child spans for its steps.

Traces are exported if ``traces.endpoint`` or OpenTelemetry's variable for an endpoint is set; install the SDK with
``syncer-cdc[otel]``. Otherwise, spans are the no-op spans of OpenTelemetry's API. All other settings come from
OpenTelemetry's variables: ``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SDK_DISABLED`` and so on.
The service is called ``syncer`` unless ``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES`` names it.

The relay writes its span's W3C ``traceparent`` into the header of each record. A worker's batch mixes records of
several relay batches, so its span links to theirs and has no parent.

Guarantees: no span contains a value of a row. If the collector is slow or down, spans are dropped and nothing waits.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NoOpTracer,
    Span,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from syncer.base import events
from syncer.base.errors import ConfigError
from syncer.base.log import LibraryLog
from syncer.base.settings import TracesSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

HEADER: Final = "traceparent"
LINKS_MAX: Final = 100
"""How many relay batches a worker's span links to at most."""
_EXPORT_SECONDS = 5
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NANOSECONDS = 1_000_000_000
_PROPAGATOR: Final = TraceContextTextMapPropagator()

Headers = list[tuple[str, str | bytes | None]]

_tracer: Tracer = NoOpTracer()
_provider: TracerProvider | None = None


class BatchTrace:
    """The span of one batch, parent of the spans of its steps."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._context = set_span_in_context(span)

    @property
    def headers(self) -> Headers | None:
        """The headers for the records of the batch; None if it is not traced."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self._context)
        return [(HEADER, carrier[HEADER].encode())] if carrier else None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Trace a step of the batch. May be called from any thread."""
        with _tracer.start_as_current_span(
            name, context=self._context, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_status(StatusCode.ERROR, type(error).__name__)  # the message may quote a value
                raise

    def end(self, **numbers: int) -> None:
        """End the span, with these figures as attributes."""
        self._span.set_attributes({f"syncer.{name}": number for name, number in numbers.items()})
        self._span.end()


OFF: Final = BatchTrace(INVALID_SPAN)


def configure(settings: TracesSettings) -> None:
    """Start exporting traces if an endpoint is set.

    OpenTelemetry's variables may be set for all programs of a machine: without the SDK, they have no effect.

    Raises:
        ConfigError: ``traces.endpoint`` is set, but OpenTelemetry's SDK is not installed.
    """
    global _tracer, _provider  # noqa: PLW0603 - there is one tracer for the process
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    if settings.endpoint is None and not any(map(os.environ.get, _ENDPOINTS)):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if settings.endpoint is None:
            return
        raise ConfigError(
            "traces.endpoint is set, but OpenTelemetry is not installed", hint="Run: pip install 'syncer-cdc[otel]'"
        ) from error
    _log_the_exporter()
    resource = Resource.create({"service.name": "syncer"}).merge(OTELResourceDetector().detect())
    _provider = TracerProvider(resource=resource)
    # Without an endpoint, the exporter reads OpenTelemetry's variables.
    exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=_EXPORT_SECONDS)
    _provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = _provider.get_tracer("syncer")


def close() -> None:
    """Export the remaining spans, if the collector answers, and stop tracing."""
    global _tracer, _provider
    if _provider is not None:
        _provider.shutdown()
    _tracer, _provider = NoOpTracer(), None


def is_on() -> bool:
    """Whether traces are exported. If not, record headers need not be read."""
    return _provider is not None


def begin(name: str, *, began: float | None = None, links: Iterable[str] = (), **names: str) -> BatchTrace:
    """Start the span of a batch.

    Args:
        name: The span's name.
        began: When the batch began, by the monotonic clock; None for now.
        links: The ``traceparent`` headers of its records.
        names: Attributes of the span.
    """
    if not is_on():
        return OFF
    contexts = (get_current_span(_PROPAGATOR.extract({HEADER: one})).get_span_context() for one in links)
    span = _tracer.start_span(
        name,
        links=[Link(one) for one in islice(contexts, LINKS_MAX) if one.is_valid],
        start_time=None if began is None else time.time_ns() - int((time.monotonic() - began) * _NANOSECONDS),
        attributes={f"syncer.{key}": value for key, value in names.items()},
    )
    return BatchTrace(span)


def _log_the_exporter() -> None:
    """Log the SDK's export errors as events; by default they would go to standard error."""
    logger: Any = logging.getLogger("opentelemetry")
    if not logger.handlers:
        logger.addHandler(LibraryLog(events.TRACES_TROUBLED))
        logger.propagate = False
