"""Burial: finishes or rolls back a dead holder's change, and releases its locks.

Every step can be repeated from the beginning, by any process, even by two at once. What to write is known beforehand,
each page is written in a term of its own, and the later process has the greater term.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from elasticsearch import ApiError, TransportError

from syncer.base.errors import LockError, LockLostError
from syncer.locks.fence import Fence
from syncer.locks.holders import Holder, SeqNo
from syncer.locks.intents import Edit, Intent, Planned, Recovery
from syncer.locks.lease import Lease
from syncer.locks.registry import Registry


class Burial(Enum):
    """The result of burying a holder."""

    PUT_OFF = "not dead, or another process is burying it"
    DONE = "it holds nothing any more"
    FINISHED = "it holds nothing any more; its change is finished"
    ROLLED_BACK = "it holds nothing any more; its change is rolled back"

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        return self is not Burial.PUT_OFF


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


def bury(registry: Registry, fence: Fence, dead: str, *, successor: Lease, recovery: Recovery) -> Burial:
    """Declare a holder dead and remove everything of it; ``successor`` is our own lease.

    Raises:
        LockLostError: We were declared dead ourselves.
    """
    successor.require()
    found = registry.holders.look(dead)
    if found is None:
        _free(registry, dead)  # the holder has left, so its entries do not count
        return Burial.DONE
    remains = _Remains(registry, *found)
    try:
        return _bury(registry, fence, found[0], remains, successor=successor, recovery=recovery)
    except _OvertakenError:
        return Burial.PUT_OFF
    except BaseException:
        with suppress(ApiError, TransportError, _OvertakenError):
            remains.amend(successor=None)  # let another process bury it
        raise


def _bury(
    registry: Registry, fence: Fence, dead: Holder, remains: _Remains, *, successor: Lease, recovery: Recovery
) -> Burial:
    done = Burial.DONE
    remains.amend(is_dead=True, successor=successor.id)
    if dead.intent is not None:
        # If a document is refused both ways, it was refused to the dead holder too, or it is written without a lock.
        # Neither can be fixed here, and neither may block others.
        refused = settle(registry, fence, dead.intent, recovery, draw=remains.amend, lease=successor)
        is_finished = recovery is Recovery.FINISH and refused is None
        done = Burial.FINISHED if is_finished else Burial.ROLLED_BACK
        remains.amend(intent=None)  # a process that continues from here must not settle it again, or the other way
    registry.intents.drop_all_of(dead.id)
    _free(registry, dead.id)
    remains.leave()
    return done


def _free(registry: Registry, dead: str) -> None:
    registry.entries.give_back(dead, {one.lock: None for one in registry.entries.of(dead)})


def settle(
    registry: Registry, fence: Fence, intent: Intent, recovery: Recovery, *, draw: Callable[[], int], lease: Lease
) -> LockError | None:
    """Write everything that an intent says, or restore everything as it was, page by page.

    If Elasticsearch refuses to finish a change, it is rolled back. ``draw`` returns the term of each page, and fails if
    another process has taken over. With a term per page, a late request of one page cannot undo what was done after it.

    Returns:
        Why it was rolled back, if it was meant to be finished.

    Raises:
        LockLostError: The lease ended too early.
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
    """Write a page under the lease. Documents that may have been created after its end are removed again.

    A version blocks a late write only as long as Elasticsearch remembers it. It forgets the version of a deleted
    document, at the latest in a restart.
    """
    planned: list[Planned] = lease.persist(partial(registry.intents.page, intent, number))
    term = lease.persist(draw)
    changes: list[Edit] = [one.by(recovery) for one in planned]
    try:
        refused = lease.persist(partial(fence.write, changes, term=term))
        lease.require()
    except LockLostError:
        fence.take_back([one.by(recovery) for one in planned if one.makes(recovery)], term=term)
        raise
    return refused
