"""Change batch: the changes that a worker received together, and the report of their outcome."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import structlog

from syncer.base import metrics
from syncer.base.errors import DocumentError
from syncer.base.model import Change
from syncer.base.write_report import WriteReport
from syncer.worker.source import Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Documents of one index that are being written."""

    index_name: str
    report: Future[WriteReport]

    @property
    def is_refused(self) -> bool:
        """Whether it has ended because the definition is suspended."""
        return self.report.done() and isinstance(self.report.exception(), DocumentError)


@dataclass(slots=True, kw_only=True, eq=False)
class ChangeBatch:
    """Changes that were received together.

    Args:
        delivery: The changes, as they came from the source.
        begun_at: The time of receipt, by the monotonic clock.
        number: The batch's number within this worker.
        writes: The documents that the changes touch.
    """

    delivery: Delivery[Any]
    begun_at: float
    number: int
    writes: list[Write] = field(default_factory=list)

    @property
    def changes(self) -> list[Change]:
        """The changes."""
        return self.delivery.changes

    @property
    def is_done(self) -> bool:
        """Whether none of its documents is being written any more."""
        return all(write.report.done() for write in self.writes)

    @property
    def refused(self) -> set[str]:
        """The indices whose documents were not written because their definition is suspended."""
        return {write.index_name for write in self.writes if write.is_refused}

    @property
    def changed_at(self) -> float:
        """When the oldest of its changes was made, in Unix time."""
        return min(change.changed_at for change in self.changes)

    def report(self) -> WriteReport:
        """The outcome of all its documents.

        Raises:
            Stopping: The worker is to end before all were written.
            Exception: An error that the policy calls FATAL.
        """
        total = WriteReport()
        for write in self.writes:
            total.add(write.report.result())
        return total

    def log(self, worker: str, written: WriteReport) -> None:
        """Log and count the outcome."""
        seconds = time.monotonic() - self.begun_at
        made = [change.changed_at for change in self.changes]
        ids = [change.id for change in self.changes]
        structlog.get_logger().info(
            "worker.batch_indexed",
            worker=worker,
            batch=self.number,
            changes=len(self.changes),
            documents=written.documents,
            **written.outcomes,
            ids=[min(ids), max(ids)] if ids else None,
            seconds=round(seconds, 4),
            compose_seconds=round(written.compose_seconds, 4),
            index_seconds=round(written.index_seconds, 4),
            lag_seconds=round(time.time() - min(made), 4) if made else None,
        )
        metrics.handled(made, written, seconds=seconds)
