"""Cluster identities: versions never go back, even if the database does.

A crash loses sequence numbers that were assigned but not yet on disk. A failover to a lagging standby, or a restore,
also loses commits, and resets the sequence and the epoch. A connecting writer checks the cluster identity and enters a
new one: it writes the epoch to Elasticsearch, then to Postgres. Then every document is refreshed. A writer that still
belongs to the earlier identity may send documents that it has already built. Here, a write and its completion are one
step; `tests.model.writing` shows that nothing is lost in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_IDLE, _ENTERING, _CONNECTED, _ASSIGNED, _READ = range(5)
_EPOCH = 100
_COMMITS = 1


class Database(NamedTuple):
    """The part of the state that a restore resets."""

    states: tuple[int, ...] = (0,)  # of the document, as numbers of commits; a number is never used again
    identity: int = 1  # that Postgres remembers
    epoch: int = 1  # that Postgres remembers
    assigned: int = 0  # the last number of the sequence


class Worker(NamedTuple):
    """What a worker is doing."""

    phase: int = _IDLE
    covers_all: bool = False  # its write will show every change that there is
    is_cut: bool = False  # its connection is gone, after a crash, a failover or a restore
    number: int = 0  # that it has assigned, or the epoch that it enters
    state: int = 0  # of the database that it has read


class State(NamedTuple):
    """The state of the model."""

    database: Database = Database()
    flushed: int = 0  # the last number of the sequence that survives a crash
    identity: int = 1  # of the cluster
    recorded: int = 1  # the epoch recorded in Elasticsearch
    is_due: bool = True  # a change or a refresh is still to be handled
    commits: int = 0
    number: int = 0  # that Elasticsearch has
    shown: int = 0  # the state that Elasticsearch shows
    workers: tuple[Worker, ...] = (Worker(), Worker())
    troubles: int = 3  # how many more times Postgres may crash, fail over or be restored


class ClusterIdentities(Model[State]):
    """After a crash, failover or restore, versions keep growing and lost commits disappear."""

    initial = State()
    identical = ("workers",)
    bounds = f"2 workers, {1 + _COMMITS} changes, 3 crashes, failovers or restores in any order"

    a_new_identity_has_a_greater_epoch: bool
    the_epoch_is_kept_in_elasticsearch: bool
    the_record_comes_first: bool
    skip_unflushed_numbers: bool
    a_new_identity_refreshes_all: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, worker, name in processes(state.workers, "worker"):
            yield from self._work(state, slot, worker, name)

    def _work(self, state: State, slot: int, worker: Worker, name: str) -> Iterator[Step[State]]:
        database = state.database
        if worker.phase == _IDLE:
            yield from self._connect(state, slot, name)
        elif worker.phase == _ENTERING:
            yield self._enter(state, slot, worker.number, name)
        elif worker.phase == _CONNECTED and state.is_due:
            number = database.assigned + 1
            assigned = Worker(phase=_ASSIGNED, covers_all=True, number=database.epoch * _EPOCH + number)
            action = f"{name} receives all pending changes, and assigns {_named(assigned.number)}"
            yield action, _assigned(put(state, "workers", slot, assigned), number)
        elif worker.phase == _ASSIGNED:
            reading = worker._replace(phase=_READ, state=database.states[-1])
            yield f"{name} reads state {reading.state}", put(state, "workers", slot, reading)
        elif worker.phase == _READ:
            action = f"{name} writes state {worker.state} as {_named(worker.number)}"
            # If its connection is gone, it notices after the write and starts again.
            successor = put(state, "workers", slot, Worker() if worker.is_cut else Worker(phase=_CONNECTED))
            successor = successor._replace(is_due=state.is_due and not worker.covers_all)
            if worker.number <= state.number:
                yield f"{action}, which is rejected: {_named(state.number)} is there", successor
            else:
                yield action, successor._replace(number=worker.number, shown=worker.state)

    def _connect(self, state: State, slot: int, name: str) -> Iterator[Step[State]]:
        if any(worker.phase == _ENTERING for worker in state.workers):
            return  # another worker is entering, and has locked the row
        if state.identity == state.database.identity or not self.a_new_identity_has_a_greater_epoch:
            yield f"{name} connects", self._connected(state, slot)
            return
        recorded = state.recorded if self.the_epoch_is_kept_in_elasticsearch else 0
        epoch = max(state.database.epoch, recorded) + 1
        entering = put(state, "workers", slot, Worker(phase=_ENTERING, number=epoch))
        if self.the_record_comes_first:
            action = f"{name} connects, and records epoch {epoch} in Elasticsearch"
            yield action, entering._replace(recorded=max(state.recorded, epoch))
        else:
            action = f"{name} connects, and writes epoch {epoch} to Postgres"
            yield action, entering._replace(database=state.database._replace(identity=state.identity, epoch=epoch))

    def _enter(self, state: State, slot: int, epoch: int, name: str) -> Step[State]:
        successor = self._connected(state, slot)  # here the refresh exists at once
        database = successor.database._replace(identity=state.identity, epoch=epoch)
        successor = successor._replace(database=database, recorded=max(state.recorded, epoch))
        return f"{name} enters epoch {epoch}", _due(successor) if self.a_new_identity_refreshes_all else successor

    def _connected(self, state: State, slot: int) -> State:
        # In this model, at most one number is not on disk.
        number = state.database.assigned + (2 if self.skip_unflushed_numbers else 0)
        return _assigned(put(state, "workers", slot, Worker(phase=_CONNECTED)), number)

    def world(self, state: State) -> Iterator[Step[State]]:
        database = state.database
        if state.commits < _COMMITS:
            number = state.commits + 1
            states = database._replace(states=(*database.states, number))
            yield f"state {number} is committed", _due(state)._replace(commits=number, database=states)
        if state.troubles:
            cut = _cut(state)
            action = f"Postgres crashes, and its sequence continues after {state.flushed}"
            yield action, cut._replace(database=database._replace(assigned=state.flushed))
            successor = cut._replace(identity=state.identity + 1)
            if len(database.states) > 1:
                behind = database._replace(states=database.states[:-1], assigned=state.flushed)
                action = f"a standby that has not received state {database.states[-1]} takes over"
                yield action, _set_back(successor, behind)
            yield "the first backup is restored", _set_back(successor, Database())

    def unequal(self, state: State) -> str | None:
        if state.shown != state.database.states[-1]:
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at {state.database.states[-1]}"
        return None


def _assigned(state: State, number: int) -> State:
    database = state.database._replace(assigned=number)
    return state._replace(database=database, flushed=max(state.flushed, number - 1))


def _cut(state: State) -> State:
    """Close all connections; a worker may still send the document that it has built."""
    sends = Worker(phase=_READ, is_cut=True)
    workers = (
        sends._replace(number=worker.number, state=worker.state) for worker in state.workers if worker.phase == _READ
    )
    return state._replace(workers=(*workers, Worker(), Worker())[:2], troubles=state.troubles - 1)


def _set_back(state: State, database: Database) -> State:
    """Replace the database; the pending changes are lost with the old one."""
    return state._replace(database=database, flushed=database.assigned, is_due=False)


def _named(version: int) -> str:
    return f"version {version // _EPOCH}.{version % _EPOCH}"


def _due(state: State) -> State:
    workers = tuple(worker._replace(covers_all=False) for worker in state.workers)
    return state._replace(is_due=True, workers=workers)
