"""Backlog: the outbox never takes more of the disk than `relay.outbox_bytes_max`, as long as a daemon runs.

Changes wait in the outbox while a server is away. If they take more than the setting allows, a new leader gives them up
(`OutboxReader.lead`): it saves a cursor that has seen them all, and every document is refreshed instead. Then the
outbox is emptied. No table of an application is locked, and no trigger is changed.

Guarantee: no change is lost. One transaction saves the cursor and creates the jobs, and a job lists its ids in a later
snapshot, which shows what was given up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import structlog

from syncer.base import metrics
from syncer.base.lifecycle import Stop
from syncer.base.postgres import Connection
from syncer.base.retry import repeat
from syncer.capture.reader import OutboxReader
from syncer.jobs import queue

CHECK_SECONDS = 10.0


def reader(connect: Callable[[], Connection], *, bytes_max: int) -> OutboxReader:
    """A reader of the outbox that gives up a backlog of more than ``bytes_max``."""
    return OutboxReader(connect, bytes_max=bytes_max, refresh_all=_refresh_all)


def _refresh_all(connection: Connection, changed_at: float | None) -> None:
    jobs = queue.refresh_all(connection, "the outbox exceeded relay.outbox_bytes_max", changed_at=changed_at)
    documents = ", ".join(sorted({job.document for job in jobs}))
    metrics.INCIDENTS.labels("backlog_given_up").inc()
    structlog.get_logger().warning(
        "relay.backlog_given_up",
        documents=documents,
        timeline="The outbox exceeded relay.outbox_bytes_max: its changes were given up. "
        f"Every document is refreshed: {documents}",
    )


class BacklogGuard:
    """Gives up the backlog when it takes too much of the disk and no process leads, since their servers are away."""

    def __init__(self, *, connect: Callable[[], Connection], bytes_max: int) -> None:
        self._connect = connect
        self._bytes_max = bytes_max

    def run(self, stop: Stop) -> None:
        """Check every ten seconds until told to stop."""
        repeat(self._turn, reset=lambda: None, stop=stop, component="backlog")

    def _turn(self) -> float:
        self.run_once()
        return CHECK_SECONDS

    def run_once(self) -> bool:
        """Give the backlog up, if it takes too much and no process leads; return whether it did."""
        with closing(reader(self._connect, bytes_max=self._bytes_max)) as outbox_reader:
            return outbox_reader.exceeds() and outbox_reader.lead()
