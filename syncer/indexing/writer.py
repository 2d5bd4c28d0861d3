"""Writer: brings one slice of documents up to date in Elasticsearch, by the version rule.

All code that writes documents does it here, on a connection of its own, in three steps:

    build    assign a version with a snapshot, serialised; read all documents in it        `syncer.indexing.compose`
    send     write them whole with that version; delete those that are gone                `syncer.elasticsearch.bulk`
    settle   check that nothing has overtaken the write; handle refused items

Each step is one round trip, unless an item was refused. A failed step is retried in place until it succeeds.
If Postgres fails, the documents are built again with a new version. If Elasticsearch does not answer, or has no room,
they are sent again as they are while they are recent, which costs Postgres nothing. A document at fault is
dead-lettered and the others continue (`syncer.indexing.failed_documents`). `syncer.indexing.bulk_errors` decides what a
refusal means.

A change that removes documents does not always name them. After a TRUNCATE, or for a new definition, a job lists all
documents that exist. It removes all others that were indexed before the listing. A writer that read such a document
before the listing and writes it afterwards would leave it in the index for good. So each writer checks, after it has
written, whether a listing has begun since it read. If so, it builds and writes the whole slice again.

Elasticsearch forgets the version of a deleted document: after ``index.gc_deletes``, and at once when its index is
closed and opened or the shard moves. A writer that was delayed until then would bring the document back, as a creation.
So a writer that has created documents checks whether Postgres still has them, and builds those again that are gone.
This holds however soon Elasticsearch forgets and however long the writer was delayed: the age of a version does not
matter. A later removal has a change of its own, which is handled later. If the writer dies instead, another one gets
its changes or its chunk.

A commit may be visible before it is on disk, and a crash of Postgres can then take it back. So a document counts as
written only once Postgres has flushed what it shows. This is confirmed on the connection on which the documents were
read: if it breaks, they are built again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import elasticsearch
import structlog

from syncer.base import log as base_log
from syncer.base.error_policy import CLUSTER_BLOCK, Action, at_work_for, decide, decide_item, kind
from syncer.base.errors import DeadLetteringError, DocumentError
from syncer.base.lifecycle import Abandoned, clock
from syncer.base.model import Composition
from syncer.base.postgres import Connection
from syncer.base.retry import Backoff, Trouble, retry
from syncer.base.write_report import WriteReport
from syncer.documents import registry, suspend
from syncer.documents.locked_tables import LockedTables
from syncer.documents.queries import existing_here
from syncer.documents.registry import Document, DocumentState
from syncer.elasticsearch.bulk import Index, Rejection
from syncer.indexing import bulk_errors, compose as indexing_compose, failed_documents, failover
from syncer.indexing.bulk_errors import Failing, Patience
from syncer.indexing.compose import Batch
from syncer.indexing.connections import Session
from syncer.indexing.failed_documents import FailedDocuments, Failures, Isolated
from syncer.indexing.flow_control import FlowControl

RESENT_SECONDS_MAX = 10.0
"""Maximum age of built documents that are sent again unchanged."""

_FOLLOWED_MAX = 3
"""How many times in a row a document that changes while it is dead-lettered is retried; its changes cover the rest."""

_Result = TypeVar("_Result")
_NO_ORIGIN: Mapping[str, int] = {}


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt to write some documents: built, then sent, then settled.

    Args:
        batch: The documents as built.
        report: The result so far.
        rejections: The items that Elasticsearch did not write.
        refused: The rejections that can be retried.
        unsure: Documents that met a version which says nothing about what is there.
        created: Documents that did not exist before, as far as Elasticsearch remembers.
        changed: Ids that have to be written again: they had changed before they were dead-lettered, or are unsure.
        newer_version: The greatest version that was there instead; 0 if there was none.
        is_unanswered: Whether a request got no answer: it is then unknown what that request created.
        origin: What the documents are written for, as logged with each.
    """

    batch: Batch
    report: WriteReport = field(default_factory=WriteReport)
    rejections: list[Rejection] = field(default_factory=list)
    refused: list[Rejection] = field(default_factory=list)
    created: list[Composition] = field(default_factory=list)
    unsure: list[Composition] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    newer_version: int = 0
    is_unanswered: bool = False
    origin: Mapping[str, int] = field(default_factory=dict)

    def start_over(self) -> list[str]:
        """Reset the report; return the ids to build again."""
        report = self.report
        report.documents = report.indexed = report.deleted = report.skipped = 0
        return [one.id for one in self.batch.compositions]


