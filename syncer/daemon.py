"""Daemon: its components, each in a named thread, started, watched and stopped together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import psycopg
import structlog

from syncer.base import metrics, migrations, postgres
from syncer.base.error_policy import explain, is_refused
from syncer.base.errors import HangingError, SourceError, SyncerError
from syncer.base.lifecycle import PULSE_SECONDS, Component, Stop, Stopping, join, pulse
from syncer.base.postgres import Connection, Link
from syncer.base.retry import retry
from syncer.base.settings import Settings
from syncer.documents import registry
from syncer.elasticsearch import client
from syncer.elasticsearch.bulk import Index
from syncer.elasticsearch.indices import Indices
from syncer.indexing.flow_control import LiveTraffic
from syncer.kafka import topic
from syncer.monitoring.daemons import Reporter
from syncer.recovery import lost_records
from syncer.recovery.backlog import BacklogGuard
from syncer.recovery.schema_watch import Watch
from syncer.relay.loop import Relay
from syncer.worker.job_loop import JobWorker
from syncer.worker.loop import Worker
from syncer.worker.source import OutboxSource, Source, TopicSource

IDLE_SECONDS = 120.0
"""How long a component may idle in a transaction: longer than it waits for any response of another server."""
STOP_SECONDS = 25.0
"""How long components may take to end, for the case that a server hangs. Other daemons redo what was in hand."""


def _components(settings: Settings, *, relay: bool, workers: bool) -> dict[str, Component]:
    """Check what must hold before a daemon starts, and return the components that it runs, by name."""
    with postgres.connect(settings.postgres, name="run") as connection:
        migrations.require_current(connection)
        installation = registry.installation(connection)
        settings = settings.of(installation)
        index = None
        if workers:
            search = client.connect(settings.elasticsearch)
            targets = [document.target for document in registry.documents(connection)]
            Indices(search).require_own(targets, installation)
            index = Index(search)
        if settings.kafka.is_used:
            if index is not None:
                lost_records.require_original(connection, settings.kafka, index)
            topic.ensure_topic(settings.kafka)
    components: dict[str, Component] = {"watch": Watch(connect=partial(_connect, settings, "watch"))}
    if relay and settings.kafka.is_used:
        connect = partial(_connect, settings, "relay")
        components["relay"] = Relay(connect=connect, kafka=settings.kafka, settings=settings.relay)
    if index is not None:
        traffic = LiveTraffic()
        if not settings.worker.threads:
            structlog.get_logger().warning("daemon.workers_left_out")
        # Without Kafka one worker reads; the threads that write are its own.
        threads = settings.worker.threads if settings.kafka.is_used else min(1, settings.worker.threads)
        for name in (f"worker-{number}" for number in range(1, threads + 1)):
            components[name] = worker(settings, index, name=name, traffic=traffic)
        components["job_worker"] = job_worker(settings, index, name="job_worker", traffic=traffic)
    return components


def worker(settings: Settings, index: Index, *, name: str, traffic: LiveTraffic | None = None) -> Worker:
    """A worker with these settings."""
    connect = partial(_connect, settings, name)

    def source(link: Link, pause: Callable[[float], None]) -> Source:
        if settings.kafka.is_used:
            return TopicSource(link=link, settings=settings.kafka, name=name)
        return OutboxSource(connect=connect, settings=settings.relay, pause=pause)

    return Worker(connect=connect, source=source, index=index, settings=settings.worker, name=name, traffic=traffic)


def job_worker(settings: Settings, index: Index, *, name: str, traffic: LiveTraffic | None = None) -> JobWorker:
    """A job worker with these settings."""
    return JobWorker(
        connect=partial(_connect, settings, name),
        index=index,
        settings=settings.worker,
        name=name,
        traffic=traffic,
        idle_seconds=10 * settings.relay.poll_seconds,
    )


def _connect(settings: Settings, name: str) -> Connection:
    """A connection for a component.

    Raises:
        SourceError: The database is not the one that the daemon started with, so the topic is not its own.
        NotReadyError, psycopg.OperationalError: As `migrations.connected`.
    """
    connection = migrations.connected(settings.postgres, name=name, idle_seconds_max=IDLE_SECONDS)
    expected = settings.kafka.installation
    with postgres.closed_on_error(connection):
        if expected and registry.installation(connection) != expected:
            raise SourceError(
                "The database at postgres.dsn is another one than when this daemon started",
                hint="Start the daemon again. If `syncer migrate` was run anew, run `syncer apply` first.",
            )
    return connection


def run(settings: Settings, stop: Stop, *, relay: bool = True, workers: bool = True) -> None:
    """Run a daemon until ``stop`` is requested or a component fails; return when all have ended.

    It reports and serves the status page from the start, while it waits until its servers answer.

    Raises:
        BaseException: The error of the first component to fail; the others have finished what they had in hand.
        HangingError: A component did not end in time; its thread is still there.
    """
    from syncer.monitoring.web import api  # noqa: PLC0415 - only the daemon serves HTTP

    def prepare() -> dict[str, Component]:
        try:
            return _components(settings, relay=relay, workers=workers)
        except Exception as error:
            if is_refused(error):
                raise explain(error) or error from error
            raise

    connect = partial(_current, settings, "report")
    reporter = Reporter(connect=connect, stop=stop, count_written=metrics.documents_written)
    threads = _Threads(stop)
    beside: dict[str, Component] = {"report": reporter, **api.page(settings, stop=stop, reporter=reporter)}
    if relay or not settings.kafka.is_used:  # it may lead
        connect = partial(_current, settings, "backlog")
        beside["backlog"] = BacklogGuard(connect=connect, bytes_max=settings.relay.outbox_bytes_max)
    threads.start(beside)
    try:
        components = retry(prepare, pause=stop.pause, component="daemon")
        structlog.get_logger().info("daemon.started", components=list(components), process=os.getpid())
        threads.start(components)
        reporter.components = [*beside, *components]
        # A signal that another thread gets, as after SIGCONT, is handled only once this one wakes.
        while not stop.wait(PULSE_SECONDS):
            pulse()
    except Stopping:
        pass
    except BaseException as error:  # noqa: BLE001 - it is raised once all have ended
        threads.failures.insert(0, error)
        stop.request()
    threads.end(reporter)


def _current(settings: Settings, name: str) -> Connection:
    """A connection to a schema of this version, for what runs before the servers have answered."""
    connection = migrations.connected(settings.postgres, name=name)
    with postgres.closed_on_error(connection):
        migrations.require_current(connection)
    return connection


class _Threads:
    """The components of one daemon, each in a named thread; if one of them fails, a stop is requested."""

    def __init__(self, stop: Stop) -> None:
        self.failures: list[BaseException] = []
        self._stop = stop
        self._threads: list[threading.Thread] = []

    def start(self, components: Mapping[str, Component]) -> None:
        """Start these components."""
        for name, component in components.items():
            thread = threading.Thread(target=self._guard, args=(name, component), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self, reporter: Reporter) -> None:
        """Wait until all have ended; then the daemon is no longer listed. Raise an error as `run` does."""
        join(self._threads, seconds=STOP_SECONDS)
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        if not hanging:
            with suppress(psycopg.Error, SyncerError):
                reporter.leave()
        structlog.get_logger().info("daemon.stopped", failed=bool(self.failures), hanging=hanging)
        if hanging:
            raise HangingError(
                f"{' and '.join(hanging)} did not end within {STOP_SECONDS:.0f} s",
                hint="Does a server hang? Nothing is lost: what was in hand is done again by the next daemon.",
            ) from (self.failures[0] if self.failures else None)
        if self.failures:
            raise self.failures[0]

    def _guard(self, name: str, component: Component) -> None:
        error: BaseException = SyncerError(f"{name} stopped without an error", hint="Please report it.")
        try:
            component.run(self._stop)
        except BaseException as raised:  # noqa: BLE001 - it is raised once all have ended
            error = raised
        else:
            if self._stop.is_requested:
                return
        self.failures.append(error)
        self._stop.request()
        explained = explain(error)
        message = explained.message if explained else repr(error)
        # A traceback helps with unexpected errors only; expected ones explain themselves.
        structlog.get_logger().error(
            "component.failed",
            component=name,
            error=message,
            exc_info=None if explained else error,
            timeline=f"{name} failed, and its daemon stopped: {message}",
        )
