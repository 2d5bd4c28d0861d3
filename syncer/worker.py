"""Worker: the main loop. Topic → affected documents → compose → index → offsets.

Guarantees: an offset is committed only when every document that its change touches has been written, found
superseded, or parked, or left to a job, or its definition is halted. Whatever happens before that is done again by
whoever has the partition then, which the version rule makes harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import structlog

from syncer import halting, jobs, telemetry
from syncer.affected import AffectedReader
from syncer.errors import DocumentError, TopicError
from syncer.index import Index
from syncer.job import JobKind
from syncer.lifecycle import Stop, Stopping, persist
from syncer.model import Change
from syncer.policy import Action, decide
from syncer.postgres import Connection
from syncer.store import Document
from syncer.topic import ChangeConsumer, Received
from syncer.writer import Writer, WriteReport

_LONGEST_PAUSE_SECONDS = 5
_LONG_BATCH_SECONDS = 10


@dataclass(slots=True)
class WorkerReport:
    """What one turn of a worker did.

    Args:
        changes: How many changes were received.
        written: What became of the documents that they touch.
        lag_seconds: The age of the oldest of those changes once it was done.
        seconds: How long it took, from receipt to the last write.
    """

    changes: int = 0
    written: WriteReport = field(default_factory=WriteReport)
    lag_seconds: float = 0
    seconds: float = 0


class Worker:
    """Handles changes, as one member of the consumer group.

    Args:
        connect: Opens a connection to Postgres.
        consume: Joins the group; is given whom to tell of partitions that come and go.
        index: Elasticsearch.
        name: For the log, and for ``pg_stat_activity``.
        batch_changes_max: How many changes are handled together.
        batch_documents_max: How many documents are in memory at once.
        batch_wait_seconds: How long to wait for changes.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        consume: Callable[[Callable[[str, list[int]], None]], ChangeConsumer],
        index: Index,
        name: str = "worker",
        batch_changes_max: int = 2000,
        batch_documents_max: int = 1000,
        batch_wait_seconds: float = 0.02,
    ) -> None:
        self._connect = connect
        self._consume = consume
        self._index = index
        self._name = name
        self._batch_changes_max = batch_changes_max
        self._batch_documents_max = batch_documents_max
        self._batch_wait_seconds = batch_wait_seconds
        self._stop = Stop()
        self._breathed_at = 0.0
        self._reader_connection: Connection | None = None
        self._affected: AffectedReader | None = None
        self._consumer: ChangeConsumer | None = None
        self._writer = Writer(connect=connect, index=index, pause=self._pause, name=name)
        self._log = structlog.get_logger().bind(worker=name)

    def run(self, stop: Stop) -> None:
        """Handle changes until told to stop; the batch in hand is finished first."""
        self._stop = stop
        try:
            while not stop.is_requested:
                persist(self._attempt, pause=self._pause, stage=self._name)
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> WorkerReport:
        """Handle the changes that have come, if any has within the wait.

        Raises:
            Stopping: It was told to stop while a server was away; nothing was committed.
            Exception: What the policy says to HALT for; nothing was committed.
        """
        received = self._joined().receive(records_max=self._batch_changes_max, wait_seconds=self._batch_wait_seconds)
        if received is None:
            return WorkerReport()
        began = time.monotonic()
        changes = [self._parse(value) for value in received.values]
        written = persist(lambda: self._handle(changes), pause=self._pause, stage=self._name)
        self._joined().commit(received)
        report = WorkerReport(
            changes=len(changes),
            written=written,
            lag_seconds=time.time() - min(change.changed_at for change in changes),
            seconds=time.monotonic() - began,
        )
        self._tell(report, received)
        return report

    def close(self) -> None:
        """Leave the group and let go of the servers."""
        self._leave()
        self._writer.close()
        self._close_reader()

    def _attempt(self) -> WorkerReport:
        try:
            return self.run_once()
        except Exception:
            # Records that were received and not handled come again only to one who joins anew.
            self._leave()
            raise

    def _leave(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _joined(self) -> ChangeConsumer:
        if self._consumer is None:
            self._consumer = self._consume(self._partitions_changed)
        return self._consumer

    def _parse(self, value: bytes) -> Change:
        try:
            return Change.parse(value)
        except ValueError as error:
            raise TopicError(
                f"A record in the topic is not a change: {error}",
                hint="Does something else write to this topic? Set SYNCER_KAFKA_TOPIC to one that is syncer's alone.",
            ) from error

    def _handle(self, changes: list[Change]) -> WriteReport:
        """Write every document that the changes touch; one that cannot go on halts, and its siblings go on."""
        began = time.monotonic()
        total = WriteReport()
        try:
            for document in self._reader().documents():
                try:
                    self._follow(document, changes, total, began)
                except DocumentError as error:
                    halting.halt(self._connected(), error)  # before the offsets of what it skips are committed
        except Exception as error:
            if decide(error) is Action.RETRY:
                self._close_reader()
            raise
        return total

    def _follow(self, document: Document, changes: list[Change], total: WriteReport, began: float) -> None:
        """Write what the changes touch of one definition.

        Raises:
            DocumentError: It is to halt.
        """
        with closing(self._reader().read(document, changes)) as pages:
            for affected in pages:
                self._breathe(began)
                if affected.ids is None:
                    self._refresh(document)
                else:
                    total.add(self._writer.write(document.index_name, affected.ids))

    def _breathe(self, began: float) -> None:
        """Between two pages of a batch that takes long: stay in the group, and heed a request to stop.

        Raises:
            Stopping: The batch is left to whoever has the partition next.
        """
        now = time.monotonic()
        if now - began > _LONG_BATCH_SECONDS:
            if self._stop.is_requested:
                raise Stopping
            if now - self._breathed_at > _LONGEST_PAUSE_SECONDS and self._consumer is not None:
                self._consumer.keep_alive()
                self._breathed_at = now

    def _refresh(self, document: Document) -> None:
        """Leave all documents of a definition to the refreshers; once the job is there, it is done."""
        job = jobs.create(self._connected(), document, JobKind.REFRESH)
        if job is not None:
            self._log.info(telemetry.JOB_CREATED, job=job.id, kind=job.kind, document=document.name)

    def _reader(self) -> AffectedReader:
        if self._affected is None:
            self._affected = AffectedReader(self._connected(), page=self._batch_documents_max)
        return self._affected

    def _connected(self) -> Connection:
        if self._reader_connection is None:
            self._reader_connection = self._connect()
        return self._reader_connection

    def _close_reader(self) -> None:
        if self._reader_connection is not None:
            self._reader_connection.close()
        self._reader_connection = self._affected = None

    def _pause(self, seconds: float) -> None:
        """Wait while staying in the group, so that a server's outage is not taken for ours."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._stop.pause(min(left, _LONGEST_PAUSE_SECONDS))
            if self._consumer is not None:
                self._consumer.keep_alive()

    def _partitions_changed(self, event: str, partitions: list[int]) -> None:
        self._log.info(event, partitions=partitions)

    def _tell(self, report: WorkerReport, received: Received) -> None:
        written = report.written
        self._log.info(
            telemetry.WORKER_INDEXED,
            changes=report.changes,
            documents=written.documents,
            indexed=written.indexed,
            deleted=written.deleted,
            superseded=written.superseded,
            parked=written.parked,
            partitions=sorted(received.next_offsets),
            seconds=round(report.seconds, 4),
            compose_seconds=round(written.compose_seconds, 4),
            index_seconds=round(written.index_seconds, 4),
            lag_seconds=round(report.lag_seconds, 4),
        )
