"""Burial: rolls back a dead holder's change, and releases its locks.

Every step can be repeated from the beginning, by any process, even by two at once. What to write is known beforehand,
each page is written in a term of its own, and the later process has the greater term.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from elasticsearch import ApiError, TransportError

from syncer.locks.fence import Fence
from syncer.locks.holders import Holder, SeqNo
from syncer.locks.intents import Intent
from syncer.locks.lease import Lease
from syncer.locks.registry import Registry


class _OvertakenError(Exception):
    """Another process has written the dead holder's document: it is burying the holder, or the holder was not dead."""


class _Remains:
    """A dead holder's document during its burial. A write fails if another process has written it since ours."""

    def __init__(self, registry: Registry, holder: Holder, seen: SeqNo) -> None:
        self._registry = registry
        self._holder = holder
        self._seen = seen

    def amend(self, **fields: Any) -> int:
        """Write it; return the term of that write, in which only we can act."""
        wanted = replace(self._holder, **fields)
        seen = self._registry.holders.amend(wanted, self._seen)
        if seen is None:
            raise _OvertakenError
        self._holder, self._seen = wanted, seen
        return self._registry.term(seen)

    def leave(self) -> None:
        """Delete it, if it is unchanged since our last write."""
        self._registry.holders.leave(self._holder.id, self._seen)


def bury(registry: Registry, fence: Fence, dead: str, *, successor: Lease) -> bool:
    """Declare a holder dead and remove everything of it; ``successor`` is our own lease.

    Returns:
        Whether nothing of it is left. If not, it is not dead, or another process is burying it.

    Raises:
        LockLostError: We were declared dead ourselves.
    """
    successor.require()
    found = registry.holders.look(dead)
    if found is None:
        _free(registry, dead)  # the holder has left, so its entries do not count
        return True
    remains = _Remains(registry, *found)
    try:
        _bury(registry, fence, found[0], remains, successor=successor)
    except _OvertakenError:
        return False
    except BaseException:
        with suppress(ApiError, TransportError, _OvertakenError):
            remains.amend(successor=None)  # let another process bury it
        raise
    return True


def _bury(registry: Registry, fence: Fence, dead: Holder, remains: _Remains, *, successor: Lease) -> None:
    remains.amend(is_dead=True, successor=successor.id)
    if dead.intent is not None:
        roll_back(registry, fence, dead.intent, draw=remains.amend, lease=successor)
        # Fails if another process is burying it too, which could undo what the next holder of a lock writes.
        remains.amend(intent=None)
    registry.intents.drop_all_of(dead.id)
    _free(registry, dead.id)
    remains.leave()


def _free(registry: Registry, dead: str) -> None:
    registry.entries.give_back(dead, (one.lock for one in registry.entries.of(dead)))


def roll_back(registry: Registry, fence: Fence, intent: Intent, *, draw: Callable[[], int], lease: Lease) -> None:
    """Restore the documents as they were, last page first: a document that was changed twice is in two pages.

    ``draw`` returns the term of each page, and fails if another process has taken over. With a term per page, a late
    request of one page cannot undo what was done after it. A document that Elasticsearch refuses was written without a
    lock, which cannot be fixed here and does not block others.

    Raises:
        LockLostError: The lease ended too early.
    """
    for number in reversed(range(intent.pages)):
        before = lease.persist(partial(registry.intents.page, intent, number))
        term = lease.persist(draw)
        lease.persist(partial(fence.write, before, term=term))
        lease.require()
