"""Writer: the version rule, whole. Everything that writes a document does it here.

To write documents: draw one version in turn with a snapshot; read all of them in that snapshot; write them
whole with that version, and delete with it what the snapshot does not have. `syncer.compose` keeps the first half,
`syncer.index` the last. Here they are put together, with what happens when something fails: a document at fault
is parked and its siblings go on; anything that is tried again is composed again, with a new draw.

A change that removes documents is not always one that names them: after a TRUNCATE, or a new definition, a job lists
all documents that there are, and removes copies of others that were there before it was listed. A writer who has read
such a document before, and writes it only after, would leave it there for good. So whoever has written asks whether
somebody has begun to list since he read; then he does it all again.

Elasticsearch forgets the version of a deleted document: after ``index.gc_deletes``, and at once when it is restarted,
or when the shard moves. Whoever was held up until then would bring the document back. So a batch whose draw is too old
is composed again instead of being written; and who has created something, and finds that this took longer than a
restart may take, does it all again. He asks two clocks: a machine's own may have stood still with it, that of Postgres
has not. If he dies instead, his changes, or his page, come to somebody else.

Whoever writes an index that is being built, or on standby, writes the one that serves too. So an index that no search
needs is not waited for as long as it takes: it halts, and the other goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TypeVar

import elasticsearch
import psycopg
import structlog

from syncer import dead_letters, fault, incarnation, postgres, store, telemetry
from syncer.compose import Batch, Composer, Findings, clock
from syncer.errors import DocumentError, UnavailableError
from syncer.fault import Fault
from syncer.index import Index, Rejection
from syncer.indices import GC_DELETES_SECONDS
from syncer.lifecycle import Trouble, persist
from syncer.model import Role
from syncer.policy import CLUSTER_BLOCK, Action, at_work_for, decide, decide_item, explain_refusal
from syncer.postgres import Connection
from syncer.repeated import Repeated
from syncer.replica import Replica
from syncer.store import Document, DocumentState

DRAW_AGE_SECONDS_MAX = GC_DELETES_SECONDS / 4
CREATED_SECONDS_MAX = 10.0
"""How old a draw may be when what it has created is known: no restart, and no move of a shard, is over so soon."""
PATIENCE_SECONDS = 60.0
"""How long an index that no search needs may be unwell before it halts, while the one that serves is well; and for how
long Elasticsearch may fail at a document, with nothing else wrong, before that is parked."""

_ISOLATING_SECONDS = 2.0
"""How long at once to look for the documents at fault, before those that are found are parked."""
_FOLLOWED_MAX = 3
"""How often at once a document that changes while it is parked is tried again; its changes see to it anyhow."""
_AGAIN_SECONDS = 0.05
_ERROR_WITHIN = 500
_ADVICE = {
    CLUSTER_BLOCK: "Free disk space, or add a node: Elasticsearch lifts the block by itself, and then it goes on.",
    "unavailable_shards_exception": "A shard has no primary: GET _cluster/allocation/explain says why.",
}

_Result = TypeVar("_Result")


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
        created: By when something that was not there was known to be created, by `clock`; empty if nothing was.
        changed: Which of them had changed before they were parked, and are to be written again.
        conflicts: Versions that were there instead of ours.
    """

    batch: Batch
    report: WriteReport = field(default_factory=WriteReport)
    rejections: list[Rejection] = field(default_factory=list)
    created: list[float] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    conflicts: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Group:
    """Documents that are written together, until none is left.

    Args:
        index_name: In which index.
        ids: Which are left.
        everywhere: Whether copies are removed from all other shards too.
        followed: How often some of them had changed while they were parked.
        failing_since: When Elasticsearch was first found to fail at one, with nothing else wrong.
    """

    index_name: str
    ids: list[str]
    everywhere: bool
    followed: int = 0
    failing_since: dict[str, float] = field(default_factory=dict)

    def hopeless(self) -> set[str]:
        """Those at which it has failed for so long that the others are not to wait for them."""
        now = time.monotonic()
        return {id_ for id_, since in self.failing_since.items() if now - since > PATIENCE_SECONDS}


