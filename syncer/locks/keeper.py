"""Locks: what applications use."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Self

from elasticsearch import ApiError, Elasticsearch, TransportError

from syncer.errors import LockError, LockTimeoutError, UnavailableError
from syncer.locks import burial, names
from syncer.locks.burial import Burial
from syncer.locks.change import Recovery
from syncer.locks.entries import Entry
from syncer.locks.fence import Fence
from syncer.locks.held import Held
from syncer.locks.lease import Lease
from syncer.locks.names import Mode
from syncer.locks.registry import INDEX, ensure
from syncer.locks.watch import Watch
from syncer.policy import Backoff

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.5
_LOCKS_MAX = 10_000
_ASKED_MAX = 1000
"""In one request, which is to be answered within a lease."""


class Locks:
    """Locks for one owner. Not for sharing between threads: each has one of its own, as has each process.

    What the owner holds already it is granted again at once.

    Args:
        client: Elasticsearch.
        owner: What a person calls whoever locks; need not be unique.
        index: Where locks are; it is made if it is not there.
        lease_seconds: After how long without a sign of life others may take this owner for dead. Elasticsearch being
            away for longer than that costs everybody his locks.
        recovery: What to do with changes that another owner has left half done.

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
        recovery: Recovery = Recovery.FINISH,
    ) -> None:
        if not 0 < lease_seconds < float("inf"):
            raise LockError(f"A lease cannot last {lease_seconds} s", hint="As in: lease_seconds=10")
        # No request is waited for longer than the lease that allows it.
        self._client = client.options(request_timeout=lease_seconds, max_retries=0)
        self._index = index
        self._fence = Fence(self._client)
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._recovery = recovery
        self._held: dict[str, list[Mode]] = {}
        self._enter()

    def __enter__(self) -> Self:
        """Itself, for a with statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give everything back."""
        self.close()

    def close(self) -> None:
        """Give everything back, and leave."""
        held, self._held = list(self._held), {}
        self._give_back(held)
        self._lease.close()

    @contextmanager
    def everything(self, name: str = "everything", *, timeout: float | None = 30) -> Iterator[Held]:
        """The global lock of that name.

        Args:
            name: Which, if there is more than one.
            timeout: How many seconds to wait for it; None for as long as it takes.

        Raises:
            LockTimeoutError: Somebody else has it for so long, or Elasticsearch does not answer.
            LockLostError: We were taken for dead meanwhile.
        """
        with self._holding(names.everything(name), timeout) as held:
            yield held

    @contextmanager
    def documents(self, index: str, ids: Iterable[str], *, timeout: float | None = 30) -> Iterator[Held]:
        """A lock on each of some documents: on all of them, or on none.

        Args:
            index: Where they are.
            ids: Which; they need not exist.
            timeout: As for `everything`.

        Raises:
            LockTimeoutError, LockLostError: As for `everything`.
        """
        with self._holding(names.documents(index, ids), timeout) as held:
            yield held

    @contextmanager
    def tree(self, *paths: str, name: str = "files", timeout: float | None = 30) -> Iterator[Held]:
        """A lock on paths and all that is below them; what is above them is shared, so that nobody else has it alone.

        Args:
            paths: Of directories or files, absolute. To move something, lock where it is and where it goes.
            name: Of which tree.
            timeout: As for `everything`.

        Raises:
            LockTimeoutError, LockLostError: As for `everything`.
        """
        with self._holding(names.tree(name, paths), timeout) as held:
            yield held

    def bury(self, holder: str, *, timeout: float | None = None) -> Burial:
        """Take a holder for dead without waiting: what it holds is free, and its changes finished or rolled back.

        Args:
            holder: Its id.
            timeout: For how many seconds to try again what Elasticsearch does not do; None for as long as it takes.

        Raises:
            LockTimeoutError: Elasticsearch does not do it for so long.
            LockLostError: We were taken for dead meanwhile.
        """
        self._be_somebody()
        with self._lease.patient_until(_deadline(timeout)):
            return self._bury(holder)

    # Taking

    @contextmanager
    def _holding(self, wanted: Mapping[str, Mode], timeout: float | None) -> Iterator[Held]:
        self._be_somebody()
        missing = [lock for lock in names.in_order(wanted) if not names.covers(self._mode(lock), wanted[lock])]
        self._require_possible(missing, timeout)
        deadline = _deadline(timeout)
        try:
            with self._lease.patient_until(deadline):
                self._take(missing, wanted, deadline)
                # Granted only now: a write which fails for who is taken for dead; and its number is the term.
                term = self._registry.term(self._lease.persist(self._lease.amend))
            for lock, mode in wanted.items():
                self._held.setdefault(lock, []).append(mode)
        except BaseException:
            self._give_back(missing)
            self._leave_if_unsure()
            raise
        held = Held(registry=self._registry, fence=self._fence, lease=self._lease, term=term)
        try:
            yield held
        except BaseException:
            self._release(held, wanted)
            raise
        if self._release(held, wanted):
            raise self._lease.lost()

    def _require_possible(self, missing: list[str], timeout: float | None) -> None:
        """Refuse what cannot be had, or may never be.

        Raises:
            LockError: It is too much; or it could be waited for in a circle, without an end.
        """
        if len(missing) > _LOCKS_MAX:
            raise LockError(
                f"{len(missing):,} locks at once are too many", hint="Take a lock on the tree, or the global lock."
            )
        if timeout is None and missing and self._held and missing[0] <= max(self._held):
            raise LockError(
                f"{names.readable(missing[0])} is asked for by who holds other locks, without a timeout",
                hint="Two who do so can wait for one another for ever: take all at once, or give a timeout.",
            )

    def _take(self, missing: list[str], wanted: Mapping[str, Mode], deadline: float | None) -> None:
        """Take locks in order: who waits for one holds only such as come before it."""
        backoff = Backoff(first_seconds=_FIRST_PAUSE_SECONDS, longest_seconds=_LONGEST_PAUSE_SECONDS)
        asked = missing[:_ASKED_MAX]
        while missing:
            blocked = self._lease.persist(partial(self._ask, [(lock, wanted[lock]) for lock in asked]))
            first = next((place for place, lock in enumerate(asked) if lock in blocked), len(asked))
            missing, behind = missing[first:], {lock: self._mode(lock) for lock in asked[first + 1 :]}
            self._lease.persist(partial(self._registry.entries.give_back, self._lease.id, behind))
            if first == len(asked):
                asked = missing[:_ASKED_MAX]
                continue
            # Those behind it are left to others meanwhile; unless an entry may come there yet, to be given back.
            asked = missing[: _ASKED_MAX if self._is_unsure else 1]
            in_the_way = blocked[missing[0]]
            dead = self._lease.persist(partial(self._watch.look, {one.holder for one in in_the_way}))
            buried = [self._bury(one) for one in dead]
            if any(one.is_gone for one in buried):
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

    def _bury(self, dead: str) -> Burial:
        bury = partial(burial.bury, self._registry, self._fence, dead, successor=self._lease, recovery=self._recovery)
        return self._lease.persist(bury)

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

    def _release(self, held: Held, wanted: Mapping[str, Mode]) -> list[str]:
        """Give back what nothing else needs; returns what was no longer ours."""
        held.end()
        for lock, mode in wanted.items():
            if lock in self._held:  # unless all was closed meanwhile
                self._held[lock].remove(mode)
        free = [lock for lock, mode in wanted.items() if not names.covers(self._mode(lock), mode)]
        self._held = {lock: modes for lock, modes in self._held.items() if modes}
        missing = self._give_back(free)
        self._leave_if_unsure()
        return missing

    def _give_back(self, locks: Iterable[str]) -> list[str]:
        """Leave of locks no more than what is held by now; returns those that were, or may be, no longer ours.

        What was broken off is not given back: nobody may have it before it is finished or rolled back, and that is
        done by who buries us. What cannot be given back now is others' once we have left.
        """
        kept = {lock: self._mode(lock) for lock in locks}
        if self._lease.is_unfinished or not kept:
            return list(kept)
        try:
            return self._registry.entries.give_back(self._lease.id, kept)
        except (ApiError, TransportError, UnavailableError):
            self._is_unsure = True
            return list(kept) if self._lease.is_over else []

    def _mode(self, lock: str) -> Mode | None:
        return max(self._held.get(lock, ()), key=lambda mode: mode is Mode.EXCLUSIVE, default=None)

    # Who we are

    def _be_somebody(self) -> None:
        """Whoever was taken for dead, or has left, comes back as somebody else."""
        if self._lease.is_over and not self._held:
            self._lease.close()
            self._enter()

    def _leave_if_unsure(self) -> None:
        """Entries of who has left are nobody's: that frees what we could not, and what may be entered yet."""
        if self._is_unsure and not self._held:
            self._lease.close()

    def _enter(self) -> None:
        self._registry = ensure(self._client, self._index)  # again: it may have been deleted since
        self._lease = Lease(self._registry.holders, owner=self._owner, seconds=self._lease_seconds)
        self._watch = Watch(self._registry.holders, own=self._lease.id)
        self._is_unsure = False
        """Whether an entry may be there, or come yet, that we believe we do not have: a request was not answered."""


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
