"""Held: what an application can do under its locks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from syncer.base.errors import LockError, LockLostError
from syncer.locks import burial
from syncer.locks.fence import Fence
from syncer.locks.holders import SeqNo
from syncer.locks.intents import Edit, Intent, Planned, Recovery
from syncer.locks.lease import Lease
from syncer.locks.registry import Registry

_One = TypeVar("_One")

_PAGE_CHANGES_MAX = 500
_PAGE_BYTES_MAX = 4_000_000


class HeldLocks:
    """Locks that were granted together; the with statements of `Locks` yield it. Unusable after their end.

    Attributes:
        term: Greater than the terms of all earlier holders of these locks.
    """

    def __init__(self, *, registry: Registry, fence: Fence, lease: Lease, term: int) -> None:
        self._registry = registry
        self._fence = fence
        self._lease = lease
        self._is_over = False
        self.term = term

    def require(self) -> None:
        """Check that the locks are still held.

        Raises:
            LockLostError: They were lost.
            LockError: They were released.
        """
        if self._is_over:
            raise LockError("These locks were given back", hint="Write before the end of their with statement.")
        self._lease.require()

    def write(self, changes: Iterable[Edit]) -> int:
        """Make changes, all of them or none, even if this process dies meanwhile.

        The changes are stored first, with the documents as they are now. Then each document is written whole, with a
        term as its external version. So every program that writes these documents must use this method. One page of
        changes at a time is in memory. Searches see the documents change one by one: Elasticsearch has no
        transactions. If Elasticsearch is busy, the write is retried for as long as the lease is renewed.

        Returns:
            The number of documents written.

        Raises:
            LockLostError: The locks were lost; the process that took them finishes or rolls back the changes.
            LockError: Elasticsearch refuses a document, or has a later version than ours. All others are as they
                were.
        """
        self.require()
        intent, count = self._put_down(changes)
        with self._lease.all_or_nothing():
            drawn = [self._registry.term(self._refer_to(intent))]

            def draw() -> int:
                return drawn.pop() if drawn else self._next_term()

            refused = burial.settle(self._registry, self._fence, intent, Recovery.FINISH, draw=draw, lease=self._lease)
            self._lease.persist(lambda: self._lease.amend(intent=None))
        self._drop(intent)
        if refused is not None:
            raise refused
        return count

    def end(self) -> None:
        """Forbid any further use."""
        self._is_over = True

    def _refer_to(self, intent: Intent) -> SeqNo:
        """Let the process that buries us find the intent; fails if we were declared dead."""
        return self._lease.persist(lambda: self._lease.amend(intent=intent))

    def _next_term(self) -> int:
        return self._registry.term(self._lease.amend())

    def _put_down(self, changes: Iterable[Edit]) -> tuple[Intent, int]:
        id_, pages, count = uuid.uuid4().hex, 0, 0
        try:
            for page in _pages(changes, _size):
                planned = self._lease.persist(partial(self._fence.plan, page))
                for part in _pages(planned, _size_of_both):  # the old documents may be larger than the new ones
                    self._lease.persist(partial(self._registry.intents.put, id_, pages, part, holder=self._lease.id))
                    pages, count = pages + 1, count + len(part)
        except BaseException:
            self._drop(Intent(id=id_, pages=pages + 1))  # including a page whose request was not answered
            raise
        return Intent(id=id_, pages=pages), count

    def _drop(self, intent: Intent) -> None:
        with suppress(LockLostError):  # the process that buries us drops the rest
            self._lease.persist(partial(self._registry.intents.drop, intent))


def _pages(changes: Iterable[_One], size: Callable[[_One], int]) -> Iterator[list[_One]]:
    """Split changes into pages, each small enough for one request; only one is in memory."""
    page: list[_One] = []
    used = 0
    for one in changes:
        more = size(one)
        if page and (used + more > _PAGE_BYTES_MAX or len(page) == _PAGE_CHANGES_MAX):
            yield page
            page, used = [], 0
        page.append(one)
        used += more
    if page:
        yield page


def _size(change: Edit) -> int:
    return len(json.dumps(change.source, default=str))


def _size_of_both(planned: Planned) -> int:
    return max(_size(planned.after), _size(planned.before))
