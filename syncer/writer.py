"""Writer: the version rule, whole. Everything that writes a document does it here.

To write documents: draw one version; read all of them in one snapshot that starts after the draw; write them
whole with that version, and delete with it what the snapshot does not have. `syncer.compose` keeps the first half,
`syncer.index` the last. Here they are put together, with what happens when something fails: a document at fault
is parked and its siblings go on; anything that is tried again is composed again, with a new draw.

A change that removes documents is not always one that names them: after a TRUNCATE, or a new definition, a job lists
all documents that there are, and removes copies of others that were there before it was listed. A writer who has read
such a document before, and writes it only after, would leave it there for good. So whoever has written asks whether
somebody has begun to list since he read; then he does it all again.

A batch whose draw is too old is composed again instead of being written, since Elasticsearch forgets the version
of a deleted document after ``index.gc_deletes``.

Whoever writes an index that is being built, or on standby, writes the one that serves too. So an index that no search
needs is not waited for as long as it takes: it halts, and the other goes on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial

import elasticsearch
import structlog

from syncer import store, telemetry, version
from syncer.compose import Batch, Composer, clock
from syncer.errors import DocumentError
from syncer.index import Index, Rejection
from syncer.indices import GC_DELETES_SECONDS
from syncer.lifecycle import persist
from syncer.model import Role
from syncer.policy import Action, Backoff, at_work_for, decide, decide_item, explain_refusal
from syncer.postgres import Connection
from syncer.store import Document

DRAW_AGE_SECONDS_MAX = GC_DELETES_SECONDS / 4
PATIENCE_SECONDS = 60.0
"""How long an index that no search needs may be unwell before it halts, while the one that serves is well."""

_BLOCKED = "cluster_block_exception"


@dataclass(slots=True)
class WriteReport:
    """What became of documents that were to be written.

    Args:
        documents: How many were composed.
        indexed: Written.
        deleted: Deleted, or known to be absent.
        superseded: Not written since something at least as new was there.
        parked: Left as dead letters.
        compose_seconds: Spent in Postgres.
        index_seconds: Spent in Elasticsearch.
    """

    documents: int = 0
    indexed: int = 0
    deleted: int = 0
    superseded: int = 0
    parked: int = 0
    compose_seconds: float = 0.0
    index_seconds: float = 0.0

    def add(self, other: WriteReport) -> None:
        """Count another report in."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to write some documents: composed, then sent, then settled.

    Args:
        batch: What was composed.
        report: What has become of it so far.
        rejections: What Elasticsearch did not write.
    """

    batch: Batch
    report: WriteReport = field(default_factory=WriteReport)
    rejections: list[Rejection] = field(default_factory=list)


class Writer:
    """Writes documents by the version rule, on a connection of its own.

    Not for sharing between threads, but for `send`: so a caller may compose one batch while others are being sent.

    Args:
        connect: Opens a connection to Postgres.
        index: Elasticsearch.
        pause: How to wait before trying again; may raise `Stopping`.
        name: The stage that writes, for the log.
    """

    def __init__(
        self, *, connect: Callable[[], Connection], index: Index, pause: Callable[[float], None], name: str
    ) -> None:
        self._connect = connect
        self._index = index
        self._pause = pause
        self._name = name
        self._connection: Connection | None = None
        self._composer: Composer | None = None
        self._unwell_since: dict[str, float] = {}
        self._log = structlog.get_logger()

    def write(self, index_name: str, ids: Sequence[str], *, everywhere: bool = False) -> WriteReport:
        """Bring documents up to date in one index; return when each is written, superseded or parked.

        Args:
            index_name: Which, of those in force.
            ids: Which.
            everywhere: Remove copies from all other shards too, where none should be.

        Raises:
            Stopping: It was told to stop first; doing it again is harmless.
            DocumentError: The document is to halt. What was written of it before is right.
            Exception: What the policy says to HALT for.
        """
        report = WriteReport()
        groups = [list(ids)]
        backoff = Backoff()
        while groups:
            group = groups.pop()
            try:
                attempt = partial(self._attempt, index_name, group, everywhere=everywhere)
                done, again = persist(attempt, pause=self._pause, stage=self._name)
            except DocumentError as error:
                outdated = partial(self._is_outdated, index_name, error)
                if not persist(outdated, pause=self._pause, stage=self._name):
                    raise
                groups.append(group)
                continue
            except Exception as error:
                if decide(error) is not Action.PARK:
                    raise
                groups += self._isolate(index_name, group, error, report)
                continue
            report.add(done)
            if again:
                self._pause(backoff.next_seconds())
                groups.append(again)
        return report

    def close(self) -> None:
        """Let go of the connection; the next write opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._composer = None

    def compose(self, index_name: str, ids: Sequence[str], *, everywhere: bool = False) -> Attempt:
        """Draw and read, as `Composer.compose`; what it returns is to be sent at once, and then settled.

        Raises:
            DocumentError: The document is to halt.
            Exception: As `write` would meet it: nothing is tried again.
        """
        began = time.monotonic()
        batch = self._opened().compose(index_name, ids, everywhere=everywhere)
        while clock() - batch.drawn_at > DRAW_AGE_SECONDS_MAX:
            batch = self._opened().compose(index_name, ids, everywhere=everywhere)
        report = WriteReport(documents=len(batch.compositions), compose_seconds=time.monotonic() - began)
        return Attempt(batch=batch, report=report)

    def send(self, attempt: Attempt) -> None:
        """Write what was composed; safe to call from several threads, for different attempts.

        Raises:
            DocumentError: The document is to halt.
            Exception: As `write` would meet it: nothing is tried again.
        """
        document, report = attempt.batch.document, attempt.report
        if document is None:
            return
        began = time.monotonic()
        try:
            with at_work_for(document.name, document.generation):
                outcome = self._index.write(document.target, attempt.batch.compositions)
        except elasticsearch.ApiError as error:
            self._require_needed(document, f"{error.status_code} {error.message}", is_blocked=_BLOCKED in str(error))
            raise
        report.indexed += outcome.indexed
        report.deleted += outcome.deleted
        report.superseded += outcome.superseded
        report.index_seconds += time.monotonic() - began
        attempt.rejections.extend(outcome.rejections)

    def settle(self, attempt: Attempt) -> list[str]:
        """Park what is at fault and clear what is mended; returns the ids that are to be tried again.

        Those that Elasticsearch asks to; and all of them, if all documents were listed since these were read.

        Raises:
            DocumentError: The document is to halt.
            psycopg.Error: Nothing of that is recorded.
        """
        document, batch = attempt.batch.document, attempt.batch
        if document is None:
            return []
        if self._is_late(batch, document):
            attempt.report.documents = attempt.report.indexed = attempt.report.deleted = attempt.report.superseded = 0
            return [one.id for one in batch.compositions]
        again, parked = _sorted_out(document, attempt.rejections)
        if again:
            worst = next(iter(again.values()))
            self._require_needed(document, f"{worst.kind}: {worst.reason}", is_blocked=worst.kind == _BLOCKED)
        else:
            self._unwell_since.pop(document.index_name, None)
        self._park(document, batch.version, parked)
        attempt.report.parked += len(parked)
        attempt.report.documents -= len(again)
        if batch.has_dead_letters:
            written = [one.id for one in batch.compositions if one.id not in parked and one.id not in again]
            store.clear_dead_letters(self._connected(), document.index_name, written, batch.version)
        return list(again)

    def _is_late(self, batch: Batch, document: Document) -> bool:
        """Whether a job has begun to list since these were read: not knowing of them, it may not know them for strays.

        If not, what was written was written before the job asks for sequence numbers: see `syncer.listing`.
        """
        if all(one.source is None for one in batch.compositions):
            return False
        state = store.state(self._connected(), document.index_name)
        return state is not None and state.listings != batch.listings

    def _require_needed(self, document: Document, reason: str, *, is_blocked: bool) -> None:
        """Go on trying only as long as it may be worth it.

        Raises:
            DocumentError: No search needs the index, and it is unwell for too long, or takes nothing.
        """
        if document.role is Role.SERVING:
            return
        now = time.monotonic()
        since = self._unwell_since.setdefault(document.index_name, now)
        is_over = now - since > PATIENCE_SECONDS and self._index.holdings.is_well(document.index)
        if is_over or is_blocked:
            raise _unwell(document, reason)

    def _attempt(self, index_name: str, ids: list[str], *, everywhere: bool) -> tuple[WriteReport, list[str]]:
        """Compose and write once; with the ids that Elasticsearch asks to try again."""
        try:
            attempt = self.compose(index_name, ids, everywhere=everywhere)
            self.send(attempt)
            return attempt.report, self.settle(attempt)
        except Exception as error:
            if decide(error) is Action.RETRY:
                self.close()
            raise

    def _is_outdated(self, index_name: str, error: DocumentError) -> bool:
        """Whether it was a generation that is no longer in force that could not go on."""
        try:
            state = store.state(self._connected(), index_name)
        except Exception as failure:
            if decide(failure) is Action.RETRY:
                self.close()
            raise
        return state is None or state.generation != error.generation

    def _opened(self) -> Composer:
        if self._connection is None or self._composer is None:
            self._connection = self._connect()
            # Before the first draw: whose life this is, and past whatever a crash may hand out again.
            incarnation = version.enter_incarnation(self._connection, self._index)
            version.skip_unflushed(self._connection)
            if incarnation.has_changed:
                self._log.warning(telemetry.INCARNATION_ENTERED, epoch=incarnation.epoch)
            self._composer = Composer(self._connection)
        return self._composer

    def _connected(self) -> Connection:
        self._opened()
        assert self._connection is not None  # noqa: S101 - it has just been opened
        return self._connection

    def _park(self, document: Document, version_: int, parked: Mapping[str, Rejection]) -> None:
        for id_, rejection in parked.items():
            said = f"{rejection.kind}: {rejection.reason}"
            store.park(self._connected(), document.index_name, id_, version_, said)
        for kind, number in Counter(rejection.kind for rejection in parked.values()).items():
            sample = next(id_ for id_, rejection in parked.items() if rejection.kind == kind)
            self._tell_parked(document.index_name, kind, number, sample)

    def _isolate(self, index_name: str, ids: list[str], error: Exception, report: WriteReport) -> list[list[str]]:
        """Halve a group whose SELECT fails, until the document at fault is alone; that one is parked."""
        if len(ids) > 1:
            middle = len(ids) // 2
            return [ids[:middle], ids[middle:]]
        connection = self._connected()
        store.park(connection, index_name, ids[0], version.draw(connection), str(error).strip())
        self._tell_parked(index_name, type(error).__name__, 1, ids[0])
        report.parked += 1
        return []

    def _tell_parked(self, index_name: str, kind: str, number: int, sample: str) -> None:
        """Log the kind of error only: a server's sentence quotes values."""
        self._log.error(telemetry.DOCUMENT_PARKED, index=index_name, kind=kind, documents=number, sample_id=sample)


def _sorted_out(
    document: Document, rejections: Iterable[Rejection]
) -> tuple[dict[str, Rejection], dict[str, Rejection]]:
    """What is to be tried again, and what is to be parked.

    Raises:
        DocumentError: The index takes no documents.
    """
    again: dict[str, Rejection] = {}
    parked: dict[str, Rejection] = {}
    for rejection in rejections:
        match decide_item(rejection.status, rejection.kind):
            case Action.RETRY:
                again[rejection.composition.id] = rejection
            case Action.PARK:
                parked[rejection.composition.id] = rejection
            case Action.HALT_DOCUMENT:
                raise _refused(document, rejection)
    return again, parked


def _unwell(document: Document, reason: str) -> DocumentError:
    return DocumentError(
        f"{document.index_name} ({document.role}) takes no documents: {reason}",
        hint="Is its disk full, or a node away? What is searched is not concerned.",
        document=document.name,
        generation=document.generation,
    )


def _refused(document: Document, rejection: Rejection) -> DocumentError:
    said = explain_refusal(document.name, f"{rejection.kind}: {rejection.reason}")
    return DocumentError(said.message, hint=said.hint, document=document.name, generation=document.generation)
