"""Overtaking: two primaries of one database live, and a daemon follows each.

A standby was promoted while the primary went on. Both have the same installation, so they share the index and the
record in Elasticsearch. The record has the epoch in use, which the daemon of that epoch renews. To enter an epoch, a
daemon records it, fences the index, and commits the epoch with a job. It may stall or die at any point. A daemon that
finds a greater epoch recorded waits until the record is silent: if it did not, each would overtake the other for ever.

There is one document. Each database has a state of it of its own, as it is after the promotion. The job writes the
document if it was written since the last mark: see `tests.model.marks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_DEATHS = 2
_RECORD, _FENCE, _CHECK, _COMMIT = range(4)


class Primary(NamedTuple):
    """A database, and the daemon that follows it."""

    epoch: int = 1
    mark: int = 0  # the number up to which documents show what this database has
    is_promoted: bool = False  # it has not entered an epoch since
    is_due: bool = True  # a change of it is to be handled
    job: int = -1  # the mark that the job of its epoch has, until it is done
    entering: int = 0  # the epoch that its daemon enters
    steps: tuple[int, ...] = ()  # that are left for it
    numbers: int = -1  # for the next mark, if they are read
    has_checked: bool = False  # that the epoch was still the recorded one, after they were read
    lives: bool = True  # the daemon
    is_silent: bool = False  # it has stalled for so long that the record counts as silent, and goes on


class State(NamedTuple):
    """The state of the model."""

    primaries: tuple[Primary, Primary] = (Primary(), Primary(is_promoted=True))
    recorded: int = 1
    entered_by: int = -1  # the primary that has recorded it, and whether it has entered it is not known
    alias: int = 1  # the epoch that the write alias names
    shown: int = -1  # the primary whose state Elasticsearch shows; at first, what both have
    number: int = 0  # of that write
    entered: int = 0  # how many epochs
    deaths: int = _DEATHS


class Overtaking(Model[State]):
    """Of two primaries that live, one is followed at a time, and the documents show what that one has."""

    initial = State()
    bounds = f"2 primaries with a daemon each, deaths or stalls of daemons: {_DEATHS}, marks at any time"

    a_new_identity_has_a_greater_epoch: bool
    the_epoch_is_kept_in_elasticsearch: bool
    the_record_comes_first: bool
    an_epoch_is_recorded_once: bool
    a_late_fence_is_not_committed: bool
    an_overtaken_daemon_waits: bool
    a_mark_is_of_the_recorded_epoch: bool

    def canonical(self, state: State) -> State:
        # Only whether there were writes since the marks matters.
        numbers = {number for primary in state.primaries for number in (primary.mark, primary.numbers, primary.job)}
        ranks = {-1: -1, **{number: rank for rank, number in enumerate(sorted({0, state.number, *numbers} - {-1}))}}
        a, b = (
            primary._replace(mark=ranks[primary.mark], numbers=ranks[primary.numbers], job=ranks[primary.job])
            for primary in state.primaries
        )
        return state._replace(primaries=(a, b), number=ranks[state.number])

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, primary, name in processes(state.primaries, "the daemon of primary"):
            if not primary.lives:
                yield f"{name} is started", put(state, "primaries", slot, primary._replace(lives=True))
            elif primary.steps:
                yield from self._enter(state, slot, primary, name)
            else:
                yield from self._work(state, slot, primary, name)
                yield from self._mark(state, slot, primary, name)

    def _work(self, state: State, slot: int, primary: Primary, name: str) -> Iterator[Step[State]]:
        is_overtaken = primary.epoch < state.recorded
        if is_overtaken or (primary.is_promoted and self.a_new_identity_has_a_greater_epoch):
            rival = state.primaries[1 - slot]
            is_renewed = state.entered_by != slot and rival.lives and not rival.is_silent
            # A promoted standby finds its own epoch recorded, and does not wait.
            if not (is_overtaken and is_renewed and self.an_overtaken_daemon_waits):
                recorded = state.recorded if self.the_epoch_is_kept_in_elasticsearch else 0
                epoch = max(primary.epoch, recorded) + 1
                steps = (
                    (_RECORD, _FENCE, _CHECK, _COMMIT) if self.the_record_comes_first else (_FENCE, _COMMIT, _RECORD)
                )
                entering = primary._replace(entering=epoch, steps=steps, numbers=-1, has_checked=False)
                yield f"{name} is to enter epoch {epoch}", put(state, "primaries", slot, entering)
        if primary.is_promoted and self.a_new_identity_has_a_greater_epoch:
            return
        if not primary.is_due and primary.job < 0:
            return
        if state.alias == primary.epoch:
            yield f"{name} writes its document", _written(state, slot, primary)
        elif not is_overtaken:
            yield f"{name} restores the write alias", state._replace(alias=primary.epoch)

    def _enter(self, state: State, slot: int, primary: Primary, name: str) -> Iterator[Step[State]]:
        epoch, (step, *steps) = primary.entering, primary.steps
        is_kept, is_once = self.the_epoch_is_kept_in_elasticsearch, self.an_epoch_is_recorded_once
        is_late = step == _RECORD and is_kept and epoch < state.recorded + is_once
        is_late |= step == _CHECK and self.a_late_fence_is_not_committed and epoch != state.recorded
        going_on = primary._replace(entering=epoch if steps else 0, steps=tuple(steps))
        if is_late:
            given_up = put(state, "primaries", slot, primary._replace(entering=0, steps=()))
            yield f"{name} finds epoch {state.recorded} recorded, and gives up", given_up
        elif step == _RECORD:
            recording = put(state, "primaries", slot, going_on._replace(is_silent=False))
            yield f"{name} records epoch {epoch}", recording._replace(recorded=epoch, entered_by=slot if steps else -1)
        elif step == _FENCE:
            yield f"{name} fences the index", put(state, "primaries", slot, going_on)._replace(alias=epoch)
        elif step == _CHECK:
            yield f"{name} finds its epoch recorded", put(state, "primaries", slot, going_on)
        else:
            entered = going_on._replace(epoch=epoch, is_promoted=False, job=primary.mark)
            committed = put(state, "primaries", slot, entered)
            if state.recorded == epoch:
                committed = committed._replace(entered_by=-1, entered=state.entered + 1)
            yield f"{name} commits epoch {epoch} with a job", committed

    def _mark(self, state: State, slot: int, primary: Primary, name: str) -> Iterator[Step[State]]:
        """A daemon takes marks, also one that does not know yet that it was overtaken."""
        if primary.numbers < 0:
            if state.number > primary.mark and not primary.is_promoted:
                reading = primary._replace(numbers=state.number)
                yield f"{name} reads the numbers", put(state, "primaries", slot, reading)
        elif self.a_mark_is_of_the_recorded_epoch and not primary.has_checked:
            if primary.epoch == state.recorded:
                checked = primary._replace(has_checked=True)
                yield f"{name} finds its epoch recorded", put(state, "primaries", slot, checked)
        else:
            marked = primary._replace(mark=primary.numbers, numbers=-1, has_checked=False)
            yield f"{name} commits a mark", put(state, "primaries", slot, marked)

    def world(self, state: State) -> Iterator[Step[State]]:
        for slot, primary, name in processes(state.primaries, "the daemon of primary"):
            if primary.lives and state.deaths:
                dead = primary._replace(lives=False, numbers=-1, has_checked=False, entering=0, steps=())
                yield f"{name} dies", put(state, "primaries", slot, dead)._replace(deaths=state.deaths - 1)
                stalled = put(state, "primaries", slot, primary._replace(is_silent=True))
                yield f"{name} stalls for a minute", stalled._replace(deaths=state.deaths - 1)

    def wrong(self, state: State) -> str | None:
        if state.primaries[0].epoch == state.primaries[1].epoch > 1:
            return "two primaries have entered one epoch"
        has_reason = 1 + _DEATHS - state.deaths  # the promotion, and each death of the daemon whose epoch is in use
        return "the daemons overtake each other without a reason" if state.entered > has_reason else None

    def unequal(self, state: State) -> str | None:
        followed = [slot for slot, primary in enumerate(state.primaries) if primary.epoch == state.recorded]
        return None if followed == [state.shown] else f"primary {'AB'[state.shown]} is shown, and {followed} followed"


def _written(state: State, slot: int, primary: Primary) -> State:
    """Write a document, or with a job what is in doubt."""
    successor = put(state, "primaries", slot, primary._replace(is_due=False, job=-1))
    if not primary.is_due and state.number <= primary.job:
        return successor
    return successor._replace(shown=slot, number=state.number + 1)
