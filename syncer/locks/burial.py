"""Burial: finishing or rolling back what a dead holder left half done, and freeing what it held.

Everything here can be done again from the beginning, by whoever: what is written is known beforehand, and written in
the term of who does it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from elasticsearch import ApiError, TransportError

from syncer.errors import LockError, LockLostError
from syncer.locks.change import Intent, Recovery
from syncer.locks.fence import Fence, Written
from syncer.locks.lease import Lease
from syncer.locks.registry import Registry


def bury(registry: Registry, fence: Fence, dead: str, *, successor: Lease, recovery: Recovery) -> bool:
    """Take a holder for dead, and leave nothing of it.

    Args:
        registry: Where it is.
        fence: What documents are written with.
        dead: Which holder.
        successor: Who does it.
        recovery: What to do with changes that it had put down.

    Returns:
        Whether it is gone; False if it has moved after all, or somebody else buries it.

    Raises:
        LockLostError: We are taken for dead ourselves.
    """
    found = registry.look(dead)
    if found is None:
        _free(registry, dead)  # entries of who has left are nobody's
        return True
    holder = replace(found[0], is_dead=True, successor=successor.id)
    seen = registry.amend(holder, found[1])
    if seen is None:
        return False
    try:
        if holder.intent is not None:
            # Our term is that of the write which made the dead one powerless. A document that is refused here was
            # refused there, or somebody writes it without a lock: neither can be mended, nor may it hold up others.
            carry_out(registry, fence, holder.intent, recovery, term=registry.term(seen), lease=successor)
            # No one may roll back now what is finished.
            done = registry.amend(replace(holder, intent=None), seen)
            if done is None:
                return False
            registry.drop_pages(holder.intent)
            seen = done
        _free(registry, dead)
        registry.leave(dead, seen)
    except BaseException:
        with suppress(ApiError, TransportError):
            registry.amend(replace(holder, successor=None), seen)  # let others do it
        raise
    return True


def _free(registry: Registry, dead: str) -> None:
    registry.give_back(dead, [one.lock for one in registry.entries(holder=dead)])


def carry_out(
    registry: Registry, fence: Fence, intent: Intent, recovery: Recovery, *, term: int, lease: Lease
) -> LockError | None:
    """Write all that an intent says, page by page, for as long as the lease lasts.

    Returns:
        What was said of the first document that could not be written; the others are.

    Raises:
        LockLostError: The lease does not last so long.
    """
    failure: LockError | None = None
    for number in range(intent.pages):
        planned = lease.persist(partial(registry.page, intent, number))
        written = lease.persist(partial(fence.write, [one.by(recovery) for one in planned], term=term))
        _require_in_time(fence, written, term=term, lease=lease)
        failure = failure or written.refusal
    if failure is not None:
        # It may be one that our own successor has written.
        lease.persist(lease.amend)
    return failure


def _require_in_time(fence: Fence, written: Written, *, term: int, lease: Lease) -> None:
    """Refuse to go on after the lease; what was made too late is not left there.

    A version holds off a late write for as long as Elasticsearch knows it, and that of a deleted document it forgets,
    at the latest when it is restarted.
    """
    try:
        lease.require()
    except LockLostError:
        fence.take_back(written.made, term=term)
        raise
