"""Traces: a span for each batch of the relay and of a worker, with its stages as children, by OpenTelemetry.

An option: nothing of it is imported unless ``traces.endpoint`` is set, and then ``syncer[otel]`` must be installed.
What the endpoint does not say comes from OpenTelemetry's own variables: ``OTEL_EXPORTER_OTLP_HEADERS``,
``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER`` and the others.

The relay puts its span's context (``traceparent``, of W3C) into the header of each record. A batch of a worker has
records of several batches of the relay, so its span has links to theirs, and no parent. Guarantees: no span has a value
of a row; who collects them may be away, slow or gone: spans are dropped then, and nothing waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from syncer import events
from syncer.errors import ConfigError
from syncer.settings import TracesSettings
from syncer.telemetry import LibraryLog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span, Tracer

HEADER: Final = "traceparent"
LINKS_MAX: Final = 100
"""How many batches of the relay a worker's span is linked to."""
_EXPORT_SECONDS = 5
_NANOSECONDS = 1_000_000_000

Headers = list[tuple[str, str | bytes | None]]


class Trace:
    """What is told of one batch while it is handled: this one tells nobody."""

    headers: Headers | None = None
    """What its records are to carry."""

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Around a part of the work; from any thread."""
        del name
        return nullcontext()

    def end(self, **numbers: int) -> None:
        """It is done; with what is known of it."""


OFF: Final = Trace()


class _Told(Trace):
    """The same, told to a tracer."""

    def __init__(self, tracer: Tracer, span: Span, headers: Headers | None) -> None:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - an option

        self.headers = headers
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - an option

        telling = self._tracer.start_as_current_span(
            name, context=self._context, record_exception=False, set_status_on_exception=False
        )
        with telling as span:
            try:
                yield
            except BaseException as error:
                span.set_status(StatusCode.ERROR, type(error).__name__)  # what it says may quote a value
                raise

    def end(self, **numbers: int) -> None:
        self._span.set_attributes({f"syncer.{name}": number for name, number in numbers.items()})
        self._span.end()


class _Tracing:
    """Where spans go to, once that is set."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - an option
            TraceContextTextMapPropagator,
        )

        self._provider = provider
        self._tracer = provider.get_tracer("syncer")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, *, began: float | None, links: Iterable[str], **names: str) -> Trace:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - an option

        span = self._tracer.start_span(
            name,
            links=self._links(links),
            start_time=None if began is None else time.time_ns() - int((time.monotonic() - began) * _NANOSECONDS),
            attributes={f"syncer.{name}": value for name, value in names.items()},
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return _Told(self._tracer, span, [(HEADER, carrier[HEADER].encode())] if HEADER in carrier else None)

    def _links(self, parents: Iterable[str]) -> list[Link]:
        from opentelemetry.trace import Link, get_current_span  # noqa: PLC0415 - an option

        contexts = [
            get_current_span(self._propagator.extract({HEADER: one})).get_span_context()
            for one in list(parents)[:LINKS_MAX]
        ]
        return [Link(one) for one in contexts if one.is_valid]

    def close(self) -> None:
        self._provider.shutdown()


_tracing: _Tracing | None = None


def configure(settings: TracesSettings) -> None:
    """Begin to tell of batches, if that is set.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    global _tracing  # noqa: PLW0603 - what telemetry is told to is one for the process
    if settings.endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            "traces.endpoint is set, and OpenTelemetry is not installed", hint="Run: pip install 'syncer[otel]'"
        ) from error
    _listen_to_library()
    provider = TracerProvider(resource=Resource.create({"service.name": settings.service_name}))
    exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=_EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracing = _Tracing(provider)


def close() -> None:
    """Tell what is not told yet, if somebody listens; and then nothing more."""
    global _tracing  # noqa: PLW0603 - as above
    if _tracing is not None:
        _tracing.close()
    _tracing = None


def is_on() -> bool:
    """Whether anybody is told: for who would have to look for what to tell."""
    return _tracing is not None


def begin(name: str, *, began: float | None = None, links: Iterable[str] = (), **names: str) -> Trace:
    """A batch begins, or has begun.

    Args:
        name: What is done.
        began: When, by the monotonic clock, if it was not just now.
        links: The headers that its records carry.
        names: What it is done by, and on.
    """
    return OFF if _tracing is None else _tracing.begin(name, began=began, links=links, **names)


def _listen_to_library() -> None:
    """Have what the library says of who collects spans logged as an event; it would go to standard error as it is."""
    logger: Any = logging.getLogger("opentelemetry")
    if not logger.handlers:
        logger.addHandler(LibraryLog(events.TRACES_TROUBLED))
        logger.propagate = False
