"""Change batch: changes that a worker has received together, and what is said of them once they are done."""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from syncer import events, metrics
from syncer.consumer import Received
from syncer.model import Change
from syncer.pipeline import Task
from syncer.searchable import Searchable, Written


@dataclass(slots=True, kw_only=True, eq=False)
class ChangeBatch(Task):
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

    def offer(self, searchable: Searchable) -> None:
        """Have it measured now and then how long a document takes to be found by a search."""
        last = self.last
        if last is None or not self.changes or not searchable.is_wanted:
            return
        searchable.offer(
            Written(
                index_name=last.index_name,
                id=last.id,
                routing=last.routing,
                version=last.version,
                changed_at=min(change.changed_at for change in self.changes),
                written_at=time.time(),
            )
        )

    def tell(self, worker: str) -> None:
        """Say what has become of it."""
        written = self.report
        seconds = time.monotonic() - self.begun_at
        made = [change.changed_at for change in self.changes]
        ids = [change.id for change in self.changes]
        structlog.get_logger().info(
            events.WORKER_INDEXED,
            worker=worker,
            batch=self.origin["batch"],
            changes=len(self.changes),
            documents=written.documents,
            indexed=written.indexed,
            deleted=written.deleted,
            superseded=written.superseded,
            parked=written.parked,
            partitions=sorted(self.received.next_offsets),
            offsets=self.received.offsets,
            ids=[min(ids), max(ids)] if ids else None,
            seconds=round(seconds, 4),
            compose_seconds=round(written.compose_seconds, 4),
            index_seconds=round(written.index_seconds, 4),
            lag_seconds=round(time.time() - min(made), 4) if made else None,
        )
        self.trace.end(batch=self.origin["batch"], changes=len(self.changes), **written.outcomes)
        timings = metrics.Timings(
            seconds=seconds, compose_seconds=written.compose_seconds, index_seconds=written.index_seconds
        )
        metrics.handled(worker, made, written.outcomes, timings)
