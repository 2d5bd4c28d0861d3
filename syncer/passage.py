"""Passage: a transaction's way into the index, followed stage by stage by who waits for it: see `syncer.waiting`.

    relay     the saved cursor sees the transaction: Kafka has acknowledged its changes
    workers   they have committed offsets behind all that was in the topic then
    jobs      what its changes became that is many documents is written: fan-outs, refreshes
    refresh   if it is to be searchable: the indices concerned are refreshed, which this asks for

Guarantee: what has come through has been written, so that a read by id shows the transaction, and what it deleted is
gone; if it was to be searchable, searches show it too. Why that holds, for a transaction T:

*Relay.* The cursor is saved once Kafka has acknowledged every change that its snapshot sees. If it does not see T, and
no row of T is in the outbox, T has none: rows are given back only where a saved cursor has seen them. Rows that a relay
has adopted have another transaction's id since, which is waited for instead if it is the later one.

*Workers.* The ends are asked for after that, so T's records lie before them. An offset behind a record is committed
once its documents are written, superseded by what is newer (hence shows T, by the version rule), or parked; or are left
to a job that is there; or their definition is halted. Kafka's word for the ends is not taken where the relay has seen
more acknowledged. Records that are lost, or the whole topic, are made up for by jobs that are there before an offset
moves, an end is saved that has fallen back, or another topic is known: when one of these is met, the ends are asked for
anew. Offsets count only if they are of that very topic, and as far as what they are of was not written anew.

*Jobs.* So T's jobs are there when they are asked for, now. A job says before which transaction id whatever caused it
was committed; it is T's only if T's is less. A fill may have taken up what nobody sees any more: until it is listed it
is anybody's. A fan-out leaves documents to other jobs when it is listed, which makes these T's as well: so once it is
listed, T's jobs are asked for again. Likewise when one was cancelled or has failed, since another one, which is there
then, may have taken its place.

*Refresh.* What is written before it is asked for is searchable when it is answered.

What is not waited for, but said: documents that are parked since, documents that are halted, and those of which a job
was given up, which may have been T's. What is not waited for, and not said: that indices on standby, or being filled,
have all of it; what no trigger sees, as when a table is written anew; and the refresh interval of an index that takes
another's place.

Not noticed: that Kafka has taken back what it had acknowledged, if newer records are in its place, and are handled,
before the relay, whose batch they are, has seen it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import psycopg

from syncer import dead_letters, job, outbox, overview
from syncer.affected import AffectedReader
from syncer.commit import Token
from syncer.dead_letters import DeadLetter
from syncer.errors import DocumentError, WaitTimeoutError
from syncer.job import Job, JobState
from syncer.model import Change, Role
from syncer.postgres import Connection
from syncer.settings import KafkaSettings
from syncer.store import Catalogue, Document
from syncer.topic import Observer
from syncer.transit import Handling
from syncer.wording import amount, duration

PARKED_MAX = 100
"""No more dead letters than that are named."""
_FIRST_SECONDS = 0.005
_LONGEST_SECONDS = 0.25
_SLOWER = 1.3
_RELAY, _WORKERS, _JOBS, _REFRESH = "relay", "workers", "jobs", "refresh"

Refresh = Callable[[Sequence[Document]], None]
"""Makes the indices of these documents show to searches what they have."""


class Clock:
    """How long there is yet, and how long to rest between two looks.

    Args:
        seconds: How long there is.
        pause: How to rest.
    """

    def __init__(self, *, seconds: float, pause: Callable[[float], None]) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._pause = pause
        self._rest = _FIRST_SECONDS

    @property
    def left(self) -> float:
        """How many seconds there are yet; less than none if the time is over."""
        return self._until - time.monotonic()

    def quicken(self) -> None:
        """Look often again: another thing is waited for."""
        self._rest = _FIRST_SECONDS

    def rest(self, late: Callable[[], WaitTimeoutError]) -> None:
        """Rest, each time a little longer.

        Raises:
            WaitTimeoutError: What ``late`` makes: the time is over.
        """
        left = self.left
        if left <= 0:
            raise late()
        self._pause(min(self._rest, left))
        self._rest = min(self._rest * _SLOWER, _LONGEST_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """What has become of a transaction that was waited for.

    Args:
        xid: Its id.
        is_searchable: Whether searches show it, and not only reads by id.
        is_captured: Whether it has changed anything that a document reads, as far as that can still be told.
        seconds: How long each stage was waited for: relay, workers, jobs, refresh.
        jobs: The ids of the jobs that its changes may have become; they are over.
        parked: Its documents that could not be written, 100 of them at most. If it has changed very much, is waited for
            late, or very many are parked, there may be others among them that were parked since.
        halted: The documents concerned that are halted.
        unfilled: The documents concerned that may lack it, since a job was given up and nothing makes up for that.
    """

    xid: int
    is_searchable: bool
    is_captured: bool = True
    seconds: dict[str, float] = field(default_factory=dict)
    jobs: tuple[int, ...] = ()
    parked: tuple[DeadLetter, ...] = ()
    halted: tuple[str, ...] = ()
    unfilled: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing of it is missing."""
        return not (self.parked or self.halted or self.unfilled)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        parked = [one.as_json() for one in self.parked]
        return {**asdict(self), "parked": parked, "is_complete": self.is_complete}


