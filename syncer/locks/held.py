"""Held: what an application can do under its locks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from syncer.base.errors import LockError, LockLostError
from syncer.locks import burial
from syncer.locks.fence import Fence
from syncer.locks.intents import Edit, Intent
from syncer.locks.lease import Lease
from syncer.locks.registry import Registry

_One = TypeVar("_One")
_Change = tuple[Edit, Edit]
"""A document before and after a change."""

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

        Each page of documents is stored as it is now. Then each document of it is written whole, with a term as its
        external version. So every program that writes these documents must use this method. One page of changes at a
        time is in memory. Searches see the documents change one by one: Elasticsearch has no transactions. If
        Elasticsearch is busy, the write is retried for as long as the lease is renewed.

        Returns:
            The number of documents written.

        Raises:
            LockLostError: The locks were lost; the process that took them rolls the changes back.
            LockError: Elasticsearch refuses a document, or has a later version than ours. All documents are as they
                were, as after any other exception, including one of ``changes`` itself.
        """
        self.require()
        intent, count = Intent(id=uuid.uuid4().hex, pages=0), 0
        failure: BaseException | None = None
        with self._lease.all_or_nothing():
            try:
                for part in self._parts(changes):
                    intent = self._change(intent, part)
                    count += len(part)
            except BaseException as error:  # noqa: BLE001 - raised again, once it is rolled back
                failure = error
                intent = self._lease.intent or intent
                burial.roll_back(self._registry, self._fence, intent, draw=self._next_term, lease=self._lease)
            self._lease.persist(lambda: self._lease.amend(intent=None))
        with suppress(LockLostError):  # the process that buries us drops the rest
            self._lease.persist(partial(self._registry.intents.drop, intent))
        if failure is not None:
            raise failure
        return count

    def end(self) -> None:
        """Forbid any further use."""
        self._is_over = True

    def _parts(self, changes: Iterable[Edit]) -> Iterator[list[_Change]]:
        """Read the documents to be changed, in parts that are small enough before and after the change."""
        for page in _pages(changes, _size):
            before = self._lease.persist(partial(self._fence.read, page))
            yield from _pages(zip(before, page, strict=True), lambda change: max(map(_size, change)))

    def _change(self, intent: Intent, part: Sequence[_Change]) -> Intent:
        """Store documents as they are, let the process that buries us find them, and write them."""
        before, after = zip(*part, strict=True)
        self._lease.persist(partial(self._registry.intents.put, intent, before, holder=self._lease.id))
        further = replace(intent, pages=intent.pages + 1)
        term = self._refer_to(further)
        refused = self._lease.persist(partial(self._fence.write, after, term=term))
        if refused is not None:
            raise refused
        return further

    def _refer_to(self, intent: Intent) -> int:
        """Refer to the intent in our holder, which fails if we were declared dead; return the term of that write."""
        return self._registry.term(self._lease.persist(lambda: self._lease.amend(intent=intent)))

    def _next_term(self) -> int:
        return self._registry.term(self._lease.amend())


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
