"""Rules of the locks, taken out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from syncer.locks.fence import Fence
from syncer.locks.held import HeldLocks
from syncer.locks.holders import Holder, Holders, Liveness
from syncer.locks.intents import Edit, Intent
from syncer.locks.keeper import Locks
from syncer.locks.lease import Lease
from syncer.locks.registry import Registry
from tests.mutations import Instead


def buries_without_recovery(
    original: Instead, registry: Registry, fence: Fence, dead: Holder, *args: Any, **kwargs: Any
) -> Any:
    """What a dead holder had put down stays half done."""
    return original(registry, fence, dataclasses.replace(dead, intent=None), *args, **kwargs)


def keeps_the_intent(original: Instead, self: Any, **fields: Any) -> int:
    """That a change is rolled back is not put down."""
    if "intent" in fields:
        return 0
    term: int = original(self, **fields)
    return term


def without_versions(original: Instead, changes: Iterable[Edit], term: int) -> Iterator[dict[str, Any]]:
    """A document is written without a term."""
    for one in original(changes, term):
        for how in one.values():
            if isinstance(how, dict) and how.get("version_type"):
                del how["version"], how["version_type"]
        yield one


def refers_to_nothing(original: Instead, self: HeldLocks, intent: Intent) -> int:
    """Nobody who was taken for dead finds out before it writes."""
    return self._registry.term(self._lease._seen)


def one_term_for_all(original: Instead, self: HeldLocks, intent: Intent) -> int:
    """All pages are written in the term of the lock."""
    original(self, intent)
    return self.term


def comes_back_while_it_waits(original: Instead, self: Locks, dead: str) -> Any:
    """Whoever has lost its lease goes on as somebody else."""
    self._ensure_holder()
    return original(self, dead)


def says_nothing_of_what_is_broken_off(original: Instead, self: Locks, locks: Sequence[str]) -> list[str]:
    """Whoever has broken a change off is not told at the end."""
    lost: list[str] = original(self, locks)
    return [] if self._lease.is_unfinished else lost


def says_nothing_of_what_is_unsure(original: Instead, self: Locks, locks: Sequence[str]) -> list[str]:
    """Whoever cannot know whether it was alone to the end is not told."""
    lost: list[str] = original(self, locks)
    return [] if self._is_unsure and self._lease.is_over and not self._lease.is_unfinished else lost


def for_as_long_as_it_takes(original: Instead, self: Holders, seconds: float) -> Holders:
    """One renewal may take all of the lease."""
    return self


@contextmanager
def _patient(*_args: object) -> Iterator[None]:
    yield


def patient_for_ever(original: Instead, self: Lease, deadline: float | None) -> Any:
    """Whatever fails is tried again, however long that takes."""
    return _patient()


def overlooks_that_it_is_dead(original: Instead, self: Lease) -> None:
    """Whoever is taken for dead goes on as long as it is not buried."""
    found = self._holders.look(self._holder.id)
    if found is None:
        raise self.lost()
    self._seen = found[1]


def leaves_the_dead_to_others(original: Instead, self: Liveness, holder: str) -> bool:
    """A dead holder is left to whoever has begun to bury it."""
    found = self._holders.look(holder)
    if found is not None and found[0].is_dead and found[0].successor not in (None, self._own):
        return False
    is_over: bool = original(self, holder)
    return is_over