class Writer:
    """Writes documents by the version rule, on a connection of its own.

    Not for sharing between threads, but for `send`: so a caller may compose one batch while others are being sent.

    Args:
        connect: Opens a connection to Postgres.
        connect_replica: Opens the replica to read documents on, if not on that connection.
        index: Elasticsearch.
        pause: How to wait before trying again; may raise `Stopping`.
        name: The stage that writes, for the log.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Connection],
        connect_replica: Callable[[], Replica] | None = None,
        index: Index,
        pause: Callable[[float], None],
        name: str,
    ) -> None:
        self._connect = connect
        self._connect_replica = connect_replica
        self._index = index
        self._pause = pause
        self._name = name
        self._connection: Connection | None = None
        self._replica: Replica | None = None
        self._composer: Composer | None = None
        self._life = 0
        self._unwell_since: dict[str, float] = {}
        self._trouble = Trouble(name)
        self._parked: Repeated[tuple[str, str], tuple[str, str | None]] = Repeated(self._tell_parked)
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
        groups = [_Group(index_name=index_name, ids=list(ids), everywhere=everywhere)]
        while groups:
            group = groups.pop()
            try:
                self._persist(partial(self._attempt, group, report))
            except DocumentError as error:
                if not self._persist(partial(self._is_outdated, index_name, error)):
                    raise
            except Exception as error:
                if decide(error) is not Action.PARK:
                    raise
                groups += [replace(group, ids=part) for part in self._isolate(index_name, group.ids, report)]
                continue
            if group.ids:
                groups.append(group)
        return report

    def tell(self) -> None:
        """Say what was parked and is not said yet, if it is time: for who has nothing to write."""
        self._parked.tell()

    @property
    def life(self) -> int:
        """How many connections have been let go of: what was composed on one of them may have been taken back."""
        return self._life

    def keep(self) -> None:
        """Return once what was composed in this `life` is on Postgres's disk, so that no crash takes it back.

        Raises:
            psycopg.Error: Postgres is away: it may have been taken back.
        """
        if self._connection is not None:
            postgres.keep(self._connection)

    def _persist(self, action: Callable[[], _Result]) -> _Result:
        return persist(action, pause=self._pause, stage=self._name, trouble=self._trouble)

    def close(self) -> None:
        """Let go of the connection; the next write opens another one."""
        self._parked.flush()
        if self._connection is not None:
            self._connection.close()
            self._life += 1
        if self._replica is not None:
            self._replica.close()
        self._connection = self._replica = self._composer = None

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
            is_blocked = CLUSTER_BLOCK in str(error.body)
            self._require_needed(document, f"{error.status_code} {error.message}", is_blocked=is_blocked)
            raise
        report.indexed += outcome.indexed
        report.deleted += outcome.deleted
        report.superseded += outcome.superseded
        report.index_seconds += time.monotonic() - began
        attempt.rejections.extend(outcome.rejections)
        if outcome.has_created:
            attempt.created.append(clock())
        attempt.conflicts.append(outcome.superseded_by)

    def settle(self, attempt: Attempt, *, follows: bool = True, hopeless: Collection[str] = ()) -> list[str]:
        """Park what is at fault and clear what is mended; returns the ids that are to be tried again.

        Those that Elasticsearch asks to; those that are parked as what they no longer are; and all of them, if all
        documents were listed since these were read, if it took long to create one of them, or if the database draws
        versions less than those that are there.

        Args:
            attempt: What was sent.
            follows: Whether to look if what is parked has changed meanwhile.
            hopeless: Documents that Elasticsearch has asked to try again for long enough.

        Raises:
            DocumentError: The document is to halt.
            psycopg.Error: Nothing of that is recorded.
        """
        document, batch = attempt.batch.document, attempt.batch
        if document is None:
            return []
        was_set_back = self._was_set_back(attempt)
        if was_set_back:
            self.close()  # whoever writes next enters another life
        state = None if was_set_back else self._state_after(batch, document)
        took_long = any(at - batch.drawn_at > CREATED_SECONDS_MAX for at in attempt.created)
        if was_set_back or took_long or (state is not None and _is_overtaken(batch, state)):
            attempt.report.documents = attempt.report.indexed = attempt.report.deleted = attempt.report.superseded = 0
            return [one.id for one in batch.compositions]
        again, parked = _sorted_out(document, attempt.rejections, hopeless)
        if again:
            worst = next(iter(again.values()))
            self._require_needed(document, f"{worst.kind}: {worst.reason}", is_blocked=worst.kind == CLUSTER_BLOCK)
        else:
            self._unwell_since.pop(document.index_name, None)
            self._trouble.over()
        self._park(document, batch.version, {id_: _fault(one) for id_, one in parked.items()}, attempt.report)
        if parked and follows:
            attempt.changed.extend(self._changed_since(document, parked))
        attempt.report.parked -= len(attempt.changed)
        attempt.report.documents -= len(again) + len(attempt.changed)
        if batch.has_dead_letters or (state is not None and state.has_dead_letters):
            written = [one.id for one in batch.compositions if one.id not in parked and one.id not in again]
            dead_letters.clear(self._connected(), document.index_name, written, batch.version)
        return [*again, *attempt.changed]

    def _was_set_back(self, attempt: Attempt) -> bool:
        """Whether some version that is there was not drawn in this life: else it is at least as new as ours."""
        found = max(attempt.conflicts, default=0)
        return found > 0 and incarnation.doubt(self._connected(), self._index, found)

    def _state_after(self, batch: Batch, document: Document) -> DocumentState | None:
        """What is remembered of a document now that a batch is written; None if nothing was but deletes."""
        if all(one.source is None for one in batch.compositions):
            return None
        return store.state(self._connected(), document.index_name)

    def _changed_since(self, document: Document, parked: Mapping[str, Rejection]) -> list[str]:
        """Those that are no longer what was refused: they are to be written again.

        Whoever has written such a document meanwhile may have looked for dead letters before there was this one.
        Whoever writes one that changes after this snapshot will find it.
        """
        try:
            now = self._opened().compose(document.index_name, list(parked))
        except psycopg.Error as error:
            if decide(error) is not Action.PARK:
                raise
            return list(parked)
        refused = {id_: (one.composition.source, one.composition.routing) for id_, one in parked.items()}
        return [one.id for one in now.compositions if (one.source, one.routing) != refused[one.id]]

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

    def _attempt(self, group: _Group, report: WriteReport) -> None:
        """Compose and write once; what is to be tried again stays in the group.

        Raises:
            UnavailableError: Elasticsearch asks to try some of them again.
        """
        try:
            attempt = self.compose(group.index_name, group.ids, everywhere=group.everywhere)
            self.send(attempt)
            follows = group.followed < _FOLLOWED_MAX
            group.ids = self.settle(attempt, follows=follows, hopeless=group.hopeless())
            group.followed += bool(attempt.changed)
        except Exception as error:
            if decide(error) is Action.RETRY:
                self.close()
            raise
        report.add(attempt.report)
        again = set(group.ids)
        refused = [one for one in attempt.rejections if one.composition.id in again]
        if refused:
            self._note_failing(group, refused)
            raise _refused_for_now(group, refused)

    def _note_failing(self, group: _Group, refused: Sequence[Rejection]) -> None:
        """Remember since when Elasticsearch has failed at a document, as it does at one that a defect of it is met by.

        Only while the index is well: it fails at every document of a shard that is breaking down.
        """
        failing = {one.composition.id for one in refused if one.status == _ERROR_WITHIN}
        is_well = bool(failing) and self._index.holdings.is_well(group.index_name)
        now = time.monotonic()
        group.failing_since = {id_: group.failing_since.get(id_, now) for id_ in failing} if is_well else {}

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
            if self._replica is None and self._connect_replica is not None:
                self._replica = self._connect_replica()
            self._connection = self._connect()
            # Before the first draw: whose life this is, and past whatever a crash may hand out again.
            incarnation.enter(self._connection, self._index)
            self._composer = Composer(self._connection, replica=self._replica)
        return self._composer

    def _connected(self) -> Connection:
        self._opened()
        assert self._connection is not None  # noqa: S101 - it has just been opened
        return self._connection

    def _park(self, document: Document, version_: int, faults: Mapping[str, Fault], report: WriteReport) -> None:
        """Park documents, and say so: the name of the error only, since a server's sentence quotes values."""
        self._parked.tell()
        dead_letters.park(self._connected(), document.index_name, version_, faults)
        report.parked += len(faults)
        by_kind: dict[str, list[str]] = {}
        for id_, one in faults.items():
            by_kind.setdefault(one.kind, []).append(id_)
        for kind, ids in by_kind.items():
            self._parked.note((document.index_name, kind), (ids[0], faults[ids[0]].field), len(ids))

    def _isolate(self, index_name: str, ids: list[str], report: WriteReport) -> list[list[str]]:
        """Park those of a group for which the SELECT raises; the others, in groups that are to be written."""
        found = self._persist(partial(self._faults, index_name, ids))
        if found.document is None:
            return []
        self._park(found.document, found.version, found.faults, report)
        mended = self._mended_since(index_name, list(found.faults)) if found.faults else set()
        report.parked -= len(mended)
        rest = [one for one in ids if one not in found.faults or one in mended]
        if found.untried:
            self._pause(0)  # who is told to stop leaves the rest to whoever is next
        if found.faults or not rest:
            return [rest] if rest else []
        self._pause(_AGAIN_SECONDS)  # what was at fault has changed just now
        middle = len(rest) // 2
        return [half for half in (rest[:middle], rest[middle:]) if half]

    def _mended_since(self, index_name: str, parked: list[str]) -> set[str]:
        """Those for which the SELECT no longer raises: as with `_changed_since`."""
        still = self._persist(partial(self._faults, index_name, parked))
        return set(parked) - still.faults.keys() - set(still.untried)

    def _faults(self, index_name: str, ids: list[str]) -> Findings:
        try:
            return self._opened().faults(index_name, ids, seconds=_ISOLATING_SECONDS)
        except Exception as error:
            if decide(error) is Action.RETRY:
                self.close()
            raise

    def _tell_parked(self, what: tuple[str, str], number: int, sample: tuple[str, str | None]) -> None:
        index_name, kind = what
        id_, field_ = sample
        self._log.error(
            telemetry.DOCUMENT_PARKED, index=index_name, kind=kind, documents=number, sample_id=id_, field=field_
        )


