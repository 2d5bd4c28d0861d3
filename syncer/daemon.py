"""Daemon: its components, each in a named thread, started, watched and stopped together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from syncer.base import log as log_lines, metrics, migrations, postgres
from syncer.base.error_policy import explain, is_refused
from syncer.base.errors import HangingError, SourceError, SyncerError, UnavailableError
from syncer.base.lifecycle import Component, Stop
from syncer.base.link import Link
from syncer.base.postgres import Connection
from syncer.base.retry import Trouble, retry
from syncer.base.settings import Settings
from syncer.documents import registry
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.client import connect
from syncer.indexing.flow_control import LiveTraffic
from syncer.kafka import topic
from syncer.kafka.topic import Observer
from syncer.monitoring.poll import PATIENCE_SECONDS, Poller
from syncer.monitoring.status import Server, session_name
from syncer.monitoring.web import Waiting
from syncer.recovery import lost_records
from syncer.recovery.schema_watch import Watch
from syncer.relay.loop import Relay
from syncer.worker.job_loop import JobWorker
from syncer.worker.loop import Worker
from syncer.worker.source import OutboxSource, Source, TopicSource

IDLE_SECONDS = 120.0
"""How long a component may idle in a transaction: longer than it waits for any response of another server."""
STOP_SECONDS = 25.0
"""How long components may take to end, for the case that a server hangs. Other daemons redo what was in hand."""
_WATCH_SECONDS = 0.5


def prepared(
    settings: Settings, stop: Stop, waiting: Waiting, *, relay: bool = True, workers: bool = True
) -> tuple[Settings, dict[str, Component]]:
    """Wait until the servers answer, check them, and return the settings and the components of a daemon.

    Args:
        settings: As configured.
        stop: Ends the waiting.
        waiting: Told what is waited for.
        relay: Whether to run a relay.
        workers: Whether to run workers.

    Raises:
        Stopping: It was told to stop.
        SyncerError, psycopg.Error, elasticsearch.ApiError, KafkaException: A server refuses syncer, or is not one to
            start with.
    """

    def attempt() -> tuple[Settings, dict[str, Component]]:
        try:
            loaded = checked(settings, workers=workers)
            return loaded, components(loaded, relay=relay, workers=workers)
        except Exception as error:
            said = explain(error)
            waiting.reason = said.message if said else repr(error)
            if topic.is_down(error) and said is not None:
                raise UnavailableError(said.message, hint=said.hint) from error
            if is_refused(error):
                raise said or error from error
            raise

    return retry(attempt, pause=stop.pause, component="daemon", trouble=Trouble("daemon", brief_seconds=0))


def checked(settings: Settings, *, workers: bool = True) -> Settings:
    """Check what must hold before a daemon starts; return the settings with the installation that they are for.

    Raises:
        SyncerError: The schema, Elasticsearch or the topic is not one to start with.
        psycopg.Error, elasticsearch.ApiError, elasticsearch.TransportError: A server does not answer.
    """
    with postgres.connect(settings.postgres, name="run") as connection:
        migrations.require_current(connection)
        settings = settings.of(registry.installation(connection))
        if workers:
            with connect(settings.elasticsearch) as client:
                if settings.kafka.is_used:
                    index = Index(client, bulk_bytes_max=settings.worker.bulk_bytes_max)
                    lost_records.require_original(connection, settings.kafka, index)
        if settings.kafka.is_used:
            topic.ensure_topic(settings.kafka)
    return settings


def components(settings: Settings, *, relay: bool = True, workers: bool = True) -> dict[str, Component]:
    """The components that this daemon runs, by name.

    Raises:
        IndexingError: Elasticsearch is not supported.
        elasticsearch.ApiError, elasticsearch.TransportError: Elasticsearch does not answer.
    """
    made: dict[str, Component] = {
        "watch": Watch(connect=lambda: _connect(settings, "watch"), seconds=settings.watch.seconds)
    }
    watching = poller(settings)
    if relay and settings.kafka.is_used:
        made["relay"] = Relay(
            connect=lambda: _connect(settings, "relay"), kafka=settings.kafka, settings=settings.relay
        )
    if workers:
        index = Index(connect(settings.elasticsearch), bulk_bytes_max=settings.worker.bulk_bytes_max)
        traffic = LiveTraffic()
        if not settings.worker.threads:
            structlog.get_logger().warning("daemon.workers_left_out")
        # Without Kafka one worker reads; the threads that write are its own.
        threads = settings.worker.threads if settings.kafka.is_used else min(1, settings.worker.threads)
        for number in range(1, threads + 1):
            name = f"worker-{number}"
            made[name] = worker(settings, index, name=name, traffic=traffic)
        made["job_worker"] = job_worker(settings, index, name="job_worker", traffic=traffic)
    made["poll"] = watching
    watching.components = tuple(made)
    watching.needs = frozenset(Server) - frozenset(
        ({Server.ELASTICSEARCH} if not workers else set()) | ({Server.KAFKA} if not settings.kafka.is_used else set())
    )
    return made


def poller(settings: Settings, *, patience_seconds: float = PATIENCE_SECONDS) -> Poller:
    """A poller with these settings, which waits so long for an answer."""
    patience = min(patience_seconds, settings.elasticsearch.request_timeout_seconds)
    hurried = settings.elasticsearch.model_copy(update={"request_timeout_seconds": patience})
    return Poller(
        settings,
        connect=lambda: _connect(settings, "poll"),
        observe=lambda: Observer(settings.kafka),
        search=lambda: connect(hurried),
        patience_seconds=patience_seconds,
    )


def worker(
    settings: Settings,
    index: Index,
    *,
    name: str,
    traffic: LiveTraffic | None = None,
) -> Worker:
    """A worker with these settings."""

    def source(link: Link, pause: Callable[[float], None]) -> Source[Any]:
        if settings.kafka.is_used:
            return TopicSource(link=link, settings=settings.kafka, pause=pause, name=name)
        return OutboxSource(connect=lambda: _connect(settings, name), settings=settings.relay, pause=pause)

    return Worker(
        connect=lambda: _connect(settings, name),
        source=source,
        index=index,
        settings=settings.worker,
        name=name,
        traffic=traffic,
    )


def job_worker(settings: Settings, index: Index, *, name: str, traffic: LiveTraffic | None = None) -> JobWorker:
    """A job worker with these settings."""
    return JobWorker(
        connect=lambda: _connect(settings, name),
        index=index,
        name=name,
        in_flight_max=settings.jobs.in_flight_max,
        batch_documents_max=settings.worker.batch_documents_max,
        batch_bytes_max=settings.worker.bulk_bytes_max,
        traffic=traffic,
    )


def _connect(settings: Settings, name: str) -> Connection:
    """A connection for a component.

    Raises:
        SourceError: The database is not the one that the daemon started with, so the topic is not its own.
        RestoringError, psycopg.OperationalError: As `migrations.connected`.
    """
    connection = migrations.connected(settings.postgres, name=session_name(name), idle_seconds_max=IDLE_SECONDS)
    expected = settings.kafka.installation
    if expected and registry.installation(connection) != expected:
        connection.close()
        raise SourceError(
            "The database at postgres.dsn is another one than when this daemon started",
            hint="Start the daemon again. If `syncer migrate` was run anew, run `syncer apply` first.",
        )
    return connection


def run(made: Mapping[str, Component], stop: Stop) -> None:
    """Run all components until ``stop`` is requested or one of them fails; return when all have ended.

    Raises:
        BaseException: The error of the first component to fail; the others have finished what they had in hand.
        HangingError: A component did not end in time; its thread is still there.
    """
    log = structlog.get_logger()
    failures: list[BaseException] = []

    def guard(name: str, component: Component) -> None:
        try:
            component.run(stop)
        except BaseException as error:
            explained = explain(error)
            message = explained.message if explained else repr(error)
            # A traceback helps with unexpected errors only; expected ones explain themselves.
            log.error(  # noqa: TRY400
                "component.failed",
                component=name,
                error=message,
                exc_info=None if explained else error,
                timeline=f"{name} failed, and its daemon stopped: {message}",
            )
            failures.append(error)
            stop.request()

    threads = [
        threading.Thread(target=guard, args=(name, component), name=name, daemon=True)
        for name, component in made.items()
    ]
    metrics.started()
    log.info("daemon.started", components=list(made), process=os.getpid())
    for thread in threads:
        thread.start()
    while not stop.wait(_WATCH_SECONDS):
        log_lines.summarise()
        ended = [thread.name for thread in threads if not thread.is_alive()]
        if ended and not stop.is_requested:
            failures.append(SyncerError(f"The component {ended[0]} stopped without an error", hint="Please report it."))
            stop.request()
    hanging = _join(threads)
    log_lines.summarise(at_once=True)
    log.info("daemon.stopped", failed=bool(failures), hanging=hanging)
    if hanging:
        raise HangingError(
            f"{' and '.join(hanging)} did not end within {STOP_SECONDS:.0f} s",
            hint="Does a server hang? Nothing is lost: what was in hand is done again by the next daemon.",
        ) from (failures[0] if failures else None)
    if failures:
        raise failures[0]


def _join(threads: Sequence[threading.Thread]) -> list[str]:
    """Wait until the threads have ended; return the names of those that have not ended in time."""
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
