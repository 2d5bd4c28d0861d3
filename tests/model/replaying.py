"""Replaying: the version is drawn on the primary, the documents are read on a replica.

A commit is written to the WAL, and becomes visible on the primary after that; the replica replays the WAL in order.
What a draw leaves in the WAL is its mark: the replica is waited for until it is there. A replica that somebody has let
follow another primary has another WAL, in which the mark's place says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Rule, Step, placed, ranked

WAIT_FOR_MARK = Rule(
    name="wait-for-the-mark",
    says="the snapshot is taken once the replica has replayed the draw's mark",
    kept_by="syncer.replica",
    otherwise="a replica that is behind shows an old state, which gets a new version",
)
MARK_AFTER_DRAW = Rule(
    name="mark-after-the-draw",
    says="the mark is written after the draw, not before",
    kept_by="syncer.version",
    otherwise="what becomes visible between the two is not waited for, and its event's version may be the lesser one",
)
KNOWS_THE_DRAW = Rule(
    name="the-replica-knows-the-draw",
    says="the replica's snapshot has the draw's epoch, and its sequence has come as far",
    kept_by="syncer.version",
    otherwise="a server with another history passes for one that has replayed the mark",
)

_IDLE, _RECEIVED, _DRAWN, _MARKED, _READ, _SENT = range(6)


class Worker(NamedTuple):
    """What a worker has in hand: its event, its version, the mark's place in the WAL, the state that it has read."""

    phase: int = _IDLE
    event: int = 0
    version: int = 0
    mark: int = 0
    state: int = 0


class Replaying(NamedTuple):
    """Everything.

    Args:
        visible: How many of the commits in the WAL are visible on the primary.
        written: How many commits are in the WAL.
        replayed: How many of them the replica has.
        done: For each, whether the offset of its event is committed.
        astray: Which state the replica shows while it follows another primary; -1 if it does not.
        strays: How often it may yet go astray.
        version: Which version Elasticsearch has.
        shown: Which state it shows.
        floor: The last change that whoever handled it has written.
        workers: All of them.
    """

    visible: int
    written: int
    replayed: int
    done: tuple[bool, ...]
    astray: int
    strays: int
    version: int
    shown: int
    floor: int
    workers: tuple[Worker, ...]


class ReplayingModel(Model[Replaying]):
    """Draw, mark, wait, read."""

    name = "replaying"
    about = "a replica that is behind, or follows another primary, makes no document older"
    rules = (WAIT_FOR_MARK, MARK_AFTER_DRAW, KNOWS_THE_DRAW)

    def prepare(self) -> None:
        self._commits = 3 if self.is_large else 2
        self._order = (_DRAWN, _MARKED) if self.keeps(MARK_AFTER_DRAW) else (_MARKED, _DRAWN)

    @property
    def bounds(self) -> str:
        return f"2 workers, {self._commits} commits, a replica that goes astray once"

    def initial(self) -> Replaying:
        return Replaying(0, 0, 0, (), astray=-1, strays=1, version=0, shown=0, floor=0, workers=(Worker(), Worker()))

    def protocol(self, state: Replaying) -> Iterator[Step[Replaying]]:
        if state.visible < state.written:
            number = state.visible + 1
            yield f"commit {number} is visible on the primary", state._replace(visible=number)
        if state.replayed < state.written and state.astray < 0:
            number = state.replayed + 1
            yield f"the replica replays commit {number}", state._replace(replayed=number)
        if state.astray >= 0:
            yield "somebody lets the replica follow the primary again", state._replace(astray=-1)
        for at, worker in enumerate(state.workers):
            yield from self._work(state, at, worker, f"worker {'AB'[at]}")

    def _work(self, state: Replaying, at: int, worker: Worker, who: str) -> Iterator[Step[Replaying]]:
        first, second = self._order
        if worker.phase == _IDLE:
            for number in range(1, state.visible + 1):
                if not state.done[number - 1]:
                    got = Worker(phase=_RECEIVED, event=number)
                    yield f"{who} receives event {number}", _with(state, at, got)
        elif worker.phase in (_RECEIVED, first):
            # Rule mark-after-the-draw: `version.draw_with_mark`.
            if (first if worker.phase == _RECEIVED else second) == _DRAWN:
                version = max(state.version, *(one.version for one in state.workers)) + 1
                drawn = worker._replace(phase=first if worker.phase == _RECEIVED else second, version=version)
                yield f"{who} draws version {version}", _with(state, at, drawn)
            else:
                phase = first if worker.phase == _RECEIVED else second
                marked = worker._replace(phase=phase, mark=state.written)
                yield f"{who} marks the WAL, behind commit {state.written}", _with(state, at, marked)
        elif worker.phase == second:
            yield from self._read(state, at, worker, who)
        elif worker.phase == _READ:
            yield self._write(state, at, worker, who)
        else:
            done = placed(state.done, worker.event - 1, one=True)
            yield f"{who} commits the offset of event {worker.event}", _with(state, at, Worker())._replace(done=done)

    def _read(self, state: Replaying, at: int, worker: Worker, who: str) -> Iterator[Step[Replaying]]:
        if state.astray >= 0:
            # Rule the-replica-knows-the-draw: `Replica.require_draw`.
            if self.keeps(KNOWS_THE_DRAW):
                again = Worker(phase=_RECEIVED, event=worker.event)
                yield f"{who} finds that the replica does not know its draw, and begins again", _with(state, at, again)
            else:
                read = worker._replace(phase=_READ, mark=0, state=state.astray)
                yield f"{who} reads state {read.state} on the replica, which is astray", _with(state, at, read)
        # Rule wait-for-the-mark: `Replica._wait_for`.
        elif state.replayed >= worker.mark or not self.keeps(WAIT_FOR_MARK):
            read = worker._replace(phase=_READ, mark=0, state=state.replayed)
            yield f"{who} reads state {read.state} on the replica", _with(state, at, read)

    def _write(self, state: Replaying, at: int, worker: Worker, who: str) -> Step[Replaying]:
        sent = _with(state, at, Worker(phase=_SENT, event=worker.event))
        after = sent._replace(floor=max(state.floor, worker.event))
        said = f"{who} writes state {worker.state} as version {worker.version}"
        if worker.version <= state.version:
            return f"{said}, which is refused", after
        return said, after._replace(version=worker.version, shown=worker.state)

    def world(self, state: Replaying) -> Iterator[Step[Replaying]]:
        if state.written < self._commits:
            number = state.written + 1
            yield f"commit {number} is written to the WAL", state._replace(written=number, done=(*state.done, False))
        if state.strays and state.astray < 0:
            stray = state._replace(astray=state.replayed, strays=state.strays - 1)
            yield "the replica follows another primary, and gets no more commits", stray
        for at, worker in enumerate(state.workers):
            if worker.phase:
                yield f"worker {'AB'[at]} is killed", _with(state, at, Worker())

    def wrong(self, state: Replaying) -> str | None:
        if state.shown < state.floor:
            return f"Elasticsearch shows state {state.shown}, though event {state.floor} was written"
        return None

    def unlevel(self, state: Replaying) -> str | None:
        if state.shown != state.written:
            return f"Elasticsearch shows state {state.shown} for good, and Postgres is at state {state.written}"
        return None

    def canonical(self, state: Replaying) -> Replaying:
        rank = ranked((state.version, *(one.version for one in state.workers)))
        workers = sorted(one._replace(version=rank[one.version]) for one in state.workers)
        return state._replace(version=rank[state.version], workers=tuple(workers))


def _with(state: Replaying, at: int, worker: Worker) -> Replaying:
    return state._replace(workers=placed(state.workers, at, worker))
