"""Lease: one's own holder, renewed by a thread while this process lives; and how others are seen to be dead."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from elasticsearch import ApiError, TransportError

from syncer.compose import clock
from syncer.errors import LockLostError
from syncer.lifecycle import persist
from syncer.locks.registry import Holder, Registry, Seen

_Result = TypeVar("_Result")

_RENEWALS_PER_LEASE = 4
_MARGIN = 1.25
"""How much longer than a lease somebody must not have moved: clocks do not run equally fast."""


def lost(owner: str) -> LockLostError:
    """What is said to who has lost a lock."""
    return LockLostError(
        f"{owner} has lost its locks",
        hint="It was not heard of for longer than its lease, or somebody broke them; others may have them now. They\n"
        "finish what it had begun, or roll it back. Lock again, and look at the documents anew.",
    )


class Lease:
    """One's own holder. It is renewed until it is let go of, or lost.

    Guarantees: `amend` succeeds only as long as nobody has taken this holder for dead, and whoever does so later finds
    what was written. Once the lease has not been renewed in time, `require` refuses, whatever Elasticsearch would say.

    Args:
        registry: Where.
        owner: As a person calls it.
        seconds: How long a lease lasts without a renewal.
    """

    def __init__(self, registry: Registry, *, owner: str, seconds: float) -> None:
        self._registry = registry
        self._holder = Holder(id=f"holder:{uuid.uuid4().hex}", owner=owner, lease_seconds=seconds)
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._is_lost = False
        self._renewed_at = clock()
        self._seen = registry.enter(self._holder)
        self._thread = threading.Thread(target=self._renew, name="lock-lease", daemon=True)
        self._thread.start()

    @property
    def id(self) -> str:
        """The holder's id."""
        return self._holder.id

    @property
    def owner(self) -> str:
        """As a person calls it."""
        return self._holder.owner

    def require(self) -> None:
        """Refuse to go on under a lease that is over.

        Raises:
            LockLostError: It was not renewed in time, or somebody has taken us for dead.
        """
        if self._is_lost or clock() - self._renewed_at > self._holder.lease_seconds:
            raise lost(self.owner)

    def amend(self, **fields: Any) -> Seen:
        """Write the holder with other fields; a write that only others' death could have prevented.

        Raises:
            LockLostError: Somebody has taken us for dead.
            ApiError, TransportError: Elasticsearch does not answer; whether it was written is not known.
        """
        with self._mutex:
            self.require()
            begun_at = clock()
            wanted = replace(self._holder, renewals=self._holder.renewals + 1, **fields)
            seen = self._registry.amend(wanted, self._seen)
            while seen is None:
                self._look()
                seen = self._registry.amend(wanted, self._seen)
            self._holder, self._seen, self._renewed_at = wanted, seen, begun_at
            return seen

    def persist(self, action: Callable[[], _Result]) -> _Result:
        """Do something until Elasticsearch has answered, but for no longer than the lease lasts.

        Raises:
            LockLostError: It lasts no longer.
            Exception: What trying again does not mend.
        """
        return persist(action, pause=self._pause, stage="locks")

    def _pause(self, seconds: float) -> None:
        self.require()
        time.sleep(seconds)

    def _look(self) -> None:
        """See what became of our holder: an answer that was lost may have been a write that was not."""
        found = self._registry.look(self._holder.id)
        if found is None or found[0].is_dead:
            self._is_lost = True
            self.require()
        else:
            self._seen = found[1]

    def close(self) -> None:
        """Renew no more, and leave; what is left behind is others' to bury, if we could not."""
        self._over.set()
        self._thread.join()
        with self._mutex:
            if not self._is_lost and self._holder.intent is None:
                self._registry.leave(self._holder.id, self._seen)

    def _renew(self) -> None:
        pause = self._holder.lease_seconds / _RENEWALS_PER_LEASE
        while not self._over.wait(pause):
            try:
                self.amend()
            except LockLostError:
                return
            except (ApiError, TransportError):
                continue  # the next one may come through in time


@dataclass(frozen=True, slots=True)
class _Sight:
    seen: Seen
    since: float


class Watch:
    """Who has not moved for how long, by our own clock.

    Args:
        registry: Where they are.
        own: Our own holder.
    """

    def __init__(self, registry: Registry, *, own: str) -> None:
        self._registry = registry
        self._own = own
        self._sights: dict[str, _Sight] = {}

    def look(self, holders: Iterable[str]) -> list[str]:
        """Look at holders once more.

        Returns:
            Those that are gone, or have not renewed their lease for as long as it lasts, or were taken for dead by
            somebody of whom that is true.
        """
        wanted = set(holders)
        self._sights = {holder: sight for holder, sight in self._sights.items() if holder in wanted}
        return [holder for holder in sorted(wanted) if self._is_over(holder)]

    def _is_over(self, holder: str) -> bool:
        found = self._registry.look(holder)
        if found is None:
            return True
        known, seen = found
        sight = self._sights.get(holder)
        if sight is None or sight.seen != seen:
            self._sights[holder] = sight = _Sight(seen, clock())
        if known.is_dead:
            return known.successor in (None, self._own) or self._is_over(str(known.successor))
        return clock() - sight.since > known.lease_seconds * _MARGIN
