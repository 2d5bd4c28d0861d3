"""Watch: how others are seen to be dead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from syncer.compose import clock
from syncer.locks.holders import Holders, Seen

_MARGIN = 1.25
"""How much longer than a lease somebody must not have moved: clocks do not run equally fast."""
_SIGHTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Sight:
    seen: Seen
    since: float


class Watch:
    """Who has not moved for how long, by our own clock.

    Whoever buries a dead holder moves it with each step. So one that is being buried is like any other: once it has not
    moved for a lease, somebody else may go on, which is safe at any time. What was seen is kept from one wait to the
    next: who asks again and again for what he does not wait for finds the dead out too.

    Args:
        holders: Where they are.
        own: Our own holder.
    """

    def __init__(self, holders: Holders, *, own: str) -> None:
        self._holders = holders
        self._own = own
        self._sights: dict[str, _Sight] = {}

    def look(self, holders: Iterable[str]) -> list[str]:
        """Look at holders once more.

        Returns:
            Those that are gone, that have not moved for as long as their lease lasts, or that are dead and nobody else
            buries.
        """
        return [holder for holder in sorted(set(holders)) if self._is_over(holder)]

    def _is_over(self, holder: str) -> bool:
        found = self._holders.look(holder)
        before = self._sights.pop(holder, None)
        if found is None:
            return True
        known, seen = found
        sight = before if before is not None and before.seen == seen else _Sight(seen, clock())
        if len(self._sights) == _SIGHTS_MAX:
            del self._sights[next(iter(self._sights))]  # whoever was not looked at for longest
        self._sights[holder] = sight
        if known.is_dead and known.successor in (None, self._own):
            return True
        return clock() - sight.since > known.lease_seconds * _MARGIN
