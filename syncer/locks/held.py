"""Held: the locks that a process holds, and the changes that it makes under them.

They stand in a *holder* in the table, which a thread renews. Each write of it is conditional on the state of the table
that it was decided from. So it fails if another process has taken the holder over, and a process that does so later
sees what was written.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

from elasticsearch import ApiError, Elasticsearch, TransportError

from syncer.base.error_policy import Action, decide, is_refused
from syncer.base.errors import LockError, LockLostError, LockTimeoutError, UnavailableError
from syncer.base.lifecycle import clock
from syncer.base.retry import Backoff
from syncer.locks import edits
from syncer.locks.edits import Edit
from syncer.locks.table import Holder, Holders, Table, now

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

    def __init__(self, client: Elasticsearch, table: Table, holder: Holder, *, retry_until: float) -> None:
        """Prepare to hold what this holder names, by `take` or `take_over`.

        Failed requests are repeated until ``retry_until``, on the monotonic clock.
        """
        self._client = client.options(request_timeout=holder.lease_seconds)
        self._table = table.within(holder.lease_seconds * _TIMEOUT_PER_LEASE)
        self._holder = replace(holder, writer=uuid.uuid4().hex)
        self._mutex = threading.Lock()
        self._has_ended = threading.Event()
        self._is_lost = False
        self._is_unfinished = bool(holder.undo)
        """Whether documents may be changed in part."""
        self._renewed_at = math.inf
        self._last_term = self.term = 0
        self._retry_until = retry_until
        self._thread = threading.Thread(target=self._renew, name="lock-lease", daemon=True)

    # Taking and releasing locks

    def take(self) -> list[Holder]:
        """Acquire all locks or none; return the holders in the way."""
        in_the_way: list[Holder] = []

        def add(holders: Holders) -> bool:
            # Ours is there already if an earlier answer was lost.
            other_holders = [holder for holder in holders.values() if holder.writer != self._holder.writer]
            in_the_way[:] = [holder for holder in other_holders if holder.conflicts(self._holder)]
            self._beat(holders)
            return not in_the_way

        self._begin(add)
        if not in_the_way:
            self._retry_until = math.inf
        return in_the_way

    def take_over(self) -> None:
        """Acquire the locks of a holder that is as it was seen.

        Raises:
            LockLostError: It was renewed, or is gone.
        """

        def replace_writer(holders: Holders) -> bool:
            entry = holders.get(self._holder.id)
            if entry is None or (entry.writer != self._holder.writer and entry.beat != self._holder.beat):
                raise self._lost()
            self._beat(holders)
            return True

        self._begin(replace_writer)

    def _begin(self, change: Callable[[Holders], bool]) -> None:
        """Make a change that enters this holder into the table, and renew it from then on."""

        def attempt() -> None:
            begun_at = clock()
            if term := self._table.update(change):
                self._renewed_at, self._last_term, self.term = begun_at, term, term

        self._persist(attempt)
        if self.term:
            self._thread.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Release the locks. If Elasticsearch does not answer, others take them over in time.

        After an unfinished change they remain held: the process that takes them over rolls the change back.
        """
        self._has_ended.set()
        if self._thread.is_alive():
            self._thread.join()
        is_lost = self._is_over or self._is_unfinished
        if not self._is_unfinished:
            try:
                self._write(is_last=True)
            except LockLostError:
                is_lost = True
            except _FAILURES:
                pass
        if is_lost and kind is None:
            raise self._lost()

    # Changing documents

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
        remaining, count = iter(changes), 0
        try:
            while page := list(islice(remaining, edits.PAGE_EDITS_MAX)):
                self._change(page)
                count += len(page)
        except BaseException:
            self.roll_back()
            raise
        self._finish()
        return count

    def _change(self, changes: Sequence[Edit]) -> None:
        """Store documents as they are, and write them in the term of that request.

        A process that takes the holder over later restores them in a greater term, before it releases the locks.
        """
        originals = self._persist(partial(edits.read, self._client, changes))
        page = uuid.uuid4().hex
        self._is_unfinished = True
        self._holder = replace(self._holder, undo=(*self._holder.undo, page))
        self._persist(partial(self._write, originals=originals, page=page))
        refused = self._persist(partial(edits.write, self._client, changes, term=self._last_term))
        if refused is not None:
            raise refused

    def roll_back(self) -> None:
        """Restore the documents of an unfinished change, last page first: one that was changed twice is in two pages.

        Each page has a term of its own, so that a late request for one page cannot undo what was done after it. A
        document that is refused was written without a lock, which cannot be fixed here.
        """
        for page in reversed(self._holder.undo):
            # None if the page was not stored, and so nothing was changed.
            originals = self._persist(partial(self._table.page, page))
            self._persist(self._write)
            self._persist(partial(edits.write, self._client, originals, term=self._last_term))
        self._finish()

    def _finish(self) -> None:
        """Forget the documents as they were: the change is complete, or rolled back."""
        pages, self._holder = self._holder.undo, replace(self._holder, undo=())
        self._persist(self._write)
        self._is_unfinished = False
        with suppress(*_FAILURES):
            self._table.forget(pages)

    # The holder in the table

    @property
    def _is_over(self) -> bool:
        """Whether another process has taken the holder over, or may have: it was not renewed in time."""
        return self._is_lost or clock() - self._renewed_at > self._holder.lease_seconds

    def _lost(self) -> LockLostError:
        """Write the holder no more; return the error to raise."""
        self._is_lost = True
        return LockLostError(
            f"{self._holder.owner} has lost its locks",
            hint="It did not renew its lease in time, or an operator broke its locks; others may have them now.\n"
            "They roll its unfinished change back. Lock again, and read the documents again.",
        )

    def _persist(self, action: Callable[[], _Result]) -> _Result:
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
                seconds_left = self._retry_until - time.monotonic()
                if seconds_left <= 0:
                    raise LockTimeoutError(f"A request was not completed in time: {error}") from error
            time.sleep(min(backoff.next_seconds(), seconds_left))

    def _write(self, *, is_last: bool = False, **stored: Any) -> None:
        """Write the holder, unless another process has taken it over.

        The last write removes it, and is allowed after the lease is over.
        """

        def change(holders: Holders) -> bool:
            entry = holders.pop(self._holder.id, None)
            if entry is None or entry.writer != self._holder.writer or (self._is_over and not is_last):
                raise self._lost()
            if not is_last:
                self._beat(holders)
            return True

        with self._mutex:
            begun_at = clock()
            self._last_term = self._table.update(change, **stored)
            self._renewed_at = begun_at

    def _beat(self, holders: Holders) -> None:
        holders[self._holder.id] = replace(self._holder, beat=uuid.uuid4().hex, renewed=now())

    def _renew(self) -> None:
        with suppress(LockError):
            while not self._has_ended.wait(self._holder.lease_seconds / _RENEWALS_PER_LEASE):
                with suppress(*_FAILURES):  # the next attempt may succeed in time
                    self._write()
