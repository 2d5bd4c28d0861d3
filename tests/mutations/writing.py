"""Rules of the write path, taken out: of composer, writer, index, worker and the job worker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from uuid import UUID

import elasticsearch
import psycopg

from syncer.base.errors import DeadLetteringError, DocumentError, JobError, SyncerError
from syncer.base.model import Composition
from syncer.base.postgres import Connection
from syncer.base.retry import Trouble
from syncer.base.write_report import WriteReport
from syncer.documents.registry import Document, DocumentState
from syncer.elasticsearch.bulk import BulkOutcome, Index, _Task
from syncer.indexing.bulk_errors import Failing, Patience
from syncer.indexing.compose import Composer, Findings, _Plan, _Snapshot
from syncer.indexing.failed_documents import FailedDocuments
from syncer.indexing.fault import Fault
from syncer.indexing.flow_control import FlowControl
from syncer.indexing.pool import WriterPool
from syncer.indexing.replica import Replica
from syncer.indexing.writer import Attempt, Writer, _Group
from syncer.jobs.model import Job
from syncer.jobs.steps import JobSteps
from syncer.worker.batch import ChangeBatch
from syncer.worker.job_loop import JobWorker, _Hand
from syncer.worker.loop import Worker
from tests.mutations import Instead

# The version rule


def assigns_the_version_last(
    original: Instead, self: Composer, plan: _Plan, ids: Sequence[str], bytes_max: int, seconds: float | None = None
) -> _Snapshot:
    """The version is assigned once the documents are read."""
    found: _Snapshot = original(self, plan, ids, bytes_max, seconds)
    row = self._primary.execute(
        "SELECT epoch << 43 | nextval('syncer.version') FROM syncer.cluster_identity"
    ).fetchone()
    assert row is not None
    return replace(found, version=row[0])


def with_the_time(original: Instead, one: Composition, elsewhere: Iterable[str]) -> bytes:
    """A document is written with a version of the moment in which it is written."""
    lines: bytes = original(one._replace(version=one.version + time.time_ns()), elsewhere)
    return lines


def reads_at_once(original: Instead, self: Replica, mark: str) -> None:
    """A replica is read wherever it is."""
    vars(self)["require_known"] = dict  # takes whatever it is asked, and says nothing


def asks_the_replica(original: Instead, self: Composer, index_name: str) -> Document | None:
    """Which definitions are active is asked where documents are read."""
    return self._catalogue.last(self._connection, index_name)


def of_any_role(original: Instead, state: DocumentState | None, document: Document) -> bool:
    """What the index is for does not count."""
    return state is not None and state.revision == document.revision


def of_later_failures(
    original: Instead, self: Composer, index_name: str, ids: Sequence[str], *, seconds: float
) -> Findings:
    """What fails seems to have been read later than it was."""
    found: Findings = original(self, index_name, ids, seconds=seconds)
    return replace(found, version=found.version + 1000)


def counts_on_what_it_wrote(original: Instead, self: Composer, index_name: str) -> DocumentState | None:
    """What was read on a connection that is gone counts as written."""
    try:
        found: DocumentState | None = original(self, index_name)
    except psycopg.OperationalError:
        return None
    return found


# The writer


def forgets_what_is_refused(
    original: Instead, self: Writer, attempt: Attempt, *, follows: bool = True, failing: Failing | None = None
) -> list[str]:
    """What Elasticsearch asks to try again is not."""
    original(self, attempt, follows=follows, failing=failing)
    attempt.refused.clear()
    return []


def takes_all_for_outages(
    original: Instead, self: Writer, attempt: Attempt, *, follows: bool = True, failing: Failing | None = None
) -> list[str]:
    """What is refused for good counts as trouble of a server."""
    again: list[str] = original(self, attempt, follows=follows, failing=failing)
    attempt.refused.extend(attempt.rejections)
    return again


def isolates_nothing(
    original: Instead, self: Writer, group: _Group, error: Exception, report: WriteReport
) -> list[_Group]:
    """A row that makes the SELECT raise ends the writer."""
    raise error


def looks_for_known_letters_only(original: Instead, self: Composer, index_name: str) -> DocumentState | None:
    """A dead letter that came after the documents were read is not looked for."""
    state: DocumentState | None = original(self, index_name)
    return state and replace(state, has_dead_letters=False)


def as_large_as_any(original: Instead, self: Writer, documents: int) -> int:
    """Every document is fetched, however many there are and however large they are."""
    return 1 << 30


def as_many_as_may_be(original: Instead, self: FlowControl, index_name: str) -> int:
    """How large documents are does not count."""
    return self._documents_max


def is_not_dead_lettered(
    original: Instead, self: FailedDocuments, document: Document, version: int, faults: Mapping[str, Fault]
) -> None:
    """What cannot be dead-lettered raises what Postgres said."""
    try:
        original(self, document, version, faults)
    except DeadLetteringError as error:
        raise error.__cause__ or error from None


# Elasticsearch's answers


def of_any_revision(original: Instead, document: Document) -> tuple[str, int]:
    """Patience is counted on from the revision before."""
    return document.index_name, 0


def not_if_too_large(original: Instead, error: elasticsearch.ApiError) -> bool:
    """A request that is too large counts as any other that is refused."""
    return error.status_code != 413 and bool(original(error))


def not_for_want_of_room(original: Instead, error: elasticsearch.ApiError) -> bool:
    """A request that there is never room for is tried again."""
    return error.status_code != 429 and bool(original(error))


def counts_every_shard(original: Instead, part: Sequence[_Task], outcome: BulkOutcome) -> None:
    """A document counts once for each shard."""
    original(part, outcome)
    outcome.indexed += sum(task.operations - 1 for task in part if task.composition.source is not None)


def hears_one_shard(
    original: Instead, composition: Composition, items: Sequence[Mapping[str, Any]], outcome: BulkOutcome
) -> None:
    """What the other shards have answered does not count."""
    original(composition, items[:1], outcome)


def writes_any_epoch(original: Instead, self: Index, installation: UUID, epoch: int) -> None:
    """The record may go back."""
    self._client.index(index="syncer-state", id=f"epoch-{installation}", document={"epoch": epoch})


def is_always_news(original: Instead, self: Trouble, what: str, *, since: float) -> bool:
    """All trouble is told of."""
    return True


# The worker


def commits_first(original: Instead, self: Worker, batch: ChangeBatch) -> None:
    """An offset is committed before what its change touches is written."""
    self._membership.commit(batch.received)
    time.sleep(0.3)
    original(self, batch)


def in_any_order(original: Instead, self: Worker) -> list[ChangeBatch]:
    """A batch that has overtaken others is committed before them."""
    return [one for one in self._batches if one.is_done]


def has_always_room(original: Instead, self: Worker) -> bool:
    """More is received as long as writers have room."""
    return self._writers.has_room


# The job worker


def counts_what_is_in_hand(original: Instead, self: JobWorker) -> list[_Hand]:
    """A page counts as done once it is taken."""
    for hand in self._hands:
        hand.write = Future()
        hand.write.set_result(WriteReport())
    return list(self._hands)


_LEFT: list[Connection | None] = []


def leaves_with_its_chunks(original: Instead, self: JobWorker) -> None:
    """A job worker that stops keeps what is in hand, and its session."""
    _LEFT.append(self._connection)
    self._connection = None
    self._hands.clear()


def is_ended_by_what_is_gone(
    original: Instead, self: JobSteps, connection: Connection, job: Job, document: Document
) -> bool:
    """A job that is gone ends the job worker."""
    try:
        return bool(original(self, connection, job, document))
    except JobError as error:
        raise SyncerError("the job is gone") from error


def is_ended_by_a_step(original: Instead, self: JobSteps, connection: Connection, job: Job, error: Exception) -> None:
    """An error that nobody foresaw ends the job worker."""
    raise error


def is_tried_again_at_once(original: Instead, self: JobSteps, job: Job, error: Exception) -> None:
    """A job in trouble is tried again before any other."""
    raise error


def is_waited_for(original: Instead, self: Patience, index_name: str) -> bool:
    """An index that serves is waited for, for as long as it takes."""
    return False


# The pool and its flow control


def is_done_before_it_is_suspended(original: Instead, self: Writer, error: DocumentError) -> None:
    """Documents count as done, and nobody is told that their definition cannot go on."""


def closes_for_any_trouble(
    original: Instead, self: Writer, error: Exception, attempt: Attempt, document: Document, began: float
) -> None:
    """Trouble of Elasticsearch costs the connection to Postgres, and all that was built on it."""
    original(self, error, attempt, document, began)
    self._session.close()


def waits_for_all(original: Instead, self: WriterPool, *, seconds: float | None = None) -> bool:
    """Who ends waits for a request, however long it hangs."""
    is_through: bool = original(self, seconds=None)
    return is_through


def sends_at_once(original: Instead, self: FlowControl) -> AbstractContextManager[None]:
    """A request does not wait for its turn."""
    return nullcontext()
