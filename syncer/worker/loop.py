"""Worker: the main loop. Topic → affected documents → writers → offsets.

    poll a batch of changes       `syncer.worker.group`
    resolve what it touches       `syncer.worker.resolve`: few documents → writers, many → a job
    write                         `syncer.indexing.pool`, in threads of its own
    commit offsets, in order, of what is done

While batches are written, the main thread is free to receive the next ones, and to keep its place in the group.

Guarantees: an offset is committed only when every document that its change touches is settled. Settled means written,
skipped, dead-lettered, left to a job, or of a suspended definition. After a failure, the next owner of the partition
does uncommitted work again; the version rule makes that harmless. An index that takes no documents delays others for a
minute or so at most, a table that stays locked for some ten seconds: then their documents are suspended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from itertools import count, takewhile

import structlog

from syncer.base.errors import LossError
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.link import Link
from syncer.base.postgres import Connection
from syncer.base.retry import Trouble, retry
from syncer.base.settings import WorkerSettings
from syncer.elasticsearch.bulk import Index
from syncer.indexing.flow_control import FlowControl, LiveTraffic
from syncer.indexing.pool import WriterPool
from syncer.worker.batch import ChangeBatch
from syncer.worker.group import Consume, Membership
from syncer.worker.resolve import Resolver

_RECORDS_IN_HAND = 10_000
"""With this many records in hand, no more are received. Batches that touch nothing wait for earlier ones, too."""
_FEW_DOCUMENTS = 100
"""Fewer than this are written so soon that later ones had better wait, to be sent together."""
_FEW_SECONDS = 0.01
"""How long it waits for them."""
_RECEIVE_SECONDS = 0.02
"""How long to wait for changes if there is nothing else to do."""
_GATHER_SECONDS = 0.01
"""The pause after a batch of several changes, to collect a larger next batch."""
_GLANCE_SECONDS = 0.002
"""How long to wait for changes while documents are being written, which may be done meanwhile."""
_KEEP_ALIVE_SECONDS = 1.0
"""How often to renew the membership in the group, and to check for a stop."""


class Worker:
    """Handles changes, as one member of the consumer group.

    Args:
        connect: Opens a connection to Postgres.
        consume: Joins the group; its argument is called when partitions are assigned or revoked.
        index: Elasticsearch.
        settings: Limits of batches and concurrency.
        name: For the log, and for ``pg_stat_activity``.
        traffic: Notified of each finished batch, so that jobs give way.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        consume: Consume,
        index: Index,
        settings: WorkerSettings,
        name: str = "worker",
        traffic: LiveTraffic | None = None,
    ) -> None:
        self._settings = settings
        self._name = name
        self._traffic = traffic
        self._stop = Stop()
        self._gathers_until = 0.0
        self._batches: deque[ChangeBatch] = deque()
        self._numbers = count(1)
        self._link = Link(connect)
        self._membership = Membership(consume=consume, link=self._link, pause=self._pause, name=name)
        flow = FlowControl(
            requests_max=settings.in_flight_max,
            documents_max=settings.batch_documents_max,
            bytes_max=settings.bulk_bytes_max,
        )
        self._writers = WriterPool(
            connect=connect,
            index=index,
            pause=self._pause,
            name=name,
            flow=flow,
            threads=settings.in_flight_max,
        )
        self._resolver = Resolver(
            link=self._link,
            writers=self._writers,
            page=settings.batch_documents_max,
            fan_out_documents_max=settings.fan_out_documents_max,
            name=name,
        )
        self._trouble = Trouble(name)
        self._log = structlog.get_logger().bind(worker=name)

    def run(self, stop: Stop) -> None:
        """Handle changes until told to stop; what is in hand is finished first."""
        self._stop = stop
        try:
            while not stop.is_requested:
                retry(self._attempt, pause=self._pause, component=self._name, trouble=self._trouble)
        except Stopping:
            pass
        finally:
            self.close()

    def run_once(self) -> int:
        """Handle the changes that have arrived, and those that arrive meanwhile, until all in hand are done.

        Returns:
            How many changes were handled.

        Raises:
            Stopping: It was told to stop while a server was down. What is not done was not committed.
            Exception: An error that the policy calls FATAL. What is not done was not committed.
        """
        changes = 0
        self._receive(_RECEIVE_SECONDS)
        while self._batches:
            if self._has_room and not self._stop.is_requested:
                # A few documents are written soon; what arrives meanwhile then goes into one request instead of
                # several.
                are_few = self._writers.documents < _FEW_DOCUMENTS
                self._wait(_FEW_SECONDS if are_few else 0)
                self._receive(_GLANCE_SECONDS)
            else:
                self._wait(_KEEP_ALIVE_SECONDS)
            changes += self._commit()
        return changes

    def close(self) -> None:
        """Leave the group and close the connections; what is in hand is left to the next owner of the partitions."""
        is_through = self._writers.close(seconds=self._stop.seconds_left)
        self._batches.clear()
        self._membership.leave()
        if not is_through:
            self._log.warning("component.gave_up", component=self._name)
        self._link.close()
        self._resolver.unresolved.flush()

    def _attempt(self) -> None:
        try:
            self.run_once()
        except Stopping:
            raise
        except LossError as error:
            self._drop()
            self._membership.go_on_behind(error)
        except Exception:
            self._drop()
            self._membership.leave()
            self._link.close()
            raise

    def _drop(self) -> None:
        """Drop what is in hand. Kafka delivers received but unhandled records again only after rejoining the group."""
        self._writers.drop()
        self._batches.clear()

    # Batches

    @property
    def _has_room(self) -> bool:
        """Whether to receive more: not while documents wait for a thread, or too many records wait for their commit."""
        in_hand = sum(len(one.received.values) for one in self._batches)
        return self._writers.has_room and in_hand < _RECORDS_IN_HAND

    def _receive(self, wait_seconds: float) -> None:
        """Receive the changes that have arrived, and submit what they touch."""
        self._stop.wait(max(0.0, self._gathers_until - time.monotonic()))
        come = self._membership.receive(records_max=self._settings.batch_changes_max, wait_seconds=wait_seconds)
        self._writers.tell()
        self._resolver.unresolved.tell()
        if come is None:
            return
        received, changes = come
        batch = ChangeBatch(
            received=received,
            changes=changes,
            begun_at=time.monotonic(),
            number=next(self._numbers),
        )
        self._take(batch)
        if 1 < len(changes) < _FEW_DOCUMENTS:
            self._gathers_until = batch.begun_at + _GATHER_SECONDS

    def _take(self, batch: ChangeBatch) -> None:
        """Submit the documents that a batch touches, or leave them to jobs."""
        # Rules: assign-after-receiving, the-job-before-the-offset.
        retry(partial(self._resolver.resolve, batch, self._stop), pause=self._membership.pause, component=self._name)
        self._batches.append(batch)

    def _wait(self, seconds: float) -> None:
        """Wait for documents that are being written; stay in the group meanwhile.

        Raises:
            Stopping: The time to stop is up.
        """
        pending = [one for batch in self._batches for one in batch.writes if not one.done()]
        wait(pending, timeout=seconds, return_when=FIRST_COMPLETED)
        if self._stop.is_overdue:
            raise Stopping
        self._membership.keep_alive()

    def _done(self) -> list[ChangeBatch]:
        """The batches whose offsets may be committed: those that are done, up to the first one that is not."""
        # Rule: write-before-committing-offsets.
        return list(takewhile(lambda one: one.is_done, self._batches))

    def _commit(self) -> int:
        """Commit the offsets of what is done; return of how many changes."""
        changes = 0
        for batch in self._done():
            written = batch.report()
            self._batches.remove(batch)
            self._membership.commit(batch.received)
            self._trouble.over()
            if self._traffic is not None:
                self._traffic.note()
            changes += len(batch.changes)
            batch.tell(self._name, written)
        return changes

    def _pause(self, seconds: float) -> None:
        self._stop.pause(seconds)
