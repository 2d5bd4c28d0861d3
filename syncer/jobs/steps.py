"""Job steps: what a job needs besides the writing of its chunks. Its ids are listed, orphans are looked for, it ends.

Guarantees: a job whose step fails is deferred, and keeps no other waiting. An unexpected error fails its own job only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from syncer.base import metrics
from syncer.base.error_policy import Action, at_work_for, decide, explain, is_of_data, kind
from syncer.base.errors import DocumentError, JobError
from syncer.base.formatting import amount, elapsed
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.postgres import Connection
from syncer.base.retry import Backoff, Trouble
from syncer.documents import queries, registry, suspend
from syncer.documents.registry import Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS, reading
from syncer.elasticsearch.bulk import Index
from syncer.jobs import listing, queue
from syncer.jobs.model import Job, JobState, due

_OTHERS_SECONDS = 2.0
"""When to look again after a job that another process is working on."""


@dataclass(slots=True, eq=False)
class _Deferred:
    """A step of a job that is to be tried again, at a time of the monotonic clock."""

    trouble: Trouble
    backoff: Backoff = field(default_factory=Backoff)
    at: float = 0.0


class JobSteps:
    """Moves jobs on. Not for sharing between threads.

    Args:
        index: Elasticsearch.
        chunk_documents: How many ids a chunk has at most.
        name: The component, for the log.
    """

    def __init__(self, *, index: Index, chunk_documents: int, name: str) -> None:
        self._index = index
        self._chunk_documents = chunk_documents
        self._name = name
        self._stop = Stop()
        self._deferred: dict[int, _Deferred] = {}
        self._log = structlog.get_logger().bind(job_worker=name)

    def take(self, connection: Connection, stop: Stop) -> int:
        """Take each job that needs it one step further; return how many steps were done.

        Raises:
            Stopping: It was told to stop in the middle of a step.
            Exception: The configuration is wrong, or the connection is lost.
        """
        self._stop = stop
        waiting = due(connection)
        self._forget(self._deferred.keys() - {job.id for job in waiting})
        documents = {document.index_name: document for document in registry.documents(connection)} if waiting else {}
        steps = 0
        for job in waiting:
            document, deferred = documents.get(job.index_name), self._deferred.get(job.id)
            if document is None or (deferred is not None and time.monotonic() < deferred.at):
                continue
            try:
                with stop.patient():
                    is_done = self._step(connection, job, document)
            except DocumentError as error:
                suspend.suspend(connection, error)
            except JobError:  # the job was removed with its index
                continue
            except Stopping:
                raise
            except Exception as error:  # noqa: BLE001 - _handle_error tells them apart
                self._handle_error(connection, job, error)
            else:
                steps += is_done
                if deferred is not None:
                    deferred.trouble.over()
                self._forget([job.id])
                if not is_done:
                    self._deferred[job.id] = _Deferred(Trouble(self._name), at=time.monotonic() + _OTHERS_SECONDS)
        return steps

    def close(self) -> None:
        """Retry nothing any more."""
        self._forget(list(self._deferred))

    def _forget(self, job_ids: Iterable[int]) -> None:
        for job_id in job_ids:
            if (deferred := self._deferred.pop(job_id, None)) is not None:
                deferred.trouble.leave()

    def _step(self, connection: Connection, job: Job, document: Document) -> bool:
        """Take one job a step further; return whether anything was done.

        Raises:
            DocumentError: The document has to be suspended.
            JobError: There is no such job any more.
            Stopping: It was told to stop; take the step again.
            Exception: Try again.
        """
        if job.is_listed:
            after = queue.advance(connection, job.id)
            if after.state is JobState.DONE:
                self._log_finished(after)
            return after.state is not job.state
        if job.state is JobState.CLEANING_UP:
            orphans = self._orphans(connection, document, job.sequence_numbers or {})
            return listing.clean_up(connection, job, orphans, chunk=self._chunk_documents)
        numbers = partial(self._sequence_numbers, document)
        return listing.list_ids(connection, job, document, chunk=self._chunk_documents, sequence_numbers=numbers)

    def _handle_error(self, connection: Connection, job: Job, error: Exception) -> None:
        """Handle an error of one job so that it does not block other jobs.

        Raises:
            Exception: The configuration is wrong, or the connection is lost; then the other jobs go first next time.
        """
        if decide(error) is Action.RETRY:
            deferred = self._deferred.setdefault(job.id, _Deferred(Trouble(self._name)))
            deferred.trouble.met(error)
            deferred.at = time.monotonic() + deferred.backoff.next_seconds()
            if connection.closed:
                raise error
        elif explain(error) is None or decide(error) is Action.DEAD_LETTER:
            # What Postgres says of data may quote a row.
            what, trace = (kind(error), None) if is_of_data(error) else (repr(error), error)
            self._log.error("component.failed", component=self._name, job=job.id, error=what, exc_info=trace)
            metrics.JOB_FAILURES.inc()
            queue.fail(connection, job.id, f"Unexpected error: {what}\nPlease report it.")
        else:
            raise error

    def _log_finished(self, job: Job) -> None:
        seconds = ((job.finished_at or job.created_at) - job.created_at).total_seconds()
        self._log.info(
            "job.finished",
            job=job.id,
            kind=job.kind,
            document=job.document,
            cause=job.cause,
            documents=job.documents_done,
            indexed=job.indexed,
            deleted=job.deleted,
            skipped=job.skipped,
            dead_lettered=job.dead_lettered,
            seconds=round(seconds, 3),
            timeline=f"Job {job.id} ({job.kind}) wrote every document of {job.document}: "
            f"{amount(job.documents_done, 'document')} in {elapsed(seconds)}."
            if job.kind.is_whole
            else None,
        )

    def _sequence_numbers(self, document: Document) -> Mapping[int, int]:
        with at_work_for(document.name, document.revision):
            return self._index.holdings.sequence_numbers(document.target)

    def _orphans(self, connection: Connection, document: Document, numbers: dict[int, int]) -> Iterator[str]:
        """Yield the ids that only Elasticsearch has, among documents unchanged since the job began.

        Ids that no text of Postgres can be are left: no row has them, so another client has written them.
        """
        left = 0
        with at_work_for(document.name, document.revision):
            pages = self._index.holdings.untouched_since(document.target, numbers, page=self._chunk_documents)
            for places in pages:
                if self._stop.is_requested:
                    raise Stopping
                with reading(connection, document, lock_seconds=COMPONENT_LOCK_SECONDS):
                    present = queries.existing_here(connection, document, [place.id for place in places])
                orphans = [place.id for place in places if place not in present]
                yield from filter(_is_storable, orphans)
                left += sum(not _is_storable(id_) for id_ in orphans)
        if left:
            self._log.warning("job.orphans_left", index=document.index_name, documents=left)


def _is_storable(id_: str) -> bool:
    """Whether a chunk can hold the id; verify removes documents with other ids."""
    return queries.is_text(id_)