@dataclass(slots=True, kw_only=True)
class _Group:
    """Documents that are written together, until none is left.

    Args:
        index_name: The index to write to.
        ids: The ids that are left.
        everywhere: Whether to remove copies from all other shards too.
        origin: What the documents are written for, as logged with each.
        bytes_each: The size above which a document is not fetched; None to derive it from the number of documents.
        attempt: Built documents whose request has not been answered yet.
        followed: How many times some of them had changed while they were dead-lettered.
        fruitless: How many times in a row no document at fault was found, although the SELECT raises.
        failing: Documents for which Elasticsearch fails.
    """

    index_name: str
    ids: list[str]
    everywhere: bool
    origin: Mapping[str, int]
    bytes_each: int | None = None
    attempt: Attempt | None = None
    followed: int = 0
    fruitless: int = 0
    failing: Failing = field(default_factory=Failing)

    def part(self, ids: list[str], *, bytes_each: int | None = None) -> _Group:
        """Return some of the documents as a group of their own."""
        return replace(self, ids=ids, bytes_each=bytes_each, attempt=None, failing=Failing())


class Shared:
    """State shared by the writers of one component. Safe to share between threads."""

    def __init__(self, *, name: str, index: Index, flow: FlowControl | None = None) -> None:
        self.flow = flow or FlowControl()
        self.trouble = Trouble(name)
        self.patience = Patience(index.holdings)
        self.locked = LockedTables()
        self.failures: Failures = failed_documents.failures()


