"""Job steps: moves jobs through the states around the writing of chunks: listing, cleanup and the end.

Guarantees: a job whose step fails is deferred, and keeps no other waiting. An unexpected error fails its own job only.
A job waits for another one only if that one has a cause in common with it: see `syncer.jobs.model.due`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from syncer.base import metrics
from syncer.base.error_policy import Action, at_work_for, decide, explain, is_of_data, kind
from syncer.base.errors import DocumentError, JobError
from syncer.base.formatting import amount, elapsed
from syncer.base.lifecycle import Stop, Stopping
from syncer.base.model import Place
from syncer.base.postgres import Connection
from syncer.base.retry import TELL_SECONDS, Backoff
from syncer.documents import queries, registry, suspend
from syncer.documents.registry import Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS, reading
from syncer.elasticsearch.bulk import Index
from syncer.jobs import listing, queue
from syncer.jobs.model import Job, JobState, due

_OTHERS_SECONDS = 2.0
"""When to look again after a job that another process is working on."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Deferred:
    """A step of a job that is to be tried again.

    Args:
        at: When, by the monotonic clock.
    """

    at: float = 0.0
    message: str = ""
    logged_at: float = -math.inf
    backoff: Backoff = field(default_factory=Backoff)


class JobSteps:
    """Moves jobs on. Not for sharing between threads.

    Args:
        connect: Opens a connection to Postgres; each cleanup uses one of its own.
        index: Elasticsearch.
        chunk_documents: How many ids a chunk has at most.
        name: The component, for the log.
    """

    def __init__(self, *, connect: Callable[[], Connection], index: Index, chunk_documents: int, name: str) -> None:
        self._connect = connect
        self._index = index
        self._chunk_documents = chunk_documents
        self._name = name
        self._stop = Stop()
        self._deferred: dict[int, _Deferred] = {}
        self._log = structlog.get_logger().bind(job_worker=name)

    def due(self, connection: Connection) -> list[Job]:
        """Return the jobs that need a step, except those that are deferred."""
        waiting = due(connection)
        ids = {job.id for job in waiting}
        self._deferred = {id_: one for id_, one in self._deferred.items() if id_ in ids}
        now = time.monotonic()
        return [job for job in waiting if job.id not in self._deferred or self._deferred[job.id].at <= now]

    def take(self, connection: Connection, stop: Stop) -> int:
        """Take each job that needs it one step further; return how many steps were done.

        Raises:
            Stopping: It was told to stop in the middle of a step.
            Exception: The configuration is wrong, or the connection is lost.
        """
        self._stop = stop
        waiting = self.due(connection)
        steps = 0
        documents = {one.index_name: one for one in registry.documents(connection)} if waiting else {}
        for job in waiting:
            document = documents.get(job.index_name)
            if document is None:  # it has just been withdrawn
                continue
            try:
                with self._stop.patient(f"a step of job {job.id}"):
                    is_further = self._step(connection, job, document)
            except DocumentError as error:
                suspend.suspend(connection, error)
            except JobError:  # the job was removed with its index
                continue
            except Stopping:
                raise
            except Exception as error:  # noqa: BLE001 - _handle_error tells them apart
                self._handle_error(connection, job, error)
            else:
                steps += is_further
                self._deferred.pop(job.id, None)
                if not is_further:
                    self._deferred[job.id] = _Deferred(at=time.monotonic() + _OTHERS_SECONDS)
        return steps

    def _handle_error(self, connection: Connection, job: Job, error: Exception) -> None:
        """Handle an error of one job so that it does not block other jobs.

        Raises:
            Exception: The configuration is wrong, or the connection is lost; then the other jobs go first next time.
        """
        if decide(error) is Action.RETRY:
            self._defer(job, error)
            if connection.closed:
                raise error
        elif _is_its_own(error):
            # What Postgres says of data may quote a row.
            what, trace = (kind(error), None) if is_of_data(error) else (repr(error), error)
            self._log.error("component.failed", component=self._name, job=job.id, error=what, exc_info=trace)
            metrics.JOB_FAILURES.inc()
            queue.fail(connection, job.id, f"Unexpected error: {what}\nPlease report it.")
        else:
            raise error

    def _defer(self, job: Job, error: Exception) -> None:
        """Defer a job, with backoff, and log the error unless it was logged just now."""
        deferred = self._deferred.setdefault(job.id, _Deferred())
        explanation = explain(error)
        message = explanation.message if explanation else repr(error)
        now = time.monotonic()
        if message != deferred.message or now - deferred.logged_at >= TELL_SECONDS:
            self._log.warning("component.retried", component=self._name, job=job.id, error=message)
            deferred.message, deferred.logged_at = message, now
        deferred.at = now + deferred.backoff.next_seconds()

    def _step(self, connection: Connection, job: Job, document: Document) -> bool:
        """Take one job a step further; return whether its state has changed.

        Raises:
            DocumentError: The document has to be suspended.
            JobError: There is no such job any more.
            Stopping: It was told to stop; take the step again.
            Exception: Try again.
        """
        if job.state in (JobState.NEW, JobState.LISTING):
            numbers = partial(self._sequence_numbers, document) if job.kind.is_whole else None
            return listing.list_chunks(connection, job, document, chunk=self._chunk_documents, sequence_numbers=numbers)
        if job.state is JobState.WRITTEN:
            orphans = self._orphans(document, job.sequence_numbers or {})
            return listing.cleanup(connection, job, orphans, chunk=self._chunk_documents)
        after = queue.advance(connection, job.id)
        if after.state is JobState.DONE:
            self._log_finished(after)
        return after.state is not job.state

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

    def _orphans(self, document: Document, numbers: dict[int, int]) -> Iterable[str]:
        """Yield the ids that only Elasticsearch has, among documents unchanged since the job began.

        Ids that no chunk can hold are left: no row has them, so another client has written them.
        """
        left = 0
        with self._connect() as connection:
            for places in self._untouched(document, numbers):
                if self._stop.is_requested:
                    raise Stopping
                with reading(connection, document, lock_seconds=COMPONENT_LOCK_SECONDS):
                    present = queries.existing_here(connection, document, [one.id for one in places])
                orphans = [one.id for one in places if one not in present]
                yield from filter(_fits_a_chunk, orphans)
                left += sum(not _fits_a_chunk(one) for one in orphans)
        if left:
            self._log.warning("job.orphans_left", index=document.index_name, documents=left)

    def _untouched(self, document: Document, numbers: dict[int, int]) -> Iterable[list[Place]]:
        with at_work_for(document.name, document.revision):
            yield from self._index.holdings.untouched_since(document.target, numbers, page=self._chunk_documents)


def _is_its_own(error: Exception) -> bool:
    """Whether an error concerns its job alone: it is unexpected, or of the data that the step met."""
    return explain(error) is None or decide(error) is Action.DEAD_LETTER


def _fits_a_chunk(id_: str) -> bool:
    """Whether Postgres can store the id; verify removes documents with other ids."""
    return queries.is_text(id_)
