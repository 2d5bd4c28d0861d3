"""Writer: the version rule, whole. Everything that writes a document does it here.

To write documents: draw one version in turn with a snapshot; read all of them in that snapshot; write them
whole with that version, and delete with it what the snapshot does not have. `syncer.compose` keeps the first half,
`syncer.index` the last. Here they are put together, with what happens when something fails: a document at fault
is parked and its siblings go on (`syncer.parking`); what Elasticsearch refuses is one of several things
(`syncer.refusal`); anything that is tried again is composed again, with a new draw.

A change that removes documents is not always one that names them: after a TRUNCATE, or a new definition, a job lists
all documents that there are, and removes copies of others that were there before it was listed. A writer who has read
such a document before, and writes it only after, would leave it there for good. So whoever has written asks whether
somebody has begun to list since he read; then he does it all again.

Elasticsearch forgets the version of a deleted document: after ``index.gc_deletes``, and at once when it is restarted,
or when the shard moves. Whoever was held up until then would bring the document back. So a batch whose draw is too old
is composed again instead of being written; and who has created something, and finds that this took longer than a
restart may take, does it all again. He asks two clocks: a machine's own may have stood still with it, that of Postgres
has not. If he dies instead, his changes, or his page, come to somebody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TypeVar

import elasticsearch
import structlog

from syncer import events, incarnation, refusal, store, telemetry
from syncer.compose import Batch, clock
from syncer.errors import DocumentError, ParkingError
from syncer.index import Index, Rejection
from syncer.indices import GC_DELETES_SECONDS
from syncer.lifecycle import Trouble, persist
from syncer.parking import Parking
from syncer.policy import CLUSTER_BLOCK, Action, Backoff, at_work_for, decide, kind
from syncer.postgres import Connection
from syncer.refusal import Failing, Patience
from syncer.replica import Replica
from syncer.session import Session
from syncer.store import Document, DocumentState

DRAW_AGE_SECONDS_MAX = GC_DELETES_SECONDS / 4
CREATED_SECONDS_MAX = 10.0
"""How old a draw may be when what it has created is known: no restart, and no move of a shard, is over so soon."""

_FOLLOWED_MAX = 3
"""How often at once a document that changes while it is parked is tried again; its changes see to it anyhow."""

_Result = TypeVar("_Result")
_NO_ORIGIN: Mapping[str, int] = {}


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

    @property
    def outcomes(self) -> dict[str, int]:
        """How many documents came to which end."""
        return {one: getattr(self, one) for one in ("indexed", "deleted", "superseded", "parked")}

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
        refused: Those of them that it asks to try again.
        created: By when something that was not there was known to be created, by `clock`; empty if nothing was.
        changed: Which of them had changed before they were parked, and are to be written again.
        conflicts: Versions that were there instead of ours.
        origin: What they are written for, as the log says of each.
    """

    batch: Batch
    report: WriteReport = field(default_factory=WriteReport)
    rejections: list[Rejection] = field(default_factory=list)
    refused: list[Rejection] = field(default_factory=list)
    created: list[float] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    conflicts: list[int] = field(default_factory=list)
    origin: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Group:
    """Documents that are written together, until none is left.

    Args:
        index_name: In which index.
        ids: Which are left.
        everywhere: Whether copies are removed from all other shards too.
        origin: What they are written for, as the log says of each.
        followed: How often some of them had changed while they were parked.
        fruitless: How often at once nothing was found that is at fault, though the SELECT of them raises.
        failing: Those at which Elasticsearch fails.
    """

    index_name: str
    ids: list[str]
    everywhere: bool
    origin: Mapping[str, int]
    followed: int = 0
    fruitless: int = 0
    failing: Failing = field(default_factory=Failing)


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
        self._index = index
        self._pause = pause
        self._name = name
        self._trouble = Trouble(name)
        self._session = Session(connect=connect, connect_replica=connect_replica, index=index)
        self._parking = Parking(self._session, pause=pause)
        self._patience = Patience(index.holdings)

    def write(
        self,
        index_name: str,
        ids: Sequence[str],
        *,
        everywhere: bool = False,
        origin: Mapping[str, int] = _NO_ORIGIN,
    ) -> WriteReport:
        """Bring documents up to date in one index; return when each is written, superseded or parked.

        Args:
            index_name: Which, of those in force.
            ids: Which.
            everywhere: Remove copies from all other shards too, where none should be.
            origin: What they are written for, as the log is to say of each.

        Raises:
            Stopping: It was told to stop first; doing it again is harmless.
            UnwellError: The index takes nothing for now, and has not for a while. What was written before is right.
            DocumentError: The document is to halt. What was written of it before is right.
            Exception: What the policy says to HALT for.
        """
        report = WriteReport()
        groups = [_Group(index_name=index_name, ids=list(ids), everywhere=everywhere, origin=origin)]
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
                isolated = self._persist(partial(self._parking.isolate, index_name, group.ids))
                report.parked += isolated.parked
                fruitless = self._pause_if_fruitless(group, error) if isolated.is_fruitless else 0
                groups += [replace(group, ids=part, fruitless=fruitless) for part in isolated.rest]
                continue
            if group.ids:
                groups.append(group)
        return report

    def _pause_if_fruitless(self, group: _Group, error: Exception) -> int:
        """Wait, since nothing was found that is at fault: the longer the oftener; how often that was so at once."""
        if group.fruitless >= _FOLLOWED_MAX:  # until then it has changed just now
            said = f"Documents of {group.index_name} cannot be written, and none of them is at fault: {kind(error)}"
            self._trouble.met(ParkingError(said, hint="Please report it.", kind=kind(error)))
        self._pause(Backoff(_attempts=group.fruitless).next_seconds())
        return group.fruitless + 1

    def tell(self) -> None:
        """Say what was parked and is not said yet, if it is time: for who has nothing to write."""
        self._parking.tell()

    @property
    def life(self) -> int:
        """How many connections have been let go of: what was composed on one of them may have been taken back."""
        return self._session.life

    def keep(self) -> None:
        """Return once what was composed in this `life` is on Postgres's disk, so that no crash takes it back.

        Raises:
            psycopg.Error: Postgres is away: it may have been taken back.
        """
        self._session.keep()

    def close(self) -> None:
        """Let go of the connection; the next write opens another one."""
        self._parking.flush()
        self._session.close()

    def compose(
        self,
        index_name: str,
        ids: Sequence[str],
        *,
        everywhere: bool = False,
        origin: Mapping[str, int] = _NO_ORIGIN,
    ) -> Attempt:
        """Draw and read, as `Composer.compose`; what it returns is to be sent at once, and then settled.

        Raises:
            DocumentError: The document is to halt.
            Exception: As `write` would meet it: nothing is tried again.
        """
        began = time.monotonic()
        batch = self._session.composer.compose(index_name, ids, everywhere=everywhere)
        while clock() - batch.drawn_at > DRAW_AGE_SECONDS_MAX:
            batch = self._session.composer.compose(index_name, ids, everywhere=everywhere)
        report = WriteReport(documents=len(batch.compositions), compose_seconds=time.monotonic() - began)
        return Attempt(batch=batch, report=report, origin=origin)

    def send(self, attempt: Attempt) -> None:
        """Write what was composed; safe to call from several threads, for different attempts.

        Raises:
            DocumentError: The document is to halt.
            UnwellError: The index has taken nothing for a while.
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
            self._patience.require_needed(document, f"{error.status_code} {error.message}", is_blocked=is_blocked)
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
            UnwellError: The index has not taken some of them for a while. All of them are to be written again.
            psycopg.Error: Nothing of that is recorded.
        """
        document, batch = attempt.batch.document, attempt.batch
        if document is None:
            return []
        was_set_back = self._was_set_back(attempt)
        if was_set_back:
            self._session.close()  # whoever writes next enters another life
        state = None if was_set_back else self._state_after(batch, document)
        took_long = any(at - batch.drawn_at > CREATED_SECONDS_MAX for at in attempt.created)
        if was_set_back or took_long or (state is not None and _is_overtaken(batch, state)):
            attempt.report.documents = attempt.report.indexed = attempt.report.deleted = attempt.report.superseded = 0
            return [one.id for one in batch.compositions]
        again, parked = refusal.sorted_out(document, attempt.rejections, hopeless)
        attempt.refused.extend(again.values())
        self._patience.require_all_needed(document, attempt.refused)
        if not again:
            self._trouble.over()
        self._parking.park_refused(document, batch.version, parked)
        if parked and follows:
            attempt.changed.extend(self._parking.changed_since(document, parked))
        attempt.report.parked += len(parked) - len(attempt.changed)
        attempt.report.documents -= len(again) + len(attempt.changed)
        if batch.has_dead_letters or (state is not None and state.has_dead_letters):
            self._parking.clear(document, batch, left=again.keys() | parked.keys())
        if telemetry.is_logged(events.DOCUMENT_WRITTEN):
            self._tell_written(document, attempt, not_written=again.keys() | parked.keys())
        return [*again, *attempt.changed]

    def _was_set_back(self, attempt: Attempt) -> bool:
        """Whether some version that is there was not drawn in this life: else it is at least as new as ours."""
        found = max(attempt.conflicts, default=0)
        return found > 0 and incarnation.doubt(self._session.connection, self._index, found)

    def _state_after(self, batch: Batch, document: Document) -> DocumentState | None:
        """What is remembered of a document now that a batch is written; None if nothing was but deletes."""
        if all(one.source is None for one in batch.compositions):
            return None
        return store.state(self._session.connection, document.index_name)

    def _persist(self, action: Callable[[], _Result]) -> _Result:
        return persist(action, pause=self._pause, stage=self._name, trouble=self._trouble)

    def _attempt(self, group: _Group, report: WriteReport) -> None:
        """Compose and write once; what is to be tried again stays in the group.

        Raises:
            UnavailableError: Elasticsearch asks to try some of them again.
        """
        with self._session.used():
            attempt = self.compose(group.index_name, group.ids, everywhere=group.everywhere, origin=group.origin)
            self.send(attempt)
            follows = group.followed < _FOLLOWED_MAX
            group.ids = self.settle(attempt, follows=follows, hopeless=group.failing.hopeless())
            group.followed += bool(attempt.changed)
        report.add(attempt.report)
        if attempt.refused:
            group.failing.note(attempt.refused, self._index.holdings, group.index_name)
            raise refusal.for_now(group.index_name, attempt.refused)

    def _is_outdated(self, index_name: str, error: DocumentError) -> bool:
        """Whether it was a generation that is no longer in force that could not go on."""
        with self._session.used():
            state = store.state(self._session.connection, index_name)
        return state is None or state.generation != error.generation

    def _tell_written(self, document: Document, attempt: Attempt, *, not_written: Collection[str]) -> None:
        log = structlog.get_logger()
        for one in attempt.batch.compositions:
            if one.id not in not_written:
                log.debug(
                    events.DOCUMENT_WRITTEN,
                    stage=self._name,
                    index=document.index_name,
                    id=one.id,
                    version=one.version,
                    is_delete=one.source is None,
                    **attempt.origin,
                )


def _is_overtaken(batch: Batch, state: DocumentState) -> bool:
    """Whether a job has begun to list since these were read: not knowing of them, it may not know them for strays.

    If not, what was written was written before the job asks for sequence numbers: see `syncer.listing`. And whether so
    much time has passed since, on the server's clock, that Elasticsearch may have forgotten a delete.
    """
    return state.listings != batch.listings or state.server_seconds - batch.read_at > DRAW_AGE_SECONDS_MAX
