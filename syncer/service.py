"""Service: the daemon's stages, each in a named thread, started, watched and stopped together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from syncer import events, replica, schema
from syncer.consumer import ChangeConsumer
from syncer.errors import HangingError, SyncerError
from syncer.index import Index, connect
from syncer.lifecycle import Stage, Stop
from syncer.pace import LiveTraffic
from syncer.policy import explain
from syncer.postgres import Connection
from syncer.producer import ChangeProducer
from syncer.refresher import Refresher
from syncer.relay import Relay
from syncer.searchable import Searchable
from syncer.settings import Settings
from syncer.survey import Server, Survey
from syncer.topic import Observer
from syncer.watch import Watch
from syncer.worker import Worker

IDLE_SECONDS = 120.0
"""How long a stage may do nothing in a transaction: longer than it waits for any answer of another server."""
STOP_SECONDS = 25.0
"""How long stages may take to end. A server that hangs answers nobody; what is in hand is done again by others."""
_SURVEY_SECONDS = 10.0
"""How long the survey waits for Elasticsearch."""
_WATCH_SECONDS = 0.5


def stages(settings: Settings, *, relay: bool = True, workers: bool = True) -> dict[str, Stage]:
    """The stages that this daemon runs, by name.

    Raises:
        IndexingError: Elasticsearch is not supported.
        elasticsearch.ApiError, elasticsearch.TransportError: It does not answer.
    """
    made: dict[str, Stage] = {
        "watch": Watch(connect=lambda: _connect(settings, "watch"), seconds=settings.watch.seconds)
    }
    watching = survey(settings)
    if relay:
        made["relay"] = Relay(
            connect=lambda: _connect(settings, "relay"),
            produce=lambda: ChangeProducer(settings.kafka),
            settings=settings.relay,
        )
    if workers:
        index = Index(connect(settings.elasticsearch), bulk_bytes_max=settings.worker.bulk_bytes_max)
        traffic = LiveTraffic(late_seconds=settings.refresher.live_late_seconds)
        if not settings.worker.threads:
            structlog.get_logger().warning(events.WORKERS_LEFT_OUT)
        lane = refresher(settings, index, name="refresher", traffic=traffic)
        for number in range(1, settings.worker.threads + 1):
            name = f"worker-{number}"
            made[name] = worker(
                settings, index, name=name, traffic=traffic, searchable=watching.searchable, on_job=lane.wake
            )
        made["refresher"] = lane
    made["survey"] = watching
    watching.stages = tuple(made)
    watching.needs = frozenset(Server) if workers else frozenset(Server) - {Server.ELASTICSEARCH}
    return made


def survey(settings: Settings) -> Survey:
    """A survey as the settings say."""
    patience = min(_SURVEY_SECONDS, settings.elasticsearch.request_timeout_seconds)
    hurried = settings.elasticsearch.model_copy(update={"request_timeout_seconds": patience})
    return Survey(
        connect=lambda: _connect(settings, "survey"),
        observe=lambda: Observer(settings.kafka),
        search=lambda: connect(hurried),
        settings=settings.metrics,
    )


def worker(
    settings: Settings,
    index: Index,
    *,
    name: str,
    traffic: LiveTraffic | None = None,
    searchable: Searchable | None = None,
    on_job: Callable[[], None] = lambda: None,
) -> Worker:
    """A worker as the settings say."""
    return Worker(
        connect=lambda: _connect(settings, name),
        connect_replica=replica.opener(settings.postgres, name=name),
        consume=lambda on_change: ChangeConsumer(settings.kafka, on_change=on_change),
        index=index,
        settings=settings.worker,
        name=name,
        traffic=traffic,
        searchable=searchable,
        on_job=on_job,
    )


def refresher(settings: Settings, index: Index, *, name: str, traffic: LiveTraffic | None = None) -> Refresher:
    """A lane for jobs, as the settings say."""
    return Refresher(
        connect=lambda: _connect(settings, name),
        connect_replica=replica.opener(settings.postgres, name=name),
        index=index,
        name=name,
        in_flight_max=settings.refresher.in_flight_max,
        batch_documents_max=settings.worker.batch_documents_max,
        batch_bytes_max=settings.worker.bulk_bytes_max,
        idle_seconds=settings.refresher.idle_seconds,
        traffic=traffic,
    )


def _connect(settings: Settings, name: str) -> Connection:
    return schema.connected(settings.postgres, name=name, idle_seconds_max=IDLE_SECONDS)


def run(made: Mapping[str, Stage], stop: Stop) -> None:
    """Run all stages until ``stop`` is requested or one of them fails; return when all have ended.

    Raises:
        BaseException: What the first stage to fail raised; the others have finished what they had in hand.
        HangingError: A stage did not end in time; its thread is still there.
    """
    log = structlog.get_logger()
    failures: list[BaseException] = []

    def guard(name: str, stage: Stage) -> None:
        try:
            stage.run(stop)
        except BaseException as error:
            said = explain(error)
            # The traceback is for an error that nobody foresaw; the others say what they are.
            log.error(  # noqa: TRY400
                events.STAGE_FAILED,
                stage=name,
                error=said.message if said else repr(error),
                exc_info=None if said else error,
            )
            failures.append(error)
            stop.request()

    threads = [
        threading.Thread(target=guard, args=(name, stage), name=name, daemon=True) for name, stage in made.items()
    ]
    log.info(events.DAEMON_STARTED, stages=list(made), process=os.getpid())
    for thread in threads:
        thread.start()
    while not stop.wait(_WATCH_SECONDS):
        ended = [thread.name for thread in threads if not thread.is_alive()]
        if ended and not stop.is_requested:
            failures.append(SyncerError(f"The stage {ended[0]} has ended without a word", hint="Please report it."))
            stop.request()
    hanging = _join(threads)
    log.info(events.DAEMON_STOPPED, failed=bool(failures), hanging=hanging)
    if hanging:
        raise HangingError(
            f"{' and '.join(hanging)} did not end within {STOP_SECONDS:.0f} s",
            hint="Does a server hang? Nothing is lost: what was in hand is done again by the next daemon.",
        ) from (failures[0] if failures else None)
    if failures:
        raise failures[0]


def _join(threads: Sequence[threading.Thread]) -> list[str]:
    """Wait until they have ended; the names of those that have not, in time."""
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
