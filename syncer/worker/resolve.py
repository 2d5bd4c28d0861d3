"""Resolves changes to documents: a few are written at once, many become a job.

Guarantee: once `resolve` has returned, each touched document is being written and the batch waits for it, or a
committed job covers it. The changes of a suspended document become causes of a fan-out that waits until it is resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import closing

import psycopg
import structlog

from syncer.base import metrics
from syncer.base.errors import DocumentError
from syncer.base.lifecycle import Stop
from syncer.base.log import Repeated
from syncer.base.postgres import Connection, Link
from syncer.documents import affected, registry, suspend
from syncer.documents.affected import AffectedReader, FanOut
from syncer.documents.registry import Document
from syncer.indexing.pool import WriterPool
from syncer.jobs import queue
from syncer.jobs.model import Job, JobKind
from syncer.worker.batch import ChangeBatch, Write


class Resolver:
    """Resolves batches of changes. Not for sharing between threads.

    Args:
        link: The worker's connection to Postgres.
        writers: Write documents that are few.
        page: How many ids are handed on together. A change that touches more documents becomes a job.
        name: The worker, for the log.

    Attributes:
        unresolved: Logs changes for which an affects query fails.
    """

    def __init__(self, *, link: Link, writers: WriterPool, page: int, name: str) -> None:
        self._link = link
        self._writers = writers
        self._page = page
        self._affected: AffectedReader | None = None
        self._read_on: Connection | None = None
        self._locked: Counter[str] = Counter()
        """How many times in a row a table of each index was locked."""
        self._refreshes: dict[str, int] = {}
        """The refresh of each index that was logged last: a batch that joins it is not worth a line."""
        self.unresolved: Repeated[tuple[str, str], str] = Repeated(self._log_unresolved)
        self._log = structlog.get_logger().bind(worker=name)

    def resolve(self, batch: ChangeBatch, stop: Stop, *, only: Collection[str] | None = None) -> None:
        """Submit every document that the changes touch, of these indices or of all.

        If a definition cannot continue, or a table of it stays locked, it is suspended; the others continue. After a
        failure you may call it again: what was submitted before is written twice, but counted once.
        """
        batch.writes = [] if only is None else [write for write in batch.writes if write.index_name not in only]
        locked: psycopg.errors.LockNotAvailable | None = None
        with self._link.used() as connection:
            for document in self._reader().documents():
                if only is not None and document.index_name not in only:
                    continue
                try:
                    if document.suspended is None:
                        self._follow(document, batch, stop)
                    else:
                        self._wait_with(document, batch)
                    self._locked.pop(document.index_name, None)
                except DocumentError as error:
                    suspend.suspend(connection, error)
                    self._wait_with(document, batch)
                except psycopg.errors.LockNotAvailable as error:  # the others do not wait for that document's turn
                    locked = self._meet_lock(document, batch, error) or locked
        if locked is not None:
            raise locked

    def _meet_lock(
        self, document: Document, batch: ChangeBatch, error: psycopg.errors.LockNotAvailable
    ) -> psycopg.errors.LockNotAvailable | None:
        """Return the error if it is worth retrying; else suspend the document whose table is locked."""
        self._locked[document.index_name] += 1
        if self._locked[document.index_name] < suspend.LOCKED_ATTEMPTS_MAX:
            return error
        try:
            suspend.require_unlocked(self._link.connection, document)
        except DocumentError as locked:
            suspend.suspend(self._link.connection, locked)
            self._wait_with(document, batch)
            return None
        return error

    def _wait_with(self, document: Document, batch: ChangeBatch) -> None:
        """Leave the changes to a fan-out of a suspended document, which waits until it is resumed."""
        cause = affected.cause(document, batch.changes)
        if cause is None:
            occasion = affected.truncated(document, batch.changes)
            job = queue.create(self._link.connection, document, JobKind.REFRESH, occasion=occasion)
        elif cause:
            job = queue.create_fan_out(self._link.connection, document, cause)
        else:
            return
        self._left_to(job, document, batch)

    def _reader(self) -> AffectedReader:
        connection = self._link.connection
        if self._affected is None or self._read_on is not connection:
            self._read_on = connection
            self._affected = AffectedReader(connection, page=self._page)
        return self._affected

    def _follow(self, document: Document, batch: ChangeBatch, stop: Stop) -> None:
        """Submit what the changes touch of one definition.

        Raises:
            DocumentError: The definition must be suspended.
        """
        origin = {"batch": batch.number}
        with closing(self._reader().read(document, batch.changes)) as pages:
            while True:
                with stop.patient():
                    found = next(pages, None)
                if found is None:
                    return
                if isinstance(found, FanOut):
                    job = queue.create_fan_out(self._link.connection, document, found.cause)
                elif found.ids is None:
                    if found.failed is not None:
                        self.unresolved.note((document.name, found.failed), document.index_name)
                    job = queue.create(self._link.connection, document, JobKind.REFRESH, occasion=found.occasion)
                else:
                    report = self._writers.submit(document.index_name, found.ids, origin=origin)
                    batch.writes.append(Write(document.index_name, report))
                    continue
                self._left_to(job, document, batch)

    def _left_to(self, job: Job | None, document: Document, batch: ChangeBatch) -> None:
        """Date a job that makes good the changes of this batch, and log it; a refresh that was joined is not logged.

        Without a job, they are left to a load or a refresh that is created later: then the document is dated.
        """
        changed_at = min(change.changed_at for change in batch.changes)
        if job is None:
            registry.date_stale(self._link.connection, document.index_name, changed_at)
            return
        queue.date(self._link.connection, job.id, changed_at)
        if self._refreshes.get(job.index_name) != job.id:
            why = job.occasion or job.cause
            self._log.info("job.created", job=job.id, kind=job.kind, document=job.document, cause=why)
        if job.kind is JobKind.REFRESH:
            self._refreshes[job.index_name] = job.id

    def _log_unresolved(self, what: tuple[str, str], number: int, index_name: str) -> None:
        document, kind = what
        metrics.UNRESOLVED.inc(number)
        self._log.error("worker.changes_unresolved", document=document, kind=kind, index=index_name, batches=number)
