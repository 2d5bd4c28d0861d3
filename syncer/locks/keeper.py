"""Locks: the API for applications."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self

from elasticsearch import ApiError, Elasticsearch, TransportError

from syncer.base.errors import LockError, LockTimeoutError, UnavailableError
from syncer.base.retry import Backoff
from syncer.locks import burial, names
from syncer.locks.entries import Entry
from syncer.locks.fence import Fence
from syncer.locks.held import HeldLocks
from syncer.locks.holders import Liveness
from syncer.locks.lease import Lease
from syncer.locks.names import Mode
from syncer.locks.registry import INDEX, ensure

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.5
_LOCKS_MAX = 10_000
_ASKED_MAX = 1000
"""The number of locks in one request, which must be answered within a lease."""


class Locks:
    """Locks of one owner. Not for sharing between threads: each thread and process needs its own.

    An owner requests all locks that it needs at once: while it holds some, it is granted no others.

    Args:
        client: Elasticsearch.
        owner: A name for people; need not be unique.
        index: The index of locks; created if missing.
        lease_seconds: After how long without a renewal others may declare this owner dead. If Elasticsearch is
            unavailable for longer, all owners lose their locks.

    Raises:
        LockError: The index cannot hold locks.
    """

    def __init__(
        self,
        client: Elasticsearch,
        *,
        owner: str,
        index: str = INDEX,
        lease_seconds: float = 10,
    ) -> None:
        if not 0 < lease_seconds < float("inf"):
            raise LockError(f"A lease cannot last {lease_seconds} s", hint="As in: lease_seconds=10")
        # No request may take longer than the lease under which it is made.
        self._client = client.options(request_timeout=lease_seconds, max_retries=0)
        self._index = index
        self._fence = Fence(self._client)
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._held: Sequence[str] = ()
        self._enter()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release everything."""
        self.close()

    def close(self) -> None:
        """Release everything and remove the holder."""
        held, self._held = self._held, ()
        self._give_back(held)
        self._lease.close()

    @contextmanager
    def everything(self, name: str = "everything", *, timeout: float | None = 30) -> Iterator[HeldLocks]:
        """Acquire the global lock of that name.

        Args:
            name: Tells several global locks apart.
            timeout: How many seconds to wait; None for no limit.

        Raises:
            LockTimeoutError: Another holder kept it, or Elasticsearch did not answer.
            LockLostError: This owner was declared dead meanwhile.
        """
        with self._holding(names.everything(name), timeout) as held:
            yield held

    @contextmanager
    def documents(self, index: str, ids: Iterable[str], *, timeout: float | None = 30) -> Iterator[HeldLocks]:
        """Acquire a lock on each of these documents: on all of them or none.

        Args:
            index: Their index.
            ids: Their ids; the documents need not exist.
            timeout: As for `everything`.

        Raises:
            LockTimeoutError, LockLostError: As for `everything`.
        """
        with self._holding(names.documents(index, ids), timeout) as held:
            yield held

    @contextmanager
    def tree(self, *paths: str, name: str = "files", timeout: float | None = 30) -> Iterator[HeldLocks]:
        """Acquire locks on paths and everything below them. Their parents are shared, so that nothing else locks them.

        Args:
            paths: Absolute paths of directories or files. To move something, lock both its source and its target.
            name: Tells several trees apart.
            timeout: As for `everything`.

        Raises:
            LockTimeoutError, LockLostError: As for `everything`.
        """
        with self._holding(names.tree(name, paths), timeout) as held:
            yield held

    def bury(self, holder: str, *, timeout: float | None = None) -> bool:
        """Declare a holder dead without waiting: roll back its unfinished change, and release its locks.

        Args:
            holder: Its id.
            timeout: For how many seconds to retry if Elasticsearch is unavailable; None for no limit.

        Returns:
            Whether that is done. If not, it renewed its lease, or another process is burying it.

        Raises:
            LockTimeoutError: Elasticsearch stayed unavailable.
            LockLostError: This owner was declared dead meanwhile.
        """
        self._ensure_holder()
        with self._lease.patient_until(_deadline(timeout)):
            return self._bury(holder)

    # Acquiring

    @contextmanager
    def _holding(self, wanted: Mapping[str, Mode], timeout: float | None) -> Iterator[HeldLocks]:
        if self._held:
            raise LockError(
                f"{self._owner} holds locks already, and requests {names.readable(min(wanted))}",
                hint="Request all locks at once, or use one `Locks` for each.",
            )
        if len(wanted) > _LOCKS_MAX:
            raise LockError(
                f"{len(wanted):,} locks at once are too many", hint="Take a lock on the tree, or the global lock."
            )
        self._ensure_holder()
        deadline = _deadline(timeout)
        locks = sorted(wanted)  # one order for all owners prevents deadlocks; a directory comes before its contents
        try:
            with self._lease.patient_until(deadline):
                self._take(locks, wanted, deadline)
                # This grants the locks: the write fails if we were declared dead, and its number is the term.
                term = self._registry.term(self._lease.persist(self._lease.amend))
            self._held = locks
        except BaseException:
            self._give_back(locks)
            self._leave_if_unsure()
            raise
        held = HeldLocks(registry=self._registry, fence=self._fence, lease=self._lease, term=term)
        try:
            yield held
        except BaseException:
            self._release(held, locks)
            raise
        if self._release(held, locks):
            raise self._lease.lost()

    def _take(self, missing: list[str], wanted: Mapping[str, Mode], deadline: float | None) -> None:
        """Acquire locks in order: while waiting for one, hold only those that come before it."""
        backoff = Backoff(first_seconds=_FIRST_PAUSE_SECONDS, longest_seconds=_LONGEST_PAUSE_SECONDS)
        asked = missing[:_ASKED_MAX]
        while missing:
            blocked = self._lease.persist(partial(self._ask, [(lock, wanted[lock]) for lock in asked]))
            first = next((place for place, lock in enumerate(asked) if lock in blocked), len(asked))
            missing, behind = missing[first:], asked[first + 1 :]
            self._lease.persist(partial(self._registry.entries.give_back, self._lease.id, behind))
            if first == len(asked):
                asked = missing[:_ASKED_MAX]
                continue
            # Leave the locks after it to others meanwhile, unless an unanswered request may still add entries there.
            asked = missing[: _ASKED_MAX if self._is_unsure else 1]
            in_the_way = blocked[missing[0]]
            dead = self._lease.persist(partial(self._watch.look, {one.holder for one in in_the_way}))
            if any(self._bury(one) for one in dead):
                continue
            self._lease.require()
            if deadline is not None and time.monotonic() >= deadline:
                raise self._too_late(missing[0], in_the_way)
            pause = backoff.next_seconds()
            time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - time.monotonic())))

    def _ask(self, asked: list[tuple[str, Mode]]) -> dict[str, list[Entry]]:
        try:
            return self._registry.entries.take(self._lease.id, asked)
        except BaseException:
            self._is_unsure = True
            raise

    def _bury(self, dead: str) -> bool:
        return self._lease.persist(partial(burial.bury, self._registry, self._fence, dead, successor=self._lease))

    def _too_late(self, lock: str, in_the_way: Iterable[Entry]) -> LockTimeoutError:
        said = [f"{self._who(one.holder)}, {one.mode} since {one.since}" for one in in_the_way]
        return LockTimeoutError(
            f"{names.readable(lock)} is held by {'; '.join(said) or 'others'}",
            hint="Wait longer, or look: syncer locks list",
        )

    def _who(self, holder: str) -> str:
        found = self._registry.holders.look(holder)
        return holder if found is None else f"{found[0].owner} (process {found[0].process} on {found[0].host})"

    # Giving back

    def _release(self, held: HeldLocks, locks: Sequence[str]) -> list[str]:
        """Release locks; return those that were lost."""
        held.end()
        self._held = ()
        lost = self._give_back(locks)
        self._leave_if_unsure()
        return lost

    def _give_back(self, locks: Sequence[str]) -> list[str]:
        """Release locks; return those that are, or may be, lost.

        After an aborted change nothing is released: its locks must stay until the process that buries this holder has
        rolled it back. Locks that cannot be released now become free once this holder has left.
        """
        if self._lease.is_unfinished:
            return list(locks)
        try:
            return self._registry.entries.give_back(self._lease.id, locks)
        except (ApiError, TransportError, UnavailableError):
            self._is_unsure = True
            return list(locks) if self._lease.is_over else []

    # The holder

    def _ensure_holder(self) -> None:
        """If this holder was declared dead or has left, continue with a new one."""
        if self._lease.is_over and not self._held:
            self._lease.close()
            self._enter()

    def _leave_if_unsure(self) -> None:
        """Leave if entries may exist that we do not know of: entries of a holder that has left do not count."""
        if self._is_unsure:
            self._lease.close()

    def _enter(self) -> None:
        self._registry = ensure(self._client, self._index)  # again: it may have been deleted since
        self._lease = Lease(self._registry.holders, owner=self._owner, seconds=self._lease_seconds)
        self._watch = Liveness(self._registry.holders, own=self._lease.id)
        self._is_unsure = False
        """Whether an unanswered request may have added entries, or may still add them."""


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
