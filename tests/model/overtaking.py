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
_READ, _RECORDED, _FENCED, _CHECKED = range(1, 5)


class Primary(NamedTuple):
    """A database, and the daemon that follows it."""

    epoch: int = 1
    mark: int = 0  # the number up to which documents show what this database has
    is_promoted: bool = False  # it has not entered an epoch since
    is_due: bool = True  # a change of it is to be handled
    job: int = -1  # the mark that the job of its epoch has, until it is done
    entering: int = 0  # the epoch that its daemon enters
    phase: int = 0  # of that
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
    bounds = f"2 primaries with a daemon each, deaths of daemons: {_DEATHS}, marks at any time"

    a_new_identity_has_a_greater_epoch: bool
    the_epoch_is_kept_in_elasticsearch: bool
    the_record_comes_first: bool
    an_epoch_is_recorded_once: bool
    a_late_fence_is_not_committed: bool
    an_overtaken_daemon_waits: bool
    a_mark_is_of_the_recorded_epoch: bool

    def canonical(self, state: State) -> State:
        # Only whether there were writes since the marks matters.
        ranks = {-1: -1, **{n: rank for rank, n in enumerate(sorted({0, *_numbers(state)} - {-1}))}}
        primaries = tuple(p._replace(mark=ranks[p.mark], numbers=ranks[p.numbers], job=ranks[p.job]) for p in state.primaries)
        return state._replace(primaries=primaries, number=ranks[state.number])  # type: ignore[arg-type]

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, primary, name in processes(state.primaries, "the daemon of primary"):
            if not primary.lives:
                yield f"{name} is started", put(state, "primaries", slot, primary._replace(lives=True))
            elif primary.phase:
                yield self._enter(state, slot, primary, name)
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
                entering = primary._replace(entering=epoch, phase=_READ, numbers=-1, has_checked=False)
                yield f"{name} is to enter epoch {epoch}", put(state, "primaries", slot, entering)
        if primary.is_promoted and self.a_new_identity_has_a_greater_epoch:
            return
        if not primary.is_due and primary.job < 0:
            return
        if state.alias == primary.epoch:
            yield f"{name} writes its document", _written(state, slot, primary)
        elif not is_overtaken:
            yield f"{name} restores the write alias", state._replace(alias=primary.epoch)

    def _enter(self, state: State, slot: int, primary: Primary, name: str) -> Step[State]:
        epoch, given_up = primary.entering, put(state, "primaries", slot, primary._replace(entering=0, phase=0))
        if primary.phase == _READ:
            recorded = put(state, "primaries", slot, primary._replace(phase=_RECORDED, is_silent=False))
            if not self.the_record_comes_first:
                return f"{name} is about to record epoch {epoch}", recorded
            is_kept = self.the_epoch_is_kept_in_elasticsearch
            if is_kept and epoch <= state.recorded - (not self.an_epoch_is_recorded_once):
                return f"{name} finds that epoch {epoch} is recorded", given_up
            return f"{name} records epoch {epoch}", recorded._replace(recorded=epoch, entered_by=slot)
        if primary.phase == _RECORDED:
            fenced = put(state, "primaries", slot, primary._replace(phase=_FENCED))._replace(alias=epoch)
            return f"{name} fences the index", fenced
        if primary.phase == _FENCED and self.the_record_comes_first:
            if self.a_late_fence_is_not_committed and state.recorded != epoch:
                return f"{name} finds another epoch recorded", given_up
            checked = put(state, "primaries", slot, primary._replace(phase=_CHECKED))
            return f"{name} finds its epoch recorded", checked
        if primary.phase == _FENCED:
            committed = primary._replace(epoch=epoch, phase=_CHECKED, is_promoted=False, job=primary.mark)
            entered = put(state, "primaries", slot, committed)._replace(entered=state.entered + 1)
            return f"{name} commits epoch {epoch} with a job", entered
        if not self.the_record_comes_first:
            return f"{name} records epoch {epoch}", given_up._replace(recorded=max(epoch, state.recorded))
        committed = primary._replace(epoch=epoch, entering=0, phase=0, is_promoted=False, job=primary.mark)
        entered = put(state, "primaries", slot, committed)
        if state.recorded == epoch:
            entered = entered._replace(entered_by=-1, entered=state.entered + 1)
        return f"{name} commits epoch {epoch} with a job", entered

    def _mark(self, state: State, slot: int, primary: Primary, name: str) -> Iterator[Step[State]]:
        """A daemon takes marks, also one that does not know yet that it was overtaken."""
        if primary.numbers < 0:
            if state.number > primary.mark and not primary.is_promoted:
                read = primary._replace(numbers=state.number)
                yield f"{name} reads the numbers", put(state, "primaries", slot, read)
        elif self.a_mark_is_of_the_recorded_epoch and not primary.has_checked:
            is_recorded = primary.epoch == state.recorded
            checked = primary._replace(has_checked=True) if is_recorded else primary._replace(numbers=-1)
            if is_recorded:
                yield f"{name} finds its epoch recorded", put(state, "primaries", slot, checked)
        else:
            marked = primary._replace(mark=primary.numbers, numbers=-1, has_checked=False)
            yield f"{name} commits a mark", put(state, "primaries", slot, marked)

    def world(self, state: State) -> Iterator[Step[State]]:
        for slot, primary, name in processes(state.primaries, "the daemon of primary"):
            if primary.lives and state.deaths:
                dead = primary._replace(lives=False, numbers=-1, has_checked=False, entering=0, phase=0)
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


def _numbers(state: State) -> list[int]:
    return [state.number, *(number for primary in state.primaries for number in (primary.mark, primary.numbers, primary.job))]


def _written(state: State, slot: int, primary: Primary) -> State:
    """Write a document, or with a job what is in doubt."""
    written = put(state, "primaries", slot, primary._replace(is_due=False, job=-1))
    if not primary.is_due and state.number <= primary.job:
        return written
    return written._replace(shown=slot, number=state.number + 1)
