"""Service: the daemon's stages, each in a named thread, started, watched and stopped together."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import structlog

from syncer import postgres, telemetry
from syncer.errors import SyncerError
from syncer.index import Index, connect
from syncer.lifecycle import Stage, Stop
from syncer.policy import explain
from syncer.refresher import Refresher
from syncer.relay import Relay
from syncer.settings import Settings
from syncer.topic import ChangeConsumer, ChangeProducer
from syncer.watch import Watch
from syncer.worker import Worker

_WATCH_SECONDS = 0.5


def stages(settings: Settings, *, relay: bool = True, workers: bool = True) -> dict[str, Stage]:
    """The stages that this daemon runs, by name.

    Raises:
        IndexingError: Elasticsearch is not supported.
        elasticsearch.ApiError, elasticsearch.TransportError: It does not answer.
    """
    made: dict[str, Stage] = {
        "watch": Watch(
            connect=lambda: postgres.connect(settings.postgres, name="watch"), seconds=settings.watch.seconds
        )
    }
    if relay:
        made["relay"] = Relay(
            connect=lambda: postgres.connect(settings.postgres, name="relay"),
            produce=lambda: ChangeProducer(settings.kafka),
            fetch_rows=settings.relay.fetch_rows,
            poll_seconds=settings.relay.poll_seconds,
            trim_seconds=settings.relay.trim_seconds,
        )
    if workers:
        index = Index(connect(settings.elasticsearch), bulk_bytes_max=settings.worker.bulk_bytes_max)
        for number in range(1, settings.worker.threads + 1):
            made[f"worker-{number}"] = worker(settings, index, name=f"worker-{number}")
        made["refresher"] = refresher(settings, index, name="refresher")
    return made


def worker(settings: Settings, index: Index, *, name: str) -> Worker:
    """A worker as the settings say."""
    return Worker(
        connect=lambda: postgres.connect(settings.postgres, name=name),
        consume=lambda on_change: ChangeConsumer(settings.kafka, on_change=on_change),
        index=index,
        name=name,
        batch_changes_max=settings.worker.batch_changes_max,
        batch_documents_max=settings.worker.batch_documents_max,
        batch_wait_seconds=settings.worker.batch_wait_seconds,
    )


def refresher(settings: Settings, index: Index, *, name: str) -> Refresher:
    """A lane for jobs, as the settings say."""
    return Refresher(
        connect=lambda: postgres.connect(settings.postgres, name=name),
        index=index,
        name=name,
        in_flight_max=settings.refresher.in_flight_max,
        batch_documents_max=settings.worker.batch_documents_max,
        batch_bytes_max=settings.worker.bulk_bytes_max,
        idle_seconds=settings.refresher.idle_seconds,
    )


def run(made: Mapping[str, Stage], stop: Stop) -> None:
    """Run all stages until ``stop`` is requested or one of them fails; return when all have ended.

    Raises:
        BaseException: What the first stage to fail raised; the others have finished what they had in hand.
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
                telemetry.STAGE_FAILED,
                stage=name,
                error=said.message if said else repr(error),
                exc_info=None if said else error,
            )
            failures.append(error)
            stop.request()

    threads = [
        threading.Thread(target=guard, args=(name, stage), name=name, daemon=True) for name, stage in made.items()
    ]
    log.info(telemetry.DAEMON_STARTED, stages=list(made), process=os.getpid())
    for thread in threads:
        thread.start()
    while not stop.wait(_WATCH_SECONDS):
        ended = [thread.name for thread in threads if not thread.is_alive()]
        if ended and not stop.is_requested:
            failures.append(SyncerError(f"The stage {ended[0]} has ended without a word", hint="Please report it."))
            stop.request()
    for thread in threads:
        thread.join()
    log.info(telemetry.DAEMON_STOPPED, failed=bool(failures))
    if failures:
        raise failures[0]
