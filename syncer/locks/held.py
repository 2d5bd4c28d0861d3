"""Held: the locks that a process holds or waits for, and the changes that it makes under them.

They stand in a *holder's* document, which a thread renews. Each write of it is conditional on the previous one. So it
fails if another process has taken the document over, and a process that does so later sees what was written.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

from elasticsearch import ApiError, Elasticsearch, TransportError

from syncer.base.error_policy import Action, decide, is_refused
from syncer.base.errors import LockError, LockLostError, LockTimeoutError, UnavailableError
from syncer.base.lifecycle import clock
from syncer.base.retry import Backoff
from syncer.locks import edits, table
from syncer.locks.edits import CONFLICT, Edit
from syncer.locks.table import Entry, Holder, Mode, Table, Version

_Result = TypeVar("_Result")

_RENEWALS_PER_LEASE = 5
_TIMEOUT_PER_LEASE = 0.4
"""How long to wait for an answer, as a share of the lease: one that never comes must leave time to try again."""
_FAILURES = (ApiError, TransportError, UnavailableError)


class HeldLocks:
    """Locks that were granted together; the with statements of `Locks` yield it.

    Attributes:
        term: Greater than the terms of all earlier holders of these locks.
    """

    def __init__(
        self, client: Elasticsearch, index: Table, holder: Holder, version: Version, *, retry_until: float
    ) -> None:
        """Store a new holder, or take one over whose document still has this version.

        Failed requests are repeated until ``retry_until``, on the monotonic clock.
        """
        self._client = client.options(request_timeout=holder.lease_seconds)
        self._table = index.within(holder.lease_seconds * _TIMEOUT_PER_LEASE)
        self._holder = replace(holder, writer=uuid.uuid4().hex)
        self._version = version
        self._mutex = threading.Lock()
        self._has_ended = threading.Event()
        self._is_lost = False
        self._is_unfinished = bool(holder.undo)
        """Whether documents may be changed in part."""
        self._renewed_at = math.inf
        self._last_term = self.term = 0
        self.retry_until = retry_until
        self.persist(self._write)
        self._thread = threading.Thread(target=self._renew, name="lock-lease", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Check that the locks are still held.

        Raises:
            LockLostError: They were lost, or a change could not be rolled back: another process will do so.
            LockError: They were released.
        """
        if self._is_over or self._is_unfinished:
            raise self._lost()
        if self._has_ended.is_set():
            raise LockError("These locks were released", hint="Write before the end of their with statement.")

    def write(self, changes: Iterable[Edit]) -> int:
        """Make changes, all of them or none, even if this process dies meanwhile.

        Each page of documents is stored as it is. Then each document is written whole, with a term as its external
        version, so all programs that write these documents must use this method. Searches see them change one by one.
        While Elasticsearch is busy, requests are repeated for as long as the lease is renewed.

        Returns:
            The number of documents written.

        Raises:
            LockLostError: The locks were lost; the process that takes them rolls the changes back.
            LockError: Elasticsearch refuses a document, or has a later version than ours. All documents are as they
                were, as after any other exception, including one of ``changes`` itself.
        """
        self.require()
        left, count = iter(changes), 0
        try:
            while page := list(islice(left, edits.PAGE_EDITS_MAX)):
                self._change(page)
                count += len(page)
        except BaseException:
            self.roll_back()
            raise
        self._finish()
        return count

    def _change(self, changes: Sequence[Edit]) -> None:
        """Store documents as they are, and write them in the term of that request.

        A process that takes our document over later restores them in a greater term, before it releases the locks.
        """
        before = self.persist(partial(edits.read, self._client, changes))
        page = uuid.uuid4().hex
        self._is_unfinished = True
        self._holder = replace(self._holder, undo=(*self._holder.undo, page))
        stored = {"kind": "undo", "before": [asdict(edit) for edit in before]}
        self.persist(partial(self._write, {"index": {"_id": page}}, stored))
        refused = self.persist(partial(edits.write, self._client, changes, term=self._last_term))
        if refused is not None:
            raise refused

    def roll_back(self) -> None:
        """Restore the documents of an unfinished change, last page first: one that was changed twice is in two pages.

        Each page has a term of its own, so that a late request for one page cannot undo what was done after it. A
        document that is refused was written without a lock, which cannot be fixed here.
        """
        for page in reversed(self._holder.undo):
            hits = self.persist(partial(self._table.get, [page]))  # none: it was not stored, and nothing was changed
            before = [Edit(**edit) for hit in hits for edit in hit["_source"]["before"]]
            self.persist(self._write)
            self.persist(partial(edits.write, self._client, before, term=self._last_term))
        self._finish()

    def _finish(self) -> None:
        """Forget the documents as they were: the change is complete, or rolled back."""
        pages, self._holder = self._holder.undo, replace(self._holder, undo=())
        self.persist(self._write)
        self._is_unfinished = False
        with suppress(*_FAILURES):
            self._table.send([{"delete": {"_id": page}} for page in pages])

    # Taking and releasing locks

    def take(self, *, gone: Collection[str]) -> list[Entry]:
        """Acquire all locks or none; return the entries in the way. Holders in ``gone`` have no document.

        The last operation of the request writes our document. If it succeeds, no process had taken it over when the
        locks were acquired, and its term is that of the locks.
        """
        wanted = self._holder.wanted
        items = self._write(*(line for lock in wanted for line in table.take(lock, self._holder, gone=gone)))
        self.term = self._last_term
        in_the_way: list[Entry] = []
        for entries in (table.entries_of(item["get"]) for item in items):
            if all(entry.holder != self._holder.id for entry in entries):
                in_the_way += entries
        if in_the_way:
            self._table.send(self._releases())
        return in_the_way

    def in_the_way(self) -> list[Entry]:
        """Return the entries of others that conflict with the wanted locks."""
        wanted = self._holder.wanted
        others = [entry for entry in self._table.entries(wanted) if entry.holder != self._holder.id]
        return [entry for entry in others if Mode.EXCLUSIVE in (entry.mode, wanted[entry.lock])]

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Release the locks and delete the document. If Elasticsearch does not answer, others take it over in time.

        After an unfinished change both remain: the process that takes the document over rolls the change back.
        """
        self._has_ended.set()
        self._thread.join()
        is_lost = self._is_over or self._is_unfinished
        if not self._is_unfinished:
            try:
                self._write(*self._releases(), is_last=True)
            except LockLostError:
                is_lost = True
            except _FAILURES:
                pass
        if is_lost and kind is None:
            raise self._lost()

    def _releases(self) -> list[dict[str, Any]]:
        return [line for lock in self._holder.wanted for line in table.release(lock, self._holder)]

    # The holder's document

    @property
    def _is_over(self) -> bool:
        """Whether another process has taken the document over, or may have: it was not renewed in time."""
        return self._is_lost or clock() - self._renewed_at > self._holder.lease_seconds

    def _lost(self) -> LockLostError:
        """Write the document no more; return the error to raise."""
        self._is_lost = True
        return LockLostError(
            f"{self._holder.owner} has lost its locks",
            hint="It did not renew its lease in time, or an operator broke its locks; others may have them now.\n"
            "They roll its unfinished change back. Lock again, and read the documents again.",
        )

    def persist(self, action: Callable[[], _Result]) -> _Result:
        """Repeat an action until Elasticsearch has answered, the lease is over, or it is later than ``retry_until``."""
        backoff = Backoff(first_seconds=0.05, longest_seconds=1)
        while True:
            try:
                return action()
            except Exception as error:
                if decide(error) is not Action.RETRY or is_refused(error):
                    raise
                if self._is_over:
                    raise self._lost() from error
                left = self.retry_until - time.monotonic()
                if left <= 0:
                    raise LockTimeoutError(f"Elasticsearch did not complete a request in time: {error}") from error
            time.sleep(min(backoff.next_seconds(), left))

    def _write(self, *operations: dict[str, Any], is_last: bool = False) -> list[dict[str, Any]]:
        """Send operations and then write the document, if no other process has; return the answers to the operations.

        Operations must be safe to repeat. The last write deletes the document, and is allowed after the lease is over.
        """
        with self._mutex:
            while True:
                if self._is_over and not is_last:
                    raise self._lost()
                if not self._version:  # another id at each attempt: one that was used may have been deleted already
                    self._holder = replace(self._holder, id=uuid.uuid4().hex)
                begun_at = clock()
                where = {"_id": self._holder.id, **self._version}
                document = {"kind": "holder", "holder": asdict(replace(self._holder, renewed=table.now()))}
                write = [{"delete": where}] if is_last else [{"index": where}, document]
                *answers, own = self._table.send([*operations, *write], may_conflict=True)
                if own["status"] != CONFLICT:
                    self._version, self._last_term = table.version_of(own), self._table.term(own)
                    self._renewed_at = begun_at
                    return answers
                # An earlier write may have succeeded although its answer was lost.
                found = self._table.holders([self._holder.id])
                if not found or found[0][0].writer != self._holder.writer:
                    raise self._lost()
                self._version = found[0][1]

    def _renew(self) -> None:
        with suppress(LockError):
            while not self._has_ended.wait(self._holder.lease_seconds / _RENEWALS_PER_LEASE):
                with suppress(*_FAILURES):  # the next attempt may succeed in time
                    self._write()
