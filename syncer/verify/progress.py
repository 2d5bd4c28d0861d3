"""Progress: follows one transaction through the components into the index, for `syncer.verify.wait`.

    relay     a saved cursor sees the transaction
    workers   that cursor is handled
    jobs      bulk work that its changes caused is written: fan-outs, refreshes
    refresh   if it is to be searchable: the indices concerned are refreshed, on request of the wait

Guarantee: once the wait is over, reads by id show the transaction, and what it deleted is gone. If it was to be
searchable, searches show it too. Why this holds for a transaction T:

*Relay.* If no saved cursor sees T and the outbox has no row of T, T has no changes: rows are deleted only after a saved
cursor has seen them. Rows that a leader has adopted carry another transaction's id, which is waited for instead if it
is the later one.

*Workers.* A cursor counts as handled only once each document that its changes touch is in one of these states. It is
written; it was skipped for a newer version, which shows T by the version rule; it is dead-lettered; it is left to an
existing job; or its definition is suspended. If Kafka loses records, a job makes up for that, and exists before they
count as handled.

*Jobs.* So T's jobs exist when they are now looked up. A job records before which transaction id its causes were
committed; it can be T's only if T's id is lower. A load may also have taken up changes that are gone from view, so it
counts as T's until it is listed. If a job of T is cancelled or fails, another one may have replaced it, so T's jobs are
looked up again.

*Refresh.* What is written before a refresh is requested is searchable when it is answered.

Reported, but not waited for: documents dead-lettered since, suspended documents, and documents with a job that was
given up and may have been T's. Neither waited for nor reported: previous indices and indices being loaded; changes that
no trigger sees, as when a table is rewritten; and the refresh interval of an index that replaces another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import psycopg

from syncer.base.errors import DocumentError, WaitTimeoutError
from syncer.base.formatting import amount, duration
from syncer.base.model import Change, Role
from syncer.base.postgres import Connection
from syncer.capture import leader, outbox, progress
from syncer.capture.transaction_token import Token
from syncer.documents.affected import AffectedReader
from syncer.documents.registry import Catalogue, Document
from syncer.indexing import dead_letters
from syncer.indexing.dead_letters import DeadLetter
from syncer.jobs import model
from syncer.jobs.model import Job, JobState

DEAD_LETTERED_MAX = 100
"""At most this many dead letters are named."""
_FIRST_SECONDS = 0.005
_LONGEST_SECONDS = 0.25
_SLOWER = 1.3
_GIVEN_UP = (JobState.CANCELLED, JobState.FAILED)
_RELAY, _WORKERS, _JOBS, _REFRESH = "relay", "workers", "jobs", "refresh"

Refresh = Callable[[Sequence[Document]], None]
"""Refreshes the indices of these documents, so that searches find everything in them."""


class Clock:
    """A deadline, and growing pauses between polls."""

    def __init__(self, *, seconds: float, pause: Callable[[float], None]) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._pause = pause
        self._rest = _FIRST_SECONDS

    @property
    def left(self) -> float:
        """The seconds that are left; negative after the deadline."""
        return self._until - time.monotonic()

    def quicken(self) -> None:
        """Poll often again, for the next component."""
        self._rest = _FIRST_SECONDS

    def rest(self, late: Callable[[], WaitTimeoutError]) -> None:
        """Pause, each time a little longer.

        Raises:
            WaitTimeoutError: The deadline has passed; ``late`` creates the error.
        """
        left = self.left
        if left <= 0:
            raise late()
        self._pause(min(self._rest, left))
        self._rest = min(self._rest * _SLOWER, _LONGEST_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """The outcome of waiting for a transaction.

    Args:
        is_searchable: Whether searches show it, and not only reads by id.
        is_captured: Whether it changed anything that a document reads, as far as that can still be told.
        seconds: The time spent waiting for each component: relay, workers, jobs, refresh.
        jobs: The ids of the jobs that its changes may have caused; they are finished.
        dead_lettered: Its documents that could not be written, at most 100. Documents dead-lettered later may be among
            them if the transaction was very large, was waited for late, or very many documents are dead-lettered.
        incomplete: The documents concerned that may lack it, since a job was given up and no other makes up for it.
    """

    xid: int
    is_searchable: bool
    is_captured: bool = True
    seconds: dict[str, float] = field(default_factory=dict)
    jobs: tuple[int, ...] = ()
    dead_lettered: tuple[DeadLetter, ...] = ()
    suspended: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all its documents were written."""
        return not (self.dead_lettered or self.suspended or self.incomplete)

    def as_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        dead_lettered = [one.as_json() for one in self.dead_lettered]
        return {**asdict(self), "dead_lettered": dead_lettered, "is_complete": self.is_complete}


