"""Writer: brings documents up to date in Elasticsearch, by the version rule.

All code that writes documents does it here, on a connection of its own, in three steps:

    build    assign a version with a snapshot, serialised; read all documents in it        `syncer.indexing.compose`
    send     write them whole with that version; delete those that are gone                `syncer.elasticsearch.bulk`
    settle   check that nothing has overtaken the write; record what was refused

Each step is one round trip for one slice of the ids. A failed step is retried until it succeeds: the documents are
built again, with a new version. If the SELECT raises, the slice is halved until the document at fault is alone.

Guarantees:

- A document that is removed meanwhile is not brought back: a write that was overtaken by its removal is done again.
- A document becomes a dead letter if it was refused alone, and again once others were taken, which the index has taken
  before. If it refuses them too, its definition is suspended; the refused are tried before it resumes.
- A document counts as written only once the session on which it was read has outlived the write.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypedDict, TypeVar, Unpack

import elasticsearch
import msgspec
import psycopg
import structlog

from syncer.base.error_policy import (
    ITEM_FAILED,
    NO_ROOM,
    OF_DOCUMENT,
    Action,
    at_work_for,
    decide_item,
    explain_refusal,
    explain_refusals,
    explain_select,
    failure_of,
    is_of_data,
    is_of_some_rows,
)
from syncer.base.errors import DocumentError, OvertakenError, SuspendedError, UnavailableError
from syncer.base.log import Repeated
from syncer.base.model import OUTCOMES, Composition, Target, WriteReport, is_id
from syncer.base.postgres import Connection, Link, snapshot
from syncer.base.retry import retry
from syncer.documents import registry, suspend
from syncer.documents.queries import current as current_rows, existing, isolated, some_ids
from syncer.documents.registry import Document
from syncer.documents.snapshot import COMPONENT_LOCK_SECONDS
from syncer.elasticsearch.bulk import INVALID_ID, TOO_LARGE, BulkOutcome, Index, Rejection
from syncer.indexing import compose, dead_letters, failover
from syncer.indexing.compose import Batch, Composer
from syncer.indexing.dead_letters import Failure
from syncer.indexing.flow_control import BUILD_SECONDS_MAX, FlowControl

_REWRITES_MAX = 3
"""How many times in a row documents that change meanwhile are written again; their changes cover the rest."""
_FAILING_MAX = 100
"""After so many documents in a row for which the SELECT fails, others are tried: it may fail for all of them."""
_OTHERS = 20
_FAILED_ATTEMPTS_MAX = 5
"""How often a document is sent for which Elasticsearch fails (500), before it becomes a dead letter."""
_SUSPECTS_MAX = 8
"""How many documents are refused alone, and none is taken, before the index is at fault without a witness."""
_WITNESSES, _SAMPLE = 8, 100
"""How many witnesses there are, and of how many documents they are chosen."""
_TAKEN = ("indexed", "skipped")

_Result = TypeVar("_Result")


class Options(TypedDict, total=False):
    """How documents are written."""

    everywhere: bool  # also remove stray copies from all other shards, as with a `_routing`
    unmoved: frozenset[str]  # ids that none of the changes at hand has moved: they are written to their own shard only
    compares: bool  # documents that the index has as they were built are not written
    origin: Mapping[str, int]  # is logged with each document
    resumes: bool  # write although the definition is suspended, to find out whether it may be resumed
    retries: bool  # write dead letters: those that fail again stay as they are


@dataclass(slots=True, kw_only=True)
class Slice:
    """Documents of one index that are built together, and what became of them so far.

    The last fields are shared by the slices of a write: by id, what became of a document in the end, and what was
    refused alone: it or the index may be at fault. Witnesses were taken after that.
    """

    index_name: str
    ids: list[str]
    everywhere: bool = False
    unmoved: frozenset[str] = frozenset()
    compares: bool = False
    origin: Mapping[str, int] = field(default_factory=dict)
    resumes: bool = False
    retries: bool = False
    attempts: int = 0  # how many have failed in a row
    rewrites: int = 0  # how many times in a row some of them had to be written again
    is_unanswered: bool = False  # a request got no answer: it is unknown what it created
    is_judged: bool = False  # they were refused alone before, and others were taken since
    is_witness: bool = False  # they are those others
    batch: Batch = field(default_factory=lambda: Batch(compositions=()))
    outcome: BulkOutcome = field(default_factory=BulkOutcome)
    results: dict[str, str] = field(default_factory=dict)
    report: WriteReport = field(default_factory=WriteReport)
    suspects: dict[str, Rejection] = field(default_factory=dict)
    witnesses: list[str] = field(default_factory=list)

    def cut(self, size: int) -> list[Slice]:
        """Return its documents in slices of at most this size, the first one last."""
        starts = reversed(range(0, len(self.ids), max(1, size)))
        return [replace(self, ids=self.ids[start : start + size], attempts=0) for start in starts]

    def halves(self) -> list[Slice]:
        """Return its documents in two slices, or in one if there is only one."""
        return self.cut((len(self.ids) + 1) // 2)


class Writer:
    """Writes documents by the version rule, on a connection of its own. Not safe to share between threads.

    ``pause`` waits before a retry; it may raise `Stopping`. ``flow`` is shared with the component's other writers.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        index: Index,
        pause: Callable[[float], None],
        name: str,
        flow: FlowControl,
    ) -> None:
        self._connect = connect
        self._index = index
        self._pause = pause
        self._name = name
        self._flow = flow
        self._dead_lettered = Repeated()
        self._failing: Counter[str] = Counter()
        """By index, for how many documents in a row the SELECT has failed."""
        self._link = Link(self._opened)
        self._composer: Composer
        """Builds documents on the current connection, and is made with it."""
        self._usable: set[str] = set()
        """The indices that were found usable since the connection was opened."""

    def write(self, index_name: str, ids: Sequence[str], **options: Unpack[Options]) -> WriteReport:
        """Bring documents up to date in one index; return when each is written, skipped or dead-lettered.

        Raises:
            Stopping: The writer was told to stop. It is safe to repeat.
            OvertakenError: Another database of this installation is in use.
            DocumentError: The definition is suspended by now. What was written before is valid.
            IndexingError: It ``resumes``, and the index takes no documents, or the SELECT fails for all of them.
            Exception: An error that the policy classifies as FATAL.
        """
        whole = Slice(index_name=index_name, ids=list(dict.fromkeys(ids)), **options)
        whole.is_judged = whole.retries
        if whole.resumes:
            self._retry(partial(self._restore_alias, index_name))
        self._write(whole)
        counts, report = Counter(whole.results.values()), whole.report
        if whole.resumes:
            if counts["dead_lettered"] == counts.total() > 1 and not whole.witnesses:
                raise UnavailableError(f"{index_name} takes no documents")
            self._retry(partial(self._restore_alias, index_name))
            self._index.holdings.count(Target.of_index(index_name))  # every shard answers
        for outcome in OUTCOMES:
            setattr(report, outcome, counts[outcome])
        return report

    def _write(self, whole: Slice) -> None:
        """Write the documents of a slice, in slices as large as they may be now."""
        slices = [whole]
        while slices:
            current = slices.pop()
            if len(current.ids) > (size := self._flow.documents(whole.index_name)):
                slices += current.cut(size)
                continue
            if whole.results:
                self._pause(0)  # a component that is told to stop leaves the rest to the next process
            try:
                slices += self._retry(partial(self._attempt, current))
                # What was overtaken is written first: if the definition is suspended, no fan-out finds it.
                if whole.suspects and not whole.is_witness and not (slices and slices[-1].rewrites):
                    slices += self._retry(partial(self._judge, whole, is_last=not slices))
            except DocumentError as error:
                error.is_stale |= self._retry(partial(self._may_leave_orphans, current))
                if self._retry(partial(self._suspend, error)) or whole.resumes or isinstance(error, SuspendedError):
                    raise
                slices.append(current)  # another revision is active by now, or another writer has suspended it

    def _restore_alias(self, index_name: str) -> None:
        """Fence an index that had a block when the epoch was entered, and check that it is usable."""
        with self._link.used() as connection:
            if document := registry.active(connection, index_name):
                self._require_in_use()
                self._index.fence([index_name], registry.epoch(connection))
                self._require_usable(document)

    def close(self) -> None:
        """Close the connection; the next write opens another one."""
        self._link.close()

    def _opened(self) -> Connection:
        """Open a connection in the epoch in use, before a version is assigned on it."""
        connection = self._connect()
        connection.prepare_threshold = None  # as the composer needs it, from the start
        failover.enter(connection, self._index)
        self._composer = Composer(connection)
        self._usable.clear()
        return connection

    def _suspend(self, error: DocumentError) -> bool:
        """Suspend a definition, before other work continues without it; return whether it was not, and is active."""
        with self._link.used() as connection:
            return suspend.suspend(connection, error)

    # One attempt: build, send, settle

    def _attempt(self, current: Slice) -> list[Slice]:
        """Build, send and settle once, without a retry; return what remains to be written."""
        # Rules: what-is-done-again-deletes-elsewhere, what-is-done-again-is-not-compared. A former attempt may have
        # created a copy, or its request may arrive yet.
        if current.attempts or current.rewrites:
            current.unmoved, current.compares = frozenset(), False
        current.attempts += 1
        try:
            with self._link.used():
                self.build(current)
                self.send(current)
                again = self.settle(current)
        except psycopg.errors.LockNotAvailable:
            if current.attempts >= suspend.LOCKED_ATTEMPTS_MAX:
                with self._link.used() as connection:
                    if document := registry.active(connection, current.index_name):
                        suspend.require_unlocked(connection, document)
            raise
        except psycopg.Error as error:
            # What else runs now may have taken the memory.
            may_pass = isinstance(error, psycopg.errors.OutOfMemory) and current.attempts < _FAILED_ATTEMPTS_MAX
            if not is_of_some_rows(error) or (may_pass and len(current.ids) == 1):
                raise
            return current.halves() if len(current.ids) > 1 else self._dead_letter_unbuilt(current, error)
        too_large = list(current.batch.too_large.keys() - current.results.keys() - set(again))
        rewritten = [replace(current, ids=again, attempts=0, rewrites=current.rewrites + 1)] if again else []
        untried = [] if current.is_witness else [id_ for id_ in _ids(current.outcome.untried) if id_ not in again]
        return [*replace(current, ids=[*untried, *too_large]).halves(), *rewritten]

    def build(self, current: Slice) -> None:
        """Build the documents of a slice, as `Composer.compose` does. Send the result at once, then settle it."""
        began = time.monotonic()
        number = len(current.ids)
        # Documents that are larger than others share the memory with them are not fetched beside them.
        bytes_max = compose.DOCUMENT_BYTES_MAX if number <= 1 else 2 * self._flow.bytes_max // number
        batch = self._composer.compose(
            current.index_name, current.ids, everywhere=current.everywhere, bytes_max=bytes_max, resumes=current.resumes
        )
        if unmoved := current.unmoved:
            compositions = [built._replace(is_unmoved=built.id in unmoved) for built in batch.compositions]
            batch = replace(batch, compositions=tuple(compositions))
        current.batch = batch
        seconds = time.monotonic() - began
        if number:
            del self._failing[current.index_name]
        current.report.compose_seconds += seconds
        if seconds > BUILD_SECONDS_MAX or 2 * len(current.batch.too_large) > number > 1:
            self._flow.halve(current.index_name, number)

    def send(self, current: Slice) -> None:
        """Send the built documents; a `DocumentError` if their definition has to be suspended."""
        document, compositions = current.batch.document, current.batch.compositions
        current.outcome = BulkOutcome()
        if document is None or not compositions:
            return
        if current.resumes or document.index_name not in self._usable:
            # A restore or an operator may have put another index into the write alias, or taken ours out.
            self._require_usable(document)
            self._usable.add(document.index_name)
        began = time.monotonic()
        try:
            with at_work_for(document.name, document.revision):
                equal = self._equal(document, compositions) if current.compares else {}
                different = [composition for composition in compositions if composition.id not in equal]
                current.outcome = self._index.write(document.target, different)
                current.outcome.done |= equal
        except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
            current.is_unanswered = True
            if isinstance(error, elasticsearch.ApiError | elasticsearch.ConnectionTimeout):
                self._flow.halve(document.index_name, len(compositions))
            raise
        current.report.index_seconds += time.monotonic() - began
        if current.outcome.has_met_pipeline:
            self._require_usable(document)  # it names the pipeline
            problem = f"An ingest pipeline may have changed documents of {document.name}, and is not set any more"
            hint = "It resumes by itself in a few seconds, and refreshes all documents."
            raise DocumentError(problem, hint=hint, document=document.name, revision=document.revision)
        if any(rejection.status == NO_ROOM for rejection in current.outcome.rejections):
            self._flow.halve(document.index_name, len(compositions))
        else:
            self._flow.restore(document.index_name)
        if current.is_unanswered:
            current.outcome.created = list(compositions)
            current.is_unanswered = False

    def _equal(self, document: Document, compositions: Sequence[Composition]) -> dict[str, str]:
        """Return, as skipped, the documents that the index has as they were built: to read them costs less."""
        if document.dependencies.has_routing:  # copies may lie on other shards
            return {}
        held = self._index.holdings.sources(document.target, list(filter(is_id, _ids(compositions))))
        return {
            built.id: "skipped"
            for built in compositions
            if built.source and built.id in held and _is_same(built.source, held[built.id])
        }

    def settle(self, current: Slice) -> list[str]:
        """Record what became of the documents that were sent; return the ids that have to be written again.

        If Elasticsearch has refused some for now, an `UnavailableError` is raised, and the slice has what is left.
        """
        batch, outcome, results = current.batch, current.outcome, current.results
        document = batch.document
        if document is None:
            return []
        connection = self._link.connection
        # If the connection on which the documents were read breaks, a crash may have taken back what they show: they
        # are built again.
        state = self._composer.state_of(document.index_name)
        # After a TRUNCATE, or for a new definition, a job lists all documents, and removes others that were indexed
        # before. A listing that has begun since these were read may not treat them as orphans. If none has, they were
        # written before the job reads the sequence numbers: see `syncer.jobs.listing`.
        # Rule: late-writers-ask-for-listings.
        has_source = any(composition.source for composition in batch.compositions)
        if has_source and state is not None and state.listings != batch.listings:
            return _ids(batch.compositions)
        refused, failed = self._tell_apart(current, document)
        changed = self._dead_letter(current, document, failed) if failed else []
        # Rule: write-again-over-what-was-not-assigned. After some times the version is out of reach: it was made up.
        unsure = _ids(outcome.unsure)
        again = [*changed, *unsure] if current.rewrites < _REWRITES_MAX else []
        outcome.created = self._removed(document, outcome.created)
        again += _ids(outcome.created)
        results.update(outcome.done | dict.fromkeys(unsure, "skipped") | dict.fromkeys(failed, "dead_lettered"))
        if state is not None and state.has_dead_letters:  # including those added after these were read
            # Rule: what-has-failed-deletes-elsewhere. Nothing may have been sent for a change that has moved it.
            unmoved = [id_ for id_ in outcome.done if id_ in current.unmoved]
            failed_before = dead_letters.find(connection, document.index_name, unmoved) if unmoved else {}
            again += failed_before
            written = [id_ for id_ in outcome.done if id_ not in failed_before]
            dead_letters.clear(connection, document.index_name, written, batch.version)
        log = structlog.get_logger().bind(component=self._name, index=document.index_name, **current.origin)
        for composition in batch.compositions if log.is_enabled_for(logging.DEBUG) else ():
            if (id_ := composition.id) in outcome.done:
                log.debug("document.written", id=id_, version=composition.version, is_delete=not composition.source)
        for id_ in (*again, *refused):
            results.pop(id_, None)
        if refused:
            too_large = batch.too_large.keys() - failed.keys() - set(again)
            current.ids = [*again, *refused, *_ids(outcome.untried), *too_large]
            refusal = next(f"{rejection.status} {rejection.kind}" for rejection in refused.values())
            problem = f"{len(refused)} documents of {document.index_name} are refused for now: {refusal}"
            raise UnavailableError(problem, kind=refusal)  # without the reason, which may quote a value
        return again

    def _tell_apart(self, current: Slice, document: Document) -> tuple[dict[str, Rejection], dict[str, Failure]]:
        """Return what Elasticsearch refuses for now, and the documents at fault, by id; note those that may be."""
        refused: dict[str, Rejection] = {}
        sizes = {id_: size for id_, size in current.batch.too_large.items() if size > compose.DOCUMENT_BYTES_MAX}
        too_large = "{} bytes, of " + f"{compose.DOCUMENT_BYTES_MAX} that it may have"
        failed = {id_: Failure(kind="document_too_large", error=too_large.format(size)) for id_, size in sizes.items()}
        for rejection in current.outcome.rejections:
            action = decide_item(rejection.status, rejection.kind, rejection.reason)
            if action is Action.SUSPEND:
                self._require_usable(document)  # it knows more than a refusal says
                refusal = explain_refusal(document.name, f"{rejection.kind}: {rejection.reason}")
                raise DocumentError.of(refusal, document.name, document.revision, ids=[rejection.composition.id])
            may_retry = current.attempts < _FAILED_ATTEMPTS_MAX and not current.is_judged
            if action is Action.RETRY and (rejection.status != ITEM_FAILED or may_retry):
                refused[rejection.composition.id] = rejection
            elif not current.is_judged and rejection.kind not in {TOO_LARGE, INVALID_ID}:
                current.suspects[rejection.composition.id] = rejection
            else:
                error = f"{rejection.kind}: {rejection.reason}"
                failed[rejection.composition.id] = Failure(kind=rejection.kind, error=error)
        return {id_: refused[id_] for id_ in refused.keys() - failed.keys() - current.suspects.keys()}, failed

    def _judge(self, whole: Slice, *, is_last: bool) -> list[Slice]:
        """Return the suspects, each to be sent alone once more, if others are taken; none if that is not known yet."""
        suspects = dict(whole.suspects)
        with self._link.used() as connection:  # the last slice may have none, as when its SELECT failed
            document = registry.active(connection, whole.index_name)
        if document is None:
            whole.suspects.clear()
            return []
        self._require_usable(document)
        kinds = {suspect.kind for suspect in suspects.values()}
        is_of_data = kinds <= OF_DOCUMENT
        ids = self._witnesses(whole, document)
        witness = Slice(index_name=whole.index_name, ids=ids, resumes=whole.resumes, is_witness=True)
        self._write(witness)
        is_taken = any(result in _TAKEN for result in witness.results.values())
        is_refused = any(suspect.kind in kinds for suspect in witness.suspects.values())
        if not is_taken and not is_refused and not is_last and len(suspects) < _SUSPECTS_MAX:
            return []
        whole.suspects.clear()
        # A mass update may spoil some of the witnesses, too. A model may concern some documents only.
        if (is_refused and not is_of_data) or (
            not is_taken and (is_refused or not is_of_data or len(suspects) >= _SUSPECTS_MAX)
        ):
            suspect = next(iter(suspects.values()))
            refusal = explain_refusals(document.name, f"{suspect.kind}: {suspect.reason}")
            raise DocumentError.of(refusal, document.name, document.revision, ids=list(suspects)[:_SUSPECTS_MAX])
        whole.witnesses += [id_ for id_, result in witness.results.items() if result in _TAKEN]
        anew = replace(whole, attempts=0, unmoved=frozenset(), compares=False, is_judged=True)
        return [replace(anew, ids=[id_]) for id_ in suspects]

    def _witnesses(self, whole: Slice, document: Document) -> list[str]:
        """Return documents that the index has taken: of this write and at random, those most like the first suspect."""
        taken = [id_ for id_, result in whole.results.items() if result in _TAKEN]
        with self._link.used() as connection, at_work_for(document.name, document.revision, isolates=True):
            sampled = self._index.holdings.sample(document.target, but=whole.ids, number=_SAMPLE)
            ids = list(dict.fromkeys([*taken[-_SAMPLE:], *sampled]))
            dead = dead_letters.find(connection, document.index_name, ids)
            ids = [id_ for id_ in ids if id_ not in dead]
            try:
                bytes_max = self._flow.bytes_max // _SAMPLE
                batch = self._composer.compose(whole.index_name, ids, bytes_max=bytes_max, resumes=whole.resumes)
            except psycopg.Error as error:
                if not is_of_some_rows(error):
                    raise
                return ids[:_WITNESSES]
        # A model may concern those only that have a field.
        fields = _fields(next(iter(whole.suspects.values())).composition)
        documents = [composition for composition in batch.compositions if composition.source is not None]
        return _ids(sorted(documents, key=lambda document: len(fields - _fields(document)))[:_WITNESSES])

    def _require_usable(self, document: Document) -> None:
        """Raise a `DocumentError` if the index, and not its documents, may be the reason for what is refused."""
        self._require_in_use()
        with at_work_for(document.name, document.revision):
            has_routing = document.dependencies.has_routing
            self._index.holdings.require_usable(document.target, has_routing=has_routing)

    def _require_in_use(self) -> None:
        """Close the connection if a later epoch is recorded: the daemon of another database has fenced the indices."""
        try:
            failover.require_in_use(self._link.connection, self._index)
        except OvertakenError:
            self._link.close()
            raise

    def _removed(self, document: Document, created: Sequence[Composition]) -> list[Composition]:
        """Return those created documents that are gone from Postgres, or belong on another shard."""
        # Elasticsearch forgets the version of a deleted document: after index.gc_deletes, and at once when its index is
        # closed and opened or the shard moves. A delayed write then creates it again, however old its version is. A
        # later removal has a change of its own. If this writer dies, another one gets its changes or its chunk.
        # Rule: late-creations-are-done-again.
        created = [composition for composition in created if composition.source is not None]
        if not created:
            return []
        try:
            with at_work_for(document.name, document.revision, isolates=True):
                places = existing(self._link.connection, document, _ids(created))
        except psycopg.Error as error:
            if not is_of_data(error):  # what takes too much is done again in halves
                raise
            return created  # it fails on a row of theirs or on another one: building them again tells
        return [composition for composition in created if composition.place not in places]

    def _may_leave_orphans(self, current: Slice) -> bool:
        """Return whether a slice that is given up may have written what no fan-out finds: a document that is gone."""
        document, outcome = current.batch.document, current.outcome
        if outcome.has_met_pipeline:  # it may have given documents another id
            return True
        created = current.batch.compositions if current.is_unanswered else outcome.created
        try:
            with self._link.used():
                return document is not None and bool(self._removed(document, created))
        except (DocumentError, psycopg.errors.LockNotAvailable):
            return bool(created)

    def _dead_letter(self, current: Slice, document: Document, failed: Mapping[str, Failure]) -> list[str]:
        """Record dead letters; return the ids of those that are no longer the documents that failed."""
        self._record(current, document, failed)
        # Another writer may have written them meanwhile, and looked for dead letters before these were recorded. A
        # writer of a later change finds these.
        try:
            rebuilt = self._composer.compose(document.index_name, list(failed), resumes=current.resumes)
        except psycopg.Error as error:
            if not is_of_data(error):  # as above
                raise
            return list(failed)
        sent = {(composition.id, composition.source, composition.routing) for composition in current.batch.compositions}
        return [later.id for later in rebuilt.compositions if (later.id, later.source, later.routing) not in sent]

    def _record(self, current: Slice, document: Document, failed: Mapping[str, Failure]) -> None:
        # Not again for a retry, which no change has caused: a client that waits for another change would be told of it.
        if current.retries:
            return
        dead_letters.dead_letter(self._link.connection, document.index_name, current.batch.version, failed)
        for id_, failure in failed.items():
            # With the kind of error only: a server's message quotes values.
            if number := self._dead_lettered.count((document.index_name, failure.kind)):
                group = {"index": document.index_name, "kind": failure.kind, "documents": number}
                structlog.get_logger().error("document.dead_lettered", **group, sample_id=id_)

    def _dead_letter_unbuilt(self, current: Slice, error: psycopg.Error) -> list[Slice]:
        """Dead-letter the only document of a slice, for which the SELECT raises; return it to be tried once more."""
        with self._link.used():
            # If the SELECT raises for no id, too, the definition is suspended.
            batch = self._composer.compose(current.index_name, [], resumes=current.resumes)
            ids = [id_ for id_ in current.ids if current.results.get(id_) != "dead_lettered"]
            if batch.document is None or not ids:
                return []
            letter = Failure(kind=type(error).__name__, error=f"the SELECT {failure_of(error)}")
            # Rule: what-has-failed-is-tried-again.
            self._record(replace(current, batch=batch), batch.document, dict.fromkeys(ids, letter))
            self._failing[current.index_name] += 1
            if self._failing[current.index_name] >= _FAILING_MAX:
                self._require_others(batch.document, error)
        current.results.update(dict.fromkeys(ids, "dead_lettered"))
        return [replace(current, attempts=0)]

    def _require_others(self, document: Document, error: psycopg.Error) -> None:
        """Suspend the definition if its SELECT fails for other documents, too, as on a row that all of them show."""
        self._failing[document.index_name] = -10 * _FAILING_MAX  # to choose others may take as long as to read all ids
        connection, ids = self._link.connection, list[str]()
        try:
            with (
                at_work_for(document.name, document.revision, isolates=True),
                snapshot(connection, statement_seconds=1),
            ):
                ids = some_ids(connection, document, _OTHERS)
        except psycopg.Error as cause:
            if not is_of_some_rows(cause):
                raise
            return  # it fails on a row that may be of none of these
        seconds = compose.STATEMENT_SECONDS_MAX
        read = partial(current_rows, connection, document, seconds=seconds, lock_seconds=COMPONENT_LOCK_SECONDS)
        _, failing = isolated(read, ids)
        if 1 < len(failing) == len(ids):
            refusal = explain_select(error, document.name)
            raise DocumentError.of(refusal, document.name, document.revision, ids=ids) from error

    def _retry(self, action: Callable[[], _Result]) -> _Result:
        # A component whose database is not in use lets go of what is in hand: a partition may be another daemon's.
        return retry(action, pause=self._pause, component=self._name, but=(OvertakenError,))


def _is_same(built: bytes, held: bytes) -> bool:
    """Whether two documents differ in nothing but spaces: with a semantic_text, Elasticsearch prints each anew."""
    with suppress(msgspec.DecodeError, RecursionError):
        return built == held or msgspec.json.format(built, indent=-1) == msgspec.json.format(held, indent=-1)
    return False


def _ids(compositions: Sequence[Composition]) -> list[str]:
    return [composition.id for composition in compositions]


def _fields(composition: Composition) -> set[str]:
    """Return the names of the fields that a document has."""
    try:
        source = msgspec.json.decode(composition.source or b"{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return set()
    return {name for name, content in source.items() if bytes(content) != b"null"}
