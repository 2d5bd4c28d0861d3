"""Suspending: a document that cannot be built waits, loses nothing, and does not hold up the others.

While a table is locked or an index is closed, a change of the document joins a fan-out, which waits with it. When a
table is altered, the first revision's SELECT fails, and changes may be made that no trigger captures: so may a fan-out
that has grown too long take up no more. The document is then stale, and is resumed with a refresh. Kafka may lose a
change before it is handled; that it is found out is shown by `tests.model.progressing`. What the first revision
shows may differ on the altered table, and it may work there all the same. `syncer apply`
activates a second revision, whose SELECT works and reads one more table, which is captured from then on: one commit
activates a revision and creates the job that writes every document. That the job reads after that commit, and a worker
which revision is active after it has received the change, are rules of `tests.model.reindexing`. Elasticsearch shows a
state of the database in the form of a revision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_IDLE, _KNOWS, _RESOLVED, _READ, _FAILED = range(5)
_JOB, _FORMER_JOB = -1, -2
_NONE, _CAPTURED, _APPLIED, _ENDED = range(4)
_AS_APPLIED, _LOCKED, _ALTERED, _ALTERED_BACK = range(4)
_CAUSES_MAX = 1

_COMMITS = 2


class Worker(NamedTuple):
    """What a worker is doing."""

    phase: int = _IDLE
    task: int = 0  # the number of its event; below 0, a chunk of the job, or of one that is gone since
    revision: int = 0  # that it takes as active, or has built the document with
    version: int = 0  # that it has assigned
    state: int = 0  # of the database that it has read
    is_altered: bool = False  # it has failed because a table was altered


class State(NamedTuple):
    """The state of the model."""

    events: tuple[bool, ...] = ()  # for each commit, whether it is saved as handled, or no trigger captured it
    revision: int = 1  # the active one
    is_suspended: bool = False
    is_stale: bool = False  # a refresh is needed
    table: int = _AS_APPLIED  # while it is altered or locked, the first revision's SELECT fails
    applying: int = _NONE  # the phase of `syncer apply`
    is_captured: bool = False  # the other table
    has_job: bool = False  # a load, refresh or fan-out, which writes the one document
    causes: int = 0  # how many changes the waiting fan-out has taken up
    losses: int = 1  # how many more changes Kafka may lose
    version: int = 0  # that Elasticsearch has
    shown: tuple[int, int] = (0, 1)  # the state that Elasticsearch shows, and the revision of its form
    workers: tuple[Worker, ...] = (Worker(), Worker())


class Suspending(Model[State]):
    """A fan-out, a refresh or a load writes what changed while a document was suspended or its definition changed."""

    initial = State()
    identical = ("workers",)
    bounds = (
        f"2 workers, {_COMMITS} commits, a table locked, or altered and altered back, an apply, fan-outs of "
        f"{_CAUSES_MAX} cause, a change lost, any crashes"
    )

    a_change_that_cannot_be_written_joins_a_fan_out: bool
    a_full_fan_out_becomes_a_refresh: bool
    the_revision_is_read_in_the_snapshot: bool
    refresh_with_the_resumption: bool
    stale_with_the_acceptance: bool
    a_loss_is_made_up_for_in_a_suspended_document: bool
    capture_before_the_revision: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        yield from self._apply(state)
        if state.is_suspended and (state.revision == 2 or state.table in (_AS_APPLIED, _ALTERED_BACK)):
            resumed = _with_job(state) if state.is_stale and self.refresh_with_the_resumption else state
            yield "the document is resumed", resumed._replace(is_suspended=False, is_stale=False, causes=0)
        if state.table == _ALTERED and state.revision == 1 and not state.is_stale:
            yield "the watch suspends revision 1", state._replace(is_suspended=True, is_stale=True)
        if state.table == _ALTERED and state.revision == 1:
            accepted = state._replace(table=_ALTERED_BACK)
            if self.stale_with_the_acceptance:
                accepted = accepted._replace(is_suspended=True, is_stale=True)
            yield "revision 1 works on the altered table: that is accepted", accepted
        for slot, worker, name in processes(state.workers, "worker"):
            yield from self._work(state, slot, worker, name)

    def _apply(self, state: State) -> Iterator[Step[State]]:
        if state.applying == _NONE:
            return
        captures_at = _CAPTURED if self.capture_before_the_revision else _APPLIED
        if state.applying == captures_at and not state.is_captured:
            yield "apply captures the other table", state._replace(is_captured=True)
        elif state.applying == _CAPTURED:
            active = _with_job(state)._replace(revision=2, is_suspended=False, is_stale=False, causes=0)
            active = active._replace(applying=_APPLIED)
            yield "apply activates revision 2 and creates its load", active
        elif state.applying == _APPLIED:
            yield "apply is done", state._replace(applying=_ENDED)

    def _work(self, state: State, slot: int, worker: Worker, name: str) -> Iterator[Step[State]]:
        if worker.phase == _IDLE:
            yield from self._take(state, slot, name)
        elif worker.phase == _KNOWS:
            yield from self._resolve(state, slot, worker, name)
        elif worker.phase == _RESOLVED:
            yield self._read_snapshot(state, slot, worker, name)
        elif worker.phase == _READ:
            action = f"{name} writes state {worker.state} in form {worker.revision} as version {worker.version}"
            successor = self._handled(state, slot, worker)
            if worker.version <= state.version:
                yield f"{action}, which is rejected", successor
            else:
                yield action, successor._replace(version=worker.version, shown=(worker.state, worker.revision))
        else:
            suspended, action = self._suspend(state, worker, name)
            yield f"{action}, and starts again", put(suspended, "workers", slot, Worker())

    def _resolve(self, state: State, slot: int, worker: Worker, name: str) -> Iterator[Step[State]]:
        if worker.revision != state.revision:
            # Whatever is older than the active revision is written by its load.
            yield (
                f"{name} leaves the change to the load of revision {state.revision}",
                self._handled(state, slot, worker),
            )
        elif not state.is_suspended:
            resolved = put(state, "workers", slot, worker._replace(phase=_RESOLVED))
            yield f"{name} resolves the change", resolved
        elif state.is_stale:
            yield f"{name} leaves the change to the refresh to come", self._handled(state, slot, worker)
        elif not self.a_change_that_cannot_be_written_joins_a_fan_out:
            yield f"{name} skips the change of the suspended document", self._handled(state, slot, worker)
        elif state.causes < _CAUSES_MAX:
            joined = _with_job(state)._replace(causes=state.causes + 1)
            yield f"{name} adds the change to the fan-out", self._handled(joined, slot, worker)
        else:
            dropped = _without_job(state)._replace(is_stale=self.a_full_fan_out_becomes_a_refresh)
            yield f"{name} drops the full fan-out: the document is stale", self._handled(dropped, slot, worker)

    @staticmethod
    def _take(state: State, slot: int, name: str) -> Iterator[Step[State]]:
        for number, is_done in enumerate(state.events):
            if not is_done:
                knows = Worker(phase=_KNOWS, task=number, revision=state.revision)
                action = f"{name} receives event {number + 1}, and reads that revision {state.revision} is active"
                yield action, put(state, "workers", slot, knows)
        if state.has_job and not state.is_suspended:
            holder = Worker(phase=_RESOLVED, task=_JOB, revision=state.revision)
            yield f"{name} takes the job's chunk", put(state, "workers", slot, holder)

    def _read_snapshot(self, state: State, slot: int, worker: Worker, name: str) -> Step[State]:
        revision = state.revision if self.the_revision_is_read_in_the_snapshot else worker.revision
        if state.is_suspended:
            failed = worker._replace(phase=_FAILED, revision=revision, is_altered=False)
            return f"{name} finds the document suspended", put(state, "workers", slot, failed)
        if state.table in (_LOCKED, _ALTERED) and revision == 1:
            failed = Worker(phase=_FAILED, task=worker.task, revision=1, is_altered=state.table == _ALTERED)
            return f"{name} cannot read: revision 1 fails", put(state, "workers", slot, failed)
        version = max(state.version, *(worker.version for worker in state.workers)) + 1
        reading = worker._replace(phase=_READ, revision=revision, version=version, state=len(state.events))
        action = f"{name} assigns version {version}, and reads state {reading.state} in form {revision}"
        return action, put(state, "workers", slot, reading)

    @staticmethod
    def _suspend(state: State, worker: Worker, name: str) -> tuple[State, str]:
        if state.revision == worker.revision:
            suspended = state._replace(is_suspended=True, is_stale=state.is_stale or worker.is_altered)
            return suspended, f"{name} suspends revision {state.revision}"
        return state, f"{name} would suspend revision {worker.revision}, which is no longer active"

    @staticmethod
    def _handled(state: State, slot: int, worker: Worker) -> State:
        successor = put(state, "workers", slot, Worker())
        if worker.task < 0:
            return _without_job(successor) if worker.task == _JOB else successor
        return put(successor, "events", worker.task, item=True)

    def world(self, state: State) -> Iterator[Step[State]]:
        if len(state.events) < _COMMITS:
            number = len(state.events) + 1
            if state.table != _LOCKED:
                yield f"state {number} is committed", state._replace(events=(*state.events, False))
            if state.table == _ALTERED and state.revision == 1:
                yield f"state {number} is committed, uncaptured", state._replace(events=(*state.events, True))
            if state.is_captured or state.revision == 2:
                committed = (*state.events, not state.is_captured)
                yield f"state {number} is committed, in the other table", state._replace(events=committed)
        yield from self._lose(state)
        if state.revision == 1:
            yield from self._alter(state)
        if state.applying == _NONE:
            yield "syncer apply begins, with revision 2", state._replace(applying=_CAPTURED)
        for slot, worker, name in processes(state.workers, "worker"):
            if worker.phase:
                yield f"{name} is killed", put(state, "workers", slot, Worker())

    def _lose(self, state: State) -> Iterator[Step[State]]:
        is_made_up_for = self.a_loss_is_made_up_for_in_a_suspended_document or not state.is_suspended
        for number, is_done in enumerate(state.events):
            if state.losses and not is_done:
                lost = put(state, "events", number, item=True)._replace(losses=state.losses - 1)
                action = f"Kafka loses event {number + 1}, which is found out"
                yield action, _with_job(lost) if is_made_up_for else lost

    def _alter(self, state: State) -> Iterator[Step[State]]:
        if state.table == _AS_APPLIED:
            yield "a table is locked", state._replace(table=_LOCKED)
            yield "a table is altered: revision 1 no longer works", state._replace(table=_ALTERED)
        elif state.table == _LOCKED:
            yield "the lock is released", state._replace(table=_ALTERED_BACK)
        elif state.table == _ALTERED and state.is_stale:  # which the watch sees, also if it looks afterwards
            yield "the table is altered back", state._replace(table=_ALTERED_BACK)

    def unequal(self, state: State) -> str | None:
        if state.is_suspended:
            return "revision 2 is suspended, though it works" if state.revision == 2 else None
        if state.shown != (len(state.events), state.revision):
            return (
                f"Elasticsearch shows state {state.shown[0]} in form {state.shown[1]} for good, Postgres is at state "
                f"{len(state.events)}, and revision {state.revision} is active"
            )
        return None


def _with_job(state: State) -> State:
    """With a new job, which takes the place of another one."""
    return _without_job(state)._replace(has_job=True, causes=state.causes)


def _without_job(state: State) -> State:
    workers = (worker._replace(task=_FORMER_JOB) if worker.task == _JOB else worker for worker in state.workers)
    return state._replace(has_job=False, causes=0, workers=tuple(workers))
