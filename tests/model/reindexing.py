"""Reindexing: a new index beside the current one, the alias, and the removal of the old index.

Index A is current. Index B is created, and one commit activates it and creates its initial load. Once B is loaded, the
alias moves to B. The commit that records that deactivates A, which is then dropped. A worker reads which indices are
active after it has received its event. It writes them one after the other. A version and its snapshot are one step here
(see `tests.model.writing`), and the snapshot shows whether the index is still active.

Each commit changes the row, deletes it or brings it back. Elasticsearch heeds the requirement of an alias for writes,
and ignores it for deletes, unless their request has an update or a write too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_A, _B = 0, 1
_IDLE, _HOLDS, _READ = range(3)
_LOAD = -1
# The phases of the new index.
_NONE, _CREATED, _ACTIVE, _LOADED, _MOVED, _CURRENT, _DROPPED = range(7)
_COMMITS = 2


class Held(NamedTuple):
    """What an index holds of the document."""

    version: int = 0
    state: int = -1  # of the database; -1 if there is no document


class Worker(NamedTuple):
    """What a worker is doing."""

    phase: int = _IDLE
    task: int = 0  # the number of its event; -1 for the load's chunk
    indices: tuple[int, ...] = ()  # that it has still to write
    version: int = 0  # that it has assigned
    state: int = 0  # of the database that it has read
    is_there: bool = False  # the row, in that state


class State(NamedTuple):
    """The state of the model; of a pair, the first item is of A and the second of B."""

    events: tuple[bool, ...] = ()  # for each commit, whether its event is saved as handled
    is_there: bool = True  # the row, in Postgres
    phase: int = _NONE
    active: tuple[bool, ...] = (True, False)
    exists: tuple[bool, ...] = (True, False)
    holds: tuple[Held, ...] = (Held(state=0), Held())
    alias: int = _A
    is_loading: bool = False  # the load's chunk is still to be written
    workers: tuple[Worker, ...] = (Worker(), Worker())


class Reindexing(Model[State]):
    """A new index replaces the old one beside live traffic."""

    initial = State()
    identical = ("workers",)
    bounds = f"2 workers, {_COMMITS} commits, a rebuild, any crashes"

    ask_for_indices_after_receiving: bool
    load_the_new_index_after_the_commit: bool
    the_alias_moves_to_what_is_loaded: bool
    the_old_index_is_followed: bool
    writes_require_the_alias: bool
    deletes_have_an_update: bool
    out_of_force_before_dropping: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, worker, name in processes(state.workers, "worker"):
            yield from self._work(state, slot, worker, name)
        if state.phase == _MOVED:
            active = (False, True) if self.out_of_force_before_dropping else state.active
            yield "a commit makes B the current index, and deactivates A", state._replace(phase=_CURRENT, active=active)
        elif state.phase == _CURRENT:
            dropped = put(put(state, "exists", _A, item=False), "holds", _A, Held())
            yield "A is dropped", dropped._replace(phase=_DROPPED)
        elif state.phase == _ACTIVE and not state.is_loading:
            yield "the load is done", state._replace(phase=_LOADED)

    def _work(self, state: State, slot: int, worker: Worker, name: str) -> Iterator[Step[State]]:
        if worker.phase == _IDLE:
            # Without the rule, those at the worker's start.
            is_asked = self.ask_for_indices_after_receiving
            indices = tuple(index for index in (_A, _B) if state.active[index]) if is_asked else (_A,)
            for number, is_done in enumerate(state.events):
                if not is_done:
                    action = f"{name} receives event {number + 1}, for {' and '.join('AB'[index] for index in indices)}"
                    yield action, put(state, "workers", slot, Worker(phase=_HOLDS, task=number, indices=indices))
            if state.is_loading:
                holder = Worker(phase=_HOLDS, task=_LOAD, indices=(_B,))
                yield f"{name} takes the load's chunk", put(state, "workers", slot, holder)
        elif not worker.indices:
            successor = put(state, "workers", slot, Worker())
            if worker.task == _LOAD:
                yield f"{name} finishes the load's chunk", successor._replace(is_loading=False)
            else:
                saved = put(successor, "events", worker.task, item=True)
                yield f"{name} saves that event {worker.task + 1} is handled", saved
        elif worker.phase == _HOLDS:
            yield self._read_snapshot(state, slot, worker, name)
        else:
            yield self._send(state, slot, worker, name)

    def _read_snapshot(self, state: State, slot: int, worker: Worker, name: str) -> Step[State]:
        index = worker.indices[0]
        if not state.active[index] and (worker.task != _LOAD or self.load_the_new_index_after_the_commit):
            skipped = put(state, "workers", slot, _next(worker))
            return f"{name} finds {'AB'[index]} no longer active, and skips it", skipped
        version = 1 + max(*(holder.version for holder in state.holds), *(holder.version for holder in state.workers))
        reading = worker._replace(phase=_READ, version=version, state=len(state.events), is_there=state.is_there)
        action = f"{name} assigns version {version}, and reads state {reading.state} for {'AB'[index]}"
        return action, put(state, "workers", slot, reading)

    def _send(self, state: State, slot: int, worker: Worker, name: str) -> Step[State]:
        index = worker.indices[0]
        verb, to = ("writes", "to") if worker.is_there else ("deletes", "in")
        action = f"{name} {verb} state {worker.state} {to} {'AB'[index]} as version {worker.version}"
        requires_alias = self.writes_require_the_alias and (worker.is_there or self.deletes_have_an_update)
        if not state.exists[index] and requires_alias:
            restarted = Worker(phase=_HOLDS, task=worker.task, indices=worker.indices)
            rejected = put(state, "workers", slot, restarted)
            return f"{action}, which is rejected: there is no such alias; it starts again", rejected
        successor = put(state, "workers", slot, _next(worker))
        if state.exists[index] and worker.version <= state.holds[index].version:
            return f"{action}, which is rejected", successor
        indexed = put(put(successor, "exists", index, item=True), "holds", index, Held(worker.version, worker.state))
        return action if state.exists[index] else f"{action}, which creates it again", indexed

    def world(self, state: State) -> Iterator[Step[State]]:
        if len(state.events) < _COMMITS:
            number, events = len(state.events) + 1, (*state.events, False)
            yield (
                f"the row is {'changed' if state.is_there else 'inserted'}: state {number}",
                state._replace(events=events, is_there=True),
            )
            if state.is_there:
                yield f"the row is deleted: state {number}", state._replace(events=events, is_there=False)
        for slot, worker, name in processes(state.workers, "worker"):
            if worker.phase:
                yield f"{name} is killed", put(state, "workers", slot, Worker())
        loads_after = self.load_the_new_index_after_the_commit
        if state.phase == _NONE:
            created = state._replace(phase=_CREATED, exists=(True, True), is_loading=not loads_after)
            yield "index B is created", created
        elif state.phase == _CREATED:
            active = state._replace(phase=_ACTIVE, active=(True, True), is_loading=loads_after or state.is_loading)
            yield "one commit activates B and creates its load", active
        if state.phase == _LOADED or (state.phase == _ACTIVE and not self.the_alias_moves_to_what_is_loaded):
            yield "the alias moves to B", state._replace(phase=_MOVED, alias=_B)
        if state.phase == _LOADED and state.active[_A] and not self.the_old_index_is_followed:
            yield "A is deactivated", state._replace(active=(False, True))

    def wrong(self, state: State) -> str | None:
        shown = state.holds[state.alias].state
        last_handled = max((number for number, is_done in enumerate(state.events, 1) if is_done), default=0)
        if shown < last_handled:
            return (
                f"a search finds state {max(shown, 0)} in {'AB'[state.alias]}, though event {last_handled} is handled"
            )
        return None

    def unequal(self, state: State) -> str | None:
        for index, name in enumerate("AB"):
            if state.exists[index] and not state.active[index] and state.phase != _CREATED:
                return f"{name} exists, but is not active: an orphan"
            if state.active[index] and state.holds[index].state != len(state.events):
                shown = state.holds[index].state
                return f"{name} holds state {shown} for good, and Postgres is at state {len(state.events)}"
        return None


def _next(worker: Worker) -> Worker:
    return Worker(phase=_HOLDS, task=worker.task, indices=worker.indices[1:])