class Writer:
    """Writes documents by the version rule, on a connection of its own. Not safe to share between threads.

    Args:
        connect: Opens a connection to Postgres.
        index: Elasticsearch.
        pause: Waits before a retry; may raise `Stopping`.
        name: The name of the component, for the log.
        shared: State shared with the component's other writers; None for a single writer.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        index: Index,
        pause: Callable[[float], None],
        name: str,
        shared: Shared | None = None,
    ) -> None:
        self._index = index
        self._component_pause = pause
        self._name = name
        self._shared = shared or Shared(name=name, index=index)
        self._flow = self._shared.flow
        self._trouble = self._shared.trouble
        self._patience = self._shared.patience
        self._session = Session(connect=connect, index=index)
        self._failed = FailedDocuments(self._session, pause=self._pause, log=self._shared.failures)
        self._is_needed: Callable[[], bool] = lambda: True

    def write(
        self,
        index_name: str,
        ids: Sequence[str],
        *,
        everywhere: bool = False,
        origin: Mapping[str, int] = _NO_ORIGIN,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> WriteReport:
        """Bring documents up to date in one index; return when each is written, skipped or dead-lettered.

        Args:
            index_name: An active index.
            ids: The documents to write.
            everywhere: Also remove stray copies from all other shards.
            origin: What the documents are written for, as logged with each.
            is_needed: Whether to go on retrying.

        Raises:
            Stopping, Abandoned: The writer was told to stop, or the write is no longer needed. It is safe to repeat.
            DocumentError: The definition has to be suspended. What was written before is valid.
            Exception: An error that the policy classifies as FATAL.
        """
        self._is_needed = is_needed
        report = WriteReport()
        groups = [_Group(index_name=index_name, ids=list(ids), everywhere=everywhere, origin=origin)]
        while groups:
            group = groups.pop()
            if report.documents:
                self._pause(0)  # a component that is told to stop leaves the rest to the next process
            try:
                groups += self._retry(partial(self._attempt, group, report))
            except DocumentError as error:
                if not self._retry(partial(self._is_outdated, index_name, error)):
                    raise
                groups.append(group)
            except Exception as error:
                if decide(error) is not Action.DEAD_LETTER:
                    raise
                groups += self._isolated(group, error, report)
        return report

    def give_up(self, error: DocumentError) -> None:
        """Suspend a definition, before other work continues without it."""

        def record() -> None:
            with self._session.used():
                suspend.suspend(self._session.connection, error)

        self._retry(record)

    def close(self) -> None:
        """Close the connection; the next write opens another one."""
        self._shared.failures.flush()
        self._session.close()

    # One attempt: build, send, settle

    def _attempt(self, group: _Group, report: WriteReport) -> list[_Group]:
        """Build, send and settle once; return what remains to be written, in groups.

        Raises:
            UnavailableError: Elasticsearch has refused some documents for now. They are left in the group.
        """
        with self._flow.in_hand(), self._on_tables(group.index_name):
            attempt = group.attempt
            if attempt is None or clock() - attempt.batch.assigned_at > RESENT_SECONDS_MAX:
                attempt = group.attempt = self.compose(
                    group.index_name,
                    group.ids,
                    everywhere=group.everywhere,
                    origin=group.origin,
                    bytes_each=group.bytes_each,
                )
            self.send(attempt)
            group.attempt = None
            again = self.settle(attempt, follows=group.followed < _FOLLOWED_MAX, failing=group.failing)
            too_large: list[_Group] = []
            if attempt.refused:
                again.extend(attempt.batch.too_large)  # after the others are written
            elif attempt.batch.too_large:
                too_large = self._too_large(group, attempt)
        report.add(attempt.report)
        group.followed += bool(attempt.changed)
        group.ids = again
        if attempt.refused:
            group.failing.note(attempt.refused, self._index.holdings, group.index_name)
            raise bulk_errors.for_now(group.index_name, attempt.refused)
        return too_large + ([group] if again else [])

    def compose(
        self,
        index_name: str,
        ids: Sequence[str],
        *,
        everywhere: bool = False,
        origin: Mapping[str, int] = _NO_ORIGIN,
        bytes_each: int | None = None,
    ) -> Attempt:
        """Build documents as `Composer.compose` does; send the result at once, then settle it.

        Raises:
            DocumentError: The definition has to be suspended.
            Exception: Any other error, without a retry.
        """
        began = time.monotonic()
        bytes_max = bytes_each or self._bytes_each(len(ids))
        batch = self._session.composer.compose(index_name, ids, everywhere=everywhere, bytes_max=bytes_max)
        seconds = time.monotonic() - began
        size = sum([len(one.source) for one in batch.compositions if one.source]) + sum(batch.too_large.values())
        self._flow.built(index_name, documents=len(ids), size=size, seconds=seconds)
        return Attempt(
            batch=batch,
            report=WriteReport(documents=len(batch.compositions), compose_seconds=seconds),
            origin=origin,
        )

    def _bytes_each(self, documents: int) -> int:
        """Return the size above which a document is not fetched beside others: all of them share the memory."""
        return indexing_compose.DOCUMENT_BYTES_MAX if documents == 1 else 2 * self._flow.bytes_max // documents

    def send(self, attempt: Attempt) -> None:
        """Send the built documents.

        Raises:
            DocumentError: The definition has to be suspended.
            Exception: Any other error, without a retry.
        """
        document, batch, report = attempt.batch.document, attempt.batch, attempt.report
        if document is None or not batch.compositions:
            return
        with self._flow.in_flight():
            began = time.monotonic()
            try:
                with at_work_for(document.name, document.revision):
                    outcome = self._index.write(document.target, batch.compositions)
            except Exception as error:
                self._meet(error, attempt, document, began)
                raise
        seconds = time.monotonic() - began
        report.indexed += outcome.indexed
        report.deleted += outcome.deleted
        report.skipped += outcome.skipped
        report.index_seconds += seconds
        attempt.created.extend(batch.compositions if attempt.is_unanswered else outcome.created)
        attempt.unsure.extend(outcome.unsure)
        attempt.rejections.extend(outcome.rejections)
        attempt.newer_version = max(attempt.newer_version, outcome.newer_version)
        if any(decide_item(one.status, one.kind, one.reason) is Action.RETRY for one in outcome.rejections):
            self._flow.refused(begun_at=began)
        else:
            self._flow.answered(document.index_name, documents=len(batch.compositions), seconds=seconds)

    def _meet(self, error: Exception, attempt: Attempt, document: Document, began: float) -> None:
        """Handle a request that failed as a whole: send less, and check whether to go on waiting for its index.

        Raises:
            DocumentError: The index is not waited for any longer.
        """
        attempt.is_unanswered = True
        if isinstance(error, elasticsearch.ApiError | elasticsearch.ConnectionTimeout):
            self._flow.refused(begun_at=began)
        if isinstance(error, elasticsearch.ApiError):
            is_blocked = CLUSTER_BLOCK in str(error.body)
            self._patience.require_needed(document, f"{error.status_code} {error.message}", is_blocked=is_blocked)

    def settle(self, attempt: Attempt, *, follows: bool = True, failing: Failing | None = None) -> list[str]:
        """Dead-letter documents at fault and clear fixed ones; return the ids that have to be written again.

        These are documents that Elasticsearch refused for now, that have changed since they were dead-lettered, or that
        were created but are gone from Postgres. If a listing has begun since they were read, all of them are written
        again. The same applies if the database assigns lower versions than those in the index.

        Args:
            attempt: The attempt that was sent.
            follows: Whether to write those again that have changed since they were dead-lettered, or are unsure.
            failing: Documents that Elasticsearch has refused for now before.

        Raises:
            DocumentError: The definition has to be suspended.
            psycopg.Error: Nothing was recorded.
        """
        document, batch, report = attempt.batch.document, attempt.batch, attempt.report
        if document is None:
            return []
        state = self._session.composer.confirm(document.index_name)
        if attempt.newer_version and self._was_set_back(attempt.newer_version):
            self._session.close()  # the next connection enters another epoch
            return attempt.start_over()
        if state is not None and self._is_listed_since(batch, state):
            return attempt.start_over()
        unsure = self._settle_unsure(attempt, follows=follows)
        rejected = {one.composition.id for one in attempt.rejections}
        again = self._settle_rejected(document, attempt, follows=follows, failing=failing) if rejected else []
        if not attempt.refused:
            self._patience.end(document)
            self._trouble.over()
        if state is not None and state.has_dead_letters:  # including those added after these were read
            self._failed.clear(document, batch, left=rejected)
        if base_log.is_logged("document.written", "debug"):
            self._tell_written(document, attempt, not_written=rejected)
        if gone := self._gone(document, attempt.created) if attempt.created else []:
            recounted = len(set(gone) - rejected)
            report.documents -= recounted
            indexed = min(recounted, report.indexed)  # the others were skipped
            report.indexed -= indexed
            report.skipped -= recounted - indexed
        return list(dict.fromkeys([*again, *unsure, *gone]))

    def _settle_unsure(self, attempt: Attempt, *, follows: bool) -> list[str]:
        """Return the ids of documents whose stored version another client may have raised, to be written again.

        An attempt whose response was lost meets its own version, too; then its documents are written twice.
        """
        # Rule: write-again-over-what-was-not-assigned.
        if not follows:  # the version is out of reach: another client made it up
            attempt.report.skipped += len(attempt.unsure)
            return []
        attempt.changed.extend(one.id for one in attempt.unsure)
        attempt.report.documents -= len(attempt.unsure)
        return [one.id for one in attempt.unsure]

    def _settle_rejected(
        self, document: Document, attempt: Attempt, *, follows: bool, failing: Failing | None
    ) -> list[str]:
        """Dead-letter what Elasticsearch has refused for good; return the ids that have to be written again.

        Raises:
            DocumentError: As for `settle`.
        """
        hopeless = failing.hopeless() if failing else ()
        again, dead_lettered = bulk_errors.sorted_out(document, attempt.rejections, hopeless)
        attempt.refused.extend(again.values())
        if again:
            worst = attempt.refused[0]
            is_blocked = worst.kind == CLUSTER_BLOCK
            self._patience.require_needed(document, bulk_errors.said(worst), is_blocked=is_blocked)
        if dead_lettered:
            self._failed.dead_letter_refused(document, attempt.batch.version, dead_lettered)
        changed = self._failed.changed_since(document, dead_lettered) if dead_lettered and follows else []
        attempt.changed.extend(changed)
        attempt.report.dead_lettered += len(dead_lettered) - len(changed)
        attempt.report.documents -= len(again) + len(changed)
        return [*again, *changed]

    def _gone(self, document: Document, created: Sequence[Composition]) -> list[str]:
        """Return the ids of created documents that are gone from Postgres, or belong on another shard."""
        # Rule: late-creations-are-done-again.
        written = [one for one in created if one.source is not None]
        if not written:
            return []
        with at_work_for(document.name, document.revision):
            there = existing_here(self._session.connection, document, [one.id for one in written])
        return [one.id for one in written if one.place not in there]

    def _was_set_back(self, newer_version: int) -> bool:
        """Return whether the version was not assigned in this cluster identity.

        One that was assigned in it is at least as new as ours.
        """
        return failover.doubt(self._session.connection, self._index, newer_version)

    @staticmethod
    def _is_listed_since(batch: Batch, state: DocumentState) -> bool:
        """Return whether a listing has begun since the documents were read: it might not treat them as orphans.

        If not, they were written before the job reads the sequence numbers: see `syncer.jobs.listing`.
        """
        # Rule: late-writers-ask-for-listings.
        return state.listings != batch.listings and any(one.source is not None for one in batch.compositions)

    # Remaining documents

    def _too_large(self, group: _Group, attempt: Attempt) -> list[_Group]:
        """Return the documents not fetched for their size, in groups; dead-letter those too large by themselves."""
        document, sizes = attempt.batch.document, attempt.batch.too_large
        if document is None:
            return []
        hopeless = {id_: size for id_, size in sizes.items() if size > indexing_compose.DOCUMENT_BYTES_MAX}
        changed = self._failed.dead_letter_too_large(document, attempt.batch.version, hopeless) if hopeless else []
        attempt.report.dead_lettered += len(hopeless) - len(changed)
        attempt.report.documents += len(hopeless) - len(changed)
        packs: list[list[str]] = [[]]
        loaded = 0
        for id_, size in sorted(sizes.items(), key=lambda one: one[1]):
            if id_ in hopeless:
                continue
            if packs[-1] and loaded + size > self._flow.bytes_max:
                packs.append([])
                loaded = 0
            packs[-1].append(id_)
            loaded += size
        groups = [group.part(ids, bytes_each=max(sizes[id_] for id_ in ids) * 5 // 4) for ids in packs if ids]
        return groups + ([group.part(changed)] if changed else [])

    def _isolated(self, group: _Group, error: Exception, report: WriteReport) -> list[_Group]:
        """Dead-letter the documents of a group for which the SELECT raises; return the others, in groups."""

        def isolate() -> Isolated:
            with self._on_tables(group.index_name):
                return self._failed.isolate(group.index_name, group.ids)

        isolated = self._retry(isolate)
        report.dead_lettered += isolated.dead_lettered
        report.documents += isolated.dead_lettered
        fruitless = self._pause_if_fruitless(group, error) if isolated.is_fruitless else 0
        return [replace(group.part(part), fruitless=fruitless) for part in isolated.rest]

    def _pause_if_fruitless(self, group: _Group, error: Exception) -> int:
        """Pause, longer each time, since no document at fault was found; return how many times in a row that was."""
        if group.fruitless >= _FOLLOWED_MAX:  # before that, a document may just have changed
            said = f"Documents of {group.index_name} cannot be written, and none of them is at fault: {kind(error)}"
            self._trouble.met(DeadLetteringError(said, hint="Please report it.", kind=kind(error)))
        self._pause(Backoff(_attempts=group.fruitless).next_seconds())
        return group.fruitless + 1

    # Retries

    @contextmanager
    def _on_tables(self, index_name: str) -> Iterator[None]:
        """Enclose work on the connection that locks the document's tables.

        Raises:
            DocumentError: One of them has been locked for too long.
        """
        with self._session.used(), self._shared.locked.watched(self._session.connection, index_name):
            yield

    def _retry(self, action: Callable[[], _Result]) -> _Result:
        return retry(action, pause=self._pause, component=self._name, trouble=self._trouble)

    def _pause(self, seconds: float) -> None:
        """Wait before a retry.

        Raises:
            Stopping: The component has to stop.
            Abandoned: The write is no longer needed.
        """
        self._component_pause(seconds)
        if not self._is_needed():
            raise Abandoned

    def _is_outdated(self, index_name: str, error: DocumentError) -> bool:
        """Return whether the error concerns a revision that is no longer active."""
        with self._session.used():
            state = registry.state(self._session.connection, index_name)
        return state is None or state.revision != error.revision

    def _tell_written(self, document: Document, attempt: Attempt, *, not_written: Collection[str]) -> None:
        log = structlog.get_logger()
        for one in attempt.batch.compositions:
            if one.id not in not_written:
                log.debug(
                    "document.written",
                    component=self._name,
                    index=document.index_name,
                    id=one.id,
                    version=one.version,
                    is_delete=one.source is None,
                    **attempt.origin,
                )
