"""Burial: finishing or rolling back what a dead holder left half done, and freeing what it held.

Everything here can be done again from the beginning, by whoever, even by two at once: what is to be written is known
beforehand, each page of it is written in a term of its own, and that of who came later is greater.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from elasticsearch import ApiError, TransportError

from syncer.errors import LockError, LockLostError
from syncer.locks.change import Change, Intent, Planned, Recovery
from syncer.locks.fence import Fence
from syncer.locks.holders import Holder, Seen
from syncer.locks.lease import Lease
from syncer.locks.registry import Registry


class Burial(Enum):
    """What became of a holder that was to be buried."""

    PUT_OFF = "not dead, or somebody else is at it"
    DONE = "it holds nothing any more"
    FINISHED = "it holds nothing any more; what it had begun is finished"
    ROLLED_BACK = "it holds nothing any more; what it had begun is rolled back"

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        return self is not Burial.PUT_OFF


class _OvertakenError(Exception):
    """Somebody else has written the dead holder's document meanwhile: he buries it now, or it was not dead."""


class _Remains:
    """The document of a dead holder, as whoever buries it writes it: only if nobody else has, since he last did."""

    def __init__(self, registry: Registry, holder: Holder, seen: Seen) -> None:
        self._registry = registry
        self._holder = holder
        self._seen = seen

    def amend(self, **fields: Any) -> int:
        """Write it; returns the term of that, in which nobody but us can do anything."""
        wanted = replace(self._holder, renewals=self._holder.renewals + 1, **fields)
        seen = self._registry.holders.amend(wanted, self._seen)
        if seen is None:
            raise _OvertakenError
        self._holder, self._seen = wanted, seen
        return self._registry.term(seen)

    def leave(self) -> None:
        """Remove it, if it is still ours."""
        self._registry.holders.leave(self._holder.id, self._seen)


def bury(registry: Registry, fence: Fence, dead: str, *, successor: Lease, recovery: Recovery) -> Burial:
    """Take a holder for dead, and leave nothing of it.

    Args:
        registry: Where it is.
        fence: What documents are written with.
        dead: Which holder.
        successor: Who does it.
        recovery: What to do with changes that it had put down.

    Raises:
        LockLostError: We are taken for dead ourselves.
    """
    successor.require()
    found = registry.holders.look(dead)
    if found is None:
        _free(registry, dead)  # entries of who has left are nobody's
        return Burial.DONE
    remains = _Remains(registry, *found)
    try:
        return _bury(registry, fence, found[0], remains, successor=successor, recovery=recovery)
    except _OvertakenError:
        return Burial.PUT_OFF
    except BaseException:
        with suppress(ApiError, TransportError, _OvertakenError):
            remains.amend(successor=None)  # let others do it
        raise


def _bury(
    registry: Registry, fence: Fence, dead: Holder, remains: _Remains, *, successor: Lease, recovery: Recovery
) -> Burial:
    done = Burial.DONE
    remains.amend(is_dead=True, successor=successor.id)
    if dead.intent is not None:
        # A document that is refused both ways was refused to the dead one too, or somebody writes it without a lock:
        # neither can be mended here, nor may it hold up others.
        refused = settle(registry, fence, dead.intent, recovery, draw=remains.amend, lease=successor)
        is_finished = recovery is Recovery.FINISH and refused is None
        done = Burial.FINISHED if is_finished else Burial.ROLLED_BACK
        remains.amend(intent=None)  # whoever goes on from here must not do it once more, or the other way
    registry.intents.drop_all_of(dead.id)
    _free(registry, dead.id)
    remains.leave()
    return done


def _free(registry: Registry, dead: str) -> None:
    registry.entries.give_back(dead, {one.lock: None for one in registry.entries.of(dead)})


def settle(
    registry: Registry, fence: Fence, intent: Intent, recovery: Recovery, *, draw: Callable[[], int], lease: Lease
) -> LockError | None:
    """Write all that an intent says, or put back all that was there before, page by page.

    Args:
        registry: Where it is.
        fence: What documents are written with.
        intent: Which.
        recovery: Which of the two; if Elasticsearch refuses what is to be finished, it is rolled back.
        draw: The term of each page; fails if somebody else has taken over. A request of one page that comes late can
            so undo nothing of what was done after it.
        lease: For how long.

    Returns:
        Why it is rolled back, if it was to be finished.

    Raises:
        LockLostError: The lease does not last so long.
    """
    write = partial(_write_page, registry, fence, intent, draw=draw, lease=lease)
    refused: LockError | None = None
    if recovery is Recovery.FINISH:
        written = (write(number, recovery) for number in range(intent.pages))
        refused = next((one for one in written if one is not None), None)
        if refused is None:
            return None
    for number in range(intent.pages):
        write(number, Recovery.ROLL_BACK)
    return refused


def _write_page(
    registry: Registry,
    fence: Fence,
    intent: Intent,
    number: int,
    recovery: Recovery,
    *,
    draw: Callable[[], int],
    lease: Lease,
) -> LockError | None:
    """Write a page under the lease; what may have been made after it was over is not left there.

    A version holds off a late write for as long as Elasticsearch knows it, and that of a deleted document it forgets,
    at the latest when it is restarted.
    """
    planned: list[Planned] = lease.persist(partial(registry.intents.page, intent, number))
    term = lease.persist(draw)
    changes: list[Change] = [one.by(recovery) for one in planned]
    try:
        refused = lease.persist(partial(fence.write, changes, term=term))
        lease.require()
    except LockLostError:
        fence.take_back([one.by(recovery) for one in planned if one.makes(recovery)], term=term)
        raise
    return refused
