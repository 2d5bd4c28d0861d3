"""Worker: the main loop. Source → affected documents → writers → progress.

    receive a batch of changes    `syncer.worker.source`: the outbox, or the topic
    resolve what it touches       `syncer.worker.resolve`: few documents → writers, many → a job
    write                         `syncer.indexing.pool`, in threads of its own
    save the progress, in order, of what is done

While batches are written, the main thread is free to receive the next ones, and to keep the source.

Guarantees: a change is saved as handled only when every document that it touches is settled. Settled means written,
skipped, dead-lettered or left to a job. After a failure, unsaved work is done again, by whichever worker the source
gives it to; the version rule makes that harmless. An index that takes no documents does not delay others, a table that
stays locked delays them for a few seconds: then their documents are suspended, and their changes wait in a fan-out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from functools import partial
from itertools import count

import psycopg
import structlog

from syncer.base import log, metrics
from syncer.base.errors import DocumentError
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.model import WriteReport
from syncer.base.postgres import Connection, Link
from syncer.base.retry import recovered, repeat, retry
from syncer.base.settings import WorkerSettings
from syncer.elasticsearch.bulk import Index
from syncer.indexing import failover
from syncer.indexing.flow_control import FlowControl, LiveTraffic
from syncer.indexing.pool import WriterPool
from syncer.worker.resolve import Resolver
from syncer.worker.source import ChangeBatch, Source

BATCH_CHANGES_MAX = 2000
_RECORDS_IN_HAND = 10_000
"""With this many records in hand, no more are received. Batches that touch nothing wait for earlier ones, too."""
_RECEIVE_SECONDS = 0.5
"""How long to wait for changes if there is nothing else to do; also for a stop, at most."""
_WRITE_SECONDS = 0.05
"""How long to wait for documents that are being written before it looks for changes again."""
_KEEP_ALIVE_SECONDS = 1.0
"""How often to keep the source, and to check for a stop."""


class Worker:
    """Handles changes.

    Args:
        source: Makes the source of changes, from the worker's link to Postgres and what waits before a retry.
        traffic: Notified of each finished batch, so that jobs give way.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        source: Callable[[Link, Callable[[float], None]], Source],
        index: Index,
        settings: WorkerSettings,
        name: str = "worker",
        traffic: LiveTraffic | None = None,
    ) -> None:
        self._name = name
        self._traffic = traffic
        self._stop = Stop()
        self._batches: deque[ChangeBatch] = deque()
        self._numbers = count(1)
        self._connect, self._index = connect, index
        self._link = Link(self._opened)
        self._source = source(self._link, self._pause)
        self._writers = WriterPool(
            connect=connect, index=index, pause=self._pause, name=name, flow=FlowControl(settings)
        )
        self._resolver = Resolver(
            link=self._link,
            writers=self._writers,
            page=settings.batch_documents_max,
            keep_alive=self._source.keep_alive,
            name=name,
        )
        self._log = structlog.get_logger().bind(worker=name)

    def _opened(self) -> Connection:
        """Open a connection in the epoch in use. A worker whose database is not in use takes no partition."""
        connection = self._connect()
        failover.enter(connection, self._index)
        return connection

    def run(self, stop: Stop) -> None:
        """Handle changes until told to stop; what is in hand is finished first."""
        self._stop = stop
        try:
            repeat(self._turn, reset=self._reset, stop=stop, component=self._name)
        finally:
            self.close()

    def _turn(self) -> float:
        self.run_once()
        return 0

    def run_once(self) -> int:
        """Handle the changes that have arrived, and those that arrive meanwhile, until all in hand are done.

        Returns:
            How many changes were handled.

        Raises:
            Stopping: It was told to stop while a server was down. What is not done was not saved.
            Exception: An error that the policy calls FATAL. What is not done was not saved.
        """
        changes, may_receive, wait_seconds = 0, True, _RECEIVE_SECONDS
        while True:
            batch = None
            if may_receive:
                batch = self._source.receive(records_max=BATCH_CHANGES_MAX, wait_seconds=wait_seconds)
            if batch is not None:
                if batch.passed_over:
                    # Rule: an-overtaken-worker-gives-up-its-partition.
                    failover.require_in_use(self._link.connection, self._index)
                batch.number = next(self._numbers)
                # Rule: assign-after-receiving.
                self._resolve(batch)
                self._batches.append(batch)
            elif self._batches:
                pending = [report for batch in self._batches for _, report in batch.writes if not report.done()]
                timeout = _WRITE_SECONDS if may_receive else _KEEP_ALIVE_SECONDS
                wait(pending, timeout=timeout, return_when=FIRST_COMPLETED)
                if self._stop.is_overdue:
                    raise Stopping
                self._source.keep_alive()
            changes += self._save_done()
            if not self._batches:
                return changes
            # Not while documents wait for a thread, or too many records for those before them.
            has_room = self._writers.has_room and sum(batch.records for batch in self._batches) < _RECORDS_IN_HAND
            may_receive, wait_seconds = has_room and not self._stop.is_requested, 0

    def close(self) -> None:
        """Give up the source and close the connections; what is in hand is received again later."""
        if not self._writers.close(seconds=self._stop.seconds_left):
            self._log.warning("component.gave_up", component=self._name)
        self._reset()

    def _reset(self) -> None:
        """Drop what is in hand, which the source delivers again."""
        self._writers.close(seconds=0)
        self._batches.clear()
        with suppress(psycopg.Error):
            self._source.close()
        self._link.close()

    def _resolve(self, batch: ChangeBatch, *, only: Collection[str] | None = None) -> None:
        resolve = partial(self._resolver.resolve, batch, self._stop, only=only)
        retry(resolve, pause=self._pause_in_hand, component=self._name)

    def _save_done(self) -> int:
        """Save the progress of what is done, up to the first batch that is not; return of how many changes."""
        changes = 0
        # Rule: write-before-saving-progress.
        while self._batches and all(report.done() for _, report in self._batches[0].writes):
            batch = self._batches[0]
            refused = {name for name, report in batch.writes if isinstance(report.exception(), DocumentError)}
            if refused:
                # Rule: a-change-that-cannot-be-written-joins-a-fan-out.
                self._resolve(batch, only=refused)
                continue
            total = WriteReport()
            for _, report in batch.writes:
                total.add(report.result())
            self._batches.popleft()
            self._source.save(batch)
            recovered(self._name)
            if self._traffic is not None:
                self._traffic.note()
            changes += len(batch.changes)
            self._log_indexed(batch, total)
        return changes

    def _log_indexed(self, batch: ChangeBatch, report: WriteReport) -> None:
        seconds = time.monotonic() - batch.begun_at
        committed_at = [change.changed_at for change in batch.changes]
        ids = [change.id for change in batch.changes]
        self._log.log(
            log.batch_level(seconds),
            "worker.batch_indexed",
            batch=batch.number,
            changes=len(batch.changes),
            documents=sum(report.outcomes.values()),
            **report.outcomes,
            ids=[min(ids), max(ids)] if ids else None,
            seconds=round(seconds, 4),
            compose_seconds=round(report.compose_seconds, 4),
            index_seconds=round(report.index_seconds, 4),
            lag_seconds=round(time.time() - min(committed_at), 4) if committed_at else None,
        )
        for made_at in committed_at:
            metrics.DELAY.observe(max(0.0, time.time() - made_at))  # the clocks of two machines may differ
        metrics.BATCH.labels("handle").observe(seconds)
        metrics.BATCH.labels("build").observe(report.compose_seconds)
        metrics.BATCH.labels("index").observe(report.index_seconds)
        metrics.count("live", report)

    def _pause(self, seconds: float) -> None:
        self._stop.pause(seconds)  # of the run, which begins later than this is handed on

    def _pause_in_hand(self, seconds: float) -> None:
        self._source.keep_alive()
        self._stop.pause(seconds)