def _fault(rejection: Rejection) -> Fault:
    return fault.of_index(rejection.kind, rejection.reason, rejection.composition.source)


def _is_overtaken(batch: Batch, state: DocumentState) -> bool:
    """Whether a job has begun to list since these were read: not knowing of them, it may not know them for strays.

    If not, what was written was written before the job asks for sequence numbers: see `syncer.listing`. And whether so
    much time has passed since, on the server's clock, that Elasticsearch may have forgotten a delete.
    """
    return state.listings != batch.listings or state.server_seconds - batch.read_at > DRAW_AGE_SECONDS_MAX


def _sorted_out(
    document: Document, rejections: Iterable[Rejection], hopeless: Collection[str]
) -> tuple[dict[str, Rejection], dict[str, Rejection]]:
    """What is to be tried again, and what is to be parked.

    Raises:
        DocumentError: The index takes no documents.
    """
    again: dict[str, Rejection] = {}
    parked: dict[str, Rejection] = {}
    for rejection in rejections:
        match decide_item(rejection.status, rejection.kind):
            case Action.RETRY if rejection.composition.id in hopeless:
                parked[rejection.composition.id] = rejection
            case Action.RETRY:
                again[rejection.composition.id] = rejection
            case Action.PARK:
                parked[rejection.composition.id] = rejection
            case Action.HALT_DOCUMENT:
                raise _refused(document, rejection)
    return again, parked


def _refused_for_now(group: _Group, refused: Sequence[Rejection]) -> UnavailableError:
    worst = refused[0]
    return UnavailableError(
        f"Elasticsearch does not write {len(group.ids)} documents of {group.index_name} as yet: "
        f"{worst.kind}: {worst.reason}",
        hint=_ADVICE.get(worst.kind, ""),
        kind=f"{worst.status} {worst.kind}",
    )


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