class Passage:
    """Follows one transaction, on one connection; what fails in between is to be begun anew.

    Args:
        connection: Nothing else is done on it meanwhile; prepared as for the outbox.
        catalogue: What was read over it.
        observer: Asks Kafka.
        kafka: Where the changes go.
        token: Names the transaction, which is committed.
        clock: How long there is.
    """

    def __init__(
        self,
        *,
        connection: Connection,
        catalogue: Catalogue,
        observer: Observer,
        kafka: KafkaSettings,
        token: Token,
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._observer = observer
        self._kafka = kafka
        self._token = token
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._jobs: set[int] = set()

    def follow(self, refresh: Refresh | None) -> Waited:
        """Return once it has come through.

        Args:
            refresh: None, if searches need not show it.

        Raises:
            WaitTimeoutError: The time is over.
            psycopg.Error, KafkaException, elasticsearch.ApiError: A server does not answer.
        """
        relations = outbox.relations_of(self._connection, self._token.xid)
        with self._timed(_RELAY):
            is_captured = self._until_published()
        if not is_captured:
            return self._waited(refresh, is_captured=False)
        with self._timed(_WORKERS):
            self._until_handled()
        with self._timed(_JOBS):
            self._until_written([one.name for one in self._concerned(relations)])
        if refresh is not None:
            with self._timed(_REFRESH):
                self._until_refreshed(relations, refresh)
        return self._waited(refresh, self._concerned(relations))

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        self._clock.quicken()
        began = time.monotonic()
        yield
        self._seconds[stage] = round(time.monotonic() - began, 6)

    def _concerned(self, relations: frozenset[str] | None) -> list[Document]:
        """The documents that read what it has changed, in the indices that searches find."""
        return [
            one
            for one in self._catalogue.refresh(self._connection)
            if one.role is Role.SERVING and (relations is None or relations & one.dependencies.tables.keys())
        ]

    def _late(self, what: str, hint: str, stage: str, jobs: Iterable[int] = ()) -> WaitTimeoutError:
        return WaitTimeoutError(
            f"Transaction {self._token.xid} is not there after {self._clock.seconds:g} s: {what}",
            hint=hint,
            stage=stage,
            jobs=sorted(jobs),
        )

    # Relay

    def _until_published(self) -> bool:
        """Whether there was anything to publish."""
        while True:
            seen = outbox.publication(self._connection, self._token.xid)
            if seen.is_published or not seen.is_captured:
                return seen.is_captured
            self._clock.rest(self._unpublished)

    def _unpublished(self) -> WaitTimeoutError:
        waiting, lag_seconds = outbox.waiting(self._connection, outbox.saved_cursor(self._connection))
        hint = f"The outbox has {amount(waiting, 'change')} to publish, the oldest of {duration(lag_seconds)} ago."
        if overview.leader(self._connection) is None:
            return self._late("no relay leads, which would publish it", f"{hint} Run: syncer run", _RELAY)
        return self._late("the relay has not published it", f"{hint} See: syncer status", _RELAY)

    # Workers

    def _until_handled(self) -> None:
        """Return once workers have handled all that the topic had when this began."""
        handling = Handling(self._connection, self._observer, self._kafka)
        while (left := handling.left()) is None or left:
            self._clock.rest(partial(self._unhandled, left or {}))

    def _unhandled(self, left: dict[int, int]) -> WaitTimeoutError:
        hint = f"{amount(sum(left.values()), 'record')} in {amount(len(left), 'partition')} come first, or are its own."
        if not self._observer.members():
            return self._late("no worker runs, which would handle it", f"{hint} Run: syncer run", _WORKERS)
        return self._late("the workers have not handled it", f"{hint} See: syncer status", _WORKERS)

    # Jobs

    def _until_written(self, documents: Sequence[str]) -> None:
        """Return once the jobs that it may have caused are over."""
        watched: dict[int, Job] = {}
        is_to_ask = True
        while True:
            if is_to_ask:
                found = job.caused_by(self._connection, self._token.xid, documents)
                watched |= {one.id: one for one in found if one.id not in self._jobs}
                self._jobs |= watched.keys()
            now = {one.id: one for one in job.some(self._connection, list(watched))}
            is_to_ask = any(_has_moved_on(before, now.get(id_)) for id_, before in watched.items())
            watched = {id_: one for id_, one in now.items() if not (one.state.is_finished or one.is_halted)}
            if not watched and not is_to_ask:
                return
            self._clock.rest(partial(self._unwritten, watched))

    def _unwritten(self, watched: dict[int, Job]) -> WaitTimeoutError:
        if not watched:
            return self._late("its jobs have just ended", "Wait once more.", _JOBS)
        ids = sorted(watched)
        first = watched[ids[0]]
        if first.is_paused:
            how, hint = "is paused", f"Run: syncer jobs resume {first.id}"
        elif first.eta_seconds is None:
            how, hint = f"is {first.state}", f"See: syncer jobs show {first.id}"
        else:
            how = f"has {amount(first.documents_left or 0, 'document')} left, {duration(first.eta_seconds)}"
            hint = f"See: syncer jobs show {first.id}"
        more = "" if len(ids) == 1 else f", and {amount(len(ids) - 1, 'other')}"
        return self._late(f"job {first.id} ({first.reason}) {how}{more}", hint, _JOBS, ids)

    # Refresh

    def _until_refreshed(self, relations: frozenset[str] | None, refresh: Refresh) -> None:
        """Return once a refresh is over of the indices that searches find, and still do after it."""
        done: list[str] = []
        while (names := [one.index_name for one in self._going(relations)]) != done:
            refresh(self._going(relations))
            done = names

    def _going(self, relations: frozenset[str] | None) -> list[Document]:
        return [one for one in self._concerned(relations) if one.halted is None]

    # What is missing

    def _waited(
        self, refresh: Refresh | None, concerned: Sequence[Document] = (), *, is_captured: bool = True
    ) -> Waited:
        stale = job.unfilled(self._connection) if concerned else set()
        return Waited(
            xid=self._token.xid,
            is_searchable=refresh is not None,
            is_captured=is_captured,
            seconds=self._seconds,
            jobs=tuple(sorted(self._jobs)),
            parked=tuple(self._parked(concerned)),
            halted=tuple(one.name for one in concerned if one.halted is not None),
            unfilled=tuple(one.name for one in concerned if one.halted is None and one.index_name in stale),
        )

    def _parked(self, concerned: Sequence[Document]) -> list[DeadLetter]:
        """The dead letters of documents that it touches; if that is not known any more, all since."""
        by_index = {one.index_name: one for one in concerned}
        letters = dead_letters.since(self._connection, list(by_index), self._token.xid, limit=PARKED_MAX)
        are_all = 0 < len(letters) < PARKED_MAX
        rows = outbox.written_by(self._connection, self._token.xid) if are_all else None
        if rows is None:
            return letters
        reader = AffectedReader(self._connection, page=1)
        changes = [Change.parse(row) for row in rows]
        return [one for one in letters if one.is_id_cut or _touches(reader, by_index[one.index_name], changes, one.id)]


def _has_moved_on(before: Job, now: Job | None) -> bool:
    """Whether a job may have left documents to others since, or another one have taken its place."""
    if now is None or now.state in (JobState.CANCELLED, JobState.FAILED):
        return True
    return before.state in (JobState.NEW, JobState.LISTING) and now.left_out > 0


def _touches(reader: AffectedReader, document: Document, changes: Sequence[Change], id_: str) -> bool:
    """Whether these changes touch a document, or nobody can say."""
    try:
        return reader.touches(document, changes, id_)
    except (DocumentError, psycopg.DataError):
        return True
