"""Locks: what applications use."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Self

from elasticsearch import ApiError, Elasticsearch, TransportError

from syncer.errors import LockError, LockTimeoutError
from syncer.locks import burial, names
from syncer.locks.change import Change, Intent, Recovery
from syncer.locks.fence import Fence
from syncer.locks.lease import Lease, Watch, lost
from syncer.locks.names import Mode
from syncer.locks.registry import Entry, Registry, ensure
from syncer.policy import Backoff

INDEX = "syncer-locks"
"""Where locks are, if nobody says otherwise."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.5
_PAGE = 500
_LOCKS_MAX = 10_000


class Held:
    """Locks that were granted together. From `Locks`, as what its with statements yield.

    Attributes:
        term: Greater than that of everybody who held any of these locks before.
    """

    def __init__(self, *, registry: Registry, fence: Fence, lease: Lease, term: int) -> None:
        self._registry = registry
        self._fence = fence
        self._lease = lease
        self.term = term

    def require(self) -> None:
        """Refuse to go on if the locks are lost.

        Raises:
            LockLostError: They are.
        """
        self._lease.require()

    def write(self, changes: Iterable[Change]) -> int:
        """Make changes, all of them or none, even if this process dies meanwhile.

        What is to be changed is put down first, with what is there now. Then each document is written whole, with the
        term as external version. So all who write these documents must do it by this method. Of many changes one page
        at a time is in memory. Searches see them one by one: Elasticsearch has no transactions.

        Returns:
            How many documents were written.

        Raises:
            LockLostError: The locks are no longer ours; whoever took them finishes this, or rolls it back.
            LockError: Elasticsearch refuses a document, or it has a later version than any of ours. All others are as
                they were.
        """
        self._lease.require()
        intent, count = self._put_down(changes)
        self._lease.persist(lambda: self._lease.amend(intent=intent))
        refused = self._carry_out(intent, Recovery.FINISH)
        if refused is not None:
            self._carry_out(intent, Recovery.ROLL_BACK)
        self._lease.persist(lambda: self._lease.amend(intent=None))
        self._registry.drop_pages(intent)
        if refused is not None:
            raise refused
        return count

    def _put_down(self, changes: Iterable[Change]) -> tuple[Intent, int]:
        id_, pages, count = uuid.uuid4().hex, 0, 0
        left = iter(changes)
        while page := list(islice(left, _PAGE)):
            planned = self._fence.plan(page)
            self._lease.persist(partial(self._registry.put_page, id_, pages, planned))
            pages, count = pages + 1, count + len(page)
        return Intent(id=id_, pages=pages), count

    def _carry_out(self, intent: Intent, recovery: Recovery) -> LockError | None:
        return burial.carry_out(self._registry, self._fence, intent, recovery, term=self.term, lease=self._lease)


