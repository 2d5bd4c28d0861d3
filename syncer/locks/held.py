"""Held: what can be done under locks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from syncer.errors import LockError, LockLostError
from syncer.locks import burial
from syncer.locks.change import Change, Intent, Planned, Recovery
from syncer.locks.fence import Fence
from syncer.locks.lease import Lease
from syncer.locks.registry import Registry

_One = TypeVar("_One")

_PAGE_CHANGES_MAX = 500
_PAGE_BYTES_MAX = 4_000_000


class Held:
    """Locks that were granted together. From `Locks`, as what its with statements yield; of no use after their end.

    Attributes:
        term: Greater than that of everybody who held any of these locks before.
    """

    def __init__(self, *, registry: Registry, fence: Fence, lease: Lease, term: int) -> None:
        self._registry = registry
        self._fence = fence
        self._lease = lease
        self._is_over = False
        self.term = term

    def require(self) -> None:
        """Refuse to go on if the locks are lost.

        Raises:
            LockLostError: They are.
            LockError: They were given back.
        """
        if self._is_over:
            raise LockError("These locks were given back", hint="Write before the end of their with statement.")
        self._lease.require()

    def write(self, changes: Iterable[Change]) -> int:
        """Make changes, all of them or none, even if this process dies meanwhile.

        What is to be changed is put down first, with what is there now. Then each document is written whole, with a
        term as external version. So all who write these documents must do it by this method. Of many changes one page
        at a time is in memory. Searches see them one by one: Elasticsearch has no transactions. What it does not take
        as yet is tried again for as long as the lease is renewed.

        Returns:
            How many documents were written.

        Raises:
            LockLostError: The locks are no longer ours; whoever took them finishes this, or rolls it back.
            LockError: Elasticsearch refuses a document, or it has a later version than any of ours. All others are as
                they were.
        """
        self.require()
        intent, count = self._put_down(changes)
        with self._lease.all_or_nothing():
            drawn = [self._registry.term(self._lease.persist(lambda: self._lease.amend(intent=intent)))]

            def draw() -> int:
                return drawn.pop() if drawn else self._registry.term(self._lease.amend())

            refused = burial.settle(self._registry, self._fence, intent, Recovery.FINISH, draw=draw, lease=self._lease)
            self._lease.persist(lambda: self._lease.amend(intent=None))
        self._drop(intent)
        if refused is not None:
            raise refused
        return count

    def end(self) -> None:
        """Nothing more can be done under these locks."""
        self._is_over = True

    def _put_down(self, changes: Iterable[Change]) -> tuple[Intent, int]:
        id_, pages, count = uuid.uuid4().hex, 0, 0
        try:
            for page in _pages(changes, _size):
                planned = self._lease.persist(partial(self._fence.plan, page))
                for part in _pages(planned, _size_of_both):  # what is there may be larger than what is to be
                    self._lease.persist(partial(self._registry.intents.put, id_, pages, part, holder=self._lease.id))
                    pages, count = pages + 1, count + len(part)
        except BaseException:
            self._drop(Intent(id=id_, pages=pages + 1))  # also one whose request was not answered
            raise
        return Intent(id=id_, pages=pages), count

    def _drop(self, intent: Intent) -> None:
        with suppress(LockLostError):  # what is left is dropped by who buries us
            self._lease.persist(partial(self._registry.intents.drop, intent))


def _pages(changes: Iterable[_One], size: Callable[[_One], int]) -> Iterator[list[_One]]:
    """Changes in parts of which each is a request that Elasticsearch takes, and bounds what is in memory."""
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


def _size(change: Change) -> int:
    return len(json.dumps(change.source, default=str))


def _size_of_both(planned: Planned) -> int:
    return max(_size(planned.after), _size(planned.before))
