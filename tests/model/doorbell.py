"""Doorbell: a relay that has lain down to sleep is woken by whoever writes.

A writer inserts its row, asks for the lock, commits, and then gives the lock back; Postgres makes a transaction
visible before it gives its locks back. The relay looks, tries to get the lock for itself, looks once more, and waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed

LOOK_AGAIN = Rule(
    name="look-after-lying-down",
    says="the relay looks once more when it has the lock",
    kept_by="syncer.relay",
    otherwise="what was written between its last look and the lock waits for the next ring",
)
KEPT_TO_THE_END = Rule(
    name="the-lock-is-kept-to-the-end",
    says="a writer keeps the lock until its transaction has ended",
    kept_by="syncer.doorbell",
    otherwise="the relay looks, lies down and sleeps while the writer has yet to commit, and will not ring",
)
LISTEN_FIRST = Rule(
    name="listen-before-lying-down",
    says="the relay listens before it asks for the lock",
    kept_by="syncer.relay",
    otherwise="a writer rings before anybody listens",
)

_NEW, _INSERTED, _QUIET, _RINGS, _VISIBLE, _ENDED = range(6)
_LOOKS, _IDLE, _LAIN, _LOOKED, _WAITS = range(5)


class Doorbell(NamedTuple):
    """Everything.

    Args:
        writers: How far each is.
        relay: What it does.
        seen: Which writers' rows it has read.
        has_rung: Whether a ring waits for it.
        listens: Whether it does.
    """

    writers: tuple[int, ...]
    relay: int
    seen: tuple[bool, ...]
    has_rung: bool
    listens: bool


class DoorbellModel(Model[Doorbell]):
    """No wake-up is lost."""

    name = "doorbell"
    about = "a relay that sleeps is woken by every commit that it has not seen"
    rules = (LOOK_AGAIN, KEPT_TO_THE_END, LISTEN_FIRST)

    def prepare(self) -> None:
        self._writers = 6 if self.is_large else 4

    @property
    def bounds(self) -> str:
        return f"{self._writers} writers"

    def initial(self) -> Doorbell:
        nobody = (False,) * self._writers
        listens = self.keeps(LISTEN_FIRST)
        return Doorbell((_NEW,) * self._writers, _LOOKS, seen=nobody, has_rung=False, listens=listens)

    def protocol(self, state: Doorbell) -> Iterator[Step[Doorbell]]:
        for at, phase in enumerate(state.writers):
            if phase not in (_NEW, _ENDED):
                yield from self._write(state, at, phase, f"writer {at + 1}")
        yield from self._relay(state)

    def _write(self, state: Doorbell, at: int, phase: int, who: str) -> Iterator[Step[Doorbell]]:
        if phase == _INSERTED:
            is_asleep = state.relay in (_LAIN, _LOOKED, _WAITS)
            says = "does not get the lock, and will ring" if is_asleep else "gets the lock, and will say nothing"
            yield f"{who} {says}", _with(state, at, _RINGS if is_asleep else _QUIET)
        elif phase == _VISIBLE:
            yield f"{who} gives its locks back", _with(state, at, _ENDED)
        elif phase == _RINGS:
            after = _with(state, at, _ENDED)
            yield f"{who} commits and rings", after._replace(has_rung=state.has_rung or state.listens)
        else:
            yield f"{who} commits", _with(state, at, _VISIBLE)

    def _relay(self, state: Doorbell) -> Iterator[Step[Doorbell]]:
        visible = tuple(phase in (_VISIBLE, _ENDED) for phase in state.writers)
        if state.relay == _LOOKS:
            after = state._replace(seen=visible, relay=_LOOKS if visible != state.seen else _IDLE)
            yield "the relay looks", after
        elif state.relay == _IDLE:
            # Rule the-lock-is-kept-to-the-end: `pg_try_advisory_xact_lock_shared`.
            holding = (_QUIET, _VISIBLE) if self.keeps(KEPT_TO_THE_END) else ()
            if any(phase in holding for phase in state.writers):
                yield "the relay does not get the lock, and looks again later", state._replace(relay=_LOOKS)
            else:
                # Rule look-after-lying-down: `Relay._sleep`.
                relay = _LAIN if self.keeps(LOOK_AGAIN) else _LOOKED
                yield "the relay gets the lock", state._replace(relay=relay)
        elif state.relay == _LAIN:
            is_new = visible != state.seen
            says = "the relay looks once more" + (", and gets up" if is_new else "")
            yield says, state._replace(seen=visible, relay=_LOOKS if is_new else _LOOKED)
        elif state.relay == _LOOKED:
            # Rule listen-before-lying-down: `Relay._lead`.
            yield "the relay waits", state._replace(relay=_WAITS, listens=True)
        elif state.has_rung:
            yield "the relay is woken, and gets up", state._replace(relay=_LOOKS, has_rung=False)

    def world(self, state: Doorbell) -> Iterator[Step[Doorbell]]:
        for at, phase in enumerate(state.writers):
            if phase == _NEW:
                yield f"writer {at + 1} inserts a row", _with(state, at, _INSERTED)
            elif phase in (_INSERTED, _QUIET, _RINGS):
                yield f"writer {at + 1} rolls back", _with(state, at, _NEW)

    def unlevel(self, state: Doorbell) -> str | None:
        for at, phase in enumerate(state.writers):
            if phase == _ENDED and not state.seen[at]:
                return f"the relay sleeps, and has not seen what writer {at + 1} wrote"
        return None

    def canonical(self, state: Doorbell) -> Doorbell:
        order = sorted(zip(state.writers, state.seen, strict=True))
        return state._replace(writers=tuple(one for one, _ in order), seen=tuple(one for _, one in order))


def _with(state: Doorbell, at: int, phase: int) -> Doorbell:
    return state._replace(writers=placed(state.writers, at, phase))
