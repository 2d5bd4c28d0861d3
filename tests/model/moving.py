"""Moving: a document with a ``_routing`` is on one of two shards, and a write deletes elsewhere only after a move.

A change *moves* the document if it touches what decides whether there is a document, and on which shard: each insert,
delete and new routing does, an edit of its content does not. Shards know nothing of each other, so each operation of a
write is a step of its own. A write that finds no row deletes the document on both shards. That a late creator lives is
assumed here as in `tests.model.writing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explorer import Model, Step, processes, put

_IDLE, _RECEIVED, _READ = range(3)
_SHARDS = (1, 2)
_COMMITS = 2


class Copy(NamedTuple):
    """What a shard has: the version that it has or remembers, and the state that it shows; 0 if there is no copy."""

    version: int = 0
    state: int = 0


class Worker(NamedTuple):
    """A worker and the event that it handles."""

    phase: int = _IDLE
    event: int = 0
    moves: bool = False  # its write deletes elsewhere
    version: int = 0
    state: int = 0  # that it has read
    shard: int = 0  # where the document belongs in that state; 0 if there is none
    unsent: tuple[int, ...] = ()  # the shards that its write is still to reach
    created: bool = False  # its write created a copy
    is_late: bool = False  # Elasticsearch has forgotten deletes since it assigned its version


class State(NamedTuple):
    """The state of the model."""

    events: tuple[bool | None, ...] = ()  # for each, whether it moves the document; None once it is saved as handled
    shard: int = 1  # where the document belongs; 0 if there is none
    last_version: int = 1
    copies: tuple[Copy, ...] = (Copy(version=1, state=1), Copy())
    workers: tuple[Worker, ...] = (Worker(), Worker())
    forgets: int = 1


class Moving(Model[State]):
    """A document is on its own shard and on no other, although most writes leave the other shards alone."""

    initial = State()
    identical = ("workers",)
    bounds = f"2 workers, 2 shards, {_COMMITS} commits, deletes forgotten once; any number of crashes and deliveries"

    moves_delete_elsewhere: bool
    absence_is_deleted_everywhere: bool
    what_is_done_again_deletes_elsewhere: bool

    def protocol(self, state: State) -> Iterator[Step[State]]:
        for at, worker, name in processes(state.workers, "worker"):
            if worker.phase == _IDLE:
                for number, event in enumerate(state.events, 1):
                    if event is not None:
                        moves = event and self.moves_delete_elsewhere
                        received = Worker(phase=_RECEIVED, event=number, moves=moves)
                        yield f"{name} receives event {number}", put(state, "workers", at, received)
            elif worker.phase == _RECEIVED:
                read = self._read(state, worker)
                what = f"{name} reads state {read.state} as version {read.version}: " + (
                    f"the document belongs on shard {read.shard}" if read.shard else "there is no document"
                )
                yield what, put(state, "workers", at, read)._replace(last_version=read.version)
            elif worker.unsent:
                for shard in worker.unsent:
                    yield self._send(state, at, worker, name, shard)
            elif worker.created and worker.shard != state.shard:
                moves = worker.moves or self.what_is_done_again_deletes_elsewhere
                again = Worker(phase=_RECEIVED, event=worker.event, moves=moves, is_late=worker.is_late)
                yield f"{name} finds that it does not belong there, and starts again", put(state, "workers", at, again)
            else:
                saved = put(put(state, "events", worker.event - 1, None), "workers", at, Worker())
                yield f"{name} saves that event {worker.event} is handled", saved

    def _read(self, state: State, worker: Worker) -> Worker:
        deletes = worker.moves if state.shard else self.absence_is_deleted_everywhere
        unsent = _SHARDS if deletes else (state.shard or _SHARDS[0],)
        return worker._replace(
            phase=_READ, version=state.last_version + 1, state=len(state.events) + 1, shard=state.shard, unsent=unsent
        )

    def _send(self, state: State, at: int, worker: Worker, name: str, shard: int) -> Step[State]:
        sent = worker._replace(unsent=tuple(other for other in worker.unsent if other != shard))
        copy, is_there = state.copies[shard - 1], worker.shard == shard
        what = f"{name} {'writes' if is_there else 'deletes'} version {worker.version} on shard {shard}"
        if worker.version <= copy.version:
            return f"{what}, which is rejected", put(state, "workers", at, sent)
        sent = sent._replace(created=sent.created or (is_there and not copy.state))
        written = Copy(version=worker.version, state=worker.state if is_there else 0)
        return what, put(put(state, "copies", shard - 1, written), "workers", at, sent)

    def world(self, state: State) -> Iterator[Step[State]]:
        if len(state.events) < _COMMITS:
            for shard in (*_SHARDS, *([0] if state.shard else [])):
                moves = shard != state.shard
                what = f"moves to shard {shard}" if shard and moves else "is edited" if shard else "is deleted"
                after = state._replace(events=(*state.events, moves), shard=shard)
                yield f"the document {what}: state {len(after.events) + 1}", after
        for at, worker, name in processes(state.workers, "worker"):
            if worker.phase and not worker.is_late:
                yield f"{name} is killed", put(state, "workers", at, Worker())
        if state.forgets and any(copy.version and not copy.state for copy in state.copies):
            copies = tuple(copy if copy.state else Copy() for copy in state.copies)
            workers = tuple(worker._replace(is_late=worker.phase == _READ) for worker in state.workers)
            yield "Elasticsearch forgets deletes", state._replace(forgets=0, copies=copies, workers=workers)

    def unequal(self, state: State) -> str | None:
        for shard, copy in zip(_SHARDS, state.copies, strict=True):
            expected = len(state.events) + 1 if shard == state.shard else 0
            if copy.state != expected:
                return f"shard {shard} shows state {copy.state} for good, and not {expected}; 0 is none"
        return None
