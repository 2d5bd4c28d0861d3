"""Lease: one's own holder, renewed by a thread for as long as this process lives."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from elasticsearch import ApiError, AuthenticationException, AuthorizationException, TransportError

from syncer.compose import clock
from syncer.errors import LockLostError, LockTimeoutError
from syncer.locks.holders import Holder, Holders, Seen
from syncer.policy import Action, Backoff, decide, explain

_Result = TypeVar("_Result")

_RENEWALS_PER_LEASE = 4
_RETRIES_PER_LEASE = 20
_PATIENCE_PER_LEASE = 0.5
"""How long one renewal is waited for: an answer that never comes must leave time for another request."""
_REFUSED = (AuthenticationException, AuthorizationException)
"""Not waited for here, while others wait for the lock."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0


class Lease:
    """One's own holder. It is renewed until it is given up, or lost.

    Guarantees: `amend` succeeds only as long as nobody has taken this holder for dead, and whoever does so later finds
    what was written. Once the lease has not been renewed in time, `require` refuses, whatever Elasticsearch would say.

    Args:
        holders: Where it is put down.
        owner: As a person calls it.
        seconds: How long a lease lasts without a renewal.
    """

    def __init__(self, holders: Holders, *, owner: str, seconds: float) -> None:
        self._holders = holders.within(seconds * _PATIENCE_PER_LEASE)
        self._holder = Holder(id=f"holder:{uuid.uuid4().hex}", owner=owner, lease_seconds=seconds)
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._is_lost = False
        self._is_unfinished = False
        self._until: float | None = None
        self._renewed_at = clock()
        self._seen = holders.enter(self._holder)
        self._thread = threading.Thread(target=self._renew, name="lock-lease", daemon=True)
        self._thread.start()

    @property
    def id(self) -> str:
        """The holder's id."""
        return self._holder.id

    @property
    def owner(self) -> str:
        """As a person calls it."""
        return self._holder.owner

    @property
    def is_over(self) -> bool:
        """Whether nothing can be done under it any more."""
        return self._is_lost or clock() - self._renewed_at > self._holder.lease_seconds

    @property
    def is_unfinished(self) -> bool:
        """Whether a change was broken off: whoever buries this holder must find all that it held."""
        return self._is_unfinished

    def require(self) -> None:
        """Refuse to go on under a lease that is over.

        Raises:
            LockLostError: It was not renewed in time, or somebody has taken us for dead.
        """
        if self.is_over:
            raise self.lost()

    def lost(self) -> LockLostError:
        """Give up, since others have what was ours; returns what is to be said."""
        self._is_lost = True
        self._ended.set()
        return LockLostError(
            f"{self.owner} has lost its locks",
            hint="It was not heard of for longer than its lease, or somebody broke them; others may have them now.\n"
            "They finish what it had begun, or roll it back. Lock again, and look at the documents anew.",
        )

    def amend(self, **fields: Any) -> Seen:
        """Write the holder with other fields; a write that only others' burying us could have prevented.

        Raises:
            LockLostError: Somebody has taken us for dead.
            ApiError, TransportError: Elasticsearch does not answer; whether it was written is not known.
        """
        with self._mutex:
            self.require()
            begun_at = clock()
            wanted = replace(self._holder, renewals=self._holder.renewals + 1, **fields)
            seen = self._holders.amend(wanted, self._seen)
            while seen is None:
                self._look()
                seen = self._holders.amend(wanted, self._seen)
            self._holder, self._seen, self._renewed_at = wanted, seen, begun_at
            return seen

    @contextmanager
    def patient_until(self, deadline: float | None) -> Iterator[None]:
        """Within, nothing is tried again after that moment. What goes well may take longer.

        Args:
            deadline: On the monotonic clock; None for never.
        """
        self._until = deadline
        try:
            yield
        finally:
            self._until = None

    def persist(self, action: Callable[[], _Result]) -> _Result:
        """Do something until Elasticsearch has answered, but for no longer than the lease lasts.

        Raises:
            LockLostError: It lasts no longer.
            LockTimeoutError: One is no longer patient.
            Exception: What trying again does not mend.
        """
        backoff = Backoff(first_seconds=_FIRST_PAUSE_SECONDS, longest_seconds=_LONGEST_PAUSE_SECONDS)
        while True:
            try:
                return action()
            except Exception as error:
                if decide(error) is not Action.RETRY or isinstance(error, _REFUSED):
                    raise
                if self.is_over:
                    raise self.lost() from error
                left = float("inf") if self._until is None else self._until - time.monotonic()
                if left <= 0:
                    raise _out_of_patience(error) from error
            time.sleep(min(backoff.next_seconds(), left))

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Around a change of many documents: if it is broken off, this holder gives itself up.

        Only who buries it can know then how far it came, and makes all of the change, or nothing.
        """
        try:
            yield
        except BaseException:
            self._is_unfinished = True
            self.lost()
            raise

    def close(self) -> None:
        """Renew no more, and leave; or say that we are dead, for others to bury us at once."""
        self._ended.set()
        self._thread.join()
        self._is_lost = True
        with suppress(ApiError, TransportError):  # they find out by themselves, after a while
            if self._is_unfinished:
                self._holders.amend(replace(self._holder, is_dead=True), self._seen)
            elif not self._holders.leave(self.id, self._seen):
                found = self._holders.look(self.id)  # the answer to our last write may have been lost
                if found is not None and not found[0].is_dead:
                    self._holders.leave(self.id, found[1])

    def _look(self) -> None:
        """See what became of our holder: an answer that was lost may have been a write that was not."""
        found = self._holders.look(self._holder.id)
        if found is None or found[0].is_dead:
            raise self.lost()
        self._seen = found[1]

    def _renew(self) -> None:
        lease = self._holder.lease_seconds
        pause = lease / _RENEWALS_PER_LEASE
        while not self._ended.wait(pause):
            try:
                self.amend()
                pause = lease / _RENEWALS_PER_LEASE
            except LockLostError:
                return
            except (ApiError, TransportError):
                pause = lease / _RETRIES_PER_LEASE  # the next one may come through in time


def _out_of_patience(error: Exception) -> LockTimeoutError:
    said = explain(error)
    assert said is not None  # noqa: S101 - what is tried again is an error of Elasticsearch's, and has words
    return LockTimeoutError(f"Elasticsearch did not do what it was asked for in time: {said.message}", hint=said.hint)
