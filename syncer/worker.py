"""Worker: the main loop. Topic → affected documents → pipeline → offsets.

While one batch of changes is written, the next one is received and composed; offsets are committed in the order in
which batches came.

Guarantees: an offset is committed only when every document that its change touches has been written, found
superseded, or parked, or left to a job, or its definition is halted; and when what is no change is kept as such: see
`syncer.unreadable`. Whatever happens before that is done again by whoever has the partition then, which the version
rule makes harmless.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile

import structlog

from syncer import events, halting, jobs, loss, metrics, rewrites, traces, unreadable
from syncer.affected import Affected, AffectedReader, FanOut
from syncer.errors import DocumentError, LossError
from syncer.index import Index
from syncer.job import JobKind
from syncer.lifecycle import Stop, Stopping, Trouble, persist
from syncer.model import Change
from syncer.pace import LiveTraffic
from syncer.pipeline import Pipeline, Task
from syncer.policy import Action, decide
from syncer.postgres import Connection
from syncer.repeated import Repeated
from syncer.replica import Replica
from syncer.rewrites import Rewrites
from syncer.searchable import Searchable, Written
from syncer.store import Document
from syncer.transport import ChangeConsumer, Received
from syncer.unreadable import Record
from syncer.writer import Writer, WriteReport

_KEEP_ALIVE_SECONDS = 5
_LONG_BATCH_SECONDS = 10
_CHANGES_IN_HAND = 10_000
"""From how many changes on no more are received; batches that touch nothing wait for those before them too."""
_FEW_DOCUMENTS = 100
"""Fewer than that are written so soon that what comes meanwhile had better wait, and go together."""
_FEW_SECONDS = 0.01
"""How long it waits for them."""
_LOOK_SECONDS = 10.0
"""How often to look whether Kafka has taken something back."""
_GLANCE_SECONDS = 0.002
"""How long to wait for changes while requests are on their way: an answer may come meanwhile."""


@dataclass(slots=True)
class WorkerReport:
    """What one turn of a worker did.

    Args:
        changes: How many changes were received.
        written: What became of the documents that they touch.
    """

    changes: int = 0
    written: WriteReport = field(default_factory=WriteReport)


@dataclass(slots=True, kw_only=True, eq=False)
class _Batch(Task):
    """Changes that were received together.

    Args:
        received: As the topic gave them.
        changes: The same, parsed.
        begun_at: When, by the monotonic clock.
        life: The writer's, when they were handed over.
    """

    received: Received
    changes: list[Change]
    begun_at: float
    life: int


class _RewrittenError(Exception):
    """What Kafka had acknowledged is taken back: who joins anew begins where that does."""


class Worker:
    """Handles changes, as one member of the consumer group.

    Args:
        connect: Opens a connection to Postgres.
        connect_replica: Opens the replica to read documents on, if not there.
        consume: Joins the group; is given whom to tell of partitions that come and go.
        index: Elasticsearch.
        name: For the log, and for ``pg_stat_activity``.
        batch_changes_max: How many changes are handled together.
        batch_documents_max: How many documents are composed together.
        batch_bytes_max: How large together they may be, as far as that is known beforehand.
        batch_wait_seconds: How long to wait for changes.
        gather_seconds: How long after a batch of several changes the next one is received at the earliest.
        in_flight_max: How many bulk requests are on their way at once.
        traffic: To be told how long batches take.
        searchable: To be offered what was written.
        on_job: Called when a job was made.
        fan_out_documents_max: More documents than that of one change become a job.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        connect_replica: Callable[[], Replica] | None = None,
        consume: Callable[[Callable[[str, list[int]], None]], ChangeConsumer],
        index: Index,
        name: str = "worker",
        batch_changes_max: int = 2000,
        batch_documents_max: int = 1000,
        batch_bytes_max: int = 8 * 1024 * 1024,
        batch_wait_seconds: float = 0.02,
        gather_seconds: float = 0.01,
        in_flight_max: int = 4,
        traffic: LiveTraffic | None = None,
        searchable: Searchable | None = None,
        on_job: Callable[[], None] = lambda: None,
        fan_out_documents_max: int = 1000,
    ) -> None:
        self._connect = connect
        self._consume = consume
        self._name = name
        self._batch_changes_max = batch_changes_max
        self._batch_documents_max = batch_documents_max
        self._batch_wait_seconds = batch_wait_seconds
        self._gather_seconds = gather_seconds
        self._traffic = traffic
        self._searchable = searchable
        self._on_job = on_job
        self._fan_out_documents_max = fan_out_documents_max
        self._stop = Stop()
        self._kept_at = self._gathers_until = self._looked_at = 0.0
        self._topic_id = ""
        self._batches: deque[_Batch] = deque()
        self._numbers = count(1)
        self._connection: Connection | None = None
        self._affected: AffectedReader | None = None
        self._consumer: ChangeConsumer | None = None
        self._writer = Writer(
            connect=connect, connect_replica=connect_replica, index=index, pause=self._pause, name=name
        )
        self._pipeline = Pipeline(
            writer=self._writer,
            halt=self._halt,
            keep=self._keep,
            heed=self._heed,
            name=name,
            in_flight_max=in_flight_max,
            batch_documents_max=batch_documents_max,
            batch_bytes_max=batch_bytes_max,
        )
        self._unread: Repeated[bool, Record] = Repeated(self._tell_unread)
        self._unplaced: Repeated[tuple[str, str], str] = Repeated(self._tell_unplaced)
        self._trouble = Trouble(name)
        self._log = structlog.get_logger().bind(worker=name)

    def run(self, stop: Stop) -> None:
        """Handle changes until told to stop; what is in hand is finished first."""
        self._stop = stop
        try:
            while not stop.is_requested:
                persist(self._attempt, pause=self._pause, stage=self._name, trouble=self._trouble)
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> WorkerReport:
        """Handle the changes that have come, and those that come meanwhile, until all in hand are done.

        Raises:
            Stopping: It was told to stop while a server was away; what is not done was not committed.
            Exception: What the policy says to HALT for; likewise.
        """
        report = WorkerReport()
        self._receive(self._batch_wait_seconds)
        while self._batches:
            if self._has_room and not self._stop.is_requested:
                # A few documents are soon written; what comes meanwhile is one request then, not several.
                are_few = self._pipeline.documents < _FEW_DOCUMENTS
                self._pipeline.land(seconds=_FEW_SECONDS if are_few else 0)
                self._receive(_GLANCE_SECONDS)
            else:
                self._pipeline.land()
            self._commit(report)
        return report

    def close(self) -> None:
        """Leave the group and let go of the servers; what is in hand is left to whoever has the partitions next."""
        is_through = self._pipeline.drop(seconds=0 if self._stop.is_overdue else None)
        self._batches.clear()
        self._leave()
        if is_through:
            self._writer.close()
        else:
            self._log.warning(events.STAGE_GAVE_UP, stage=self._name)
        self._disconnect()
        self._unread.flush()
        self._unplaced.flush()

    def _attempt(self) -> WorkerReport:
        try:
            return self.run_once()
        except Stopping:
            raise
        except LossError as error:
            self._drop()
            self._go_on_behind(error)
            return WorkerReport()
        except _RewrittenError:
            self._drop()
            self._leave()
            return WorkerReport()
        except Exception:
            self._drop()
            self._leave()
            self._disconnect()
            raise

    def _drop(self) -> None:
        """Drop what is in hand: records that were received and not handled come again only to one who joins anew."""
        self._pipeline.drop()
        self._batches.clear()

    def _go_on_behind(self, error: LossError) -> None:
        """Have what is lost written again; only once that is certain does anybody go on behind it."""

        def make_up() -> None:
            try:
                loss.make_up(self._connected(), error.losses)
            except Exception:
                self._disconnect()
                raise

        persist(make_up, pause=self._pause, stage=self._name)
        self._on_job()
        try:
            self._joined().move(error.losses)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _joined(self) -> ChangeConsumer:
        if self._consumer is None:
            self._consumer = self._consume(self._partitions_changed)
            self._topic_id = loss.examine(self._connected(), self._consumer.settings, self._consumer.observer)
            self._consumer.rewrites = self._known_rewrites()
        return self._consumer

    def _known_rewrites(self) -> Rewrites:
        self._looked_at = time.monotonic()
        try:
            return rewrites.read(self._connected(), self._topic_id)
        except Exception as error:
            if decide(error) is Action.RETRY:
                self._disconnect()
            raise

    def _look_for_rewrites(self) -> None:
        """See from time to time whether what was read is written anew, and what was committed is no longer true.

        Raises:
            _RewrittenError: It is.
        """
        if self._consumer is None or time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        found = persist(self._known_rewrites, pause=self._pause, stage=self._name)
        if found != self._consumer.rewrites:
            raise _RewrittenError

    # Batches

    @property
    def _has_room(self) -> bool:
        return self._pipeline.has_room and sum(len(one.changes) for one in self._batches) < _CHANGES_IN_HAND

    def _receive(self, wait_seconds: float) -> None:
        """Take the changes that have come, and hand what they touch to the pipeline."""
        self._stop.wait(max(0.0, self._gathers_until - time.monotonic()))
        self._look_for_rewrites()
        received = self._joined().receive(records_max=self._batch_changes_max, wait_seconds=wait_seconds)
        self._writer.tell()
        self._unread.tell()
        self._unplaced.tell()
        if received is None:
            return
        changes = self._parse(received)
        batch = _Batch(
            received=received,
            changes=changes,
            begun_at=time.monotonic(),
            life=self._writer.life,
            origin={"batch": next(self._numbers)},
            trace=traces.begin("worker.batch", links=received.traces, worker=self._name),
        )
        self._batches.append(batch)
        if 1 < len(changes) < _FEW_DOCUMENTS:
            self._gathers_until = batch.begun_at + self._gather_seconds
        self._give(batch)

    def _give(self, batch: _Batch) -> None:
        with batch.trace.stage("follow"):
            persist(lambda: self._hand_over(batch), pause=self._pause, stage=self._name)
        batch.is_given = True

    def _parse(self, received: Received) -> list[Change]:
        """The changes among these records; what is none is kept, before anything that is behind it is committed."""
        try:
            return [Change.parse(value) for value in received.values]
        except ValueError:
            changes, records = _sorted_out(received)
        only_counted = persist(partial(self._keep_unread, records), pause=self._pause, stage=self._name)
        for number, is_kept in ((len(records) - only_counted, True), (only_counted, False)):
            if number:
                self._unread.note(is_kept, records[-1], number)
        return changes

    def _keep_unread(self, records: list[Record]) -> int:
        """Keep records that are no changes; how many are only counted."""
        try:
            return unreadable.park(self._connected(), self._joined().topic, records)
        except Exception as error:
            if decide(error) is Action.RETRY:
                self._disconnect()
            raise

    def _hand_over(self, batch: _Batch) -> None:
        """Hand over every document that the changes touch; a definition that cannot go on halts, the others go on."""
        try:
            for document in self._reader().documents():
                try:
                    self._follow(document, batch)
                except DocumentError as error:
                    self._halt(error)
        except Exception as error:
            if decide(error) is Action.RETRY:
                self._disconnect()
            raise

    def _follow(self, document: Document, batch: _Batch) -> None:
        """Hand over what the changes touch of one definition.

        Raises:
            DocumentError: It is to halt.
        """
        with closing(self._reader().read(document, batch.changes)) as pages:
            for affected in self._stop.patiently(pages, "which documents changes touch"):
                if isinstance(affected, FanOut) or affected.ids is None:
                    self._refresh(document, affected)
                else:
                    self._pipeline.write(batch, document.index_name, affected.ids)

    def _refresh(self, document: Document, affected: Affected | FanOut) -> None:
        """Leave documents of a definition, or all, to the refreshers; once the job is there, they are in good hands."""
        if isinstance(affected, FanOut):
            job = jobs.create_fan_out(self._connected(), document, affected.cause)
        else:
            if affected.failed is not None:
                self._unplaced.note((document.name, affected.failed), document.index_name)
            job = jobs.create(self._connected(), document, JobKind.REFRESH)
        if job is not None:
            self._log.info(events.JOB_CREATED, job=job.id, kind=job.kind, document=document.name, cause=job.cause)
            self._on_job()

    def _commit(self, report: WorkerReport) -> None:
        """Commit the offsets of what is done, as far as all before it is.

        A crash of Postgres takes commits back that were not on disk as yet, and the changes that tell of them. What
        shows them is made good by whoever does again what made him read them.
        """
        done = list(takewhile(lambda one: one.is_done, self._batches))
        if done:
            self._writer.keep()
        for batch in done:
            if batch.life != self._writer.life:
                batch.life, batch.is_given = self._writer.life, False
                self._give(batch)
                return
            self._batches.popleft()
            self._joined().commit(batch.received)
            self._trouble.over()
            if self._traffic is not None:
                self._traffic.note(begun_at=batch.begun_at)
            self._offer(batch)
            report.changes += len(batch.changes)
            report.written.add(batch.report)
            self._tell(batch)

    # While it takes long

    def _keep(self) -> None:
        """Stay in the group, so that a server's outage is not taken for ours.

        Raises:
            Stopping: What is in hand has had its time.
        """
        if self._stop.is_overdue:
            raise Stopping
        now = time.monotonic()
        if self._consumer is not None and now - self._kept_at > _KEEP_ALIVE_SECONDS:
            self._consumer.keep_alive()
            self._kept_at = now

    def _heed(self) -> None:
        """Heed a request to stop, if what is in hand takes long.

        Raises:
            Stopping: It is left to whoever has the partition next.
        """
        self._keep()
        is_long = time.monotonic() - self._batches[0].begun_at > _LONG_BATCH_SECONDS
        if self._stop.is_requested and is_long:
            raise Stopping

    def _pause(self, seconds: float) -> None:
        self._stop.pause(seconds)

    def _halt(self, error: DocumentError) -> None:
        """Halt a document, before the offsets of what it skips are committed."""
        halting.halt(self._connected(), error)

    # Postgres

    def _reader(self) -> AffectedReader:
        if self._affected is None:
            self._affected = AffectedReader(
                self._connected(),
                page=self._batch_documents_max,
                fan_out_documents_max=self._fan_out_documents_max,
            )
        return self._affected

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._affected = None

    # Saying so

    def _partitions_changed(self, event: str, partitions: list[int]) -> None:
        self._log.info(event, partitions=sorted(partitions))

    def _tell_unread(self, is_kept: bool, number: int, last: Record) -> None:
        metrics.unreadable(number)
        self._log.error(
            events.RECORDS_PARKED, records=number, are_kept=is_kept, partition=last.partition, offset=last.offset
        )

    def _tell_unplaced(self, what: tuple[str, str], number: int, index_name: str) -> None:
        document, kind = what
        metrics.unplaced(document, number)
        self._log.error(events.CHANGES_UNPLACED, document=document, kind=kind, index=index_name, batches=number)

    def _offer(self, batch: _Batch) -> None:
        """Have it measured now and then how long a document takes to be found by a search."""
        last = batch.last
        if self._searchable is None or last is None or not batch.changes or not self._searchable.is_wanted:
            return
        self._searchable.offer(
            Written(
                index_name=last.index_name,
                id=last.id,
                routing=last.routing,
                version=last.version,
                changed_at=min(change.changed_at for change in batch.changes),
                written_at=time.time(),
            )
        )

    def _tell(self, batch: _Batch) -> None:
        written = batch.report
        oldest = min((change.changed_at for change in batch.changes), default=None)
        ids = [change.id for change in batch.changes]
        self._log.info(
            events.WORKER_INDEXED,
            batch=batch.origin["batch"],
            changes=len(batch.changes),
            documents=written.documents,
            indexed=written.indexed,
            deleted=written.deleted,
            superseded=written.superseded,
            parked=written.parked,
            partitions=sorted(batch.received.next_offsets),
            offsets=batch.received.offsets,
            ids=[min(ids), max(ids)] if ids else None,
            seconds=round(time.monotonic() - batch.begun_at, 4),
            compose_seconds=round(written.compose_seconds, 4),
            index_seconds=round(written.index_seconds, 4),
            lag_seconds=None if oldest is None else round(time.time() - oldest, 4),
        )
        batch.trace.end(batch=batch.origin["batch"], changes=len(batch.changes), **written.outcomes)
        metrics.handled(
            self._name,
            [change.changed_at for change in batch.changes],
            written.outcomes,
            metrics.Timings(
                seconds=time.monotonic() - batch.begun_at,
                compose_seconds=written.compose_seconds,
                index_seconds=written.index_seconds,
            ),
        )


def _sorted_out(received: Received) -> tuple[list[Change], list[Record]]:
    """The changes among these records, and the others."""
    changes: list[Change] = []
    records: list[Record] = []
    for value, key, (partition, offset) in zip(received.values, received.keys, received.places, strict=True):
        try:
            changes.append(Change.parse(value))
        except ValueError as error:
            records.append(Record(partition=partition, offset=offset, key=key, value=value, error=str(error)))
    return changes, records