class TransactionProgress:
    """Follows one transaction, on one connection. After an error, start over with a new instance.

    Args:
        connection: Used for nothing else meanwhile; prepared as for the outbox.
        token: Names the transaction, which must be committed.
    """

    def __init__(
        self,
        *,
        connection: Connection,
        catalogue: Catalogue,
        token: Token,
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._token = token
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._jobs: set[int] = set()

    def follow(self, refresh: Refresh | None) -> Waited:
        """Return once the transaction has passed all components.

        ``refresh`` is None if searches need not show the transaction.

        Raises:
            WaitTimeoutError: The deadline has passed.
            psycopg.Error, elasticsearch.ApiError: A server does not answer.
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
    def _timed(self, component: str) -> Iterator[None]:
        self._clock.quicken()
        began = time.monotonic()
        yield
        self._seconds[component] = round(time.monotonic() - began, 6)

    def _concerned(self, relations: frozenset[str] | None) -> list[Document]:
        """Return the current documents that read what the transaction has changed."""
        return [
            one
            for one in self._catalogue.refresh(self._connection)
            if one.role is Role.CURRENT and (relations is None or relations & one.dependencies.tables.keys())
        ]

    def _late(self, what: str, hint: str, component: str, jobs: Iterable[int] = ()) -> WaitTimeoutError:
        return WaitTimeoutError(
            f"Transaction {self._token.xid} is not indexed after {self._clock.seconds:g} s: {what}",
            hint=hint,
            component=component,
            jobs=sorted(jobs),
        )

    # Relay

    def _until_published(self) -> bool:
        """Return once the changes are published; False if there were none."""
        while True:
            seen = outbox.publication(self._connection, self._token.xid)
            if seen.is_published or not seen.is_captured:
                return seen.is_captured
            self._clock.rest(self._unpublished)

    def _unpublished(self) -> WaitTimeoutError:
        waiting, lag_seconds = outbox.waiting(self._connection, outbox.saved_cursor(self._connection))
        hint = f"The outbox has {amount(waiting, 'change')} to read, the oldest of {duration(lag_seconds)} ago."
        if leader.find(self._connection) is None:
            return self._late("no daemon leads, which would read it", f"{hint} Run: syncer run", _RELAY)
        return self._late("the daemon that leads has not read it", f"{hint} See: syncer status", _RELAY)

    # Workers

    def _until_handled(self) -> None:
        """Return once the saved cursor is handled."""
        cursor_id = progress.newest(self._connection)
        while progress.handled(self._connection).id < cursor_id:
            self._clock.rest(self._unhandled)

    def _unhandled(self) -> WaitTimeoutError:
        return self._late(
            "the workers have not handled it", "See: syncer status. If no worker runs: syncer run", _WORKERS
        )

    # Jobs

    def _until_written(self, documents: Sequence[str]) -> None:
        """Return once the jobs that the transaction may have caused are finished."""
        watched: dict[int, Job] = {}
        is_to_ask = True
        while True:
            if is_to_ask:
                found = model.caused_by(self._connection, self._token.xid, documents)
                watched |= {one.id: one for one in found if one.id not in self._jobs}
                self._jobs |= watched.keys()
            now = {one.id: one for one in model.some(self._connection, list(watched))}
            is_to_ask = any(id_ not in now or now[id_].state in _GIVEN_UP for id_ in watched)
            watched = {id_: one for id_, one in now.items() if not (one.state.is_finished or one.is_suspended)}
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
        """Refresh the indices that searches find, until they are the same before and after the refresh."""
        done: list[str] = []
        while (names := [one.index_name for one in self._going(relations)]) != done:
            refresh(self._going(relations))
            done = names

    def _going(self, relations: frozenset[str] | None) -> list[Document]:
        return [one for one in self._concerned(relations) if one.suspended is None]

    # What is missing

    def _waited(
        self, refresh: Refresh | None, concerned: Sequence[Document] = (), *, is_captured: bool = True
    ) -> Waited:
        stale = model.incomplete(self._connection) if concerned else set()
        return Waited(
            xid=self._token.xid,
            is_searchable=refresh is not None,
            is_captured=is_captured,
            seconds=self._seconds,
            jobs=tuple(sorted(self._jobs)),
            dead_lettered=tuple(self._dead_lettered(concerned)),
            suspended=tuple(one.name for one in concerned if one.suspended is not None),
            incomplete=tuple(one.name for one in concerned if one.suspended is None and one.index_name in stale),
        )

    def _dead_lettered(self, concerned: Sequence[Document]) -> list[DeadLetter]:
        """Return the dead letters of documents that the transaction touches; all later ones if that is unknown."""
        by_index = {one.index_name: one for one in concerned}
        letters = dead_letters.since(self._connection, list(by_index), self._token.xid, limit=DEAD_LETTERED_MAX)
        are_all = 0 < len(letters) < DEAD_LETTERED_MAX
        rows = outbox.written_by(self._connection, self._token.xid) if are_all else None
        if rows is None:
            return letters
        reader = AffectedReader(self._connection, page=1)
        changes = [Change.parse(row) for row in rows]
        return [one for one in letters if one.is_id_cut or _touches(reader, by_index[one.index_name], changes, one.id)]


def _touches(reader: AffectedReader, document: Document, changes: Sequence[Change], id_: str) -> bool:
    """Whether these changes touch a document; True if that is unknown."""
    try:
        return reader.touches(document, changes, id_)
    except (DocumentError, psycopg.DataError):
        return True
