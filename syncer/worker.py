"""Worker: the main loop. Topic → affected documents → pipeline → offsets.

While one batch of changes is written, the next one is received and composed; offsets are committed in the order in
which batches came. What it receives: `syncer.membership`. Whom that touches: `syncer.follower`.

Guarantees: an offset is committed only when every document that its change touches has been written, found
superseded, or parked, or left to a job, or its definition is halted; and when what is no change is kept as such: see
`syncer.unreadable`. Whatever happens before that is done again by whoever has the partition then, which the version
rule makes harmless. An index that takes no documents keeps others waiting for a minute or so, and no longer: see
`syncer.unwell`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile

import structlog

from syncer import events, traces
from syncer.change_batch import ChangeBatch
from syncer.errors import LossError
from syncer.follower import Follower
from syncer.index import Index
from syncer.lifecycle import Stop, Stopping, Trouble, persist
from syncer.link import Link
from syncer.membership import Consume, Membership, RewrittenError
from syncer.pace import LiveTraffic
from syncer.pipeline import Pipeline
from syncer.postgres import Connection
from syncer.replica import Replica
from syncer.searchable import Searchable
from syncer.settings import WorkerSettings
from syncer.writer import Writer, WriteReport

_LONG_BATCH_SECONDS = 10
_RECORDS_IN_HAND = 10_000
"""From how many records on no more are received; batches that touch nothing wait for those before them too."""
_FEW_DOCUMENTS = 100
"""Fewer than that are written so soon that what comes meanwhile had better wait, and go together."""
_FEW_SECONDS = 0.01
"""How long it waits for them."""
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


class Worker:
    """Handles changes, as one member of the consumer group.

    Args:
        connect: Opens a connection to Postgres.
        connect_replica: Opens the replica to read documents on, if not there.
        consume: Joins the group; is given whom to tell of partitions that come and go.
        index: Elasticsearch.
        settings: How much at once.
        name: For the log, and for ``pg_stat_activity``.
        traffic: To be told how long batches take.
        searchable: To be offered what was written.
        on_job: Called when a job was made.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        connect_replica: Callable[[], Replica] | None = None,
        consume: Consume,
        index: Index,
        settings: WorkerSettings,
        name: str = "worker",
        traffic: LiveTraffic | None = None,
        searchable: Searchable | None = None,
        on_job: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._name = name
        self._traffic = traffic
        self._searchable = searchable
        self._on_job = on_job
        self._stop = Stop()
        self._gathers_until = 0.0
        self._batches: deque[ChangeBatch] = deque()
        self._numbers = count(1)
        self._link = Link(connect)
        self._membership = Membership(consume=consume, link=self._link, pause=self._pause, name=name)
        self._follower = Follower(
            link=self._link,
            page=settings.batch_documents_max,
            fan_out_documents_max=settings.fan_out_documents_max,
            on_job=on_job,
            name=name,
        )
        self._writer = Writer(
            connect=connect, connect_replica=connect_replica, index=index, pause=self._pause, name=name
        )
        self._pipeline = self._new_pipeline()
        self._trouble = Trouble(name)
        self._log = structlog.get_logger().bind(worker=name)

    def _new_pipeline(self) -> Pipeline:
        return Pipeline(
            writer=self._writer,
            halt=self._follower.halt,
            keep=self._keep,
            heed=self._heed,
            leave=self._follower.leave,
            name=self._name,
            in_flight_max=self._settings.in_flight_max,
            batch_documents_max=self._settings.batch_documents_max,
            batch_bytes_max=self._settings.bulk_bytes_max,
        )

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
        self._receive(self._settings.batch_wait_seconds)
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
        is_through = self._pipeline.drop(seconds=self._stop.seconds_left)
        self._batches.clear()
        self._membership.leave()
        if is_through:
            self._writer.close()
        else:
            self._log.warning(events.STAGE_GAVE_UP, stage=self._name)
        self._link.close()
        self._membership.flush()
        self._follower.flush()

    def _attempt(self) -> WorkerReport:
        try:
            return self.run_once()
        except Stopping:
            raise
        except LossError as error:
            self._drop()
            self._membership.go_on_behind(error, made_up=self._on_job)
            return WorkerReport()
        except RewrittenError:
            self._drop()
            self._membership.leave()
            return WorkerReport()
        except Exception:
            self._drop()
            self._membership.leave()
            self._link.close()
            raise

    def _drop(self) -> None:
        """Drop what is in hand: records that were received and not handled come again only to one who joins anew."""
        self._pipeline.drop()
        self._batches.clear()

    # Batches

    @property
    def _has_room(self) -> bool:
        return self._pipeline.has_room and sum(len(one.received.values) for one in self._batches) < _RECORDS_IN_HAND

    def _receive(self, wait_seconds: float) -> None:
        """Take the changes that have come, and hand what they touch to the pipeline."""
        self._stop.wait(max(0.0, self._gathers_until - time.monotonic()))
        come = self._membership.receive(records_max=self._settings.batch_changes_max, wait_seconds=wait_seconds)
        self._writer.tell()
        self._follower.tell()
        if come is None:
            return
        received, changes = come
        batch = ChangeBatch(
            received=received,
            changes=changes,
            begun_at=time.monotonic(),
            life=self._writer.life,
            origin={"batch": next(self._numbers)},
            trace=traces.begin("worker.batch", links=received.traces, worker=self._name),
        )
        self._batches.append(batch)
        if 1 < len(changes) < _FEW_DOCUMENTS:
            self._gathers_until = batch.begun_at + self._settings.gather_seconds
        self._give(batch)

    def _give(self, batch: ChangeBatch) -> None:
        with batch.trace.stage("follow"):
            persist(
                partial(self._follower.hand_over, batch, self._pipeline, self._stop),
                pause=self._membership.pause,
                stage=self._name,
            )
        batch.is_given = True

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
            self._membership.commit(batch.received)
            self._trouble.over()
            if self._traffic is not None:
                self._traffic.note(begun_at=batch.begun_at)
            if self._searchable is not None:
                batch.offer(self._searchable)
            report.changes += len(batch.changes)
            report.written.add(batch.report)
            batch.tell(self._name)

    # While it takes long

    def _keep(self) -> None:
        """Stay in the group, so that a server's outage is not taken for ours.

        Raises:
            Stopping: What is in hand has had its time.
        """
        if self._stop.is_overdue:
            raise Stopping
        self._membership.keep_alive()

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
