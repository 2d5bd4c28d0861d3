"""Resolves changes to documents: a few are written at once, many become a job.

Guarantee: once `resolve` has returned, each touched document is being written and the batch waits for it, or a
committed job covers it. The changes of a suspended document become causes of a fan-out that waits until it is resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import psycopg
import structlog

from syncer.base import metrics
from syncer.base.errors import DocumentError
from syncer.base.lifecycle import Stop
from syncer.base.log import Repeated
from syncer.base.postgres import Connection, Link
from syncer.documents import affected, suspend
from syncer.documents.affected import Affected, AffectedReader
from syncer.documents.registry import Document
from syncer.indexing.pool import WriterPool
from syncer.jobs import queue
from syncer.jobs.model import JobKind
from syncer.worker.source import ChangeBatch


class Resolver:
    """Resolves batches of changes. Not for sharing between threads.

    Args:
        page: How many ids are handed on together. A change that touches more documents becomes a job.
        keep_alive: Called before each definition, since many take long together.
    """

    def __init__(
        self, *, link: Link, writers: WriterPool, page: int, keep_alive: Callable[[], None], name: str
    ) -> None:
        self._link = link
        self._writers = writers
        self._page = page
        self._keep_alive = keep_alive
        self._affected: AffectedReader | None = None
        self._read_on: Connection | None = None
        self._locked: Counter[str] = Counter()
        """How many times in a row a table of each index was locked."""
        self._logged: dict[str, int] = {}
        """The job of each index that was logged last: a batch that joins it is not worth a line."""
        self._unresolved = Repeated()
        self._log = structlog.get_logger().bind(worker=name)

    def resolve(self, batch: ChangeBatch, stop: Stop, *, only: Collection[str] | None = None) -> None:
        """Submit every document that the changes touch, of these indices or of all.

        If a definition cannot continue, or a table of it stays locked, it is suspended; the others continue. After a
        failure you may call it again: what was submitted before is written twice, but counted once.
        """
        batch.writes = [] if only is None else [write for write in batch.writes if write[0] not in only]
        locked: psycopg.errors.LockNotAvailable | None = None
        with self._link.used() as connection:
            if self._affected is None or self._read_on is not connection:
                self._affected, self._read_on = AffectedReader(connection, page=self._page), connection
            for document in self._affected.documents():
                if only is not None and document.index_name not in only:
                    continue
                self._keep_alive()
                try:
                    if document.suspended is None:
                        self._submit(document, self._affected, batch, stop)
                    else:
                        self._create_job(document, batch, affected.unlisted(document, batch.changes))
                except DocumentError as error:
                    suspend.suspend(connection, error)
                    self._create_job(document, batch, affected.unlisted(document, batch.changes))
                except psycopg.errors.LockNotAvailable as error:  # the others do not wait for that document's turn
                    locked = error
        if locked is not None:
            raise locked

    def _submit(self, document: Document, reader: AffectedReader, batch: ChangeBatch, stop: Stop) -> None:
        """Submit what the changes touch of one definition.

        Raises:
            DocumentError: The definition must be suspended.
            LockNotAvailable: A table of it is locked; worth retrying.
        """
        try:
            with stop.patient():
                touched = reader.read(document, batch.changes)
        except psycopg.errors.LockNotAvailable:
            self._locked[document.index_name] += 1
            if self._locked[document.index_name] >= suspend.LOCKED_ATTEMPTS_MAX:
                suspend.require_unlocked(self._link.connection, document)
            raise
        self._locked.pop(document.index_name, None)
        if touched.failed is not None:
            metrics.INCIDENTS.labels("affects_failed").inc()
            if batches := self._unresolved.count((document.index_name, touched.failed)):
                context = {"document": document.name, "kind": touched.failed, "index": document.index_name}
                self._log.error("worker.changes_unresolved", **context, batches=batches)
        self._create_job(document, batch, touched)
        for start in range(0, len(touched.ids), self._page):
            ids = touched.ids[start : start + self._page]
            origin = {"batch": batch.number}
            report = self._writers.submit(document.index_name, ids, unmoved=touched.unmoved, origin=origin)
            batch.writes.append((document.index_name, report))

    def _create_job(self, document: Document, batch: ChangeBatch, touched: Affected) -> None:
        """Create the refresh or fan-out that is needed, if any, or join one; log it, unless the last batch joined it.

        That of a suspended document waits until it is resumed.
        """
        if touched.occasion is None and not touched.cause:
            return
        connection, changed_at = self._link.connection, min(change.changed_at for change in batch.changes)
        if touched.occasion is not None:
            job = queue.create(connection, document, JobKind.REFRESH, occasion=touched.occasion, changed_at=changed_at)
        else:
            job = queue.create_fan_out(connection, document, touched.cause, changed_at=changed_at)
        if job is not None and self._logged.get(job.index_name) != job.id:
            self._logged[job.index_name] = job.id
            why = job.occasion or job.cause
            self._log.info("job.created", job=job.id, kind=job.kind, document=job.document, cause=why)
