"""Change batch: changes that were received together, the documents that they touch, and what became of these."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from syncer.base import log, metrics
from syncer.base.errors import DocumentError
from syncer.base.model import Change, WriteReport


class Write(NamedTuple):
    """Documents of one index that are being written."""

    index_name: str
    report: Future[WriteReport]


@dataclass(slots=True, kw_only=True, eq=False)
class ChangeBatch:
    """Changes that were received together.

    Args:
        changes: The changes.
        records: How many records they came in, those without a change included.
        mark: What the source needs to save that they are handled.
        begun_at: The time of receipt, by the monotonic clock.
        number: The batch's number within its worker.
        writes: The documents that the changes touch.
    """

    changes: list[Change]
    records: int
    mark: Any
    begun_at: float = field(default_factory=time.monotonic)
    number: int = 0
    writes: list[Write] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether none of its documents is being written any more."""
        return all(write.report.done() for write in self.writes)

    @property
    def refused(self) -> set[str]:
        """The indices whose documents were not written because their definition is suspended."""
        ended = [write for write in self.writes if write.report.done()]
        return {write.index_name for write in ended if isinstance(write.report.exception(), DocumentError)}

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
        structlog.get_logger().log(
            log.batch_level(seconds),
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
