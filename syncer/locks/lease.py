"""Lease: this process's own holder, renewed by a thread for as long as the process lives."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from elasticsearch import ApiError, AuthenticationException, AuthorizationException, TransportError

from syncer.base.error_policy import Action, decide, explain
from syncer.base.errors import LockLostError, LockTimeoutError
from syncer.base.lifecycle import clock
from syncer.base.retry import Backoff
from syncer.locks.holders import Holder, Holders, SeqNo, now
from syncer.locks.intents import Intent

_Result = TypeVar("_Result")

_RENEWALS_PER_LEASE = 4
_RETRIES_PER_LEASE = 20
_PATIENCE_PER_LEASE = 0.5
"""How long to wait for one renewal, as a share of the lease: an answer that never comes must leave time to retry."""
_REFUSED = (AuthenticationException, AuthorizationException)
"""Errors that are not retried here, while other processes wait for the lock."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0


class Lease:
    """This process's own holder. It is renewed until it is closed or lost.

    Guarantees: `amend` succeeds only while no other process has declared this holder dead, and a process that does so
    later sees what was written. If the lease was not renewed in time, `require` refuses, whatever Elasticsearch says.

    Args:
        holders: The holders' documents.
        owner: A name for people.
        seconds: How long the lease lasts without a renewal.
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
        """The owner's name for people."""
        return self._holder.owner

    @property
    def intent(self) -> Intent | None:
        """The documents that this holder may be changing, as last written."""
        return self._holder.intent

    @property
    def is_over(self) -> bool:
        """Whether the lease was lost, closed, or not renewed in time."""
        return self._is_lost or clock() - self._renewed_at > self._holder.lease_seconds

    @property
    def is_unfinished(self) -> bool:
        """Whether a change was aborted: the process that buries this holder must find all its locks."""
        return self._is_unfinished

    def require(self) -> None:
        """Check that the lease is valid.

        Raises:
            LockLostError: It was not renewed in time, or another process has declared this holder dead.
        """
        if self.is_over:
            raise self.lost()

    def lost(self) -> LockLostError:
        """Give up the lease, since others may have its locks now; return the error to raise."""
        self._is_lost = True
        self._ended.set()
        return LockLostError(
            f"{self.owner} has lost its locks",
            hint="It did not renew its lease in time, or an operator broke its locks; others may have them now.\n"
            "They roll its change back. Lock again, and read the documents again.",
        )

    def amend(self, **fields: Any) -> SeqNo:
        """Write the holder with other fields; refused only if another process has declared it dead.

        Raises:
            LockLostError: Another process has declared this holder dead.
            ApiError, TransportError: Elasticsearch did not answer; the write may or may not have happened.
        """
        with self._mutex:
            self.require()
            begun_at = clock()
            wanted = replace(self._holder, renewed=now(), **fields)
            seen = self._holders.amend(wanted, self._seen)
            while seen is None:
                self._look()
                seen = self._holders.amend(wanted, self._seen)
            self._holder, self._seen, self._renewed_at = wanted, seen, begun_at
            return seen

    @contextmanager
    def patient_until(self, deadline: float | None) -> Iterator[None]:
        """Retry nothing after a deadline during the block. Successful requests may take longer.

        Args:
            deadline: On the monotonic clock; None for no limit.
        """
        self._until = deadline
        try:
            yield
        finally:
            self._until = None

    def persist(self, action: Callable[[], _Result]) -> _Result:
        """Repeat an action until Elasticsearch has answered, but no longer than the lease lasts.

        Raises:
            LockLostError: The lease is over.
            LockTimeoutError: The deadline of `patient_until` has passed.
            Exception: A non-retryable error.
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
        """Run a change of many documents; if it is aborted, this holder gives itself up.

        Only the process that buries it can find out how far the change came, and undoes it.
        """
        try:
            yield
        except BaseException:
            self._is_unfinished = True
            self.lost()
            raise

    def close(self) -> None:
        """Stop renewing and remove the holder; after an aborted change, mark it dead so that others bury it at once."""
        self._ended.set()
        self._thread.join()
        self._is_lost = True
        with suppress(ApiError, TransportError):  # other processes find out by themselves after a while
            if self._is_unfinished:
                self._holders.amend(replace(self._holder, is_dead=True), self._seen)
            elif not self._holders.leave(self.id, self._seen):
                found = self._holders.look(self.id)  # our last write may have succeeded unanswered
                if found is not None and not found[0].is_dead:
                    self._holders.leave(self.id, found[1])

    def _look(self) -> None:
        """Read our holder again: an earlier write may have succeeded although its answer was lost."""
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
                pause = lease / _RETRIES_PER_LEASE  # the next attempt may succeed in time


def _out_of_patience(error: Exception) -> LockTimeoutError:
    said = explain(error)
    assert said is not None  # noqa: S101 - retryable errors come from Elasticsearch and have an explanation
    return LockTimeoutError(f"Elasticsearch did not do what it was asked for in time: {said.message}", hint=said.hint)
