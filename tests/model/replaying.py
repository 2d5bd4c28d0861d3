"""Replaying: a worker assigns the version on the primary, and reads the documents on a replica.

A commit is written to the WAL first and becomes visible on the primary afterwards. The replica replays the WAL in
order. An assignment writes a mark to the WAL, and the worker waits until the replica has replayed that position. A
replica that was switched to another primary has another WAL, in which this position means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

WAIT_FOR_MARK = Rule(
    name="wait-for-the-mark",
    says="a worker takes the snapshot after the replica has replayed the mark of its assignment",
    kept_by="syncer.indexing.replica",
    otherwise="a lagging replica shows an old state, which gets a new version",
)
MARK_AFTER_ASSIGN = Rule(
    name="mark-after-the-assign",
    says="the mark is written after the version is assigned, not before",
    kept_by="syncer.indexing.version",
    otherwise="a worker does not wait for a commit between the two, and may win over the worker that handles it",
)
KNOWS_THE_ASSIGN = Rule(
    name="the-replica-knows-the-version",
    says="the replica's snapshot has the version's epoch, and its sequence has come as far",
    kept_by="syncer.indexing.version",
    otherwise="a server with another history is taken for one that has replayed the mark",
)

_IDLE, _RECEIVED, _ASSIGNED, _MARKED, _READ, _SENT = range(6)


class Worker(NamedTuple):
    """A worker: its phase, event, version, its mark's position in the WAL, and the state that it has read."""

    phase: int = _IDLE
    event: int = 0
    version: int = 0
    mark: int = 0
    state: int = 0


class Replaying(NamedTuple):
    """The state of the model.

    Args:
        visible: How many of the commits in the WAL are visible on the primary.
        written: How many commits are in the WAL.
        replayed: How many of them the replica has replayed.
        done: For each commit, whether the offset of its event is committed.
        astray: The state that the replica shows while it follows another primary; -1 if it follows the right one.
        switches: How many more times the replica may be switched to another primary.
        version: The version that Elasticsearch has.
        shown: The state that Elasticsearch shows.
        floor: The last change whose worker has sent its write.
        workers: The two workers.
    """

    visible: int
    written: int
    replayed: int
    done: tuple[bool, ...]
    astray: int
    switches: int
    version: int
    shown: int
    floor: int
    workers: tuple[Worker, ...]


class ReplayingModel(Model[Replaying]):
    """Assign, mark, wait, read."""

    name = "replaying"
    about = "a replica that lags, or follows another primary, makes no document older"
    rules = (WAIT_FOR_MARK, MARK_AFTER_ASSIGN, KNOWS_THE_ASSIGN)

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._order = (_ASSIGNED, _MARKED) if self.keeps(MARK_AFTER_ASSIGN) else (_MARKED, _ASSIGNED)

    @property
    def bounds(self) -> str:
        return f"2 workers, {self._commits} commits, a replica that follows another primary once"

    def initial(self) -> Replaying:
        return Replaying(0, 0, 0, (), astray=-1, switches=1, version=0, shown=0, floor=0, workers=(Worker(), Worker()))

    def protocol(self, state: Replaying) -> Iterator[Step[Replaying]]:
        if state.visible < state.written:
            number = state.visible + 1
            yield f"commit {number} is visible on the primary", state._replace(visible=number)
        if state.replayed < state.written and state.astray < 0:
            number = state.replayed + 1
            yield f"the replica replays commit {number}", state._replace(replayed=number)
        if state.astray >= 0:
            yield "the replica follows the primary again", state._replace(astray=-1)
        for at, worker in enumerate(state.workers):
            yield from self._work(state, at, worker, f"worker {'AB'[at]}")

    def _work(self, state: Replaying, at: int, worker: Worker, name: str) -> Iterator[Step[Replaying]]:
        first, second = self._order
        if worker.phase == _IDLE:
            for number in range(1, state.visible + 1):
                if not state.done[number - 1]:
                    got = Worker(phase=_RECEIVED, event=number)
                    yield f"{name} receives event {number}", _with(state, at, got)
        elif worker.phase in (_RECEIVED, first):
            # Rule mark-after-the-assign: `version.assign_with_mark`.
            if (first if worker.phase == _RECEIVED else second) == _ASSIGNED:
                version = max(state.version, *(one.version for one in state.workers)) + 1
                assigned = worker._replace(phase=first if worker.phase == _RECEIVED else second, version=version)
                yield f"{name} assigns version {version}", _with(state, at, assigned)
            else:
                phase = first if worker.phase == _RECEIVED else second
                marked = worker._replace(phase=phase, mark=state.written)
                yield f"{name} writes its mark to the WAL, after commit {state.written}", _with(state, at, marked)
        elif worker.phase == second:
            yield from self._read(state, at, worker, name)
        elif worker.phase == _READ:
            yield self._write(state, at, worker, name)
        else:
            done = placed(state.done, worker.event - 1, one=True)
            yield f"{name} commits the offset of event {worker.event}", _with(state, at, Worker())._replace(done=done)

    def _read(self, state: Replaying, at: int, worker: Worker, name: str) -> Iterator[Step[Replaying]]:
        if state.astray >= 0:
            # Rule the-replica-knows-the-version: `Replica.require_known`.
            if self.keeps(KNOWS_THE_ASSIGN):
                again = Worker(phase=_RECEIVED, event=worker.event)
                yield (
                    f"{name} finds that the replica does not know its version, and starts again",
                    _with(state, at, again),
                )
            else:
                read = worker._replace(phase=_READ, mark=0, state=state.astray)
                yield f"{name} reads state {read.state} on the replica of another primary", _with(state, at, read)
        # Rule wait-for-the-mark: `Replica._wait_for`.
        elif state.replayed >= worker.mark or not self.keeps(WAIT_FOR_MARK):
            read = worker._replace(phase=_READ, mark=0, state=state.replayed)
            yield f"{name} reads state {read.state} on the replica", _with(state, at, read)

    def _write(self, state: Replaying, at: int, worker: Worker, name: str) -> Step[Replaying]:
        sent = _with(state, at, Worker(phase=_SENT, event=worker.event))
        after = sent._replace(floor=max(state.floor, worker.event))
        said = f"{name} writes state {worker.state} as version {worker.version}"
        if worker.version <= state.version:
            return f"{said}, which is rejected", after
        return said, after._replace(version=worker.version, shown=worker.state)

    def world(self, state: Replaying) -> Iterator[Step[Replaying]]:
        if state.written < self._commits:
            number = state.written + 1
            yield f"commit {number} is written to the WAL", state._replace(written=number, done=(*state.done, False))
        if state.switches and state.astray < 0:
            switched = state._replace(astray=state.replayed, switches=state.switches - 1)
            yield "the replica follows another primary, and gets no more commits", switched
        for at, worker in enumerate(state.workers):
            if worker.phase:
                yield f"worker {'AB'[at]} is killed", _with(state, at, Worker())

    def wrong(self, state: Replaying) -> str | None:
        if state.shown < state.floor:
            return f"Elasticsearch shows state {state.shown}, though event {state.floor} was written"
        return None

    def unequal(self, state: Replaying) -> str | None:
        if state.shown != state.written:
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at state {state.written}"
        return None

    def canonical(self, state: Replaying) -> Replaying:
        rank = ranked((state.version, *(one.version for one in state.workers)))
        workers = sorted(one._replace(version=rank[one.version]) for one in state.workers)
        return state._replace(version=rank[state.version], workers=tuple(workers))


def _with(state: Replaying, at: int, worker: Worker) -> Replaying:
    return state._replace(workers=placed(state.workers, at, worker))
