"""Resolves changes to documents: a few are written at once, many become a job.

Guarantee: once `resolve` has returned, each touched document is being written and the batch waits for it, or a
committed job covers it, or its definition is suspended.
"""

from __future__ import annotations

from contextlib import closing

import psycopg
import structlog

from syncer.base import metrics
from syncer.base.errors import DocumentError
from syncer.base.lifecycle import Stop
from syncer.base.link import Link
from syncer.base.log_limit import Repeated
from syncer.base.postgres import Connection
from syncer.documents import suspend
from syncer.documents.affected import AffectedReader, FanOut
from syncer.documents.locked_tables import LockedTables
from syncer.documents.registry import Document
from syncer.indexing.pool import WriterPool
from syncer.jobs import queue
from syncer.jobs.model import Job, JobKind
from syncer.worker.batch import ChangeBatch


class Resolver:
    """Resolves batches of changes. Not for sharing between threads.

    Args:
        link: The worker's connection to Postgres.
        writers: Write documents that are few.
        page: How many ids are handed on together.
        fan_out_documents_max: A change that touches more documents becomes a job.
        name: The worker, for the log.

    Attributes:
        unresolved: Logs changes for which an affects query fails.
    """

    def __init__(
        self,
        *,
        link: Link,
        writers: WriterPool,
        page: int,
        fan_out_documents_max: int,
        name: str,
    ) -> None:
        self._link = link
        self._writers = writers
        self._page = page
        self._fan_out_documents_max = fan_out_documents_max
        self._affected: AffectedReader | None = None
        self._read_on: Connection | None = None
        self._locked = LockedTables()
        self._refreshes: dict[str, int] = {}
        """The refresh of each index that was logged last: a batch that joins it is not worth a line."""
        self.unresolved: Repeated[tuple[str, str], str] = Repeated(self._tell_unresolved)
        self._log = structlog.get_logger().bind(worker=name)

    def resolve(self, batch: ChangeBatch, stop: Stop) -> None:
        """Submit every document that the changes touch.

        If a definition cannot continue, or a table of it stays locked, it is suspended; the others continue. After a
        failure you may call it again: what was submitted before is written twice, but counted once.
        """
        batch.writes.clear()
        locked: psycopg.errors.LockNotAvailable | None = None
        with self._link.used() as connection:
            for document in self._reader().documents():
                try:
                    with self._locked.watched(connection, document.index_name):
                        self._follow(document, batch, stop)
                except DocumentError as error:
                    suspend.suspend(connection, error)
                except psycopg.errors.LockNotAvailable as error:  # the others do not wait for that document's turn
                    locked = error
        if locked is not None:
            raise locked

    def _reader(self) -> AffectedReader:
        connection = self._link.connection
        if self._affected is None or self._read_on is not connection:
            self._read_on = connection
            self._affected = AffectedReader(
                connection, page=self._page, fan_out_documents_max=self._fan_out_documents_max
            )
        return self._affected

    def _follow(self, document: Document, batch: ChangeBatch, stop: Stop) -> None:
        """Submit what the changes touch of one definition.

        Raises:
            DocumentError: The definition must be suspended.
        """
        origin = {"batch": batch.number}
        with closing(self._reader().read(document, batch.changes)) as pages:
            for affected in stop.patiently(pages, "which documents changes touch"):
                if isinstance(affected, FanOut):
                    job = queue.create_fan_out(self._link.connection, document, affected.cause)
                elif affected.ids is None:
                    if affected.failed is not None:
                        self.unresolved.note((document.name, affected.failed), document.index_name)
                    job = queue.create(self._link.connection, document, JobKind.REFRESH)
                else:
                    write = self._writers.submit(document.index_name, affected.ids, origin=origin)
                    batch.writes.append(write)
                    continue
                if job is not None:
                    self._left_to(job, batch)

    def _left_to(self, job: Job, batch: ChangeBatch) -> None:
        """Date a job that makes good the changes of this batch, and log it; a refresh that was joined is not logged."""
        queue.date(self._link.connection, job.id, batch.changed_at)
        if self._refreshes.get(job.index_name) != job.id:
            self._log.info("job.created", job=job.id, kind=job.kind, document=job.document, cause=job.cause)
        if job.kind is JobKind.REFRESH:
            self._refreshes[job.index_name] = job.id

    def _tell_unresolved(self, what: tuple[str, str], number: int, index_name: str) -> None:
        document, kind = what
        metrics.UNRESOLVED.labels(document).inc(number)
        self._log.error("worker.changes_unresolved", document=document, kind=kind, index=index_name, batches=number)
