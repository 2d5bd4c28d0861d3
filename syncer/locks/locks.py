"""Locks: the interface for applications."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from uuid import uuid4

from elasticsearch import Elasticsearch

from syncer.base.errors import LockError, LockLostError, LockTimeoutError
from syncer.base.lifecycle import clock
from syncer.base.retry import Backoff
from syncer.locks.held import HeldLocks
from syncer.locks.table import INDEX, Holder, Mode, Table, lock_id, readable

_MARGIN = 1.25
"""How much longer than its lease a holder must be silent, because clocks run at slightly different speeds."""
_LOCKS_MAX = 1000
_SEEN_MAX = 10_000
_BREAK_SECONDS = 60


class Locks:
    """Acquires locks for one owner. Safe to share between threads.

    A thread requests all locks that it needs at once: while it holds some, it is granted no others.

    Args:
        client: Elasticsearch.
        owner: A name for people; need not be unique.
        index: The index of locks; created if missing.
        lease_seconds: After how long without a renewal others may declare a holder dead. If Elasticsearch is
            unavailable for longer, all holders lose their locks.

    Raises:
        LockError: The index cannot hold locks.
    """

    def __init__(self, client: Elasticsearch, *, owner: str, index: str = INDEX, lease_seconds: float = 10) -> None:
        if not 0 < lease_seconds < math.inf:
            raise LockError(f"A lease cannot last {lease_seconds} s", hint="As in: lease_seconds=10")
        self._client = client.options(max_retries=0)
        self._table = Table.ensure(self._client, index)
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._thread = threading.local()
        self._seen: dict[str, tuple[str, float]] = {}
        """The beats of other holders, and since when they are unchanged, by our own clock."""

    def everything(self, name: str = "everything", *, timeout: float | None = 30) -> AbstractContextManager[HeldLocks]:
        """Acquire the global lock of that name.

        Args:
            name: Tells several global locks apart.
            timeout: How many seconds to wait; None for no limit.

        Raises:
            LockTimeoutError: Another holder kept it, or Elasticsearch did not answer.
            LockLostError: This owner was declared dead meanwhile.
        """
        return self._holding({lock_id("global", name): Mode.EXCLUSIVE}, timeout)

    def documents(
        self, index: str, ids: Iterable[str], *, timeout: float | None = 30
    ) -> AbstractContextManager[HeldLocks]:
        """Acquire a lock on each of these documents, which need not exist: on all of them or none. See `everything`."""
        if isinstance(ids, str):
            raise LockError(f"{ids!r} is a single id, not a list of ids", hint=f"Pass a list: [{ids!r}]")
        return self._holding({lock_id("document", index, id_): Mode.EXCLUSIVE for id_ in ids}, timeout)

    def tree(self, *paths: str, name: str = "files", timeout: float | None = 30) -> AbstractContextManager[HeldLocks]:
        """Acquire locks on paths and everything below them: exclusively, while their parents are shared.

        Args:
            paths: Absolute paths of directories or files; ``/`` is the root. To move something, lock both its source
                and its target.
            name: Tells several trees apart.
            timeout: As for `everything`, and so are the errors.
        """
        modes: dict[str, Mode] = {}
        for path in paths:
            names = [directory for directory in path.split("/") if directory]
            if not path.startswith("/") or {".", ".."} & set(names):
                raise LockError(f"{path!r} is not an absolute path", hint="As in: /clinton/projects, without . and ..")
            levels = ["/" + "/".join(names[:depth]) for depth in range(len(names) + 1)]
            *parents, target = [lock_id("tree", name, level) for level in levels]
            modes = dict.fromkeys(parents, Mode.SHARED) | modes | {target: Mode.EXCLUSIVE}
        return self._holding(modes, timeout)

    def break_holder(self, holder: str) -> bool:
        """Roll back the unfinished change of a holder, dead or alive, and release its locks.

        Returns:
            Whether that is done. If not, it has just renewed its lease, or another process rolls its change back.

        Raises:
            LockTimeoutError: Elasticsearch is unavailable.
        """
        entry = self._table.holders().get(holder)
        return entry is None or self._bury(entry, retry_until=time.monotonic() + _BREAK_SECONDS)

    @contextmanager
    def _holding(self, modes: dict[str, Mode], timeout: float | None) -> Iterator[HeldLocks]:
        if getattr(self._thread, "holds_locks", False):
            hint = "Request all locks at once."
            raise LockError(f"{self._owner} holds locks already, and requests {readable(min(modes))}", hint=hint)
        if len(modes) > _LOCKS_MAX:
            hint = "Take a lock on the tree, or the global lock."
            raise LockError(f"{len(modes):,} locks at once are too many", hint=hint)
        retry_until = math.inf if timeout is None else time.monotonic() + timeout
        holder = Holder(
            id=uuid4().hex, writer="", beat="", owner=self._owner, lease_seconds=self._lease_seconds, locks=modes
        )
        with HeldLocks(self._client, self._table, holder, retry_until=retry_until) as locks:
            self._thread.holds_locks = True
            try:
                backoff = Backoff(first_seconds=0.01, longest_seconds=0.2)
                while in_the_way := locks.take():  # all or none, which prevents deadlocks
                    if self._bury_the_dead(in_the_way, retry_until=retry_until):
                        continue
                    seconds_left = retry_until - time.monotonic()
                    if seconds_left <= 0:
                        lock, hint = in_the_way[0].conflicts(holder)[0], "Wait longer, or see: syncer locks list"
                        raise LockTimeoutError(f"{readable(lock)} is held by {in_the_way[0].owner}", hint=hint)
                    time.sleep(min(backoff.next_seconds(), seconds_left))
                yield locks
            finally:
                self._thread.holds_locks = False

    def _bury_the_dead(self, holders: Iterable[Holder], *, retry_until: float) -> bool:
        """Bury the holders that have not renewed their leases; return whether all of them are gone.

        What was seen is kept between calls. So repeated attempts that do not wait detect dead holders, too.
        """
        buried = []
        for holder in holders:
            beat, since = self._seen.pop(holder.id, (holder.beat, clock()))
            is_silent = beat == holder.beat and clock() - since > holder.lease_seconds * _MARGIN
            buried.append(is_silent and self._bury(holder, retry_until=retry_until))
            if not is_silent:
                if len(self._seen) == _SEEN_MAX:
                    del self._seen[next(iter(self._seen))]  # the one that was seen least recently
                self._seen[holder.id] = holder.beat, since if beat == holder.beat else clock()
        return all(buried)

    def _bury(self, dead: Holder, *, retry_until: float) -> bool:
        """Take a holder over, roll back its change and release its locks; return whether it is gone.

        If this process dies or is frozen meanwhile, another one takes over from it, and begins again.
        """
        dead = replace(dead, lease_seconds=self._lease_seconds)
        try:
            with HeldLocks(self._client, self._table, dead, retry_until=retry_until) as taken_over:
                taken_over.take_over()
                taken_over.roll_back()
        except LockLostError:
            return False
        return True
