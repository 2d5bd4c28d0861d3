"""Overtaking: what is planned, and not in the code yet. Two primaries of one database live, and a daemon follows each.

A standby was promoted while the primary went on. Both have the same installation, so they share the indices and the
record in Elasticsearch. The record has the epoch in use, which the daemon of that epoch renews. A daemon that finds
another epoch recorded waits until the record is silent: if it did not, each would overtake the other for ever.

There is one document. Each database has a state of it of its own, as it is after the promotion. What was written since
the last mark is written again, once an epoch is entered: see `tests.model.marks`. Here, to enter an epoch is one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_DEATHS = 2


class Primary(NamedTuple):
    """A database, and the daemon that follows it."""

    epoch: int = 1
    mark: int = 0  # the number up to which documents show what this database has
    is_promoted: bool = False  # it has not entered an epoch since
    is_due: bool = True  # a change of it is to be handled
    has_read: int = -1  # the number for the next mark, if it is read
    has_checked: bool = False  # that the epoch was still the recorded one, after it was read
    lives: bool = True  # the daemon


class State(NamedTuple):
    """The state of the model."""

    primaries: tuple[Primary, Primary] = (Primary(), Primary(is_promoted=True))
    recorded: int = 1
    shown: int = -1  # the primary whose state Elasticsearch shows; at first, what both have
    number: int = 0  # of that write
    entered: int = 0  # how many epochs
    deaths: int = _DEATHS


class Overtaking(Model[State]):
    """Of two primaries that live, one is followed at a time, and the documents show what that one has."""

    initial = State()
    bounds = f"2 primaries with a daemon each, deaths of daemons: {_DEATHS}, marks at any time"

    an_overtaken_daemon_waits: bool
    a_mark_is_of_the_recorded_epoch: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, primary, name in processes(state.primaries, "the daemon of primary"):
            if primary.lives:
                yield from self._work(state, slot, primary, name)
            else:
                yield f"{name} is started", put(state, "primaries", slot, primary._replace(lives=True))

    def _work(self, state: State, slot: int, primary: Primary, name: str) -> Iterator[Step[State]]:
        if primary.epoch < state.recorded or primary.is_promoted:
            rival = state.primaries[1 - slot]
            is_renewed = rival.lives and not rival.is_promoted and rival.epoch == state.recorded
            # A promoted standby finds its own epoch recorded, and does not wait.
            is_overtaken = primary.epoch < state.recorded
            if not (is_overtaken and is_renewed and self.an_overtaken_daemon_waits):
                yield self._enter(state, slot, primary, name)
        elif primary.is_due:
            saved = put(state, "primaries", slot, primary._replace(is_due=False))
            yield f"{name} writes its change", saved._replace(shown=slot, number=state.number + 1)
        yield from self._mark(state, slot, primary, name)

    @staticmethod
    def _enter(state: State, slot: int, primary: Primary, name: str) -> Step[State]:
        epoch = max(primary.epoch, state.recorded) + 1
        entered = Primary(epoch=epoch, mark=primary.mark, is_due=primary.is_due)
        successor = put(state, "primaries", slot, entered)._replace(recorded=epoch, entered=state.entered + 1)
        action = f"{name} enters epoch {epoch}"
        if state.number <= primary.mark:
            return f"{action}, and finds nothing after its mark", successor
        return f"{action}, and writes what is in doubt", successor._replace(shown=slot, number=state.number + 1)

    def _mark(self, state: State, slot: int, primary: Primary, name: str) -> Iterator[Step[State]]:
        """A daemon takes marks, also one that does not know yet that it was overtaken."""
        if primary.has_read < 0:
            if state.number > primary.mark and not primary.is_promoted:
                yield (
                    f"{name} reads the numbers",
                    put(state, "primaries", slot, primary._replace(has_read=state.number)),
                )
        elif self.a_mark_is_of_the_recorded_epoch and not primary.has_checked:
            if primary.epoch == state.recorded:
                checked = primary._replace(has_checked=True)
                yield f"{name} finds its epoch recorded", put(state, "primaries", slot, checked)
        else:
            marked = primary._replace(mark=primary.has_read, has_read=-1, has_checked=False)
            yield f"{name} commits a mark", put(state, "primaries", slot, marked)

    def world(self, state: State) -> Iterator[Step[State]]:
        for slot, primary, name in processes(state.primaries, "the daemon of primary"):
            if primary.lives and state.deaths:
                dead = put(state, "primaries", slot, primary._replace(lives=False, has_read=-1, has_checked=False))
                yield f"{name} dies", dead._replace(deaths=state.deaths - 1)

    def wrong(self, state: State) -> str | None:
        has_reason = 1 + _DEATHS - state.deaths  # the promotion, and each death of the daemon whose epoch is in use
        return "the daemons overtake each other without a reason" if state.entered > has_reason else None

    def unequal(self, state: State) -> str | None:
        followed = [slot for slot, primary in enumerate(state.primaries) if primary.epoch == state.recorded]
        return None if followed == [state.shown] else f"primary {'AB'[state.shown]} is shown, and {followed} followed"