class Locks:
    """Locks for one owner. Not for sharing between threads: each has one of its own, as has each process.

    What the owner holds already it is granted again at once.

    Args:
        client: Elasticsearch.
        owner: What a person calls whoever locks; need not be unique.
        index: Where locks are; it is made if it is not there.
        lease_seconds: After how long without a sign of life others may take this owner for dead.
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
        self._registry = Registry(self._client, index=index, born=ensure(client, index))
        self._fence = Fence(self._client)
        self._recovery = recovery
        self._held: dict[str, list[Mode]] = {}
        self._lease = Lease(self._registry, owner=owner, seconds=lease_seconds)
        self._watch = Watch(self._registry, own=self._lease.id)

    def __enter__(self) -> Self:
        """Itself, for a with statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give everything back."""
        self.close()

    def close(self) -> None:
        """Give everything back, and leave."""
        with suppress(ApiError, TransportError):
            self._registry.give_back(self._lease.id, self._held)
        self._held = {}
        self._lease.close()

    @contextmanager
    def everything(self, name: str = "everything", *, timeout: float | None = 30) -> Iterator[Held]:
        """The global lock of that name.

        Args:
            name: Which, if there is more than one.
            timeout: How many seconds to wait for it; None for as long as it takes.

        Raises:
            LockTimeoutError: Somebody else has it for so long.
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

    def bury(self, holder: str) -> bool:
        """Take a holder for dead without waiting: what it holds is free, and its changes finished or rolled back.

        Returns:
            Whether it is gone; False if it has just moved, or somebody else buries it.
        """
        return self._lease.persist(partial(self._bury, holder))

    @contextmanager
    def _holding(self, wanted: Mapping[str, Mode], timeout: float | None) -> Iterator[Held]:
        if len(wanted) > _LOCKS_MAX:
            raise LockError(
                f"{len(wanted):,} locks at once are too many", hint="Take a lock on the tree, or the global lock."
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        missing = [lock for lock in names.in_order(wanted) if not names.covers(self._mode(lock), wanted[lock])]
        try:
            self._take(missing, wanted, deadline)
            # Granted only now: a write which fails for who is taken for dead; and its number is the term.
            term = self._registry.term(self._lease.persist(self._lease.amend))
            for lock, mode in wanted.items():
                self._held.setdefault(lock, []).append(mode)
        except BaseException:
            self._give_back(lock for lock in missing if lock not in self._held)
            raise
        try:
            yield Held(registry=self._registry, fence=self._fence, lease=self._lease, term=term)
        except BaseException:
            self._release(wanted)
            raise
        if self._release(wanted):
            raise lost(self._lease.owner)

    def _mode(self, lock: str) -> Mode | None:
        return max(self._held.get(lock, ()), key=lambda mode: mode is Mode.EXCLUSIVE, default=None)

    def _take(self, missing: list[str], wanted: Mapping[str, Mode], deadline: float | None) -> None:
        """Take locks in order: who waits for one holds only such as come before it."""
        backoff = Backoff(first_seconds=_FIRST_PAUSE_SECONDS, longest_seconds=_LONGEST_PAUSE_SECONDS)
        while missing:
            asked = [(lock, wanted[lock]) for lock in missing]
            blocked = self._lease.persist(partial(self._registry.take, self._lease.id, asked))
            first = next((place for place, lock in enumerate(missing) if lock in blocked), len(missing))
            missing, behind = missing[first:], [one for one in missing[first + 1 :] if one not in self._held]
            if not missing:
                return
            self._give_back(behind)
            in_the_way = blocked[missing[0]]
            if deadline is not None and time.monotonic() >= deadline:
                raise self._too_late(missing[0], in_the_way)
            for dead in self._lease.persist(partial(self._watch.look, {one.holder for one in in_the_way})):
                self.bury(dead)
            pause = backoff.next_seconds()
            time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - time.monotonic())))

    def _bury(self, dead: str) -> bool:
        return burial.bury(self._registry, self._fence, dead, successor=self._lease, recovery=self._recovery)

    def _too_late(self, lock: str, in_the_way: Iterable[Entry]) -> LockTimeoutError:
        said = [f"{self._who(one.holder)}, {one.mode} since {one.since}" for one in in_the_way]
        return LockTimeoutError(
            f"{names.readable(lock)} is held by {'; '.join(said) or 'others'}",
            hint="Wait longer, or look: syncer locks list",
        )

    def _who(self, holder: str) -> str:
        found = self._registry.look(holder)
        return holder if found is None else f"{found[0].owner} (process {found[0].process} on {found[0].host})"

    def _release(self, wanted: Mapping[str, Mode]) -> list[str]:
        """Give back what nothing else needs; returns what was no longer ours."""
        for lock, mode in wanted.items():
            self._held[lock].remove(mode)
        free = [lock for lock in wanted if not self._held[lock]]
        for lock in free:
            del self._held[lock]
        return self._give_back(free)

    def _give_back(self, locks: Iterable[str]) -> list[str]:
        """Free locks; what cannot be freed now, others free once our lease is over. Returns what was not ours."""
        try:
            return self._registry.give_back(self._lease.id, locks)
        except (ApiError, TransportError):
            return []
