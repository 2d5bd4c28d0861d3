"""Writing: two workers keep one document up to date despite delays, repetition, reordering and crashes.

Each commit produces a new state of the database, numbered from 1, and an event. A worker may take any event whose
progress is not saved, even if another worker is handling it: that is a rebalance. A worker is idle, or has *received*
an event, *assigned* a version too early, *read* a snapshot, or *sent* what it read. Assigning a version and taking the
snapshot are one step, serialised among all workers.

Elasticsearch may forget deletes at any time: after an hour, after a restart, or when a shard moves. A worker that
assigned its version before that, and has not saved its progress, is *late* from then on.

The model shows this of guarantee 2: once a state has been seen, no earlier state is ever seen, even if its change has
not been handled. When Elasticsearch forgets deletes, this starts anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_IDLE, _RECEIVED, _ASSIGNED, _READ, _SENT = range(5)
_COMMITS = 3


class Worker(NamedTuple):
    """A worker and the event that it handles."""

    phase: int = _IDLE
    event: int = 0  # the number of the commit
    version: int = 0  # that it has assigned
    state: int = 0  # that it has read
    is_there: bool = False  # the document, in that state
    created: bool = False  # its write created the document, and the check with Postgres is still to come
    is_late: bool = False  # Elasticsearch has forgotten deletes since it assigned its version


class State(NamedTuple):
    """The state of the model."""

    events: tuple[bool, ...] = ()  # for each commit, whether its event is saved as handled
    is_there: bool = False  # the document, in Postgres
    version: int = 0  # that Elasticsearch has or remembers
    last_version: int = 0  # that was assigned
    shown: int = 0  # the state that Elasticsearch shows
    is_shown: bool = False  # whether it has the document
    newest_shown: int = 0  # the newest state that it has shown
    workers: tuple[Worker, ...] = (Worker(), Worker())
    forgets: int = 1  # how many more times Elasticsearch may forget deletes
    bumps: int = 1  # how many more times other clients may raise the version
    others_left: int = 1  # how many more versions may be assigned for other documents


class Writing(Model[State]):
    """The version rule holds for two workers and one document, with any delay, repetition, order and crash."""

    initial = State()
    identical = ("workers",)
    bounds = (
        f"2 workers, {_COMMITS} commits, deletes forgotten once, a version raised once; "
        "any number of crashes and deliveries"
    )

    assign_after_receiving: bool
    assign_and_read_in_turn: bool
    external_versions: bool
    deletes_have_versions: bool
    write_before_saving_progress: bool
    late_creations_are_done_again: bool
    gaps_between_versions: bool
    write_again_over_what_was_not_assigned: bool
    a_late_creator_lives: bool  # an assumption
    bumps_meet_no_assigned_version: bool  # an assumption

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for slot, worker, name in processes(state.workers, "worker"):
            yield from self._work(state, slot, worker, name)

    def _work(self, state: State, slot: int, worker: Worker, name: str) -> Iterator[Step[State]]:
        phase = worker.phase
        if phase == _IDLE or (phase == _ASSIGNED and not worker.event):
            yield from self._receive(state, slot, worker, name)
        elif phase in (_RECEIVED, _ASSIGNED):
            reading = worker._replace(phase=_READ, state=len(state.events), is_there=state.is_there)
            action = f"reads state {reading.state}: the document is {'' if reading.is_there else 'not '}there"
            if phase == _RECEIVED and self.assign_and_read_in_turn:
                reading = reading._replace(version=state.last_version + 1)
                state = _assigned(state)
                action = f"assigns version {reading.version} and {action}"
            yield f"{name} {action}", put(state, "workers", slot, reading)
        elif phase == _READ and not worker.version:
            assigned = worker._replace(version=state.last_version + 1)
            yield f"{name} assigns version {assigned.version}", put(_assigned(state), "workers", slot, assigned)
        elif phase == _READ:
            yield self._send(state, slot, worker, name)
        elif worker.created and state.is_there:
            yield f"{name} finds that the row still exists", put(state, "workers", slot, worker._replace(created=False))
        elif worker.created:
            yield (
                f"{name} finds that the row is gone, and starts again",
                put(state, "workers", slot, _restarted(worker)),
            )
        else:
            saved = put(state, "events", worker.event - 1, item=True)
            yield f"{name} saves that event {worker.event} is handled", put(saved, "workers", slot, Worker())

    def _receive(self, state: State, slot: int, worker: Worker, name: str) -> Iterator[Step[State]]:
        for number, is_done in enumerate(state.events, 1):
            if not is_done:
                received = worker._replace(phase=worker.phase or _RECEIVED, event=number)
                yield f"{name} receives event {number}", put(state, "workers", slot, received)
                if not self.write_before_saving_progress:
                    saved = put(state, "events", number - 1, item=True)
                    yield f"{name} saves that event {number} is handled, and dies", saved
        if not self.assign_after_receiving and worker.phase == _IDLE and len(state.events) < _COMMITS:
            assigned = Worker(phase=_ASSIGNED, version=state.last_version + 1)
            yield f"{name} assigns version {assigned.version}", put(_assigned(state), "workers", slot, assigned)

    def _send(self, state: State, slot: int, worker: Worker, name: str) -> Step[State]:
        sent = worker._replace(phase=_SENT, version=0, state=0, is_there=False)
        action = f"{name} {'writes' if worker.is_there else 'deletes'} state {worker.state} as version {worker.version}"
        if self.external_versions and worker.version <= state.version:
            action += f", which is rejected: {state.version} is there"
            is_unsure = worker.version == state.version or state.version > state.last_version
            if self.write_again_over_what_was_not_assigned and is_unsure:
                return f"{action}, and starts again", put(state, "workers", slot, _restarted(worker))
            return action, put(state, "workers", slot, sent)
        if worker.is_there and not state.is_shown and self.late_creations_are_done_again:
            sent = sent._replace(created=True)
        return action, put(state, "workers", slot, sent)._replace(
            version=worker.version if worker.is_there or self.deletes_have_versions else 0,
            shown=worker.state,
            is_shown=worker.is_there,
            newest_shown=max(state.newest_shown, worker.state),
        )

    def world(self, state: State) -> Iterator[Step[State]]:
        if len(state.events) < _COMMITS:
            number, events = len(state.events) + 1, (*state.events, False)
            if state.is_there:
                yield f"the row is changed: state {number}", state._replace(events=events)
                yield f"the row is deleted: state {number}", state._replace(events=events, is_there=False)
            else:
                yield f"the row is inserted: state {number}", state._replace(events=events, is_there=True)
        for slot, worker, name in processes(state.workers, "worker"):
            if worker.phase and not (worker.is_late and self.a_late_creator_lives):
                yield f"{name} is killed", put(state, "workers", slot, Worker())
        if state.forgets and not state.is_shown:
            workers = tuple(worker._replace(is_late=worker.phase >= _ASSIGNED) for worker in state.workers)
            # A late writer may show a deleted document once more, until it has checked with Postgres.
            successor = state._replace(version=0, newest_shown=0, forgets=state.forgets - 1, workers=workers)
            yield "Elasticsearch forgets deletes: it restarts, or an hour passes", successor
        if state.others_left:
            action = f"version {state.last_version + 1} is assigned for another document"
            yield action, _assigned(state)._replace(others_left=state.others_left - 1)
        if state.bumps and state.is_shown:
            yield from self._bump(state)

    def _bump(self, state: State) -> Iterator[Step[State]]:
        """Raise the version of the document to another one. Within a gap it changes no order, and has no step."""
        held_versions = sorted(worker.version for worker in state.workers if worker.version)
        for raised in range(state.version + 1, state.last_version + 2):
            successor = state._replace(version=raised, bumps=state.bumps - 1)
            if not self.gaps_between_versions or not self.bumps_meet_no_assigned_version:
                yield f"other clients raise the version to {raised}", successor
            elif raised == (held_versions or [state.last_version + 1])[0]:
                yield f"other clients raise the version across gaps, to {raised}", successor._replace(others_left=0)

    def wrong(self, state: State) -> str | None:
        if state.shown < state.newest_shown:
            return f"Elasticsearch shows state {state.shown}, and has shown state {state.newest_shown} before"
        return None

    def unequal(self, state: State) -> str | None:
        if state.is_shown != state.is_there:
            return f"Elasticsearch {'has' if state.is_shown else 'lacks'} the document for good, unlike Postgres"
        if state.is_there and state.shown != len(state.events):
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at state {len(state.events)}"
        return None


def _assigned(state: State) -> State:
    return state._replace(last_version=state.last_version + 1)


def _restarted(worker: Worker) -> Worker:
    return Worker(phase=_RECEIVED, event=worker.event, is_late=worker.is_late)
