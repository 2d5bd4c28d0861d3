"""Wake-up: writers wake a sleeping relay, which keeps sleeping between changes while they are rare.

A writer inserts its row, tries to get the lock, commits, and then releases the lock. Postgres makes a transaction
visible before it releases its locks, and delivers the notification once the transaction is visible. The relay takes the
lock, looks at the outbox, and waits for a notification. When woken, it looks again. It may keep the lock or release it
at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed

LOOK_ONCE_ASLEEP = Rule(
    name="look-once-asleep",
    says="the relay looks at the outbox between taking the lock and waiting",
    kept_by="syncer.relay.loop",
    otherwise="a change that commits between its last look and taking the lock waits for the next notification",
)
KEPT_TO_THE_END = Rule(
    name="the-lock-is-kept-to-the-end",
    says="a writer keeps the lock until its transaction has ended",
    kept_by="syncer.capture.wakeup",
    otherwise="the relay looks and falls asleep before the writer commits, and the writer will not notify",
)
LISTEN_FIRST = Rule(
    name="listen-before-sleeping",
    says="the relay executes LISTEN before it tries to get the lock",
    kept_by="syncer.relay.loop",
    otherwise="a writer notifies before the relay listens, and the notification is lost",
)
NOTIFICATIONS_KEPT = Rule(
    name="notifications-are-kept",
    says="a notification that arrives while the relay is not waiting ends its next wait",
    kept_by="syncer.capture.wakeup",
    otherwise="the relay misses a change that commits just after its look",
)

_NEW, _INSERTED, _QUIET, _NOTIFIES, _VISIBLE, _ENDED = range(6)
_AWAKE, _ASLEEP, _LOOKED, _WAITS = range(4)


class Wakeup(NamedTuple):
    """The state of the model.

    Args:
        writers: The phase of each writer.
        relay: The phase of the relay; it holds the lock unless it is awake.
        seen: For each writer, whether the relay has read its row.
        is_notified: Whether a notification is waiting for the relay.
        listens: Whether the relay has executed LISTEN.
    """

    writers: tuple[int, ...]
    relay: int
    seen: tuple[bool, ...]
    is_notified: bool
    listens: bool


class WakeupModel(Model[Wakeup]):
    """No wake-up is lost."""

    name = "wakeup"
    about = "every commit that a sleeping relay has not seen wakes it"
    rules = (LOOK_ONCE_ASLEEP, KEPT_TO_THE_END, LISTEN_FIRST, NOTIFICATIONS_KEPT)

    def prepare(self) -> None:
        self._writers = 6 if self.is_large else 4

    @property
    def bounds(self) -> str:
        return f"{self._writers} writers"

    def initial(self) -> Wakeup:
        none = (False,) * self._writers
        listens = self.keeps(LISTEN_FIRST)
        return Wakeup((_NEW,) * self._writers, _AWAKE, seen=none, is_notified=False, listens=listens)

    def protocol(self, state: Wakeup) -> Iterator[Step[Wakeup]]:
        for at, phase in enumerate(state.writers):
            if phase not in (_NEW, _ENDED):
                yield from self._write(state, at, phase, f"writer {at + 1}")
        yield from self._relay(state)

    def _write(self, state: Wakeup, at: int, phase: int, writer: str) -> Iterator[Step[Wakeup]]:
        if phase == _INSERTED:
            if state.relay == _AWAKE:
                yield f"{writer} gets the lock, and will not notify", _with(state, at, _QUIET)
            else:
                yield f"{writer} does not get the lock, and will notify", _with(state, at, _NOTIFIES)
        elif phase == _VISIBLE:
            yield f"{writer} releases its locks", _with(state, at, _ENDED)
        elif phase == _NOTIFIES:
            after = _with(state, at, _ENDED)
            yield f"{writer} commits and notifies", after._replace(is_notified=state.is_notified or state.listens)
        else:
            yield f"{writer} commits", _with(state, at, _VISIBLE)

    def _relay(self, state: Wakeup) -> Iterator[Step[Wakeup]]:
        visible = tuple(phase in (_VISIBLE, _ENDED) for phase in state.writers)
        if state.relay == _AWAKE:
            if visible != state.seen:
                yield "the relay looks", state._replace(seen=visible)
            # Rule the-lock-is-kept-to-the-end: `pg_try_advisory_xact_lock_shared`.
            holding = (_QUIET, _VISIBLE) if self.keeps(KEPT_TO_THE_END) else ()
            if not any(phase in holding for phase in state.writers):
                # Rule look-once-asleep: `Relay._rest` returns to the look.
                relay = _ASLEEP if self.keeps(LOOK_ONCE_ASLEEP) else _LOOKED
                yield "the relay gets the lock", state._replace(relay=relay)
        elif state.relay == _ASLEEP:
            yield "the relay looks", state._replace(seen=visible, relay=_LOOKED)
        elif state.relay == _LOOKED:
            # Rules listen-before-sleeping: `Relay._lead`; notifications-are-kept: `wakeup.wait`.
            is_notified = state.is_notified and self.keeps(NOTIFICATIONS_KEPT)
            yield "the relay waits", state._replace(relay=_WAITS, is_notified=is_notified, listens=True)
        elif state.is_notified:
            yield "the relay is woken", state._replace(relay=_ASLEEP, is_notified=False)

    def world(self, state: Wakeup) -> Iterator[Step[Wakeup]]:
        for at, phase in enumerate(state.writers):
            if phase == _NEW:
                yield f"writer {at + 1} inserts a row", _with(state, at, _INSERTED)
            elif phase in (_INSERTED, _QUIET, _NOTIFIES):
                yield f"writer {at + 1} rolls back", _with(state, at, _NEW)
        if state.relay in (_LOOKED, _WAITS):
            # Changes come fast, or the relay has to check its conditions for sleep again.
            yield "the relay releases the lock", state._replace(relay=_AWAKE)

    def unequal(self, state: Wakeup) -> str | None:
        for at, phase in enumerate(state.writers):
            if phase == _ENDED and not state.seen[at]:
                return f"the relay sleeps, and has not seen the change of writer {at + 1}"
        return None

    def canonical(self, state: Wakeup) -> Wakeup:
        order = sorted(zip(state.writers, state.seen, strict=True))
        return state._replace(writers=tuple(one for one, _ in order), seen=tuple(one for _, one in order))


def _with(state: Wakeup, at: int, phase: int) -> Wakeup:
    return state._replace(writers=placed(state.writers, at, phase))
