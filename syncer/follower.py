"""Follower: hands on what changes touch: to the pipeline if it is little, to a job if it is much, or has to wait.

Guarantee: once `hand_over` has returned, each document that the changes touch is the pipeline's, or in a job that is in
Postgres for good, or its definition is halted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import structlog

from syncer import events, halting, jobs, metrics, unwell
from syncer.affected import Affected, AffectedReader, FanOut
from syncer.change_batch import ChangeBatch
from syncer.errors import DocumentError, UnwellError
from syncer.job import JobKind
from syncer.lifecycle import Stop
from syncer.link import Link
from syncer.pipeline import Pipeline, Task
from syncer.postgres import Connection
from syncer.repeated import Repeated
from syncer.store import Document


class Follower:
    """Not for sharing between threads.

    Args:
        link: The worker's connection to Postgres.
        page: How many ids are handed on together.
        fan_out_documents_max: More documents than that of one change become a job.
        on_job: Called when a job was made.
        name: The worker, for the log.
    """

    def __init__(
        self, *, link: Link, page: int, fan_out_documents_max: int, on_job: Callable[[], None], name: str
    ) -> None:
        self._link = link
        self._page = page
        self._fan_out_documents_max = fan_out_documents_max
        self._on_job = on_job
        self._affected: AffectedReader | None = None
        self._read_on: Connection | None = None
        self._unplaced: Repeated[tuple[str, str], str] = Repeated(self._tell_unplaced)
        self._log = structlog.get_logger().bind(worker=name)

    def hand_over(self, batch: ChangeBatch, pipeline: Pipeline, stop: Stop) -> None:
        """Hand over every document that the changes touch; a definition that cannot go on halts, the others go on."""
        with self._link.used():
            for document in self._reader().documents():
                try:
                    self._follow(document, batch, pipeline, stop)
                except DocumentError as error:
                    self.halt(error)

    def halt(self, error: DocumentError) -> None:
        """Halt a document, before the offsets of what it skips are committed."""
        halting.halt(self._link.connection, error)

    def leave(self, _: Task, ids: Sequence[str], error: UnwellError) -> None:
        """Leave documents of an index that takes none to a job, before the offsets of their changes are committed."""
        with self._link.used() as connection:
            unwell.mark(connection, error)
            document = self._reader().last(error.index_name)
            if document is not None:
                unwell.leave(connection, document, ids)

    def tell(self) -> None:
        """Say what is not said yet, if it is time."""
        self._unplaced.tell()

    def flush(self) -> None:
        """Say all of it."""
        self._unplaced.flush()

    def _reader(self) -> AffectedReader:
        connection = self._link.connection
        if self._affected is None or self._read_on is not connection:
            self._read_on = connection
            self._affected = AffectedReader(
                connection, page=self._page, fan_out_documents_max=self._fan_out_documents_max
            )
        return self._affected

    def _follow(self, document: Document, batch: ChangeBatch, pipeline: Pipeline, stop: Stop) -> None:
        """Hand over what the changes touch of one definition.

        Raises:
            DocumentError: It is to halt.
        """
        with closing(self._reader().read(document, batch.changes)) as pages:
            for affected in stop.patiently(pages, "which documents changes touch"):
                if isinstance(affected, FanOut) or affected.ids is None:
                    self._refresh(document, affected)
                elif document.unwell is not None:
                    unwell.leave(self._link.connection, document, affected.ids)
                else:
                    pipeline.write(batch, document.index_name, affected.ids)

    def _refresh(self, document: Document, affected: Affected | FanOut) -> None:
        """Leave documents of a definition, or all, to the refreshers; once the job is there, they are in good hands."""
        if isinstance(affected, FanOut):
            job = jobs.create_fan_out(self._link.connection, document, affected.cause)
        else:
            if affected.failed is not None:
                self._unplaced.note((document.name, affected.failed), document.index_name)
            job = jobs.create(self._link.connection, document, JobKind.REFRESH)
        if job is not None:
            self._log.info(events.JOB_CREATED, job=job.id, kind=job.kind, document=document.name, cause=job.cause)
            self._on_job()

    def _tell_unplaced(self, what: tuple[str, str], number: int, index_name: str) -> None:
        document, kind = what
        metrics.unplaced(document, number)
        self._log.error(events.CHANGES_UNPLACED, document=document, kind=kind, index=index_name, batches=number)
